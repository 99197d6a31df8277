"""The part of TorchRL's interface that ps_shm.engines.torchrl uses, as TorchRL 0.14.1 has it. It is put into
sys.modules, unless TorchRL is installed. With PS_SHM_TEST_TORCHRL=DIR, a site-packages of this version of Python that has
TorchRL and PyTorch, these are the real ones."""
import importlib.util
import os
import sys
import weakref

FOLDER = os.environ.get("PS_SHM_TEST_TORCHRL")
if FOLDER:
    sys.path.insert(0, FOLDER)

from stubs import module  # noqa: E402: PyTorch may be in that folder

NAME = "torchrl.weight_update.weight_sync_schemes"
_schemes = {}


class _Strategy:
    def extract_weights(self, model):
        return model.state_dict()

    def apply_weights(self, destination, weights, inplace=True):
        destination.load_state_dict(weights)


class WeightSyncScheme:
    _model_id = _context_ref = _model_ref = _shared_transport = None

    def __init__(self, strategy="tensordict"):
        self._strategy = _Strategy()
        self.initialized_on_sender = self.initialized_on_receiver = False
        self.synchronized_on_sender = self.synchronized_on_receiver = False

    @classmethod
    def from_backend(cls, backend, **settings):
        return _schemes[backend](**settings)

    def init_on_sender(self, *given, **more):
        self.initialized_on_sender = True
        self._init_on_sender_impl(*given, **more)

    def init_on_receiver(self, *, model_id, context=None, **more):
        self.initialized_on_receiver = True
        self._init_on_receiver_impl(model_id=model_id, context=context, **more)

    def connect(self, *, worker_idx=None, weights=None):
        if self.initialized_on_sender:
            self.synchronized_on_sender = True
            self._setup_connection_and_weights_on_sender_impl(weights=weights)
        else:
            self.synchronized_on_receiver = True
            weights = self._shared_transport.setup_connection_and_weights_on_receiver(
                worker_idx=worker_idx, weights=None, model=self.model, strategy=self._strategy)
            if weights is not None:
                self._strategy.apply_weights(self.model, weights, inplace=False)

    @property
    def context(self):
        return self._context_ref and self._context_ref()

    @context.setter
    def context(self, context):
        self._context_ref = None if context is None else weakref.ref(context)

    @property
    def model_id(self):
        return self._model_id

    @model_id.setter
    def model_id(self, model_id):
        self._model_id = model_id

    @property
    def model(self):
        return self._model_ref() if self._model_ref else getattr(self.context, self._model_id)

    @model.setter
    def model(self, model):
        self._model_ref = weakref.ref(model)

    def prepare_weights(self, weights, model_id, strategy, context=None):
        if weights is None:
            return strategy.extract_weights(getattr(context, model_id)) if context is not None else None
        return strategy.extract_weights(weights) if hasattr(weights, "parameters") else weights

    def receive(self, timeout=None):
        weights = self._shared_transport.receive_weights(timeout=timeout, weights=None, model=self.model, strategy=self._strategy)
        if weights is not None and hasattr(self.context, "update_policy_weights_"):
            self.context.update_policy_weights_(model_id=self._model_id, policy_or_weights=weights)
        return weights

    def shutdown(self): ...

    def __getstate__(self):
        cleared = dict.fromkeys(("initialized_on_sender", "initialized_on_receiver", "synchronized_on_sender",
                                 "synchronized_on_receiver"), False)
        return {**vars(self), **cleared, "_context_ref": None, "_model_ref": None}


def _register(backend):
    return lambda cls: _schemes.setdefault(backend, cls)


REAL = importlib.util.find_spec("torchrl") is not None
if not REAL:
    for name in ("torchrl", "torchrl.weight_update"):
        module(name)
    module(NAME, WeightSyncScheme=WeightSyncScheme, register_weight_sync_backend=_register)
