"""When a resource runs out, the program exits with code 1 and one line that says what to raise; a running job is
unharmed."""
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tempfile
import unittest

import streams
import support
from support import ProcessTest, run

MIB = 1 << 20
STRANGER = 65530  # a user without other processes, even while other tests run


def limited(*limits):
    """Sets the limits (which, value) of a child process; for preexec_fn."""
    def apply():
        for which, value in limits:
            resource.setrlimit(which, (value, value))
    return apply


@unittest.skipIf(support.SLOWNESS > 1, "skipped: sanitizers themselves need more than these limits allow")
class Limits(ProcessTest):
    """A job of one worker with the count model, while another program fails beside it."""

    def setUp(self):
        super().setUp()
        self.extra = 0
        self.ps = self.start_ps("--workers", "1", "--max-workers", "2", "--linger", "60")
        self.gate = self.close_gate()  # keeps it at work as long as the test takes
        self.worker = self.start("worker_shm", "--job", self.job, "--model", "count", "--steps", "200", "--count-interval",
                                 "5ms", env=self.gate.env)
        support.wait_until(lambda: support.workers_of(self.job), "the worker has joined")

    def tearDown(self):
        try:
            self.gate.open()
            code, out, err = support.finish(self.worker)
            self.assertEqual(code, 0, err)
            self.assertIn(f"var = {200 + self.extra}", out)
        finally:
            super().tearDown()

    def another(self, *arguments, **options):
        return run("worker_shm", "--job", self.job, "--model", "count", "--steps", "1", *arguments, **options)

    def test_too_few_open_files_are_named(self):
        for program, *arguments in (("worker_shm", "--job", self.job, "--model", "count", "--steps", "1"),
                                    ("inspect_shm", "show", "--job", self.job),
                                    ("ps_shm", "--job", support.new_job())):
            with self.subTest(program):
                result = run(program, *arguments, preexec_fn=limited((resource.RLIMIT_NOFILE, 4)))
                self.assert_fails(1, result, "ulimit -n")

    def test_too_little_address_space_is_named(self):
        status = os.statvfs(support.SHM)
        if status.f_blocks * status.f_frsize < 2048 * MIB:
            self.skipTest("/dev/shm is so small that mapping it all takes little address space")
        result = self.another(preexec_fn=limited((resource.RLIMIT_AS, 1024 * MIB)))
        self.assert_fails(1, result, "ulimit -v")

    def test_too_small_a_limit_of_file_sizes_is_named(self):
        result = run("ps_shm", "--job", support.new_job(), preexec_fn=limited((resource.RLIMIT_FSIZE, 4096)))
        self.assert_fails(1, result, "ulimit -f")
        result = run("worker_shm", "--job", self.job, "--model", "count", "--steps", "1", "--count-size", 4 * MIB,
                     preexec_fn=limited((resource.RLIMIT_FSIZE, MIB)))
        self.assert_fails(1, result, "shape")  # found before the job grows

    def test_a_full_worker_table_is_named(self):
        second = self.start("worker_shm", "--job", self.job, "--model", "count", "--steps", "1000", "--count-interval", "1s")
        support.wait_until(lambda: len(support.workers_of(self.job) or []) == 2, "the second worker has joined")
        self.assert_fails(1, self.another(), "max-workers")
        second.send_signal(signal.SIGINT)
        self.assertEqual(support.finish(second)[0], 130)
        self.extra = 1


class Launches(ProcessTest):
    """A launch that fails half-way ends the processes that it has started and leaves no segment."""

    COUNT = ("--model", "count", "--steps", "10000", "--workers", "12", "--max-workers", "12")

    def launch_limited(self, *limits, **options):
        result = run("launch_shm", "--job", self.job, *self.COUNT, preexec_fn=limited(*limits), **options)
        self.assert_nothing_left()
        return result

    @unittest.skipIf(support.SLOWNESS > 1, "skipped: sanitizers themselves need more than these limits allow")
    def test_wherever_it_runs_out_of_open_files(self):
        failed = 0
        for files in range(6, 42):
            with self.subTest(files=files):
                code, out, err = self.launch_limited((resource.RLIMIT_NOFILE, files))
                if code == 0:
                    continue  # the limit was sufficient
                failed += 1
                self.assertEqual(code, 1)
                self.assertIn("ulimit -n", err.splitlines()[-1])
        self.assertGreater(failed, 20)

    @unittest.skipIf(support.SLOWNESS > 1, "skipped: sanitizers themselves need more than these limits allow")
    def test_wherever_it_runs_out_of_processes(self):
        if why := support.why_not_as(STRANGER, support.TOOLS / "launch_shm"):
            self.skipTest(why)
        failed = 0
        for processes in range(1, 14):
            with self.subTest(processes=processes):
                code, out, err = self.launch_limited((resource.RLIMIT_NPROC, processes), user=STRANGER, group=STRANGER,
                                                     extra_groups=[], env={"OPENBLAS_NUM_THREADS": "1"})
                if code == 0:
                    continue
                failed += 1
                self.assertEqual(code, 1)
                self.assertIn("ulimit -u", err)
        self.assertGreater(failed, 5)

    def test_where_a_program_is_missing(self):
        for there, missing in ((("launch_shm",), "ps_shm"), (("launch_shm", "ps_shm"), "worker_shm")):
            with self.subTest(missing=missing), tempfile.TemporaryDirectory() as folder:
                for program in there:
                    shutil.copy(support.TOOLS / program, folder)
                result = run(f"{folder}/launch_shm", "--job", self.job, *self.COUNT, env={"PATH": folder})
                self.assert_fails(1, result, missing, "PATH")
                self.assert_nothing_left()

    def test_where_dev_shm_is_full(self):
        script = 'mount -t tmpfs -o size=$1 none /dev/shm && shift && "$@"; echo $?; ls /dev/shm'
        if not support.may_mount():
            self.skipTest("no mounts of one's own are allowed here")
        for size, elements in (("16k", 1), ("256k", 1), ("64m", 100 * MIB)):
            with self.subTest(size=size):
                _, out, err = run("unshare", "-m", "sh", "-c", script, "sh", size, support.TOOLS / "launch_shm", "--job",
                                  self.job, *self.COUNT, "--count-size", elements)
                self.assertEqual(out, "1\n", err)
                self.assertIn("/dev/shm", err)

    def test_where_the_parameters_alone_do_not_fit_nothing_is_started(self):
        script = 'mount -t tmpfs -o size=1m none /dev/shm && "$@"; echo $?; ls /dev/shm'
        if not support.may_mount():
            self.skipTest("no mounts of one's own are allowed here")
        _, out, err = run("unshare", "-m", "sh", "-c", script, "sh", support.TOOLS / "launch_shm", "--job", self.job,
                          "--model", "mf", "--factors", 1000)
        self.assertEqual(out, "1\n", err)
        self.assertRegex(err, r"\Alaunch_shm: the parameters of the model take \d+\.\d MiB, of which /dev/shm has 1\.0 left; "
                              r"free some \(inspect_shm ls\), .* --shm-size\)\n\Z")

    def test_workers_that_fail_for_one_reason_are_told_of_in_one_line(self):
        # Each waits until all are there, and then fails by itself, though it is asked to end.
        worker = """#!/bin/sh
trap '' TERM
: >"$FOLDER/$$"
until [ "$(ls "$FOLDER" | wc -l)" -ge 3 ]; do :; done
case " $* " in *' --rank 1 '*) echo 'worker_shm: no luck' >&2 ;; *) echo 'worker_shm: no memory' >&2 ;; esac
exit 1
"""
        with tempfile.TemporaryDirectory() as folder, support.programs_beside(worker) as launch:
            code, _, err = run(launch, "--job", self.job, *self.COUNT, "--workers", 3, env={"FOLDER": folder})
        self.assertEqual(code, 1)
        lines = sorted(err.splitlines())
        self.assertEqual([line.split(";")[0] for line in lines],
                         ["launch_shm: worker 1 ended with exit code 1: no luck",
                          "launch_shm: workers 0, 2 ended with exit code 1: no memory"])

    def test_where_a_table_fills_dev_shm(self):
        script = 'mount -t tmpfs -o size=4m none /dev/shm && "$@"'
        if not support.may_mount():
            self.skipTest("no mounts of one's own are allowed here")
        for evict in ("lru", "none"):
            with self.subTest(evict=evict):
                code, out, err = run("unshare", "-m", "sh", "-c", script, "sh", support.TOOLS / "launch_shm", "--job", self.job,
                                     "--model", "logistic", "--keyed", "--data", "zipf:1000000000x8000x20", "--epochs", "1",
                                     "--workers", "2", "--max-rows", "4000000", "--evict", evict, "--json")
                self.assertEqual(code, 0, err)
                table = json.loads(out)["table"]
                self.assertLess(table["rows"], 80000)  # of a hundred thousand keys or more
                self.assertGreater(table["evicted" if evict == "lru" else "refused"], 0)
                self.assertEqual(table["refused" if evict == "lru" else "evicted"], 0)


class LostOutput(ProcessTest):
    """A program fails if it cannot print its output, but not if the reader has closed the pipe."""

    COUNT = ("--model", "count", "--steps", "3")

    def run_into(self, target, program, *arguments):
        with open(target, "w") as out:
            return run(program, *arguments, stdout=out)

    def assert_lost(self, result):
        self.assert_fails(1, (result[0], "", result[2]), "output was lost", "No space left on device")

    def test_a_summary_that_is_lost_is_an_error(self):
        for form in ((), ("--json",)):
            with self.subTest(form):
                self.assert_lost(self.run_into("/dev/full", "launch_shm", "--job", self.job, "--workers", "1",
                                               *self.COUNT, *form))
                self.assert_lost(self.run_into("/dev/full", "worker_shm", "--standalone", "--steps", "3", "--quiet", *form))
                self.assert_lost(self.run_into("/dev/full", "worker_shm", "--standalone", "--steps", "3", "--quiet",
                                               "--model", "logistic", *form))

    def test_so_is_what_a_ps_and_its_worker_say_which_go_on_to_their_end(self):
        with open("/dev/full", "w") as full:
            ps = self.start("ps_shm", "--job", self.job, "--workers", "2", stdout=full)
        self.assert_lost(self.run_into("/dev/full", "worker_shm", "--job", self.job, *self.COUNT))
        code, out, err = run("worker_shm", "--job", self.job, *self.COUNT)
        self.assertEqual(code, 0, err)
        self.assertIn("var = 6", out)
        self.assert_lost(support.finish(ps))
        self.assertEqual(support.segments(self.job), [])

    def test_so_is_what_is_asked_for(self):
        self.start_ps()
        for command in (("ls",), ("show",), ("vars", "--json"), ("events",), ("set", "lr=1", "--json"), ("doctor",)):
            of_job = [] if command[0] == "ls" else ["--job", self.job]
            with self.subTest(command):
                self.assert_lost(self.run_into("/dev/full", "inspect_shm", *command, *of_job))
        for program, *arguments in (("ps_shm", "--help"), ("worker_shm", "--help"), ("launch_shm", "--help"),
                                    ("launch_shm", "--help-markdown"), ("inspect_shm", "--help"),
                                    ("inspect_shm", "set", "--help")):
            with self.subTest(program=program, arguments=arguments):
                self.assert_lost(self.run_into("/dev/full", program, *arguments))

    def test_the_exit_code_of_a_failure_or_an_interruption_stays(self):
        with open("/dev/full", "w") as full:
            ps = self.start("ps_shm", "--job", self.job, stdout=full)
        support.wait_until(lambda: support.segments(self.job), "the job is there")
        ps.send_signal(signal.SIGINT)
        code, _, err = support.finish(ps)
        self.assertEqual(code, 130)
        self.assertIn("output was lost", err)

    def test_a_reader_that_has_gone_neither_ends_a_training_nor_makes_it_fail(self):
        reading, writing = os.pipe()
        os.close(reading)
        try:
            ps = self.start("ps_shm", "--job", self.job, "--workers", "1", stdout=writing)
            for program, *arguments in (("worker_shm", "--job", self.job, "--model", "count", "--steps", "30",
                                         "--count-interval", "50ms"),  # it reports once a second
                                        ("launch_shm", "--job", support.new_job(), "--workers", "1", *self.COUNT)):
                with self.subTest(program):
                    code, _, err = run(program, *arguments, stdout=writing)
                    self.assertEqual((code, streams.without_waits(err)), (0, ""))
            code, _, err = support.finish(ps)
            self.assertEqual((code, streams.without_waits(err)), (0, ""))
        finally:
            os.close(writing)

    def test_a_closed_standard_output_is_lost_and_nothing_is_printed_into_a_segment(self):
        shell = lambda line, *words: run("sh", "-c", line, support.TOOLS, self.job, *words)
        ps = self.start("sh", "-c", 'exec "$0/ps_shm" --job "$1" --workers 2 >&-', support.TOOLS, self.job)
        count = 'exec "$0/worker_shm" --job "$1" --model count --steps 3 --wait-job 600'
        for closed in (">&-", "<&- >&-"):
            with self.subTest(closed):
                code, _, err = shell(f"{count} {closed}")
                self.assertEqual(code, 1)
                self.assertIn("output was lost", err)
        code, _, err = support.finish(ps)
        self.assertEqual(code, 1)
        self.assertIn("output was lost", err)
        self.assertEqual(support.segments(self.job), [])


class Growth(ProcessTest):
    def test_a_variable_beyond_the_limit_of_file_sizes_is_an_error_and_no_signal(self):
        ps = self.start_ps("--workers", "3")
        result = run("worker_shm", "--job", self.job, "--model", "count", "--steps", "1", "--count-size", MIB,
                     preexec_fn=limited((resource.RLIMIT_FSIZE, MIB)))
        self.assert_fails(1, result, "ulimit -f")
        code, out, err = run("worker_shm", "--job", self.job, "--model", "count", "--steps", "3")
        self.assertEqual(code, 0, err)
        self.assertIn("var = 3", out)
        ps.send_signal(signal.SIGTERM)
        support.finish(ps)

    def test_a_full_directory_is_named_and_the_job_goes_on(self):
        ps = self.start_ps("--workers", "3", "--placement", "partition", "--partitions", "16384")
        count = ("worker_shm", "--job", self.job, "--model", "count", "--steps", "5", "--count-size", "16384")
        self.assertEqual(run(*count)[0], 0)  # one part per row, which fills the directory
        result = run("worker_shm", "--job", self.job, "--model", "softmax")
        self.assert_fails(1, result, "directory", "full", "16384", "use fewer parts")
        code, out, err = run(*count)
        self.assertEqual(code, 0, err)
        self.assertIn("var = 10", out)
        ps.send_signal(signal.SIGTERM)
        support.finish(ps)

    def test_huge_pages_that_the_system_refuses_are_a_warning(self):
        setting = pathlib.Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
        if setting.exists() and "[never]" not in setting.read_text() and "[deny]" not in setting.read_text():
            self.skipTest("this system grants huge pages")
        _, _, err = run("launch_shm", "--job", self.job, "--model", "count", "--steps", "3", "--workers", "1",
                        "--huge-pages", "--verbose")
        self.assertIn("no huge pages", err)

    def test_a_small_dev_shm_is_an_error_that_names_it(self):
        script = 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"'
        unshare = ["unshare", "-m", "sh", "-c", script, "sh"]
        if not support.may_mount():
            self.skipTest("no mounts of one's own are allowed here")
        def launch(size):
            process = subprocess.Popen(
                [*unshare, str(support.TOOLS / "launch_shm"), "--job", self.job, "--model", "count", "--workers", "2",
                 "--steps", "10", "--count-size", str(size)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, env=support.environment())
            return support.finish(process)
        code, _, err = launch(100 * MIB)
        self.assertEqual(code, 1)
        self.assertIn("--shm-size", err)
        code, out, err = launch(10)
        self.assertEqual(code, 0, err)
        self.assertIn("20", out)

    def test_what_killed_tests_have_left_is_removed_and_nothing_else(self):
        child = subprocess.Popen(["true"])
        child.wait()  # no process has its pid now
        left = [support.SHM / f"ps_shm.test-{child.pid}-0{part}" for part in ("", ".0", ".w1.1")]
        others = [support.SHM / f"ps_shm.{self.job}", support.SHM / f"ps_shm.mine-{child.pid}-0"]
        for segment in left + others:
            segment.touch()
        try:
            done = subprocess.run(["bash", "-c", ". tools/setup.sh && clear_leftovers"], cwd=support.SOURCE,
                                  capture_output=True, text=True, timeout=support.PATIENCE)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual([s for s in left if s.exists()], [])
            self.assertEqual([s for s in others if not s.exists()], [])
            for segment in left:
                self.assertIn(str(segment), done.stderr)
        finally:
            for segment in left + others:
                segment.unlink(missing_ok=True)


if __name__ == "__main__":
    support.main()
