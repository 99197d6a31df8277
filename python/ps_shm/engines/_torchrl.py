"""What a process imports that uses the scheme for TorchRL: both of its sides."""

# TorchRL is there only where this is used.
# mypy: disable-error-code="import-not-found, misc"

from typing import Any, Optional

import torch
from torchrl.weight_update.weight_sync_schemes import WeightSyncScheme

from .. import Generation, Timeout, _publication
from ._generation import weights as weights_of


class _Transport:
    # Both sides: a process uses one of them.

    def __init__(self, name: str, group: str, subscribers: int, records: int, timeout: Optional[float]) -> None:
        self._name, self._group, self._timeout = name, group, timeout
        self._subscribers, self._records = subscribers, records
        self._publisher: Optional[_publication.Publisher] = None
        self._subscriber: Optional[_publication.Subscriber] = None
        self._number = 0

    def setup_connection_and_weights_on_sender(self) -> None:
        pass  # a worker takes what has been published when it comes

    # Waits for the first generation. TorchRL makes parameters of these tensors, because the model may have none yet.
    def setup_connection_and_weights_on_receiver(self, **given: Any) -> dict[str, torch.Tensor]:
        if self._subscriber is None:
            self._subscriber = _publication.Subscriber(self._name, group=self._group, wait=self._timeout)
        generation = self._subscriber.read(timeout=self._timeout)
        copies = dict(weights_of(generation, copies=True))
        self._uses(generation)
        return copies

    def _uses(self, generation: Generation) -> None:
        assert self._subscriber is not None
        self._number = generation.number
        self._subscriber.acknowledge(self._number)

    def send_weights(self, weights: Any) -> None:
        flat = weights if isinstance(weights, dict) else weights.flatten_keys(".")
        tensors = {}
        for name, tensor in flat.items():
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"ps_shm: '{name}' of the weights is no tensor but of {type(tensor).__name__}")
            tensors[name] = tensor.detach().cpu().contiguous()
        if self._publisher is None:
            self._publisher = _publication.Publisher(
                self._name,
                tensors,
                group=self._group,
                subscribers=self._subscribers,
                records=self._records,
                busy_wait=self._timeout,
            )
        if self._publisher.publish(tensors) is None:
            raise RuntimeError(f"ps_shm: workers have held all records of '{self._name}' for {self._timeout} s")

    # The model's weights if there was a newer generation within the time, without a time at once; otherwise None.
    def receive_weights(
        self, timeout: Optional[float] = None, *, weights: Any = None, model: Any = None, strategy: Any = None
    ) -> Any:
        assert self._subscriber is not None
        try:
            generation = (
                self._subscriber.read(self._number, timeout=timeout) if timeout else self._subscriber.try_read(self._number)
            )
        except Timeout:
            generation = None
        if generation is None:
            return None
        with torch.no_grad():
            strategy.apply_weights(model, dict(weights_of(generation)))
        self._uses(generation)
        return strategy.extract_weights(model)

    def close(self) -> None:
        for one in (self._publisher, self._subscriber):
            if one is not None:
                one.close()
        self._publisher = self._subscriber = None


class Scheme(WeightSyncScheme):
    """As ps_shm.engines.torchrl.scheme()."""

    def __init__(
        self,
        name: str,
        *,
        group: str = "",
        subscribers: int = 64,
        records: int = 0,
        timeout: Optional[float] = 60.0,
        strategy: str = "tensordict",
    ) -> None:
        super().__init__(strategy)
        self._settings = (name, group, subscribers, records, timeout)

    def create_transport(self, **given: Any) -> _Transport:
        return _Transport(*self._settings)

    def _init_on_sender_impl(
        self, *, model_id: Optional[str] = None, context: Any = None, weights: Any = None, model: Any = None, **given: Any
    ) -> None:
        self.model_id = model_id or "policy"
        self.context = context
        self._shared_transport = self.create_transport()
        # Before the first worker starts, so that it does not find the weights of an earlier run.
        self._has_published = self._publish(weights if weights is not None else model)

    def _setup_connection_and_weights_on_sender_impl(
        self, *, worker_idx: Optional[int] = None, weights: Any = None
    ) -> None:
        if weights is not None or not self._has_published:
            self._require(self._publish(weights))

    def _init_on_receiver_impl(
        self, model_id: str, context: Any = None, *, model: Any = None, worker_idx: Optional[int] = None, **given: Any
    ) -> None:
        self.model_id = model_id
        self.worker_idx = worker_idx
        self.context = context
        if model is not None:
            self.model = model
        self._shared_transport = self.create_transport()

    def send(self, weights: Any = None, worker_ids: Any = None) -> None:
        """Publishes the weights. Each worker takes them before its next batch; nothing is waited for.

        Args:
            weights: a module, a TensorDict or a state_dict(). None: those of the collector's policy.
            worker_ids: must be None: a generation is for all workers.
        """
        if worker_ids is not None:
            raise ValueError("ps_shm: a generation is for all workers; leave out worker_ids")
        if not self.synchronized_on_sender:
            raise RuntimeError("ps_shm: connect() comes before send()")
        self._require(self._publish(weights))

    # Whether there were weights: those given, or those of the context's model.
    def _publish(self, weights: Any) -> bool:
        prepared = self.prepare_weights(weights, self.model_id, self._strategy, self.context)
        if prepared is not None:
            self._shared_transport.send_weights(prepared)
        return prepared is not None

    @staticmethod
    def _require(has_published: bool) -> None:
        if not has_published:
            raise ValueError("ps_shm: there are no weights to publish: neither are any given, nor is there a policy")

    # A worker's collector is given its scheme here. From then on it takes the newest weights before each batch.
    @property
    def context(self) -> Any:
        return WeightSyncScheme.context.fget(self)

    @context.setter
    def context(self, context: Any) -> None:
        is_new = context is not None and context is not self.context
        WeightSyncScheme.context.fset(self, context)
        if is_new and self.initialized_on_receiver and hasattr(context, "pre_collect_hook"):
            before = context.pre_collect_hook

            def take_weights() -> None:
                if self.synchronized_on_receiver:
                    self.receive()
                if before is not None:
                    before()

            context.pre_collect_hook = take_weights

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_shared_transport": None}

    def shutdown(self) -> None:
        super().shutdown()
        transport = getattr(self, "_shared_transport", None)
        if transport is not None:
            transport.close()
