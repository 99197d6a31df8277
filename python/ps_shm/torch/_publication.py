"""Publishes a model's weights: a learner publishes them, and actors read whole generations."""

from typing import Any, Optional

import torch

from .. import _publication
from .._closing import Closing
from ._model import note_writes, own, state


class Publisher(Closing):
    """Publishes a model's state_dict(), generation by generation, for any number of Subscriber objects.

    No server is needed.

        learner = ps_shm.torch.Publisher("weights", model)
        learner.publish(step=1)

    Args:
        name: the name of the publication.
        model: the model to publish; its tensors must be on the CPU.
        settings: subscribers, records, group, wait and busy_wait as for ps_shm.Publisher.

    Raises:
        Error: the publication has another publisher, or /dev/shm is full.
    """

    def __init__(self, name: str, model: torch.nn.Module, **settings: Any) -> None:
        self._model = own(model)
        self._publisher = _publication.Publisher(name, state(self._model), **settings)

    def publish(self, step: int = 0) -> Optional[int]:
        """Publishes the current weights and returns the generation's number, or None if subscribers hold all records.

        step: a number for the subscribers, such as the training step.
        """
        return self._publisher.publish(state(self._model), step)

    @property
    def generation(self) -> int:
        """The number of the newest generation; 0 if there is none yet."""
        return self._publisher.generation

    def close(self) -> None:
        """Ends the publication. Subscribers keep the generations that they hold."""
        self._publisher.close()


class Subscriber(Closing):
    """Copies the newest published weights into a model: always those of one generation, never a mixture.

        actor = ps_shm.torch.Subscriber("weights", model)
        actor.update(wait=True)                      # the first weights
        for episode in range(100):
            actor.update()                           # newer weights, if there are any

    Args:
        name: the name of the publication.
        model: a model with the same state_dict() names, shapes and types as the published one, on the CPU.
        group: the Unix group that may use the publication. Empty: only this user's publications are accepted.
        wait: how long to wait for the publication to exist, in seconds.

    Raises:
        Timeout: the publication did not appear within `wait` seconds.

    Attributes:
        generation: the number of the generation in the model; 0 before the first update().
        step: the `step` with which that generation was published.
    """

    def __init__(self, name: str, model: torch.nn.Module, *, group: str = "", wait: float = 60.0) -> None:
        self._model = own(model)
        self._subscriber = _publication.Subscriber(name, group=group, wait=wait)
        self.generation = 0
        self.step = 0

    def update(self, wait: bool = False, timeout: float = 60.0) -> Optional[int]:
        """Copies the newest generation into the model and returns its number, or None if the model has it already.

        Args:
            wait: wait for a newer generation instead of returning None.
            timeout: how long to wait, in seconds.

        Raises:
            Timeout: no newer generation was published within `timeout` seconds.
            PublisherGone: there is no newer generation and no live publisher.
        """
        if wait:
            generation = self._subscriber.read(self.generation, timeout=timeout)
        else:
            newer = self._subscriber.try_read(self.generation)
            if newer is None:
                return None
            generation = newer
        tensors = state(self._model)
        generation.copy_to(tensors)
        note_writes(tensors.values())
        self.generation, self.step = generation.number, generation.step
        return self.generation

    def close(self) -> None:
        """Ends the subscription. The model keeps its weights."""
        self._subscriber.close()
