"""A weight loader for SGLang: its workers take the weights from a publication, where they lie.

A server names the loader when it starts:

    python -m sglang.launch_server --model-path MODEL --custom-weight-loader ps_shm.engines.sglang.load

A trainer publishes and tells the servers, by ps_shm.engines.http.Engines(urls, kind="sglang"). The interface is that of
SGLang 0.5.23.
"""

import base64
import json
import pickle
from typing import TYPE_CHECKING, Any, Iterator, Sequence

from .. import _publication
from ._generation import checked, weights

if TYPE_CHECKING:
    import torch

LOADER = "ps_shm.engines.sglang.load"

# What this process has subscribed to, by name and group. A worker keeps it for its next update.
_subscribers: dict[tuple[str, str], _publication.Subscriber] = {}
# The id of the model that this process loads first, and the names of the tensors that it has got all of its parameters
# from. A draft model comes after it, and may have parameters that are not published.
_target: dict[str, Any] = {}


def load(model: Any, named_tensors: Sequence[tuple[str, Any]]) -> None:
    """Loads a generation into a model. SGLang calls it in each worker, for the request update_weights_from_tensor.

    SGLang does not catch exceptions of a loader: they end the server. So does a publication that lacks parameters, or
    parts of them.

    Args:
        model: has SGLang's load_weights().
        named_tensors: one entry, which request() has made.

    Raises:
        Timeout: the publication or the generation did not appear in time.
        PublisherGone: there is no such generation and no live publisher.
        RuntimeError: a later generation has been published.
        ValueError: the publication lacks parameters of the model, or parts of them; the model has loaded the others.
    """
    ((text, _),) = named_tensors
    wanted = json.loads(text)
    name, group = wanted["name"], wanted["group"]
    subscriber = _subscribers.get((name, group))
    if subscriber is None:
        subscriber = _publication.Subscriber(name, group=group, wait=wanted["timeout"])
        _subscribers[name, group] = subscriber
    number = wanted["generation"]
    generation = checked(subscriber.read(number - 1, timeout=wanted["timeout"]), number, name)
    named = weights(generation, wanted["copies"])
    if _target.setdefault("model", id(model)) == id(model) and _target.get("names") != generation.names:
        _load_counted(model, named)
        _target["names"] = generation.names
    else:
        model.load_weights(named)
    subscriber.acknowledge(number)


# Raises ValueError if the model does not get all of its parameters.
def _load_counted(model: Any, named: Iterator[tuple[str, "torch.Tensor"]]) -> None:
    from ._counting import Counter, in_this_thread, lacks

    counter = Counter(writes=True)
    with counter, in_this_thread():
        loaded = model.load_weights(named)
    is_quantized = getattr(model, "quant_config", None) is not None
    lacking = lacks(model, counter, loaded if isinstance(loaded, (set, frozenset)) else (), {}, is_quantized)
    if lacking:
        raise ValueError(f"ps_shm: the publication lacks {lacking}")


class _Empty:
    # SGLang's format is a pickled list of names and tensors, and it moves each tensor to its GPU. All that there is to say
    # is in the name, so the tensor is an empty one, which is made by a call and has no bytes.
    def __reduce__(self) -> tuple[Any, ...]:
        import torch

        return torch.Tensor, ()


def request(
    name: str, generation: int, *, ranks: int, version: str, group: str = "", timeout: float = 60.0, copies: bool = False
) -> dict[str, Any]:
    """Returns the body of the request update_weights_from_tensor that makes a server load a generation.

    Args:
        name: of the publication.
        generation: the number that publish() returned.
        ranks: the server's tp_size.
        version: what the server calls these weights.
        group: the Unix group that the publication is shared with.
        timeout: how long each worker waits for the publication and for the generation, in seconds.
        copies: whether the model gets a copy of each tensor, for models that change what they load.
    """
    wanted = {"name": name, "group": group, "generation": generation, "timeout": timeout, "copies": copies}
    payload = base64.b64encode(pickle.dumps([(json.dumps(wanted), _Empty())])).decode()
    return {
        "serialized_named_tensors": [payload] * ranks,
        "load_format": LOADER,
        "flush_cache": True,
        "weight_version": version,
    }


__all__ = ["LOADER", "load", "request"]
