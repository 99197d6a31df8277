"""Without a GPU, tools/gpu_check, --device cuda and --device auto report that there is none."""
import argparse
import contextlib
import glob
import importlib.util
import json
import lzma
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

import support

sys.path.insert(0, str(support.SOURCE / "tools" / "dev" / "gpu_checks"))
import benchmark  # noqa: E402
import decisions  # noqa: E402
import first_light  # noqa: E402
import jobs  # noqa: E402
import peers  # noqa: E402
import programs  # noqa: E402
import python_package  # noqa: E402
import table  # noqa: E402
import ways  # noqa: E402

GPU_CHECK = support.SOURCE / "tools" / "gpu_check"
HAS_GPU = bool(glob.glob("/dev/nvidia[0-9]*")) or os.path.exists("/dev/dxg")


CALL_SECONDS = 540


def main_of_checks():
    path = support.SOURCE / "tools" / "dev" / "gpu_checks" / "__main__.py"
    spec = importlib.util.spec_from_file_location("main_of_gpu_checks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


class WithoutNvcc(unittest.TestCase):
    def test_a_gpu_that_nothing_can_be_built_for_is_an_error_and_not_no_gpu(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "tools").mkdir()
            (folder / "dev").mkdir()
            (folder / "dev" / "nvidia0").touch()  # the script is shown this file in place of a GPU's
            text = GPU_CHECK.read_text()
            self.assertIn("'/dev/nvidia", text)
            (folder / "tools" / "gpu_check").write_text(text.replace("'/dev/nvidia", f"'{folder}/dev/nvidia"))
            (folder / "tools" / "setup.sh").write_text((support.SOURCE / "tools" / "setup.sh").read_text())
            (folder / "bin").mkdir()
            for program in ("bash", "dirname", "readlink"):  # no python3 to ask the driver
                (folder / "bin" / program).symlink_to(shutil.which(program))
            for options in ((), ("--pack", folder / "packed")):
                done = subprocess.run([shutil.which("bash"), folder / "tools" / "gpu_check", "--json", folder / "report.json", *options],
                                      env={"PATH": str(folder / "bin"), "CUDA_HOME": str(folder)}, stdin=subprocess.DEVNULL,
                                      capture_output=True, text=True, timeout=support.PATIENCE)
                self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
                self.assertIn("gpu_check: nvcc, which builds for the GPU, is not found; set CUDA_HOME", done.stderr)
            self.assertFalse((folder / "report.json").exists())


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
        checks = support.SOURCE / "tools" / "dev" / "gpu_checks"
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


class OnANewBox(support.ProcessTest):
    """The commands for a box whose GPU was never used: without one they are understood as far as they come. (The sections of
    the benchmark, on the simulated GPU, are in test_gpu_bench.py.)"""
    DEVICE = "simulated" if os.environ.get("PS_SHM_CUDA") == "simulated" else "cuda"

    @unittest.skipIf(HAS_GPU, "skipped: there is a GPU")
    def test_each_part_of_the_check_says_that_there_is_no_gpu(self):
        code, out, err = support.run("inspect_shm", "doctor")
        self.assertIn(code, (0, 3), err)  # 3: something of another job
        self.assertRegex(out, r"(?m)^CUDA: ")
        with tempfile.TemporaryDirectory() as folder:
            for part in (("--part", "1"), ("--part", "5", "--quick"), ("--part", "6", "--soak", "2"), ("--part", "8"), ("--part", "9"),
                         ("--first-light", "1"), ("--first-light", "4")):
                report = pathlib.Path(folder) / f"{'-'.join(part)}.json"
                code, out, err = check("--prebuilt", support.TOOLS.parent, *part, "--json", report)
                self.assertEqual((code, err), (77, ""), out)
                self.assertEqual(out, f"gpu_check: no GPU: {json.loads(report.read_text())['no_gpu']}\n")

    @unittest.skipIf(HAS_GPU, "skipped: there is a GPU")
    def test_jobs_say_what_they_measured_or_why_not_as_json(self):
        small = ("--model", "mlp", "--batch", 100, "--data", "synthetic:20x10x600", "--seed", 1, "--steps", 30)
        dense = [(*small, "--workers", workers, "--mode", mode, *way) for workers in (1, 3) for mode in ("async", "sync")
                 for way in ((), ("--enqueue", "step"), ("--enqueue", "kernels"), ("--wire", "bfloat16-push"))]
        counts = [("--model", "count", "--count-size", 2 * 10 ** 5, "--threads", threads, "--steps", 40, *way) for threads in (1, 8)
                  for way in ((), ("--optimizer", "adam"), ("--chunk-bytes", "1MiB"))]
        for options in dense + counts:
            with self.subTest(options):
                code, out, err = support.run("launch_shm", "--json", *options, "--device", self.DEVICE)
                found = json.loads(out)
                if self.DEVICE == "cuda":
                    self.assertEqual(code, 1, out + err)
                    self.assertRegex(found["error"], "^device cuda: ")
                    continue
                self.assertEqual(code, 0, out + err)
                self.assertRegex(out, r'"steps_per_second":[0-9.]+')
                gpu = found["per_worker"][0]["gpu"]
                # Some steps are timed, of which a worker in async may have done none; a count has nothing to time.
                of_steps = ("step_us", "idle_share") if "sync" in options else ()
                for key in ("strategy", "reasons", "graph", "graph_operations", "bounced_chunks", "threads", *of_steps):
                    self.assertIn(key, gpu)
                if "--threads" in options:
                    self.assertEqual(gpu["threads"], options[options.index("--threads") + 1])
        found = self.launch(*small, "--workers", 3, "--mode", "sync")
        self.assertGreater(found["steps_per_second"], 0)
        self.assertRegex(found["digest"], "^[0-9a-f]{16}$")

    def test_a_sync_job_is_seen_to_go_on_after_a_death(self):
        self.start_ps("--workers", 2, "--mode", "sync")
        count = ("--model", "count", "--count-size", 1000, "--steps", 10 ** 8, "--quiet")
        workers = [self.start("worker_shm", "--job", self.job, *count, "--device", "cpu") for _ in range(2)]

        def global_step():
            shown = support.run("inspect_shm", "show", "--job", self.job, "--json")[1]
            return int(re.search('"global_step": ([0-9]+)', shown)[1])  # as grep finds it

        support.wait_until(lambda: global_step() > 0, "a step of both")
        workers[0].kill()
        workers[0].wait()
        seen = global_step()
        support.wait_until(lambda: global_step() > seen, "a step of the other one")

    def test_the_files_of_tests_for_the_sanitizer_have_cases(self):
        program = support.TOOLS.parent / "tests" / "gpu_tests_on_cpu"  # which has the same cases
        if not program.exists():
            self.skipTest("skipped: this build has no tests of kernels")

        def count(*options):
            said = subprocess.run([program, "--count", *options], capture_output=True, text=True, timeout=support.PATIENCE).stdout
            return int(re.search(r"passing the current filters: (\d+)", said)[1])

        for file in ("transfer_kernels", "row_kernels", "gpu_link"):
            cases = f"--source-file=*/test_{file}.cpp"
            kept = count(cases, "--test-case-exclude=*can wait on the stream*")
            self.assertGreater(kept, 0)
            self.assertEqual(count(cases) - kept, int(file in ("gpu_link", "transfer_kernels")), "what a tool that serialises launches cannot run")


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
                                 "--count-interval", "10ms", "--device", devices, *(options or ("--workers", workers)),
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
        self.assertEqual(self.settings["chunk_bytes"], "gpu")
        self.assertEqual(self.shown("auto", "--threads", 1, workers=1, CUDA_VISIBLE_DEVICES="5"), {0: "5"})
        self.assertEqual([int(self.settings[name]) for name in ("workers", "threads")], [1, 1])
        self.assertEqual(set(self.shown("auto,0:cpu", "--mode", "async", workers=3)), {0, 1, 2})

    @unittest.skipIf(HAS_GPU, "skipped: there is a GPU")
    def test_chunks_are_for_gpus_unless_their_size_is_given_or_no_worker_may_be_on_one(self):
        for devices, options, chunks in (("cpu,1:auto", (), "gpu"), ("cpu", (), 0), ("auto", ("--chunk-bytes", "auto"), 0),
                                         ("auto", ("--chunk-bytes", "4KiB"), 4096), ("cpu", ("--chunk-bytes", "gpu"), "gpu")):
            with self.subTest(devices=devices, options=options):
                self.shown(devices, "--workers", 2, *options, workers=2, CUDA_VISIBLE_DEVICES="5,7")
                self.assertEqual(self.settings["chunk_bytes"], chunks)

    @unittest.skipIf(HAS_GPU, "skipped: there is a GPU")
    def test_what_the_environment_names_is_what_there_is_and_the_cpu_sees_all_of_it(self):
        self.assertEqual(self.shown("auto,1:cpu", CUDA_VISIBLE_DEVICES="2,GPU-33,-1,5"),
                         {0: "2", 1: "2,GPU-33,-1,5", 2: "2", 3: "GPU-33"})


# Imitates the output of launch_shm on a GPU; FAULT names the error to imitate.
LAUNCH = """#!{python}
import json, os, sys
options = dict(zip(sys.argv[1:], sys.argv[2:]))
if "--workers" not in options: sys.exit("as many workers as the box has GPUs")
count = int(options["--workers"])
if os.environ.get("FAULT") == "job" and options.get("--mode") == "async" and options["--device"] == "cuda": sys.exit(3)
fault, device = os.environ.get("FAULT"), options["--device"]
gpu = dict(strategy="as it is", threads=1, resident=True, graph="step", graph_operations=11, redone_chunks=0, bounced_chunks=0)
if fault != "untimed":
    gpu.update(idle_share=0.5 if count > 1 else 0.25, step_us=dict(wait=1.0, pull=1.0, compute=1.0, push=1.0))
on_gpu = {{"cpu": 0, "cuda": count, "cuda:0": count}}.get(device, count - 1) if fault != "cpu" else 0
workers = [dict(gpu=gpu)] * on_gpu + [dict()] * (count - on_gpu)
is_wrong = fault == "one process" and "--workers-per-process" in options
total = count * float(options.get("--steps", 0)) - (fault == "sum" or is_wrong)
rate = 200.0 if "CUDA_MPS_PIPE_DIRECTORY" in os.environ else 100.0
print(json.dumps(dict(steps_per_second=rate, per_worker=workers, value_min=total - (fault == "uneven"), value_max=total,
                      test_accuracy=0.9 - 0.1 * (fault == "accuracy" and device == "cuda"),
                      digest="0" if fault not in ("digest", "repeat" if options.get("--model") == "mlp" else "digest") and not is_wrong else str(os.getpid()))))
"""
INSPECT = """#!{python}
import json, time
print(json.dumps(dict(cuda=dict(no_gpu=None, gpus=[dict(device=0, name="stand-in", pci_address="")]),
                      global_step=time.monotonic_ns() // 1000000)))
"""
WAITS = "#!/bin/sh\nexec tail -f /dev/null\n"
BENCH = """#!{python}
import json, os, pathlib, signal, sys
fault, section, folder = os.environ.get("FAULT"), sys.argv[sys.argv.index("--only") + 1], sys.argv[sys.argv.index("--to") + 1]
ways = ("pull", "processor_gathers_then_copy", "bare_copy", "push", "copy_then_processor_pushes")
adds = dict(is_exact=fault != "lost", lost_share=0.1 * (fault == "lost"))
rate = 2e6 if "--table-mib" in sys.argv else 1e6
found = dict(adds_with_processors=dict(processors_alone=adds, one_by_one=adds),
             tearing=dict(kernel_reads=dict(words=9, torn_4_bytes=int(fault == "torn"), torn_8_bytes=0, copies=1, mixed_copies=1)),
             death=dict(error="x") if fault == "bench" else dict(),
             rows=dict(warnings=[], table_bytes=1 << 31, cases=[dict(elements=16, ids="zipf", batch=9, is_right=fault != "rows",
                                                **dict.fromkeys(ways, {{"rows/s": rate}}))]),
             links=dict(cases=[dict(warnings=["refused"] if fault == "refused" else [])])).get(section, {{}})
facts = dict(gpus=[dict(host_atomics=dict(float_add=8))])
pathlib.Path(folder, section + ".json").write_text(json.dumps({{"facts": facts, section: found}}))
if fault == "stuck " + section: signal.pause()
sys.exit(fault == "bench" and section == "death")
"""


SUITE = """#!{python}
import os, sys
sys.exit(dict(test=1, skip=77, soak=1).get(os.environ.get("FAULT"), 0))
"""


def write_packages(folder):
    """Empty ones."""
    for name in ("torch", "numpy", "ps_shm/__init__", "ps_shm/torch"):
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


class WithStandIns(unittest.TestCase):
    """The check fails if any of its parts does. Programs imitate the output of those that need a GPU."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name).resolve()
        for name, text in (("tools/launch_shm", LAUNCH), ("tools/inspect_shm", INSPECT), ("benches/gpu", BENCH),
                           ("tools/ps_shm", WAITS), ("tools/worker_shm", WAITS), ("tests/gpu_tests_on_gpu", SUITE), (peers.CONTROL, "#!/bin/sh\nexit 1\n")):
            self.write(name, text.format(python=sys.executable))
        info = self.build / "meson-info"
        info.mkdir()
        (info / "meson-info.json").write_text(json.dumps({"directories": {"build": "/elsewhere"}}))
        tests = [{"name": "one", "suite": ["ps-shm:gpu"], "timeout": 9, "env": {}, "cmd": ["/elsewhere/tests/gpu_tests_on_gpu"]},
                 {"name": "script", "suite": ["ps-shm:gpu"], "timeout": 9, "env": {},
                  "cmd": ["/nowhere/python3", "/nowhere/script.py", "/elsewhere"]},
                 {"name": "other", "suite": ["ps-shm:unit"], "timeout": 9, "env": {}, "cmd": ["/elsewhere/tests/other"]}]
        (info / "intro-tests.json").write_text(json.dumps(tests))
        self.json = self.build / "report.json"

    def write(self, name, text):
        """Puts a program into the build folder."""
        path = self.build / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def check(self, fault="", *options, env=None, quick=("--quick",)):
        done = subprocess.run([sys.executable, support.SOURCE / "tools" / "dev" / "gpu_checks", "--build", self.build, "--json",
                               self.json, *quick, *options], capture_output=True, text=True, timeout=support.PATIENCE,
                              env={**os.environ, "FAULT": fault, "PATH": f"{self.build}:{os.environ['PATH']}", **(env or {})})
        return done.returncode, done.stdout + done.stderr, json.loads(self.json.read_text())

    def test_all_is_well(self):
        code, text, found = self.check()
        self.assertEqual(code, 0, text)
        self.assertEqual([check["name"] for check in found["checks"] if not check["holds"]], ["PyTorch", "sharing with MPS"])  # skipped
        for key in ("test", "benchmark", "training", "accuracy", "digests", "count"):
            self.assertIn(key, found)
        self.assertEqual([found["training"]["sync"][key] for key in ("idle_share", "cuda_one_worker_idle_share")], [0.5, 0.25])
        self.assertIn("a worker's stream waits 50% of the time, with one worker 25%", text)
        self.assertEqual(set(found) - {"checks", "began_unix", "cuda", "parts", "seconds"} - set(sum(table.DATA_OF_PART.values(), [])),
                         set(), "a part that runs again drops what it wrote")

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
        self.assertEqual(found["parts"], {"3": {"quick": True}, "5": {"quick": True}})

    def test_a_part_that_says_nothing_shows_no_figures_of_an_earlier_run(self):
        self.assertIn("benchmark", self.check("", "--part", "3")[2])
        (self.build / "benches" / "gpu").unlink()
        code, text, found = self.check("", "--part", "3")
        self.assertEqual(code, 1, text)
        self.assertNotIn("benchmark", found)
        self.assertNotIn("rows of 16 floats", text)

    def test_what_failed_without_a_gpu_is_forgotten_once_there_is_one(self):
        self.assertEqual(self.check("", "--part", "1")[0], 0)
        code, text, found = self.check("", "--part", "5", "--no-gpu", "none here")
        self.assertEqual((code, found["no_gpu"]), (77, "none here"), text)
        self.assertIn("test", found)
        self.assertEqual(found["cuda"]["gpus"][0]["name"], "stand-in")  # of the parts that had one
        code, text, found = self.check("", "--part", "5")
        self.assertEqual(code, 0, text)
        self.assertNotIn("no_gpu", found)

    def test_programs_find_cublas_that_only_a_python_package_has(self):
        folder = self.build / "packages" / "nvidia" / "cu13" / "lib"
        folder.mkdir(parents=True)
        (folder / "libcublas.so.13").touch()
        self.write("tests/gpu_tests_on_gpu", f"#!/bin/sh\ncase $LD_LIBRARY_PATH in /first:{folder}*) ;; *) exit 1;; esac\n")
        self.assertEqual(self.check("", "--part", "1")[0], 1)
        found = {"PYTHONPATH": str(folder.parents[2]), "LD_LIBRARY_PATH": "/first"}
        code, text, _ = self.check("", "--part", "1", env=found)
        self.assertEqual(code, 0, text)

    def test_a_check_that_is_ended_ends_what_it_runs_and_writes_what_it_has(self):
        self.addCleanup(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_IGN))  # as by nohup
        begun = self.build / "begun"
        tests = json.loads((self.build / "meson-info" / "intro-tests.json").read_text())
        self.write("tests/waits", f"#!{sys.executable}\nimport os, pathlib, signal\n"
                                  f"pathlib.Path({str(begun)!r}).write_text(str(os.getpid()))\nsignal.pause()\n")
        tests.insert(1, {**tests[0], "name": "waits", "timeout": support.PATIENCE, "cmd": ["/elsewhere/tests/waits"]})
        (self.build / "meson-info" / "intro-tests.json").write_text(json.dumps(tests))
        process = subprocess.Popen([sys.executable, support.SOURCE / "tools" / "dev" / "gpu_checks", "--build", self.build, "--json",
                                    self.json, "--part", "1"], stdin=subprocess.DEVNULL)
        support.wait_until(lambda: begun.exists() and begun.read_text(), "the test that waits")
        process.send_signal(signal.SIGHUP)
        process.terminate()
        self.assertEqual(process.wait(support.PATIENCE), 143)
        self.assertFalse(pathlib.Path(f"/proc/{begun.read_text()}").exists())
        self.assertEqual(json.loads(self.json.read_text())["test"]["one"]["exit_code"], 0)

    def test_each_training_is_kept_when_the_terminal_goes(self):
        self.addCleanup(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_DFL))
        calls = self.build / "calls"
        self.write("tools/launch_shm", LAUNCH.format(python=sys.executable).replace("\n", f"""
import os, pathlib, signal
calls = pathlib.Path({str(calls)!r})
with calls.open("a") as file: file.write(f"{{os.getpid()}}\\n")
if len(calls.read_text().splitlines()) == 3: signal.pause()
""", 1))
        process = subprocess.Popen([sys.executable, support.SOURCE / "tools" / "dev" / "gpu_checks", "--build", self.build, "--json",
                                    self.json, "--part", "4"], stdin=subprocess.DEVNULL)
        self.addCleanup(process.terminate)
        support.wait_until(lambda: calls.exists() and calls.read_text().count("\n") == 3, "the third job")
        runs = [{"mode": "async", "device": way} for way in ("cuda", "cuda, by step")]
        self.assertEqual([{key: run[key] for key in ("mode", "device")} for run in
                          json.loads(self.json.read_text())["training"]["runs"]], runs)
        process.send_signal(signal.SIGHUP)
        self.assertEqual(process.wait(support.PATIENCE), 128 + signal.SIGHUP)
        self.assertFalse(pathlib.Path(f"/proc/{calls.read_text().split()[2]}").exists())
        self.assertEqual(len(json.loads(self.json.read_text())["training"]["runs"]), 2)

    def test_a_soak_lasts_and_says_what_it_saw(self):
        for fault in ("", "soak"):
            code, text, found = self.check(fault, "--part", "6", "--soak", "0.01")
            self.assertEqual(code, int(fault == "soak"), text)
            self.assertGreater(found["soak"]["rounds"], 0)

    def test_each_call_of_the_first_light_runs_its_parts_and_writes_few_files(self):
        self.json = self.build / "out" / "report.json"
        self.json.parent.mkdir()
        for call, parts in first_light.CALLS.items():
            began = time.monotonic()
            code, text, found = self.check("", "--first-light", str(call), "--soak", "0.001", quick=())
            self.assertEqual(code, 0, text)
            self.assertLess(time.monotonic() - began, CALL_SECONDS)
            self.assertLessEqual(set(map(str, parts)), set(found["parts"]))
            self.assertLessEqual(len(os.listdir(self.json.parent)), 8)
        self.assertEqual({int(part) for part in found["parts"]}, set(table.DATA_OF_PART) - {4})
        self.assertEqual({int(part) for part, one in found["parts"].items() if one["quick"]}, first_light.QUICK_PARTS)
        self.assertIn("$ uname -a\nLinux ", (self.json.parent / "report.box.txt").read_text())
        self.assertIn("\n  huge pages for tables: no (rows of 2,048 MiB are pulled with 50% of the rate of those of 200 MiB)", text)

    def test_a_call_of_the_first_light_ends_within_nine_minutes_whatever_hangs(self):
        for calls in first_light.CALLS.values():
            self.assertLess(max(calls.values()) + 20, CALL_SECONDS)  # and what hangs is given ten seconds to end
        self.write("tools/launch_shm", WAITS)
        self.write("tests/gpu_tests_on_gpu", WAITS)
        report, began = table.Report({"cuda": {}}, self.json), time.monotonic()
        settings = argparse.Namespace(first_light=4, quick=False, mnist=None, soak=2)
        self.addCleanup(programs.allow, None)
        with unittest.mock.patch.dict(first_light.CALLS, {4: {6: 2, 9: 4}}):
            main_of_checks().run_parts(report, self.build, settings, began)
        self.assertLess(time.monotonic() - began, support.PATIENCE / 2)
        self.assertIn("took longer than", report.data["soak"]["failures"][0])
        self.assertIn((False, "the part's time is over"), [(check["holds"], check["detail"]) for check in report.checks])

    def test_a_call_that_there_is_not_is_refused(self):
        for wrong in (("--first-light", "5"), ("--first-light", "0"), ("--first-light", "x"), ("--first-light", "1", "--part", "2"),
                      ("--part", "10")):
            code, out, err = check("--prebuilt", self.build, *wrong)
            self.assertEqual((code, out), (2, ""))
            self.assertIn("--first-light says which parts" if len(wrong) == 4 else "invalid", err)

    def pack(self, folder, *modules):
        done = subprocess.run([sys.executable, support.SOURCE / "tools" / "dev" / "gpu_checks", "--build", self.build, "--pack",
                               folder, *(word for module in modules for word in ("--module", module))],
                              capture_output=True, text=True, timeout=support.PATIENCE)
        return done.returncode, done.stdout + done.stderr

    def test_a_pack_replaces_the_one_that_was_there(self):
        module, packed = self.build / "_core.cpython-311-x86_64-linux-gnu.so", self.build / "packed"
        module.write_bytes(b"")
        self.assertEqual(self.pack(packed, module)[0], 0)
        for name in ("lib/libx.so.1", "lib/libold.so.2.xz"):  # unpacked, and of a program that no longer needs it
            (packed / name).parent.mkdir(exist_ok=True)
            (packed / name).write_bytes(b"")
        self.assertEqual(self.pack(packed)[0], 0)
        self.assertTrue((packed / "tools" / "launch_shm.xz").exists())
        for name in ("lib/libx.so.1", "lib/libold.so.2.xz", "python"):
            self.assertFalse((packed / name).exists(), name)
        self.assertFalse((self.build / "packed.part").exists())

    def test_a_folder_that_is_no_pack_is_left_as_it_is(self):
        for names in (["tools"], ["meson-info", "thesis.tex"]):
            with tempfile.TemporaryDirectory() as folder:
                for name in names:
                    (pathlib.Path(folder) / name).touch()
                code, text = self.pack(folder)
                self.assertEqual(code, 1)
                self.assertIn(f"has {', '.join(names)} and is no pack", text)
                self.assertEqual(sorted(os.listdir(folder)), names)

    def test_what_is_packed_runs_elsewhere(self):
        packed = self.build / "packed"
        code, text = self.pack(packed)
        self.assertEqual(code, 0, text)
        (self.build / "benches" / "gpu").unlink()
        self.build = packed
        code, text, found = self.check("", "--part", "1")
        self.assertEqual(code, 0, text)
        self.assertEqual({name: test["exit_code"] for name, test in found["test"].items()}, {"one": 0})

    def test_a_pack_travels_compressed_and_its_libraries_serve_where_there_are_none(self):
        # Made small, without the libraries that a sanitizer build adds to its own programs.
        program = "extern int openblas_get_num_threads(void); int main(void) { return openblas_get_num_threads() < 1; }"
        subprocess.run([*os.environ.get("CC", "cc").split(), "-x", "c", "-", "-lopenblas", "-o",
                        self.build / "benches" / "gpu"], input=program.encode(), check=True)
        packed = self.build / "packed"
        code, text = self.pack(packed)
        self.assertEqual(code, 0, text)
        for name in ("tools/launch_shm", "tests/gpu_tests_on_gpu", "benches/gpu"):
            self.assertFalse((packed / name).exists(), name)
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
        code, text = self.pack(packed, *modules)
        self.assertEqual(code, 0, text)
        self.assertIn("Python modules: abi3.so, cpython-311-x86_64-linux-gnu.so", text)
        package = packed / "python" / "ps_shm"
        files = {"__init__.py", "torch", "bridge"}
        self.assertLessEqual({*files, *(f"{module.name}.xz" for module in modules)}, {path.name for path in package.iterdir()})
        self.build = packed
        self.check("", "--part", "1")
        self.assertLessEqual({*files, *(module.name for module in modules)}, {path.name for path in package.iterdir()})

    def test_without_the_python_package_or_pytorch_that_part_is_skipped(self):
        code, text, _ = self.check("", "--part", "7")
        self.assertEqual(code, 0, text)
        self.assertIn("skipped  PyTorch: the Python package is not built", text)
        there = self.build / "python"
        write_packages(there)
        for name in ("torch", "numpy"):
            (there / f"{name}.py").write_text("raise ImportError('none here')")
            code, text, _ = self.check("", "--part", "7")
            self.assertEqual(code, 0, text)
            self.assertRegex(text, f"skipped  PyTorch: .* cannot import {name}: .*none here")
            (there / f"{name}.py").write_text("")

    def test_a_python_package_that_cannot_be_imported_fails(self):
        there = self.build / "python"
        write_packages(there)
        for name in ("__init__", "torch"):
            (there / "ps_shm" / f"{name}.py").write_text("raise ImportError('no module fits')")
            code, text, _ = self.check("", "--part", "7")
            self.assertEqual(code, 1, text)
            self.assertRegex(text, "FAILED   PyTorch: .* cannot import ps_shm.torch: .*no module fits")
            (there / "ps_shm" / f"{name}.py").write_text("")

    def test_a_build_that_lacks_a_program_is_not_packed(self):
        (self.build / "tools" / "ps_shm").unlink()
        code, text = self.pack(self.build / "packed")
        self.assertEqual(code, 1)
        self.assertIn("tools/ps_shm", text)

    def test_tools_that_serialise_launches_do_not_see_the_test_whose_stream_waits_for_the_processor(self):
        self.write("compute-sanitizer", "#!/bin/sh\n[ $PS_SHM_TEST_ROUNDS = 20 ] || exit 8\n"
                                        "case $* in *--test-case-exclude=*stream*,gpu\\ deaths:*) exit 0;; esac; exit 9\n")
        code, text, found = self.check("", "--part", "2")
        self.assertEqual(code, 0, text)
        self.assertEqual([check["name"] for check in found["checks"]], ["memcheck one"])
        code, text, found = self.check("", "--part", "2", quick=())
        self.assertEqual(code, 0, text)
        self.assertEqual([check["name"] for check in found["checks"]], ["memcheck one", "racecheck one", "synccheck one"])

    def test_each_tool_has_its_share_of_the_time_and_says_so_where_there_is_none(self):
        clock, shares = [1000.0], []

        def take_all(command, seconds, env):
            shares.append(programs._allowed_until - clock[0])
            clock[0] = programs._allowed_until
            return programs.Done(124, "", "it took too long")

        def sanitize(seconds):
            programs.allow(seconds)
            report = table.Report({"cuda": {}})
            programs.sanitize_suite(report, self.build)
            self.assertEqual([(check["name"], check["holds"]) for check in report.checks],
                             [(f"{tool} one", False) for tool in ("memcheck", "racecheck", "synccheck")])

        self.addCleanup(programs.allow, None)
        self.write("compute-sanitizer", "")
        with unittest.mock.patch.dict(os.environ, {"PATH": str(self.build)}), \
                unittest.mock.patch.object(programs.time, "monotonic", lambda: clock[0]):
            sanitize(0)
            with unittest.mock.patch.object(programs, "run", take_all):
                sanitize(300)
        self.assertEqual([round(share, 6) for share in shares], [100.0] * 3)

    def test_a_case_that_did_not_run_is_shown_as_skipped(self):
        self.write("tests/gpu_tests_on_gpu", "#!/bin/sh\necho 'a.cpp:7: MESSAGE: skipped: too little memory'\necho good\n")
        code, text, found = self.check("", "--part", "1")
        self.assertEqual(code, 0, text)
        self.assertEqual([(check["holds"], check["detail"]) for check in found["checks"]],
                         [(True, "good"), (None, "too little memory")])
        self.assertEqual(found["test"]["one"]["output"], "a.cpp:7: MESSAGE: skipped: too little memory\ngood\n")

    def test_a_section_of_the_benchmark_that_is_ended_leaves_what_it_has_measured(self):
        report = table.Report({"cuda": {}}, self.json)
        with unittest.mock.patch.object(benchmark, "SECTION_SECONDS", 10), \
                unittest.mock.patch.dict(os.environ, {"FAULT": "stuck tearing"}):
            benchmark.measure(report, self.build, False)
        [failed] = [check for check in report.checks if not check["holds"]]
        self.assertRegex(failed["detail"], "^tearing: exit code 124: it took longer than 10 s$")
        found = json.loads(self.json.read_text())["benchmark"]
        self.assertEqual(set(found) - {"facts"}, {*benchmark.SECTIONS, benchmark.SMALL_TABLE})
        self.assertEqual(found["tearing"]["kernel_reads"]["words"], 9)

    def test_what_went_wrong_in_a_section_is_said_once(self):
        code, text, _ = self.check("bench", "--part", "3")
        self.assertEqual(code, 1, text)
        self.assertIn("\nFAILED   benchmark: death: x\n", text)
        self.write("benches/gpu", "#!/bin/sh\necho 'skip: no GPU (gone)'; exit 77\n")
        code, text, _ = self.check("", "--part", "3")
        self.assertEqual(code, 1, text)
        self.assertIn("FAILED   benchmark: moves: exit code 77: skip: no GPU (gone); links: exit code 77", text)

    def test_a_check_that_is_ended_has_written_each_section(self):
        environment = {**os.environ, "FAULT": "stuck adds_with_processors"}
        process = subprocess.Popen([sys.executable, support.SOURCE / "tools" / "dev" / "gpu_checks", "--build", self.build, "--json",
                                    self.json, "--part", "3"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment)
        self.addCleanup(process.kill)

        def sections():
            return set(json.loads(self.json.read_text()).get("benchmark", {})) if self.json.exists() else set()

        support.wait_until(lambda: sections() == {"facts", "moves", "links", "waits", "tearing"}, "those before it")
        process.terminate()
        self.assertEqual(process.wait(support.PATIENCE), 143)
        self.assertLessEqual(sections(), {"facts", *benchmark.SECTIONS[:5]})

    def test_jobs_run_in_each_way_and_say_what_they_decide(self):
        code, text, found = self.check("", "--part", "8")
        self.assertEqual(code, 0, text)
        self.assertEqual({(mode, workers, way) for mode in found["jobs"] for workers in found["jobs"][mode] for way in found["jobs"][mode][workers]},
                         {(mode, workers, way) for mode in ("async", "sync") for workers in ("1", "3") for way in ways.WAYS})
        self.assertEqual(found["jobs"]["sync"]["3"]["ahead"]["digests"], ["0", "0"])
        self.assertEqual([list(rates) for rates in found["large_counts"].values()], [["1", "8"]] * 3)
        self.assertIn("What the figures decide:\n  steps enqueued ahead: yes (", text)
        self.assertIn("\n  workers on one GPU: processes (", text)

    def test_digests_that_differ_and_counts_that_lose_are_named(self):
        code, text, _ = self.check("repeat", "--part", "8")
        self.assertEqual(code, 1, text)
        self.assertIn("FAILED   sync digests repeat: 1 workers, ahead; ", text)
        code, text, _ = self.check("uneven", "--part", "8")
        self.assertEqual(code, 1, text)
        self.assertIn("FAILED   count of 200,000, adam: ", text)

    def test_a_job_that_fails_is_not_tried_again(self):
        code, text, found = self.check("job", "--part", "8")
        self.assertEqual(code, 0, text)  # that fault is one of --device cuda
        self.write("tools/launch_shm", "#!/bin/sh\necho out of memory; exit 3\n")
        code, text, found = self.check("", "--part", "8")
        self.assertEqual(code, 1, text)
        self.assertEqual(text.count("FAILED   job, async, 3 workers, ahead: "), 1)
        self.assertIn("exit code 3: out of memory", text)

    def test_sharing_is_measured_without_mps_and_with_its_daemon_which_ends(self):
        log = self.build / "log"
        self.write(peers.CONTROL, f"""#!/bin/sh
[ -d "$CUDA_MPS_PIPE_DIRECTORY" ] || exit 9
if [ "$1" = -d ]; then tail -f /dev/null & echo $! >{log}; else read -r line; echo $line >>{log}; kill $(head -1 {log}); fi
""")
        code, text, found = self.check("", "--part", "9")
        self.assertEqual(code, 0, text)
        self.assertEqual(found["mps"], {kind: dict.fromkeys(peers.SHARING, rate) for kind, rate in (("without MPS", 100.0), ("with MPS", 200.0))})
        daemon, said = log.read_text().split()
        self.assertEqual(said, "quit")
        support.wait_until(lambda: not support.is_running(daemon), "the daemon has ended")

    def test_where_mps_does_not_start_or_is_missing_only_its_measurement_is_skipped(self):
        for why in ("does not start", "is not installed"):
            report = table.Report({"cuda": {}})
            with unittest.mock.patch.dict(os.environ, {"PATH": f"{self.build}:/bin" if "start" in why else str(self.build)}):
                peers.share(report, self.build / "tools", True)
            self.assertEqual([(check["holds"], check["detail"]) for check in report.checks], [(None, f"{peers.CONTROL} {why}")])
            self.assertEqual(list(report.data["mps"]), ["without MPS"])
            (self.build / peers.CONTROL).unlink(missing_ok=True)

    def test_a_death_after_which_nothing_goes_on_fails_and_so_does_a_worker_that_ends_first(self):
        def death(seconds):
            report = table.Report({"cuda": {}})
            with unittest.mock.patch.object(peers, "DEATH_SECONDS", seconds):
                peers.time_death(report, self.build / "tools", True)
            [check] = report.checks
            return check["holds"], check["detail"]

        holds, detail = death(support.PATIENCE)
        self.assertTrue(holds, detail)
        looks = self.build / "looks"
        self.write("tools/inspect_shm", f"#!/bin/sh\necho >>{looks}\nstep=$((4 * $(wc -l <{looks})))\n"
                                        "echo '{\"global_step\": '$((step < 24 ? step : 24))'}'\n")
        self.assertEqual(death(5), (False, "no step 26 within 5 s"))
        self.write("tools/worker_shm", "#!/bin/sh\necho no such device >&2; exit 4\n")
        self.write("tools/inspect_shm", "#!/bin/sh\nexit 1\n")  # there is no job
        holds, detail = death(support.PATIENCE)
        self.assertFalse(holds)
        self.assertRegex(detail, "/worker_shm: exit code 4: no such device$")

    def test_a_soak_is_told_how_long(self):
        done = subprocess.run([sys.executable, support.SOURCE / "tools" / "dev" / "gpu_checks", "--build", self.build, "--json",
                               self.json, "--part", "6"], capture_output=True, text=True, timeout=support.PATIENCE)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--part 6 needs --soak MINUTES", done.stderr)

    def test_a_job_that_fails_fails_its_own_check_and_leaves_the_others(self):
        code, text, found = self.check("job", "--part", "5")
        self.assertEqual(code, 1, text)
        failed = {check["name"] for check in found["checks"] if not check["holds"]}
        self.assertEqual(failed, {f"accuracy, {name}, async" for name in ("digits", "logistic", "logistic, keyed", "svm", "svm, keyed")})
        self.assertIn("accuracy, digits, sync", {check["name"] for check in found["checks"]})

    def test_a_part_that_is_not_finished_says_why(self):
        code, text, _ = self.check("cpu", "--part", "4")
        self.assertEqual(code, 1, text)
        self.assertIn("FAILED   part 4 was not finished: a worker of a job on the GPU says nothing of a GPU", text)

    def test_workers_of_one_process_are_held_against_those_of_several(self):
        code, text, found = self.check("one process", "--part", "5")
        self.assertEqual(code, 1, text)
        self.assertEqual({check["name"] for check in found["checks"] if not check["holds"]},
                         {"sync digest, in one process as in three", "sum of three GPU workers of one process"})
        self.assertEqual(list(found["sharing"]), ["1", "2", "4", "2 in one process", "4 in one process"])

    def test_whatever_fails_makes_the_whole_fail_and_the_rest_is_still_looked_at(self):
        for fault in ("test", "skip", "bench", "lost", "torn", "refused", "rows", "untimed",
                      "cpu", "accuracy", "digest", "sum", "job"):
            with self.subTest(fault):
                code, text, found = self.check(fault)
                self.assertEqual(code, 1, text)
                self.assertIn("FAILED", text)
                self.assertIn("digests", found)


DOCTOR = """#!{python}
import os, sys
if sys.argv[1] != "doctor": os.execv("{tools}/inspect_shm", ["inspect_shm", *sys.argv[1:]])
print('{{"cuda": {{"no_gpu": null, "gpus": [{{"device": 0, "name": "simulated", "pci_address": ""}}]}}}}')
"""
ON_DEVICE = """#!{python}
import os, sys
os.execv("{tools}/{program}", ["{program}", *(word.replace("cuda:0", "cuda").replace("cuda", "{device}") for word in sys.argv[1:])])
"""


class OnTheCpu(support.ProcessTest):
    """Jobs as the checks run them, on the simulated GPU where this build has one: the programs are told so by scripts."""
    DEVICE = "simulated" if os.environ.get("PS_SHM_CUDA") == "simulated" else "cpu"

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name)
        (self.build / "tools").mkdir()
        for program in ("launch_shm", "ps_shm", "worker_shm", "inspect_shm"):
            path = self.build / "tools" / program
            path.write_text((DOCTOR if program == "inspect_shm" else ON_DEVICE).format(
                python=sys.executable, tools=support.TOOLS, program=program, device=self.DEVICE))
            path.chmod(0o755)

    def check(self, part):
        report = self.build / "report.json"
        done = subprocess.run([sys.executable, support.SOURCE / "tools" / "dev" / "gpu_checks", "--build", self.build, "--json", report,
                               "--quick", "--part", str(part)], capture_output=True, text=True, timeout=support.PATIENCE)
        return done.returncode, done.stdout + done.stderr, json.loads(report.read_text())

    def test_one_goes_on_after_a_death_and_the_job_is_removed(self):
        report, started, running = table.Report({"cuda": {}}), [], programs.running

        @contextlib.contextmanager
        def noted(command):
            with running(command) as process:
                started.append(process)
                yield process

        with unittest.mock.patch.object(programs, "running", noted):
            peers.time_death(report, self.build / "tools", True)
        [check] = report.checks
        self.assertTrue(check["holds"], check["detail"])
        self.assertEqual([process.returncode == -signal.SIGKILL for process in started], [False, True, False])
        self.assertRegex(check["detail"], "^the other one goes on after [0-9]+ ms; a step of both took [0-9.]+ ms$")
        self.assertEqual(support.segments("gpu-check"), [])

    @unittest.skipUnless(DEVICE == "simulated", "skipped: this build has no simulated GPU")
    def test_the_jobs_and_the_peers(self):
        for part, keys in ((8, {"jobs", "large_counts"}), (9, {"death_in_sync", "mps"})):
            code, text, found = self.check(part)
            self.assertEqual(code, 0, text)
            self.assertLessEqual(keys, set(found))
        self.assertEqual({len(ways_of) for of_mode in found["jobs"].values() for ways_of in of_mode.values()}, {len(ways.WAYS)})
        self.assertEqual({one["threads"] for rates in found["large_counts"].values() for one in rates.values()}, {1, 8})

    def test_the_sections_of_the_benchmark_are_in_the_report(self):
        program = support.TOOLS.parent / "benches" / "gpu_on_fake"
        if not program.exists() or support.SLOWNESS > 1:
            self.skipTest("skipped: this build has no benchmark of the GPU that reports")
        (self.build / "benches").mkdir()
        (self.build / "benches" / "gpu").write_text(f"#!/bin/sh\nexec {program} --patience 100 \"$@\"\n")
        (self.build / "benches" / "gpu").chmod(0o755)
        report = table.Report({"cuda": {}}, self.build / "report.json")
        with unittest.mock.patch.object(benchmark, "SECTIONS", ("waits", "rows")), \
                unittest.mock.patch.object(benchmark, "SECTION_SECONDS", support.PATIENCE):
            benchmark.measure(report, self.build, True)
        self.assertEqual([check["detail"] for check in report.checks if not check["holds"]], [])
        self.assertEqual(set(json.loads(report.path.read_text())["benchmark"]), {"facts", "context", "waits", "rows"})


class Decisions(unittest.TestCase):
    """What the figures decide, on both sides of each limit."""

    def decided(self, **data):
        return {name: text.partition(" (")[0] for name, text in decisions.made_of(data)}

    def test_nothing_is_decided_without_figures(self):
        self.assertEqual(self.decided(), {})
        small = {"4096": {"kernel_pull": {"GB/s": 1.0}, "copy_engine_pull": {"GB/s": 1.0}}}
        self.assertEqual(self.decided(benchmark={"moves": {**small, "error": "took longer"}, "rows": {}, "waits": {"error": "x"}}), {})

    def test_host_memory_is_read_by_the_kernel_that_comes_near_the_copy_engine(self):
        large, two, chunks = *decisions.WINDOWS.values(), decisions.LARGER_CHUNKS
        for loads, bulk, one_stream, two_streams, says in (
                (47.0, 0, 55.0, 55.0, "a kernel, whatever the size"), (40.0, 47.0, 55.0, 55.0, "a kernel, whatever the size"),
                (40.0, 45.0, 50.0, 40.0, large), (46.0, 0, 49.0, 50.0, two), (46.0, 46.0, 49.0, 49.0, chunks)):
            rates = {"kernel_pull": loads, "copy_engine_pull": 55.0, "copy_engine_push": 99.0, "kernel_push_4_blocks": 99.0,
                     "copy_engine_pull_256_kib": one_stream, "copy_engine_pull_256_kib_two_streams": two_streams,
                     "copy_engine_pull_512_kib": 54.0, **({"bulk_pull_16_blocks": bulk} if bulk else {})}
            moves = {"bulk_copies": {}, str(2 << 20): {}, str(16 << 20): {name: {"GB/s": rate} for name, rate in rates.items()}}
            self.assertEqual(self.decided(benchmark={"moves": moves}), {"how the GPU reads host memory": says})

    def test_steps_are_enqueued_ahead_unless_the_stream_waits_longer_or_the_jobs_take_longer(self):
        for stream, ahead, says in ((5.0, 100, "yes"), (9.0, 100, "no"), (5.0, 80, "not where a GPU is shared")):
            waits = {"word_until_flag_by_stream_us": {"median": stream}, "word_until_flag_by_processor_us": {"median": 7.0}}
            of_jobs = {mode: {"3": {"ahead": {"steps_per_second": ahead}, "by step": {"steps_per_second": 90}}} for mode in ("async", "sync")}
            self.assertEqual(self.decided(benchmark={"waits": waits}, jobs=of_jobs), {"steps enqueued ahead": says})
        self.assertEqual(self.decided(jobs=of_jobs), {"steps enqueued ahead": "not where a GPU is shared"})

    def test_threads_are_better_where_they_are_faster_in_both_modes(self):
        for sync, says in ((120, "threads of one process"), (95, "processes")):
            of_jobs = {mode: {"3": {way: {"steps_per_second": rate} for way, rate in
                                    (("ahead", 100), ("by step", 90), ("threads of one process", threads))}}
                       for mode, threads in (("async", 120), ("sync", sync))}
            self.assertEqual(self.decided(jobs=of_jobs)["workers on one GPU"], says)

    def test_huge_pages_pay_where_a_large_table_is_half_as_fast(self):
        for large, says in ((4.0, "yes"), (6.0, "no")):
            found = {name: {"table_bytes": 1 << 31, "cases": [{"elements": 16, "ids": "uniform", "batch": 9, "pull": {"rows/s": rate}}]}
                     for name, rate in ((benchmark.SMALL_TABLE, 10.0), ("rows", large))}
            self.assertEqual(self.decided(benchmark=found), {"huge pages for tables": says})


class Report(unittest.TestCase):
    """The report of the check and its parts."""

    def test_what_runs_on_a_gpu_are_the_programs_that_were_built_for_it(self):
        names = [name for name, *_ in programs.suite_of(support.TOOLS.parent)]
        self.assertEqual([name for name in names if not name.endswith("_on_gpu")], [])

    def test_a_failed_check_fails_the_whole_and_a_skipped_one_does_not(self):
        report = table.Report({"cuda": {}})
        self.assertFalse(report.all_hold(), "nothing was checked")
        report.add("one", True, "")
        report.add("two", None, "")
        self.assertTrue(report.all_hold())
        report.add("three", False, "")
        self.assertFalse(report.all_hold())
        self.assertIn("FAILED", report.as_text())

    def test_repeats_that_were_run_are_summed_up_though_one_failed(self):
        gpu = {"strategy": "", "threads": 1, "resident": True, "graph": "step", "graph_operations": 11, "redone_chunks": 0, "bounced_chunks": 0}
        run = {"steps_per_second": 100.0, "per_worker": [{"gpu": gpu}]}
        report, ways = table.Report({"cuda": {}}), 2 * len(jobs.WAYS)
        with unittest.mock.patch.object(jobs, "launch", side_effect=[run] * 4 * ways + [jobs.programs.Failed("no time")] * ways):
            jobs.train(report, pathlib.Path(), None, False)
        self.assertEqual(report.data["training"]["sync"]["steps_per_second"], 100.0)
        self.assertEqual([check["detail"] for check in report.checks].count("no time"), ways)

    def test_the_job_of_the_tutorials_runs_with_each_way_to_enqueue_steps(self):
        ways = [" ".join(map(str, options)) for options in jobs.WAYS.values()]
        for value in ("ahead", "step", "kernels"):
            self.assertEqual(sum(f"--enqueue {value}" in way for way in ways), 1, value)

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

    def test_what_has_no_time_says_so(self):
        self.addCleanup(programs.allow, None)
        programs.allow(0)
        with self.assertRaisesRegex(programs.Failed, "^the part's time is over$"):
            programs.run(["true"], 1)

    def test_what_pytorch_has_done_is_kept_when_its_program_is_ended(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "program.py"
            write_packages(pathlib.Path(folder) / "python")
            line = json.dumps({"torch": "2.0", "training": {"apart": 1e-6, "moved": 0.1}})
            program.write_text(f"import os, sys\nprint({line!r}, flush=True)\nprint('{{\"torch\"', end='', flush=True)\n"
                               "print('it took too long', file=sys.stderr, flush=True)\nos.kill(os.getpid(), 9)\n")
            report = table.Report({"cuda": {}})
            with unittest.mock.patch.object(python_package, "PROGRAM", program):
                python_package.check(report, pathlib.Path(folder), True)
            self.assertEqual([(check["holds"], check["detail"]) for check in report.checks][1:],
                             [(False, "not finished: exit code -9: it took too long"), (False, "not reached")])
            self.assertIs(report.checks[0]["holds"], True)

    def test_errors_are_found_however_deep(self):
        found = {"a": {"b": [{"error": "x"}]}, "error": "y"}
        self.assertEqual(sorted(programs.errors_in(found)), [": y", "a/b: x"])


if __name__ == "__main__":
    support.main()
