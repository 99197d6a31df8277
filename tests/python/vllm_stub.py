"""The part of vLLM's interface that ps_shm.engines uses, as vLLM 0.33 has it, without vLLM. install() puts it into
sys.modules. With PS_SHM_TEST_VLLM=DIR, the folder of an unpacked wheel of vLLM, the classes are the real ones."""
import abc
import contextlib
import dataclasses
import functools
import importlib
import logging
import os
import sys
import types
import typing
import weakref

import torch
from stubs import module, real

PREFIX = "vllm.distributed.weight_transfer"
log = []  # what was called, in order


class _InitInfo(abc.ABC):
    pass


class _UpdateInfo(abc.ABC):
    pass


@dataclasses.dataclass
class _TrainerInitInfo:
    backend: typing.ClassVar[str]
    rank: int = dataclasses.field(kw_only=True)

    @property
    def is_sender(self):
        return self.rank == 0


I, U = typing.TypeVar("I"), typing.TypeVar("U")


class _Engine(abc.ABC, typing.Generic[I, U]):
    def __init__(self, config, vllm_config, device, model):
        self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model
        self.model_config = vllm_config.model_config

    def parse_init_info(self, given):
        return self._parse(self.init_info_cls, given)

    def parse_update_info(self, given):
        return self._parse(self.update_info_cls, given)

    @staticmethod
    def _parse(kind, given):
        try:
            return kind(**given)
        except TypeError as error:
            raise ValueError(str(error)) from error

    def update_weights(self, given):
        self.receive_weights(self.parse_update_info(given))

    for _name in ("init_transfer_engine", "start_weight_update", "finish_weight_update", "receive_weights", "shutdown"):
        locals()[_name] = abc.abstractmethod(lambda self, *given: None)
    del _name


class _Trainer(abc.ABC, typing.Generic[I]):
    def __init__(self, *, client, source=None, is_sender=True, rank=0):
        self.client, self.source, self.is_sender, self.rank = client, source, is_sender, rank

    @classmethod
    @abc.abstractmethod
    def trainer_init(cls, init_info, *, client, source=None): ...

    @abc.abstractmethod
    def send_weights(self): ...

    def shutdown(self): ...


class _Factory:
    @classmethod
    def register_engine(cls, name, path, class_name):
        if name in cls._registry:
            raise ValueError(f"'{name}' is already registered")
        cls._registry[name] = lambda: getattr(importlib.import_module(path), class_name)


def _make_factories():
    class WeightTransferEngineFactory(_Factory):
        _registry = {}

        @classmethod
        def create_engine(cls, config, *given):
            return cls._registry[config.backend]()(config, *given)

    class WeightTransferTrainerFactory(_Factory):
        _registry = {}

        @classmethod
        def trainer_init(cls, init_info, *, client, source=None):
            return cls._registry[init_info.backend]().trainer_init(init_info=init_info, client=client, source=source)

    return {one.__name__: one for one in (WeightTransferEngineFactory, WeightTransferTrainerFactory)}


@contextlib.contextmanager
def _unchecked():
    log.append("unchecked")
    yield


class ParallelLMHead(torch.nn.Module):
    """A head that computes with a copy of its matrix, as vLLM's do on a CPU."""

    def __init__(self, weight):
        super().__init__()
        self.weight, self.quant_method = weight, self
        self.process_weights_after_loading(self)

    def process_weights_after_loading(self, layer):
        self.cpu_linear = self.weight.detach().clone()


class _LayerInfo:
    def __init__(self):
        self.load_numel, self.load_numel_total, self.loaded_weights = 0, None, []

    def can_load(self):
        return self.load_numel_total is not None


_infos = weakref.WeakKeyDictionary()


def get_layerwise_info(layer):
    return _infos.setdefault(layer, _LayerInfo())


def _initialize(model):
    """Takes the parameters of all layers away. Those that stand in for them count what they are given."""
    log.append("initialize")
    for layer in model.modules():
        info = get_layerwise_info(layer)
        info.kept = dict(layer.named_parameters(recurse=False))
        info.load_numel_total = sum(one.numel() for one in info.kept.values())
        for name, one in info.kept.items():
            setattr(layer, name, torch.nn.Parameter(torch.empty_like(one, device="meta"), requires_grad=False))
            getattr(layer, name).weight_loader = _online(layer, info, name, one.weight_loader)


def _online(layer, info, name, loader):
    @functools.wraps(loader, assigned=())
    def online_process_loader(parameter, tensor, *given):
        info.loaded_weights.append((name, loader, tensor, given))
        info.load_numel += tensor.numel()
        if info.load_numel >= info.load_numel_total:
            _process(layer, info)

    return online_process_loader


def _process(layer, info):
    for name, loader, *given in info.loaded_weights:
        loader(info.kept[name], given[0], *given[1])
    _put_back(layer, info)


def _put_back(layer, info):
    for name, one in info.kept.items():
        setattr(layer, name, one)
    info.__init__()


def _finalize(model, config):
    log.append("finalize")
    for layer in model.modules():
        info = get_layerwise_info(layer)
        if info.can_load():
            (_process if info.load_numel > 0 else _put_back)(layer, info)


def install():
    folder = os.environ.get("PS_SHM_TEST_VLLM")
    for name in ("vllm", "vllm.distributed", PREFIX, "vllm.model_executor", "vllm.model_executor.model_loader",
                 "vllm.model_executor.layers"):
        module(name)
    module("vllm.model_executor.model_loader.reload", initialize_layerwise_reload=_initialize, finalize_layerwise_reload=_finalize)
    module("vllm.model_executor.model_loader.reload.layerwise", get_layerwise_info=get_layerwise_info)
    module("vllm.model_executor.model_loader.mtp_validation", disable_mtp_completeness_check=_unchecked)
    module("vllm.model_executor.layers.vocab_parallel_embedding", ParallelLMHead=ParallelLMHead)
    module("vllm.config", set_current_vllm_config=lambda config: contextlib.nullcontext())
    if folder:
        module("vllm.config.parallel", ParallelConfig=object)
        module("vllm.config.utils", config=lambda kind: kind)
        module("vllm.logger", init_logger=logging.getLogger)
        if hasattr(torch, "accelerator"):
            torch.accelerator.synchronize = lambda *given: None  # there is none
        else:
            torch.accelerator = types.SimpleNamespace(synchronize=lambda: None)
        for name in ("vllm.config.weight_transfer", f"{PREFIX}.base", f"{PREFIX}.factory"):
            real(name, folder)
    else:
        module(f"{PREFIX}.base", WeightTransferInitInfo=_InitInfo, WeightTransferUpdateInfo=_UpdateInfo,
               TrainerInitInfo=_TrainerInitInfo, WeightTransferEngine=_Engine, TrainerWeightTransferEngine=_Trainer)
        module(f"{PREFIX}.factory", **_make_factories())
    return sys.modules[f"{PREFIX}.factory"]
