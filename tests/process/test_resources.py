"""What runs out gives exit code 1 and one line that says what to raise; a running job is unharmed."""
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import unittest

import support
from support import ProcessTest, run

MIB = 1 << 20


def limited(*limits):
    """For preexec_fn: (which, value) of each."""
    def apply():
        for which, value in limits:
            resource.setrlimit(which, (value, value))
    return apply


@unittest.skipIf(support.SLOWNESS > 1, "skipped: sanitizers themselves need more than these limits allow")
class Limits(ProcessTest):
    """A job of one worker that counts, while another program fails beside it."""

    def setUp(self):
        super().setUp()
        self.extra = 0
        self.ps = self.start_ps("--workers", "1", "--max-workers", "2", "--linger", "60")
        self.worker = self.start("worker_shm", "--job", self.job, "--model", "count", "--steps", "200", "--interval",
                                 "5ms")
        support.wait_until(lambda: support.workers_of(self.job), "the worker has joined")

    def tearDown(self):
        try:
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
        result = run("worker_shm", "--job", self.job, "--model", "count", "--steps", "1", "--size", 4 * MIB,
                     preexec_fn=limited((resource.RLIMIT_FSIZE, MIB)))
        self.assert_fails(1, result, "shape")  # found before anything grows

    def test_a_full_worker_table_is_named(self):
        second = self.start("worker_shm", "--job", self.job, "--model", "count", "--steps", "1000", "--interval", "1s")
        support.wait_until(lambda: len(support.workers_of(self.job) or []) == 2, "the second worker has joined")
        self.assert_fails(1, self.another(), "max-workers")
        second.send_signal(signal.SIGINT)
        self.assertEqual(support.finish(second)[0], 130)
        self.extra = 1


class Growth(ProcessTest):
    def test_a_variable_beyond_the_limit_of_file_sizes_is_an_error_and_no_signal(self):
        ps = self.start_ps("--workers", "3")
        result = run("worker_shm", "--job", self.job, "--model", "count", "--steps", "1", "--size", MIB,
                     preexec_fn=limited((resource.RLIMIT_FSIZE, MIB)))
        self.assert_fails(1, result, "ulimit -f")
        code, out, err = run("worker_shm", "--job", self.job, "--model", "count", "--steps", "3")
        self.assertEqual(code, 0, err)
        self.assertIn("var = 3", out)
        ps.send_signal(signal.SIGTERM)
        support.finish(ps)

    def test_a_full_directory_is_named_and_the_job_goes_on(self):
        ps = self.start_ps("--workers", "3", "--placement", "partition", "--partitions", "1024")
        count = ("worker_shm", "--job", self.job, "--model", "count", "--steps", "5", "--size", "1024")
        self.assertEqual(run(*count)[0], 0)  # one part a row: as many as the directory can have
        result = run("worker_shm", "--job", self.job, "--model", "softmax")
        self.assert_fails(1, result, "directory", "full", "1024", "partition less")
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
        if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
            self.skipTest("no mounts of one's own are allowed here")
        def launch(size):
            process = subprocess.Popen(
                [*unshare, str(support.TOOLS / "launch_shm"), "--job", self.job, "--model", "count", "--workers", "2",
                 "--steps", "10", "--size", str(size)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, env=support.environment())
            return support.finish(process)
        code, _, err = launch(100 * MIB)
        self.assertEqual(code, 1)
        self.assertIn("--shm-size", err)
        code, out, err = launch(10)
        self.assertEqual(code, 0, err)
        self.assertIn("20", out)


if __name__ == "__main__":
    support.main()
