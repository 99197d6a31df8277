"""A model's weights as a publication: a learner publishes them, actors read whole generations."""

from typing import Any, Optional

import torch

from .. import _publication
from .._closing import Closing
from ._model import own, state


class Publisher(Closing):
    """Publishes a model's state_dict(), generation by generation, for any number of Subscriber. Needs no ps.

    settings: subscribers, records, group, wait, busy_wait of ps_shm.Publisher.
    """

    def __init__(self, name: str, model: torch.nn.Module, **settings: Any) -> None:
        self._model = own(model)
        self._publisher = _publication.Publisher(name, state(self._model), **settings)

    def publish(self, step: int = 0) -> Optional[int]:
        """Publishes the model as it is, and returns the generation's number. None: subscribers use every record."""
        return self._publisher.publish(state(self._model), step)

    @property
    def generation(self) -> int:
        """The newest generation's number; 0: there is none yet."""
        return self._publisher.generation

    def close(self) -> None:
        """Ends the publication. Subscribers keep what they have."""
        self._publisher.close()


class Subscriber(Closing):
    """Keeps a model at the newest weights that a Publisher has published: all of one generation, never mixed."""

    def __init__(self, name: str, model: torch.nn.Module, *, group: str = "", wait: float = 60.0) -> None:
        self._model = own(model)
        self._subscriber = _publication.Subscriber(name, group=group, wait=wait)
        self.generation = 0
        self.step = 0

    def update(self, wait: bool = False, timeout: float = 60.0) -> Optional[int]:
        """Copies a newer generation into the model and returns its number; None where there is none.

        wait: until there is one, up to `timeout` seconds. Raises Timeout, and PublisherGone where nobody publishes.
        """
        if wait:
            generation = self._subscriber.read(self.generation, timeout=timeout)
        else:
            newer = self._subscriber.try_read(self.generation)
            if newer is None:
                return None
            generation = newer
        generation.copy_to(state(self._model))
        self.generation, self.step = generation.number, generation.step
        return self.generation

    def close(self) -> None:
        """Gives its place back."""
        self._subscriber.close()
