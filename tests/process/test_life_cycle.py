"""Start order, ends, interrupts and deaths."""
import fcntl
import json
import os
import pathlib
import shlex
import signal
import struct
import tempfile
import time

import streams
import support
from support import ProcessTest, run


def words_after(option, pid):
    """The values that a running program was given for an option."""
    words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return [words[i + 1] for i, word in enumerate(words) if word == option]


class StartAndEnd(ProcessTest):
    def test_each_worker_gets_the_device_and_wire_of_its_rank(self):
        code, out, err = run("inspect_shm", "doctor", "--json")
        self.assertIn(code, (0, 3), err)
        auto = ("auto",) if json.loads(out)["cuda"]["gpus"] else ()  # without a GPU the launcher resolves auto itself
        given = {("--device", "auto,1:cpu", "--wire", "bfloat16-push,1:float32", "--wire", "2:bfloat16-push"):
                 [(*auto, "bfloat16-push"), (), (*auto, "bfloat16-push")],
                 ("--device", "2:cpu,all:auto"): [auto, auto, ()],  # a value that is the default is not passed on
                 (): [auto] * 3}
        for options, expected in given.items():
            with self.subTest(options):
                self.job = support.new_job()
                launcher = self.start("launch_shm", "--job", self.job, "--workers", "3", "--model", "count", "--steps",
                                      "1000", "--count-interval", "1s", *options, env={"PS_SHM_DEVICE": "auto"})
                support.wait_until(lambda: len(support.workers_of(self.job) or []) == 3, "all have joined")
                workers = sorted(support.workers_of(self.job), key=lambda worker: worker["rank"])
                got = [(*words_after("--device", w["pid"]), *words_after("--wire", w["pid"])) for w in workers]
                launcher.send_signal(signal.SIGINT)
                self.assertEqual(support.finish(launcher)[0], 130)
                self.assertEqual(got, expected)

    def test_workers_may_start_before_their_ps(self):
        workers = [self.start("worker_shm", "--job", self.job, "--model", "count", "--steps", "10") for _ in range(2)]
        for worker in workers:
            support.wait_for_line(worker.stderr, "waiting for job")
        ps = self.start("ps_shm", "--job", self.job, "--workers", "2")
        for worker in workers:
            self.assertEqual(support.finish(worker)[0], 0)
        self.assertEqual(support.finish(ps)[0], 0)

    def test_a_waiting_worker_says_what_it_waits_for(self):
        worker = self.start("worker_shm", "--job", self.job, "--model", "count", "--steps", "1")
        self.assertIn(f"waiting for job '{self.job}'", support.read_line(worker.stderr))
        ps = self.start("ps_shm", "--job", self.job)
        self.assertEqual(support.finish(worker)[0], 0)
        self.assertEqual(support.finish(ps)[0], 0)

    def test_the_ps_ends_by_itself_when_its_workers_have_left(self):
        ps = self.start("ps_shm", "--job", self.job, "--workers", "2")
        for _ in range(2):
            self.assertEqual(run("worker_shm", "--job", self.job, "--model", "count", "--steps", "5")[0], 0)
        self.assertEqual(support.finish(ps)[0], 0)

    def test_a_worker_that_finishes_first_holds_up_nobody(self):
        for mode in ("async", "sync"):
            with self.subTest(mode):
                job = f"{self.job}-{mode}"
                ps = self.start("ps_shm", "--job", job, "--workers", "2", "--mode", mode)
                long = self.start("worker_shm", "--job", job, "--model", "count", "--steps", "2000")
                short = self.start("worker_shm", "--job", job, "--model", "count", "--steps", "100")
                self.assertEqual(support.finish(short)[0], 0)
                self.assertEqual(support.finish(long)[0], 0)
                self.assertEqual(support.finish(ps)[0], 0)

    def test_a_worker_after_the_last_step_is_told_so(self):
        ps = self.start("ps_shm", "--job", self.job, "--workers", "2", "--steps", "50")
        self.assertEqual(run("worker_shm", "--job", self.job, "--rank", "0")[0], 0)
        code, out, err = run("worker_shm", "--job", self.job, "--rank", "1")
        self.assertEqual(code, 0)
        self.assertRegex(out + err, rf"job {self.job} finished at step \d+")
        ps.send_signal(signal.SIGINT)
        support.finish(ps)

    def test_the_ps_lingers_after_the_last_worker_and_then_ends(self):
        ps = self.start("ps_shm", "--job", self.job, "--workers", "3", "--linger", "500ms")
        self.assertEqual(run("worker_shm", "--job", self.job, "--model", "count", "--steps", "5")[0], 0)
        self.assertEqual(support.finish(ps)[0], 0)

    def test_workers_report_as_users_of_such_jobs_know_it(self):
        ps = self.start("ps_shm", "--job", self.job, "--steps", "2000")
        code, out, err = run("worker_shm", "--job", self.job)
        self.assertEqual(code, 0, err)
        self.assertRegex(out + err, r"worker 0: after \d+ training steps \(\d+ global steps\), loss on training batch is "
                                    r"\d+\.\d+ \([\d.]+ examples/s, \d+(\.\d+)? ms/batch\)")
        self.assertNotRegex(out + err, r"\b0\.0* m?s/batch")
        self.assertEqual(support.finish(ps)[0], 0)

    def test_a_worker_reports_the_value_of_a_count_every_two_seconds(self):
        ps = self.start("ps_shm", "--job", self.job)
        code, out, err = run("worker_shm", "--job", self.job, "--model", "count", "--steps", "30", "--count-interval", "100ms")
        self.assertEqual(code, 0, err)
        self.assertRegex(out + err, r"after (\d+) adds \(\1 global steps\), var = \1")
        self.assertEqual(support.finish(ps)[0], 0)

    def test_options_come_from_the_environment(self):
        env = {"PS_SHM_JOB": self.job, "PS_SHM_WORKERS": "2", "PS_SHM_MODEL": "count", "PS_SHM_STEPS": "10"}
        code, out, err = run("launch_shm", "--json", env=env)
        self.assertEqual(code, 0, err)
        self.assertEqual(json.loads(out)["value"], 20)

    def test_a_rank_among_all_machines_is_not_one_of_this_machine(self):
        self.start_ps("--workers", "2")
        for env in ({"RANK": "99", "WORLD_SIZE": "120", "LOCAL_WORLD_SIZE": "4"}, {"PMI_RANK": "99", "SLURM_NNODES": "3"}):
            self.start("worker_shm", "--job", self.job, "--model", "count", "--count-interval", "5ms", "--quiet", env=env)
        support.wait_until(lambda: [w["rank"] for w in support.workers_of(self.job) or [] if w["state"] == "alive"] == [0, 1],
                           "both have joined, with free ranks")
        for env in ({"RANK": "999"}, {"LOCAL_RANK": "first"}):  # not read by a process that has no rank
            code, out, err = run("worker_shm", "--standalone", "--steps", "1", env=env)
            self.assertEqual(code, 0, f"stdout: {out}\nstderr: {err}")
            result = run("worker_shm", "--evaluate", "--job", f"no-{self.job}", "--wait-job", "1ms", env=env)
            self.assertEqual(result.code, 1, result.err)
            self.assertNotIn("environment variable", result.err)

    def test_the_rank_comes_from_what_launchers_set(self):
        ps = self.start("ps_shm", "--job", self.job, "--workers", "2")
        worker = self.start("worker_shm", "--job", self.job, "--model", "count", "--steps", "100", "--count-interval", "1s",
                            env={"LOCAL_RANK": "1"})
        support.wait_until(lambda: support.workers_of(self.job), "the worker has joined")
        self.assertEqual([w["rank"] for w in support.workers_of(self.job)], [1])
        worker.send_signal(signal.SIGTERM)
        self.assertEqual(support.finish(worker)[0], 130)
        ps.send_signal(signal.SIGTERM)
        support.finish(ps)


class Interrupted(ProcessTest):
    def launch_long(self, *more):
        launcher = self.start("launch_shm", "--job", self.job, "--steps", "100000000", *more)
        support.wait_until(lambda: len(support.workers_of(self.job) or []) == 3, "three workers have joined")
        return launcher

    def test_ctrl_c_ends_a_job_and_leaves_nothing(self):
        for mode in ("async", "sync"):
            for number in (signal.SIGINT, signal.SIGTERM):
                with self.subTest(mode=mode, signal=number):
                    launcher = self.launch_long("--mode", mode)
                    launcher.send_signal(number)
                    self.assertEqual(support.finish(launcher)[0], 130)
                    self.assertEqual(support.segments(self.job), [])

    def test_locks_that_outlive_a_process_leave_nothing(self):
        # The kernel keeps those of a dead process while another one reads its memory. Here this test has one.
        of_snapshot = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 64 + 256 + 3, 1, 0)

        def interrupt(is_released):
            launcher = self.launch_long()
            with open(support.SHM / f"ps_shm.{self.job}", "r+b") as control:
                fcntl.fcntl(control, getattr(fcntl, "F_OFD_SETLK", 37), of_snapshot)
                looked = [time.monotonic()]
                launcher.send_signal(signal.SIGINT)
                support.wait_until(lambda: looked.append(time.monotonic()) or not support.children(launcher.pid),
                                   "the job's processes have ended")
                if is_released:
                    control.close()
                has_had_for = time.monotonic() - looked[-2]  # when there was still one
                code, _, err = support.finish(launcher)
            self.assertEqual(code, 130, err)
            return has_had_for, err

        self.assertIn(f"job {self.job} stays in /dev/shm: process {os.getpid()} is changing it", interrupt(False)[1])
        for _ in range(10):
            self.assertEqual(support.run("inspect_shm", "rm", "--job", self.job)[0], 0)
            has_had_for, err = interrupt(True)
            if has_had_for < 1:  # the launcher tries for two seconds
                self.assertNotIn("stays", err)
                return self.assert_nothing_left()
        self.skipTest("skipped: this machine needs a second to notice the end of a process")

    def test_a_signal_at_any_stage_of_a_launch_leaves_nothing(self):
        stages = {"at its ps": lambda launcher: support.children(launcher.pid),
                  "at its job": lambda _: support.segments(self.job),
                  "at its first worker": lambda launcher: len(support.children(launcher.pid)) > 1,
                  "at the first who has joined": lambda _: support.workers_of(self.job)}
        for stage, has_come in stages.items():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                with self.subTest(stage, signal=number):
                    launcher = self.start("launch_shm", "--job", self.job, "--steps", "100000000")
                    support.wait_until(lambda: has_come(launcher), stage)
                    launcher.send_signal(number)
                    code, _, err = support.finish(launcher)
                    self.assertEqual(code, 130, err)
                    self.assert_nothing_left()

    def test_a_launch_that_gives_up_does_not_wait_for_a_stopped_worker(self):
        is_stopped = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), "worker-0-is-stopped")
        first_works = f"""#!/bin/sh
            case "$*" in *"--rank 1"*)
                timeout 60 sh -c 'until [ -e "{is_stopped}" ]; do sleep 0.02; done'
                echo "worker_shm: it cannot work" >&2; exit 1 ;;
            esac
            exec "{support.TOOLS}/worker_shm" "$@"\n"""
        programs = support.programs_beside(first_works)
        launcher = self.start(self.enterContext(programs), "--job", self.job, "--model", "count", "--steps", "1000000",
                              "--count-interval", "1s", "--restart-workers", "--workers", "2")
        first = support.wait_until(lambda: [w["pid"] for w in support.workers_of(self.job) or [] if w["rank"] == 0],
                                   "worker 0 has joined")
        os.kill(first[0], signal.SIGSTOP)
        is_stopped.touch()
        code, _, err = support.finish(launcher)
        self.assertEqual(code, 1)
        self.assertIn("worker 1 ended with exit code 1", err)
        self.assertIn("the launch is aborted", err)
        self.assert_nothing_left()

    def test_a_worker_that_is_ended_because_another_one_failed_is_not_named(self):
        for failing in (0, 1):
            with self.subTest(failing), tempfile.TemporaryDirectory() as folder:
                program = f"""cd {folder}
                    if [ $RANK != {failing} ]; then touch other-works; exec sleep 1000; fi
                    until [ -e other-works ]; do sleep 0.01; done
                    exit 3"""
                code, _, err = run("launch_shm", "--job", self.job, "--workers", "2", "--", "sh", "-c", program)
                self.assertEqual(code, 1)
                self.assertIn(f"worker {failing} ended with exit code 3", err)
                self.assertNotIn(f"worker {1 - failing}", err)
                self.assertNotIn("launch_shm: ps", err)
                self.assert_nothing_left()

    def test_ctrl_c_on_a_waiting_worker_ends_it(self):
        for options, last_words in (((), "worker_shm: interrupted before its first step"), (("--quiet",), "")):
            with self.subTest(options):
                worker = self.start("worker_shm", "--job", self.job, *options)
                support.read_line(worker.stderr)
                worker.send_signal(signal.SIGINT)
                code, _, err = support.finish(worker)
                self.assertEqual((code, streams.without_waits(err).strip()), (130, last_words))

    def test_an_interrupted_worker_says_what_it_has_reached(self):
        for model, options, words in (("mlp", (), r"after [1-9]\d* training steps \([1-9]\d* global steps\)"),
                                      ("logistic", (), r"after [1-9]\d* training steps \([1-9]\d* global steps\)"),
                                      ("count", ("--count-interval", "1ms", "--steps", "1000000"),
                                       r"after [1-9]\d* adds in [\d.]+ m?s, var = [1-9]\d*")):
            with self.subTest(model):
                self.job = support.new_job()
                ps = self.start_ps("--layout", "inplace", "--workers", "2")
                worker = self.start("worker_shm", "--job", self.job, "--model", model, *options)
                support.wait_until(lambda: any(w["steps"] > 0 for w in support.workers_of(self.job)), "it trains")
                worker.send_signal(signal.SIGINT)
                code, out, err = support.finish(worker)
                self.assertEqual(code, 130, err)
                self.assertRegex(out.splitlines()[-1], f"^worker 0: interrupted {words}$")
                ps.send_signal(signal.SIGTERM)
                support.finish(ps)

    def test_interrupted_training_alone_says_what_it_has_reached(self):
        for model in ("mlp", "svm"):
            with self.subTest(model):
                worker = self.start("worker_shm", "--standalone", "--model", model, "--steps", "1000000000")
                self.assertIn("training steps", support.read_line(worker.stdout))
                worker.send_signal(signal.SIGINT)
                code, out, err = support.finish(worker)
                self.assertEqual(code, 130, err)
                self.assertRegex(out.splitlines()[-1], r"^standalone: interrupted after [1-9]\d* training steps ")

    def test_the_death_of_the_launcher_ends_its_children(self):
        launcher = self.launch_long()
        pids = [w["pid"] for w in support.workers_of(self.job)]
        launcher.kill()
        launcher.communicate()
        support.wait_until(lambda: support.segments(self.job) == [], "the ps has ended and removed the job")
        for pid in pids:
            support.wait_until(lambda: not support.is_running(pid), f"process {pid} has ended")


class Inherited(ProcessTest):
    """What the parent process has done to signals neither hangs the programs nor makes them immortal."""
    COUNT = ("--workers", "1", "--model", "count", "--steps", "5")

    def test_the_end_of_children_is_noticed_though_the_parent_ignores_that_of_its_own(self):
        ignored = lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        result = run("launch_shm", "--job", self.job, *self.COUNT, preexec_fn=ignored)
        self.assertEqual(result.code, 0, result.err)
        result = run("launch_shm", "--job", self.job, "--workers", "1", "--", "sh", "-c", "exit 5", preexec_fn=ignored)
        self.assertEqual(result.code, 1, result.err)
        self.assertIn("worker 0 ended with exit code 5", result.err)
        self.assert_nothing_left()

    def test_other_programs_begin_with_no_signal_blocked_or_ignored(self):
        def prepare():
            for number in (signal.SIGCHLD, signal.SIGUSR1, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        result = run("launch_shm", "--job", self.job, "--workers", "1", "--", "grep", "^Sig[BI]", "/proc/self/status",
                     preexec_fn=prepare)
        masks = dict(line.split() for line in result.out.splitlines())
        known = sum(1 << number - 1 for number in signal.valid_signals())  # without those of the C library
        self.assertEqual(int(masks["SigBlk:"], 16) & known, 0, result)
        self.assertEqual(int(masks["SigIgn:"], 16) & known, 1 << signal.SIGHUP - 1, result)  # as nohup wants it

    def blocked(self):
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))

    def test_signals_that_the_parent_blocks_end_every_program(self):
        long = ("--steps", "100000000")
        for number in (signal.SIGINT, signal.SIGTERM):
            launch = self.start("launch_shm", "--job", self.job, *long, preexec_fn=self.blocked)
            support.wait_training(self.job, 3)
            launch.send_signal(number)
            self.assertEqual(support.finish(launch).code, 130)
            self.assert_nothing_left()
            ps = self.start("ps_shm", "--job", self.job, preexec_fn=self.blocked)
            alone = self.start("worker_shm", "--standalone", *long, preexec_fn=self.blocked)
            self.assertIn(self.job, support.read_line(ps.stdout))
            self.assertIn("training steps", support.read_line(alone.stdout))
            watch = self.start("inspect_shm", "watch", "--job", self.job, preexec_fn=self.blocked)
            self.assertIn("live", support.read_line(watch.stdout))
            for process, code in ((watch, 128 + number), (alone, 130), (ps, 130)):
                process.send_signal(number)
                self.assertEqual(support.finish(process).code, code, process.args)

    def test_the_death_of_the_launcher_ends_children_though_its_parent_blocks_signals(self):
        launch = self.start("launch_shm", "--job", self.job, "--steps", "100000000", preexec_fn=self.blocked)
        support.wait_training(self.job, 3)
        launch.kill()
        launch.communicate()
        support.wait_until(lambda: not support.programs_of(self.job), "the ps and the workers have ended")


class Loading(ProcessTest):
    def test_ctrl_c_ends_a_program_that_makes_or_reads_its_data(self):
        data = ("--model", "softmax", "--data", "synthetic:100000x10x4000")  # takes half a minute
        for program, said in ((("launch_shm", "--job", self.job), ""),
                              (("worker_shm", "--job", self.job), "worker_shm: interrupted before its first step\n"),
                              (("worker_shm", "--standalone"), "worker_shm: interrupted before its first step\n")):
            with self.subTest(program):
                process = self.start(*program, *data)
                support.wait_until(lambda: self.catches_sigint(process.pid), "it catches signals")
                process.send_signal(signal.SIGINT)
                code, out, err = support.finish(process)
                lines = [line for line in streams.without_waits(err).splitlines(keepends=True) if not line.startswith("loading synthetic")]
                self.assertEqual((code, out, "".join(lines)), (130, "", said))

    def catches_sigint(self, pid):
        with open(f"/proc/{pid}/status") as status:
            (caught,) = [line.split()[1] for line in status if line.startswith("SigCgt")]
        return int(caught, 16) >> signal.SIGINT - 1 & 1


class Deaths(ProcessTest):
    def test_the_others_go_on_when_a_worker_is_killed(self):
        for mode in ("async", "sync"):
            with self.subTest(mode):
                job = f"{self.job}-{mode}"
                gate = self.close_gate()
                ps = self.start("ps_shm", "--job", job, "--workers", "3", "--mode", mode, "--linger", "1s", "--steps",
                                support.GATED_STEPS[mode])
                workers = [self.start("worker_shm", "--job", job, "--rank", rank, *support.GATED_DELAY, "--together",
                                      env=gate.env) for rank in range(3)]
                support.wait_training(job, 3)
                workers[1].kill()
                gate.open()
                for rank in (0, 2):
                    self.assertEqual(support.finish(workers[rank])[0], 0)
                code, out, err = support.finish(ps)
                self.assertEqual(code, 0, err)
                self.assertRegex(out + err, r"worker 1 .*died")

    def start_with_a_failing_worker(self, mode):
        """Starts a launch of three workers, of which worker 1 does not join, and fails once what is returned is called."""
        self.job = support.new_job()
        orders = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "orders")
        os.mkfifo(orders)
        order = os.open(orders, os.O_RDWR)
        self.addCleanup(os.close, order)
        gate = self.close_gate()
        # For the worker alone: a shell does not start with the gate of a sanitizer's build.
        gated = shlex.join(["env", *(f"{name}={value}" for name, value in gate.env.items())])
        program = f"""if [ $RANK = 1 ]; then read order <{orders}; exit 4; fi
            exec {gated} {support.TOOLS}/worker_shm --quiet {" ".join(support.GATED_DELAY)}"""
        launch = self.start("launch_shm", "--job", self.job, "--workers", "3", "--mode", mode, "--steps",
                            support.GATED_STEPS[mode], "--json", "--", "sh", "-c", program)
        return launch, gate, lambda: os.write(order, b"fail\n")

    def test_the_others_go_on_when_a_worker_fails_before_it_has_joined(self):
        for mode in ("async", "ssp"):
            with self.subTest(mode):
                launch, gate, fail = self.start_with_a_failing_worker(mode)
                support.wait_training(self.job, 2)
                fail()
                support.wait_for_line(launch.stderr, "worker 1 ended with exit code 4; the others continue")
                gate.open()
                code, out, err = support.finish(launch)
                self.assertEqual(code, 1, err)
                report = json.loads(out)
                self.assertGreaterEqual(report["steps"], support.GATED_STEPS[mode])
                self.assertEqual((report["workers"], [w["rank"] for w in report["per_worker"]]), (2, [0, 2]))
                self.assert_nothing_left()

    def test_a_job_that_waits_for_a_worker_ends_when_it_fails(self):
        launch, _, fail = self.start_with_a_failing_worker("sync")
        support.wait_until(lambda: len(support.workers_of(self.job) or []) == 2, "the others have joined")
        fail()
        code, _, err = support.finish(launch)
        self.assertEqual(code, 1, err)
        self.assertIn("worker 1 ended with exit code 4; the job can't start without it", err)
        self.assert_nothing_left()

    def test_workers_train_on_when_the_ps_is_killed(self):
        ps = self.start("ps_shm", "--job", self.job, "--workers", "2", "--steps", support.GATED_STEPS["async"])
        gate = self.close_gate()
        workers = [self.start("worker_shm", "--job", self.job, *support.GATED_DELAY, "--together", env=gate.env)
                   for _ in range(2)]
        support.wait_until(lambda: len(support.workers_of(self.job) or []) == 2, "both have joined")
        ps.kill()
        gate.open()
        for worker in workers:
            self.assertEqual(support.finish(worker)[0], 0)
        self.assertEqual(run("inspect_shm", "rm", "--job", self.job)[0], 0)

    def test_a_killed_job_is_reclaimed_by_the_next_of_its_name(self):
        ps = self.start_ps()
        ps.kill()
        ps.communicate()
        self.assertEqual(len(support.segments(self.job)), 2)
        self.assertEqual(self.launch("--model", "count", "--workers", "1", "--steps", "7")["value"], 7)

    def test_a_restarted_worker_takes_its_rank_again(self):
        for mode in ("async", "sync"):
            with self.subTest(mode):
                job = f"{self.job}-{mode}"
                ps = self.start("ps_shm", "--job", job, "--workers", "2", "--mode", mode, "--steps", "1500")
                gate = self.close_gate()
                other, first = (self.start("worker_shm", "--job", job, "--rank", rank, *support.GATED_DELAY, "--together",
                                           env=gate.env) for rank in range(2))
                support.wait_training(job, 2)
                first.kill()
                first.communicate()
                second = self.start("worker_shm", "--job", job, "--rank", "1")
                support.wait_until(lambda: any(w["pid"] == second.pid for w in support.workers_of(job)), "it has joined")
                gate.open()
                for worker in (other, second):
                    code, out, err = support.finish(worker)
                    self.assertEqual(code, 0, err)
                self.assertEqual(support.finish(ps)[0], 0)


if __name__ == "__main__":
    support.main()
