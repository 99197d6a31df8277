"""Publishers and subscribers in one process or several: a reader always gets complete generations."""
import asyncio
import collections.abc
import json
import os
import pathlib
import signal
import threading
import time

import numpy as np
import pytest
import torch

import ps_shm
import ps_shm.torch
from ps_shm.torch import _model, _publication, _registration
from conftest import segments, wait_until


def test_generations_stay_as_they_are_while_somebody_has_them(job):
    with ps_shm.Publisher(job, {"w": np.zeros((2, 3), np.float32), "n": torch.zeros(1, dtype=torch.int64)}) as publisher:
        with ps_shm.Subscriber(job) as subscriber:
            assert subscriber.newest == 0 and subscriber.try_read() is None
            assert subscriber.tensors == {"w": ("float32", (2, 3)), "n": ("int64", (1,))}
            assert publisher.publish({"w": np.ones((2, 3), np.float32), "n": torch.tensor([7])}, 70) == 1
            first = subscriber.read()
            assert (first.number, first.step, first.names) == (1, 70, ["w", "n"])
            w = first["w"]
            assert not w.flags.writeable and first["n"].tolist() == [7]
            for i in range(20):
                publisher.publish({"w": np.full((2, 3), i, np.float32)})
            assert w.tolist() == [[1, 1, 1]] * 2
            second = subscriber.read(1)
            assert second["w"].tolist() == [[19] * 3] * 2 and second["n"].tolist() == [7]
            with pytest.raises(ps_shm.Error, match="at most 2 generations"):
                subscriber.read()
            del first, w
            out = {"w": torch.zeros(2, 3), "n": torch.zeros(1, dtype=torch.int64)}
            subscriber.read().copy_to(out)
            assert out["w"].sum() == 19 * 6
            with pytest.raises(ps_shm.Timeout):
                subscriber.read(21, timeout=0.05)
            publisher.close()
            with pytest.raises(ps_shm.PublisherGone, match="ended"):
                subscriber.read(21)


def test_what_does_not_fit_is_not_published(job):
    with ps_shm.Publisher(job, {"w": np.zeros(3, np.float32), "b": np.zeros(2)}) as publisher:
        good = {"w": np.zeros(3, np.float32), "b": np.zeros(2)}
        for change, error in (({"w": np.zeros(3)}, TypeError), ({"b": np.zeros(3)}, ValueError), ({"c": np.zeros(3)}, ValueError)):
            with pytest.raises(error):
                publisher.publish({**good, **change})
        with pytest.raises(ValueError, match="'b' is not among"):
            publisher.publish({"w": np.zeros(3, np.float32)})
        assert publisher.generation == 0
        assert publisher.publish(good) == 1


def test_a_generation_is_written_tensor_by_tensor_and_visible_when_it_is_committed(job):
    zeros = {"w": np.zeros((2, 3), np.float32), "b": torch.zeros(4, dtype=torch.bfloat16), "n": np.zeros(1, np.int64)}
    with ps_shm.Publisher(job, zeros) as publisher, ps_shm.Subscriber(job) as subscriber:
        with pytest.raises(ps_shm.Error, match="the first generation must contain all 3 tensors"):
            with publisher.begin() as generation:
                generation.write("w", zeros["w"])
        assert publisher.generation == 0
        with publisher.begin(step=5) as generation:
            assert generation.number is None
            generation.write("n", np.array([7]))
            generation.write("b", torch.ones(4, dtype=torch.bfloat16))
            generation.write("w", np.arange(4, dtype=np.float32))  # in two parts
            generation.write("w", np.array([4, 5], np.float32), begin=4)
            assert subscriber.try_read() is None
        assert generation.number == publisher.generation == 1
        out = {"b": torch.zeros(4, dtype=torch.bfloat16), "w": np.zeros((2, 3), np.float32), "n": np.zeros(1, np.int64)}
        subscriber.read().copy_to(out)
        assert out["b"].tolist() == [1] * 4 and out["w"].tolist() == [[0, 1, 2], [3, 4, 5]] and out["n"].tolist() == [7]
        assert subscriber.read().step == 5
        with publisher.begin() as generation:
            generation.write("n", np.array([8]))
            assert generation.commit() == 2
        subscriber.read(1).copy_to(out)
        assert out["w"].tolist() == [[0, 1, 2], [3, 4, 5]] and out["n"].tolist() == [8]


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_a_generation_without_a_part_of_a_tensor_is_not_published(job, tmp_path, kind):
    def full(value):
        return np.full(8, value, np.float32)

    tensors = {"w": full(0), "b": ("bfloat16", (5,))}
    new = ps_shm.Publisher(job, tensors, records=3) if kind == "memory" else ps_shm.FolderPublisher(tmp_path, tensors)
    with new as publisher:
        for value in (1, 2, 3):
            publisher.publish({"w": full(value), "b": torch.zeros(5, dtype=torch.bfloat16)})
        with pytest.raises(ps_shm.Error, match="tensor 'w' was written in part: 4 of its 8 elements are missing$") as error:
            with publisher.begin(4) as generation:
                generation.write("w", full(9)[:4], begin=0)
        assert error.value.code is ps_shm.ErrorCode.INVALID_ARGUMENT and publisher.generation == 3
        with publisher.begin(4) as generation:
            generation.write("b", torch.ones(2, dtype=torch.bfloat16), begin=3)
            generation.write("w", full(9)[:4])
            generation.write("w", full(9)[:5], begin=3)
            with pytest.raises(ps_shm.Error, match="tensor 'b' was written in part: 3 of its 5"):
                generation.commit()
            generation.write("b", torch.ones(3, dtype=torch.bfloat16))
        assert publisher.generation == 4
        if kind == "memory":
            with ps_shm.Subscriber(job) as subscriber:
                assert subscriber.read()["w"].tolist() == [9] * 8
            with publisher.begin() as generation:  # in place: what is written there is the caller's affair
                torch.from_dlpack(generation.out("w"))[:4] = 1
            assert publisher.generation == 5


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_the_time_to_find_a_tensor_does_not_grow_with_their_number(job, tmp_path, kind):
    def seconds_each(count):
        names = [f"model.layers.{i % 61}.mlp.experts.{i // 61}.up_proj.weight" for i in range(count)]
        values = [np.array([i], np.float32) for i in range(count)]
        begun = time.process_time()
        tensors = {name: ("float32", (1,)) for name in names}
        with ps_shm.Publisher(job, tensors) if kind == "memory" else ps_shm.FolderPublisher(tmp_path / str(count), tensors) as publisher:
            with publisher.begin() as generation:
                for name, value in zip(names, values):
                    generation.write(name, value)
            if kind == "folder":
                publisher.publish(dict(zip(names, values)))
                return (time.process_time() - begun) / count
            with ps_shm.Subscriber(job) as subscriber:
                generation = subscriber.read()
                assert all(name in generation and generation[name][0] == i for i, name in enumerate(names))
                assert generation.get(names[-1])[0] == count - 1 and "model" not in generation
                assert len(ps_shm.torch.tensors(generation)) == len(generation.items()) == count
                generation.copy_to({names[-1]: values[0]})
                assert values[0] == count - 1
                del generation
            with publisher.begin() as generation:
                assert all(generation.out(name) is not None for name in names)
        return (time.process_time() - begun) / count

    few = min(seconds_each(10_000) for _ in range(2))
    assert seconds_each(100_000) < 4 * few


def test_tensors_without_elements_are_published_as_they_are(job):
    given = {"none": torch.zeros(0, 3), "w": np.ones(3, np.float32), "half": torch.zeros(2, 0, dtype=torch.bfloat16),
             "n": np.zeros((0,), np.int64)}
    with ps_shm.Publisher(job, given) as publisher, ps_shm.Subscriber(job) as subscriber:
        publisher.publish(given)
        with publisher.begin() as generation:
            generation.write("none", torch.zeros(0, 3))
            assert torch.from_dlpack(generation.out("half")).shape == (2, 0)
        generation = subscriber.read()
        found = ps_shm.torch.tensors(generation)
        assert {name: (t.dtype, tuple(t.shape)) for name, t in found.items()} == {
            "none": (torch.float32, (0, 3)), "w": (torch.float32, (3,)), "half": (torch.bfloat16, (2, 0)), "n": (torch.int64, (0,))}
        assert generation["none"].shape == (0, 3) and generation["w"].tolist() == [1, 1, 1] and generation["n"].dtype == np.int64
        generation.copy_to({"none": torch.zeros(0, 3), "half": torch.zeros(2, 0, dtype=torch.bfloat16)})
        with pytest.raises(ValueError, match="'none' has the shape \\(0, 4\\)"):
            generation.copy_to({"none": torch.zeros(0, 4)})
        with pytest.raises(ValueError, match="there is no tensor 'nine'"):
            generation.copy_to({"nine": torch.zeros(0, 3)})
        del generation, found
    with ps_shm.Publisher(job, {"none": given["none"]}, dtype="bfloat16") as publisher, ps_shm.Subscriber(job) as subscriber:
        with publisher.begin():
            pass
        publisher.publish({"none": torch.zeros(0, 3)})
        assert subscriber.read().number == 2 and subscriber.read().torch("none").dtype == torch.bfloat16


def test_a_model_with_a_tensor_without_elements_is_published_alike_by_all_publishers(job, tmp_path):
    def model(seed):
        torch.manual_seed(seed)
        made = torch.nn.Linear(2, 3)
        made.register_buffer("none", torch.zeros(0, 3))
        return made

    learner, actor = model(1), model(2)
    with ps_shm.torch.Publisher(job, learner) as publisher, ps_shm.torch.Subscriber(job, actor) as subscriber:
        publisher.publish()
        assert subscriber.update() == 1 and torch.equal(actor.weight, learner.weight)
        with pytest.raises(ValueError, match="has none, which the model lacks"):
            ps_shm.torch.Subscriber(job, torch.nn.Linear(2, 3))
        with ps_shm.Subscriber(job) as reader:
            names = set(reader.names)
    with ps_shm.Publisher(job, learner.state_dict()) as publisher, ps_shm.torch.Subscriber(job, actor) as subscriber:
        publisher.publish(dict(learner.state_dict()))
        assert subscriber.update() == 1
    with ps_shm.FolderPublisher(tmp_path, learner.state_dict()) as publisher:
        publisher.publish(dict(learner.state_dict()))
        header = pathlib.Path(publisher.path, "model.safetensors").read_bytes()[8:].split(b"}}")[0] + b"}}"
        assert set(json.loads(header)) - {"__metadata__"} == names == set(learner.state_dict())
        assert json.loads(header)["none"]["shape"] == [0, 3]
    # As a job publishes its variables, which have elements.
    with ps_shm.Publisher(job, dict(torch.nn.Linear(2, 3).state_dict())) as publisher:
        ps_shm.torch.Subscriber(job, actor).close()


def test_tensors_of_every_type_are_read_where_they_lie(job):
    names = ["float32", "float64", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]
    names += [name for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)]
    given = {name: torch.tensor([[0, 1], [2, 1]]).to(getattr(torch, name)) for name in names}
    with ps_shm.Publisher(job, given) as publisher, ps_shm.Subscriber(job) as subscriber:
        publisher.publish(given)
        found = ps_shm.torch.tensors(subscriber.read())
        assert list(found) == names
        for name, tensor in found.items():
            assert tensor.dtype == given[name].dtype and tensor.shape == (2, 2)
            assert tensor.double().tolist() == given[name].double().tolist()
        again = ps_shm.torch.tensors(subscriber.read())
        assert all(again[name].data_ptr() == found[name].data_ptr() for name in names), "they are not copied"
        del again
        for _ in range(20):
            publisher.publish({name: torch.zeros_like(tensor) for name, tensor in given.items()})
        assert found["bfloat16"].tolist() == [[0, 1], [2, 1]], "a tensor keeps its generation"
        kept = found.pop("bfloat16")
        found.clear()
        assert subscriber.read()["int64"].tolist() == [[0, 0], [0, 0]]
        thread = threading.Thread(target=lambda held: held.clear(), args=([kept],))
        del kept
        thread.start()
        thread.join()
        with pytest.raises(KeyError):
            subscriber.read().dlpack("no such tensor")


def test_a_generation_that_fails_or_is_dropped_is_not_published(job):
    with ps_shm.Publisher(job, {"w": np.zeros(3, np.float32)}) as publisher, ps_shm.Subscriber(job) as subscriber:
        publisher.publish({"w": np.ones(3, np.float32)})
        with pytest.raises(ZeroDivisionError):
            with publisher.begin() as generation:
                generation.write("w", np.zeros(3, np.float32))
                1 / 0
        for array, begin, error in ((np.zeros(3), 0, TypeError), (np.zeros((3, 1), np.float32), 0, ValueError),
                                    (np.zeros(2, np.float32), 2, ValueError), (np.zeros(0, np.float32), 4, ValueError)):
            with pytest.raises(error):
                publisher.begin().write("w", array, begin)  # dropped
        with pytest.raises(KeyError):
            publisher.begin().write("v", np.zeros(3, np.float32))
        held = publisher.begin()
        for call in (publisher.begin, lambda: publisher.publish({"w": np.zeros(3, np.float32)})):
            with pytest.raises(ps_shm.Error, match="a generation is being written"):
                call()
        del held
        assert subscriber.read()["w"].tolist() == [1] * 3
        assert publisher.publish({"w": np.zeros(3, np.float32)}) == 2
        late = publisher.begin()
    with pytest.raises(ps_shm.Error):
        late.write("w", np.zeros(3, np.float32))


def test_readers_never_see_mixed_generations_while_publishers_are_killed(job, start):
    text = """
import sys, numpy as np, ps_shm
publisher = ps_shm.Publisher(sys.argv[1], {name: np.zeros(5000, np.float32) for name in "abcd"}, wait=600)
print(publisher.generation)
while True:
    value = np.full(5000, publisher.generation + 1, np.float32)
    publisher.publish({name: value for name in "abcd"})
"""
    publishers = [start(text, job)]
    publishers[0].line()
    reads = 100000 if os.environ.get("PS_SHM_TEST_FULL") else 3000
    with ps_shm.Subscriber(job) as subscriber:
        seen = 0
        for i in range(reads):
            generation = subscriber.read()
            assert generation.number >= seen
            seen = generation.number
            for name in "abcd":
                array = generation[name]
                assert array[0] == array[-1] == array[i % 5000] == seen
            del array
            if i == reads // 2:
                publishers[0].send(signal.SIGKILL)
                publishers.append(start(text, job))
                assert int(publishers[1].line()) >= seen
        wait_until(lambda: subscriber.newest > seen, "the second one publishes")
        for publisher in publishers:
            publisher.send(signal.SIGKILL)
            publisher.process.wait()
    # The last process that leaves a publication whose publisher was killed becomes its next publisher.
    ps_shm.Publisher(job, {name: np.zeros(5000, np.float32) for name in "abcd"}).close()


def test_threads_may_look_while_another_one_closes(job):
    for _ in range(50):
        publisher = ps_shm.Publisher(job, {"w": np.zeros(3, np.float32)})
        subscriber = ps_shm.Subscriber(job)
        publisher.publish({"w": np.zeros(3, np.float32)})

        def look(what):
            try:
                while True:
                    what()
            except ps_shm.Error as error:
                ends.append(str(error))

        ends = []
        looks = [lambda: publisher.generation, lambda: publisher.step, lambda: subscriber.newest, lambda: subscriber.published,
                 lambda: subscriber.try_read(1), lambda: publisher.publish({"w": np.zeros(3, np.float32)})]
        threads = [threading.Thread(target=look, args=(one,)) for one in looks]
        [t.start() for t in threads]
        subscriber.close(), publisher.close()
        [t.join() for t in threads]
        assert len(ends) == len(looks) and all("has left" in end for end in ends), ends


def test_a_forked_child_has_nothing_of_a_publication(job):
    with ps_shm.Publisher(job, {"w": np.zeros(3, np.float32)}) as publisher, ps_shm.Subscriber(job) as subscriber:
        publisher.publish({"w": np.ones(3, np.float32)})
        generation = subscriber.read()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for call in (lambda: publisher.publish({"w": np.ones(3, np.float32)}), subscriber.read):
                    with pytest.raises(ps_shm.Error, match="a forked child makes its own"):
                        call()
                del generation
                with ps_shm.Subscriber(job) as own:
                    assert own.read()["w"].tolist() == [1, 1, 1]
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert generation["w"].tolist() == [1, 1, 1]
        assert publisher.publish({"w": np.ones(3, np.float32)}) == 2


def test_a_daemon_thread_that_reads_does_not_hold_up_the_end_of_a_program(job, start):
    text = """
import sys, threading, numpy, ps_shm
publisher = ps_shm.Publisher(sys.argv[1], {"a": numpy.zeros(3)})
subscriber = ps_shm.Subscriber(sys.argv[1])
reading = threading.Event()
def read():
    reading.set()
    subscriber.read(timeout=1e6)
threading.Thread(target=read, daemon=True).start()
reading.wait()
"""
    assert start(text, job).finish_quietly() == (0, "", "")
    assert not segments(job)


def test_a_generation_is_a_mapping(job):
    first = {"a": np.arange(3.0), "b": np.arange(4)}
    with ps_shm.Publisher(job, first) as publisher, ps_shm.Subscriber(job) as subscriber:
        publisher.publish(first, step=7)
        generation = subscriber.read()
        assert isinstance(generation, collections.abc.Mapping)
        assert list(generation) == list(generation.keys()) == ["a", "b"] and len(generation) == 2
        assert "a" in generation and "c" not in generation and generation.get("c", 5) == 5
        for name, values in {**generation}.items():
            np.testing.assert_array_equal(values, first[name])
        assert [name for name, _ in generation.items()] == ["a", "b"] and generation.values()[1].tolist() == [0, 1, 2, 3]
        model = torch.nn.Module()
        model.register_buffer("a", torch.zeros(3, dtype=torch.float64))
        model.register_buffer("b", torch.zeros(4, dtype=torch.int64))
        model.load_state_dict({name: torch.from_numpy(values.copy()) for name, values in generation.items()})
        assert model.b.tolist() == [0, 1, 2, 3]
        assert repr(generation) == "<generation 1 of 2 tensors, step 7>"
        assert repr(publisher) == f"<the publisher of '{job}'>" and repr(subscriber) == f"<the subscriber of '{job}'>"
        del generation, values


def test_a_coroutine_waits_for_a_generation(job):
    first = {"a": np.zeros(3)}
    publisher, subscriber = ps_shm.Publisher(job, first), ps_shm.Subscriber(job)

    async def read():
        waiting = asyncio.create_task(subscriber.read_async(timeout=1e6))
        await asyncio.wait({waiting}, timeout=0)
        publisher.publish(first)
        assert (await waiting).number == 1
        with pytest.raises(ps_shm.Timeout, match="no newer generation"):
            await subscriber.read_async(1, timeout=0)
        publisher.close()
        with pytest.raises(ps_shm.PublisherGone, match="nobody publishes"):
            await subscriber.read_async(1)

    asyncio.run(read())
    subscriber.close()


def test_float32_is_published_as_bfloat16_where_that_is_asked_for(job):
    weights = {"w": torch.tensor([1.0, 1 + 2**-9, -3.1415927, float("nan")]), "n": torch.tensor([3])}
    with ps_shm.Publisher(job, weights, dtype="bfloat16") as publisher, ps_shm.Subscriber(job) as subscriber:
        assert publisher.publish(weights) == 1
        generation = subscriber.read()
        got = generation.torch("w")
        wanted = weights["w"].to(torch.bfloat16)
        assert got.dtype == torch.bfloat16 and torch.equal(got[:3], wanted[:3]) and got[3].isnan()
        assert generation["n"].tolist() == [3]
        with publisher.begin() as writing:
            writing.write("w", np.array([5.0, 6.0], np.float32), begin=1)
            writing.write("w", torch.ones(1, dtype=torch.bfloat16))
            writing.write("w", torch.zeros(1), begin=3)
        assert subscriber.read(1).torch("w").tolist() == [1, 5, 6, 0]
        assert got[:3].tolist() == wanted[:3].tolist()
        with pytest.raises(TypeError, match="bfloat16"):
            publisher.publish({"w": weights["w"].double()})
        del got, generation
    with ps_shm.Publisher(job, {"w": ("bfloat16", (4,))}) as publisher:
        with pytest.raises(TypeError, match="bfloat16"):  # never without being asked
            publisher.publish({"w": weights["w"]})
    with pytest.raises(ValueError, match="'bfloat16' only"):
        ps_shm.Publisher(job, weights, dtype="float16")


def test_a_publisher_knows_who_uses_which_generation(job):
    model, copy = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    with ps_shm.torch.Publisher(job, model) as publisher, ps_shm.torch.Subscriber(job, copy) as subscriber:
        assert publisher.publish() == 1
        with pytest.raises(ps_shm.Timeout, match="0 of 1 subscribers have acknowledged generation 1"):
            publisher.wait_for(1, timeout=0)
        subscriber.update()
        assert publisher.wait_for(1) == []
        with ps_shm.Subscriber(job) as other:
            generation = other.read()
            assert publisher.wait_for(1, readers=1) == [other.rank]
            first, second = publisher.readers()
            assert (first.rank, first.pid, first.acknowledged, first.generations) == (0, os.getpid(), 1, [])
            assert (second.rank, second.acknowledged, second.generations) == (1, 0, [1])
            assert repr(second) == f"<Reader 1: process {os.getpid()}, acknowledged 0, holds 1>"
            with pytest.raises(ps_shm.Error, match="no generation 2 to acknowledge"):
                other.acknowledge(2)
            other.acknowledge(generation.number)
            assert publisher.wait_for(1, readers=2) == []
            del generation


def test_memory_is_taken_as_it_is_used_and_given_back(job):
    weights = {"w": np.zeros(1 << 18, np.float32)}

    def megabytes():
        (name,) = segments(job)
        return os.stat(f"/dev/shm/{name}").st_blocks * 512 >> 20

    with ps_shm.Publisher(job, weights, records=3, subscribers=2) as publisher, ps_shm.Subscriber(job) as subscriber:
        assert megabytes() == 1
        publisher.publish(weights)
        held = subscriber.read()
        publisher.publish(weights)
        publisher.publish(weights)
        assert megabytes() == 3 and publisher.trim() >> 20 == 1 and megabytes() == 2
        del held
        assert publisher.trim() >> 20 == 1 and megabytes() == 1
        assert subscriber.read()["w"].sum() == 0
    with ps_shm.Publisher(job, weights, records=3, subscribers=2, populate=True):
        assert megabytes() == 3


def is_writable(address):
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if begin <= address < end:
            return line.split()[1][1] == "w"
    raise AssertionError(f"nothing is mapped at {address:#x}")


class FakeCuda:
    """The CPU passes for a GPU: registrations, and the order of what happens, are recorded."""

    def __init__(self, monkeypatch, refuses=()):
        self.ranges, self.log, self.refuses = {}, [], refuses
        monkeypatch.setattr(_publication, "is_on_gpu", lambda tensor: tensor.is_floating_point())
        monkeypatch.setattr(_registration, "_driver", lambda: self)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self)

    def cuMemHostRegister_v2(self, address, size, flags):
        address, size = address.value, size.value
        assert address % os.sysconf("SC_PAGESIZE") == 0 and size % 65536 == 0 and size <= 1 << 30
        assert all(address + size <= begin or begin + length <= address for begin, length in self.ranges.items())
        if flags in self.refuses:
            return 801
        if flags & 8 == 0 and not is_writable(address):  # the kernel pins no page for writing then
            return 1
        self.ranges[address] = size
        self.log.append(("register", flags))
        return 0

    def cuMemHostUnregister(self, address):
        del self.ranges[address.value]
        self.log.append("unregister")
        return 0

    def synchronize(self):
        self.log.append("synchronize")


def test_tensors_on_a_gpu_are_copied_to_and_from_registered_memory(job, monkeypatch):
    cuda = FakeCuda(monkeypatch)
    model, other = torch.nn.BatchNorm1d(3000), torch.nn.BatchNorm1d(3000)  # its counter stays on the CPU
    with ps_shm.torch.Publisher(job, model, records=3) as publisher, ps_shm.torch.Subscriber(job, other) as subscriber:
        for step in range(1, 6):
            with torch.no_grad():
                model.weight.fill_(step)
                model.num_batches_tracked.fill_(10 * step)
            cuda.log.clear()
            assert publisher.publish(step) == step
            assert cuda.log == [("register", 1)] * (step < 3) + ["synchronize"]  # two rows, in turns
            cuda.log.clear()
            assert subscriber.update() == step
            assert cuda.log == [("register", 1 | 8)] * (step < 3) + ["synchronize"]
            assert other.weight.eq(step).all() and other.num_batches_tracked == 10 * step
        assert len(cuda.ranges) == 4
        cuda.log.clear()
        assert publisher.trim() == 0 and cuda.log == ["unregister"] * 2  # the subscriber has both rows registered
        assert publisher.publish() == 6 and subscriber.update() == 6 and other.weight.eq(5).all()
        subscriber.close()
        assert publisher.trim() > 40_000 and not cuda.ranges
        with pytest.raises(TypeError, match="'weight' is of torch.float64"):
            with ps_shm.torch.Subscriber(job, torch.nn.BatchNorm1d(3000).double()) as strange:
                strange.update()
        assert publisher.publish() == 7
    assert not cuda.ranges


def test_what_cuda_does_not_register_is_copied_all_the_same(job, monkeypatch, caplog):
    cuda = FakeCuda(monkeypatch, refuses=(1, 9))
    model, other = torch.nn.Linear(1000, 10), torch.nn.Linear(1000, 10)
    with ps_shm.torch.Publisher(job, model) as publisher, ps_shm.torch.Subscriber(job, other) as subscriber:
        for step in range(3):
            publisher.publish()
            subscriber.update()
        assert torch.equal(other.weight, model.weight) and not cuda.ranges
        cuda.refuses = (9,)
    assert [record.message for record in caplog.records] == [
        "CUDA does not register shared memory (cuMemHostRegister: error 801): copies take longer"] * 2
    with ps_shm.torch.Publisher(job, model) as publisher, ps_shm.torch.Subscriber(job, other) as subscriber:
        publisher.publish()
        subscriber.update()  # without the flag for read-only memory, which is writable only in the call
        assert cuda.log.count(("register", 1)) == 2
        of_publisher, of_subscriber = cuda.ranges
        assert is_writable(of_publisher) and not is_writable(of_subscriber)
    with ps_shm.torch.Publisher(job, model) as publisher, ps_shm.torch.Subscriber(job, other) as subscriber:
        publisher.publish()
        monkeypatch.setattr(torch.Tensor, "copy_", None)
        with pytest.raises(TypeError):
            publisher.publish()
        assert publisher.generation == 1
        cuda.log.clear()
        with pytest.raises(TypeError):
            subscriber.update()
        assert cuda.log[-1] == "synchronize"  # copies that had begun are over before the generation is released


def test_a_tensor_can_be_filled_where_it_will_lie(job):
    with ps_shm.Publisher(job, {"w": ("bfloat16", (2, 3)), "n": ("int64", ())}) as publisher:
        with publisher.begin() as generation:
            torch.from_dlpack(generation.out("w")).copy_(torch.arange(6.0).view(2, 3))
            generation.write("n", np.array(4))
            with pytest.raises(KeyError):
                generation.out("v")
        with pytest.raises(ps_shm.Error, match="committed"):
            generation.out("w")
        with ps_shm.Subscriber(job) as subscriber:
            generation = subscriber.read()
            assert generation.torch("w").tolist() == [[0, 1, 2], [3, 4, 5]]
            address, row_bytes, rows = subscriber.memory
            assert 0 <= generation.torch("w").data_ptr() - address < row_bytes and rows == 34 and row_bytes == 65536
            del generation


class Wrapped(torch.nn.Module):
    """A layer under the name that a wrapper gives to it."""

    def __init__(self, layer, name):
        super().__init__()
        self.add_module(name, layer)


@pytest.mark.parametrize("wrap", ["checkpoint", "offload", "_fsdp_wrapped_module", "_orig_mod", "checkpoint of checkpoint"])
@pytest.mark.parametrize("is_whole", [False, True])
def test_wrapped_modules_have_the_names_of_the_layers_in_them(job, wrap, is_whole):
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers

    def wrapped(layer):
        if wrap.startswith("_"):
            return Wrapped(layer, wrap)
        if wrap == "offload":
            return wrappers.OffloadWrapper(layer) if hasattr(wrappers, "OffloadWrapper") else wrappers.checkpoint_wrapper(layer, offload_to_cpu=True)
        layer = wrappers.checkpoint_wrapper(layer)
        return wrappers.checkpoint_wrapper(layer) if wrap == "checkpoint of checkpoint" else layer

    def model(wrapper):
        layers = torch.nn.Sequential(wrapper(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))), torch.nn.Linear(2, 1))
        return wrapper(layers) if is_whole else layers

    train, infer = model(wrapped), model(lambda layer: layer)
    if not wrap.startswith("_"):
        assert set(_model.state(train)) == set(train.state_dict()), "as PyTorch names them"
    assert set(_model.state(train)) == set(infer.state_dict())
    assert set(_model.parameters(train)) == {name for name, _ in infer.named_parameters()}
    assert {place.name for place in _model.buffer_places(train)} == {name for name, _ in infer.named_buffers()}
    assert {name for group in _model.groups(train, train.parameters()) for name in group.parameters} == set(_model.parameters(infer))
    with ps_shm.torch.Publisher(job, train) as publisher, ps_shm.torch.Subscriber(job, infer) as subscriber:
        publisher.publish(1)
        assert subscriber.update() == 1
    for name, tensor in _model.state(train).items():
        assert torch.equal(tensor, infer.state_dict()[name]), name
