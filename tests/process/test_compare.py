"""benches/compare.py, run on programs and files that imitate google-benchmark with known distributions; how
benches/speed judges its targets; and that a cell in the benchmarks' tables has a single figure."""

import contextlib
import io
import json
import pathlib
import random
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import support
from support import SOURCE

sys.path.insert(0, str(SOURCE / "benches"))
import accuracy
import record
from rivals.targets import Target
from rivals.verdicts import judge, print_table
from sparse import tables

# Prints one repetition of the cases that match --benchmark_filter, each value drawn around its centre. Machines drift:
# everything gets slower by a factor that grows with each call of any program in the folder.
PROGRAM = """#!{python} -IS
import json, pathlib, random, re, sys
CENTRES = {centres!r}
options = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:])
if "benchmark_list_tests" in options:
    print("\\n".join(name + "/iterations:1/manual_time" for name in CENTRES))
    sys.exit()
calls = pathlib.Path(__file__).with_name("calls")
with calls.open("a") as file:
    print(pathlib.Path(__file__).name, file=file)
number = len(calls.read_text().splitlines())
draw = random.Random({seed} * 1000 + number)
drift = 1 + 0.05 * number
print("a line of the program's own")
entries = []
for name, counters in CENTRES.items():
    whole = name + "/iterations:1/manual_time"
    if not re.search(options["benchmark_filter"], whole):
        continue
    entry = {{"name": whole, "run_name": whole, "run_type": "iteration", "iterations": 1, "time_unit": "us",
             "real_time": 1.0, "cpu_time": 1.0}}
    for counter, centre in counters.items():
        noise = 1 + draw.uniform(-{noise}, {noise})
        entry[counter] = centre * noise * drift if counter == "real_time" else centre * noise / drift
    entries.append(entry)
pathlib.Path(options["benchmark_out"]).write_text(json.dumps({{"context": {{}}, "benchmarks": entries}}))
"""

PUSH, RACY = (f"push/{scheme}/floats:1000/processes:2" for scheme in ("versioned", "racy_simd"))
SYNC = "sync/empty/processes:2"
CENTRES = {
    PUSH: {"GB/s": 20.0, "limit": 30.0, "lost_%": 0.0},
    RACY: {"GB/s": 18.0, "lost_%": 5.0},
    SYNC: {"real_time": 1.5},
}


class Compare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def program(self, name, seed, factors=None, noise=0.02):
        """A program whose counters differ from CENTRES by the factors {(case, counter): factor}."""
        factors = factors or {}
        centres = {case: {counter: centre * factors.get((case, counter), 1.0) for counter, centre in counters.items()}
                   for case, counters in CENTRES.items()}
        path = self.folder / name
        path.write_text(PROGRAM.format(python=sys.executable, centres=centres, seed=seed, noise=noise))
        path.chmod(0o755)
        return path

    def saved(self, name, centre, repetitions=12, seed=1):
        draw = random.Random(seed)
        case = {"name": "scalar/add/processes:1", "run_name": "scalar/add/processes:1", "run_type": "iteration",
                "time_unit": "ns", "cpu_time": 1.0}
        entries = [{**case, "real_time": centre * draw.uniform(0.99, 1.01)} for _ in range(repetitions)]
        path = self.folder / name
        path.write_text(json.dumps({"benchmarks": entries}))
        return path

    def compare(self, *arguments, code=0):
        report = self.folder / "report.json"
        command = [sys.executable, SOURCE / "benches/compare.py", "--repetitions", 8, *arguments, "--json", report]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=support.PATIENCE)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        if code == 2:
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
            return done.stderr
        return {(row["name"], row["counter"]): row["verdict"] for row in json.loads(report.read_text())["rows"]}

    def test_two_of_the_same_are_the_same_and_are_interleaved_so_that_drift_falls_on_both(self):
        verdicts = self.compare(self.program("old", seed=1), self.program("new", seed=2))
        self.assertEqual(set(verdicts.values()), {"same"})
        self.assertEqual({case for case, _ in verdicts}, set(CENTRES))
        # The limit is a property of the machine; a time next to a rate would be the same figure twice.
        self.assertEqual({counter for _, counter in verdicts}, {"GB/s", "lost_%", "seconds"})
        (self.folder / "calls").unlink()
        self.compare(self.folder / "old", self.folder / "new", "--filter", "sync/")
        self.assertEqual((self.folder / "calls").read_text().split(), ["old", "new", "new", "old"] * 4)

    def test_a_change_is_better_or_worse_unless_it_is_below_the_threshold_or_within_the_spread(self):
        rate, time, racy = (PUSH, "GB/s"), (SYNC, "seconds"), (RACY, "GB/s")
        faster, slower = {rate: 1.3, (SYNC, "real_time"): 0.7}, {rate: 0.7, (SYNC, "real_time"): 1.3}
        for what, noise, factors, options, code, expected in (
                ("a higher rate and a shorter time", 0.02, faster, (), 0, {rate: "better", time: "better"}),
                ("a lower rate and a longer time", 0.02, slower, (), 1, {rate: "worse", time: "worse"}),
                ("of a control", 0.02, {racy: 0.5}, ("--filter", "racy"), 0, {racy: "worse"}),
                ("below the threshold", 0.0, slower, ("--filter", "sync/", "--threshold", 60), 0, {time: "same"}),
                ("within the spread", 0.5, {(SYNC, "real_time"): 1.05}, ("--filter", "sync/"), 0, {time: "same"})):
            with self.subTest(what):
                (self.folder / "calls").unlink(missing_ok=True)
                old, new = self.program("old", 1, noise=noise), self.program("new", 2, factors, noise)
                self.assertLessEqual(expected.items(), self.compare(old, new, *options, code=code).items())

    def test_lost_updates_where_there_were_none_are_worse(self):
        old, new = self.program("old", seed=1), self.program("new", seed=2)
        new.write_text(new.read_text().replace("'lost_%': 0.0", "'lost_%': 1.0"))
        self.assertEqual(self.compare(old, new, "--filter", "versioned", code=1)[PUSH, "lost_%"], "worse")

    def test_saved_measurements(self):
        old, same, slow = (self.saved(f"{seed}.json", centre, seed=seed)
                           for seed, centre in ((1, 10.0), (2, 10.0), (3, 13.0)))
        self.assertEqual(self.compare(old, same), {("scalar/add/processes:1", "seconds"): "same"})
        self.assertEqual(self.compare(old, slow, code=1), {("scalar/add/processes:1", "seconds"): "worse"})

    def test_what_cannot_be_compared_is_said(self):
        old = self.saved("a.json", 10.0)
        self.assertIn("too few", self.compare(old, self.saved("few.json", 10.0, repetitions=3), code=2))
        self.assertIn("no-such-revision", self.compare(old, "no-such-revision", code=2))
        (self.folder / "empty.json").write_text("{}")
        self.assertIn("empty.json", self.compare(old, self.folder / "empty.json", code=2))
        failing = self.folder / "failing"
        failing.write_text("#!/bin/sh\necho broken >&2; exit 3\n")
        failing.chmod(0o755)
        self.assertRegex(self.compare(failing, failing, code=2), re.compile("exit code 3.*broken"))


class Verdicts(unittest.TestCase):
    def judge(self, samples, **target):
        return judge(Target("group", "text", "ours", target.pop("counter", "GB/s"), **target), samples)

    def test_a_rate_must_reach_its_share_of_the_best_rival(self):
        samples = {"ours": [{"GB/s": 10.0}] * 3, "slow": [{"GB/s": 5.0}] * 3,
                   "fast": [{"GB/s": 12.0}, {"GB/s": 12.5}, {"GB/s": 50.0}]}
        judged = self.judge(samples, rivals=("slow", "fast"), at_least=1.0)
        self.assertEqual((judged.rival_key, judged.ratio, judged.met), ("fast", 0.8, False))
        self.assertTrue(self.judge(samples, rivals=("slow", "fast"), at_least=0.8).met)

    def test_a_time_must_stay_below_its_multiple_of_the_rivals(self):
        samples = {"ours": [{"seconds": 2.0}] * 3, "rival": [{"seconds": 1.0}] * 3}
        self.assertTrue(self.judge(samples, counter="seconds", rivals=("rival",), at_most=2.0).met)
        self.assertFalse(self.judge(samples, counter="seconds", rivals=("rival",), at_most=1.9).met)
        self.assertFalse(self.judge(samples, counter="seconds", rivals=("rival",), at_least=1.0, faster=True).met)

    def test_a_ratio_pairs_the_figures_of_one_round(self):
        rates = [1.0, 2.0, 40.0]
        samples = {"ours": [{"GB/s": 2 * rate} for rate in rates], "rival": [{"GB/s": rate} for rate in rates]}
        judged = self.judge(samples, rivals=("rival",))
        self.assertEqual((judged.least, judged.ratio, judged.greatest, judged.met), (2.0, 2.0, 2.0, None))

    def test_a_figure_without_a_rival_is_compared_with_the_bound_itself(self):
        samples = {"ours": [{"ps_%": 0.5}, {"ps_%": 3.0}, {"ps_%": 0.7}]}
        self.assertTrue(self.judge(samples, counter="ps_%", at_most=1.0).met)
        self.assertFalse(self.judge(samples, counter="ps_%", at_most=0.6).met)

    def test_without_figures_there_is_no_verdict(self):
        samples = {"ours": [{"GB/s": 1.0}, None], "rival": [None, {"GB/s": 1.0}], "gone": [None, None]}
        self.assertIsNone(self.judge(samples, rivals=("rival",), at_least=1.0), "they are not of the same round")
        self.assertIsNone(self.judge(samples, rivals=("gone", "not measured at all"), at_least=1.0))
        self.assertIsNone(judge(Target("group", "text", "gone", "GB/s", at_least=1.0), samples))


class Tables(unittest.TestCase):
    """A cell has at most one figure, and a row has as many cells as the head."""

    def cells(self, text):
        tables = [[]]
        for line in text.splitlines():
            if line.startswith("|"):
                tables[-1].append([cell.strip() for cell in line[1:-1].split("|")])
            elif tables[-1]:
                tables.append([])
        rows = []
        for table in filter(None, tables):
            self.assertEqual({len(row) for row in table}, {len(table[0])}, text)
            rows += [dict(zip(table[0], row)) for row in table[2:]]
        return rows

    def test_accuracies_staleness_and_rates_have_a_table_each(self):
        entry = {"accuracy": 0.98, "staleness": 1.5, "steps_per_second": 3000.4}
        worse = {"accuracy": 0.97, "staleness": 0.0, "steps_per_second": 12.0}
        measured = {"sgd": {"alone": entry, "async": entry, "sync": worse}}
        text = "\n".join(accuracy.tables(measured, ["async", "sync"]))
        self.assertEqual(self.cells(text), [{"optimizer": "sgd", "alone": "98.00", "async": "98.00", "sync": "97.00 (!)"},
                                            {"optimizer": "sgd", "async": "1.50", "sync": "0.00"},
                                            {"optimizer": "sgd", "async": "3000", "sync": "12"}])

    def test_speed_has_its_figure_the_rivals_and_three_ratios(self):
        samples = {"ours": [{"GB/s": 10.0}, {"GB/s": 11.0}], "rival": [{"GB/s": 5.0}] * 2, "own": [{"of_limit": 0.5}]}
        targets = [
            Target("push", "beside a rival", "ours", "GB/s", ("rival",), at_least=1.0),
            Target("push", "beside a bound", "own", "of_limit", at_least=0.9),
            Target("push", "not there", "gone", "GB/s", ("rival",)),
        ]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            print_table(targets, samples, {"gone": "not installed"})
        self.assertEqual([list(row.values()) for row in self.cells(out.getvalue())], [
            ["beside a rival", "10.5 GB/s", "rival", "5.00 GB/s", "2.1", "2", "2.2", "at least 1", "yes"],
            ["beside a bound", "", "", "", "0.500", "0.500", "0.500", "at least 0.9", "**no**"],
            ["not there", "", "gone: not installed", "", "", "", "", "", "not measured"]])

    def test_hogwild_has_staleness_in_two_columns(self):
        run = {"scheme": "exact", "workers": 2, "combine": 1, "examples_per_second": 1.43e6, "row_updates": 10,
               "lost_row_updates": 0, "staleness": {"mean": 0.39, "p99": 1, "max": 3}}
        plain = {**run, "scheme": "plain", "workers": 1}
        del plain["staleness"]
        rows = self.cells(tables.table(tables.summarise([[run, plain]]), False))
        self.assertEqual([row["staleness, mean"] for row in rows], ["", "0.39"])
        self.assertEqual([row["staleness, 99th percentile"] for row in rows], ["", "1"])


class Recorded(unittest.TestCase):
    def test_a_command_is_kept_with_the_rows_of_its_tables(self):
        with tempfile.TemporaryDirectory() as folder:
            table = "said\n|  | rate |\n|---|---:|\n| a | 1.5 GB/s |\n| b |  |\n"
            for text, code in ((table, 0), (table, 1), (table, 3), ("no table\n", 0)):
                path = pathlib.Path(folder) / "it.json"
                path.unlink(missing_ok=True)
                words = ["sh", "-c", f"printf '%b' '{table}'; exit {code}".replace(table, text)]
                with unittest.mock.patch.multiple(record, RESULTS=path.parent), \
                        unittest.mock.patch.object(sys, "argv", ["record.py", "it", "Zen 5", *words]), \
                        contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
                    self.assertEqual(record.main(), 0 if code < 2 and text is table else 1)
                self.assertEqual(out.getvalue(), text)
                self.assertEqual(path.exists(), code < 2 and text is table)
                if path.exists():
                    kept = json.loads(path.read_text())
                    self.assertEqual(kept["rows"], [{"case": "a", "rate": "1.5 GB/s"}, {"case": "b", "rate": ""}])
                    self.assertEqual((kept["machine"], kept["command"]), ("Zen 5", shlex.join(words)))
                    self.assertTrue({"commit", "processor", "load", "date"} <= set(kept))


if __name__ == "__main__":
    support.main()
