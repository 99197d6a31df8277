"""The benchmarks run, name their cases as documented, count lost updates, and end cleanly in all circumstances."""
import functools
import json
import math
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

import isolation  # noqa: F401: mounts a private /dev/shm
import timing
from streams import PATIENCE

SOURCES = pathlib.Path(__file__).resolve().parents[2] / "benches"
sys.path.insert(0, str(SOURCES))
from rivals.figures import find_python  # noqa: E402

BENCHES = pathlib.Path(os.environ["PS_SHM_BENCHES"])
DRAWING_PYTHON = find_python("matplotlib")  # None: no Python here has it
MAY_REPORT = os.environ["PS_SHM_BUILDTYPE"] != "debug" and os.environ["PS_SHM_SANITIZE"] == "none"

SIZES = (1, 1000, 100000, 1000000, 16000000)
PUSHERS = ("versioned", "inplace", "job_racy", "racy_simd", "atomic_ref", "exchange16", "vector_lock", "block_lock",
           "socket")
RULES = ("add", "sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam", "adamw", "ftrl")
INEXACT = ("job_racy", "racy_simd")
WITHOUT_LIMIT = ("many", "lease")  # times for which the machine has no bare loop as a bound
CONTEXT = ("cpu", "cores", "cpu_caches", "numa_nodes", "kernel", "compiler", "flags", "build", "commit", "load_average",
           "where", "huge_pages", "memory")


def expected_names():
    counts = ("processes:1", "processes:2", "processes:4")
    yield from (f"push/{who}/floats:{n}/{p}" for who in PUSHERS for n in SIZES for p in counts)
    yield from (f"push_rule/{rule}/floats:1000000/processes:2" for rule in RULES)
    yield from (f"push_rule/{layout}{rule}/floats:100000000/processes:1" for layout in ("", "single-writer/")
                for rule in ("sgd", "momentum", "adam"))
    chunks = [("sgd", n, 2) for n in SIZES[2:]] + [("adam", n, p) for n in SIZES[3:] for p in (1, 2)]
    yield from (f"push_chunk/{rule}/bytes:{kib << 10}/floats:{n}/processes:{p}" for rule, n, p in chunks
                for kib in (4, 8, 16, 32, 64, 128, 256, 512, 1024))
    yield from (f"pull/{who}/floats:{n}/{p}" for who in ("versioned", "inplace", "memcpy", "socket") for n in SIZES
                for p in counts)
    yield from (f"pull/{who}_beside_pusher/floats:{n}/processes:2" for who in ("versioned", "inplace") for n in SIZES)
    yield from (f"mixed/{who}/floats:{n}/{mix}" for who in ("versioned", "inplace", "racy_simd", "block_lock")
                for n in SIZES[1:] for mix in ("readers:1/writers:1", "readers:3/writers:1"))
    yield from (f"scalar/{what}/{p}" for p in counts[:2]
                for what in ("add", "bare_exchange", "pull/versioned", "pull/inplace", "memcpy4"))
    yield from (f"sync/{what}/processes:{p}" for p in (2, 3, 4)
                for what in ("empty", "barrier", "exchange_spin", "exchange_spin_then_futex", "exchange_futex"))
    yield from (f"sync/step/floats:{n}/processes:{p}" for n in (1000, 397510, 1000000, 16000000) for p in (2, 4))
    yield from (f"sync/quorum/processes:3/waits_us:{wait}" for wait in (5, 500))
    yield from ("life/join_leave", "life/job")
    yield from (f"life/{what}/floats:{n}" for what in ("attach", "first_touch") for n in (1000, 1000000, 16000000))
    yield from (f"many/declare/variables:{n}/{p}" for n in (1, 1000, 16000) for p in counts)
    yield from (f"many/attach/variables:{n}" for n in (1, 1000, 16000))
    yield from (f"many/step/{mode}/variables:{n}/processes:2" for mode in ("async", "sync") for n in (1000, 10000))
    yield from (f"publish/{who}{beside}/floats:{n}" for who in ("publication", "mutex", "seqlock", "memcpy")
                for beside in ("", "_beside_reader") for n in (1000, 1000000, 16777216))
    yield from ("lease/alone", "lease/beside_publisher")
    yield from (f"linear/batch1/floats:100000/processes:{p}" for p in (1, 2))


def start(*arguments, program="micro", wrapper=()):
    return subprocess.Popen([*wrapper, BENCHES / program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def finish(process):
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, out, err


def run_script(*arguments):
    """Runs a script of benches/ with a Python that draws, where there is one."""
    return subprocess.run([DRAWING_PYTHON or sys.executable, *map(str, arguments)], capture_output=True, text=True,
                          timeout=PATIENCE, cwd=SOURCES)


def children(pid):
    """Child processes of that parent; the first one measures."""
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def leftovers(pid):
    return [path.name for kind in ("ps_shm", "ps_shm_publication")
            for path in pathlib.Path("/dev/shm").glob(f"{kind}.bench-{pid}-*")]


class Refusal(unittest.TestCase):
    def test_a_sanitizer_build_refuses_to_report(self):
        code, out, err = finish(start("--smoke", program="micro_refusing"))
        self.assertEqual((code, out), (1, ""))
        self.assertIn("address", err)

    @unittest.skipIf(MAY_REPORT, "skipped: of debug and sanitizer builds")
    def test_so_does_this_one(self):
        code, out, err = finish(start("--smoke"))
        self.assertEqual((code, out), (1, ""))
        self.assertIn("measures nothing", err)

    def test_wrong_usage_is_an_error(self):
        self.assertEqual(finish(start("--seconds=0"))[0], 2)

    @unittest.skipUnless(MAY_REPORT, "skipped: debug and sanitizer builds do not report")
    def test_wrong_usage_of_the_others_is_an_error_too(self):
        hogwild = (("sloppy:2",), ("plain:2",), ("exact:0",), ("exact:1:0",), ("exact", "--seconds", "0"), ())
        ages = (("--workers", "0"), ("--chunks", "0"), ("--fast", "1"))
        for program, words in [*(("hogwild", words) for words in hogwild), *(("ages", words) for words in ages)]:
            with self.subTest(program, words=words):
                code, out, err = finish(start(*words, program=program))
                self.assertEqual((code, out), (2, ""))
                self.assertNotEqual(err, "")
        for program, words in (("hogwild", ("exact", "--data", "/proc/none")),
                               ("checkpoints", ("--variables", "1", "--rounds", "1", "--dir", "/proc/none"))):
            code, _, err = finish(start(*words, program=program))
            self.assertEqual(code, 1)
            self.assertIn("/proc/none", err)

    @unittest.skipUnless(MAY_REPORT, "skipped: debug and sanitizer builds do not report")
    def test_wrong_usage_of_scripts_is_an_error_too(self):
        scripts = [("hogwild", ("--quick", "--rivals", "--build", BENCHES.parent), "the LIBSVM text of --data")]
        if DRAWING_PYTHON:
            scripts += [("scaling_law", words, says) for words, says in (
                (("--only", "nothing"), "no path has 'nothing'"), (("--workers", "0"), "numbers from 1"),
                (("--workers", "1000"), "numbers from 1"), (("--rounds", "0"), "more than 0"),
                (("--build", "/tmp"), "there is no /tmp/benches/micro"))]
        for script, words, says in scripts:
            with self.subTest(script, words=words):
                done = run_script(script, *words)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn(says, done.stderr)


@unittest.skipUnless(MAY_REPORT, "skipped: debug and sanitizer builds do not report")
class Smoke(unittest.TestCase):
    def smoke(self, program):
        """The context, and the cases by name."""
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.json"
            process = start("--smoke", f"--benchmark_out={report}", "--benchmark_out_format=json", program=program)
            code, out, err = finish(process)
            self.assertEqual(code, 0, out + err)
            self.assertEqual(leftovers(process.pid), [])
            found = json.loads(report.read_text())
        return found["context"], {run["name"]: run for run in found["benchmarks"]}

    def test_every_case_runs_and_loses_nothing(self):
        context, runs = self.smoke("micro")
        self.assertLessEqual(set(CONTEXT), set(context))
        expected = set(expected_names())
        self.assertEqual(set(runs), expected)
        for name, run in runs.items():
            with self.subTest(name):
                self.assertNotIn("error_message", run)
                if name.split("/")[0] in WITHOUT_LIMIT:
                    self.assertNotIn("limit", run)
                    self.assertGreater(run["real_time"], 0)
                else:
                    self.assertGreater(run["limit"], 0)
                    self.assertGreater(run["of_limit"], 0)
                if not any(part in INEXACT for part in name.split("/")):
                    self.assertEqual(run.get("lost_%", 0), 0)
            counts_losses = (name.startswith(("push", "mixed", "linear", "sync/step"))
                             or any(part in name for part in ("/add/", "_beside_pusher", "bare_exchange")))
            self.assertEqual("lost_%" in run, counts_losses, name)

    def test_every_case_of_rows_by_key_runs(self):
        _, runs = self.smoke("keyed")
        stores = ("table", "bfloat16", "dictionary", "tbb", "striped", "boost", "redis")
        expected = {f"{what}/{who}/{law}/processes:{p}" for what in ("lookup", "pull", "push") for who in stores
                    for law in ("zipf", "uniform") for p in (1, 2)}
        expected |= {f"insert/{who}/processes:{p}" for who in stores if who != "dictionary" for p in (1, 2)}
        expected |= {f"push_evicting/table/{law}/processes:{p}" for law in ("zipf", "uniform") for p in (1, 2)}
        self.assertEqual(set(runs), expected)
        for name, run in runs.items():
            if "/redis/" in name and not shutil.which("redis-server"):
                self.assertEqual(run["error_message"], "redis-server is not installed")
                continue
            self.assertGreater(run["M_rows/s"], 0, name)
            self.assertEqual("bytes/key" in run, name.startswith("insert"), name)


@timing.measures_time
@unittest.skipUnless(MAY_REPORT, "skipped: debug and sanitizer builds do not report")
class Ratios(unittest.TestCase):
    """Ratios with bounds that noise does not reach: each bound is at most a third of what was measured on a busy
    machine."""

    # how many times as fast the first case must be as the second; measured value in the comment
    BOUNDS = [
        ("push/versioned/floats:1000/processes:1", "push/atomic_ref/floats:1000/processes:1", 8),  # 24
        ("push/versioned/floats:1000000/processes:2", "push/atomic_ref/floats:1000000/processes:2", 4),  # 12 to 16
        ("push/inplace/floats:1000000/processes:2", "push/atomic_ref/floats:1000000/processes:2", 1),  # 3 to 4
        ("push/versioned/floats:1000/processes:1", "push/socket/floats:1000/processes:1", 50),  # 150 to 190
        ("pull/versioned/floats:1000/processes:1", "pull/socket/floats:1000/processes:1", 60),  # 180 to 240
        ("pull/versioned/floats:1000000/processes:1", "pull/memcpy/floats:1000000/processes:1", 0.3),  # 1
    ]
    ROUNDS = 5

    def rate(self, case):
        code, out, err = finish(start("--seconds=0.02", f"--benchmark_filter=^{case}$", "--benchmark_repetitions=1",
                                      "--benchmark_format=json"))
        self.assertEqual(code, 0, err)
        return json.loads(out[out.index("{"):])["benchmarks"][0]["GB/s"]

    def test_no_path_has_become_slow_beside_its_rivals(self):
        cases = sorted({case for ours, rival, _ in self.BOUNDS for case in (ours, rival)})
        rounds = [{case: self.rate(case) for case in cases} for _ in range(self.ROUNDS)]
        for ours, rival, least in self.BOUNDS:
            with self.subTest(ours, of=rival):
                self.assertGreater(statistics.median(rates[ours] / rates[rival] for rates in rounds), least)


@timing.measures_time
@unittest.skipUnless(MAY_REPORT, "skipped: debug and sanitizer builds do not report")
class KeyedRatios(unittest.TestCase):
    """As Ratios, of rows by key, in processor time: of a table and of oneTBB's map."""

    BOUNDS = {"pull": 1.2, "push": 1.6}  # 2.8 to 4.3, 4 to 7
    ROUNDS = 5

    def test_a_table_by_key_stays_faster_than_a_map(self):
        code, out, err = finish(start("--keys=200000", "--who=table,tbb", "--processes=1", "--seconds=0.02",
                                      "--benchmark_filter=^(pull|push)/", f"--benchmark_repetitions={self.ROUNDS}",
                                      "--benchmark_format=json", program="keyed"))
        self.assertEqual(code, 0, err)
        rates = {run["run_name"]: run["M_rows/cpu_s"] for run in json.loads(out[out.index("{"):])["benchmarks"]
                 if run.get("aggregate_name") == "median"}
        for what, least in self.BOUNDS.items():
            for law in ("zipf", "uniform"):
                with self.subTest(what, law=law):
                    table, tbb = (rates[f"{what}/{who}/{law}/processes:1"] for who in ("table", "tbb"))
                    self.assertGreater(table / tbb, least)


@unittest.skipUnless(MAY_REPORT, "skipped: debug and sanitizer builds do not report")
class Hogwild(unittest.TestCase):
    SCHEMES = ("plain", "exact", "racy", "striped", "lock")
    KEYS = {("plain", 1)} | {(scheme, workers) for scheme in SCHEMES[1:] for workers in (1, 2)}

    def measure(self, *arguments):
        """Makes a quick run; returns its output, results.json and the names in the folder."""
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder)
            done = run_script("hogwild", "--quick", "--build", BENCHES.parent, "--out", out, "--workers", "1", "2",
                              "--seconds", "0.02", *arguments)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            names = {path.name for path in out.iterdir()}
            return done.stdout, json.loads((out / "results.json").read_text()), names

    def check(self, cells, combines):
        self.assertEqual({(cell["scheme"], cell["workers"], cell["combine"]) for cell in cells},
                         {(*key, combine) for key in self.KEYS for combine in combines})
        for cell in cells:
            with self.subTest(cell["scheme"], workers=cell["workers"], combine=cell["combine"]):
                for figure in ("examples_per_second", "of_one_worker", "of_plain"):
                    self.assertGreater(cell[figure]["median"], 0)
                self.assertGreater(cell["row_updates"], 0)
                self.assertGreaterEqual(cell["lost_row_updates"], 0)
                if cell["scheme"] != "racy" or cell["workers"] == 1:
                    self.assertEqual(cell["lost_row_updates"], 0)
                self.assertEqual(cell["staleness"] is not None, cell["scheme"] in ("exact", "racy"))

    def test_every_scheme_trains_and_none_but_racy_loses_updates(self):
        told, found, names = self.measure("--features", "200", "--examples", "2000", "--per-row", "10", "--epochs", "2",
                                          "--combine", "1", "8", "--lr", "0.5")
        self.check(found["cells"], (1, 8))
        for cell in found["cells"]:
            with self.subTest(cell["scheme"], workers=cell["workers"], combine=cell["combine"]):
                curve = cell["curve"]
                self.assertEqual([point["epoch"] for point in curve], [0, 1, 2])
                self.assertAlmostEqual(curve[0]["loss"], math.log(2), places=5)
                self.assertLess(curve[2]["loss"], 0.66)
                self.assertTrue(0 < curve[1]["seconds"] < curve[2]["seconds"], curve)
        self.assertLessEqual(set(CONTEXT), set(found["environment"]))
        self.assertIn("--combine 1 8", found["environment"]["command"])
        self.assertIn("| exact | 8 | 2 |", told)
        plots = {"throughput.png", "loss.png"} if DRAWING_PYTHON else set()
        self.assertLessEqual({"results.json", "summary.md"} | plots, names)

    def test_rows_of_several_floats_are_pulled_and_pushed(self):
        _, found, _ = self.measure("--model", "rows", "--width", "5", "--features", "100", "--examples", "500",
                                   "--per-row", "10")
        self.check(found["cells"], (1,))

    def test_a_file_is_read(self):
        with tempfile.NamedTemporaryFile("w", suffix=".libsvm") as file:
            file.write("+1 1:1 3:0.5\n-1 2:1\n" * 50)
            file.flush()
            _, found, _ = self.measure("--data", file.name, "--model", "svm", "--epochs", "1")
        self.assertEqual((found["data"]["examples"], found["data"]["features"]), (100, 3))
        self.check(found["cells"], (1,))

    def test_other_learners_make_passes_until_they_have_the_loss_of_exact_workers(self):
        with tempfile.NamedTemporaryFile("w", suffix=".libsvm") as file:
            for example in range(2000):  # a tenth of the examples has the opposite label
                sign = example % 3 - 1 or 1
                file.write(f"{sign if example % 10 else -sign:+d} {2 + sign}:1 {4 + example % 5}:0.5\n")
            file.flush()
            told, found, _ = self.measure("--data", file.name, "--epochs", "2", "--schemes", "plain", "exact",
                                          "--rivals")
        modules = {"sklearn": "sklearn", "liblinear": "sklearn", "vw": "vowpalwabbit"}
        installed = {rival for rival, module in modules.items() if find_python(module)}
        self.assertEqual(set(found["rivals"]), installed)
        loss = max(cell["curve"][-1]["loss"] for cell in found["cells"] if cell["scheme"] == "exact")
        for rival, runs in found["rivals"].items():
            with self.subTest(rival):
                *before, last = runs[0]["curve"]
                self.assertTrue(last["loss"] <= loss or len(before) == 19, runs)
                self.assertTrue(all(point["loss"] > loss for point in before), runs)
                self.assertRegex(told, rf"\| {rival} [0-9.]+ \| {len(before) + 1} \|")


@unittest.skipUnless(MAY_REPORT, "skipped: debug and sanitizer builds do not report")
@unittest.skipUnless(DRAWING_PYTHON, "skipped: no Python here has matplotlib")
class Scaling(unittest.TestCase):
    def test_each_path_is_measured_beside_its_limit(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run_script("scaling_law", "--quick", "--pin", "--build", BENCHES.parent, "--out", folder,
                              "--workers", "1", "2")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            found = json.loads((pathlib.Path(folder) / "results.json").read_text())
            self.assertEqual((pathlib.Path(folder) / "summary.md").read_text(), done.stdout)
            self.assertGreater((pathlib.Path(folder) / "scaling.png").stat().st_size, 1000)
        paths = {one["path"] for one in found["rounds"]}
        self.assertEqual(len(paths), 11)
        expected = {(path, kind, workers) for path in paths for kind in ("free", "pinned") for workers in (1, 2)
                    if kind == "free" or not path.startswith("training")}
        rounds = [(one["path"], one["kind"], one["workers"]) for one in found["rounds"]]
        self.assertEqual(sorted(rounds), sorted(expected))
        for one in found["rounds"] + found["laws"]:
            self.assertGreater(min(one.get("rate", 1), one.get("limit", 1), one.get("one", 1)), 0, one)
        self.assertEqual({(one["path"], one["kind"]) for one in found["laws"]}, {key[:2] for key in expected})
        self.assertIn("tell nothing of coherence", done.stdout)

    def test_the_law_that_rates_were_made_of_is_found_again(self):
        done = run_script("-c", """if True:
            from scaling_law.law import Law, fit
            for contention, coherence, pays in ((0, 0, None), (0.05, 0, 43), (0.02, 0.001, 24), (0, 0.01, 9)):
                law = Law(3.0, contention, coherence, 0)
                found = fit({workers: law.rate(workers) for workers in (1, 2, 3, 8, 32)})
                assert max(abs(a - b) for a, b in zip(found, law)) < 1e-9, (law, found)
                assert found.pays_up_to() == pays, found
            two = fit({1: 3.0, 2: 5.0})
            assert abs(two.contention - 0.2) < 1e-9 and two.coherence == 0, two
            faster = fit({1: 1.0, 2: 2.2, 4: 4.6})  # than in proportion: nothing of it is below 0
            assert (faster.contention, faster.coherence) == (0, 0) and 0.05 < faster.error < 0.15, faster
            assert fit({2: 3.0}) is None
            from scaling_law.law import interval
            share = lambda one: one.contention
            law = Law(3.0, 0.05, 0.001, 0)
            noisy = {count: [law.rate(count) * (1 + at / 100) for at in (-2, -1, 0, 1, 2)] for count in (1, 2, 3, 4, 8)}
            low, high = interval(noisy, share)
            assert 0.02 < low < 0.05 < high < 0.08, (low, high)
            exact = {count: [law.rate(count)] * 3 for count in (1, 2, 3, 4, 8)}
            low, high = interval(exact, lambda one: one.rate(32))
            assert abs(low - law.rate(32)) < 1e-9 and abs(high - law.rate(32)) < 1e-9, (low, high)
            assert interval({1: [3.0], 2: [5.0]}, share) is None""")
        self.assertEqual(done.returncode, 0, done.stderr)


@unittest.skipUnless(MAY_REPORT, "skipped: debug and sanitizer builds do not report")
class Checkpoints(unittest.TestCase):
    KINDS = ("Checkpoint::save", "private bytes, written as save does", "private bytes, write(), XXH3, fsync()",
             "dd bs=4M conv=fsync")

    def test_each_way_to_write_is_measured_with_and_without_a_trainer(self):
        with tempfile.TemporaryDirectory() as folder:
            process = start("--variables", "4", "--rounds", "1", "--computing", "0.5", "--dir", folder,
                            program="checkpoints")
            code, out, err = finish(process)
            self.assertEqual((code, err), (0, ""), out)
            self.assertEqual(os.listdir(folder), [])
        beside, alone = out.split("Nobody trains:")
        self.assertIn("\nfiles: ", beside)
        for kind in self.KINDS:
            for table, before in ((beside, 4), (alone, 0)):
                row = next(line for line in table.splitlines() if line.startswith(f"| {kind} |"))
                cells = row.split("|")[2 + before:]
                self.assertGreater(int(cells[0]), 0, kind)  # MB/s
                self.assertGreater(float(cells[1].split()[0]), 0, kind)  # as a multiple of dd
        self.assertEqual(list(pathlib.Path("/dev/shm").glob(f"ps_shm.bench-checkpoints-{process.pid}*")), [])


# Runs what follows with a private 3 MiB /dev/shm: jobs of some cases need 4 MiB of free buffers for each rank.
NARROW = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--mount", "sh", "-c",
          'mount -t tmpfs -o size=3m tmpfs /dev/shm && exec "$@"', "sh"]


@functools.cache
def can_narrow():
    try:
        return subprocess.run([*NARROW, "true"], capture_output=True, timeout=PATIENCE).returncode == 0
    except FileNotFoundError:
        return False


@unittest.skipUnless(MAY_REPORT, "skipped: debug and sanitizer builds do not report")
class Ages(unittest.TestCase):
    def test_the_youngest_chunk_is_no_older_than_the_oldest_one_and_one_workers_have_no_age(self):
        for workers, seconds in ((1, "0.1"), (1, "1e-9"), (3, "0.1")):  # a worker that begins too late pushes once
            with self.subTest(workers=workers, seconds=seconds):
                code, out, err = finish(start("--seconds", seconds, "--sleep-us", "500", "--workers", str(workers),
                                              "--chunks", "3", program="ages"))
                self.assertEqual(code, 0, err)
                for step, youngest, oldest, pushes in json.loads(out)["ages"]:
                    self.assertLessEqual(youngest, oldest)
                    self.assertGreater(pushes, 0)
                    if workers == 1:
                        self.assertEqual((step, youngest, oldest), (0, 0, 0))


class NoRoom(unittest.TestCase):
    CASE = f"push_chunk/sgd/bytes:{1 << 20}/floats:100000/processes:2"

    def setUp(self):
        if not can_narrow():
            self.skipTest("skipped: there may be no other /dev/shm here")

    def test_what_does_not_fit_is_skipped_and_counted(self):
        code, out, err = finish(start("--smoke", wrapper=NARROW))
        self.assertEqual(code, 0, out + err)
        lines = [line for line in out.splitlines() if "skipped: " in line]
        self.assertRegex(next(line for line in lines if line.startswith(self.CASE + " ")), "/dev/shm")
        self.assertIn(f"micro: {len(lines)} measurements skipped: no room in /dev/shm", err)
        self.assertRegex(out, r"(?m)^scalar/add/processes:1 +ns \d")

    def test_it_is_an_error_when_asked_for_by_name(self):
        code, out, err = finish(start("--smoke", f"--benchmark_filter={self.CASE}", wrapper=NARROW))
        self.assertEqual(code, 1, out + err)
        self.assertRegex(out, f"{self.CASE} +ERROR: .*/dev/shm")


@unittest.skipUnless(MAY_REPORT, "skipped: debug and sanitizer builds do not report")
class Ends(unittest.TestCase):
    def start_long(self, case):
        process = start(f"--benchmark_filter={case}", "--seconds=50", "--benchmark_repetitions=1")
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        end = time.monotonic() + PATIENCE
        while len(leftovers(process.pid)) == 0 or len(children(process.pid)) < 2:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        return process

    def test_a_case_whose_process_dies_is_an_error_and_no_hang(self):
        process = self.start_long("linear/.*processes:2")
        os.kill(children(process.pid)[0], signal.SIGKILL)
        code, out, _ = finish(process)
        self.assertEqual(code, 1)
        self.assertRegex(out, "linear/.*ERROR.*signal 9")
        self.assertEqual(leftovers(process.pid), [])

    def test_sigterm_ends_everything_and_leaves_nothing(self):
        process = self.start_long("linear/.*processes:2")
        measuring = children(process.pid)
        process.terminate()
        self.assertEqual(finish(process)[0], 1)
        self.assertEqual(leftovers(process.pid), [])
        self.assertEqual([pid for pid in measuring if os.path.exists(f"/proc/{pid}")], [])


if __name__ == "__main__":
    timing.main()
