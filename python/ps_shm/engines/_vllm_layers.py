"""Loads a generation into the layers of vLLM's models: either all of it, or nothing."""

# vLLM is there only where this is used.
# mypy: disable-error-code="import-not-found, misc"

import inspect
from typing import Any, Iterable, Iterator

import torch
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from ._counting import Counter, lacks, own_parameters


def load(model: Any, config: Any, named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Loads the tensors. If it raises, the layers that were not complete compute with the weights that they had."""
    try:
        with disable_mtp_completeness_check():
            initialize_layerwise_reload(model)
            model.load_weights(named)
        finalize_layerwise_reload(model, config)
    except BaseException:
        _put_back(model, config)
        raise
    # vLLM's layers on a CPU compute with a packed copy of their matrix. A tied one gets no tensor that would renew it.
    for layer in model.modules():
        if isinstance(layer, ParallelLMHead) and hasattr(layer, "cpu_linear"):
            layer.quant_method.process_weights_after_loading(layer)


def rehearse(model: Any, config: Any, named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Lets the model load the tensors without changing a weight, to see whether it can and what it would lack.

    Raises:
        ValueError: the model has no such tensor, or of another shape; or it would lack parameters, or parts of them.
    """
    firsts: dict[int, str] = {}
    tied = {name: firsts.setdefault(id(one), name) for _, name, one in own_parameters(model)}
    name = ""

    def followed() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal name
        for name, tensor in named:
            yield name, tensor

    counter = Counter()
    try:
        initialize_layerwise_reload(model)
        for layer in model.modules():
            for tensor in (*layer.parameters(recurse=False), *layer.buffers(recurse=False)):
                if hasattr(tensor, "weight_loader"):  # vLLM's puts a layer together that is complete
                    tensor.weight_loader = inspect.unwrap(tensor.weight_loader, stop=_is_own)
        with disable_mtp_completeness_check(), counter:
            loaded = model.load_weights(followed())
        lacking = lacks(model, counter, loaded or (), tied, is_quantized=config.quantization is not None)
    except Exception as error:
        raise ValueError(f"ps_shm: the model does not take '{name}': {type(error).__name__}: {error}") from error
    finally:
        _put_back(model, config)
    if lacking:
        raise ValueError(f"ps_shm: the publication lacks {lacking}")


def _is_own(loader: Any) -> bool:
    return getattr(loader, "__name__", "") != "online_process_loader"


# Gives the layers that are not complete the tensors that they had.
def _put_back(model: Any, config: Any) -> None:
    for layer in model.modules():
        info = get_layerwise_info(layer)
        if info.can_load():  # as if it had got no tensor
            info.load_numel, info.load_numel_total, info.loaded_weights = 0, 0, []
    finalize_layerwise_reload(model, config)
