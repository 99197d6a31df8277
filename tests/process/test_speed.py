"""benches/speed, with a script as benches/micro: it builds what it measures, says how far it is, waits for an idle
machine, prints what it has when it is ended, and nothing that it has started outlives it."""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

import support
from support import SOURCE

sys.path.insert(0, str(SOURCE / "benches"))
from measuring import Failed
from rivals import pace
from rivals.targets import TARGETS

ONLY = "of memcpy of 4 bytes"
CASES = ("scalar/pull/inplace/processes:1", "scalar/memcpy4/processes:1", "scalar/pull/versioned/processes:1")
# The fifth call, which is of the second round, hangs, as does a process in a session of its own that it has started.
MICRO = """#!{python}
import json, os, pathlib, signal, subprocess, sys
options = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:] if "=" in word)
if "benchmark_list_tests" in options:
    sys.exit(print(*{cases!r}, sep="\\n"))
folder = pathlib.Path(__file__).parent
with (folder / "calls").open("a") as calls:
    print(options["benchmark_filter"], file=calls)
if len((folder / "calls").read_text().splitlines()) == 5:
    other = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    (folder / "new").write_text(f"{{os.getpid()}} {{other.pid}}")
    (folder / "new").rename(folder / "hanging")
    signal.pause()
name = options["benchmark_filter"].strip("^$")
entry = {{"name": name, "run_name": name, "run_type": "iteration", "iterations": 1, "time_unit": "ns",
         "real_time": 4.0}}
pathlib.Path(options["benchmark_out"]).write_text(json.dumps({{"context": {{}}, "benchmarks": [entry]}}))
"""


def load_speed():
    loader = importlib.machinery.SourceFileLoader("speed", str(SOURCE / "benches/speed"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("speed", loader))
    loader.exec_module(module)
    return module


class Speed(support.ProcessTest):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.own = self.folder / "build/benches"
        self.own.mkdir(parents=True)
        (self.folder / "temporary").mkdir()
        (self.own / "micro").write_text(MICRO.format(python=sys.executable, cases=CASES))
        (self.own / "micro").chmod(0o755)

    def start_speed(self):
        """Returns it once the fifth case hangs, and the processes that do."""
        process = self.start(sys.executable, "-B", SOURCE / "benches/speed", "--build", self.folder / "build",
                             "--only", ONLY, "--rounds", 2, "--anyway", "--json", self.folder / "figures.jsonl",
                             env={"PS_SHM_TEST_REPORT_SECONDS": "0.2", "TMPDIR": str(self.folder / "temporary")})
        support.wait_until((self.own / "hanging").exists, "the fifth case is measured")
        return process, [int(pid) for pid in (self.own / "hanging").read_text().split()]

    def assert_ended(self, processes):
        support.wait_until(lambda: not any(map(support.is_running, processes)), f"{processes} have ended")
        support.wait_until(lambda: not list((self.folder / "temporary").iterdir()), "its files are gone")

    def test_ended_by_a_signal_it_prints_what_it_has_and_ends_what_it_has_started(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number):
                for name in ("calls", "hanging"):
                    (self.own / name).unlink(missing_ok=True)
                process, started = self.start_speed()
                said = support.wait_for_line(process.stderr, "round 2 of 2, case 2 of 3, about ")
                self.assertRegex(said.splitlines()[-1], f"about \\d+ (second|minute)s? left: {CASES[1]}$")
                process.send_signal(number)
                got, out, err = support.finish(process)
                self.assertEqual(got, code, out + said + err)
                self.assertIn("interrupted: these are the figures until then", out)
                row = "| pull, versioned, of memcpy of 4 bytes | 4 ns | scalar/memcpy4/processes:1 | 4 ns | 1 |"
                self.assertIn(row, out)
                rows = [json.loads(line) for line in (self.folder / "figures.jsonl").read_text().splitlines()]
                self.assertEqual([len(row["rounds"]) for row in rows if row["type"] == "figure"], [1, 1, 2])
                self.assert_ended(started)

    def test_what_it_has_started_ends_when_it_is_killed(self):
        process, started = self.start_speed()
        process.kill()
        process.wait(timeout=support.PATIENCE)
        self.assert_ended(started)


class Pace(unittest.TestCase):
    def test_the_time_that_is_left_counts_each_case_as_it_was_last_time(self):
        progress = pace.Pace(3, ["a", "b"])
        progress.begin(0, 0, "a", ["b"])
        self.assertEqual(progress.line(), "round 1 of 3, case 1 of 2: a")
        progress.seconds = {"a": 30.0, "b": 200.0}
        progress.begin(1, 0, "b", ["a"])
        self.assertAlmostEqual(progress.seconds_left(), 460, delta=20)
        self.assertEqual([pace.said(seconds) for seconds in (0.2, 40, 100, 360)],
                         ["1 second", "40 seconds", "2 minutes", "6 minutes"])

    def test_it_waits_for_an_idle_machine_and_gives_up_on_one_that_stays_busy(self):
        uses = iter([1.4, 0.9, 0.1])
        pace.wait_until_idle(busy=lambda: next(uses))
        self.assertEqual(list(uses), [])
        clock = iter(range(0, 10_000, 50))
        with self.assertRaisesRegex(Failed, "busy: 1.4 of .* processors, and has been for 150 s; --anyway"):
            pace.wait_until_idle(busy=lambda: 1.4, clock=lambda: next(clock))

    def test_how_busy_the_machine_is_is_read_of_the_kernel(self):
        times = iter([(100.0, 1000.0), (101.0, 1000.0 + 2 * os.cpu_count())])
        self.assertAlmostEqual(pace.busy_processors(lambda: next(times), wait=lambda _: None), 0.5)
        used, everything = pace.processor_times()
        self.assertTrue(0 < used < everything)


class Programs(unittest.TestCase):
    def test_only_what_is_measured_is_built(self):
        speed = load_speed()

        def programs(only):
            return speed.programs_of([target for target in TARGETS if only in target.text])
        self.assertEqual(programs(ONLY), ["benches/micro"])
        self.assertEqual(programs("one alone, of PyTorch alone"),
                         ["tools/launch_shm", "tools/ps_shm", "tools/worker_shm", "tools/inspect_shm"])
        self.assertEqual(len(programs("")), 5)


if __name__ == "__main__":
    support.main()
