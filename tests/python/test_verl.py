"""The checkpoint engine for verl: an actor of two ranks and its rollout workers."""
import asyncio

import pytest
import torch

import verl_stub

registry = verl_stub.install().CheckpointEngineRegistry

import ps_shm  # noqa: E402
import ps_shm.engines.verl  # noqa: E402: registers the backend


class Workers:
    """What verl's CheckpointEngineManager makes of its workers, here all in one process."""

    def __init__(self, rollouts=2, **settings):
        settings = {"bucket_size": 1 << 20, "timeout": 60, **settings}
        self.actor = [registry.new("ps_shm", is_master=rank == 0, **settings) for rank in range(2)]
        self.rollout = [registry.new("ps_shm", **settings) for _ in range(rollouts)]

    def all(self):
        return [*self.actor, *self.rollout]

    def connect(self, metadata=lambda one: one.prepare()):
        topology = type(self.actor[0]).build_topology(len(self.actor), len(self.rollout), [metadata(one) for one in self.all()])
        for workers, given in zip((self.actor, self.rollout), topology):
            for i, worker in enumerate(workers):
                worker.init_process_group(**{key: values[i] for key, values in given.items()})

    def update(self, weights, step):
        """Each rollout worker's weights, and the names that each rank of the actor has gathered."""
        self.connect()
        gathered = [[] for _ in self.actor]

        def gather(rank):
            for name, tensor in weights.items():
                gathered[rank].append(name)
                yield name, tensor

        async def receive(worker):
            return {name: tensor.clone() async for name, tensor in worker.receive_weights(global_steps=step)}

        async def run():
            return await asyncio.gather(*map(receive, self.rollout),
                                        *(one.send_weights(gather(rank), global_steps=step) for rank, one in enumerate(self.actor)))

        received = asyncio.run(run())[:len(self.rollout)]
        for worker in self.all():
            worker.finalize()
        return received, gathered


@pytest.fixture
def make():
    made = []

    def new(*given, **settings):
        made.append(Workers(*given, **settings))
        return made[-1]

    yield new
    for workers in made:
        for one in workers.all():
            one.close()


def weights_of(number):
    return {"w": torch.full((4, 3), number, dtype=torch.bfloat16), "empty": torch.zeros(0), "b": torch.full((3,), -float(number))}


def test_every_rollout_worker_gets_the_weights_of_each_update(make):
    workers = make()
    for number in (1, 2, 3, 4, 5):
        received, gathered = workers.update(weights_of(number), step=10 * number)
        assert gathered == [["w", "empty", "b"]] * 2, "all ranks of the actor take part"
        for one in received:
            assert list(one) == ["w", "empty", "b"] and one["w"].dtype == torch.bfloat16 and one["empty"].shape == (0,)
            assert one["w"].tolist() == [[number] * 3] * 4 and one["b"].tolist() == [-number] * 3
        assert [one.acknowledged for one in workers.actor[0]._publisher.readers()] == [number] * 2


def test_a_worker_gets_the_newest_weights_between_updates(make):
    workers = make(rollouts=1)
    workers.update(weights_of(1), step=1)
    workers.update(weights_of(2), step=2)

    async def newest():
        return {name: tensor.tolist() async for name, tensor in workers.rollout[0].get_weights()}

    assert asyncio.run(newest())["b"] == [-2] * 3


def test_a_worker_that_comes_later_takes_part_in_the_next_update(make):
    workers = make(rollouts=1)
    workers.update(weights_of(1), step=1)
    late = make(rollouts=1)
    workers.rollout += late.rollout
    received, _ = workers.update(weights_of(2), step=2)
    assert [one["b"].tolist() for one in received] == [[-2] * 3] * 2


def test_weights_of_another_update_are_refused(make):
    workers = make(rollouts=1)
    workers.update(weights_of(1), step=1)
    for one in workers.all():
        one._timeout = 0.05

    async def receive():
        return [one async for one in workers.rollout[0].receive_weights()]

    with pytest.raises(RuntimeError, match=r"publication 'verl-\w+' has generation 2, not 1"):
        workers.actor[0]._publisher.publish(dict(w=weights_of(2)["w"]))
        asyncio.run(receive())
    workers.connect()
    with pytest.raises(ps_shm.Timeout):
        asyncio.run(receive())


def test_an_update_that_fails_publishes_nothing(make):
    workers = make(rollouts=1)
    workers.update(weights_of(1), step=1)

    def broken():
        yield "w", weights_of(2)["w"]
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        asyncio.run(workers.actor[0].send_weights(broken()))
    assert workers.update(weights_of(3), step=3)[0][0]["w"].tolist() == [[3] * 3] * 4


def test_rollout_workers_of_another_machine_are_refused(make):
    workers = make()
    with pytest.raises(ValueError, match="rollout worker 1 is on another machine"):
        workers.connect(lambda one: {**one.prepare(), "machine": one is workers.rollout[1]})
