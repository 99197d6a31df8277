"""Start and end under valgrind: no invalid access, no use of uninitialized memory, nothing definitely lost."""
import os
import shutil
import signal
import subprocess
import unittest

import support
from support import TOOLS, ProcessTest

MEMCHECK = ["valgrind", "--quiet", "--error-exitcode=99", "--leak-check=full", "--errors-for-leak-kinds=definite",
            "--show-leak-kinds=definite", "--track-fds=no"]
PATIENCE = 10 * support.PATIENCE


@unittest.skipUnless(shutil.which("valgrind"), "skipped: valgrind is not installed")
@unittest.skipIf("LLVM_PROFILE_FILE" in os.environ, "skipped: a program that counts its lines does not run in valgrind")
class Valgrind(ProcessTest):
    def check(self, program, *arguments):
        process = subprocess.Popen([*MEMCHECK, str(TOOLS / program), *map(str, arguments)], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=support.environment())
        self.started.append(process)
        return process

    def assert_clean(self, process, code=0):
        got, out, err = support.finish(process, PATIENCE)
        self.assertEqual(got, code, f"{out}\n{err}")
        self.assertNotRegex(err, r"==\d+==")

    def test_a_job_from_start_to_end(self):
        for mode in ("async", "sync"):
            with self.subTest(mode):
                ps = self.check("ps_shm", "--job", self.job, "--workers", "2", "--mode", mode)
                workers = [self.check("worker_shm", "--job", self.job, "--model", "count", "--steps", "20", "--count-size",
                                      "5000") for _ in range(2)]
                for worker in workers:
                    self.assert_clean(worker)
                self.assert_clean(ps)
                self.assertEqual(support.segments(self.job), [])

    def test_an_interrupted_job_and_its_inspector(self):
        ps = self.check("ps_shm", "--job", self.job, "--workers", "1")
        worker = self.check("worker_shm", "--job", self.job, "--model", "count", "--steps", "1000000", "--count-interval", "5ms")
        support.wait_until(lambda: sum(w["steps"] for w in support.workers_of(self.job) or []) > 5, "it counts", PATIENCE)
        for command in ("ls", "show", "vars", "workers", "events", "dump", "doctor"):
            self.assert_clean(self.check("inspect_shm", command, "--job", self.job) if command != "ls" else
                              self.check("inspect_shm", "ls"))
        ps.send_signal(signal.SIGTERM)
        self.assert_clean(worker)
        self.assert_clean(ps, 130)
        self.assertEqual(support.segments(self.job), [])


if __name__ == "__main__":
    support.main()
