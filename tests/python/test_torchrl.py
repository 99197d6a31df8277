"""The weight-sync scheme for TorchRL: a sender and its receivers; with TorchRL itself also the workers of collectors."""
import pickle

from torchrl_stub import REAL

import pytest
import torch
from conftest import PATIENCE
from torchrl.weight_update.weight_sync_schemes import WeightSyncScheme

import ps_shm
import ps_shm.engines.torchrl


class Collector:
    """What a worker's collector is to a scheme."""

    pre_collect_hook = None

    def __init__(self, policy):
        self.policy, self.versions = policy, 0

    def update_policy_weights_(self, *, model_id, policy_or_weights):
        assert model_id == "policy" and policy_or_weights is not None
        self.versions += 1

    def collect(self):
        if self.pre_collect_hook is not None:
            self.pre_collect_hook()
        return values_of(self.policy)


def model_of(value):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    return fill(model, value)


def fill(model, value):
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(value)
    return model


def values_of(model):
    """Of all tensors together, so that weights of two generations are two values."""
    return {value for tensor in model.state_dict().values() for value in tensor.flatten().tolist()}


@pytest.fixture
def make(job):
    made = []

    def new(**settings):
        made.append(ps_shm.engines.torchrl.scheme(job, timeout=PATIENCE, **settings))
        return made[-1]

    yield new
    for one in made:
        one.shutdown()


def connected(scheme, policy, hook=None):
    """A worker that has come: TorchRL gives it the model first, and its collector later."""
    scheme.init_on_receiver(model_id="policy", model=policy, worker_idx=0)
    scheme.connect(worker_idx=0)
    collector = Collector(policy)
    collector.pre_collect_hook = hook
    scheme.context = collector
    return collector


@pytest.mark.parametrize("strategy", ["tensordict", "state_dict"])
@pytest.mark.filterwarnings("ignore:state_dict strategy is experimental")
def test_each_batch_has_the_weights_of_the_newest_generation(make, strategy):
    policy = model_of(1)
    sender = make(strategy=strategy)
    learner = Collector(policy)  # to which the scheme only has a weak reference
    sender.init_on_sender(model_id="policy", context=learner)
    sender.connect()
    hooks = []
    workers = [connected(make(strategy=strategy), model_of(0), lambda: hooks.append(1)) for _ in range(2)]
    assert [values_of(one.policy) for one in workers] == [{1}, {1}], "it has weights before its first batch"
    for value in (2, 3, 4, 5, 6):
        fill(policy, value)
        assert [one.collect() for one in workers] == [{value - 1}] * 2
        sender.send()
        assert [one.collect() for one in workers] == [{value}] * 2
        assert [one.acknowledged for one in sender._shared_transport._publisher.readers()] == [value] * 2
        assert [one.collect() for one in workers] == [{value}] * 2
    assert [one.versions for one in workers] == [5, 5] and len(hooks) == 30
    late = connected(make(strategy=strategy), model_of(0))
    assert late.collect() == {6}


def test_a_receiver_without_a_collector_asks_for_weights(make):
    sender, receiver, policy = make(), make(), model_of(0)
    sender.init_on_sender(model_id="policy", model=model_of(1))
    sender.connect()
    receiver.init_on_receiver(model_id="policy", model=policy, worker_idx=0)
    receiver.connect(worker_idx=0)
    assert receiver.receive() is None and receiver.receive(timeout=0.01) is None
    sender.send(model_of(2))
    sender.send(model_of(3))
    weights = receiver.receive(timeout=PATIENCE)
    assert values_of(policy) == {3} and receiver.receive() is None
    next(iter(policy.parameters())).data.add_(1)  # its own memory
    del weights


def test_a_worker_that_comes_first_finds_no_weights_of_an_earlier_run(make):
    earlier, sender, learner = make(), make(), Collector(model_of(2))
    earlier.init_on_sender(model_id="policy", model=model_of(1))
    earlier.shutdown()
    sender.init_on_sender(model_id="policy", context=learner)
    assert values_of(connected(make(), model_of(0)).policy) == {2}
    sender.connect()
    assert connected(make(), model_of(0)).collect() == {2}


def test_a_scheme_goes_to_workers_without_its_publication(make):
    sender = make()
    sender.init_on_sender(model_id="policy", model=model_of(1))
    sender.connect()
    receiver, policy = pickle.loads(pickle.dumps(sender)), model_of(0)
    connected(receiver, policy)
    assert values_of(policy) == {1}
    receiver.shutdown()
    sender.send(model_of(2))


def test_what_cannot_be_published_is_refused(make):
    sender = make()
    sender.init_on_sender(model_id="policy")
    with pytest.raises(ValueError, match="no weights to publish"):
        sender.connect()
    with pytest.raises(RuntimeError, match="connect"):
        make().send(model_of(1))
    sender = make()
    sender.init_on_sender(model_id="policy", model=model_of(1))
    sender.connect()
    with pytest.raises(ValueError, match="for all workers"):
        sender.send(model_of(2), worker_ids=[1])
    with pytest.raises(TypeError, match="'extra' of the weights is no tensor but of str"):
        sender.send({"extra": "text"})


def test_the_backend_has_a_name(make, job):
    ps_shm.engines.torchrl.register()
    assert isinstance(WeightSyncScheme.from_backend("ps_shm", name=job), type(make()))


if REAL:
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import MultiSyncCollector
    from torchrl.envs import PendulumEnv

    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))

        def forward(self, angle):
            return (self.a + self.b).expand(*angle.shape, 1)

    @pytest.mark.filterwarnings("ignore")
    def test_the_workers_of_a_collector_take_the_weights_before_each_batch(make):
        policy = TensorDictModule(Sum(), in_keys=["th"], out_keys=["action"])
        collector = MultiSyncCollector([PendulumEnv] * 2, policy, frames_per_batch=20, total_frames=120,
                                       weight_sync_schemes={"policy": make()})
        try:
            for number, batch in enumerate(collector):
                assert batch["action"].unique().tolist() == [number / 4]
                with torch.no_grad():
                    policy.module.a.fill_((number + 1) / 8), policy.module.b.fill_((number + 1) / 8)
                collector.update_policy_weights_()
        finally:
            collector.shutdown()
        assert number == 5
