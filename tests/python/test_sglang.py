"""The weight loader for SGLang: what its workers do with the request that a server gets."""
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import ps_shm
import ps_shm.engines.sglang
import sglang_stub


class Model(torch.nn.Module):
    """Has a matrix of two halves, which two tensors make up, and loads with another thread, as some of SGLang's do."""

    quant_config = None

    def __init__(self, **shapes):
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape), requires_grad=False))

    def load_weights(self, weights):
        self.seen = dict(weights)
        self.weights = {name: tensor.clone() for name, tensor in self.seen.items()}
        with ThreadPoolExecutor() as pool:
            for name, tensor in self.seen.items():
                target, _, half = name.partition(".")
                into = self._parameters.get(target)
                if into is not None:
                    into = into.data[2 * int(half):][:2] if half else into.data
                    pool.submit(into.copy_, tensor).result()


@pytest.fixture(autouse=True)
def unsubscribed(job):
    yield
    for one in ps_shm.engines.sglang._subscribers.values():
        one.close()
    ps_shm.engines.sglang._subscribers.clear()
    ps_shm.engines.sglang._target.clear()


def request(*given, **more):
    body = ps_shm.engines.sglang.request(*given, ranks=2, version="v", **more)
    return json.loads(json.dumps(body))


def test_every_worker_loads_the_generation_that_was_named(job):
    with ps_shm.Publisher(job, {"w": ("bfloat16", (2, 3)), "b": ("float32", (3,))}) as publisher:
        models = Model(), Model()
        for number in (1, 2, 3, 4):
            publisher.publish({"w": torch.full((2, 3), number, dtype=torch.bfloat16), "b": torch.full((3,), -float(number))})
            for rank, model in enumerate(models):
                assert sglang_stub.receive(model, request(job, number), rank) == (True, "Success")
                assert model.weights["w"].dtype == torch.bfloat16 and model.weights["w"].tolist() == [[number] * 3] * 2
                assert model.weights["b"].tolist() == [-number] * 3
                model.seen.clear()  # tensors that it has kept hold their generation
            assert [one.acknowledged for one in publisher.readers()] == [number]
        assert len(ps_shm.engines.sglang._subscribers) == 1


def test_the_request_says_what_the_server_is_to_do_afterwards():
    body = request("weights", 7)
    assert len(body.pop("serialized_named_tensors")) == 2
    assert body == {"load_format": "ps_shm.engines.sglang.load", "flush_cache": True, "weight_version": "v"}


def test_another_generation_is_not_loaded(job):
    model = Model()
    with ps_shm.Publisher(job, {"w": ("float32", (2,))}) as publisher:
        publisher.publish({"w": torch.ones(2)})
        with pytest.raises(ps_shm.Timeout):
            sglang_stub.receive(model, request(job, 2, timeout=0.01), 0)
        publisher.publish({"w": torch.ones(2)})
        with pytest.raises(RuntimeError, match=f"publication '{job}' has generation 2, not 1"):
            sglang_stub.receive(model, request(job, 1), 0)
        assert not hasattr(model, "seen") and publisher.readers()[0].acknowledged == 0
    with pytest.raises(ps_shm.Timeout):
        sglang_stub.receive(model, request(f"{job}-none", 1, timeout=0.01), 0)


def test_a_model_may_get_copies_that_it_can_change(job):
    model = Model()
    with ps_shm.Publisher(job, {"w": ("float32", (2,))}) as publisher:
        publisher.publish({"w": torch.ones(2)})
        sglang_stub.receive(model, request(job, 1, copies=True), 0)
        assert model.seen["w"].add_(1).tolist() == [2, 2]


def test_a_model_that_does_not_get_all_of_its_parameters_is_named(job):
    tensors = {name: torch.ones(shape) for name, shape in (("w.0", (2, 3)), ("w.1", (2, 3)), ("b", (3,)))}
    model, draft = Model(w=(4, 3), b=(3,)), Model(other=(3,))
    with ps_shm.Publisher(job, tensors) as publisher:
        for number in (1, 2):
            publisher.publish(tensors)
            for one in (model, draft):
                assert sglang_stub.receive(one, request(job, number), 0) == (True, "Success")
                one.seen.clear()
            assert model.w.tolist() == [[1] * 3] * 4 and model.b.tolist() == [1] * 3
    del tensors["w.1"], tensors["b"]
    with ps_shm.Publisher(f"{job}-part", tensors) as part:
        part.publish(tensors)
        with pytest.raises(ValueError, match=r"lacks w \(6 of 12 elements\), b \(0 of 3 elements\)$"):
            sglang_stub.receive(model, request(f"{job}-part", 1), 0)
        assert [one.acknowledged for one in part.readers()] == [0]
