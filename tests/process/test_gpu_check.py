"""Without a GPU, tools/gpu_check, --device cuda and --device auto report that there is none."""
import glob
import json
import lzma
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import support

sys.path.insert(0, str(support.SOURCE / "tools" / "gpu_checks"))
import programs  # noqa: E402
import python_package  # noqa: E402
import table  # noqa: E402

GPU_CHECK = support.SOURCE / "tools" / "gpu_check"
HAS_GPU = bool(glob.glob("/dev/nvidia[0-9]*")) or os.path.exists("/dev/dxg")


def check(*arguments):
    done = subprocess.run([GPU_CHECK, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=support.PATIENCE)
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
    def test_gpu_check_says_so_at_once_also_in_the_json_and_builds_nothing(self):
        build = support.SOURCE / "build" / "gpu"
        before = build.exists()
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "new" / "report.json"
            code, out, _ = check("--json", report)
            self.assertEqual(code, 77)
            self.assertRegex(out, r"^gpu_check: no GPU: .+\n$")
            self.assertEqual(out, f"gpu_check: no GPU: {json.loads(report.read_text())['no_gpu']}\n")
        self.assertEqual(build.exists(), before)

    def test_what_was_packed_is_unpacked_all_the_same(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "lib").mkdir()
            (pathlib.Path(folder) / "lib" / "libx.so.1.xz").write_bytes(lzma.compress(b"x"))
            self.assertEqual(check("--prebuilt", folder, "--json", f"{folder}/report.json")[0], 77)
            self.assertEqual((pathlib.Path(folder) / "lib" / "libx.so.1").read_bytes(), b"x")

    def test_so_do_the_checks_themselves_of_a_build_also_beside_a_dead_job(self):
        ps = self.start_ps("--workers", 1)
        ps.kill()
        ps.communicate()
        checks = support.SOURCE / "tools" / "gpu_checks"
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.json"
            done = subprocess.run([sys.executable, checks, "--build", support.TOOLS.parent, "--json", report],
                                  capture_output=True, text=True, timeout=support.PATIENCE)
            self.assertEqual(done.returncode, 77, done.stdout + done.stderr)
            self.assertRegex(done.stdout, r"^gpu_check: no GPU: .+\n$")
            self.assertIn(json.loads(report.read_text())["no_gpu"], done.stdout)
        support.run("inspect_shm", "rm", "--job", self.job)

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


MIG = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11)
  MIG 1g.10gb     Device  0: (UUID: MIG-aa)
  MIG 1g.10gb     Device  1: (UUID: MIG-bb)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-22)
"""


class Spread(support.ProcessTest):
    """launch_shm makes one GPU, or one MIG instance, visible to each worker."""

    def shown(self, devices, *options, workers=4, **environment):
        """CUDA_VISIBLE_DEVICES of each worker, by rank; None if it is not set."""
        with tempfile.TemporaryDirectory() as folder:
            smi = pathlib.Path(folder) / "nvidia-smi"
            smi.write_text(f"#!/bin/sh\ncat <<'END'\n{MIG}END\n")
            smi.chmod(0o755)
            job = support.new_job()
            process = self.start("launch_shm", "--job", job, "--model", "count", "--steps", 10 ** 7,
                                 "--interval", "10ms", "--device", devices, *(options or ("--workers", workers)),
                                 env={"PATH": f"{folder}:{os.environ['PATH']}", **environment})
            support.wait_until(lambda: len(support.workers_of(job) or []) >= workers, f"{workers} workers")
            code, out, _ = support.run("inspect_shm", "show", "--job", job, "--json")
            self.assertEqual(code, 0)
            self.settings = json.loads(out)["settings"]
            found = {}
            for worker in support.workers_of(job):
                variables = pathlib.Path(f"/proc/{worker['pid']}/environ").read_text().split("\0")
                of_cuda = [text.split("=", 1)[1] for text in variables if text.startswith("CUDA_VISIBLE_DEVICES=")]
                self.assertLessEqual(len(of_cuda), 1)
                found[worker["rank"]] = of_cuda[0] if of_cuda else None
            process.terminate()
            support.finish(process)
            return found

    @unittest.skipIf(HAS_GPU, "skipped: there is a GPU")
    def test_ranks_go_round_all_instances_and_gpus(self):
        self.assertEqual(self.shown("auto"), {0: "MIG-aa", 1: "MIG-bb", 2: "GPU-22", 3: "MIG-aa"})

    @unittest.skipIf(HAS_GPU, "skipped: there is a GPU")
    def test_without_a_number_of_workers_there_is_one_for_each_instance_and_gpu_and_they_share_the_cores(self):
        self.assertEqual(self.shown("auto", "--mode", "async", workers=2, CUDA_VISIBLE_DEVICES="5,7"), {0: "5", 1: "7"})
        threads = min(max(len(os.sched_getaffinity(0)) // 2, 1), 8)
        self.assertEqual([int(self.settings[name]) for name in ("workers", "threads")], [2, threads])
        self.assertEqual(self.shown("auto", "--threads", 1, workers=1, CUDA_VISIBLE_DEVICES="5"), {0: "5"})
        self.assertEqual([int(self.settings[name]) for name in ("workers", "threads")], [1, 1])
        self.assertEqual(set(self.shown("auto,0:cpu", "--mode", "async", workers=3)), {0, 1, 2})

    @unittest.skipIf(HAS_GPU, "skipped: there is a GPU")
    def test_what_the_environment_names_is_what_there_is_and_the_cpu_sees_all_of_it(self):
        self.assertEqual(self.shown("auto,1:cpu", CUDA_VISIBLE_DEVICES="2,GPU-33,-1,5"),
                         {0: "2", 1: "2,GPU-33,-1,5", 2: "2", 3: "GPU-33"})


# Imitates the output of launch_shm on a GPU; FAULT names the error to imitate.
LAUNCH = """#!{python}
import json, os, sys
options = dict(zip(sys.argv[1:], sys.argv[2:]))
if os.environ.get("FAULT") == "job" and options.get("--mode") == "async" and options["--device"] == "cuda": sys.exit(3)
fault, device = os.environ.get("FAULT"), options["--device"]
gpu = dict(strategy="as it is", resident=True, graph=True, redone_chunks=0, bounced_chunks=0)
if fault != "untimed":
    gpu.update(idle_share=0.5, step_us=dict(wait=1.0, pull=1.0, compute=1.0, push=1.0))
on_gpu = {{"cpu": 0, "cuda": 3, "cuda:0": 3}}.get(device, 2) if fault != "cpu" else 0
workers = [dict(gpu=gpu)] * on_gpu + [dict()] * (3 - on_gpu)
total = 3.0 * float(options.get("--steps", 0)) - (fault == "sum")
print(json.dumps(dict(steps_per_second=100.0, per_worker=workers, value_min=total, value_max=total,
                      test_accuracy=0.9 - 0.1 * (fault == "accuracy" and device == "cuda"),
                      digest="0" if fault != "digest" else str(os.getpid()))))
"""
INSPECT = """#!{python}
import json
import lzma
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


SUITE = """#!{python}
import os, sys
sys.exit(os.environ.get("FAULT") == "soak")
"""


class WithStandIns(unittest.TestCase):
    """The check fails if any of its parts does. Programs imitate the output of those that need a GPU."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name).resolve()
        for name, text in (("tools/launch_shm", LAUNCH), ("tools/inspect_shm", INSPECT), ("benches/gpu", BENCH),
                           ("tools/ps_shm", SUITE), ("tools/worker_shm", SUITE), ("tests/gpu_tests_on_gpu", SUITE)):
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

    def check(self, fault="", *options, env=None):
        done = subprocess.run([sys.executable, support.SOURCE / "tools" / "gpu_checks", "--build", self.build, "--json",
                               self.json, "--quick", *options], capture_output=True, text=True, timeout=support.PATIENCE,
                              env={**os.environ, "FAULT": fault, "PATH": f"{self.build}:{os.environ['PATH']}", **(env or {})})
        return done.returncode, done.stdout + done.stderr, json.loads(self.json.read_text())

    def test_all_is_well(self):
        code, text, found = self.check()
        self.assertEqual(code, 0, text)
        self.assertEqual([check["name"] for check in found["checks"] if not check["holds"]], ["PyTorch"])  # skipped
        for key in ("test", "benchmark", "training", "accuracy", "digests", "count"):
            self.assertIn(key, found)
        self.assertEqual(found["training"]["sync"]["idle_share"], 0.5)

    def test_parts_add_to_one_report_and_replace_what_they_said_before(self):
        code, text, found = self.check("digest", "--part", "5")
        self.assertEqual(code, 1, text)
        self.assertNotIn("benchmark", found)
        code, text, found = self.check("", "--part", "3")
        self.assertEqual(code, 1, text)  # the digests still differ
        self.assertIn("digests", found)
        self.assertIn("benchmark", found)
        code, text, found = self.check("", "--part", "5")
        self.assertEqual(code, 0, text)
        self.assertEqual({check["part"] for check in found["checks"]}, {3, 5})

    def test_what_failed_without_a_gpu_is_forgotten_once_there_is_one(self):
        self.assertEqual(self.check("", "--part", "1")[0], 0)
        code, text, found = self.check("", "--part", "5", "--no-gpu", "none here")
        self.assertEqual((code, found["no_gpu"]), (77, "none here"), text)
        self.assertIn("test", found)
        code, text, found = self.check("", "--part", "5")
        self.assertEqual(code, 0, text)
        self.assertNotIn("no_gpu", found)

    def test_programs_find_cublas_that_only_a_python_package_has(self):
        folder = self.build / "packages" / "nvidia" / "cu13" / "lib"
        folder.mkdir(parents=True)
        (folder / "libcublas.so.13").touch()
        tests = json.loads((self.build / "meson-info" / "intro-tests.json").read_text())
        tests[0]["cmd"] = ["/bin/sh", "-c", f"case $LD_LIBRARY_PATH in /first:{folder}*) ;; *) exit 1;; esac"]
        (self.build / "meson-info" / "intro-tests.json").write_text(json.dumps(tests))
        self.assertEqual(self.check("", "--part", "1")[0], 1)
        found = {"PYTHONPATH": str(folder.parents[2]), "LD_LIBRARY_PATH": "/first"}
        code, text, _ = self.check("", "--part", "1", env=found)
        self.assertEqual(code, 0, text)

    def test_a_check_that_is_ended_ends_what_it_runs_and_writes_what_it_has(self):
        begun = self.build / "begun"
        tests = json.loads((self.build / "meson-info" / "intro-tests.json").read_text())
        waits = f"import os, pathlib, signal; pathlib.Path({str(begun)!r}).write_text(str(os.getpid())); signal.pause()"
        tests.insert(1, {**tests[0], "name": "waits", "timeout": support.PATIENCE, "cmd": [sys.executable, "-c", waits]})
        (self.build / "meson-info" / "intro-tests.json").write_text(json.dumps(tests))
        process = subprocess.Popen([sys.executable, support.SOURCE / "tools" / "gpu_checks", "--build", self.build, "--json",
                                    self.json, "--part", "1"], stdin=subprocess.DEVNULL)
        support.wait_until(lambda: begun.exists() and begun.read_text(), "the test that waits")
        process.terminate()
        self.assertEqual(process.wait(support.PATIENCE), 143)
        self.assertFalse(pathlib.Path(f"/proc/{begun.read_text()}").exists())
        self.assertEqual(json.loads(self.json.read_text())["test"]["one"]["exit_code"], 0)

    def test_a_soak_lasts_and_says_what_it_saw(self):
        for fault in ("", "soak"):
            code, text, found = self.check(fault, "--part", "6", "--soak", "0.01")
            self.assertEqual(code, int(fault == "soak"), text)
            self.assertGreater(found["soak"]["rounds"], 0)

    def test_what_is_packed_runs_elsewhere(self):
        packed = self.build / "packed"
        done = subprocess.run([sys.executable, support.SOURCE / "tools" / "gpu_checks", "--build", self.build, "--pack",
                               packed], capture_output=True, text=True, timeout=support.PATIENCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        (self.build / "benches" / "gpu").unlink()
        self.build = packed
        code, text, found = self.check("", "--part", "1")
        self.assertEqual(code, 0, text)
        self.assertEqual(found["test"]["one"]["exit_code"], 0)

    def test_the_libraries_of_a_pack_travel_compressed_and_serve_where_there_are_none(self):
        # Made small, without the libraries that a sanitizer build adds to its own programs.
        program = "extern int openblas_get_num_threads(void); int main(void) { return openblas_get_num_threads() < 1; }"
        subprocess.run([*os.environ.get("CC", "cc").split(), "-x", "c", "-", "-lopenblas", "-o",
                        self.build / "benches" / "gpu"], input=program.encode(), check=True)
        packed = self.build / "packed"
        done = subprocess.run([sys.executable, support.SOURCE / "tools" / "gpu_checks", "--build", self.build, "--pack",
                               packed], capture_output=True, text=True, timeout=support.PATIENCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        there = {path.name for path in (packed / "lib").iterdir()}
        self.assertIn("libopenblas.so.0.xz", there)
        self.assertNotIn("libgcc_s.so.1.xz", there)
        self.assertIn("libgcc_s.so.1.xz", {path.name for path in (packed / "fallback").iterdir()})
        self.assertEqual({name for name in there if not name.endswith(".xz")}, set())
        self.build = packed
        self.assertEqual(self.check("", "--part", "1")[0], 0)
        for name in there:
            self.assertTrue((packed / "lib" / name.removesuffix(".xz")).exists())
        self.assertFalse((packed / "lib" / "libgcc_s.so.1").exists(), "the box has one")
        run = {"LD_LIBRARY_PATH": str(packed / "lib")}
        found = subprocess.run(["/usr/bin/ldd", packed / "benches" / "gpu"], capture_output=True, text=True, env=run).stdout
        self.assertIn(f"{packed / 'lib'}/libopenblas.so.0", found)
        self.assertEqual(subprocess.run([packed / "benches" / "gpu"], capture_output=True, env=run).returncode, 0)

    def test_a_pack_has_the_python_package_for_each_python_whose_module_was_built(self):
        modules = [self.build / name for name in ("_core.cpython-311-x86_64-linux-gnu.so", "_core.abi3.so")]
        for module in modules:
            module.write_bytes(b"")
        packed = self.build / "packed"
        done = subprocess.run([sys.executable, support.SOURCE / "tools" / "gpu_checks", "--build", self.build, "--pack",
                               packed, *(word for module in modules for word in ("--module", module))],
                              capture_output=True, text=True, timeout=support.PATIENCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Python modules: abi3.so, cpython-311-x86_64-linux-gnu.so", done.stdout)
        package = packed / "python" / "ps_shm"
        self.assertLessEqual({"__init__.py", "torch", "bridge", *(module.name for module in modules)},
                             {path.name for path in package.iterdir()})

    def test_without_the_python_package_or_pytorch_that_part_is_skipped(self):
        code, text, _ = self.check("", "--part", "7")
        self.assertEqual(code, 0, text)
        self.assertIn("skipped  PyTorch: the Python package is not built", text)
        (self.build / "python").mkdir()
        (self.build / "python" / "torch.py").write_text("raise ImportError('none here')")
        code, text, _ = self.check("", "--part", "7")
        self.assertEqual(code, 0, text)
        self.assertRegex(text, "skipped  PyTorch: .* cannot import torch: .*none here")

    def test_a_build_that_lacks_a_program_is_not_packed(self):
        (self.build / "tools" / "ps_shm").unlink()
        done = subprocess.run([sys.executable, support.SOURCE / "tools" / "gpu_checks", "--build", self.build, "--pack",
                               self.build / "packed"], capture_output=True, text=True, timeout=support.PATIENCE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("tools/ps_shm", done.stderr)

    def test_tools_that_serialise_launches_do_not_see_the_test_whose_stream_waits_for_the_processor(self):
        sanitizer = self.build / "compute-sanitizer"
        sanitizer.write_text("#!/bin/sh\ncase $* in *--test-case-exclude=*stream*,gpu\\ deaths:*) exit 0;; esac; exit 9\n")
        sanitizer.chmod(0o755)
        code, text, found = self.check("", "--sanitize")
        self.assertEqual(code, 0, text)
        self.assertEqual(found["memcheck"]["one"]["exit_code"], 0)

    def test_whatever_fails_makes_the_whole_fail_and_the_rest_is_still_looked_at(self):
        for fault in ("test", "skip", "bench", "lost", "torn", "refused", "rows", "untimed",
                      "cpu", "accuracy", "digest", "sum", "job"):
            with self.subTest(fault):
                code, text, found = self.check(fault)
                self.assertEqual(code, 1, text)
                self.assertIn("FAILED", text)
                self.assertIn("digests", found)


class Report(unittest.TestCase):
    """The report of the check and its parts."""

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
        with tempfile.NamedTemporaryFile("r") as said:
            done = programs.run(["sh", "-c", f"sleep 1000 & echo $! > {said.name}; exec sleep 1000"], 1)
            self.assertEqual(done.code, 124)
            [started] = said.read().split()
        support.wait_until(lambda: not support.is_running(started), "what it has started has ended")

    def test_what_the_python_package_does_is_judged(self):
        good = {"torch": "2.0", "training": {"apart": 1e-6, "moved": 0.1}, "sums": {"expected": -4.0, "values": [-4.0]},
                "publication": {"bytes": 1e9, "publish_GB/s": 20.0, "first_publish_s": 0.5, "take_GB/s": 40.0}}
        wrong = ({"training": {"apart": 0.01, "moved": 0.1}}, {"training": {"apart": 0.0, "moved": 0.0}},
                 {"sums": {"expected": -4.0, "values": [-4.0, -3.0]}}, {"publication": {"error": "mixed"}},
                 {"sums": {"error": "refused"}})
        for fault in ({}, *wrong):
            report = table.Report({"cuda": {}})
            python_package.judge(report, {**good, **fault})
            self.assertEqual(len(report.checks), 3)
            self.assertEqual([check["holds"] for check in report.checks].count(False), int(bool(fault)), fault)

    def test_errors_are_found_however_deep(self):
        found = {"a": {"b": [{"error": "x"}]}, "error": "y"}
        self.assertEqual(sorted(programs.errors_in(found)), [": y", "a/b: x"])


if __name__ == "__main__":
    support.main()
