"""PyTorch models in jobs: who makes them, joins, leads, leaves and dies."""
import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import ps_shm
import ps_shm.torch
from ps_shm.torch import _membership
from conftest import PATIENCE, read_line, segments, wait_until
from models import small_model, train


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
        monkeypatch.setattr("test_torch_membership.inherited", opt.worker)
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
    with pytest.raises(ps_shm.Error, match="rank") as of_rank:  # of a maker that cannot join its job
        ps_shm.torch.Optimizer(small_model(), job, create=True, rank=99)
    assert not segments(job)
    del of_worker, of_maker, of_rank  # until here their tracebacks keep objects alive


@pytest.mark.parametrize("workers, threads", [(1, 8), (3, 4), (5, 2), (16, 1)])
def test_the_workers_of_a_new_job_share_the_cores(job, monkeypatch, workers, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    with ps_shm.torch.Optimizer(small_model(), job, create=True, workers=workers, threads=0) as opt:
        assert opt.worker.settings["threads"] == threads


def train_beside(job):
    model = small_model()
    with ps_shm.torch.Optimizer(model, job, prefix="child.") as opt:
        train(model, opt, 1)


def test_a_forked_child_joins_the_job_of_its_parent_by_itself(job):
    with ps_shm.torch.Optimizer(small_model(), job, create=True, workers=2, lr=0.1):
        child = multiprocessing.get_context("fork").Process(target=train_beside, args=(job,))
        child.start()
        child.join(PATIENCE)
        assert child.exitcode == 0
        assert [w.state for w in ps_shm.View(job).workers()] == ["alive", "left"]


def test_who_leads_after_another_one_gives_the_factors_of_its_groups(job):
    models = [small_model(), small_model()]
    groups = lambda m: [{"params": m[0].parameters()}, {"params": m[3].parameters()}]
    with ps_shm.Server(job, workers=2, lr=0.1):
        opts = [ps_shm.torch.Optimizer(m, job, rank=r, params=groups(m)) for r, m in enumerate(models)]
        factor = lambda: opts[1].worker.variable("3.weight").lr_scale
        opts[0].param_groups[1]["lr"] = 0.05
        train(models[0], opts[0], 1)
        assert factor() == 0.5
        opts[1].param_groups[1]["lr"] = 0.2  # not yet: another one leads
        train(models[1], opts[1], 1)
        assert factor() == 0.5
        opts[0].close()
        wait_until(lambda: train(models[1], opts[1], 1) and factor() == 2, "the second worker gives its factors")
        joined = small_model()
        with ps_shm.torch.Optimizer(joined, job, rank=0, params=groups(joined)) as again:
            assert [group["lr"] for group in again.param_groups] == pytest.approx([0.1, 0.2])
            train(joined, again, 1)  # its groups ask for what is in force
            assert factor() == 2
        opts[1].close()


def test_who_leads_after_another_one_takes_back_what_its_groups_do_not_ask_for(job):
    models = [small_model(), small_model()]
    groups = lambda m: [{"params": m[0].parameters()}, {"params": m[3].parameters()}]
    with ps_shm.Server(job, workers=2, lr=0.1):
        opts = [ps_shm.torch.Optimizer(m, job, rank=r, params=groups(m)) for r, m in enumerate(models)]
        worker = opts[1].worker
        rates = lambda: [float(worker.live["lr"]) * worker.variable(name).lr_scale for name in ("0.weight", "3.weight")]
        opts[0].param_groups[1]["lr"] = 0.05
        train(models[0], opts[0], 1)
        assert rates() == pytest.approx([0.1, 0.05])
        opts[0].close()
        opts[1].param_groups[0]["lr"] = 0.2  # the second group's has been 0.1 for this process
        wait_until(lambda: train(models[1], opts[1], 1) and rates()[0] > 0.15, "the second worker gives its rates")
        assert rates() == pytest.approx([0.2, 0.1])
        opts[1].close()


def test_a_process_that_only_joins_leaves_the_rate_and_the_decay_as_they_are(job):
    model = small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1, weight_decay=0.5) as opt:
        opt.param_groups[0]["weight_decay"] = 0.25
        train(model, opt, 1)
        kept = opt.state_dict()
    with ps_shm.Server(job, lr=0.1, l2=0.5) as server:
        server.set(lr=0.001)
        with ps_shm.torch.Optimizer(model, job, create=True, rank=0, restore=kept) as opt:
            train(model, opt, 1)
            assert opt.param_groups[0]["lr"] == pytest.approx(0.001) and opt.worker.live["lr"] == pytest.approx(0.001)
            assert opt.param_groups[0]["weight_decay"] == 0.5 and opt.worker.variable("0.weight").regularize == 1


def test_ctrl_c_in_a_step_is_made_up_for_by_the_next(job):
    models = [torch.nn.Linear(3, 1, bias=False) for _ in range(2)]
    with ps_shm.Server(job, workers=2, mode="sync", lr=1.0):
        opts = [ps_shm.torch.Optimizer(m, job, rank=r) for r, m in enumerate(models)]
        before = models[0].weight.detach().clone()
        models[0](torch.ones(1, 3)).sum().backward()

        def interrupt_the_wait():
            view = ps_shm.View(job)
            wait_until(lambda: any(one.waiting_for for one in view.workers()), "it waits")
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt_the_wait).start()
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
    assert start(text, job).finish_quietly() == (0, "", "")
    assert not segments(job)


MAIN = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # before there are other threads
import torch, ps_shm.torch
def main():
    opt = ps_shm.torch.Optimizer(torch.nn.Linear(4, 2), sys.argv[1], create=True, workers=2, lr=0.01)
    opt.worker.wait_for_workers()
    print("works", flush=True)
    for _ in range(int(sys.argv[2])):
        opt.step()
    if sys.argv[2] != "1":
        signal.sigwait({signal.SIGUSR1})
        opt.step()
main()
print("done", flush=True)
"""


def test_a_maker_whose_main_returns_without_close_waits_for_the_others(job, start):
    maker = start(MAIN, job, "1")
    wait_until(lambda: segments(job), "the job")
    other = start(MAIN, job, "3")
    assert [maker.line(), maker.line()] == ["works", "done"] and other.line() == "works"
    wait_until(lambda: len([w for w in ps_shm.View(job).workers() if w.state == "alive"]) == 1, "the maker's worker to leave")
    assert maker.process.poll() is None and ps_shm.View(job).served
    other.send(signal.SIGUSR1)
    assert other.finish()[:2] == (0, "done\n")
    assert maker.finish()[0] == 0
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


def test_two_models_of_a_process_are_two_sets_of_variables(job):
    generator, discriminator = small_model(0), small_model(1)
    for mode in ("async", "sync"):
        a = ps_shm.torch.Optimizer(generator, job, create=True, prefix="g.", lr=0.1, mode=mode)
        b = ps_shm.torch.Optimizer(discriminator, job, create=True, prefix="d.", lr=0.1, mode=mode)
        train(generator, a, 2), train(discriminator, b, 3)
        assert not torch.equal(generator[0].weight, discriminator[0].weight)
        state = ps_shm.View(job).state()
        assert len(state) == len(generator.state_dict()) + len(discriminator.state_dict())
        np.testing.assert_array_equal(state["g.0.weight"], generator[0].weight.detach().numpy())
        np.testing.assert_array_equal(state["d.0.weight"], discriminator[0].weight.detach().numpy())
        a.close()  # the job goes on for the other one
        train(discriminator, b, 1)
        assert b.global_step == 6
        b.close()
        assert not segments(job)


def heads():
    """An encoder, and two models that contain it."""
    encoder = torch.nn.Linear(2, 2, bias=False)
    return encoder, torch.nn.Sequential(encoder, torch.nn.Linear(2, 1)), torch.nn.Sequential(encoder, torch.nn.Linear(2, 3))


# It was two variables, and each step() put the parameter back to what its own variable had.
def test_a_parameter_of_two_objects_is_refused(job):
    encoder, first, second = heads()
    make = ps_shm.torch.Optimizer
    says = f"'0.weight' is trained by another.*'a.0.weight' of job '{job}'"
    with make(first, job, create=True, prefix="a.", lr=0.1) as a:
        with pytest.raises(ps_shm.Error, match=says):
            make(second, job, create=True, prefix="b.", lr=0.1)
        with pytest.raises(ps_shm.Error, match=says):
            make(second, f"{job}-other", create=True, lr=0.1)
        with pytest.raises(ps_shm.Error, match=says):
            ps_shm.torch.Elastic(second, job, alpha=0.5, prefix="c.")
        before = encoder.weight.detach().clone()
        with make(second, job, prefix="b.", lr=0.1, params=second[1].parameters()) as b:
            for model, opt in ((first, a), (second, b)):
                opt.zero_grad()
                encoder.weight.grad = torch.ones(2, 2)
                opt.step()
        torch.testing.assert_close(encoder.weight.detach(), before - 0.1)
    make(second, job, create=True, lr=0.1).close()  # the other one has left


def test_an_elastic_keeps_its_parameters_from_others(job):
    _, first, second = heads()
    with ps_shm.torch.Elastic(first, job, alpha=0.5, create=True):
        with pytest.raises(ps_shm.Error, match="'0.weight' is trained by another"):
            ps_shm.torch.Optimizer(second, job, prefix="b.")


def test_a_frozen_parameter_of_two_objects_is_refused_when_both_train_it(job):
    encoder, first, second = heads()
    encoder.requires_grad_(False)
    with ps_shm.torch.Optimizer(first, job, create=True, prefix="a.", lr=0.1) as a:
        with ps_shm.torch.Optimizer(second, job, prefix="b.", lr=0.1) as b:
            a.step(), b.step()
            encoder.requires_grad_(True)
            a.step()
            with pytest.raises(ps_shm.Error, match="'0.weight' is trained by another"):
                b.step()


def test_a_forgotten_object_keeps_no_parameter(job):
    _, first, second = heads()
    opt = ps_shm.torch.Optimizer(first, job, create=True, prefix="a.", lr=0.1)
    opt.itself = opt  # as in a cycle that a scheduler makes
    with ps_shm.Worker(job):  # so that the job goes on
        del opt
        with ps_shm.torch.Optimizer(second, job, prefix="b.", lr=0.1) as again:
            again.step()
    ps_shm.torch.Optimizer(first, job, create=True, prefix="a.").close()  # ends what the forgotten one serves


def test_a_forked_child_has_its_parents_model_for_itself(job):
    def run():
        with ps_shm.torch.Optimizer(model, job, prefix="b.") as opt:
            train(model, opt, 1)

    model = small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, prefix="a.", workers=2, lr=0.1):
        child = multiprocessing.get_context("fork").Process(target=run)
        child.start()
        child.join(PATIENCE)
        assert child.exitcode == 0


def test_ranks_of_a_process_may_train_one_model_as_the_same_variables(job):
    model = small_model()
    with ps_shm.Server(job, workers=2, optimizer="sgd", lr=0.1):
        with ps_shm.torch.Optimizer(model, job, rank=0) as a, ps_shm.torch.Optimizer(model, job, rank=1) as b:
            for opt in (a, b):
                train(model, opt, 1)
            assert a.global_step == 2


@pytest.mark.parametrize("ends", ["with nothing", "in a step"])
def test_a_cell_that_runs_again_makes_the_job_again(job, ends):
    def run_cell():
        model = small_model()
        opt = ps_shm.torch.Optimizer(model, job, create=True, lr=0.1, mode="sync", workers=1)
        train(model, opt, 3)
        if ends == "in a step":
            with pytest.raises(ZeroDivisionError):
                opt.step(lambda: 1 / 0)
        return model, opt

    first, opt = run_cell()
    again, second = run_cell()
    assert second.global_step == 3
    for a, b in zip(first.state_dict().values(), again.state_dict().values()):
        assert torch.equal(a, b)
    with pytest.raises(ps_shm.JobFinished, match="made again .*prefix="):
        opt.step()
    opt.close()
    train(again, second, 1)
    third = run_cell()[1]
    third.close()
    second.close()


@pytest.mark.parametrize("goes_first", [0, 1])
def test_the_worker_of_forgotten_objects_leaves_with_the_last_one(job, goes_first):
    def states():
        gc.collect()
        return [w.state for w in ps_shm.View(job).workers()]

    opts = [ps_shm.torch.Optimizer(torch.nn.Linear(2, 1), job, create=True, workers=1, prefix=f"{k}.") for k in range(2)]
    del opts[goes_first]
    assert states() == ["alive"]
    opts[0].step()
    del opts[0]
    assert states() == ["left"]
    with ps_shm.torch.Optimizer(torch.nn.Linear(2, 1), job, create=True, prefix="another.") as opt:
        opt.step()
        assert opt.worker.rank == 0 and opt.global_step == 1


def test_an_object_with_another_prefix_joins_where_one_was_forgotten_and_others_go_on(job):
    opt = ps_shm.torch.Optimizer(torch.nn.Linear(2, 1), job, create=True, workers=1, prefix="a.")
    with ps_shm.Worker(job):
        del opt
        gc.collect()
        with ps_shm.torch.Optimizer(torch.nn.Linear(2, 1), job, create=True, prefix="b.") as opt:
            opt.step()
            assert opt.worker.rank == 2 and ps_shm.View(job).state().keys() == {f"{m}.{n}" for m in "ab" for n in ("weight", "bias")}
    ps_shm.torch.Optimizer(torch.nn.Linear(2, 1), job, create=True, prefix="a.").close()  # ends what the forgotten one serves


def test_objects_may_be_made_while_another_thread_looks_for_them(job):
    class Busy(_membership.Membership):
        def __init__(self):
            self.others = []

        @property
        def job(self):
            self.others.append(Busy())
            _membership._open[id(self.others[-1])] = self.others[-1]
            return None

    busy = Busy()
    try:
        _membership._open[id(busy)] = busy
        assert _membership._here(job) == []
    finally:
        for one in (busy, *busy.others):
            del _membership._open[id(one)]


def test_a_maker_does_not_wait_for_workers_of_its_own_process(job):
    model, other = small_model(0), small_model(1)
    maker = ps_shm.torch.Optimizer(model, job, create=True, workers=2, lr=0.1)
    second = ps_shm.torch.Optimizer(other, job, lr=0.1)
    loose = ps_shm.Worker(job)
    maker.close()
    train(other, second, 1)
    second.close()
    loose.leave()


def test_a_step_in_a_job_that_has_ended_says_so(job):
    model = small_model()
    server = ps_shm.Server(job, lr=0.1)
    opt = ps_shm.torch.Optimizer(model, job)
    elastic = ps_shm.torch.Elastic(small_model(), job, alpha=0.5, prefix="e.")
    train(model, opt, 1)
    server.close()
    for one in (opt, elastic):
        with pytest.raises(ps_shm.JobFinished, match="has ended"):
            one.step()
        one.close()


def test_steps_behind_the_last_one_are_no_error(job):
    model = small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, steps=2, lr=0.1) as opt:
        train(model, opt, 3)
        assert opt.finished


FOREVER = """
import sys, torch, ps_shm, ps_shm.torch
model = torch.nn.Linear(4, 2)
opt = ps_shm.torch.Optimizer(model, sys.argv[1], create=True, workers=2, lr=0.01)
print("works")
try:
    while True:
        opt.zero_grad(); model(torch.ones(1, 4)).pow(2).sum().backward(); opt.step()
except ps_shm.JobFinished:
    print("ended")
opt.close()
"""


def maker_and_other(job, start, end):
    """Two workers of a job. The one that has made it goes on with `end`, the other one trains until the job ends."""
    maker = start("""
import logging, sys, torch, ps_shm.torch
opt = ps_shm.torch.Optimizer(torch.nn.Linear(4, 2), sys.argv[1], create=True, workers=2, lr=0.01)
print("works")
opt.worker.wait_for_workers()
""" + end, job)
    assert maker.line() == "works"
    other = start(FOREVER, job)
    assert other.line() == "works"
    return maker, other


def wait_for_text(program, text):
    while text not in (line := read_line(program.process.stderr)):
        assert line


# As in two containers that share /dev/shm: the maker and the other one have the same number.
def test_a_maker_waits_for_a_process_of_another_pid_namespace(job, start):
    text = """
import sys, torch, ps_shm.torch
model = torch.nn.Linear(2, 1)
with ps_shm.torch.Optimizer(model, sys.argv[1], create=True, lr=0.1) as opt:
    print("joined", flush=True)
    sys.stdin.readline()
    for _ in range(int(sys.argv[2])):
        opt.step()
    print("done", opt.worker.ended, flush=True)
"""
    unshare = ["unshare", *([] if os.geteuid() == 0 else ["-r"]), "-p", "-f", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        pytest.skip("PID namespaces cannot be made here")
    made = []
    try:
        for steps in (3, 30):
            made.append(subprocess.Popen([*unshare, sys.executable, "-u", "-c", text, job, str(steps)], text=True,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
            assert read_line(made[-1].stdout).strip() == "joined"
        first, second = made
        first.stdin.write("\n")
        first.stdin.flush()
        assert read_line(first.stdout).strip() == "done False"
        assert any("waiting for the other workers" in line for line in iter(lambda: read_line(first.stderr), ""))
        second.stdin.write("\n")
        second.stdin.flush()
        assert read_line(second.stdout).strip() == "done False"
        assert [process.wait(PATIENCE) for process in made] == [0, 0]
    finally:
        for process in made:
            process.kill()
            process.communicate()


def test_an_error_of_the_maker_is_seen_before_it_waits_for_the_others(job, start):
    maker, other = maker_and_other(job, start, """
with opt:
    raise ValueError("what has failed")
""")
    wait_for_text(maker, "ValueError: what has failed")
    assert ps_shm.View(job).served  # while the maker waits
    maker.send()
    maker.finish()
    assert other.finish()[:2] == (0, "ended\n")
    assert not segments(job)


def test_ctrl_c_while_the_maker_waits_for_the_others_ends_the_job(job, start):
    maker, other = maker_and_other(job, start, "opt.close()")
    wait_for_text(maker, "waiting for the other workers")
    maker.send()
    assert "KeyboardInterrupt" in maker.finish()[2]
    assert other.finish()[:2] == (0, "ended\n")
    assert not segments(job)


def test_ctrl_c_while_an_error_of_the_maker_is_reported_ends_the_job(job, start):
    maker, other = maker_and_other(job, start, """
class Interrupted(logging.Handler):
    def emit(self, record):
        if record.levelno == logging.ERROR:  # the report, and no progress of a wait
            raise KeyboardInterrupt
logging.getLogger("ps_shm").addHandler(Interrupted())
with opt:
    raise ValueError("what has failed")
""")
    assert "KeyboardInterrupt" in maker.finish()[2]
    assert other.finish()[:2] == (0, "ended\n")
    assert not segments(job)


def test_a_daemon_thread_in_a_step_does_not_hold_up_the_end_of_a_program(job, start):
    text = """
import sys, threading, torch, ps_shm, ps_shm.torch
model = torch.nn.Linear(4, 2)
opt = ps_shm.torch.Optimizer(model, sys.argv[1], create=True, mode="sync", workers=2)
threading.Thread(target=opt.step, daemon=True).start()
view = ps_shm.View(sys.argv[1])
while not view.workers()[0].waiting_for: pass
"""
    assert start(text, job).finish_quietly() == (0, "", "")
    assert not segments(job)


def test_the_lowest_living_rank_sets_the_rate_and_the_buffers(job):
    models = [torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)) for _ in range(2)]
    with ps_shm.Server(job, workers=2, lr=1.0):
        first, second = (ps_shm.torch.Optimizer(m, job, rank=r) for r, m in enumerate(models))

        def step(model, opt, lr):
            opt.param_groups[0]["lr"] = lr
            opt.zero_grad()
            model(torch.randn(4, 2)).sum().backward()
            opt.step()

        step(models[1], second, 0.5)
        assert second.worker.live["lr"] == 1
        step(models[0], first, 0.25)
        assert second.worker.live["lr"] == 0.25
        first.close()

        def is_set():
            step(models[1], second, 0.125)
            return second.worker.live["lr"] == 0.125

        wait_until(is_set, "the second worker sets the rate")
        before = models[1][1].num_batches_tracked.item()
        step(models[1], second, 0.125)
        assert models[1][1].num_batches_tracked.item() == before + 1
        second.close()
