"""The weight loader for SGLang: what its workers do with the request that a server gets."""
import json

import pytest
import torch

import ps_shm
import ps_shm.engines.sglang
import sglang_stub


class Model:
    def load_weights(self, weights):
        self.seen = dict(weights)
        self.weights = {name: tensor.clone() for name, tensor in self.seen.items()}


@pytest.fixture(autouse=True)
def unsubscribed(job):
    yield
    for one in ps_shm.engines.sglang._subscribers.values():
        one.close()
    ps_shm.engines.sglang._subscribers.clear()


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
