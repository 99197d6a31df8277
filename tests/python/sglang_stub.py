"""What an SGLang worker does with the request update_weights_from_tensor, as SGLang 0.5.23 does it, without SGLang. With
PS_SHM_TEST_SGLANG=DIR, the folder of an unpacked wheel of SGLang, its code for this is the real one."""
import ast
import base64
import importlib
import io
import os
import pathlib
import pickle
import types
import typing

import torch


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        assert (module, name) == ("torch", "Tensor"), f"SGLang refuses {module}.{name}"
        return super().find_class(module, name)


def _dynamic_import(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _update(updater, named_tensors, load_format):
    named_tensors = [(name, tensor.to("cpu")) for name, tensor in named_tensors]
    assert load_format in updater.custom_weight_loaders
    _dynamic_import(load_format)(updater.get_model(), named_tensors)
    return True, "Success"


def _of_wheel(folder):
    """The definitions that serve the request, taken out of modules that import all of SGLang."""
    wanted = {
        "sglang/srt/utils/common.py": ("_safe_load_torch_storage", "SafeUnpickler", "dynamic_import"),
        "sglang/srt/model_executor/model_runner_components/weight_updater.py": ("WeightUpdater", "_unwrap_tensor"),
    }
    space = {
        "io": io, "pickle": pickle, "torch": torch, "importlib": importlib, **vars(typing),
        "monkey_patch_torch_reductions": lambda: None, "_unsupported_derived_weight_cache_error": lambda model: None,
        "get_parallel": lambda: types.SimpleNamespace(tp_rank=0), "LocalSerializedTensor": type("LocalSerializedTensor", (), {}),
        "get_model": lambda: types.SimpleNamespace(weight_cache_mode="off"),
    }
    for path, names in wanted.items():
        for one in ast.parse((pathlib.Path(folder) / path).read_text()).body:
            if getattr(one, "name", None) not in names:
                continue
            if one.name == "WeightUpdater":
                one.decorator_list = []
                kept = ("update_weights_from_tensor", "_assert_weight_cache_inactive")
                one.body = [part for part in one.body if getattr(part, "name", None) in kept]
            module = ast.Module([ast.ImportFrom("__future__", [ast.alias("annotations")], 0), one], [])
            exec(compile(ast.fix_missing_locations(module), path, "exec"), space)
    return space


def receive(model, body, rank):
    """Serves the request in the worker of a rank."""
    payload = base64.b64decode(body["serialized_named_tensors"][rank], validate=True)
    updater = types.SimpleNamespace(custom_weight_loaders=["ps_shm.engines.sglang.load"], get_model=lambda: model, device="cpu")
    folder = os.environ.get("PS_SHM_TEST_SGLANG")
    if not folder:
        return _update(updater, _Unpickler(io.BytesIO(payload)).load(), body["load_format"])
    space = _of_wheel(folder)
    torch.get_device_module = lambda device: types.SimpleNamespace(current_device=lambda: "cpu")  # there is no GPU
    updater._assert_weight_cache_inactive = lambda what: None
    named_tensors = space["SafeUnpickler"](io.BytesIO(payload)).load()
    return space["WeightUpdater"].update_weights_from_tensor(updater, named_tensors, body["load_format"])
