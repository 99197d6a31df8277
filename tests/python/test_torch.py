"""PyTorch models as workers."""
import multiprocessing
import os
import signal
import threading

import numpy as np
import pytest
import torch

import ps_shm
import ps_shm.torch
from conftest import PATIENCE, segments, wait_until


def small_model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8, bias=False), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def batch(seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(32, 4, generator=generator)
    return x, (x[:, 0] > 0).long()


def train(model, optimizer, steps, seed=1):
    x, y = batch(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize("ours, theirs", [
    ({"optimizer": "sgd", "lr": 0.1}, lambda p: torch.optim.SGD(p, lr=0.1)),
    ({"optimizer": "momentum", "lr": 0.1, "momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    ({"optimizer": "adam", "lr": 0.01}, lambda p: torch.optim.Adam(p, lr=0.01)),
])
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_one_worker_trains_as_the_optimizer_of_torch_does(job, ours, theirs, mode):
    plain = small_model()
    model = small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, mode=mode, **ours) as opt:
        expected, got = train(plain, theirs(plain.parameters()), 20), train(model, opt, 20)
        assert got == pytest.approx(expected, rel=1e-3)
        for a, b in zip(plain.state_dict().values(), model.state_dict().values()):
            torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4)
        assert opt.param_groups[0]["lr"] == pytest.approx(ours["lr"]) and opt.param_groups[0]["optimizer"] == ours["optimizer"]
        assert opt.global_step == 20 and not opt.finished and opt.staleness().max == 0


def test_the_names_and_values_are_those_of_the_state_dict(job):
    first, second = small_model(0), small_model(7)
    with ps_shm.torch.Optimizer(first, job, create=True, workers=2, lr=0.1):
        state = ps_shm.View(job).state()
        assert set(state) == set(first.state_dict())
        with ps_shm.torch.Optimizer(second, job, lr=0.1):
            for name, values in second.state_dict().items():
                np.testing.assert_array_equal(values.numpy(), first.state_dict()[name].numpy())
                np.testing.assert_array_equal(values.numpy(), state[name])


def test_gradients_that_the_user_has_dropped_or_replaced_are_pushed(job):
    model = torch.nn.Linear(3, 1, bias=False)
    with ps_shm.torch.Optimizer(model, job, create=True, lr=1.0) as opt:
        before = model.weight.detach().clone()
        model.zero_grad(set_to_none=True)
        model(torch.ones(1, 3)).sum().backward()
        opt.step()
        torch.testing.assert_close(model.weight.detach(), before - 1)
        model.weight.grad = None
        opt.step()
        torch.testing.assert_close(model.weight.detach(), before - 1)
        model.weight.data = model.weight.data.clone()  # at another address
        opt.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        opt.step()
        torch.testing.assert_close(model.weight.detach(), before - 2)


@pytest.mark.parametrize("write", ["step", "pull", "buffers", "elastic", "subscriber"])
def test_a_graph_built_before_a_write_by_the_job_is_refused_afterwards(job, write):
    """Its gradients would be wrong. The optimizers of torch make autograd refuse it, too."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
    model.register_buffer("scale", torch.ones(1))

    def use(writer, change):
        x = torch.ones(1, 2, requires_grad=True)
        result = model(x * model.scale)
        change(writer)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.backward()

    if write == "subscriber":
        with ps_shm.torch.Publisher(job, model) as publisher, ps_shm.torch.Subscriber(job, model) as subscriber:
            publisher.publish()
            use(subscriber, lambda s: s.update())
    elif write == "elastic":
        with ps_shm.torch.Elastic(model, job, alpha=0.5, create=True) as elastic:
            use(elastic, lambda e: e.pull())
    else:
        with ps_shm.torch.Optimizer(model, job, create=True, buffers="mean", lr=0.1) as opt:
            use(opt, {"step": lambda o: o.step(), "pull": lambda o: o.pull(), "buffers": lambda o: o._buffers.pull()}[write])


def count_up(job, steps, queue):
    model = torch.nn.Linear(50, 10, bias=False)
    with ps_shm.torch.Optimizer(model, job, create=True, workers=3, lr=1.0) as opt:
        opt.worker.wait_for_workers()
        for _ in range(steps):
            opt.zero_grad()
            model(torch.full((1, 50), -1.0)).sum().backward()
            opt.step()
        opt.worker.barrier()
        opt.pull()
        queue.put((opt.worker.rank, model.weight.detach().numpy()))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_whoever_comes_first_makes_the_job_and_no_update_is_lost(job, method):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    processes = [context.Process(target=count_up, args=(job, 200, queue)) for _ in range(3)]
    [p.start() for p in processes]
    results = dict(queue.get(timeout=PATIENCE) for _ in processes)
    [p.join() for p in processes]
    assert sorted(results) == [0, 1, 2]
    first = results[0] - 600
    for values in results.values():
        np.testing.assert_allclose(values - 600, first, atol=1e-3)
        assert np.abs(first).max() <= 1  # the initial values


inherited = None  # inherited by the forked workers of a DataLoader


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        if inherited is not None:
            with pytest.raises(ps_shm.Error, match="a forked child makes its own"):
                inherited.step()
        return torch.full((4,), float(i)), i % 2


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_workers_of_a_data_loader_leave_the_job_alone(job, monkeypatch, method):
    model = small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.01) as opt:
        monkeypatch.setattr("test_torch.inherited", opt.worker)
        loader = torch.utils.data.DataLoader(Points(), batch_size=16, num_workers=2, multiprocessing_context=method)
        for x, y in 2 * [*loader]:
            opt.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
        view = ps_shm.View(job)
        assert opt.global_step == 8 and [(w.state, w.pid) for w in view.workers()] == [("alive", os.getpid())]


def test_other_settings_than_the_jobs_are_refused(job):
    with ps_shm.Server(job, lr=0.1, workers=9):
        with pytest.raises(ps_shm.Error, match="began with `lr` 0.1, and 0.2 is given") as caught:
            ps_shm.torch.Optimizer(small_model(), job, lr=0.2)
        with pytest.raises(TypeError, match="no setting 'learning_rate'"):
            ps_shm.torch.Optimizer(small_model(), job, learning_rate=0.2)
        assert {w.state for w in ps_shm.View(job).workers()} == {"left"} and caught
    with pytest.raises(ps_shm.Error, match="`momentum`: optimizer sgd has none"):
        ps_shm.torch.Optimizer(small_model(), job, create=True, optimizer="sgd", momentum=0.9)


def test_a_constructor_that_fails_leaves(job):
    model = torch.nn.Sequential(ps_shm.torch.Embedding("table", 10, 4), torch.nn.Linear(4, 1))
    with ps_shm.Server(job, workers=2, mode="sync"):
        with pytest.raises(ps_shm.Error) as of_worker:
            ps_shm.torch.Optimizer(model, job)
        assert [w.state for w in ps_shm.View(job).workers()] == ["left"]
    with pytest.raises(ps_shm.Error) as of_maker:
        ps_shm.torch.Optimizer(model, job, create=True, workers=2, mode="sync")
    assert not segments(job)
    del of_worker, of_maker  # until here their tracebacks keep objects alive


def test_models_that_a_job_cannot_take_are_refused(job):
    with pytest.raises(TypeError, match="float64; pass the model in float32"):
        ps_shm.torch.Optimizer(small_model().double(), job, create=True)
    with pytest.raises(TypeError, match="on meta; pass the model on the CPU"):
        ps_shm.torch.Optimizer(torch.nn.Linear(2, 2, device="meta"), job, create=True)
    with pytest.raises(TypeError, match="no parameters"):
        ps_shm.torch.Optimizer(torch.nn.ReLU(), job, create=True)
    with pytest.raises(ValueError, match="go together"):
        ps_shm.torch.Optimizer(small_model(), job, create=True, push_every=4)


def test_schedulers_of_torch_act_on_the_job(job):
    model = small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, lr=1.0) as opt:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
        train(model, opt, 1)
        assert opt.worker.live["lr"] == "1"
        scheduler.step()
        train(model, opt, 1)
        assert opt.worker.live["lr"] == "0.5"
        opt.param_groups[0]["momentum"] = 0.5
        with pytest.raises(ps_shm.Error, match="cycle_momentum=False"):
            opt.step()


@pytest.mark.parametrize("make", [
    lambda opt: torch.optim.lr_scheduler.StepLR(opt, 3, 0.5),
    lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, 12),
    lambda opt: torch.optim.lr_scheduler.LambdaLR(opt, lambda epoch: 1 / (1 + epoch)),
    lambda opt: torch.optim.lr_scheduler.OneCycleLR(opt, 0.2, total_steps=13, cycle_momentum=False),
    lambda opt: torch.optim.lr_scheduler.SequentialLR(
        opt, [torch.optim.lr_scheduler.LinearLR(opt), torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)], [4]),
    lambda opt: torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0, threshold=1.0),
])
def test_schedulers_give_the_rates_that_they_give_an_optimizer_of_torch(job, make):
    """For mode sync, in which a rate takes effect with the next step; in async it takes effect one step later."""
    plain, model = small_model(), small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1, mode="sync") as opt:
        reference = torch.optim.SGD(plain.parameters(), lr=0.1)
        for m, optimizer in ((plain, reference), (model, opt)):
            scheduler = make(optimizer)
            for _ in range(12):
                loss = train(m, optimizer, 1)
                scheduler.step(loss) if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else scheduler.step()
        assert opt.param_groups[0]["lr"] == pytest.approx(reference.param_groups[0]["lr"], rel=1e-4)
        for a, b in zip(plain.parameters(), model.parameters()):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("policy", ["chief", "mean", "local"])
def test_buffers_follow_their_policy(job, policy):
    models = [torch.nn.BatchNorm1d(2) for _ in range(2)]
    x = torch.arange(8.0).reshape(4, 2)
    with ps_shm.Server(job, workers=2):
        opts = [ps_shm.torch.Optimizer(m, job, rank=r, buffers=policy) for r, m in enumerate(models)]
        for model, opt, factor in zip(models, opts, (1.0, 3.0)):
            opt.zero_grad()
            model(factor * x).sum().backward()
            opt.step()
        for opt in opts:
            opt.pull()
        means = [m.running_mean[0].item() for m in models]
        counts = [m.num_batches_tracked.item() for m in models]
        one = 0.1 * x[:, 0].mean().item()  # from the batch of the first worker
        if policy == "local":
            assert means == pytest.approx([one, 3 * one]) and counts == [1, 1]
        elif policy == "chief":
            assert means == pytest.approx([one] * 2) and counts == [1, 1]
        else:
            assert means == pytest.approx([(one + 3 * one) / 2] * 2)
            assert counts == [2, 2]
        for opt in opts:
            opt.close()


def test_local_sgd_pushes_the_difference_of_several_steps(job):
    model, plain = small_model(), small_model()
    local = torch.optim.SGD(model.parameters(), lr=0.1)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    with ps_shm.torch.Optimizer(model, job, create=True, push_every=5, local=local, buffers="local") as opt:
        train(model, opt, 10)
        train(plain, reference, 10)
        assert opt.global_step == 2
        for a, b in zip(plain.parameters(), model.parameters()):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)


def test_elastic_averaging_moves_model_and_centre_towards_each_other(job):
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.constant_(model.weight, 0.0)
    with ps_shm.torch.Elastic(model, job, alpha=0.25, every=2, create=True) as elastic:
        with torch.no_grad():
            model.weight.fill_(8.0)
        assert not elastic.step()
        assert elastic.step()
        assert model.weight.tolist() == [[6, 6]]
        elastic.pull()
        assert model.weight.tolist() == [[2, 2]]


def test_embeddings_train_the_rows_that_a_batch_names(job):
    embedding = ps_shm.torch.Embedding("table", 1000, 4, rule="sgd", deviation=0.5)
    model = torch.nn.Sequential(embedding, torch.nn.Flatten(), torch.nn.Linear(8, 1))
    plain = torch.nn.Sequential(torch.nn.Embedding(1000, 4), torch.nn.Flatten(), torch.nn.Linear(8, 1))
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1) as opt:
        table = embedding.variable
        assert abs(table.pull().std() - 0.5) < 0.05
        plain[0].weight.data = torch.from_numpy(table.pull())
        plain[2].load_state_dict(model[2].state_dict())
        ids = torch.tensor([[3, 999], [3, 5]])
        embedding.prefetch(ids)
        for m, optimizer in ((model, opt), (plain, torch.optim.SGD(plain.parameters(), lr=0.1))):
            for _ in range(3):
                optimizer.zero_grad()
                m(ids).pow(2).sum().backward()
                optimizer.step()
        np.testing.assert_allclose(table.pull(), plain[0].weight.detach().numpy(), atol=1e-5)
        model.eval()
        assert not model[0](ids).requires_grad
    with pytest.raises(ps_shm.Error, match="of no job yet"):
        ps_shm.torch.Embedding("table", 10, 4)(ids)


def test_zero_grad_drops_what_a_batch_gave_an_embedding(job):
    embedding = ps_shm.torch.Embedding("table", 10, 4, rule="sgd")
    with ps_shm.torch.Optimizer(torch.nn.Sequential(embedding, torch.nn.Linear(4, 1)), job, create=True, lr=0.1) as opt:
        before = embedding.variable.pull()
        embedding(torch.tensor([3])).sum().backward()
        kept = embedding(torch.tensor([5])).sum()  # its gradient is computed only after zero_grad()
        opt.zero_grad()
        kept.backward()
        opt.step()
        changed = (embedding.variable.pull() != before).any(1)
        assert changed.nonzero()[0].tolist() == [5]


def test_a_subscriber_keeps_a_model_at_the_newest_weights(job):
    model, other = small_model(0), small_model(5)
    with ps_shm.torch.Publisher(job, model) as publisher, ps_shm.torch.Subscriber(job, other) as subscriber:
        assert subscriber.update() is None
        assert publisher.publish(3) == 1
        assert subscriber.update(wait=True) == 1 and subscriber.step == 3
        for a, b in zip(model.state_dict().values(), other.state_dict().values()):
            assert torch.equal(a, b)
        assert subscriber.update() is None


def test_a_checkpoint_of_torch_is_given_to_the_job(job, tmp_path):
    model, other = small_model(), small_model(3)
    torch.save(other.state_dict(), tmp_path / "model.pt")
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1) as opt:
        train(model, opt, 3)
        model.load_state_dict(torch.load(tmp_path / "model.pt"))
        opt.assign()
        for name, values in ps_shm.View(job).state().items():
            np.testing.assert_array_equal(values, other.state_dict()[name].numpy())
        saved = opt.state_dict()
        assert saved["param_groups"][0]["lr"] == pytest.approx(0.1)


def train_by_schedule(model, optimizer, scheduler, steps):
    for _ in range(steps):
        train(model, optimizer, 1)
        if scheduler:
            scheduler.step()


@pytest.mark.parametrize("way", ["restore", "load_state_dict"])
@pytest.mark.parametrize("settings, slots, schedule", [
    ({"optimizer": "adam", "lr": 0.01}, {"m", "v"}, None),
    ({"optimizer": "momentum", "lr": 0.1, "mode": "sync", "ema": 0.9}, {"momentum", "ema"}, 4),
    ({"lr": 0.1, "mode": "sync"}, set(), 4),
    ({"optimizer": "rowwise_adagrad", "lr": 0.1, "layout": "inplace"}, {"n of row"}, None)])
def test_a_run_goes_on_from_a_checkpoint_of_torch_with_the_same_bits(job, tmp_path, settings, slots, schedule, way):
    straight, model, other = small_model(), small_model(), small_model(3)

    def scheduler_of(opt, last=-1):
        return torch.optim.lr_scheduler.StepLR(opt, schedule, 0.5, last_epoch=last) if schedule else None

    with ps_shm.torch.Optimizer(straight, job, create=True, **settings) as opt:
        train_by_schedule(straight, opt, scheduler_of(opt), 20)
    with ps_shm.torch.Optimizer(model, job, create=True, **settings) as opt:
        train_by_schedule(model, opt, scheduler_of(opt), 10)
        torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, tmp_path / "kept.pt")
    kept = torch.load(tmp_path / "kept.pt")
    assert set(kept["opt"]["state"].get(0, {})) == slots
    other.load_state_dict(kept["model"])
    given = {"restore": kept["opt"]} if way == "restore" else {}
    with ps_shm.torch.Optimizer(other, job, create=True, **given, **settings) as opt:
        if way == "load_state_dict":
            opt.load_state_dict(kept["opt"])
        assert opt.global_step == 10 and opt.param_groups[0]["lr"] == pytest.approx(settings["lr"] * (0.25 if schedule else 1))
        scheduler = scheduler_of(opt)
        if scheduler:
            # the constructor has set that of the first group
            opt.param_groups[0]["lr"] = kept["opt"]["param_groups"][0]["lr"]
            scheduler.last_epoch = 10
        train_by_schedule(other, opt, scheduler, 10)
    for a, b in zip(straight.state_dict().values(), other.state_dict().values()):
        assert torch.equal(a, b)


def test_moments_are_loaded_by_who_makes_the_job(job):
    model, other = small_model(), small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, workers=2, optimizer="adam", lr=0.01) as opt:
        train(model, opt, 2)
        kept = opt.state_dict()
        with ps_shm.torch.Optimizer(other, job) as second:
            for one in (opt, second):
                with pytest.raises(ps_shm.Error, match="as restore"):
                    one.load_state_dict(kept)
            kept["state"] = {}
            kept["param_groups"][0]["lr"] = 0.5
            second.load_state_dict(kept)
            assert second.param_groups[0]["lr"] == 0.5
    with pytest.raises(ValueError, match="goes with create=True"):
        ps_shm.torch.Optimizer(model, job, restore=kept)
    with pytest.raises(TypeError, match="what state_dict"):
        ps_shm.torch.Optimizer(model, job, create=True, restore=torch.optim.SGD(model.parameters(), lr=0.1).state_dict())
    with pytest.raises(ps_shm.Error, match="by ps_shm.checkpoint"):
        ps_shm.torch.Optimizer(torch.nn.Sequential(ps_shm.torch.Embedding("t", 10, 4), model), job, create=True, restore=kept)


def test_a_model_with_a_table_goes_on_from_a_checkpoint(job, tmp_path):
    def one():
        torch.manual_seed(1)
        return torch.nn.Sequential(ps_shm.torch.Embedding("table", 100, 4), torch.nn.Flatten(), torch.nn.Linear(8, 1))

    def steps(model, opt, count):
        for _ in range(count):
            opt.zero_grad()
            model(torch.tensor([[3, 99], [3, 5]])).pow(2).sum().backward()
            opt.step()

    straight, model, other = one(), one(), one()
    with ps_shm.torch.Optimizer(straight, job, create=True, lr=0.1) as opt:
        steps(straight, opt, 8)
        expected = straight[0].variable.pull()
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1) as opt:
        steps(model, opt, 4)
        folder = ps_shm.checkpoint.save(opt.worker, tmp_path)
    with ps_shm.torch.Optimizer(other, job, create=True, lr=0.1, restore=folder) as opt:
        steps(other, opt, 4)
        np.testing.assert_array_equal(other[0].variable.pull(), expected)


def test_autocast_computes_in_bfloat16_and_pushes_float32(job):
    model = torch.nn.Linear(4, 2)
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1) as opt:
        x, y = batch()
        losses = []
        for _ in range(20):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        assert losses[-1] < 0.8 * losses[0]


def test_ctrl_c_in_a_step_is_made_up_for_by_the_next(job):
    models = [torch.nn.Linear(3, 1, bias=False) for _ in range(2)]
    with ps_shm.Server(job, workers=2, mode="sync", lr=1.0):
        opts = [ps_shm.torch.Optimizer(m, job, rank=r) for r, m in enumerate(models)]
        before = models[0].weight.detach().clone()
        models[0](torch.ones(1, 3)).sum().backward()
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            opts[0].step()
        models[1](3 * torch.ones(1, 3)).sum().backward()
        other = threading.Thread(target=opts[1].step)
        other.start()
        opts[0].zero_grad()  # waits for the other worker
        other.join()
        opts[0].pull()
        torch.testing.assert_close(models[0].weight.detach(), before - 2)
        for opt in opts:
            opt.close()


def test_ctrl_c_just_behind_a_step_is_no_reason_for_another(job, monkeypatch):
    with ps_shm.torch.Optimizer(small_model(), job, create=True) as opt:
        step = opt.worker.step

        def step_and_interrupt():
            step()
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(opt.worker, "step", step_and_interrupt)
            with pytest.raises(KeyboardInterrupt):
                opt.step()
        opt.step()
        assert opt.global_step == 2


def test_a_program_that_closes_nothing_leaves_nothing(job, start):
    text = """
import sys, torch, ps_shm.torch
opt = ps_shm.torch.Optimizer(torch.nn.Linear(20, 5), sys.argv[1], create=True)
opt.step()
"""
    assert start(text, job).finish() == (0, "", "")
    assert not segments(job)


def test_the_maker_of_a_job_is_killed_and_the_others_go_on(job, start):
    text = """
import sys, torch, ps_shm.torch
model = torch.nn.Linear(20, 5)
opt = ps_shm.torch.Optimizer(model, sys.argv[1], create=True, workers=2, lr=0.01)
print("works")
while True:
    opt.zero_grad(); model(torch.ones(1, 20)).pow(2).sum().backward(); opt.step()
"""
    maker = start(text, job)
    assert maker.line() == "works"
    other = start(text, job)
    assert other.line() == "works"
    maker.send(signal.SIGKILL)
    maker.process.wait()
    view = ps_shm.View(job)
    before = view.global_step
    wait_until(lambda: view.global_step > before + 50, "the other one goes on")
    successor = start(text, job)  # takes the job over
    assert successor.line() == "works"
    wait_until(lambda: view.served, "there is a ps again")
    for program in (other, successor):
        program.send(signal.SIGINT)
        assert program.finish()[0] != 0
