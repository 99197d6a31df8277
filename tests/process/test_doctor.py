"""inspect_shm doctor: each problem is provoked, and reported in a sentence with its remedy and exit code 3."""
import json
import os
import pathlib
import re
import signal
import subprocess
import time

import support
from support import Peer, ProcessTest, run
from test_strangers import OWNER, why_not


# a finding about the machine that may occur beside a sound job
MACHINE = ("full-shm",)


def by_kind(entries):
    return {entry["kind"]: entry["what"] + " / " + entry["todo"] for entry in entries}


class Doctor(ProcessTest):
    def setUp(self):
        super().setUp()
        self.peers = []

    def peer(self, *arguments):
        self.peers.append(Peer(self, *arguments))
        return self.peers[-1]

    def tearDown(self):
        for peer in self.peers:
            peer.kill()
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()  # a launcher ends its children
        for process in self.started:
            try:
                process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                support.kill_programs_of(self.job)  # which may have its streams open
                process.communicate(timeout=support.PATIENCE)
        run("inspect_shm", "rm", "--job", self.job, "--force")
        super().tearDown()

    def examine(self, *more, key="findings"):
        """The findings about the job by kind, each with problem and remedy; or, by another key, all advice."""
        code, out, err = run("inspect_shm", "doctor", "--job", self.job, "--json", *more)
        found = json.loads(out)
        self.assertEqual(code, 3 if found["findings"] else 0, err)
        for finding in found["findings"] + found["advice"]:
            self.assertIn(finding["job"], (self.job, None))
            self.assertTrue(finding["what"] and finding["todo"])
        return by_kind(finding for finding in found[key] if finding["kind"] not in MACHINE)

    def train(self, workers, *more, **options):
        """A ps and workers that train until the end of the test."""
        ps = self.start_ps("--workers", workers, *more)
        started = [self.start("worker_shm", "--job", self.job, "--rank", rank, "--delay", "5ms",
                              *options.get(f"worker_{rank}", [])) for rank in range(workers)]
        busy = lambda: [w for w in support.workers_of(self.job) or [] if w["steps"] > 2]
        support.wait_until(lambda: len(busy()) >= options.get("busy", workers), "they train")
        return ps, started


class Jobs(Doctor):
    def test_a_job_with_which_nothing_is_wrong(self):
        self.train(1)
        self.assertEqual(self.examine(), {})
        result = run("inspect_shm", "doctor", "--job", self.job)
        self.assertIn(result.code, (0, 3))  # 3: /dev/shm is full
        self.assertEqual("nothing is wrong\n" in result.out, result.code == 0)
        self.assertNotIn(f"WRONG: job {self.job}: worker", result.out)

    def test_the_verdict_is_first_and_the_machine_last(self):
        self.train(1)
        lines = run("inspect_shm", "doctor", "--job", self.job).out.splitlines()
        self.assertRegex(lines[0], r"^(nothing is wrong|\d+ faults?(, and .* advice)?)$")
        (job,) = (at for at, line in enumerate(lines) if line.startswith(f"job {self.job}: live, step "))
        (machine,) = (at for at, line in enumerate(lines) if line.startswith("/dev/shm: "))
        self.assertLess(job, machine)
        self.assertRegex(lines[machine], r"^/dev/shm: [\d.]+ \w+ of [\d.]+ \w+ free; \d+ processors?")
        if not any(name.startswith("nvidia") for name in os.listdir("/dev")):
            self.assertNotIn("nvcc", "\n".join(lines))
        self.assertNotIn("/sys/", "\n".join(lines))

    def test_several_faults_of_a_kind_are_one(self):
        _, workers = self.train(3)
        for worker in workers[:2]:
            worker.kill()
            worker.communicate()
        both = json.loads(run("inspect_shm", "doctor", "--job", self.job, "--json").out)["findings"]
        self.assertEqual([one["kind"] for one in both if one["kind"] not in MACHINE], ["dead-worker"] * 2)
        lines = run("inspect_shm", "doctor", "--job", self.job).out.splitlines()
        (line,) = (line for line in lines if line.startswith(f"WRONG: job {self.job}: "))
        self.assertRegex(line, rf"worker 0 \(process {workers[0].pid}\) has died.*; likewise worker 1 \(process {workers[1].pid}\)$")
        self.assertRegex(lines[lines.index(line) + 1], "^  what to do, for the first: .*--rank 0")
        self.assertRegex(lines[0], "^[23] faults")

    @support.measures_time
    def test_it_takes_about_as_long_where_a_worker_is_stopped(self):
        _, workers = self.train(3, "--mode", "sync")
        took = []
        for _ in range(2):
            began = time.monotonic()
            self.examine()
            took.append(time.monotonic() - began)
            support.stop(workers[2])
        self.assertLess(took[1], 3 * took[0])

    def test_a_worker_whose_gradients_are_dropped_is_advised_of(self):
        self.start_ps("--workers", 2, "--mode", "sync", "--quorum", 1)
        self.peer("late", self.job)
        self.assertEqual(self.examine(), {})
        self.assertRegex(self.examine(key="advice")["forgotten-worker"],
                         r"^worker 1: 20 of its 20 gradients were dropped; if it has data of its own, .* / .*--mode async")
        metrics = run("inspect_shm", "metrics", "--job", self.job).out
        for rank in (0, 1):
            self.assertIn(f'ps_shm_worker_forgotten{{job="{self.job}",rank="{rank}"}} {rank}\n', metrics)

    def test_a_stopped_worker_is_named(self):
        _, workers = self.train(3, "--mode", "sync")
        support.stop(workers[2])
        found = self.examine()
        self.assertRegex(found["stopped-worker"], rf"^worker 2 \(process {workers[2].pid}\) is stopped")
        self.assertIn(f"kill -CONT {workers[2].pid}", found["stopped-worker"])
        text = run("inspect_shm", "doctor", "--job", self.job)
        self.assertEqual(text.code, 3)
        table = {worker["rank"]: (worker["state"], worker["waiting_for"]) for worker in support.workers_of(self.job)}
        self.assertEqual(table[2], ("stopped", None))
        self.assertEqual((table[0][0], table[1][0]), ("alive", "alive"))
        self.assertRegex(text.out, rf"WRONG: job {self.job}: worker 2 \(process")

    def test_a_job_of_which_all_are_stopped_is_looked_at_like_any_other(self):
        ps, workers = self.train(2)
        for process in (ps, *workers):
            process.send_signal(signal.SIGSTOP)
        found = self.examine()
        self.assertIn("stopped-worker", found)
        self.assertRegex(found["stopped-ps"], rf"\(process {ps.pid}\) is stopped")
        for command in ("show", "vars", "workers", "events", "dump", "stats", "metrics"):
            with self.subTest(command):
                self.assertEqual(run("inspect_shm", command, "--job", self.job).code, 0)

    def test_a_dead_worker_and_a_dead_ps(self):
        ps, workers = self.train(2)
        workers[1].kill()
        workers[1].communicate()
        self.assertRegex(self.examine()["dead-worker"], rf"worker 1 \(process {workers[1].pid}\) has died.*--rank 1")
        ps.kill()
        ps.communicate()
        self.assertRegex(self.examine()["dead-ps"], rf"\(process {ps.pid}\) has died.*--adopt")

    def test_a_quorum_that_cannot_be_met(self):
        _, workers = self.train(2, "--mode", "sync", "--quorum", "2")
        self.assertNotIn("unmet-quorum", self.examine())
        workers[0].kill()
        workers[0].communicate()
        self.assertRegex(self.examine()["unmet-quorum"], r"quorum of 2 .*one worker is alive.*quorum=1")

    def test_a_worker_that_gets_nowhere_while_others_do(self):
        self.train(2, worker_1=["--delay", "100s"], busy=1)
        support.wait_until(lambda: len(support.workers_of(self.job)) == 2, "both have joined")
        # On a busy machine the other worker may also have completed no step in these 400 ms.
        found = support.wait_until(lambda: self.examine().get("starving-worker"), "it is named")
        self.assertRegex(found, r"^worker 1 \(process \d+\) completed no step in 400 ms")

    def test_a_variable_that_nobody_initialises(self):
        self.start_ps("--workers", "2")
        peer = self.peer("declare-half", self.job)
        self.assertRegex(self.examine()["uninitialised-variable"], "variable awaited .*worker 0 has started to initialise it")
        peer.kill()
        self.assertRegex(self.examine()["uninitialised-variable"], "variable awaited .*no worker is initialising it")

    def test_values_that_are_no_numbers(self):
        self.peer("declare-odd", self.job)
        self.assertRegex(self.examine()["not-finite"], "variable odd has 1 NaN and 2 infinities in 5 values")

    def test_rows_of_a_table_that_are_no_numbers(self):
        self.peer("declare-odd-table", self.job)
        self.assertRegex(self.examine()["not-finite"],
                         "^table items has NaN or infinities in 2 of 100 rows, first in key 7, element 2 ")

    def test_values_and_rows_that_are_no_numbers_in_a_dead_job(self):
        for role, what in (("declare-odd", "^variable odd has 1 NaN and 2 infinities in 5 values"),
                           ("declare-odd-table", "^table items has NaN or infinities in 2 of 100 rows, first in key 7, ")):
            with self.subTest(role):
                self.peer(role, self.job).kill()
                found = self.examine()
                self.assertRegex(found["not-finite"], what)
                self.assertIn("its state: dead", found["leftover"])
                os.truncate(support.SHM / f"ps_shm.{self.job}.0", 4096)
                self.assertRegex(self.examine()["leftover"], "its state: damaged")
                self.assertEqual(run("inspect_shm", "rm", "--job", self.job, "--force").code, 0)

    def test_values_that_are_no_numbers_in_a_job_that_is_kept(self):
        self.launch("--workers", "1", "--mode", "sync", "--steps", "20", "--lr", "1e30", "--on-nan", "warn", "--keep-segments")
        self.assertRegex(self.examine()["not-finite"], r"^variable \w+ has \d+ NaN and \d+ infinities in \d+ values")
        self.assertNotIn("nothing is wrong", run("inspect_shm", "doctor", "--job", self.job).out)

    def test_a_job_that_was_ended_before_a_stopped_worker_has_left(self):
        ps, workers = self.train(2)
        workers[1].kill()
        workers[1].communicate()
        support.stop(workers[0])
        ps.send_signal(signal.SIGINT)
        shown = lambda: json.loads(run("inspect_shm", "show", "--job", self.job, "--json").out)
        support.wait_until(lambda: shown()["ended"], "it is ended")
        ps.kill()  # it would wait some seconds for the stopped worker, and then end
        ps.communicate()
        found, pid = self.examine(), workers[0].pid
        self.assertEqual(set(found), {"not-left", "stopped-worker"}, "nothing is to be replaced in a job that is over")
        self.assertRegex(found["not-left"], rf"^its ps has ended the job, and worker 0 \(process {pid}\) has not left it yet / "
                                            rf".*\(kill -9 {pid}\).*inspect_shm rm --job {self.job} ")
        self.assertTrue(found["stopped-worker"].endswith(f"kill -9 {pid} ends it"), found)
        self.assert_fails(1, run("ps_shm", "--job", self.job, "--adopt", "--workers", "2"), "was ended", f"process {pid}")
        workers[0].kill()
        workers[0].communicate()
        self.assertEqual(run("inspect_shm", "rm", "--job", self.job).code, 0)

    def test_shards_of_which_one_has_nearly_all(self):
        self.start("launch_shm", "--job", self.job, "--workers", "1", "--ps-tasks", "2", "--model", "softmax", "--data",
                   "synthetic:40000x10x100", "--batch", "1", "--delay", "all:5ms", "--steps", "100000000")
        support.wait_until(lambda: [w for w in support.workers_of(self.job) or [] if w["steps"] > 2], "it trains")
        self.assertRegex(self.examine(key="advice")["unbalanced-shards"], r"shard 0 has 100 % .*of 2 shards.*--placement")

    def test_a_dead_job_and_one_that_is_damaged(self):
        ps, workers = self.train(1)
        for process in (ps, *workers):
            process.kill()
            process.communicate()
        self.assertRegex(self.examine()["leftover"], "it is unused and occupies .*its state: dead .*--adopt")
        with open(support.SHM / f"ps_shm.{self.job}", "r+b") as control:
            control.truncate(4096)
        self.assertRegex(self.examine()["leftover"], "its state: damaged .*--force")
        self.assertEqual(self.examine("--repair"), {})

    def test_a_folder_in_the_place_of_a_segment(self):
        for name in (f"ps_shm.{self.job}", f"ps_shm.{self.job}.0", f"ps_shm_publication.{self.job}"):
            with self.subTest(name):
                folder = support.SHM / name
                folder.mkdir()
                try:
                    which = "publication" if "publication" in name else "job"
                    if which == "job":
                        self.assertRegex(self.examine()["leftover"], f"^/dev/shm/{name} is a folder, .*by hand")
                    else:
                        out = run("inspect_shm", "doctor").out
                        self.assertIn(f"/dev/shm/{name} is a folder, not a segment\n", out)
                    for force in ([], ["--force"]):
                        if name.endswith(".0"):
                            continue  # removes what else there is, and says what it could not
                        self.assert_fails(1, run("inspect_shm", "rm", "--yes", *force, f"--{which}", self.job), "is a folder")
                finally:
                    folder.rmdir()

    def test_segments_that_were_removed_under_a_running_job(self):
        _, workers = self.train(1)
        for name in support.segments(self.job):
            (support.SHM / name).unlink()
        found = self.examine()["removed-segments"]
        self.assertRegex(found, rf"\b{workers[0].pid}\b")  # the ps may have noticed and ended
        self.assertIn("loginctl enable-linger", found)

    def test_who_only_looks_at_a_job_that_is_removed_is_no_process_of_it(self):
        ps, workers = self.train(1)
        viewer = self.start("inspect_shm", "watch", "--job", self.job)
        self.assertIn("live", support.read_line(viewer.stdout))
        viewer.send_signal(signal.SIGSTOP)  # otherwise it ends with the job
        for process in (workers[0], ps):
            process.terminate()
            support.finish(process)
        with open(f"/proc/{viewer.pid}/maps") as maps:
            self.assertIn(f"/dev/shm/ps_shm.{self.job} (deleted)", maps.read())
        self.assert_fails(1, run("inspect_shm", "doctor", "--job", self.job), f"there is no job '{self.job}'")

    def test_a_job_that_does_not_exist_is_an_error_as_for_other_commands(self):
        for command in ("doctor", "show"):
            self.assert_fails(1, run("inspect_shm", command, "--job", self.job), f"there is no job '{self.job}'")
            self.assert_fails(1, run("inspect_shm", command, "--job", "not/a/name"), "'not/a/name' cannot name a job")


class Nan(Doctor):
    def watch(self):
        watcher = self.start("inspect_shm", "doctor", "--job", self.job, "--json", "--nan-watch", f"{support.PATIENCE}s")
        self.assertIn("watching", support.read_line(watcher.stderr))
        return watcher

    def found_by(self, watcher):
        code, out, err = support.finish(watcher)
        self.assertEqual(code, 3, err)
        found = json.loads(out)
        return found["nan"], next(f["what"] for f in found["findings"] if f["kind"] == "nan-pushed")

    def test_the_worker_whose_push_brings_it_is_named_though_others_push_on(self):
        self.start_ps("--workers", "3")
        for rank in (0, 2):
            self.peer("hammer", self.job, rank)
        watcher = self.watch()
        step = lambda: json.loads(run("inspect_shm", "show", "--job", self.job, "--json").out)["global_step"]
        before = step()
        peer = self.peer("push", self.job, 1, 1, "nan")
        nan, what = self.found_by(watcher)
        self.assertEqual((nan["variable"], nan["element"], nan["ranks"], nan["certain"]), ("w", 0, [1], True), what)
        self.assertTrue(before <= nan["global_step"] <= step(), (before, nan))
        self.assertRegex(what, rf"^worker 1 \(process {peer.process.pid}\) pushed nan to variable w, element 0")

    def test_in_a_sync_step_it_is_the_one_whose_gradient_has_it(self):
        self.start_ps("--workers", "3", "--mode", "sync")
        # One step each, so that their gradients stay in place. They are ready once the third worker has joined.
        peers = [subprocess.Popen([os.environ["PS_SHM_PEER"], "push", self.job, str(rank), "1", "0"], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in (0, 2)]
        try:
            support.wait_until(lambda: len(support.workers_of(self.job) or []) == 2, "two have joined")
            watcher = self.watch()
            self.peer("push", self.job, 1, 1, "inf")
            nan, what = self.found_by(watcher)
            self.assertEqual((nan["ranks"], nan["global_step"]), ([1], 0), what)
        finally:
            for peer in peers:
                peer.kill()
                peer.communicate()

    def test_in_place_it_is_one_of_those_who_have_pushed_meanwhile(self):
        self.start_ps("--workers", "2", "--layout", "inplace")
        self.peer("hammer", self.job, 0)
        watcher = self.watch()
        self.peer("push", self.job, 1, 1, "nan")
        nan, what = self.found_by(watcher)
        self.assertIn(1, nan["ranks"], what)

    def test_initial_values_are_nobodys_push(self):
        self.peer("declare-odd", self.job)
        nan, what = self.found_by(self.watch())
        self.assertEqual((nan["ranks"], nan["element"]), ([], 1))
        self.assertIn("initial values", what)

    def test_in_a_table_it_is_found_by_its_key(self):
        self.peer("declare-odd-table", self.job)
        nan, what = self.found_by(self.watch())
        self.assertEqual((nan["table"], nan["key"], nan["element"], nan["ranks"], nan["variable"]),
                         ("items", 7, 2, [], None))
        self.assertRegex(what, "^an unknown worker pushed nan to table items, key 7, element 2")

    def test_where_none_comes_it_ends_with_the_job(self):
        ps, workers = self.train(1)
        watcher = self.watch()
        for process in (workers[0], ps):
            process.terminate()
            support.finish(process)
        code, out, err = support.finish(watcher)
        found = json.loads(out)
        self.assertEqual((code, found["nan"]), (3 if found["findings"] else 0, None), err)
        self.assertLessEqual({finding["kind"] for finding in found["findings"]}, set(MACHINE))

    def test_a_job_that_is_cut_off_meanwhile_is_said_to_be_damaged(self):
        for segment, size in (("", 4096), (".0", 4096), ("", 0)):
            with self.subTest(segment + str(size)):
                ps, workers = self.train(1)
                watcher = self.watch()
                for process in (ps, *workers):  # otherwise they detect the damage and end, and the watch with them
                    process.send_signal(signal.SIGSTOP)
                os.truncate(support.SHM / f"ps_shm.{self.job}{segment}", size)
                self.assert_fails(1, support.finish(watcher), "damaged", "truncated")
                for process in (ps, *workers):
                    process.kill()
                    process.communicate()
                run("inspect_shm", "rm", "--job", self.job, "--force")


class Machine(Doctor):
    def in_own_mounts(self, script, *more):
        """Runs doctor after a shell script has mounted something; returns its findings and its advice."""
        result = subprocess.run(["unshare", "-m", "sh", "-c", f'{script}; exec "$@"', "sh", support.TOOLS / "inspect_shm",
                                 "doctor", "--json", *more], capture_output=True, text=True, timeout=support.PATIENCE,
                                env=support.environment())
        found = json.loads(result.stdout)
        self.assertEqual(result.returncode, 3 if found["findings"] else 0, result.stderr)
        return by_kind(found["findings"]), by_kind(found["advice"])

    def test_more_threads_than_cores(self):
        cores = os.cpu_count()
        if cores > 16:
            self.skipTest("that would be many processes")
        self.start("launch_shm", "--job", self.job, "--workers", cores + 1, "--model", "count", "--count-interval", "20ms",
                   "--steps", "1000000")
        support.wait_until(lambda: len(support.workers_of(self.job) or []) == cores + 1, "all have joined")
        said = f"{cores + 1} workers with {cores + 1} threads share {cores} cores"
        self.assertIn(said, self.examine(key="advice")["too-many-threads"])
        self.assertEqual(self.examine(), {}, "it works, so nothing is wrong")
        self.assertIn(f"\nADVICE: {said}\n", run("inspect_shm", "doctor", "--job", self.job).out)

    def test_a_container_with_a_small_shm_and_one_that_is_full(self):
        if not support.may_mount():
            self.skipTest("mounting is not allowed here")
        small = "mount -t tmpfs -o size=64m none /dev/shm"
        found, advice = self.in_own_mounts(small)
        self.assertRegex(advice["small-shm"], "has a capacity of 64.0 MiB only, the default of containers .*--shm-size")
        self.assertNotIn("full-shm", found)
        advice = self.in_own_mounts("mount -t tmpfs -o size=1126400 none /dev/shm")[1]
        self.assertRegex(advice["small-shm"], "has a capacity of 1.1 MiB only / ")
        found, advice = self.in_own_mounts("mount -t tmpfs -o size=80m none /dev/shm; head -c 79m /dev/zero > /dev/shm/filler")
        self.assertRegex(found["full-shm"], r"nearly full: 1\.0 MiB of 80\.0 MiB")
        self.assertNotIn("small-shm", advice)

    def test_a_table_that_has_too_few_rows_since_dev_shm_is_full(self):
        if not support.may_mount():
            self.skipTest("mounting is not allowed here")
        self.addCleanup(support.kill_programs_of, self.job)
        script = """mount -t tmpfs -o size=4m none /dev/shm && tools=$1 job=$2 counter=$3 && shift 3
            "$tools/launch_shm" --job "$job" "$@" >&2 & launch=$!
            until "$tools/inspect_shm" vars --job "$job" --json 2>&1 | grep -q "$counter.: *[1-9]"; do
                kill -0 $launch || exit
            done
            "$tools/inspect_shm" doctor --job "$job" --json; "$tools/inspect_shm" vars --job "$job" --json
            kill $launch; wait"""
        for evict, counter, what, todo, line in (
                ("none", "refused", r"has dropped \d+ pushes of new keys", "--evict lfu", "it refuses new keys"),
                ("lru", "evicted", r"has evicted \d+ rows to make room", r"--max-rows\)$",
                 "it evicts rows to make space for new keys")):
            with self.subTest(evict):
                result = subprocess.run(
                    ["unshare", "-m", "sh", "-c", script, "sh", support.TOOLS, self.job, counter, "--model", "logistic",
                     "--keyed", "--data", "zipf:1000000000x8000x20", "--epochs", "100000", "--workers", "2", "--max-rows",
                     "4000000", "--evict", evict], capture_output=True, text=True, timeout=support.PATIENCE,
                    env=support.environment())
                doctor, end = json.JSONDecoder().raw_decode(result.stdout)
                advice = by_kind(doctor["advice"])["full-table"]
                self.assertRegex(advice, rf"^table \w+ has \d+ of at most 4000000 rows, and /dev/shm has no memory .*{what}")
                self.assertRegex(advice, rf"--shm-size.*{todo}")
                (table,) = json.loads(result.stdout[end:])["tables"]
                self.assertLess(table["rows_with_room"], 400_000)
                self.assertGreaterEqual(table["rows_with_room"], table["rows"])
                # One of the two workers says so, once.
                said = re.findall(r"table '\w+' has \d+ of at most 4000000 rows, .*: from now on (.*);", result.stderr)
                self.assertEqual(said, [line], result.stderr)

    def test_systemd_that_removes_segments_at_the_last_logout(self):
        if why := why_not():
            self.skipTest(why)
        if not support.may_mount():
            self.skipTest("mounting is not allowed here")
        folder = pathlib.Path("/tmp") / f"ps-test-{os.getpid()}"
        subprocess.run(["install", "-D", "-m", "755", support.TOOLS / "ps_shm", folder / "ps_shm"], check=True)
        self.addCleanup(subprocess.run, ["rm", "-r", folder])
        ps = support.start(folder / "ps_shm", "--job", self.job, user=OWNER, group=OWNER, extra_groups=[])
        self.started.append(ps)
        self.assertIn(self.job, support.read_line(ps.stdout))
        logind = "mount -t tmpfs none /run; mkdir -p /run/systemd/seats /run/systemd/logind.conf.d"
        advice = lambda mounts: self.in_own_mounts(mounts, "--job", self.job)[1]
        self.assertIn(f"loginctl enable-linger {OWNER}", advice(logind)["remove-ipc"])
        for setting in ("RemoveIPC=no", "RemoveIPC = false"):
            kept = f"{logind}; echo '{setting}' > /run/systemd/logind.conf.d/keep.conf"
            self.assertNotIn("remove-ipc", advice(kept))
        # logind is absent
        self.assertNotIn("remove-ipc", advice("mount -t tmpfs none /run"))


if __name__ == "__main__":
    support.main()
