"""tools/gpu_check and its parts, with programs that imitate a GPU's; and what the programs do where there is none."""
import argparse
import contextlib
import glob
import importlib.util
import itertools
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
import types
import unittest
import unittest.mock

import support

CHECKS = support.SOURCE / "tools" / "dev" / "gpu_checks"
sys.path.insert(0, str(CHECKS))
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
DEVICE = "simulated" if os.environ.get("PS_SHM_CUDA") == "simulated" else "cpu"
CALL_SECONDS = 540


def run(*command, **environment):
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=support.PATIENCE, env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


def new_folder(test):
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    return pathlib.Path(folder.name).resolve()


def write(path, text):
    """Writes a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def verdicts(report):
    return [(check["holds"], check["detail"]) for check in report.checks]


def failed(checks):
    return [check["name"] for check in checks if check["holds"] is False]


class Usage(unittest.TestCase):
    def test_help_and_wrong_usage(self):
        code, out, _ = run(GPU_CHECK, "--help")
        self.assertEqual(code, 0)
        self.assertIn("Usage: tools/gpu_check", out)
        for wrong, says in ((("--nonsense",), "Usage"), (("--json",), "Usage"), (("--first-light", "5"), "invalid"),
                            (("--first-light", "x"), "invalid"), (("--part", "10"), "invalid"),
                            (("--first-light", "1", "--part", "2"), "--first-light says which parts"),
                            (("--part", "6"), "--part 6 needs --soak MINUTES")):
            with self.subTest(wrong):
                code, out, err = run(GPU_CHECK, "--prebuilt", support.TOOLS.parent, *wrong)
                self.assertEqual((code, out), (2, ""))
                self.assertIn(says, err)


class WithoutNvcc(unittest.TestCase):
    def test_a_gpu_that_nothing_can_be_built_for_is_an_error_and_not_no_gpu(self):
        folder = new_folder(self)
        (folder / "dev").mkdir()
        (folder / "dev" / "nvidia0").touch()  # the script is shown this file in place of a GPU's
        text = GPU_CHECK.read_text()
        self.assertIn("'/dev/nvidia", text)
        write(folder / "tools" / "gpu_check", text.replace("'/dev/nvidia", f"'{folder}/dev/nvidia"))
        shutil.copy(support.SOURCE / "tools" / "setup.sh", folder / "tools")
        (folder / "bin").mkdir()
        for program in ("bash", "dirname", "readlink"):  # no python3 to ask the driver
            (folder / "bin" / program).symlink_to(shutil.which(program))
        for options in ((), ("--pack", folder / "packed")):
            code, out, err = run(folder / "bin" / "bash", folder / "tools" / "gpu_check", *options,
                                 "--json", folder / "report.json", PATH=str(folder / "bin"), CUDA_HOME=str(folder))
            self.assertEqual(code, 1, out + err)
            self.assertIn("gpu_check: nvcc, which builds for the GPU, is not found; set CUDA_HOME", err)
        self.assertFalse((folder / "report.json").exists())


@unittest.skipIf(HAS_GPU, "skipped: there is a GPU")
class WithoutGpu(support.ProcessTest):
    def test_gpu_check_says_so_at_once_also_in_the_json_and_builds_nothing_but_unpacks(self):
        folder, build = new_folder(self), support.SOURCE / "build" / "gpu"
        before = build.exists()
        (folder / "lib").mkdir()
        (folder / "lib" / "libx.so.1.xz").write_bytes(lzma.compress(b"x"))
        for options in ((), ("--prebuilt", folder, "--first-light", "4")):
            report = folder / f"new{len(options)}" / "report.json"
            code, out, err = run(GPU_CHECK, "--json", report, *options)
            self.assertEqual((code, err), (77, ""), out)
            self.assertRegex(out, r"^gpu_check: no GPU: .+\n$")
            self.assertEqual(out, f"gpu_check: no GPU: {json.loads(report.read_text())['no_gpu']}\n")
        self.assertEqual(build.exists(), before)
        self.assertEqual((folder / "lib" / "libx.so.1").read_bytes(), b"x")

    def test_so_do_the_checks_themselves_of_a_build_also_beside_a_dead_job(self):
        ps = self.start_ps("--workers", 1)
        ps.kill()
        ps.communicate()
        report = new_folder(self) / "report.json"
        code, out, err = run(sys.executable, CHECKS, "--build", support.TOOLS.parent, "--json", report)
        self.assertEqual(code, 77, out + err)
        self.assertRegex(out, r"^gpu_check: no GPU: .+\n$")
        self.assertIn(json.loads(report.read_text())["no_gpu"], out)
        support.run("inspect_shm", "rm", "--job", self.job)

    def test_a_program_that_must_have_a_gpu_fails_in_one_line(self):
        self.start_ps("--workers", 1, "--steps", 200)
        got = support.run("worker_shm", "--job", self.job, "--device", "cuda", "--data", "digits")
        self.assert_fails(1, got, "worker_shm", "device cuda: ")
        count = ("--workers", 1, "--model", "count", "--steps", 4)
        code, out, _ = support.run("launch_shm", "--json", *count, "--device", "cuda")
        self.assertEqual(code, 1)
        self.assertRegex(json.loads(out)["error"], "^device cuda: ")

    def test_a_worker_that_may_have_one_trains_on_the_cpu_and_says_so_once(self):
        self.start_ps("--workers", 1, "--steps", 200)
        code, out, err = support.run("worker_shm", "--job", self.job, "--device", "auto", "--data", "digits", "--json")
        self.assertEqual(code, 0, err)
        notices = [line for line in err.splitlines() if "GPU" in line or "CUDA" in line]
        self.assertEqual(len(notices), 1, err)
        self.assertNotIn("gpu", json.dumps(json.loads(out)))


class Sanitizer(unittest.TestCase):
    def test_of_the_tests_only_those_that_a_tool_cannot_run_are_left_out(self):
        program = support.TOOLS.parent / "tests" / "gpu_tests_on_cpu"  # which has the same cases
        if not program.exists():
            self.skipTest("skipped: this build has no tests of kernels")

        def count(*options):
            return int(re.search(r"passing the current filters: (\d+)", run(program, "--count", *options)[1])[1])

        for file in ("transfer_kernels", "row_kernels", "gpu_link"):
            cases = f"--source-file=*/test_{file}.cpp"
            kept = count(cases, "--test-case-exclude=*can wait on the stream*")
            self.assertGreater(kept, 0)
            self.assertEqual(count(cases) - kept, int(file in ("gpu_link", "transfer_kernels")))


MIG = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11)
  MIG 1g.10gb     Device  0: (UUID: MIG-aa)
  MIG 1g.10gb     Device  1: (UUID: MIG-bb)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-22)
"""


@unittest.skipIf(HAS_GPU, "skipped: there is a GPU")
class Spread(support.ProcessTest):
    """launch_shm makes one GPU, or one MIG instance, visible to each worker."""

    def shown(self, options, workers, environment):
        """CUDA_VISIBLE_DEVICES of each worker, by rank, None if it is not set; and the settings of the job."""
        folder, job = new_folder(self), support.new_job()
        write(folder / "nvidia-smi", f"#!/bin/sh\ncat <<'END'\n{MIG}END\n")
        process = self.start("launch_shm", "--job", job, "--model", "count", "--steps", 10 ** 7, *options,
                             "--count-interval", "10ms", env={"PATH": f"{folder}:{os.environ['PATH']}", **environment})
        support.wait_until(lambda: len(support.workers_of(job) or []) >= workers, f"{workers} workers")
        code, out, _ = support.run("inspect_shm", "show", "--job", job, "--json")
        self.assertEqual(code, 0)
        found = {}
        for worker in support.workers_of(job):
            variables = pathlib.Path(f"/proc/{worker['pid']}/environ").read_text().split("\0")
            of_cuda = [text.split("=", 1)[1] for text in variables if text.startswith("CUDA_VISIBLE_DEVICES=")]
            [found[worker["rank"]]] = of_cuda or [None]
        process.terminate()
        support.finish(process)
        settings = json.loads(out)["settings"]
        return found, {**settings, "threads": int(settings["threads"]), "workers": int(settings["workers"])}

    def test_ranks_go_round_what_there_is_or_what_the_environment_names_and_have_settings_for_it(self):
        half = min(max(len(os.sched_getaffinity(0)) // 2, 1), 8)
        both, one = {"CUDA_VISIBLE_DEVICES": "5,7"}, {"CUDA_VISIBLE_DEVICES": "5"}
        several = {"CUDA_VISIBLE_DEVICES": "2,GPU-33,-1,5"}  # none behind -1 is visible
        for devices, options, environment, visible, settings in (
                ("auto", ("--workers", 4), {}, {0: "MIG-aa", 1: "MIG-bb", 2: "GPU-22", 3: "MIG-aa"}, {}),
                ("auto", ("--mode", "async"), both, {0: "5", 1: "7"},
                 {"workers": 2, "threads": half, "chunk_bytes": "gpu"}),
                ("auto", ("--threads", 1, "--chunk-bytes", "4KiB"), one, {0: "5"},
                 {"workers": 1, "threads": 1, "chunk_bytes": 4096}),
                ("auto,0:cpu", ("--mode", "async"), {}, {0: None, 1: "MIG-bb", 2: "GPU-22"}, {"workers": 3}),
                ("cpu", ("--workers", 1), both, {0: "5,7"}, {"chunk_bytes": 0}),
                ("auto,1:cpu", ("--workers", 4), several, {0: "2", 1: "2,GPU-33,-1,5", 2: "2", 3: "GPU-33"}, {})):
            with self.subTest(devices=devices, options=options):
                found, told = self.shown(("--device", devices, *options), len(visible), environment)
                self.assertEqual(found, visible)
                self.assertLessEqual(settings.items(), told.items())


# Programs that imitate those that need a GPU. FAULT names what goes wrong with them.
IMITATION = """#!{python} -IS
import json, os, pathlib, signal, sys, time
faults = os.environ.get("FAULT", "").split(",")
options = dict(zip(sys.argv[1:], sys.argv[2:]))
def hang():
    pathlib.Path("{build}/hangs").write_text(str(os.getpid()))
    signal.pause()
"""
LAUNCH = """
if "--workers" not in options: sys.exit("as many workers as the box has GPUs")
count, device, mode = int(options["--workers"]), options["--device"], options.get("--mode")
if "job" in faults and mode == "async" and device == "cuda": sys.exit(3)
if "hang in third job" in faults and options.get("--enqueue") == "kernels": hang()
gpu = dict(strategy="as it is", threads=1, resident=True, graph="step", graph_operations=11, redone_chunks=0,
           bounced_chunks=0)
if "untimed" not in faults:
    gpu.update(idle_share=0.5 if count > 1 else 0.25, step_us=dict(wait=1.0, pull=1.0, compute=1.0, push=1.0))
on_gpu = {"cpu": 0, "cuda": count, "cuda:0": count}.get(device, count - 1) if "cpu" not in faults else 0
in_one = "--workers-per-process" in options
total = count * float(options.get("--steps", 0)) - ("sum" in faults or in_one and "one process" in faults)
differs = "digest" in faults or in_one and "one process" in faults
print(json.dumps(dict(steps_per_second=200.0 if "CUDA_MPS_PIPE_DIRECTORY" in os.environ else 100.0,
                      per_worker=[dict(gpu=gpu)] * on_gpu + [dict()] * (count - on_gpu),
                      value_min=total - ("uneven" in faults), value_max=total,
                      digest=str(os.getpid()) if differs else "0",
                      test_accuracy=0.9 - 0.1 * ("accuracy" in faults and device == "cuda"))))
"""
INSPECT = """
print(json.dumps(dict(cuda=dict(no_gpu=None, gpus=[dict(device=0, name="stand-in", pci_address="")]),
                      global_step=time.monotonic_ns() // 1000000)))
"""
BENCH = """
section = options["--only"]
adds = dict(is_exact="lost" not in faults, lost_share=0.1)
rate = {"rows/s": 2e6 if "--table-mib" in options else 1e6}
ways = ("pull", "processor_gathers_then_copy", "bare_copy", "push", "copy_then_processor_pushes")
reads = dict(words=9, torn_4_bytes=int("torn" in faults), torn_8_bytes=0, copies=1, mixed_copies=1)
rows = dict(elements=16, ids="zipf", batch=9, is_right="rows" not in faults, **dict.fromkeys(ways, rate))
found = dict(adds_with_processors=dict(processors_alone=adds, one_by_one=adds), tearing=dict(kernel_reads=reads),
             death=dict(error="x") if "bench" in faults else dict(),
             rows=dict(warnings=[], table_bytes=1 << 31, cases=[rows]),
             links=dict(cases=[dict(warnings=["refused"] if "refused" in faults else [])])).get(section, {})
facts = dict(gpus=[dict(host_atomics=dict(float_add=8))])
pathlib.Path(options["--to"], section + ".json").write_text(json.dumps({"facts": facts, section: found}))
if "hang in " + section in faults: hang()
sys.exit("bench" in faults and section == "death")
"""
SUITE = """
what = sys.argv[1]
if "hang in " + what in faults: hang()
if what == "two" and "skip" in faults: sys.exit(77)
sys.exit(what == "one" and "test" in faults or what.startswith("--test-case=") and "soak" in faults)
"""
TESTS = ("one", "two")
WAITS = "#!/bin/sh\nexec tail -f /dev/null\n"


def write_packages(folder):
    """Empty ones."""
    for name in ("torch", "numpy", "ps_shm/__init__", "ps_shm/torch"):
        write(folder / f"{name}.py", "")


class WithStandIns(unittest.TestCase):
    """The check fails if any of its parts does. Programs imitate the output of those that need a GPU."""

    def setUp(self):
        self.build = new_folder(self)
        self.json = self.build / "report.json"
        head = IMITATION.format(python=sys.executable, build=self.build)
        for name, text in (("tools/launch_shm", LAUNCH), ("tools/inspect_shm", INSPECT), ("benches/gpu", BENCH),
                           ("tests/gpu_tests_on_gpu", SUITE)):
            write(self.build / name, head + text)
        for name in ("tools/ps_shm", "tools/worker_shm"):
            write(self.build / name, WAITS)
        write(self.build / peers.CONTROL, "#!/bin/sh\nexit 1\n")
        info = self.build / "meson-info"
        info.mkdir()
        (info / "meson-info.json").write_text(json.dumps({"directories": {"build": "/elsewhere"}}))
        common = {"suite": ["ps-shm:gpu"], "timeout": support.PATIENCE, "env": {}}
        tests = [{**common, "name": name, "cmd": ["/elsewhere/tests/gpu_tests_on_gpu", name]} for name in TESTS]
        tests += [{**common, "name": "script", "cmd": ["/nowhere/python3", "/nowhere/script.py", "/elsewhere"]},
                  {**common, "name": "other", "suite": ["ps-shm:unit"], "cmd": ["/elsewhere/tests/other"]}]
        (info / "intro-tests.json").write_text(json.dumps(tests))

    def command(self, *options):
        return [sys.executable, CHECKS, "--build", self.build, "--json", self.json, *map(str, options)]

    def check(self, faults, *options, quick=("--quick",)):
        code, out, err = run(*self.command(*quick, *options), FAULT=faults, CUDA_HOME=str(self.build),
                             PATH=f"{self.build}:{os.environ['PATH']}")
        return code, out + err, json.loads(self.json.read_text())

    def test_each_call_of_the_first_light_runs_its_parts_and_writes_few_files(self):
        self.json = self.build / "out" / "report.json"
        self.json.parent.mkdir()
        for call, parts in first_light.CALLS.items():
            began = time.monotonic()
            code, text, found = self.check("", "--first-light", call, "--soak", "0.001", quick=())
            self.assertEqual(code, 0, text)
            self.assertLess(time.monotonic() - began, CALL_SECONDS)
            self.assertLessEqual(set(map(str, parts)), set(found["parts"]))
            self.assertLessEqual(len(os.listdir(self.json.parent)), 8)
        self.assertEqual({int(part) for part in found["parts"]}, set(table.DATA_OF_PART) - {4})
        self.assertEqual({int(part) for part, one in found["parts"].items() if one["quick"]}, first_light.QUICK_PARTS)
        self.assertIn("$ uname -a\nLinux ", (self.json.parent / "report.box.txt").read_text())
        self.assertGreater(found["soak"]["rounds"], 0)
        self.assertEqual(list(found["sharing"]), ["1", "2", "4", "2 in one process", "4 in one process"])
        self.assertEqual({mode: {workers: list(found_ways) for workers, found_ways in of_workers.items()}
                          for mode, of_workers in found["jobs"].items()},
                         {mode: {workers: list(ways.WAYS) for workers in ("1", "3")} for mode in ("async", "sync")})
        self.assertEqual(found["jobs"]["sync"]["3"]["ahead"]["digests"], ["0", "0"])
        self.assertEqual([list(rates) for rates in found["large_counts"].values()], [["1", "8"]] * 6)
        code, text, found = self.check("", "--part", 4)
        self.assertEqual(code, 0, text)
        self.assertEqual([check["name"] for check in found["checks"] if not check["holds"]],
                         ["PyTorch", "compute-sanitizer", "sharing with MPS"])  # skipped
        in_sync = found["training"]["sync"]
        self.assertEqual((in_sync["idle_share"], in_sync["cuda_one_worker_idle_share"]), (0.5, 0.25))
        self.assertIn("a worker's stream waits 50% of the time, with one worker 25%", text)
        for line in ("What the figures decide:\n  steps enqueued ahead: yes (", "\n  workers on one GPU: processes (",
                     "\n  huge pages for tables: no (rows of 2,048 MiB are pulled with 50% of the rate of "):
            self.assertIn(line, text)
        of_parts = set(sum(table.DATA_OF_PART.values(), []))  # a part that runs again drops what it wrote
        self.assertEqual(set(found) - of_parts, {"checks", "began_unix", "cuda", "parts", "seconds"})

    def test_a_call_of_the_first_light_ends_within_nine_minutes_whatever_hangs(self):
        for calls in first_light.CALLS.values():
            self.assertLess(max(calls.values()) + 20, CALL_SECONDS)  # and what hangs is given ten seconds to end
        for name in ("tools/launch_shm", "tests/gpu_tests_on_gpu"):
            write(self.build / name, WAITS)
        spec = importlib.util.spec_from_file_location("main_of_gpu_checks", CHECKS / "__main__.py")
        spec.loader.exec_module(main := importlib.util.module_from_spec(spec))
        report, began = table.Report({"cuda": {}}, self.json), time.monotonic()
        settings = argparse.Namespace(first_light=4, quick=False, mnist=None, soak=2)
        self.assertLess(max(seconds for *_, seconds in main.planned(settings, began - CALL_SECONDS)), 0)
        self.addCleanup(programs.allow, None)
        with unittest.mock.patch.dict(first_light.CALLS, {4: {6: 1, 9: 2}}):
            main.run_parts(report, self.build, settings, began)
        self.assertLess(time.monotonic() - began, support.PATIENCE / 2)
        self.assertIn("took longer than", report.data["soak"]["failures"][0])
        self.assertIn((False, "the part's time is over"), verdicts(report))

    def test_whatever_fails_fails_its_own_check_and_the_rest_is_still_looked_at(self):
        self.json.write_text('{"checks": [], "figures of an earlier run": 1}')
        data = ("digits", "logistic", "logistic, keyed", "svm", "svm, keyed")
        accuracies = [f"accuracy, {name}, async" for name in data]
        sums = [f"sum of two GPU workers and a CPU's, {layout}" for layout in ("versioned", "inplace")]
        sums.append("sum of three GPU workers of one process")
        shared = [f"workers on one GPU, {count}{way}" for way, counts in (("", (1, 2, 4)), (" in one process", (2, 4)))
                  for count in counts]
        code, text, found = self.check("test,skip,soak,bench,lost,torn,refused,rows,untimed,accuracy,digest,sum",
                                       "--soak", "0.01")
        self.assertEqual(code, 1, text)
        self.assertEqual(failed(found["checks"]), [
            "test one", "test two", "benchmark", "adds of GPU and CPUs", "adds of CPUs alone",
            "a kernel's reads of floats", "shards are registered", "rows that a kernel pulls",
            *(f"training, {mode}: the GPU's steps are timed" for mode in ways.MODES),
            accuracies[0], "accuracy, digits, sync", *accuracies[1:],
            "sync digest, twice", "sync digest, in one process as in three", *sums, "soak", "sync digests repeat"])
        for line in ("FAILED   test two: skipped, though there is a GPU", "\nFAILED   benchmark: death: x\n",
                     "FAILED   sync digests repeat: 1 workers, ahead; "):
            self.assertIn(line, text)
        self.assertEqual({int(part) for part in found["parts"]}, set(table.DATA_OF_PART) - {2})
        self.assertNotIn("figures of an earlier run", found)
        self.json.unlink()
        self.assertEqual(failed(self.check("cpu", "--part", 4)[2]["checks"]), ["part 4 was not finished"])
        for fault, step, options, expected in (
                ("cpu", jobs.count, (), sums), ("uneven", jobs.count, (), sums),
                ("one process", jobs.count, (), sums[-1:]),
                ("one process", jobs.compare_digests, (), ["sync digest, in one process as in three"]),
                ("cpu", jobs.share, (), shared), ("job", jobs.compare_accuracies, (None,), accuracies),
                ("uneven", ways.count, (), [f"count of 200,000{way}" for way in ways.COUNTS])):
            with self.subTest(fault, step=step.__name__), unittest.mock.patch.dict(os.environ, {"FAULT": fault}):
                report = table.Report({"cuda": {}})
                step(report, self.build / "tools", *options, True)
                self.assertEqual(failed(report.checks), expected)
        write(self.build / "tools" / "launch_shm", "#!/bin/sh\necho '{}'\n")
        self.assertEqual(failed(self.check("", "--part", 5)[2]["checks"]),
                         ["part 4 was not finished", *["part 5: an unexpected answer"] * 4])
        write(self.build / "tools" / "inspect_shm", "#!/bin/sh\necho no such option; exit 1\n")
        code, out, _ = run(*self.command())
        self.assertEqual((code, out), (1, "gpu_check: inspect_shm doctor fails: no such option\n"))

    def test_parts_add_to_one_report_and_replace_what_they_said_before(self):
        code, text, found = self.check("test", "--part", 1)
        self.assertEqual(code, 1, text)
        self.assertNotIn("benchmark", found)
        code, text, found = self.check("", "--part", 3)
        self.assertEqual(failed(found["checks"]), ["test one"])  # still
        self.assertEqual(code, 1, text)
        self.assertLessEqual({"test", "benchmark"}, set(found))
        code, text, found = self.check("", "--part", 1)
        self.assertEqual(code, 0, text)
        self.assertIn("rows of 16 floats", text)
        self.assertEqual({check["part"] for check in found["checks"]}, {1, 3})
        self.assertEqual(found["parts"], {"1": {"quick": True}, "3": {"quick": True}})
        code, text, found = self.check("", "--part", 1, "--no-gpu", "none here")
        self.assertEqual((code, found["no_gpu"]), (77, "none here"), text)
        self.assertIn("test", found)
        self.assertEqual(found["cuda"]["gpus"][0]["name"], "stand-in")  # of the parts that had one
        (self.build / "benches" / "gpu").unlink()
        code, text, found = self.check("", "--part", 3)
        self.assertEqual(code, 1, text)
        for earlier in ("no_gpu", "benchmark"):
            self.assertNotIn(earlier, found)
        self.assertNotIn("rows of 16 floats", text)

    def test_a_check_that_is_ended_ends_what_it_runs_and_keeps_what_it_has(self):
        self.json.write_text('{"checks": []}')
        sections = {"facts", *benchmark.SECTIONS[:4]}
        for hangs, part, wrapper, signals, before, after, kept in (
                ("two", 1, ["nohup"], (signal.SIGHUP, signal.SIGTERM), None, {"one"}, lambda found: set(found["test"])),
                ("adds_with_processors", 3, [], (signal.SIGTERM,), sections, sections | {"adds_with_processors"},
                 lambda found: set(found.get("benchmark", ()))),
                ("third job", 4, [], (signal.SIGHUP,), ["cuda", "cuda, by step"], ["cuda", "cuda, by step"],
                 lambda found: [run["device"] for run in found["training"]["runs"]])):
            with self.subTest(hangs):
                pid = self.build / "hangs"
                pid.unlink(missing_ok=True)
                process = subprocess.Popen([*wrapper, *self.command("--part", part)], stdin=subprocess.DEVNULL,
                                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                           env={**os.environ, "FAULT": f"hang in {hangs}"})
                self.addCleanup(process.kill)
                support.wait_until(lambda: pid.exists() and pid.read_text(), "the program that hangs")
                if before:  # also if this program is killed
                    self.assertEqual(kept(json.loads(self.json.read_text())), before)
                for number in signals:
                    process.send_signal(number)
                self.assertEqual(process.wait(support.PATIENCE), 128 + signals[-1])
                self.assertFalse(pathlib.Path(f"/proc/{pid.read_text()}").exists())
                self.assertEqual(kept(json.loads(self.json.read_text())), after)

    def test_programs_find_cublas_that_only_a_python_package_has(self):
        folder = self.build / "packages" / "nvidia" / "cu13" / "lib"
        folder.mkdir(parents=True)
        (folder / "libcublas.so.13").touch()
        with unittest.mock.patch.object(sys, "path", [str(folder.parents[2])]), \
                unittest.mock.patch.dict(os.environ, {"LD_LIBRARY_PATH": "/first"}):
            done = programs.run(["sh", "-c", "echo $LD_LIBRARY_PATH"], support.PATIENCE)
        self.assertEqual(done.out, f"/first:{folder}\n")

    def pack(self, folder, *modules):
        code, out, err = run(sys.executable, CHECKS, "--build", self.build, "--pack", folder,
                             *(word for module in modules for word in ("--module", module)))
        return code, out + err

    def test_a_pack_replaces_the_one_that_was_there(self):
        module, packed = self.build / "_core.cpython-311-x86_64-linux-gnu.so", self.build / "packed"
        module.write_bytes(b"")
        self.assertEqual(self.pack(packed, module)[0], 0)
        for name in ("lib/libx.so.1", "lib/libold.so.2.xz"):  # unpacked, and of a program that no longer needs it
            (packed / name).parent.mkdir(exist_ok=True)
            (packed / name).write_bytes(b"")
        self.assertEqual(self.pack(packed)[0], 0)
        self.assertTrue((packed / "tools" / "launch_shm.xz").exists())
        for name in ("packed/lib/libx.so.1", "packed/lib/libold.so.2.xz", "packed/python", "packed.part"):
            self.assertFalse((self.build / name).exists(), name)

    def test_what_is_no_pack_or_cannot_become_one_is_left_as_it_is(self):
        for names in (["tools"], ["meson-info", "thesis.tex"]):
            folder = new_folder(self)
            for name in names:
                (folder / name).touch()
            code, text = self.pack(folder)
            self.assertEqual(code, 1)
            self.assertIn(f"has {', '.join(names)} and is no pack", text)
            self.assertEqual(sorted(os.listdir(folder)), names)
        (self.build / "tools" / "ps_shm").unlink()
        code, text = self.pack(self.build / "packed")
        self.assertEqual(code, 1)
        self.assertIn("has no tools/ps_shm", text)

    def test_a_pack_runs_elsewhere_with_its_libraries_and_python_package(self):
        packed, compiler = self.build / "packed", os.environ.get("CC", "cc").split()
        # Beside the box's own libgcc_s.so.1, two libraries that the other box lacks: one of them would be the box's.
        own = [self.build / name for name in ("libown.so.1", "libgcc_s.so.9")]
        for library in own:
            subprocess.run([*compiler, "-shared", f"-Wl,-soname,{library.name}", "-o", library, "-x", "c", "-"],
                           input=f"int {library.name[3:6]}(void) {{ return 1; }}".encode(), check=True)
        subprocess.run([*compiler, "-o", self.build / "benches" / "gpu", "-x", "c", "-", "-x", "none", *own,
                        f"-Wl,--enable-new-dtags,-rpath,{self.build},--no-as-needed", "-lgcc_s"],
                       input=b"int own(void), gcc(void); int main(void) { return own() + gcc() != 2; }", check=True)
        modules = [self.build / name for name in ("_core.cpython-311-x86_64-linux-gnu.so", "_core.abi3.so")]
        for module in modules:
            module.write_bytes(b"")
        code, text = self.pack(packed, *modules)
        self.assertEqual(code, 0, text)
        self.assertIn("Python modules: abi3.so, cpython-311-x86_64-linux-gnu.so", text)
        for path in [*own, self.build / "benches" / "gpu"]:
            path.unlink()
        for name in ("tools/launch_shm", "tests/gpu_tests_on_gpu", "benches/gpu"):
            self.assertFalse((packed / name).exists(), name)
        self.assertEqual(os.listdir(packed / "lib"), ["libown.so.1.xz"])
        self.assertEqual(sorted(os.listdir(packed / "fallback")), ["libgcc_s.so.1.xz", "libgcc_s.so.9.xz"])
        self.assertLessEqual({"__init__.py", "torch", "bridge", *(f"{module.name}.xz" for module in modules)},
                             set(os.listdir(packed / "python" / "ps_shm")))
        self.build = packed
        code, text, found = self.check("", "--part", 1)
        self.assertEqual(code, 0, text)
        self.assertEqual({name: test["exit_code"] for name, test in found["test"].items()}, {"one": 0, "two": 0})
        self.assertEqual(sorted(os.listdir(packed / "lib")), ["libgcc_s.so.9", "libown.so.1", "libown.so.1.xz"])
        self.assertEqual(run(packed / "benches" / "gpu", LD_LIBRARY_PATH=str(packed / "lib"))[0], 0)
        for module in modules:
            self.assertTrue((packed / "python" / "ps_shm" / module.name).exists())

    def test_a_python_package_that_is_missing_skips_its_part_and_one_that_is_broken_fails(self):
        def looked_at():
            report = table.Report({"cuda": {}})
            python_package.check(report, self.build, True)
            return verdicts(report)[-1]

        self.assertEqual(looked_at(), (None, "the Python package is not built"))
        write_packages(self.build / "python")
        for name, imported, holds in (
                ("torch", "torch", None), ("numpy", "numpy", None),
                ("ps_shm/__init__", "ps_shm.torch", False), ("ps_shm/torch", "ps_shm.torch", False)):
            path = self.build / "python" / f"{name}.py"
            path.write_text("raise ImportError('none here')")
            is_ok, detail = looked_at()
            self.assertIs(is_ok, holds, name)
            self.assertRegex(detail, f" cannot import {imported}: .*none here")
            path.write_text("")

    def test_tools_that_serialise_launches_do_not_see_the_test_whose_stream_waits_for_the_processor(self):
        write(self.build / "compute-sanitizer", r"""#!/bin/sh
[ $PS_SHM_TEST_ROUNDS = 20 ] || exit 8
case $* in *--test-case-exclude=*stream*,gpu\ deaths:*) exit 0;; esac; exit 9
""")
        for quick, tools in ((("--quick",), ("memcheck",)), ((), ("memcheck", "racecheck", "synccheck"))):
            code, text, found = self.check("", "--part", 2, quick=quick)
            self.assertEqual(code, 0, text)
            self.assertEqual([check["name"] for check in found["checks"]],
                             [f"{tool} {name}" for tool in tools for name in TESTS])

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
            self.assertEqual(failed(report.checks), [f"{tool} one" for tool in ("memcheck", "racecheck", "synccheck")])

        self.addCleanup(programs.allow, None)
        write(self.build / "compute-sanitizer", "")
        only_one = list(programs.suite_of(self.build))[:1]
        with unittest.mock.patch.dict(os.environ, {"PATH": str(self.build)}), \
                unittest.mock.patch.object(programs, "suite_of", lambda build: only_one), \
                unittest.mock.patch.object(programs.time, "monotonic", lambda: clock[0]):
            sanitize(0)
            with unittest.mock.patch.object(programs, "run", take_all):
                sanitize(300)
        self.assertEqual([round(share, 6) for share in shares], [100.0] * 3)

    def test_a_case_that_did_not_run_is_shown_as_skipped(self):
        write(self.build / "tests" / "gpu_tests_on_gpu", """#!/bin/sh
[ $1 = two ] || echo 'a.cpp:7: MESSAGE: skipped: too little memory'
echo good
""")
        report = table.Report({"cuda": {}})
        programs.run_suite(report, self.build)
        self.assertTrue(report.all_hold())
        self.assertEqual(verdicts(report), [(True, "good"), (None, "too little memory"), (True, "good")])
        self.assertEqual(report.data["test"]["one"]["output"], "a.cpp:7: MESSAGE: skipped: too little memory\ngood\n")

    def test_a_section_of_the_benchmark_that_is_ended_leaves_what_it_has_measured(self):
        write(self.build / "benches" / "gpu", """#!/bin/sh
printf '{"facts": {}, "%s": {"words": 9}}' $2 >$4/$2.json  # of --only $2 --to $4
[ $2 != tearing ] || exec tail -f /dev/null
""")
        report = table.Report({"cuda": {}}, self.json)
        with unittest.mock.patch.multiple(benchmark, SECTION_SECONDS=2, judge=unittest.mock.DEFAULT):
            benchmark.measure(report, self.build, False)
        self.assertEqual(verdicts(report), [(False, "tearing: exit code 124: it took longer than 2 s")])
        sections = dict.fromkeys([*benchmark.SECTIONS, benchmark.SMALL_TABLE], {"words": 9})
        self.assertEqual(json.loads(self.json.read_text())["benchmark"], {"facts": {}, **sections})
        write(self.build / "benches" / "gpu", "#!/bin/sh\necho 'skip: no GPU (gone)'; exit 77\n")
        report = table.Report({"cuda": {}})
        benchmark.measure(report, self.build, True)
        [(holds, detail)] = verdicts(report)
        self.assertIs(holds, False)
        self.assertIn("moves: exit code 77: skip: no GPU (gone); links: exit code 77", detail)

    def test_a_job_that_fails_is_not_tried_again(self):
        write(self.build / "tools" / "launch_shm", "#!/bin/sh\necho out of memory; exit 3\n")
        report = table.Report({"cuda": {}})
        ways.train(report, self.build / "tools", True)
        names = [f"job, {mode}, {workers} workers, {way}" for workers in ways.WORKERS for mode in ways.MODES
                 for way in ways.WAYS]
        self.assertEqual(failed(report.checks), [*names, "sync digests repeat"])
        self.assertIn("exit code 3: out of memory", report.checks[0]["detail"])

    def test_sharing_is_measured_without_mps_and_with_its_daemon_which_ends(self):
        log = self.build / "log"
        write(self.build / peers.CONTROL, f"""#!/bin/sh
[ -d "$CUDA_MPS_PIPE_DIRECTORY" ] || exit 9
if [ "$1" = -d ]; then tail -f /dev/null & echo $! >{log}; exit; fi
read -r line; echo $line >>{log}; kill $(head -1 {log})
""")
        report = table.Report({"cuda": {}})
        with unittest.mock.patch.dict(os.environ, {"PATH": f"{self.build}:{os.environ['PATH']}"}):
            peers.share(report, self.build / "tools", True)
        self.assertTrue(report.all_hold(), report.checks)
        self.assertEqual(report.data["mps"], {"without MPS": dict.fromkeys(peers.SHARING, 100.0),
                                              "with MPS": dict.fromkeys(peers.SHARING, 200.0)})
        daemon, said = log.read_text().split()
        self.assertEqual(said, "quit")
        support.wait_until(lambda: not support.is_running(daemon), "the daemon has ended")

    def test_where_mps_does_not_start_or_is_missing_only_its_measurement_is_skipped(self):
        for why, path in (("does not start", f"{self.build}:/bin"), ("is not installed", str(self.build))):
            report = table.Report({"cuda": {}})
            with unittest.mock.patch.dict(os.environ, {"PATH": path}):
                peers.share(report, self.build / "tools", True)
            self.assertEqual(verdicts(report), [(None, f"{peers.CONTROL} {why}")])
            self.assertEqual(list(report.data["mps"]), ["without MPS"])
            (self.build / peers.CONTROL).unlink(missing_ok=True)

    def test_a_death_after_which_nothing_goes_on_fails_and_so_does_a_worker_that_ends_first(self):
        def death():
            report = table.Report({"cuda": {}})
            seconds = itertools.count()  # between two looks at the steps
            with unittest.mock.patch.object(peers, "time", types.SimpleNamespace(monotonic=lambda: next(seconds))):
                peers.time_death(report, self.build / "tools", True)
            [verdict] = verdicts(report)
            return verdict

        looks = self.build / "looks"
        write(self.build / "tools" / "inspect_shm", f"#!/bin/sh\necho >>{looks}\nstep=$((4 * $(wc -l <{looks})))\n"
                                                    "echo '{\"global_step\": '$((step < 24 ? step : 24))'}'\n")
        self.assertEqual(death(), (False, f"no step 26 within {peers.DEATH_SECONDS} s"))
        write(self.build / "tools" / "worker_shm", "#!/bin/sh\necho no such device >&2; exit 4\n")
        write(self.build / "tools" / "inspect_shm", "#!/bin/sh\nexit 1\n")  # there is no job
        with unittest.mock.patch.object(peers, "DEATH_SECONDS", support.PATIENCE):
            holds, detail = death()
        self.assertIs(holds, False)
        self.assertRegex(detail, "/worker_shm: exit code 4: no such device$")


INSPECT_WITH_GPU = """#!/bin/sh
[ "$1" = doctor ] || exec {program} "$@"
echo '{{"cuda": {{"no_gpu": null, "gpus": [{{"device": 0, "name": "simulated", "pci_address": ""}}]}}}}'
"""
ON_DEVICE = """#!{python}
import os, sys
os.execv("{program}", [word.replace("cuda:0", "cuda").replace("cuda", "{device}") for word in sys.argv])
"""


class OnTheCpu(support.ProcessTest):
    """Jobs as the checks run them, on the simulated GPU where this build has one: scripts tell the programs so."""

    def setUp(self):
        super().setUp()
        self.build = new_folder(self)
        for program in ("launch_shm", "ps_shm", "worker_shm", "inspect_shm"):
            text = INSPECT_WITH_GPU if program == "inspect_shm" else ON_DEVICE
            write(self.build / "tools" / program,
                  text.format(python=sys.executable, program=support.TOOLS / program, device=DEVICE))
        self.json = self.build / "report.json"

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
            code, out, err = run(sys.executable, CHECKS, "--build", self.build, "--json", self.json, "--quick",
                                 "--part", part)
            self.assertEqual(code, 0, out + err)
            found = json.loads(self.json.read_text())
            self.assertLessEqual(keys, set(found))
        for mode in ways.MODES:
            for of_workers in found["jobs"][mode].values():
                self.assertEqual(list(of_workers), list(ways.WAYS))
                for one in of_workers.values() if mode == "sync" else ():  # else perhaps no step is timed
                    self.assertNotIn(None, [one["idle_share"], *one["step_us"].values()])
        self.assertEqual({one["threads"] for rates in found["large_counts"].values() for one in rates.values()}, {1, 8})

    def test_the_sections_of_the_benchmark_are_in_the_report(self):
        program = support.TOOLS.parent / "benches" / "gpu_on_fake"
        if not program.exists() or support.SLOWNESS > 1:
            self.skipTest("skipped: this build has no benchmark of the GPU that reports")
        write(self.build / "benches" / "gpu", f"#!/bin/sh\nexec {program} --patience 100 \"$@\"\n")
        report = table.Report({"cuda": {}}, self.json)
        with unittest.mock.patch.object(benchmark, "SECTIONS", ("waits", "rows")), \
                unittest.mock.patch.object(benchmark, "SECTION_SECONDS", support.PATIENCE):
            benchmark.measure(report, self.build, True)
        self.assertEqual([check["detail"] for check in report.checks if not check["holds"]], [])
        self.assertEqual(set(json.loads(self.json.read_text())["benchmark"]), {"facts", "context", "waits", "rows"})


class Decisions(unittest.TestCase):
    """What the figures decide, on both sides of each limit."""

    def decided(self, **data):
        return {name: text.partition(" (")[0] for name, text in decisions.made_of(data)}

    def test_nothing_is_decided_without_figures(self):
        self.assertEqual(self.decided(), {})
        small = {"4096": {"kernel_pull": {"GB/s": 1.0}, "copy_engine_pull": {"GB/s": 1.0}}}
        found = {"moves": {**small, "error": "took longer"}, "rows": {}, "waits": {"error": "x"}}
        self.assertEqual(self.decided(benchmark=found), {})

    def test_host_memory_is_read_by_the_kernel_that_comes_near_the_copy_engine(self):
        large, two, chunks = *decisions.WINDOWS.values(), decisions.LARGER_CHUNKS
        for loads, bulk, one_stream, two_streams, says in (
                (47.0, 0, 55.0, 55.0, "a kernel, whatever the size"),
                (40.0, 47.0, 55.0, 55.0, "a kernel, whatever the size"),
                (40.0, 45.0, 50.0, 40.0, large), (46.0, 0, 49.0, 50.0, two), (46.0, 46.0, 49.0, 49.0, chunks)):
            rates = {"kernel_pull": loads, "copy_engine_pull": 55.0, "copy_engine_push": 99.0,
                     "kernel_push_4_blocks": 99.0, "copy_engine_pull_256_kib": one_stream,
                     "copy_engine_pull_256_kib_two_streams": two_streams,
                     "copy_engine_pull_512_kib": 54.0, **({"bulk_pull_16_blocks": bulk} if bulk else {})}
            moves = {"bulk_copies": {}, str(2 << 20): {},
                     str(16 << 20): {name: {"GB/s": rate} for name, rate in rates.items()}}
            self.assertEqual(self.decided(benchmark={"moves": moves}), {"how the GPU reads host memory": says})

    def test_steps_are_enqueued_ahead_unless_the_stream_waits_longer_or_the_jobs_take_longer(self):
        for stream, ahead, says in ((5.0, 100, "yes"), (9.0, 100, "no"), (5.0, 80, "not where a GPU is shared")):
            waits = {"word_until_flag_by_stream_us": {"median": stream},
                     "word_until_flag_by_processor_us": {"median": 7.0}}
            of_three = {"ahead": {"steps_per_second": ahead}, "by step": {"steps_per_second": 90}}
            of_jobs = {mode: {"3": of_three} for mode in ("async", "sync")}
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
            case = {"elements": 16, "ids": "uniform", "batch": 9}
            found = {name: {"table_bytes": 1 << 31, "cases": [{**case, "pull": {"rows/s": rate}}]}
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
        gpu = {"strategy": "", "threads": 1, "resident": True, "graph": "step", "graph_operations": 11,
               "redone_chunks": 0, "bounced_chunks": 0}
        run = {"steps_per_second": 100.0, "per_worker": [{"gpu": gpu}]}
        report, kinds = table.Report({"cuda": {}}), 2 * len(jobs.WAYS)
        outcomes = [run] * 4 * kinds + [programs.Failed("no time")] * kinds
        with unittest.mock.patch.object(jobs, "launch", side_effect=outcomes):
            jobs.train(report, pathlib.Path(), None, False)
        self.assertEqual(report.data["training"]["sync"]["steps_per_second"], 100.0)
        self.assertEqual([check["detail"] for check in report.checks].count("no time"), kinds)

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

    def test_what_pytorch_has_done_is_kept_when_its_program_is_ended(self):
        folder, report = new_folder(self), table.Report({"cuda": {}})
        write_packages(folder / "python")
        line = json.dumps({"torch": "2.0", "training": {"apart": 1e-6, "moved": 0.1}})
        write(folder / "program.py", f"""import os, sys
print({line!r}, flush=True)
print('{{"torch"', end='', flush=True)
print('it took too long', file=sys.stderr, flush=True)
os.kill(os.getpid(), 9)
""")
        with unittest.mock.patch.object(python_package, "PROGRAM", folder / "program.py"):
            python_package.check(report, folder, True)
        self.assertEqual(verdicts(report)[1:],
                         [(False, "not finished: exit code -9: it took too long"), (False, "not reached")])
        self.assertIs(report.checks[0]["holds"], True)

    def test_errors_are_found_however_deep(self):
        found = {"a": {"b": [{"error": "x"}]}, "error": "y"}
        self.assertEqual(sorted(programs.errors_in(found)), [": y", "a/b: x"])


if __name__ == "__main__":
    support.main()
