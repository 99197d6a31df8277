"""Jobs from their start to their end, whatever happens to their processes."""
import contextlib
import gc
import math
import multiprocessing
import os
import pathlib
import pickle
import resource
import shutil
import signal
import threading
import time
import warnings

import numpy as np
import pytest

import ps_shm
from ps_shm import checkpoint
from closings import Closings
from conftest import PATIENCE, segments, wait_until


def test_an_error_has_a_code_of_what_kind_of_failure_it_is(job):
    codes = ps_shm.ErrorCode
    with ps_shm.Server(job, workers=1, max_workers=1):
        with pytest.raises(ps_shm.Error) as caught:
            ps_shm.Server(job)
        assert caught.value.code is codes.ALREADY_EXISTS
        with ps_shm.Worker(job, rank=0) as worker:
            for call, code in ((lambda: ps_shm.Worker(job, rank=0), codes.RANK_TAKEN),
                               (lambda: ps_shm.Worker(job), codes.EXHAUSTED),
                               (lambda: worker.variable("v", wait=0.001), codes.NOT_FOUND)):
                with pytest.raises(ps_shm.Error) as caught:
                    call()
                assert caught.value.code is code
    with pytest.raises(ps_shm.Timeout) as caught:
        ps_shm.Worker(job + "-none", wait=0.001)
    assert caught.value.code is codes.TIMED_OUT and isinstance(caught.value, TimeoutError)
    assert ps_shm.JobFinished("raised by a program").code is codes.JOB_FINISHED
    assert pickle.loads(pickle.dumps(caught.value)).code is codes.TIMED_OUT


def test_every_wait_that_is_over_raises_timeout(job):
    with ps_shm.Server(job, workers=2, mode="ssp", staleness=1, step_timeout=0.02):
        with ps_shm.Worker(job) as worker, ps_shm.Worker(job):
            with pytest.raises(ps_shm.Timeout, match="step-timeout"):
                for _ in range(3):
                    worker.step()
            with pytest.raises(TimeoutError, match="rank 1"):
                worker.barrier()
            with ps_shm.View(job).snapshot(), pytest.raises(ps_shm.Timeout, match="one snapshot at a time"):
                ps_shm.View(job).snapshot(wait=0.02)


def test_workers_of_several_processes_lose_no_push(job, start):
    count = 3000
    text = """
import sys, numpy as np, ps_shm
with ps_shm.Worker() as worker:
    v = worker.variable("v", np.zeros(1000, np.float32))
    worker.wait_for_workers()
    one = np.ones(1000, np.float32)
    for _ in range(int(sys.argv[1])):
        v.push(one)
        worker.step()
"""
    with ps_shm.Server(job, workers=2, optimizer="add") as server:
        server.keep_segments()
        programs = [start(text, count) for _ in range(2)]  # the job comes from PS_SHM_JOB
        for program in programs:
            assert program.finish_quietly() == (0, "", "")
        assert server.wait(PATIENCE)
        view = ps_shm.View(job)
        assert set(view.values("v")) == {2.0 * count}
        assert [w.steps for w in view.workers()] == [count, count] and {w.state for w in view.workers()} == {"left"}
    for segment in segments(job):
        os.unlink(f"/dev/shm/{segment}")


def test_ranks_come_from_the_launcher(job, monkeypatch):
    with ps_shm.Server(job, workers=16):
        for name in ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_RANK", "SLURM_LOCALID"):
            with monkeypatch.context() as patch:
                patch.setenv(name, "5")
                with ps_shm.Worker() as worker:
                    assert worker.rank == 5
                with ps_shm.Worker(rank="any") as worker:
                    assert worker.rank != 5
                with ps_shm.Worker(rank=2) as worker:
                    assert worker.rank == 2
        with monkeypatch.context() as patch:
            patch.setenv("LOCAL_RANK", "-1")  # PyTorch's: a process without a rank
            patch.setenv("RANK", "7")
            with ps_shm.Worker() as worker:
                assert worker.rank == 7
        monkeypatch.setenv("RANK", "two")
        with pytest.raises(ValueError, match="RANK: 'two' is not an integer"):
            ps_shm.Worker()


def test_a_rank_among_all_machines_is_not_one_of_this_machine(job, monkeypatch):
    def rank_with(**variables):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            with ps_shm.Worker() as worker:
                return worker.rank

    with ps_shm.Server(job, workers=4), ps_shm.Worker(rank=0):  # the job lasts as long as this worker
        third_machine = {"RANK": "9", "WORLD_SIZE": "12", "LOCAL_WORLD_SIZE": "4"}
        assert rank_with(**third_machine, LOCAL_RANK="1") == 1
        assert rank_with(**third_machine) != 9
        assert rank_with(PMI_RANK="9", SLURM_NNODES="3") != 9
        assert rank_with(PMI_RANK="2", SLURM_NNODES="3", SLURM_STEP_NUM_NODES="1") == 2
        assert rank_with(LOCAL_RANK="-1", RANK="3") == 3
        assert rank_with(LOCAL_RANK="-1") != 3


def test_the_number_of_workers_is_that_of_this_machine(job, monkeypatch):
    for variables, workers in (
        ({"WORLD_SIZE": "3"}, 3),
        ({"WORLD_SIZE": "12", "LOCAL_WORLD_SIZE": "4"}, 4),
        ({"SLURM_NTASKS": "12", "SLURM_NNODES": "3"}, 1),
        ({"SLURM_NTASKS": "12", "SLURM_NNODES": "1"}, 12),
    ):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            with ps_shm.Server(job), ps_shm.Worker(rank="any") as worker:
                assert worker.settings["workers"] == workers, variables


def test_an_error_about_a_rank_names_the_variable_of_the_launcher(job, monkeypatch):
    with ps_shm.Server(job, workers=2), ps_shm.Worker(rank=0):
        monkeypatch.setenv("SLURM_LOCALID", "0")
        taken = f"SLURM_LOCALID=0 asks for rank 0 of job '{job}', which is taken by process {os.getpid()};"
        with pytest.raises(ps_shm.Error, match=taken) as caught:
            ps_shm.Worker()
        assert caught.value.code == ps_shm.ErrorCode.RANK_TAKEN
        monkeypatch.setenv("LOCAL_RANK", "99")
        with pytest.raises(ps_shm.Error, match="LOCAL_RANK=99 asks for rank 99, which is out of range"):
            ps_shm.Worker()
        with pytest.raises(ps_shm.Error, match=f"^rank 0 of job '{job}' is taken"):
            ps_shm.Worker(rank=0)


def test_a_server_needs_no_name_of_its_user(monkeypatch):
    def nobody(_):
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("pwd.getpwuid", nobody)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    with ps_shm.Server() as server:
        assert server.job.startswith(f"job-{os.getpid()}")


def test_who_finds_no_job_is_told_how_to_make_one(job):
    with pytest.raises(ps_shm.Timeout) as caught:
        ps_shm.Worker(job, wait=0.05)
    assert isinstance(caught.value, TimeoutError)
    for way in ("launch_shm --workers 4 -- python", "ps_shm.Server", "create=True"):
        assert way in str(caught.value)
    with pytest.raises(ps_shm.Error, match="PS_SHM_JOB"):
        ps_shm.Worker()


def test_settings_are_those_of_the_command_line(job):
    with ps_shm.Server(job, workers=1, mode="ssp", staleness=3, optimizer="Adam", lr=0.25, step_timeout=2,
                       place={"w": 0}) as server:
        with ps_shm.Worker(job) as worker:
            said = worker.settings
            assert (said["mode"], said["staleness"], said["optimizer"], said["place"]) == ("ssp", 3, "adam", {"w": 0})
            server.set(lr=0.5, mode="async")
            assert (worker.live["lr"], worker.live["mode"]) == (0.5, "async")
            with pytest.raises(TypeError, match="no setting 'stalenes'.*staleness"):
                server.set(stalenes=1)
            with pytest.raises(ps_shm.Error, match="must be at least 0"):
                server.set(lr=-1)
    with pytest.raises(ps_shm.Error, match="mode"):
        ps_shm.Server(job, mode="sometimes")


def test_a_job_is_adopted_with_its_own_settings(job, start, tmp_path, monkeypatch):
    with ps_shm.Server(job), ps_shm.Worker(job) as worker:
        worker.variable("w", np.zeros(3, np.float32))
        worker.step()
        kept = checkpoint.save(worker, tmp_path)
    program = start(f"""
import signal, ps_shm
server = ps_shm.Server({job!r}, restore={str(kept)!r}, workers=3, mode="ssp", staleness=2, optimizer="adam", lr=0.25, seed=7)
server.set(lr=0.5)
print("serves")
signal.pause()
""")
    assert program.line() == "serves"
    program.send(signal.SIGKILL)
    program.finish()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ps_shm.Error, match="workers 3, not 2"):
        ps_shm.Server(job, adopt=True, workers=2)
    shutil.rmtree(kept)
    with ps_shm.Server(job, adopt=True, mode="ssp"):
        view = ps_shm.View(job)
        said = view.settings
        names = ("workers", "mode", "staleness", "optimizer", "lr", "seed")
        assert [said[name] for name in names] == [3, "ssp", 2, "adam", 0.25, 7]
        assert view.live["lr"] == 0.5
    with pytest.raises(ps_shm.Error) as caught:
        ps_shm.Server(job, adopt=True)  # there is none any more
    assert caught.value.code == ps_shm.ErrorCode.NOT_FOUND


def test_a_step_that_is_too_stale_is_dropped_and_the_limit_can_be_changed(job):
    with ps_shm.Server(job, workers=2, stale_limit=2) as server, ps_shm.Worker(job) as slow, ps_shm.Worker(job) as quick:
        w = slow.variable("w", np.zeros(2, np.float32), rule="add")
        v = quick.variable("w", np.zeros(2, np.float32), rule="add")

        def late_step():
            w.pull()
            for _ in range(2):
                v.push(np.ones(2, np.float32))
                quick.step()
            w.push(np.ones(2, np.float32))
            return slow.step()

        assert late_step() == 2 and w.pull().tolist() == [2, 2]
        assert [worker.dropped for worker in ps_shm.View(job).workers()] == [1, 0]
        assert (slow.dropped_steps, quick.dropped_steps) == (1, 0)
        server.set(stale_limit=0)
        assert late_step() == 4  # a change takes effect with the next step
        assert late_step() == 7 and slow.live["stale_limit"] == 0
        with pytest.raises(ps_shm.Error, match="is not an integer"):
            server.set(stale_limit="scale")


def test_after_the_last_step_the_job_is_finished(job):
    with ps_shm.Server(job, steps=2, linger=30):
        with ps_shm.Worker() as worker:
            assert not worker.finished
            worker.step(), worker.step()
            assert worker.finished and worker.global_step == 2
            with pytest.raises(ps_shm.JobFinished, match="finished at step 2"):
                ps_shm.Worker()


def test_sync_steps_wait_for_all_and_apply_the_mean(job):
    results = []

    def work(rank):
        with ps_shm.Worker(job, rank=rank) as worker:
            v = worker.variable("v", np.zeros(4, np.float32))
            for _ in range(10):
                v.push(np.full(4, 1.0 + rank, np.float32))
                worker.step()
            results.append(v.pull().tolist())

    with ps_shm.Server(job, workers=2, mode="sync", lr=1.0):
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
        [t.start() for t in threads], [t.join() for t in threads]
    assert results == [[-15.0] * 4] * 2


def test_threads_take_turns_at_one_worker(worker):
    v = worker.variable("v", np.zeros(2000, np.float32))

    def work():
        for _ in range(500):
            v.push(np.ones(2000, np.float32))

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert set(v.pull()) == {2000.0}


def test_threads_use_everything_at_once(job):
    """Each object has its own lock, which matters in a Python without the global interpreter lock."""
    count, errors = 300, []

    def each(work):
        try:
            for i in range(count):
                work(i)
        except BaseException as error:
            errors.append(error)

    with ps_shm.Server(job, optimizer="add") as server, ps_shm.Worker(job) as worker:
        view = ps_shm.View(job)
        bundle = worker.variables({name: np.zeros(500, np.float32) for name in "abc"})
        arrays = {name: np.ones(500, np.float32) for name in "abc"}
        out = bundle.pull()
        table = worker.variable("t", shape=(100, 4), layout="inplace", rule="add")
        ids, ones = np.arange(50), np.ones((50, 4), np.float32)
        works = [lambda i: bundle.push(arrays), lambda i: bundle.push(arrays), lambda i: bundle.pull(out),
                 lambda i: table.push_rows(ids, ones), lambda i: table.pull_rows(ids), lambda i: worker.step(),
                 lambda i: worker.report(1.0, i), lambda i: (worker.global_step, worker.finished, worker.live),
                 lambda i: view.state() if i % 20 == 0 else view.workers(), lambda i: (view.variables(), view.global_step),
                 lambda i: (server.global_step, server.ended), lambda i: bundle.gradients(),
                 lambda i: worker.variable(f"v{i % 7}", np.zeros(3, np.float32)).pull()]
        threads = [threading.Thread(target=each, args=(work,)) for work in works]
        [t.start() for t in threads], [t.join() for t in threads]
        assert not errors
        assert all(set(values) == {2.0 * count} for values in bundle.pull().values())
        assert table.pull()[:50].tolist() == [[count] * 4] * 50 and worker.steps == count


class Ticker:
    """A thread that wakes up each 0.1 ms, and so tells how long it could not."""

    def __enter__(self):
        self.ticks, self._end = [], threading.Event()
        self._thread = threading.Thread(target=self._tick)
        self._thread.start()
        return self

    def _tick(self):
        while not self._end.wait(0.0001):
            self.ticks.append(time.monotonic())

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()

    def longest_part(self, call):
        """The longest pause of the thread within a call, as a part of the time of the call."""
        self.ticks.clear()
        begin = time.monotonic()
        call()
        end = time.monotonic()
        ticks = [begin, *(t for t in self.ticks if begin < t < end), end]
        return max(b - a for a, b in zip(ticks, ticks[1:])) / (end - begin)


def test_other_threads_run_during_calls_that_take_long(job, tmp_path):
    """On a machine that is busy a call may look as if it had stopped the others, but not each time."""
    keys, rows = np.arange(200_000), np.ones((200_000, 16), np.float32)
    values = np.ones(8_000_000, np.float32)
    ids, some_rows = np.arange(0, 8_000, 2), np.ones((4_000, 1_000), np.float32)
    with contextlib.ExitStack() as closing:
        closing.enter_context(ps_shm.Server(job, optimizer="adam"))
        worker = closing.enter_context(ps_shm.Worker(job))
        v = worker.variable("v", values)
        bundle = worker.variables({"b": values})
        wide = worker.variable("r", shape=(8_000, 1_000), layout="inplace", rule="add")
        table = worker.table("items", 16, 200_000, rule="adam", ttl=3600.0)
        table.push(keys, rows)
        view = ps_shm.View(job)
        saved = checkpoint.load(checkpoint.save(job, tmp_path / "first"))
        exported = table.export(state=True)
        publisher = closing.enter_context(ps_shm.Publisher(f"{job}-p", {"w": values}, records=3))
        folder = closing.enter_context(ps_shm.FolderPublisher(tmp_path / "folder", {"w": values}))
        publisher.publish({"w": values})
        generation = closing.enter_context(ps_shm.Subscriber(f"{job}-p")).read()

        def restored():
            with ps_shm.Server(f"{job}-r", restore=saved.folder), ps_shm.Worker(f"{job}-r") as other:
                other.variable("v", values)

        calls = {
            "push": lambda: v.push(values),
            "pull": lambda: v.pull(),
            "pull to an array": lambda: v.pull(values),
            "assign": lambda: v.assign(values),
            "push of a bundle": lambda: bundle.push({"b": values}),
            "pull of a bundle": lambda: bundle.pull(),
            "push_rows": lambda: wide.push_rows(ids, some_rows),
            "pull_rows": lambda: wide.pull_rows(ids),
            "push of keys": lambda: table.push(keys, rows),
            "pull of keys": lambda: table.pull(keys),
            "contains": lambda: table.contains(keys),
            "expire": lambda: table.expire(),
            "assign of keys": lambda: table.assign(keys, rows),
            "assign with state": lambda: table.assign(exported.keys, exported.rows, exported.state),
            "export": lambda: table.export(),
            "export with state": lambda: table.export(state=True),
            "evict": lambda: table.evict(keys),
            "the view's state": lambda: view.state(),
            "save": lambda: (worker.step(), checkpoint.save(job, tmp_path / "more")),
            "verify": lambda: saved.verify(),
            "the checkpoint's state": lambda: saved.state(),
            "read_table": lambda: saved.read_table("items"),
            "restore": restored,
            "publish": lambda: publisher.publish({"w": values}),
            "publish to a folder": lambda: folder.publish({"w": values}),
            "copy of a generation": lambda: generation.copy_to({"w": values}),
        }
        with Ticker() as ticker:
            for name, call in calls.items():
                until = time.monotonic() + PATIENCE
                while ticker.longest_part(call) >= 0.5:
                    assert time.monotonic() < until, name


def test_other_threads_go_on_while_one_waits(job):
    with ps_shm.Server(job, workers=2, mode="sync"):
        worker = ps_shm.Worker(job)
        v = worker.variable("v", np.zeros(4, np.float32))
        v.push(np.ones(4, np.float32))
        done = threading.Event()
        waiter = threading.Thread(target=lambda: (worker.step(), done.set()))
        waiter.start()
        view = ps_shm.View(job)
        wait_until(lambda: view.workers()[0].waiting_for, "it waits")
        assert sum(range(10000)) > 0 and not done.is_set()  # would not be reached if the other thread held the lock
        with ps_shm.Worker(job) as other:
            other.variable("v").push(np.ones(4, np.float32))
            other.step()
        waiter.join()
        worker.leave()


INTERRUPTED = """
import sys, time, numpy as np, ps_shm
worker = ps_shm.Worker(sys.argv[1])
v = worker.variable("v", np.zeros(4, np.float32))
v.push(np.ones(4, np.float32))
print("waits")
try:
    worker.step()
except KeyboardInterrupt:
    print(time.monotonic())
print(worker.step())
worker.leave()
"""


def interrupt_a_wait(job, start):
    """A program whose wait was interrupted, the time when the signal was sent, and the time when it noticed."""
    program = start(INTERRUPTED, job)
    assert program.line() == "waits"
    view = ps_shm.View(job)
    wait_until(lambda: view.workers() and view.workers()[0].waiting_for, "it waits")
    sent = time.monotonic()
    program.send(signal.SIGINT)
    return program, sent, float(program.line())


@pytest.mark.timing
def test_ctrl_c_ends_a_wait_sooner_than_a_program_starts(job, start):
    with ps_shm.Server(job, workers=2, mode="sync", lr=1.0):
        began = time.monotonic()
        start("import numpy, ps_shm; print('started')").line()
        took = time.monotonic() - began
        program, sent, noticed = interrupt_a_wait(job, start)
        assert noticed - sent < took
        program.send(signal.SIGKILL)


def test_ctrl_c_ends_a_wait_and_the_job_goes_on(job, start):
    with ps_shm.Server(job, workers=2, mode="sync", lr=1.0):
        program, _, _ = interrupt_a_wait(job, start)
        with ps_shm.Worker(job) as other:
            v = other.variable("v")
            v.push(np.ones(4, np.float32))
            assert other.step() == 1
            assert v.pull().tolist() == [-1] * 4
        code, out, err = program.finish()
        assert (code, out.strip()) == (0, "1"), err


@pytest.mark.parametrize("what, segment", [("Worker", "ps_shm"), ("Subscriber", "ps_shm_publication")])
def test_the_lock_of_a_killed_program_is_free_before_what_it_has_opened_later(job, start, tmp_path, what, segment):
    text = f"""
import os, signal, sys, ps_shm
member = ps_shm.{what}(sys.argv[1])
other = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
print(other)
signal.pause()
"""
    control, other = f"/dev/shm/{segment}.{job}", str(tmp_path / "other")
    with ps_shm.Server(job, workers=1), ps_shm.Publisher(job, {"v": np.zeros(4, np.float32)}):
        program = start(text, job, other)
        assert int(program.line()) > 2
        with contextlib.closing(Closings(control, other)) as closings:
            program.send(signal.SIGKILL)
            assert closings.next(2, PATIENCE) == [control, other]


def test_ctrl_c_ends_the_wait_for_a_job(job, start):
    program = start("import sys, ps_shm; print('waits'); ps_shm.Worker(sys.argv[1])", job)
    program.line()
    # Its only long sleeps are those in the wait for the job.
    wait_until(lambda: "(sleeping)" in pathlib.Path(f"/proc/{program.process.pid}/status").read_text(), "it waits")
    program.send(signal.SIGINT)
    code, _, err = program.finish()
    assert code != 0 and "KeyboardInterrupt" in err


def test_killed_workers_hold_nobody_up(job, start):
    text = """
import sys, numpy as np, ps_shm
worker = ps_shm.Worker(sys.argv[1])
v = worker.variable("v", np.zeros(100000, np.float32))
one = np.ones(100000, np.float32)
print("works")
while True:
    v.push(one); worker.step()
"""
    with ps_shm.Server(job, workers=3, mode="sync", optimizer="add"):
        programs = [start(text, job) for _ in range(2)]
        with ps_shm.Worker(job) as worker:
            v = worker.variable("v", np.zeros(100000, np.float32))
            one = np.ones(100000, np.float32)
            for kill_at in (20, 40):
                while worker.global_step < kill_at:
                    v.push(one)
                    worker.step()
                programs.pop().send(signal.SIGKILL)
            for _ in range(20):
                v.push(one)
                worker.step()
            values = set(v.pull())
            assert len(values) == 1, "a step is in all elements or in none"
            states = [w.state for w in ps_shm.View(job).workers()]
            assert sorted(states) == ["alive", "dead", "dead"]


def test_a_forked_child_has_nothing_of_a_worker(job):
    with ps_shm.Server(job, workers=2, optimizer="add") as server, ps_shm.Worker(job) as worker:
        v = worker.variable("v", np.zeros(10, np.float32))
        bundle = worker.variables({"b": np.zeros(3, np.float32)})
        view = ps_shm.View(job)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for call in (worker.step, v.pull, bundle.pull, lambda: worker.rank, server.wait, lambda: server.set(lr=1),
                             lambda: view.global_step, view.state):
                    with pytest.raises(ps_shm.Error, match="a forked child makes its own"):
                        call()
                worker.leave()
                server.close()
                assert os.environ["PS_SHM_JOB"] == job
                with ps_shm.Worker() as own:
                    assert own.rank == 1
                    own.variable("v").push(np.ones(10, np.float32))
                del worker, v, bundle, server, view
                gc.collect()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        v.push(np.ones(10, np.float32))
        worker.step()
        assert v.pull().tolist() == [2] * 10
        assert [w.state for w in ps_shm.View(job).workers()] == ["alive", "left"]


def push_one(job):
    with ps_shm.Worker(job) as worker:
        worker.variable("v").push(np.ones(10, np.float32))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_of_multiprocessing_are_workers(job, method):
    context = multiprocessing.get_context(method)
    with ps_shm.Server(job, workers=4, optimizer="add"), ps_shm.Worker(job) as worker:
        v = worker.variable("v", np.zeros(10, np.float32))
        processes = [context.Process(target=push_one, args=(job,)) for _ in range(3)]
        [p.start() for p in processes], [p.join() for p in processes]
        assert [p.exitcode for p in processes] == [0, 0, 0]
        assert v.pull().tolist() == [3] * 10
        with pytest.raises(TypeError, match="of one process"):
            pickle.dumps(worker)


def test_an_exception_in_a_callback_is_the_callers(worker):
    def fail(out=None):
        raise LookupError("of the callback")

    with pytest.raises(LookupError, match="of the callback"):
        worker.variable("v", fail, shape=(4,))
    with pytest.raises(LookupError, match="of the callback"):
        worker.shared_data("data", fail)
    assert worker.variable("v", lambda out: out.fill(3), shape=(4,)).pull().tolist() == [3] * 4
    data = worker.shared_data("data", lambda: np.arange(6, dtype=np.int16).reshape(2, 3))
    assert data.tolist() == [[0, 1, 2], [3, 4, 5]] and data.dtype == np.int16 and not data.flags.writeable


def test_the_array_of_a_callback_may_be_kept(worker):
    kept = []

    def begin(out):
        assert not out.any()
        out[0] = 3
        kept.append(out)

    v = worker.variable("v", begin, shape=(1000, 100))
    assert kept[0].flags.owndata
    kept[0][:] = 7
    values = v.pull()
    assert set(values[0]) == {3} and not values[1:].any()


def test_a_worker_that_is_called_within_its_own_call_says_so(worker):
    with pytest.raises(ps_shm.Error, match="in a call of this thread already"):
        worker.variable("v", lambda out: worker.step(), shape=(4,))
    worker.step()


def test_after_leaving_nothing_is_pushed(worker):
    v = worker.variable("v", np.zeros(4, np.float32))
    worker.leave()
    worker.leave()
    with pytest.raises(ps_shm.Error, match="has left"):
        v.push(np.ones(4, np.float32))


def test_a_view_sees_one_state_of_all_variables(worker):
    worker.variables({"a": np.ones(3, np.float32), "n": np.arange(3)})
    worker.report(0.5, 32)
    worker.step()
    view = ps_shm.View(worker.job)
    state = view.state()
    assert state["a"].tolist() == [1, 1, 1] and state["n"].tolist() == [0, 1, 2]
    assert view.global_step == 1 and view.served and not view.finished and view.bytes > 0
    assert [v.name for v in view.variables()] == ["a", "n"] and view.variables()[1].dtype == "int64"
    info = view.workers()[0]
    assert (info.loss, info.examples, info.pid) == (0.5, 32, os.getpid())
    assert "joined" in [e.kind for e in view.events()]
    with pytest.raises(KeyError):
        view.values("b")
    with pytest.raises(ps_shm.Error):
        ps_shm.View(worker.job + "-not")


def push_for_ever(job, size):
    worker = ps_shm.Worker(job)
    bundle = worker.variables({name: np.zeros(size, np.float32) for name in "ab"})
    while True:
        bundle.push({name: np.ones(size, np.float32) for name in "ab"})
        worker.step()


def test_a_snapshot_says_whose_push_is_in_it_in_part(job):
    with ps_shm.Server(job, optimizer="add"):
        pusher = multiprocessing.get_context("spawn").Process(target=push_for_ever, args=(job, 200_000), daemon=True)
        pusher.start()
        try:
            view = ps_shm.View(job)
            wait_until(lambda: view.global_step > 2, "pushes")
            partial = 0
            for _ in range(200):
                os.kill(pusher.pid, signal.SIGSTOP)
                wait_until(lambda: pathlib.Path(f"/proc/{pusher.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "the stop")
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    state = view.state()
                with view.snapshot() as snapshot:
                    ranks = snapshot.partial_ranks
                before = view.global_step
                os.kill(pusher.pid, signal.SIGCONT)
                wait_until(lambda: view.global_step > before, "another push")
                assert ranks == ([0] if said else [])
                is_torn = len({value for array in state.values() for value in (array.min(), array.max())}) > 1
                assert said or not is_torn
                if said:
                    assert "a part of a push may be in the snapshot: rank 0 was stopped within one" in str(said[0].message)
                partial += is_torn
                if partial == 2:
                    break
            assert partial == 2
        finally:
            pusher.kill()
            pusher.join()


@pytest.mark.parametrize("wrong", [{"regularize": ["A"]}, {"regularize": {"a": 1.0, "A": 0.0}}, {"lr_scale": {"A": 0.1}}])
def test_factors_are_of_variables_that_are_declared(worker, wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}: 'A' is not among the variables"):
        worker.variables({"a": np.ones(1, np.float32)}, **wrong)
    with pytest.raises(TypeError, match="a list of names, not a string"):
        worker.variables({"a": np.ones(1, np.float32)}, regularize="a")


def test_a_view_copies_values_of_bfloat16_as_float32(worker):
    torch = pytest.importorskip("torch")
    worker.variables({"h": torch.tensor([[1.5, -2.0, 3.0]], dtype=torch.bfloat16), "w": np.ones(2, np.float32)})
    view = ps_shm.View(worker.job)
    state = view.state()
    for values in (state["h"], view.values("h")):
        assert values.dtype == np.float32 and values.tolist() == [[1.5, -2.0, 3.0]]
    assert state["w"].tolist() == [1, 1]


def test_attaching_and_leaving_leaks_nothing(job):
    open_files = len(os.listdir("/proc/self/fd"))

    def mappings():
        with open("/proc/self/maps") as maps:
            return sum(1 for _ in maps)

    with ps_shm.Server(job, optimizer="add", linger=600, max_workers=4), ps_shm.Worker(job) as first:
        first.variable("v", np.zeros(1000, np.float32))

        def attach():
            with ps_shm.Worker(job) as worker:
                worker.variable("v").gradient()[:] = 1

        for _ in range(100):
            attach()
        before = mappings(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(10000):
            attach()
        gc.collect()
        assert mappings() - before[0] < 20
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before[1] < 8 << 10  # KiB
    del first
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= open_files


def test_a_limit_that_is_no_number_is_over(job):
    with ps_shm.Server(job) as server:
        assert server.wait(math.nan) is False


def test_a_limit_of_zero_does_not_wait_and_none_has_no_limit(job, start):
    with ps_shm.Server(job, workers=1) as server, ps_shm.Worker(job) as worker:
        for call, error in ((lambda: worker.variable("v", wait=0), ps_shm.NotFound), (lambda: ps_shm.Worker(job + "-none", wait=0), ps_shm.Timeout),
                            (lambda: ps_shm.Subscriber(job, wait=0), ps_shm.Timeout)):
            with pytest.raises(error):
                call()
        assert not server.wait(0)
        assert worker.settings["step_timeout"] is None
    with pytest.raises(ps_shm.Error, match="`step-timeout` must be greater than 0"):
        ps_shm.Server(job, step_timeout=0)
    late = start("import sys, ps_shm; ps_shm.Worker(sys.argv[1], wait=None).variable('v', wait=None)", job)
    with ps_shm.Server(job, workers=1) as server, ps_shm.Worker(job) as worker:
        worker.variable("v", np.zeros(2, np.float32))
        assert late.finish_quietly()[0] == 0


@pytest.mark.parametrize("call", ["barrier()", "step()", "wait_for_workers()", "variable('nobody', wait=None)"])
def test_a_daemon_thread_in_a_call_does_not_hold_up_the_end_of_a_program(job, start, call):
    text = f"""
import sys, threading, ps_shm
server = ps_shm.Server(sys.argv[1], workers=2, mode="sync")
worker = ps_shm.Worker(sys.argv[1])
def wait():
    worker.{call}
threading.Thread(target=wait, daemon=True).start()
view = ps_shm.View(sys.argv[1])
while not view.workers()[0].waiting_for: pass
"""
    assert start(text, job).finish_quietly() == (0, "", "")
    assert not segments(job)


@pytest.mark.parametrize("first_to_close", [0, 1])
def test_the_default_job_is_that_of_the_newest_open_server(job, monkeypatch, first_to_close):
    monkeypatch.setenv("PS_SHM_JOB", "outer")
    servers = [ps_shm.Server(f"{job}-{i}") for i in range(2)]
    assert os.environ["PS_SHM_JOB"] == f"{job}-1"
    servers.pop(first_to_close).close()
    assert os.environ["PS_SHM_JOB"] == servers[0].job
    with ps_shm.Server() as third:
        assert os.environ["PS_SHM_JOB"] == third.job != servers[0].job
    servers[0].close()
    assert os.environ["PS_SHM_JOB"] == "outer"


def test_objects_show_what_they_are(job, tmp_path):
    with ps_shm.Server(job) as server, ps_shm.Worker(job) as worker:
        bundle = worker.variables({"w": np.zeros((2, 3), np.float32)})
        view = ps_shm.View(job)
        found = ps_shm.checkpoint.load(ps_shm.checkpoint.save(worker, tmp_path))
        for thing, text in (
                (server, f"<the ps of job '{job}'>"), (worker, f"<worker 0 of job '{job}'>"), (view, f"<the view of job '{job}'>"),
                (bundle, f"<bundle of 1 variables of worker 0 of job '{job}'>"),
                (bundle.pin([np.zeros((2, 3), np.float32)]), "<1 pinned arrays>"),
                (view.workers()[0], f"<worker 0: alive, process {os.getpid()}, 0 steps>"),
                (view.variables()[0], "<variable 'w' of float32, shape (2, 3), rule sgd, versioned>"),
                (found, f"<checkpoint {found.folder} of step 0>"), (found.variables[0], "<stored variable 'w' of float32, shape (2, 3)>")):
            assert repr(thing) == text
        assert repr(view.events()[0]).startswith("<event at step 0: ")
