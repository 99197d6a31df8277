"""What vLLM imports once the backend is used: the side of its workers and the side of a trainer."""

# vLLM is there only where this is used.
# mypy: disable-error-code="import-not-found, misc"

from dataclasses import dataclass
from typing import Any, ClassVar, Optional

from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

import ps_shm
from ps_shm.torch import tensors
from ps_shm.torch._registration import Registration

from ._generation import blanks, checked, weights
from ._vllm_layers import load as _load
from ._vllm_layers import rehearse as _rehearse


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Which publication a worker reads.

    name: of the publication.
    group: the Unix group that the publication is shared with.
    wait: how long to wait for the publication to exist, in seconds.
    copies: whether the model gets a copy of each tensor, for models that change what they load. Otherwise it gets the
        shared memory itself, which is read-only.
    """

    name: str
    group: str = ""
    wait: Optional[float] = 60.0
    copies: bool = False


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """Which generation a worker takes, and how long it waits for it, in seconds."""

    generation: int
    timeout: Optional[float] = 60.0


class Engine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """A worker's side. All workers of an update take the same generation, or fail.

    vLLM loads layer by layer: it takes each layer apart, and puts it together again when all of its tensors are there. All
    of this happens within receive_weights(), so that a worker that is between two requests can compute.
    """

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._subscriber: Optional[ps_shm.Subscriber] = None
        self._info: Optional[InitInfo] = None
        self._held: Optional[ps_shm.Generation] = None  # until copies to a GPU have ended
        self._loaded = 0  # the generation that the model has got in this update
        self._accepted: Any = None  # the model, and the tensors that it has all of its parameters from

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        self.shutdown()
        self._info = init_info
        self._subscriber = ps_shm.Subscriber(init_info.name, group=init_info.group, wait=init_info.wait)
        self._registration = Registration(self._subscriber)
        self._check()

    def start_weight_update(self) -> None:
        self._loaded = 0

    def receive_weights(self, update_info: UpdateInfo) -> None:
        if self._subscriber is None or self._info is None:
            raise RuntimeError("ps_shm: no publication: init_weight_transfer_engine comes first")
        wanted = update_info.generation
        generation = checked(self._subscriber.read(wanted - 1, timeout=update_info.timeout), wanted, self._info.name)
        self._check()
        if self.device.type == "cuda":
            self._registration.register(tensors(generation).values(), generation)
        self._held = generation
        try:
            _load(self.model, self.model_config, weights(generation, self._info.copies))
        except BaseException:
            self._held = None
            raise
        self._loaded = wanted

    def finish_weight_update(self) -> None:
        if self._subscriber is not None and self._loaded != 0:
            self._subscriber.acknowledge(self._loaded)
        self._held = None

    def shutdown(self) -> None:
        self._held = None
        if self._subscriber is not None:
            self._registration.close()
            self._subscriber.close()
            self._subscriber = None

    # What a publication has never changes: this looks at it once, and ends the subscription if the model does not take it,
    # so that the trainer may publish other tensors under that name.
    def _check(self) -> None:
        assert self._subscriber is not None
        found = self._subscriber.tensors
        if self._accepted is None or self._accepted[0] is not self.model or self._accepted[1] != found:
            try:
                with set_current_vllm_config(self.vllm_config):
                    _rehearse(self.model, self.model_config, blanks(found))
            except BaseException:
                self.shutdown()
                raise
            self._accepted = self.model, found


@dataclass
class TrainerInfo(TrainerInitInfo):
    """As ps_shm.engines.vllm.trainer_info()."""

    backend: ClassVar[str] = "ps_shm"
    name: str
    group: str = ""
    subscribers: int = 64
    records: int = 3


# Sources of vLLM 0.33 have it; those of 0.32 are iterated themselves.
def _has_iter_full(source: Any) -> bool:
    return hasattr(source, "iter_full")


class Trainer(TrainerWeightTransferEngine[TrainerInfo]):
    """A trainer's side. The sender publishes the weights that its source gathers, one tensor at a time."""

    init_info_cls = TrainerInfo

    def __init__(self, info: TrainerInfo, *, client: Any, source: Any) -> None:
        super().__init__(client=client, source=source, is_sender=info.is_sender)
        self.rank = info.rank
        self._publisher: Optional[ps_shm.Publisher] = None
        if not info.is_sender:
            return
        if _has_iter_full(source):
            metadata, owned = source.metadata, source.owned_names(info.rank)
        else:
            metadata, owned = source.metadata(), source.held_names()  # None: all
        if owned is not None and len(owned) != len(metadata):
            raise ValueError("ps_shm: the sender publishes all parameters, so it must own all of them")
        specs = {meta.name: (str(meta.dtype).removeprefix("torch."), tuple(meta.shape)) for meta in metadata}
        self._publisher = ps_shm.Publisher(
            info.name, specs, group=info.group, subscribers=info.subscribers, records=info.records
        )
        self.client.init_weight_transfer_engine({"name": info.name, "group": info.group})

    @classmethod
    def trainer_init(cls, init_info: TrainerInfo, *, client: Any, source: Any = None) -> "Trainer":
        if source is None or (_has_iter_full(source) and not source.implements_iter_full()):
            raise TypeError("ps_shm: weights are published as full tensors; give a WeightSource that implements iter_full()")
        return cls(init_info, client=client, source=source)

    def send_weights(self) -> None:
        """Publishes the weights as the next generation, and makes every worker of the engine load it."""
        gathered = self.source.iter_full() if _has_iter_full(self.source) else iter(self.source)
        if self._publisher is None:
            for _ in gathered:  # takes part in gathering them
                pass
            return
        with self._publisher.begin() as generation:
            for name, tensor in gathered:
                generation.write(name, tensor.detach().cpu().contiguous())
        self.client.start_weight_update()
        self.client.update_weights({"generation": generation.number})
        self.client.finish_weight_update(weight_version=str(generation.number))

    def shutdown(self) -> None:
        """Ends the publication. Engines keep the weights that they have."""
        if self._publisher is not None:
            self._publisher.close()
