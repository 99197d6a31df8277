"""Publishes a model's weights: a learner publishes them, and actors read whole generations."""

import math
import time
from typing import AbstractSet, Any, List, Optional

import torch

from .. import Error, ErrorCode, Generation, PublisherGone, Reader, _publication
from .._closing import Closing
from ._model import Tensors, is_on_gpu, note_writes, own, state
from ._registration import Registration
from ._slices import local, slices
from ._tensors import tensors as tensors_of


def _finish_copies(tensors: Tensors) -> None:
    for device in {tensor.device for tensor in tensors.values()}:
        torch.cuda.current_stream(device).synchronize()


def _state(model: torch.nn.Module) -> Tensors:
    return {name: tensor.detach() for name, tensor in state(model).items()}


def _require(names: AbstractSet[str], tensors: Tensors, of: str) -> None:
    if not names <= tensors.keys():
        raise Error(
            f"the model has no tensor '{min(names - tensors.keys())}' of its own any more: make the {of} when the model has its "
            "final parts"
        )


class Publisher(Closing):
    """Publishes a model's state_dict(), generation by generation, for any number of Subscriber objects.

    No server is needed.

        learner = ps_shm.torch.Publisher("weights", model)
        learner.publish(step=1)

    The ranks of a model that is sharded over the processes of one machine (DTensor: FSDP2, tensor parallelism) publish it
    together. Each writes what it has, and none gathers:

        writer = ps_shm.torch.Publisher("weights", model, writer=rank, writers=world_size)
        writer.publish(step=1)                       # on all ranks

    Args:
        name: the name of the publication.
        model: the model to publish. Tensors on GPUs are copied in the order of their current streams, directly into
            shared memory. One of several writers copies them through memory of its own.
        writer: with `writers`, the global rank of this process.
        writers: the number of processes of a sharded model, at most 62. 0: this process publishes the model alone.
        settings: subscribers, records, dtype, populate, group, wait and busy_wait as for ps_shm.Publisher.

    Raises:
        Error: the publication has another publisher, or /dev/shm is full.
        TypeError: a DTensor has other placements than those of FSDP2 and tensor parallelism, such as Partial.
        ValueError: a DTensor has a part on a rank that is not below `writers`.
    """

    def __init__(self, name: str, model: torch.nn.Module, *, writer: int = 0, writers: int = 0, **settings: Any) -> None:
        self._model = own(model)
        tensors = _state(self._model)
        self._names = frozenset(tensors)
        specs = {n: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in tensors.items()}
        plan = slices(tensors, writers) if writers else []
        self._slices = plan[writer] if writer < len(plan) else None
        self._publisher = _publication.Publisher(name, specs, writer=writer, slices=plan, **settings)
        self._registration = Registration(self._publisher)

    def publish(self, step: int = 0, *, timeout: Optional[float] = 60.0) -> Optional[int]:
        """Publishes the current weights and returns the generation's number, or None if subscribers hold all records.

        Args:
            step: a number for the subscribers, such as the training step. Writers of a sharded model give the same one.
            timeout: how long a writer of a sharded model waits for the others, in seconds.

        Raises:
            Timeout: another writer did not publish the same step in time; the message says which.
            Error: the model has lost a tensor, or tied it to another one, since this object was made.
        """
        tensors = _state(self._model)
        _require(self._names, tensors, "Publisher")
        if self._slices is not None:
            return self._publisher.publish({name: local(tensors[name]) for name in self._slices}, step, timeout=timeout)
        on_gpu = {name: tensor for name, tensor in tensors.items() if is_on_gpu(tensor)}
        if not on_gpu:
            return self._publisher.publish({name: tensor.contiguous() for name, tensor in tensors.items()}, step)
        try:
            writing = self._publisher.begin(step)
        except Error as error:
            if error.code is not ErrorCode.EXHAUSTED:
                raise
            return None
        with writing as generation:
            outs = {name: torch.from_dlpack(generation.out(name)) for name in on_gpu}
            self._registration.register(outs.values())
            try:
                for name, tensor in on_gpu.items():
                    outs[name].copy_(tensor, non_blocking=True)
                for name in tensors.keys() - on_gpu.keys():
                    generation.write(name, tensors[name].contiguous())
            finally:
                _finish_copies(on_gpu)  # before readers see the generation, or another one is written there
        return writing.number

    def readers(self) -> List[Reader]:
        """The live subscribers, with the generation that each uses (ps_shm.Publisher.readers())."""
        return self._publisher.readers()

    def wait_for(self, generation: int, readers: int = 0, timeout: Optional[float] = 60.0) -> List[int]:
        """Waits until subscribers use a generation or a newer one. Returns the ranks of those that do not.

        Args:
            generation: the number of the generation.
            readers: how many subscribers. 0: each live one.
            timeout: how long to wait, in seconds.

        Raises:
            Timeout: too few of them used it in time.
        """
        return self._publisher.wait_for(generation, readers, timeout)

    def trim(self) -> int:
        """Gives memory back that no generation in use needs (ps_shm.Publisher.trim())."""
        self._registration.close()
        return self._publisher.trim()

    @property
    def generation(self) -> int:
        """The number of the newest generation; 0 if there is none yet."""
        return self._publisher.generation

    def close(self) -> None:
        """Ends the publication. Subscribers keep the generations that they hold."""
        self._registration.close()
        self._publisher.close()


class Subscriber(Closing):
    """Copies the newest published weights into a model: always those of one generation, never a mixture.

        actor = ps_shm.torch.Subscriber("weights", model)
        actor.update(wait=True)                      # the first weights
        for episode in range(100):
            actor.update()                           # newer weights, if there are any

    Args:
        name: the name of the publication.
        model: a model with the same state_dict() names, shapes and types as the published one. Tensors without elements
            may be missing in the publication, as in that of a job. Tensors on GPUs are copied to in the order of their
            current streams, directly from shared memory.
        strict: False: the two may differ in names; what both have is copied.
        group: the Unix group that may use the publication. Empty: only this user's publications are accepted.
        wait: how long to wait for the publication to exist, in seconds.

    Raises:
        Timeout: the publication did not appear within `wait` seconds.
        ValueError: the model and the publication differ in names.

    Attributes:
        generation: the number of the generation in the model; 0 before the first update().
        step: the `step` with which that generation was published.
    """

    def __init__(self, name: str, model: torch.nn.Module, *, group: str = "", wait: Optional[float] = 60.0, strict: bool = True) -> None:
        self._model = own(model)
        self._subscriber = _publication.Subscriber(name, group=group, wait=wait)
        self._names = set(self._subscriber.names)
        self._registration = Registration(self._subscriber)
        try:
            self._check_names(name, strict)
        except ValueError:
            self._subscriber.close()
            raise
        self._copied = self._names & _state(self._model).keys()
        self.generation = 0
        self.step = 0

    def _check_names(self, name: str, strict: bool) -> None:
        of_model = _state(self._model)
        missing = sorted(n for n, tensor in of_model.items() if n not in self._names and tensor.numel() != 0)
        unknown = sorted(self._names.difference(of_model))
        if strict and (missing or unknown):
            raise ValueError(
                f"publication '{name}' "
                + " and ".join(
                    [f"lacks {', '.join(missing)} of the model"] * bool(missing)
                    + [f"has {', '.join(unknown)}, which the model lacks"] * bool(unknown)
                )
                + "; pass a model like the published one, or strict=False"
            )

    def update(self, wait: bool = False, timeout: Optional[float] = 60.0, wait_for_publisher: Optional[float] = 0.0) -> Optional[int]:
        """Copies the newest generation into the model and returns its number, or None if the model has it already.

        Args:
            wait: wait for a newer generation instead of returning None.
            timeout: how long to wait, in seconds.
            wait_for_publisher: how long to wait for another publisher if there is none, for example while the learner
                restarts, in seconds; `timeout` begins anew with each one.

        Raises:
            Timeout: no newer generation was published within `timeout` seconds.
            PublisherGone: there is no newer generation and no live publisher.
            Error: the model has lost a tensor, or tied it to another one, since this object was made.
        """
        now = _state(self._model)
        _require(self._copied, now, "Subscriber")
        generation = self._read(timeout, wait_for_publisher) if wait else self._subscriber.try_read(self.generation)
        if generation is None:
            return None
        tensors = {name: tensor for name, tensor in now.items() if name in self._names}
        on_gpu = {name: tensor for name, tensor in tensors.items() if is_on_gpu(tensor)}
        on_cpu = {name: tensor for name, tensor in tensors.items() if name not in on_gpu}
        strided = {name: tensor for name, tensor in on_cpu.items() if not tensor.is_contiguous()}
        beside = {n: torch.empty_like(t, memory_format=torch.contiguous_format) for n, t in strided.items()}
        try:
            self._copy_to_gpu(generation, on_gpu)
            generation.copy_to({**on_cpu, **beside})
        finally:
            _finish_copies(on_gpu)  # while the generation is held
        for name, place in beside.items():
            tensors[name].copy_(place)
        note_writes(tensors.values())
        self.generation, self.step = generation.number, generation.step
        self._subscriber.acknowledge(self.generation)
        return self.generation

    def _copy_to_gpu(self, generation: Generation, on_gpu: Tensors) -> None:
        if not on_gpu:
            return
        places = {name: tensor for name, tensor in tensors_of(generation).items() if name in on_gpu}
        for name, tensor in on_gpu.items():
            if tensor.dtype != places[name].dtype or tensor.shape != places[name].shape:
                raise TypeError(
                    f"update: '{name}' is of {tensor.dtype} and shape {tuple(tensor.shape)} in the model, and of "
                    f"{places[name].dtype} and shape {tuple(places[name].shape)} in the publication"
                )
        self._registration.register(places.values(), generation)
        for name, tensor in on_gpu.items():
            tensor.copy_(places[name], non_blocking=True)

    def _read(self, timeout: Optional[float], wait_for_publisher: Optional[float]) -> Generation:
        until = math.inf if wait_for_publisher is None else time.monotonic() + wait_for_publisher
        while True:
            try:
                return self._subscriber.read(self.generation, timeout=timeout)
            except PublisherGone:
                if time.monotonic() >= until:
                    raise
            while not self._subscriber.published and time.monotonic() < until:
                time.sleep(0.01)

    def close(self) -> None:
        """Ends the subscription. The model keeps its weights."""
        self._registration.close()
        self._subscriber.close()
