"""Single faults with the real programs: dead and stopped peers, a dead ps, leftovers, exhausted resources."""
import contextlib
import grp
import json
import os
import pathlib
import re
import signal
import tempfile
import time
import unittest

import support
from closings import Closings
from support import ProcessTest, children, run


def inspect(*arguments):
    code, out, err = run("inspect_shm", *arguments, "--json")
    return json.loads(out) if code in (0, 3) else None  # 3: doctor has findings


def running_job(job):
    support.wait_until(lambda: inspect("show", "--job", job), f"job {job} is there")
    return inspect("show", "--job", job)


class Survival(ProcessTest):
    def start_counting(self, workers, *options, steps=10**9, interval="1ms", **how):
        return [self.start("worker_shm", "--job", self.job, "--model", "count", "--steps", steps, "--count-interval", interval,
                           "--rank", rank, *options, **how) for rank in range(workers)]

    def steps_of(self, rank):
        return next((w["steps"] for w in support.workers_of(self.job) or [] if w["rank"] == rank), 0)

    def wait_for_steps(self, rank, more=20):
        before = self.steps_of(rank)
        support.wait_until(lambda: self.steps_of(rank) >= before + more, f"worker {rank} goes on")

    def count(self):
        return inspect("dump", "--job", self.job, "var")["variables"][0]["values"][0]


class DeadServers(Survival):
    def test_a_plain_restart_takes_the_job_over_and_says_so(self):
        for mode in ("async", "ssp", "sync"):
            with self.subTest(mode):
                self.job = support.new_job()
                first = self.start_ps("--workers", "2", "--mode", mode)
                workers = self.start_counting(2)
                self.wait_for_steps(0)
                first.kill()
                first.communicate()
                self.wait_for_steps(1)
                self.assertEqual(running_job(self.job)["state"], "orphaned")
                second = self.start("ps_shm", "--job", self.job, "--workers", "2", "--mode", mode)
                self.assertRegex(support.read_line(second.stderr), rf"job {self.job} has lost its ps; this one takes it over at step \d+")
                self.wait_for_steps(0)
                shown = running_job(self.job)
                self.assertEqual((shown["state"], shown["servers"], shown["ps_pid"]), ("live", 2, second.pid))
                for worker in workers:
                    worker.send_signal(signal.SIGINT)
                    self.assertEqual(support.finish(worker)[0], 130)
                self.assertEqual(support.finish(second)[0], 0)
                self.assertEqual(support.segments(self.job), [])

    def longest_pause(self):
        """The longest pause of worker 0, as observed by repeated calls of the inspector within a second."""
        longest, steps, since = 0.0, self.steps_of(0), time.monotonic()
        end = since + 1
        while (began := time.monotonic()) < end:
            if (now := self.steps_of(0)) > steps:
                steps, since = now, time.monotonic()
            else:  # no step between the end of the last call that saw one and the beginning of this call
                longest = max(longest, began - since)
        return longest

    @support.measures_time
    def test_the_longest_pause_of_a_worker_is_about_the_same_while_a_ps_takes_over(self):
        first = self.start_ps("--workers", "1")
        [worker] = self.start_counting(1, interval="5ms")  # so that an ordinary pause is observable
        self.wait_for_steps(0)
        before = max(self.longest_pause(), 0.005)
        first.kill()
        second = self.start("ps_shm", "--job", self.job, "--workers", "1")
        self.assertLess(self.longest_pause(), 30 * before)
        worker.send_signal(signal.SIGINT)
        support.finish(worker)
        self.assertEqual(support.finish(second)[0], 0)

    def test_workers_go_on_while_a_ps_takes_over(self):
        self.start_ps("--workers", "1").kill()  # no worker has joined, so the next ps starts the job from scratch
        first = self.start_ps("--workers", "1")
        [worker] = self.start_counting(1, interval="0")
        self.wait_for_steps(0)
        first.kill()
        self.wait_for_steps(0)
        second = self.start("ps_shm", "--job", self.job, "--workers", "1")
        self.assertIn("takes it over", support.read_line(second.stderr))
        self.wait_for_steps(0)
        worker.send_signal(signal.SIGINT)
        support.finish(worker)
        self.assertEqual(support.finish(second)[0], 0)

    def test_settings_that_differ_are_refused_and_adopt_alone_is_enough(self):
        first = self.start_ps("--workers", "1", "--optimizer", "add", "--seed", "7")
        [worker] = self.start_counting(1)
        self.wait_for_steps(0)
        first.kill()
        first.communicate()
        self.assert_fails(1, run("ps_shm", "--job", self.job, "--workers", "1", "--seed", "7"), "optimizer add", "sgd", "--adopt")
        self.assert_fails(1, run("ps_shm", "--job", self.job, "--adopt", "--mode", "sync"), "mode async", "sync")
        second = self.start("ps_shm", "--job", self.job, "--adopt")
        self.assertIn("takes it over", support.read_line(second.stderr))
        self.assert_fails(1, run("ps_shm", "--job", self.job, "--adopt"), "already has a ps")
        worker.send_signal(signal.SIGINT)
        support.finish(worker)
        self.assertEqual(support.finish(second)[0], 0)

    def test_a_dead_job_can_be_gone_on_with(self):
        first = self.start_ps("--workers", "1")
        self.start_counting(1)
        self.wait_for_steps(0)
        for process in self.started:
            process.kill()
            process.wait()
        value = self.count()
        self.assertGreater(value, 10)
        second = self.start("ps_shm", "--job", self.job, "--adopt")
        self.assertIn("nobody was alive", support.read_line(second.stderr))
        code, out, err = run("worker_shm", "--job", self.job, "--model", "count", "--steps", "10")
        self.assertEqual(code, 0, err)
        # the chief has not initialized the variable again when it came back
        self.assertRegex(out, rf"var = {int(value) + 10}")
        self.assertEqual(support.finish(second)[0], 0)
        self.assert_fails(1, run("ps_shm", "--job", self.job, "--adopt"), f"there is no job '{self.job}'")

    def test_launch_restarts_a_dead_ps(self):
        launcher, gate = self.start_gated("--json")
        shown = running_job(self.job)
        support.wait_until(lambda: len(support.workers_of(self.job) or []) == 3, "all have joined")
        os.kill(shown["ps_pid"], signal.SIGKILL)
        support.wait_until(lambda: running_job(self.job)["servers"] == 2, "another ps serves")
        gate.open()
        code, out, err = support.finish(launcher)
        self.assertEqual(code, 0, err)
        self.assertIn("ps was killed by signal 9", err)
        self.assertIn("takes it over", err)
        self.assertGreaterEqual(json.loads(out)["steps"], support.GATED_STEPS["async"])

    def test_launch_restarts_a_dead_ps_though_a_worker_is_dead(self):
        for order in ("worker, ps", "ps, worker"):
            with self.subTest(order), tempfile.TemporaryDirectory() as folder:
                job = f"{self.job}-{order[0]}"
                launcher, gate = self.start_gated("--json", "--checkpoint-dir", folder, "--publish", job, job=job)
                pids = {"worker": support.wait_training(job, 3)[1]["pid"], "ps": running_job(job)["ps_pid"]}
                for victim in order.split(", "):
                    os.kill(pids[victim], signal.SIGKILL)
                support.wait_until(lambda: running_job(job)["servers"] == 2, "another ps serves")
                reader = support.Peer(self, "read", job)  # it keeps the publication
                gate.open()
                code, out, err = support.finish(launcher)
                self.assertEqual(code, 1, err)
                steps = json.loads(out)["steps"]
                self.assertRegex(err, rf"the newest checkpoint is \S*/step-{steps}; with more --steps, the same command goes on")
                (publication,) = inspect("publications", "--publication", job)["publications"]
                self.assertEqual((publication["state"], publication["step"]), ("ended", steps))
                self.assertEqual(reader.end(), 0)

    def test_a_launch_without_its_last_checkpoint_names_the_step_of_the_newest_and_the_last_one(self):
        with tempfile.TemporaryDirectory() as folder:
            launcher, gate = self.start_gated("--checkpoint-dir", folder, "--checkpoint-every", "20steps")
            workers = [worker["pid"] for worker in support.wait_training(self.job, 3)]
            support.wait_until(lambda: list(pathlib.Path(folder).glob("*/*.json")), "there is a checkpoint")
            ps = running_job(self.job)["ps_pid"]
            support.stop(ps)
            gate.open()
            support.wait_until(lambda: not any(map(support.is_running, workers)), "the workers have ended")
            os.kill(ps, signal.SIGKILL)
            code, _, err = support.finish(launcher)
        self.assertEqual(code, 1, err)
        told = re.search(r"the newest checkpoint is \S+, of step (\d+), and the job ended at step (\d+); the same command "
                         r"goes on from step \1$", err, re.M)
        self.assertTrue(told and int(told[1]) < support.GATED_STEPS["async"] <= int(told[2]), err)

    def test_launch_restarts_dead_workers_when_asked_to(self):
        for mode in ("async", "sync"):
            with self.subTest(mode):
                job = f"{self.job}-{mode}"
                launcher, gate = self.start_gated("--restart-workers", "--json", mode=mode, job=job)
                chief = support.wait_training(job, 3)[0]["pid"]
                os.kill(chief, signal.SIGKILL)
                support.wait_until(lambda: any(w["rank"] == 0 and w["pid"] != chief for w in support.workers_of(job)),
                                   "another chief")
                gate.open()
                code, out, err = support.finish(launcher)
                self.assertEqual(code, 0, err)
                self.assertIn("worker 0 was killed by signal 9", err)
                self.assertIn("started worker 0", err)
                self.assertGreater(json.loads(out)["test_accuracy"], 0.9)

    def alive(self):
        return [w for w in support.workers_of(self.job) or [] if w["state"] == "alive"]

    def test_workers_that_are_killed_at_their_work_are_replaced_however_often_and_the_summary_is_of_the_run(self):
        gate = self.close_gate()
        launcher = self.start("launch_shm", "--job", self.job, *support.GATED_DELAY, "--steps", 2000, "--batch", "10",
                              "--workers", "2", "--restart-workers", "--json", env=gate.env)
        support.wait_until(lambda: len(self.alive()) == 2, "both have joined")
        began = time.monotonic()
        pids, steps = set(), {0: 0, 1: 0}
        while len(pids) < 12:  # each of the 14 workers makes at most MOST_STEPS before the gate is opened
            def at_work():
                return [w for w in self.alive() if w["pid"] not in pids and w["steps"] > steps[w["rank"]]]
            victim = support.wait_until(at_work, "one that is new has made a step")[0]
            support.stop(victim["pid"])
            steps[victim["rank"]] = self.steps_of(victim["rank"])
            os.kill(victim["pid"], signal.SIGKILL)
            pids.add(victim["pid"])
            support.wait_until(lambda: victim["pid"] not in [w["pid"] for w in self.alive()], "it is dead")
        lasted = time.monotonic() - began
        gate.open()
        code, out, err = support.finish(launcher)
        self.assertEqual(code, 0, err)
        self.assertEqual(err.count("it is being replaced"), len(pids))
        summary = json.loads(out)
        self.assertGreaterEqual(summary["seconds"], lasted)
        self.assertAlmostEqual(summary["steps_per_second"] * summary["seconds"], summary["steps"], 3)
        done = sum(w["steps"] for w in summary["per_worker"])
        examples = summary["examples_per_second"] * summary["seconds"]
        self.assertLessEqual(examples, 10 * done + 0.001)
        # killed workers may not have reported their last step
        self.assertGreater(examples, 10 * (done - len(pids) - 1))
        for worker in summary["per_worker"]:
            self.assertLessEqual(worker["seconds"], summary["seconds"])
            self.assertGreater(worker["seconds"], lasted / 2)

    def test_workers_that_are_killed_before_their_work_are_replaced_after_longer_and_longer_pauses(self):
        launcher = self.start("launch_shm", "--job", self.job, "--delay", "1000s", "--workers", "1", "--restart-workers")
        moments, pids = [], set()
        for _ in range(7):
            support.wait_until(lambda: any(w["pid"] not in pids for w in self.alive()), "a new one has joined")
            moments.append(time.monotonic())
            [worker] = self.alive()
            pids.add(worker["pid"])
            os.kill(worker["pid"], signal.SIGKILL)
        launcher.send_signal(signal.SIGINT)
        code, _, err = support.finish(launcher)
        self.assertEqual(code, 130, err)
        self.assertGreaterEqual(err.count("it is being replaced"), 6, err)  # the last death may not have been noticed
        self.assertGreater(moments[-1] - moments[0], 0.1 + 0.2 + 0.4 + 0.8 + 1.6 + 2)
        self.assertEqual(support.segments(self.job), [])

    def test_workers_that_fail_again_and_again_end_the_launch(self):
        with support.programs_beside('#!/bin/sh\necho "worker_shm: it cannot work" >&2; exit 1\n') as launch_shm:
            self.assert_gives_up(run(launch_shm, "--job", self.job, "--workers", "1", "--restart-workers"))

    def assert_gives_up(self, result):
        code, _, err = result
        self.assertEqual(code, 1)
        self.assertEqual(err.count("it is being replaced"), 4, err)
        self.assertIn("so did its predecessors", err)
        self.assertEqual(support.segments(self.job), [])

    def test_a_job_that_lost_a_worker_without_that_says_so_and_fails(self):
        launcher, gate = self.start_gated()
        os.kill(support.wait_training(self.job, 3)[1]["pid"], signal.SIGKILL)
        support.wait_for_line(launcher.stderr, "the others continue")
        gate.open()
        self.assertEqual(support.finish(launcher)[0], 1)


class Releases(Survival):
    def test_the_lock_of_a_killed_worker_is_free_before_its_other_files_are_released(self):
        """The kernel may take long to release those, such as the context of a GPU or the memory of a large file."""
        self.start_ps("--workers", "1", "--mode", "sync")
        control, number = support.SHM / f"ps_shm.{self.job}", 300
        with tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder, "other")
            opened = os.open(other, os.O_RDWR | os.O_CREAT)
            os.dup2(opened, number)
            [worker] = self.start_counting(1, pass_fds=[number])
            os.close(opened)
            os.close(number)
            self.wait_for_steps(0)
            with contextlib.closing(Closings(control, other)) as closings:
                worker.kill()
                self.assertEqual(closings.next(2, support.PATIENCE), [str(control), str(other)])


class StoppedPeers(Survival):
    def test_a_stopped_worker_holds_nobody_up_in_async_mode(self):
        for layout in ("versioned", "inplace"):
            with self.subTest(layout):
                self.job = support.new_job()
                ps = self.start_ps("--workers", "2", "--layout", layout)
                workers = self.start_counting(2, "--count-size", "20000", interval="0")
                self.wait_for_steps(1)
                for _ in range(10):  # whatever the worker is doing at that moment
                    workers[0].send_signal(signal.SIGSTOP)
                    self.wait_for_steps(1)
                    workers[0].send_signal(signal.SIGCONT)
                    self.wait_for_steps(0, 1)
                for worker in workers:
                    worker.send_signal(signal.SIGTERM)
                    support.finish(worker)
                self.assertEqual(support.finish(ps)[0], 0)

    def test_in_sync_mode_the_waiters_name_the_stopped_one(self):
        ps = self.start_ps("--workers", "2", "--mode", "sync")
        workers = self.start_counting(2)
        self.wait_for_steps(0)
        workers[1].send_signal(signal.SIGSTOP)
        waits_for = lambda: next(w["waiting_for"] for w in support.workers_of(self.job) if w["rank"] == 0)
        support.wait_until(lambda: re.search(r"step \d+.*1", waits_for() or ""), "worker 0 says that it waits for rank 1")
        workers[1].send_signal(signal.SIGCONT)
        self.wait_for_steps(0)
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
            support.finish(worker)
        self.assertEqual(support.finish(ps)[0], 0)

    def test_the_step_timeout_lets_a_step_go_on_without_the_stopped_one(self):
        ps = self.start_ps("--workers", "3", "--mode", "sync", "--step-timeout", "300ms")
        workers = self.start_counting(3, "--together")  # otherwise the first step times out if a worker starts too late
        self.wait_for_steps(0)
        workers[1].send_signal(signal.SIGSTOP)
        self.wait_for_steps(0, 200)  # the others wait for it once, not in every step
        workers[1].send_signal(signal.SIGCONT)
        self.wait_for_steps(1)
        left_out = lambda event: event["kind"] == "left-out" and event["rank"] == 1
        support.wait_until(lambda: any(map(left_out, inspect("events", "--job", self.job)["events"])), "an event")
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        for worker in workers:
            self.assertEqual(support.finish(worker).code, 130)
        self.assertEqual(support.finish(ps)[0], 0)


class Leftovers(Survival):
    def test_doctor_lists_a_dead_job_and_reclaims_it_and_nothing_else(self):
        dead, live = f"{self.job}-dead", f"{self.job}-live"
        ps = self.start("ps_shm", "--job", dead, "--workers", "1", "--steps", 10**8)
        worker = self.start("worker_shm", "--job", dead, "--delay", "1ms")
        support.wait_until(lambda: (support.workers_of(dead) or [{"steps": 0}])[0]["steps"] > 10, "it trains")
        for process in (worker, ps):
            process.kill()
            process.wait()
        keeper = self.start("ps_shm", "--job", live)
        running_job(live)
        [row] = inspect("doctor", "--job", dead)["jobs"]
        self.assertEqual((row["state"], row["reclaimable"]), ("dead", True))
        self.assertGreater(row["bytes"], 100_000)
        self.assertGreaterEqual(row["age_seconds"], 0)
        self.assertEqual((row["last"]["workers_dead"], row["last"]["steps"], row["last"]["finished"]), (1, 10**8, False))
        self.assertGreater(row["last"]["global_step"], 10)
        code, text, _ = run("inspect_shm", "doctor", "--job", dead)
        self.assertEqual(code, 3)
        self.assertIn("of 1 dead job can be reclaimed", text)
        self.assertFalse(inspect("doctor", "--job", live)["jobs"][0]["reclaimable"])

        self.assertEqual(inspect("doctor", "--repair", "--job", dead)["removed"][0]["job"], dead)
        self.assertEqual(inspect("doctor", "--repair", "--job", live)["removed"], [])
        self.assertEqual(support.segments(dead), [])
        self.assertEqual(running_job(live)["state"], "live")
        keeper.send_signal(signal.SIGTERM)
        support.finish(keeper)

    def test_what_lost_its_control_segment_is_reclaimed_too(self):
        ps = self.start_ps()
        ps.kill()
        ps.wait()
        (support.SHM / f"ps_shm.{self.job}").unlink()
        self.assertEqual(inspect("doctor", "--job", self.job)["jobs"][0]["state"], "leftover")
        self.assertEqual(len(inspect("doctor", "--repair", "--job", self.job)["removed"]), 1)
        self.assertEqual(support.segments(self.job), [])

    def test_what_was_kept_on_purpose_stays(self):
        self.launch("--model", "count", "--workers", "1", "--steps", "3", "--keep-segments")
        self.assertEqual(inspect("doctor", "--repair", "--job", self.job)["removed"], [])
        self.assertEqual(self.count(), 3)
        self.assertEqual(run("inspect_shm", "rm", "--job", self.job)[0], 0)

    def test_reclaiming_never_takes_a_job_that_is_beginning(self):
        """Doctors run while a ps starts: a ps that reports that it serves does serve."""
        for _ in range(10):
            old = self.start_ps()
            old.kill()
            old.wait()
            doctors = [self.start("inspect_shm", "doctor", "--repair", "--job", self.job) for _ in range(3)]
            ps = self.start("ps_shm", "--job", self.job, "--workers", "1")
            for doctor in doctors:
                support.finish(doctor)
            code, out, err = run("worker_shm", "--job", self.job, "--model", "count", "--steps", "5")
            self.assertEqual(code, 0, err)
            self.assertEqual(support.finish(ps)[0], 0)


class Ends(Survival):
    def interrupt_twice(self, process):
        """Sends SIGINT until the process ends. Signals within half a second of the previous one count as the same one,
        because a terminal and a launcher both send it."""
        def has_ended():
            process.send_signal(signal.SIGINT)
            return process.poll() is not None
        support.wait_until(has_ended, "it ends")

    @support.measures_time
    def test_a_second_ctrl_c_ends_a_ps_in_less_than_half_the_time_of_one(self):
        took = []
        for interrupt in (lambda ps: ps.send_signal(signal.SIGINT), self.interrupt_twice):
            ps = self.start_ps("--workers", "1")
            [worker] = self.start_counting(1)
            self.wait_for_steps(0)
            support.stop(worker)
            began = time.monotonic()
            interrupt(ps)
            self.assertEqual(support.finish(ps)[0], 130)
            took.append(time.monotonic() - began)
            worker.send_signal(signal.SIGCONT)
            self.assertEqual(support.finish(worker)[0], 0)
        self.assertLess(took[1], took[0] / 2)

    def test_a_second_ctrl_c_ends_a_ps_at_once_and_its_last_worker_clears_up(self):
        ps = self.start_ps("--workers", "1")
        [worker] = self.start_counting(1)
        self.wait_for_steps(0)
        support.stop(worker)  # it does not notice that the job is to end
        self.interrupt_twice(ps)
        self.assertEqual(support.finish(ps)[0], 130)
        for program in (["ps_shm"], ["ps_shm", "--adopt"], ["worker_shm", "--wait-job", "100ms"]):
            code, out, err = run(*program, "--job", self.job)
            self.assertEqual(code, 1, out + err)
            self.assertIn(f"was ended, and worker 0 (process {worker.pid}) has not left it yet", err.splitlines()[-1])
        worker.send_signal(signal.SIGCONT)
        self.assertEqual(support.finish(worker)[0], 0)
        self.assertEqual(support.segments(self.job), [])

    def test_a_second_ctrl_c_ends_a_launch_at_once_and_clean(self):
        # After the first signal a launcher waits ten minutes for a ps that may have a checkpoint to write.
        checkpoints = self.enterContext(tempfile.TemporaryDirectory())
        launcher = self.start("launch_shm", "--job", self.job, "--delay", "1ms", "--steps", "100000000", "--checkpoint-dir",
                              checkpoints)
        support.wait_until(lambda: len(support.workers_of(self.job) or []) == 3, "all have joined")
        support.stop(running_job(self.job)["ps_pid"])
        self.interrupt_twice(launcher)
        self.assertEqual(support.finish(launcher)[0], 130)
        self.assertEqual(support.segments(self.job), [])

    def test_a_killed_launcher_that_restarts_leaves_nobody(self):
        launcher = self.start("launch_shm", "--job", self.job, "--delay", "1ms", "--steps", "100000000", "--restart-workers")
        support.wait_until(lambda: len(support.workers_of(self.job) or []) == 3, "all have joined")
        pids = children(launcher.pid)
        self.assertEqual(len(pids), 4)
        launcher.kill()
        launcher.communicate()
        support.wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "all children have ended")
        self.assertEqual(support.segments(self.job), [])


GROUP = "users"


def can_be_others():
    """Whether this user may become other users, and whether those can read the programs."""
    look = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", str(support.TOOLS / "inspect_shm"), "--help"]
    try:
        grp.getgrnam(GROUP)
        return os.geteuid() == 0 and support.subprocess.run(look, capture_output=True).returncode == 0
    except (KeyError, FileNotFoundError):
        return False


@unittest.skipUnless(can_be_others(), f"skipped: needs root, setpriv, a group '{GROUP}', and programs that others can read")
class Groups(Survival):
    def as_user(self, number, groups, program, *arguments):
        process = support.subprocess.Popen(
            ["setpriv", f"--reuid={number}", f"--regid={number}", groups, str(support.TOOLS / program), "--job", self.job,
             *map(str, arguments)], stdin=support.subprocess.DEVNULL, stdout=support.subprocess.PIPE,
            stderr=support.subprocess.PIPE, text=True, env=support.environment())
        self.started.append(process)
        return process

    def test_a_group_shares_a_job_and_nobody_else(self):
        inside = f"--groups={grp.getgrnam(GROUP).gr_gid}"
        ps = self.start_ps("--workers", "2", "--mode", "sync", "--group", GROUP)
        workers = [self.as_user(number, inside, "worker_shm", "--group", GROUP, "--model", "count", "--steps", 10**9,
                                "--count-interval", "1ms")
                   for number in (65533, 65534)]
        self.wait_for_steps(0)
        for name in support.segments(self.job):
            status = (support.SHM / name).stat()
            self.assertEqual((status.st_mode & 0o777, status.st_gid), (0o660, grp.getgrnam(GROUP).gr_gid))
        outsider = self.as_user(65532, "--clear-groups", "worker_shm", "--model", "count", "--steps", "1")
        self.assert_fails(1, support.finish(outsider), "no permission", "--group")
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
            self.assertEqual(support.finish(worker)[0], 130)
        self.assertEqual(support.finish(ps)[0], 0)
        self.assertEqual(support.segments(self.job), [])


if __name__ == "__main__":
    support.main()
