"""A checkpoint engine for verl: rollout workers take the weights from a publication of the actor.

The configuration of the rollout names it, and verl imports this module, which registers it:

    actor_rollout_ref.rollout.checkpoint_engine.backend=ps_shm
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=ps_shm.engines.verl

The interface is that of verl 0.9.1. Actor and rollout workers have to be on one machine.
"""

# verl is there only where this is used.
# mypy: disable-error-code="import-not-found, misc, untyped-decorator"

import asyncio
import functools
import pathlib
import uuid
from typing import Any, AsyncIterator, Iterator, Optional

import torch
from verl.checkpoint_engine.base import CheckpointEngineRegistry, CheckpointEngineWithCache

from .. import _publication
from ._generation import checked, weights

_MACHINE = pathlib.Path("/proc/sys/kernel/random/boot_id")


@CheckpointEngineRegistry.register("ps_shm")
class Engine(CheckpointEngineWithCache):
    """One generation for each update_weights() of verl. All rollout workers take the same one, or fail.

    The first update has a copy of all weights in the actor's rank 0, because only then their names and shapes are known.
    Later ones write tensor after tensor.

    Args:
        bucket_size: verl's; not used.
        is_master: whether this is the actor's rank 0, which publishes.
        group: the Unix group that the publication is shared with.
        subscribers: the largest number of rollout workers.
        timeout: how long a rollout worker waits for the generation, and the actor for memory to write it to, in seconds.
        device: where the rollout workers hand over the tensors. None: their GPU if they have one, otherwise the shared
            memory itself, which is read-only.
    """

    def __init__(
        self,
        bucket_size: int,
        *,
        is_master: bool = False,
        group: str = "",
        subscribers: int = 64,
        timeout: float = 600.0,
        device: Optional[str] = None,
    ) -> None:
        self._is_master = is_master
        self._group = group
        self._subscribers = subscribers
        self._timeout = timeout
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        # Of its own for each actor, so that nobody takes the generations of an earlier run.
        self._name = f"verl-{uuid.uuid4().hex[:16]}"
        self._publisher: Optional[_publication.Publisher] = None
        self._subscriber: Optional[_publication.Subscriber] = None
        self._source: dict[str, Any] = {}

    def prepare(self) -> dict[str, Any]:
        """Returns where this process is and, for the actor's rank 0, what it will publish."""
        known: dict[str, Any] = {"machine": _MACHINE.read_text().strip()}
        if self._is_master:
            number = self._publisher.generation if self._publisher is not None else 0
            known.update(name=self._name, group=self._group, generation=number + 1)
        return known

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Tells every worker which generation the actor's rank 0 will publish.

        Raises:
            ValueError: a rollout worker is on another machine.
        """
        source, rollout = metadata[0], metadata[actor_wg_world_size:]
        for rank, worker in enumerate(rollout):
            if worker["machine"] != source["machine"]:
                raise ValueError(f"ps_shm: rollout worker {rank} is on another machine than the actor's rank 0")
        return {"source": [source] * actor_wg_world_size}, {"source": [source] * rollout_world_size}

    def init_process_group(self, source: dict[str, Any]) -> None:
        self._source = source

    @torch.no_grad()
    async def send_weights(self, weights: Iterator[tuple[str, torch.Tensor]], global_steps: Optional[int] = None) -> None:
        """Publishes the weights of the generator. All ranks of the actor call it; those above 0 only help to gather."""
        if not self._is_master:
            for _ in weights:
                pass
            return
        on_cpu = ((name, tensor.detach().cpu().contiguous()) for name, tensor in weights)
        if self._publisher is None:
            first = {name: tensor.clone() for name, tensor in on_cpu}
            self._publisher = _publication.Publisher(
                self._name, first, group=self._group, subscribers=self._subscribers, records=3, busy_wait=self._timeout
            )
            self._publisher.publish(first, global_steps or 0)
            return
        with self._publisher.begin(global_steps or 0) as generation:
            for name, tensor in on_cpu:
                generation.write(name, tensor)

    async def receive_weights(self, global_steps: Optional[int] = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Yields the weights of the generation of this update.

        Raises:
            Timeout: it was not published in time.
            PublisherGone: the actor has ended.
        """
        wanted = self._source["generation"]
        subscriber = await self._attached()
        generation = await subscriber.read_async(wanted - 1, timeout=self._timeout)
        for name, tensor in weights(checked(generation, wanted, self._source["name"])):
            yield name, tensor.to(self._device)
        subscriber.acknowledge(wanted)

    async def get_weights(self) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Yields the weights of the newest generation, which stays in shared memory after an update.

        Raises:
            Timeout: there has been none in time.
            PublisherGone: the actor has ended.
        """
        generation = await (await self._attached()).read_async(timeout=self._timeout)
        for name, tensor in weights(generation):
            yield name, tensor.to(self._device)

    # Waits until the actor has created the publication, in its first update.
    async def _attached(self) -> _publication.Subscriber:
        if self._subscriber is None or self._name != self._source["name"]:
            self.close()
            self._name = self._source["name"]
            attach = functools.partial(_publication.Subscriber, group=self._source["group"], wait=self._timeout)
            self._subscriber = await asyncio.to_thread(attach, self._name)
        return self._subscriber

    def finalize(self) -> None:
        """Does nothing: the memory is used again by the next update."""

    def close(self) -> None:
        """Ends the publication, or this worker's use of it."""
        for one in (self._publisher, self._subscriber):
            if one is not None:
                one.close()
        self._publisher = self._subscriber = None
