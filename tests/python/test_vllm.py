"""What vLLM's layers do with a generation: either all of them get it, or all keep what they have."""
import types

import pytest
import torch

import ps_shm
import ps_shm.engines.vllm
import vllm_stub
from test_engines import factory


def parameter(*shape, loader):
    made = torch.nn.Parameter(torch.zeros(*shape), requires_grad=False)
    made.weight_loader = loader
    return made


class Stacked(torch.nn.Module):
    """Three matrices of two rows each in one, as qkv_proj."""

    def __init__(self):
        super().__init__()
        self.weight = parameter(6, 3, loader=self.load)

    @staticmethod
    def load(into, tensor, place):
        assert tensor.shape == (2, 3)
        into.data.narrow(0, 2 * place, 2).copy_(tensor)


class Embedding(torch.nn.Module):
    """Five rows, padded to eight."""

    def __init__(self):
        super().__init__()
        self.weight = parameter(8, 3, loader=self.load)

    @staticmethod
    def load(into, tensor):
        into.data[:5].copy_(tensor)
        into.data[5:].fill_(0)


class Model(torch.nn.Module):
    """As models of vLLM are, with a head that shares the embedding's matrix."""

    def __init__(self):
        super().__init__()
        self.embed = Embedding()
        self.layers = torch.nn.ModuleList([Stacked(), Stacked()])
        self.head = vllm_stub.ParallelLMHead(self.embed.weight)

    def load_weights(self, weights):
        for name, tensor in weights:
            layer, _, place = name.partition(".")
            if layer == "embed":
                self.embed.weight.weight_loader(self.embed.weight, tensor)
            else:
                weight = self.layers[int(layer)].weight
                weight.weight_loader(weight, tensor, "qkv".index(place))

    def values(self):
        weights = [one.weight for one in (self.embed, *self.layers)]
        assert all(one.device.type == "cpu" for one in weights) and self.head.weight is self.embed.weight
        return [*(one.tolist() for one in weights), self.head.cpu_linear.tolist()]


def tensors(value):
    return {"embed": torch.full((5, 3), value), **{f"{layer}.{part}": torch.full((2, 3), value) for layer in (0, 1) for part in "qkv"}}


def expected(value):
    embed = [[value] * 3] * 5 + [[0.0] * 3] * 3
    return [embed, [[value] * 3] * 6, [[value] * 3] * 6, embed]


@pytest.fixture
def worker():
    ps_shm.engines.vllm.register()
    made = factory.WeightTransferEngineFactory.create_engine(
        types.SimpleNamespace(backend="ps_shm"),
        types.SimpleNamespace(parallel_config=None, model_config=types.SimpleNamespace(quantization=None)), torch.device("cpu"), Model())
    yield made
    made.shutdown()


def update(worker, number, **settings):
    """As vLLM, which lets no update end that has failed."""
    worker.start_weight_update()
    worker.update_weights({"generation": number, **settings})
    worker.finish_weight_update()


def test_a_generation_is_loaded_with_padding_and_with_shared_matrices(job, worker):
    with ps_shm.Publisher(job, tensors(0.0), records=3) as publisher:
        worker.init_transfer_engine(worker.init_info_cls(job))
        for value in (1.0, 2.0, 3.0, 4.0):
            update(worker, publisher.publish(tensors(value)))
            assert worker.model.values() == expected(value)
            assert [one.acknowledged for one in publisher.readers()] == [publisher.generation]


@pytest.mark.parametrize("changes, said", [
    ({"1.k": None}, r"lacks layers.1.weight \(12 of 18 elements\)$"),
    ({"0.q": None, "0.k": None, "0.v": None, "embed": None}, r"lacks embed.weight \(0 of 24 elements\), layers.0.weight \(0 of 18 elements\)$"),
    ({"1.k": torch.zeros(2, 4)}, "does not take '1.k': AssertionError"),
    ({"7.q": torch.zeros(2, 3)}, "does not take '7.q': IndexError")])
def test_a_publication_that_does_not_fit_changes_no_layer(job, worker, changes, said):
    bad = {name: one for name, one in {**tensors(2.0), **changes}.items() if one is not None}
    with ps_shm.Publisher(f"{job}-good", tensors(1.0), records=3) as good, ps_shm.Publisher(job, bad) as publisher:
        for _ in range(2):  # before its first generation and after it
            worker.init_transfer_engine(worker.init_info_cls(f"{job}-good"))
            update(worker, good.publish(tensors(1.0)))
            with pytest.raises(ValueError, match=said):
                worker.init_transfer_engine(worker.init_info_cls(job))
            assert publisher.readers() == [] and worker.model.values() == expected(1.0)
            publisher.publish(bad)


def test_a_model_that_was_replaced_is_looked_at_again(job, worker):
    some = {name: one for name, one in tensors(2.0).items() if not name.startswith("1")}
    with ps_shm.Publisher(job, some) as publisher:
        whole, worker.model = worker.model, Model()
        worker.model.layers = worker.model.layers[:1]
        worker.init_transfer_engine(worker.init_info_cls(job))
        update(worker, publisher.publish(some))
        worker.model = whole
        with pytest.raises(ValueError, match=r"lacks layers.1.weight \(0 of 18 elements\)$"):
            update(worker, publisher.publish(some))
        assert whole.values()[0] == [[0.0] * 3] * 8


def test_layers_that_are_not_complete_are_put_back_if_loading_fails(job, worker):
    with ps_shm.Publisher(job, tensors(1.0), records=3) as publisher:
        worker.init_transfer_engine(worker.init_info_cls(job))
        update(worker, publisher.publish(tensors(1.0)))
        load = worker.model.load_weights

        def fail_within(weights):
            load(list(weights)[:3])
            raise OSError("no memory")

        worker.model.load_weights = fail_within
        with pytest.raises(OSError, match="no memory"):
            update(worker, publisher.publish(tensors(2.0)))
        worker.model.load_weights = load
        assert worker.model.values() == expected(1.0)
        for number in (publisher.publish(tensors(3.0)) - 1, publisher.generation + 1):  # neither is the newest
            with pytest.raises((RuntimeError, ps_shm.Timeout)):
                update(worker, number, timeout=0.01)
        update(worker, publisher.generation)
        assert worker.model.values() == expected(3.0)


def test_of_a_quantized_model_only_layers_that_get_nothing_are_refused(job, worker):
    worker.model_config.quantization = "fp8"
    part = {name: one for name, one in tensors(1.0).items() if name != "1.k"}
    with ps_shm.Publisher(f"{job}-part", part) as publisher:
        worker.init_transfer_engine(worker.init_info_cls(f"{job}-part"))
        update(worker, publisher.publish(part))
    lacking = {name: one for name, one in part.items() if name[0] != "1"}
    with ps_shm.Publisher(job, lacking):
        with pytest.raises(ValueError, match=r"lacks layers.1.weight \(0 of 18 elements\)$"):
            worker.init_transfer_engine(worker.init_info_cls(job))
