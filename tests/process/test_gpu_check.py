"""Where there is no GPU: tools/gpu_check, --device cuda and --device auto say so."""
import glob
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

import support

sys.path.insert(0, str(support.SOURCE / "tools" / "gpu_checks"))
import programs  # noqa: E402
import table  # noqa: E402

GPU_CHECK = support.SOURCE / "tools" / "gpu_check"
HAS_GPU = bool(glob.glob("/dev/nvidia[0-9]*")) or os.path.exists("/dev/dxg")


def check(*arguments):
    done = subprocess.run([GPU_CHECK, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


class Usage(unittest.TestCase):
    def test_help_and_wrong_usage(self):
        code, out, _ = check("--help")
        self.assertEqual(code, 0)
        self.assertIn("Usage: tools/gpu_check", out)
        for wrong in (("--nonsense",), ("--json",)):
            self.assertEqual(check(*wrong)[0], 2)


@unittest.skipIf(HAS_GPU, "skipped: there is a GPU")
class WithoutGpu(support.ProcessTest):
    def test_gpu_check_says_so_at_once_and_builds_nothing(self):
        build = support.SOURCE / "build" / "gpu"
        before = build.exists()
        began = time.monotonic()
        code, out, _ = check()
        self.assertEqual(code, 77)
        self.assertRegex(out, r"^gpu_check: no GPU: .+\n$")
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual(build.exists(), before)

    def test_so_do_the_checks_themselves_of_a_build(self):
        checks = support.SOURCE / "tools" / "gpu_checks"
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.json"
            done = subprocess.run([sys.executable, checks, "--build", support.TOOLS.parent, "--json", report],
                                  capture_output=True, text=True, timeout=support.PATIENCE)
            self.assertEqual(done.returncode, 77, done.stdout + done.stderr)
            self.assertRegex(done.stdout, r"^gpu_check: no GPU: .+\n$")
            self.assertFalse(report.exists())

    def test_a_worker_that_must_have_a_gpu_fails_in_one_line(self):
        self.start_ps("--workers", 1, "--steps", 200)
        got = support.run("worker_shm", "--job", self.job, "--device", "cuda", "--data", "digits")
        self.assert_fails(1, got, "worker_shm", "device cuda: ")

    def test_a_worker_that_may_have_one_trains_on_the_cpu_and_says_so_once(self):
        self.start_ps("--workers", 1, "--steps", 200)
        code, out, err = support.run("worker_shm", "--job", self.job, "--device", "auto", "--data", "digits", "--json")
        self.assertEqual(code, 0, err)
        notices = [line for line in err.splitlines() if "GPU" in line or "CUDA" in line]
        self.assertEqual(len(notices), 1, err)
        worker = json.loads(out)
        self.assertNotIn("gpu", json.dumps(worker))


# Says what launch_shm would with a GPU; FAULT is what goes wrong.
LAUNCH = """#!{python}
import json, os, sys
options = dict(zip(sys.argv[1:], sys.argv[2:]))
fault, device = os.environ.get("FAULT"), options["--device"]
gpu = dict(strategy="as it is", resident=True, graph=True, redone_chunks=0, bounced_chunks=0)
if fault != "untimed":
    gpu.update(idle_share=0.5, step_us=dict(wait=1.0, pull=1.0, compute=1.0, push=1.0))
on_gpu = {{"cpu": 0, "cuda": 3}}.get(device, 2) if fault != "cpu" else 0
workers = [dict(gpu=gpu)] * on_gpu + [dict()] * (3 - on_gpu)
total = 3.0 * float(options.get("--steps", 0)) - (fault == "sum")
print(json.dumps(dict(steps_per_second=100.0, per_worker=workers, value_min=total, value_max=total,
                      test_accuracy=0.9 - 0.1 * (fault == "accuracy" and device == "cuda"),
                      digest="0" if fault != "digest" else str(os.getpid()))))
"""
INSPECT = """#!{python}
import json
print(json.dumps(dict(cuda=dict(no_gpu=None, gpus=[dict(device=0, name="stand-in", pci_address="")]))))
"""
BENCH = """#!{python}
import json, os, sys
fault = os.environ.get("FAULT")
ways = ("pull", "processor_gathers_then_copy", "bare_copy", "push", "copy_then_processor_pushes")
adds = dict(is_exact=fault != "lost", lost_share=0.1 * (fault == "lost"))
print(json.dumps(dict(seconds=1.0, facts=dict(gpus=[dict(host_atomics=dict(float_add=8))]),
                      adds_with_processors=dict(processors_alone=adds, one_by_one=adds),
                      tearing=dict(kernel_reads=dict(words=9, torn_4_bytes=int(fault == "torn"), torn_8_bytes=0,
                                                     copies=1, mixed_copies=1)),
                      death=dict(error="x") if fault == "bench" else dict(),
                      rows=dict(warnings=[], cases=[dict(elements=16, ids="zipf", batch=9, is_right=fault != "rows",
                                                         **dict.fromkeys(ways, {{"rows/s": 1e6}}))]),
                      links=dict(cases=[dict(warnings=["refused"] if fault == "refused" else [])]))))
sys.exit(fault == "bench")
"""


class WithStandIns(unittest.TestCase):
    """Whether the check fails when anything does, with programs that say what a GPU's would."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name).resolve()
        for name, text in (("tools/launch_shm", LAUNCH), ("tools/inspect_shm", INSPECT), ("benches/gpu", BENCH)):
            path = self.build / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.format(python=sys.executable))
            path.chmod(0o755)
        info = self.build / "meson-info"
        info.mkdir()
        (info / "meson-info.json").write_text(json.dumps({"directories": {"build": "/elsewhere"}}))
        tests = [{"name": "one", "suite": ["ps-shm:gpu"], "timeout": 9, "env": {},
                  "cmd": ["/bin/sh", "-c", "case $FAULT in test) exit 1;; skip) exit 77;; esac; ls /elsewhere/tools"]},
                 {"name": "other", "suite": ["ps-shm:unit"], "timeout": 9, "env": {}, "cmd": ["/bin/false"]}]
        (info / "intro-tests.json").write_text(json.dumps(tests))
        self.json = self.build / "report.json"

    def check(self, fault=""):
        done = subprocess.run([sys.executable, support.SOURCE / "tools" / "gpu_checks", "--build", self.build, "--json",
                               self.json, "--quick"], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "FAULT": fault})
        return done.returncode, done.stdout + done.stderr, json.loads(self.json.read_text())

    def test_all_is_well(self):
        code, text, found = self.check()
        self.assertEqual(code, 0, text)
        self.assertTrue(all(check["holds"] for check in found["checks"]))
        for key in ("test", "benchmark", "training", "accuracy", "digests", "count"):
            self.assertIn(key, found)
        self.assertEqual(found["training"]["sync"]["idle_share"], 0.5)

    def test_whatever_fails_makes_the_whole_fail_and_the_rest_is_still_looked_at(self):
        for fault in ("test", "skip", "bench", "lost", "torn", "refused", "rows", "untimed",
                      "cpu", "accuracy", "digest", "sum"):
            with self.subTest(fault):
                code, text, found = self.check(fault)
                self.assertEqual(code, 1, text)
                self.assertIn("FAILED", text)
                self.assertIn("digests", found)


class Report(unittest.TestCase):
    """Its parts."""

    def test_a_failed_check_fails_the_whole_and_a_skipped_one_does_not(self):
        report = table.Report({"cuda": {}})
        self.assertFalse(report.all_hold(), "nothing was checked")
        report.add("one", True, "")
        report.add("two", None, "")
        self.assertTrue(report.all_hold())
        report.add("three", False, "")
        self.assertFalse(report.all_hold())
        self.assertIn("FAILED", report.as_text())

    def test_a_program_that_takes_too_long_is_ended_with_what_it_started(self):
        began = time.monotonic()
        done = programs.run(["sh", "-c", "sleep 100 & sleep 100"], 0.2)
        self.assertEqual(done.code, 124)
        self.assertLess(time.monotonic() - began, 9)

    def test_errors_are_found_however_deep(self):
        found = {"a": {"b": [{"error": "x"}]}, "error": "y"}
        self.assertEqual(sorted(programs.errors_in(found)), [": y", "a/b: x"])


if __name__ == "__main__":
    support.main()
