"""The part of verl's interface that ps_shm.engines.verl uses, as verl 0.9.1 has it, without verl. install() puts it into
sys.modules. With PS_SHM_TEST_VERL=DIR, the folder of an unpacked wheel of verl, the classes are the real ones."""
import abc
import os
import types

from stubs import module, real

NAME = "verl.checkpoint_engine.base"


class Registry:
    _registry = {}

    def register(backend):
        def wrapper(cls):
            Registry._registry[backend] = cls
            return cls

        return wrapper

    @classmethod
    def new(cls, backend, *given, **more):
        return cls._registry[backend](*given, **more)


class Engine(abc.ABC):
    for _name in ("prepare", "init_process_group", "finalize", "send_weights", "receive_weights", "get_weights"):
        locals()[_name] = abc.abstractmethod(lambda self, *given: None)
    del _name

    @classmethod
    @abc.abstractmethod
    def build_topology(cls, actor_world_size, rollout_world_size, metadata): ...


def install():
    folder = os.environ.get("PS_SHM_TEST_VERL")
    for name in ("verl", "verl.checkpoint_engine"):
        module(name)
    if not folder:
        return module(NAME, CheckpointEngineRegistry=Registry, CheckpointEngineWithCache=Engine)
    module("ray", remote=lambda cls: cls)
    module("verl.single_controller.base", Worker=object)
    module("verl.single_controller.base.decorator", Dispatch=types.SimpleNamespace(ONE_TO_ALL=0, DP_COMPUTE=1),
           register=lambda **given: lambda function: function)
    module("verl.single_controller.ray", RayClassWithInitArgs=object, RayWorkerGroup=object)
    module("verl.utils.distributed", initialize_global_process_group_ray=None)
    module("verl.utils.import_utils", import_external_libs=None)
    module("verl.utils.ray_utils", auto_await=lambda function: function)
    module("verl.workers.config", CheckpointEngineConfig=object, HFModelConfig=object, RolloutConfig=object)
    module("verl.workers.rollout", BaseRollout=object, RolloutReplica=object, get_rollout_class=None)
    module("verl.workers.rollout.utils", ensure_async_iterator=None)
    return real(NAME, folder)
