"""Several processes that write each generation of a publication together, each its own slices."""
import itertools
import signal
import threading

import numpy as np
import pytest

import ps_shm
from conftest import wait_until

torch = pytest.importorskip("torch")
import ps_shm.torch  # noqa: E402: needs torch
from ps_shm.torch import _slices  # noqa: E402

s_ = np.s_


class Shard:
    """A placement as torch.distributed.tensor has it, for versions of torch without."""

    def __init__(self, dim):
        self.dim = dim


class _StridedShard(Shard):
    split_factor = 2


class Replicate:
    pass


class Partial:
    pass


def published(publishers, values, step):
    """Publishes a part by each publisher at the same time; the generations' numbers."""
    numbers = [None] * len(publishers)

    def publish(writer):
        numbers[writer] = publishers[writer].publish(values[writer], step)

    threads = [threading.Thread(target=publish, args=(writer,)) for writer in range(len(publishers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return numbers


def test_each_writer_gives_its_slices_and_readers_see_whole_tensors(job):
    tensors = {"w": ("int32", (4, 5)), "b": ("float32", (3,)), "s": ("int64", ())}
    slices = [{"w": s_[:, 0:2], "s": ()}, {"w": s_[:, 2:], "b": s_[0:3]}]
    one, two = (ps_shm.Publisher(job, tensors, dtype="bfloat16", writer=writer, slices=slices) for writer in (0, 1))
    with one, two, ps_shm.Subscriber(job) as subscriber:
        for step in (1, 2):
            w = np.arange(20, dtype=np.int32).reshape(4, 5) + step
            values = [{"w": w[:, :2].copy(), "s": np.int64(step)},
                      {"w": torch.from_numpy(w[:, 2:].copy()), "b": np.full(3, step, np.float32)}]
            assert published([one, two], values, step) == [step, step]
            generation = subscriber.read(step - 1)
            assert (generation["w"] == w).all() and generation["s"] == generation.step == step
            assert ps_shm.torch.tensors(generation)["b"].tolist() == [step] * 3
            del generation
        for given, error in (({"w": w}, ValueError), ({"w": w[:, :2].copy()}, ValueError), ({**values[0], "b": w}, ValueError),
                             ({**values[0], "w": np.zeros((4, 2))}, TypeError)):
            with pytest.raises(error):
                one.publish(given, 3)
        with pytest.raises(ps_shm.Timeout, match="writers 1 have not written their slices"):
            one.publish(values[0], 3, timeout=0.01)
        with pytest.raises(ps_shm.Error, match="has 2 writers, which can only publish their slices"):
            one.begin()


def test_wrong_slices_are_refused(job):
    tensors = {"w": np.zeros((4, 5), np.float32)}
    for slices, error, text in (
        ([{"w": s_[0:2]}, {"w": s_[1:4]}], ps_shm.Error, "overlap in tensor 'w'"),
        ([{"w": s_[0:2]}, {}], ps_shm.Error, "10 of the 20 elements"),
        ([{"w": s_[0:2, 0:5, 0:1]}], ValueError, "has 3 axes, not 2"),
        ([{"w": s_[::2]}], ValueError, "all those between two indices"),
        ([{"w": s_[4:]}], ValueError, "leave out a tensor"),
        ([{"w": (0, 3)}], TypeError, "must consist of slices"),
        ([{"v": s_[0:2]}], KeyError, "v"),
    ):
        with pytest.raises(error, match=text):
            ps_shm.Publisher(job, tensors, slices=slices)
    with pytest.raises(ps_shm.Error, match="has no writer 1"):
        ps_shm.Publisher(job, tensors, slices=[{"w": s_[:]}], writer=1)


def test_readers_never_see_mixed_generations_while_writers_are_killed(job, start):
    text = """
import sys, numpy as np, ps_shm
job, writer = sys.argv[1], int(sys.argv[2])
slices = [{"a": np.s_[:, 2 * one : 2 * one + 2], "b": np.s_[one : one + 1]} for one in range(3)]
publisher = ps_shm.Publisher(job, {"a": ("float32", (500, 6)), "b": ("int64", (3,))}, wait=600, writer=writer, slices=slices)
print(publisher.generation)
while True:
    step = publisher.generation + 1
    try:
        publisher.publish({"a": np.full((500, 2), step, np.float32), "b": np.full(1, step)}, step, timeout=0.2)
    except ps_shm.Timeout:
        pass  # the others have published this step, or one of them has no successor yet
"""
    writers = {writer: start(text, job, writer) for writer in range(3)}
    for writer in writers.values():
        writer.line()
    with ps_shm.Subscriber(job) as subscriber:
        seen = 0
        for round in range(4):
            for _ in range(20):
                generation = subscriber.read(seen)
                seen = generation.number
                assert (generation["a"] == seen).all() and generation["b"].tolist() == [seen] * 3 and generation.step == seen
                del generation
            victim = round % 3
            writers[victim].send(signal.SIGKILL)
            writers[victim].process.wait()
            writers[victim] = start(text, job, victim)
        wait_until(lambda: subscriber.newest > seen + 5, "the successors publish")
        for writer in writers.values():
            writer.send(signal.SIGKILL)
            writer.process.wait()
    ps_shm.Publisher(job, {"a": ("float32", (1,))}).close()  # nobody uses the other one: it replaces it, and removes it


@pytest.mark.parametrize("mesh", [(4,), (2, 3), (1, 2, 2)])
def test_blocks_are_those_of_torch_chunk_and_cover_a_tensor_once(mesh):
    for shape in ((7, 5), (4, 6), (2, 3)):
        for placements in itertools.product([Shard(0), Shard(1), Replicate()], repeat=len(mesh)):
            found = np.zeros(shape, int)
            for coordinate in itertools.product(*map(range, mesh)):
                expected = torch.arange(shape[0] * shape[1]).reshape(shape)
                for parts, placement, number in zip(mesh, placements, coordinate):
                    if isinstance(placement, Shard):
                        chunks = torch.chunk(expected, parts, placement.dim) if expected.numel() else ()
                        expected = chunks[number] if number < len(chunks) else expected[0:0]
                block = _slices.block(shape, mesh, placements, coordinate)
                is_first = all(n == 0 for p, n in zip(placements, coordinate) if isinstance(p, Replicate))
                assert (block is not None) == (is_first and expected.numel() != 0)
                if block is not None:
                    assert torch.equal(torch.arange(shape[0] * shape[1]).reshape(shape)[block], expected)
                    found[block] += 1
            assert (found == 1).all()


def test_plans_follow_the_placements_and_others_are_refused():
    class Sharded:
        shape, placements = (4, 2), (Shard(0),)

        def __init__(self, *ranks):
            self.device_mesh = type("Mesh", (), {"mesh": torch.tensor(ranks)})

    plan = _slices.slices({"w": Sharded(2, 0), "b": torch.zeros(3)}, 3)
    assert plan == [{"w": s_[2:4, 0:2], "b": s_[0:3,]}, {}, {"w": s_[0:2, 0:2]}]
    assert _slices.slices({"none": torch.zeros(0, 3), "b": torch.zeros(3)}, 1) == [{"b": s_[0:3,]}]
    with pytest.raises(ValueError, match="'w' has a part on rank 3; `writers` must be the number of all ranks, not 3"):
        _slices.slices({"w": Sharded(0, 3)}, 3)
    # Tensor parallelism has cut 7 rows into 4 and 3, and FSDP2 each of these.
    blocks = [_slices.block((7,), (2, 2), (_StridedShard(0), Shard(0)), at) for at in itertools.product(range(2), repeat=2)]
    assert blocks == [(slice(0, 2),), (slice(4, 6),), (slice(2, 4),), (slice(6, 7),)]
    partial = Sharded(0, 1)
    for placement in (Partial(), _StridedShard(0)):  # the second one without what it has cut
        partial.placements = (placement,)
        with pytest.raises(TypeError, match="'w': placement .* cannot be published; only those of Shard, Replicate, .* can: use"):
            _slices.slices({"w": partial}, 2)


SHARDED = """
import os, sys, torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
import ps_shm, ps_shm.torch

job, rank, store = sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=4)
mesh = init_device_mesh("cpu", (2, 2))
model = torch.nn.Module()
for name, shape, placements in (("rows", (5, 3), (Shard(0), Replicate())), ("columns", (3, 7), (Replicate(), Shard(1))),
                                ("both", (5, 6), (Shard(0), Shard(1))), ("twice", (7, 2), (Shard(0), Shard(0))),
                                ("same", (2, 2), (Replicate(), Replicate())), ("few", (1, 2), (Shard(0), Shard(1)))):
    full = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    model.register_parameter(name, torch.nn.Parameter(distribute_tensor(full, mesh, placements)))
model.register_buffer("plain", torch.zeros(2, dtype=torch.int64))
model.layer = torch.nn.Linear(3, 5)
for parameter, first in ((model.layer.weight, 0.0), (model.layer.bias, 15.0)):
    parameter.data = torch.arange(first, first + parameter.numel()).reshape(parameter.shape)
fully_shard(model.layer, mesh=init_device_mesh("cpu", (4,)))
model.both_ways = torch.nn.Linear(2, 7, bias=False)
model.both_ways.weight.data = torch.arange(14.0).reshape(7, 2)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
parallelize_module(model.both_ways, mesh["tensor"], ColwiseParallel())
fully_shard(model.both_ways, mesh=mesh["data"])
publisher = ps_shm.torch.Publisher(job, model, writer=rank, writers=4, wait=600)
for step in (1, 2, 3):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().add_(1)
        model.plain.add_(1)
    assert publisher.publish(step) == step
publisher.wait_for(3, readers=1)
dist.barrier()
publisher.close()
dist.destroy_process_group()
"""


def test_ranks_of_a_model_of_dtensors_publish_it_together(job, start, tmp_path):
    pytest.importorskip("torch.distributed.tensor", reason="this torch has no DTensor")
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no FSDP2")
    ranks = [start(SHARDED, job, rank, tmp_path / "store") for rank in range(4)]
    with ps_shm.Subscriber(job, wait=600) as subscriber:
        generation = subscriber.read()
        while True:
            for name, shape in (("rows", (5, 3)), ("columns", (3, 7)), ("both", (5, 6)), ("twice", (7, 2)), ("same", (2, 2)),
                                ("few", (1, 2))):
                expected = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + generation.step
                assert (generation[name] == expected).all(), name
            assert generation["plain"].tolist() == [generation.step] * 2
            assert (generation["both_ways.weight"] == np.arange(14).reshape(7, 2) + generation.step).all()
            layer = np.arange(20, dtype=np.float32) + generation.step
            assert (generation["layer.weight"].ravel() == layer[:15]).all() and (generation["layer.bias"] == layer[15:]).all()
            if generation.number == 3:
                break
            generation = subscriber.read(generation.number)
        del generation
        subscriber.acknowledge(3)
        for rank in ranks:
            code, _, err = rank.finish()
            assert code == 0, err
