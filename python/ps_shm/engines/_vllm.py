"""What vLLM imports once the backend is used: the side of its workers and the side of a trainer."""

# vLLM is there only where this is used.
# mypy: disable-error-code="import-not-found, misc"

from dataclasses import dataclass
from typing import Any, ClassVar, Optional

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

from ._generation import checked, weights


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
    wait: float = 60.0
    copies: bool = False


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """Which generation a worker takes, and how long it waits for it, in seconds."""

    generation: int
    timeout: float = 60.0


class Engine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """A worker's side. All workers of an update take the same generation, or fail."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._subscriber: Optional[ps_shm.Subscriber] = None
        self._info: Optional[InitInfo] = None
        # Until the update is finished: a layer's tensors are kept until all of them are there.
        self._held: Optional[ps_shm.Generation] = None
        self._loaded = 0  # the generation that the model has got completely in this update

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        self.shutdown()
        self._info = init_info
        self._subscriber = ps_shm.Subscriber(init_info.name, group=init_info.group, wait=init_info.wait)
        self._registration = Registration(self._subscriber)

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        self._loaded = 0
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check

        if self._subscriber is None or self._info is None:
            raise RuntimeError("ps_shm: no publication: init_weight_transfer_engine comes first")
        wanted = update_info.generation
        generation = checked(self._subscriber.read(wanted - 1, timeout=update_info.timeout), wanted, self._info.name)
        self._held = generation
        if self.device.type == "cuda":
            self._registration.register(tensors(generation).values(), generation)
        with disable_mtp_completeness_check():
            self.model.load_weights(weights(generation, self._info.copies))
        self._loaded = wanted

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        if self._subscriber is not None and self._loaded != 0:
            self._subscriber.acknowledge(self._loaded)
        self._held = None

    def shutdown(self) -> None:
        self._held = None
        if self._subscriber is not None:
            self._registration.close()
            self._subscriber.close()
            self._subscriber = None


@dataclass
class TrainerInfo(TrainerInitInfo):
    """As ps_shm.engines.vllm.trainer_info()."""

    backend: ClassVar[str] = "ps_shm"
    name: str
    group: str = ""
    subscribers: int = 64
    records: int = 3


class Trainer(TrainerWeightTransferEngine[TrainerInfo]):
    """A trainer's side. The sender publishes the weights that its source gathers, one tensor at a time."""

    init_info_cls = TrainerInfo

    def __init__(self, info: TrainerInfo, *, client: Any, source: Any) -> None:
        super().__init__(client=client, source=source, is_sender=info.is_sender, rank=info.rank)
        self._publisher: Optional[ps_shm.Publisher] = None
        if not info.is_sender:
            return
        if len(source.owned_names(info.rank)) != len(source.metadata):
            raise ValueError("ps_shm: the sender publishes all parameters, so it must own all of them")
        specs = {meta.name: (str(meta.dtype).removeprefix("torch."), tuple(meta.shape)) for meta in source.metadata}
        self._publisher = ps_shm.Publisher(
            info.name, specs, group=info.group, subscribers=info.subscribers, records=info.records
        )
        self.client.init_weight_transfer_engine({"name": info.name, "group": info.group})

    @classmethod
    def trainer_init(cls, init_info: TrainerInfo, *, client: Any, source: Any = None) -> "Trainer":
        if source is None or not source.implements_iter_full():
            raise TypeError("ps_shm: weights are published as full tensors; give a WeightSource that implements iter_full()")
        return cls(init_info, client=client, source=source)

    def send_weights(self) -> None:
        """Publishes the weights as the next generation, and makes every worker of the engine load it."""
        if self._publisher is None:
            for _ in self.source.iter_full():  # takes part in gathering them
                pass
            return
        with self._publisher.begin() as generation:
            for name, tensor in self.source.iter_full():
                generation.write(name, tensor.detach().cpu().contiguous())
        self.client.start_weight_update()
        self.client.update_weights({"generation": generation.number})
        self.client.finish_weight_update(weight_version=str(generation.number))

    def shutdown(self) -> None:
        """Ends the publication. Engines keep the weights that they have."""
        if self._publisher is not None:
            self._publisher.close()
