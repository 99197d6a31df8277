"""The sweep of staleness against throughput: results, resuming, plots and page, and which builds may not report."""
import html.parser
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

import support

SWEEP = support.SOURCE / "benches" / "staleness"
WRAPPER = support.SOURCE / "benches" / "staleness_throughput"


def python_with_matplotlib():
    for python in ("python3", "/usr/bin/python3"):
        tried = [python, "-c", "import matplotlib"]
        if shutil.which(python) and subprocess.run(tried, capture_output=True).returncode == 0:
            return python
    return None


PYTHON = python_with_matplotlib()


class Page(html.parser.HTMLParser):
    """The links and identifiers of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.identifiers, self.tags = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            if name in ("href", "src", "xlink:href", "data"):
                self.links.append(value)
            if name == "id":
                self.identifiers.append(value)


class Sweep(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ps-sweep-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.tools = support.TOOLS

    def start(self, *arguments):
        return support.start(PYTHON, SWEEP, "--tools", self.tools, "--out", self.folder / "out", *arguments)

    def sweep(self, *arguments):
        return support.finish(self.start(*arguments), 4 * support.PATIENCE)

    def lines(self):
        path = self.folder / "out" / "results.jsonl"
        whole, _, _ = (path.read_text() if path.exists() else "").rpartition("\n")  # the last line may be incomplete
        return [json.loads(line) for line in whole.splitlines()]

    def runs(self):
        return [line for line in self.lines() if line["kind"] == "run"]

    @unittest.skipIf(support.SLOWNESS > 1, "such a build may not report")
    def test_the_smoke_setting_measures_draws_and_is_not_run_twice(self):
        code, out, err = self.sweep("--smoke")
        self.assertEqual(code, 0, err)
        runs = self.runs()
        self.assertEqual(len(runs), 9)  # four modes, two stragglers, the reference
        self.assertEqual(len({line["key"] for line in self.lines()}), len(self.lines()))
        for line in runs:
            self.assertLessEqual({"cpu", "cores", "numa_nodes", "kernel", "compiler", "build", "commit", "pinning"},
                                 set(line["environment"]))
            self.assertGreater(len(line["result"]["curve"]), 3)
            self.assertIn("histogram", line["result"]["staleness"])
            if line["settings"]["mode"] == "sync" and not line["settings"]["reference"]:
                self.assertEqual(line["result"]["staleness"]["max"], 0)
        # The printed table has a row for every straggler and mode, with one figure in each of five cells.
        rows = [line.strip("| ").split(" | ") for line in out.splitlines() if re.match(r"\| [^|]+ \| (async|ssp|sync)", line)]
        self.assertEqual(len(rows), 8, out)
        for row in rows:
            for cell, figure in zip(row[2:], (r"[\d.]+k?", r"\d+\.\d\d", r"\d+", r"[\d.]+|–", r"\d+\.\d"), strict=True):
                self.assertRegex(cell, f"^({figure})$", out)
        self.assertEqual((self.folder / "out" / "summary.md").read_text(), out)
        self.check_plots()
        self.check_recorded(runs)
        before = (self.folder / "out" / "results.jsonl").read_bytes()
        code, again, err = self.sweep("--smoke")
        self.assertEqual(code, 0, err)
        self.assertEqual((self.folder / "out" / "results.jsonl").read_bytes(), before)
        self.assertIn("9 are done already", err)
        self.assertEqual(again, out)

    def check_plots(self):
        folder = self.folder / "out"
        plots = sorted(path.stem for path in folder.glob("*.svg"))
        self.assertEqual(plots, ["loss-digits-3-workers", "staleness-digits-3-workers", "target-3-workers",
                                 "throughput-3-workers"])
        for plot in plots:
            xml.etree.ElementTree.parse(folder / f"{plot}.svg")
            self.assertEqual((folder / f"{plot}.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        text = (folder / "index.html").read_text()
        page = Page(text)
        self.assertEqual(page.tags.count("svg"), len(plots))
        # Self-contained: all its links lead to the page itself.
        self.assertTrue(all(link.startswith("#") and link[1:] in page.identifiers for link in page.links))
        self.assertEqual(set(re.findall(r"url\((?!#)", text)), set())
        self.assertNotIn("<script", text)
        self.assertNotIn("Not all of the runs", text)
        self.assertEqual(len(page.identifiers), len(set(page.identifiers)))

    def check_recorded(self, runs):
        """What a file of benches/results has is enough for the plots of the pages."""
        script = f"""import json, pathlib, sys
sys.path.insert(0, {str(SWEEP)!r})
import figures, summary
kept = summary.Summary(json.loads(sys.stdin.read())).recorded()
figures.draw_recorded(summary.Recorded(json.loads(json.dumps(kept))), pathlib.Path(sys.argv[1]))
for cell in kept["cells"]:
    del cell["curve"], cell["examples_per_second"]
figures.draw_recorded(summary.Recorded(kept), pathlib.Path(sys.argv[2]))
"""
        names = ["straggler-3-workers.png", "target-3-workers.png", "throughput-3-workers.png"]
        folders = [self.folder / "whole", self.folder / "part"]
        for folder in folders:
            folder.mkdir()
        subprocess.run([PYTHON, "-B", "-c", script, *folders], input=json.dumps(runs), text=True, check=True, timeout=support.PATIENCE)
        self.assertEqual([sorted(path.name for path in folder.iterdir()) for folder in folders], [names, names[:2]])
        sizes = [int.from_bytes((folder / names[0]).read_bytes()[16:20], "big") for folder in folders]
        self.assertGreater(sizes[0], sizes[1])  # the curves are beside the dots

    def hold_third_run(self):
        """Makes a build folder whose launch_shm starts no third run while the returned file exists."""
        is_held = self.folder / "held"
        is_held.touch()
        build = self.folder / "held-build"
        (build / "tools").mkdir(parents=True)
        (build / "meson-info").symlink_to(support.TOOLS.parent / "meson-info")
        for program in support.TOOLS.glob("*_shm"):
            (build / "tools" / program.name).symlink_to(program)
        self.tools = build / "tools"
        launch = self.tools / "launch_shm"
        launch.unlink()
        launch.write_text(f"""#!/bin/sh
            if [ "$(grep -c '"kind":"run"' {self.folder}/out/results.jsonl)" -ge 2 ]; then
                while [ -e {is_held} ]; do sleep 0.02; done
            fi
            exec {support.TOOLS}/launch_shm "$@"\n""")
        launch.chmod(0o755)
        return is_held

    @unittest.skipIf(support.SLOWNESS > 1, "such a build may not report")
    def test_an_interrupted_sweep_goes_on_where_it_was(self):
        options = ["--modes", "async", "sync", "--stragglers", "none", "--models", "digits", "--seconds", "0.3",
                   "--repeats", "2", "--curve", "10"]
        is_held = self.hold_third_run()
        process = self.start(*options)
        support.wait_until(lambda: len(self.runs()) >= 2, "two runs are done")
        process.send_signal(signal.SIGINT)
        code, out, err = support.finish(process)
        is_held.unlink()
        self.assertEqual(code, 130, err)
        self.assertIn("the same command goes on", err)
        done = self.lines()
        path = self.folder / "out" / "results.jsonl"
        with path.open("a") as file:
            file.write('{"key": "half a li')  # as left by a machine that crashed
        code, out, err = self.sweep(*options)
        self.assertEqual(code, 0, err)
        self.assertIn("cannot be read", err)
        lines = [json.loads(line) for line in path.read_text().splitlines() if not line.startswith('{"key": "half')]
        self.assertEqual(lines[: len(done)], done)
        self.assertEqual(sum(line["kind"] == "run" for line in lines), 6)
        self.assertEqual(sum(line["kind"] == "calibration" for line in lines), 3)
        self.assertEqual(len({line["key"] for line in lines}), len(lines))

    @unittest.skipIf(support.SLOWNESS > 1, "such a build may not report")
    def test_rates_are_swept_once_and_the_best_one_of_each_mode_is_repeated(self):
        options = ["--rates", "0.05:0.1", "--modes", "async", "drop:8", "clip:0.5", "--stragglers", "none", "--models", "digits",
                   "--workers", "2", "--seconds", "0.2", "--repeats", "2", "--curve", "20", "--target", "2.2"]
        code, out, err = self.sweep(*options)
        self.assertEqual(code, 0, err)
        runs = [line for line in self.runs() if not line["settings"]["reference"]]
        self.assertEqual(sum(line["repetition"] == 1 for line in runs), 6)
        repeated = [(line["settings"]["mode"], line["settings"]["rate"], line["repetition"]) for line in runs
                    if line["repetition"] > 1]
        rows = dict(re.findall(r"^\| no straggler \| async(, [^|]+)? \| ([\d.]+) \|", out, re.MULTILINE))
        best = {"async": rows[""], "drop:8": rows[", drop:8"], "clip:0.5": rows[", clip-norm 0.5"]}
        self.assertEqual(sorted(repeated), sorted((mode, float(rate), number) for mode, rate in best.items() for number in (2, 3)))
        self.assertEqual(sum(line["kind"] == "calibration" for line in self.lines()), 4)  # the reference, and one for each mode
        self.assertRegex(out, "Age limit 8: in 4 runs the staleness of a chunk exceeded 7 by at most [0-9]+ in [0-9]")
        self.assertEqual((self.folder / "out" / "rates.md").read_text(), out)
        xml.etree.ElementTree.parse(self.folder / "out" / "rates.svg")
        again = self.sweep(*options)
        self.assertEqual((again[0], again[1]), (0, out))

    @unittest.skipIf(support.SLOWNESS > 1, "such a build may not report")
    def test_measured_ages_are_a_table_and_a_plot(self):
        folder = self.folder / "out"
        folder.mkdir()
        ages = [[0, 0, 0, 50], [1, 1, 2, 30], [1, 0, 3, 15], [3, 1, 2, 4], [2, 2, 9, 1]]
        (folder / "ages.json").write_text(json.dumps([{"workers": 4, "chunks": 16, "ages": ages}]))
        code, out, err = self.sweep("--ages", "--no-runs")
        self.assertEqual(code, 0, err)
        self.assertIn("| 4 | 16 | 100 | 50.00 | 50.00 | 30.00 | 15.00 | 1.00 | 4.00 |", out)
        xml.etree.ElementTree.parse(folder / "ages.svg")
        (folder / "ages.json").unlink()
        self.assertEqual(self.sweep("--ages", "--no-runs")[0], 1)

    @unittest.skipIf(support.SLOWNESS > 1, "such a build may not report")
    def test_two_sweeps_do_not_write_to_one_folder(self):
        options = ["--smoke", "--modes", "sync", "--seconds", "1000"]
        first = self.start(*options)
        support.wait_until(lambda: self.lines(), "the first one is under way")
        code, out, err = self.sweep(*options)
        first.send_signal(signal.SIGTERM)
        self.assertEqual(support.finish(first)[0], 130)
        self.assertEqual(code, 1)
        self.assertIn("another sweep", err)

    @unittest.skipIf(support.SLOWNESS == 1, "this build may report")
    def test_a_build_with_sanitizers_refuses_to_report(self):
        code, out, err = self.sweep("--smoke")
        self.assertEqual((code, out), (1, ""))
        self.assertIn("measures nothing", err)
        self.assertEqual(self.lines(), [])

    def test_a_debug_build_refuses_to_report(self):
        build = self.folder / "build"
        (build / "meson-info").mkdir(parents=True)
        (build / "tools").symlink_to(support.TOOLS)
        options = [{"name": "buildtype", "value": "debug"}, {"name": "b_sanitize", "value": "none"}]
        (build / "meson-info" / "intro-buildoptions.json").write_text(json.dumps(options))
        spec = importlib.util.spec_from_file_location("environment", SWEEP / "environment.py")
        environment = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(environment)
        self.assertIn("measures nothing", environment.refusal(build / "tools"))
        options[0]["value"] = "release"
        (build / "meson-info" / "intro-buildoptions.json").write_text(json.dumps(options))
        self.assertIsNone(environment.refusal(build / "tools"))
        bare = self.folder / "bare" / "tools"
        bare.mkdir(parents=True)
        for program in ("launch_shm", "ps_shm", "worker_shm"):
            (bare / program).symlink_to(support.TOOLS / program)
        self.assertIn("no build folder", environment.refusal(bare))

    def test_names_that_name_nothing_are_refused_with_those_there_are(self):
        for option, value, word in (
                ("--modes", "fast", "ssp:S"), ("--modes", "drop:0", "drop:R"), ("--stragglers", "slow", "random"),
                ("--stragglers", "sleep-2x", "sleep-own-data"), ("--rates", "0", "LO:HI"), ("--rates", "0.2:0.1", "LO:HI"),
                ("--models", "resnet", "digits"), ("--seconds", "0", "seconds")):
            with self.subTest(value):
                code, out, err = self.sweep(option, value)
                self.assertEqual((code, out), (2, ""))
                self.assertIn(word, err)

    def test_the_command_explains_itself_without_building_anything(self):
        builders = self.folder / "builders"  # precedes the real ones in the PATH
        builders.mkdir()
        for name in ("meson", "ninja", "c++", "apt-get"):
            (builders / name).write_text(f"#!/bin/sh\ntouch {self.folder}/built\nexit 1\n")
            (builders / name).chmod(0o755)
        done = subprocess.run([WRAPPER, "--help"], capture_output=True, text=True, timeout=support.PATIENCE,
                              env={**os.environ, "PATH": f"{builders}:{os.environ['PATH']}"})
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in "full smoke modes stragglers models workers rates ages repeats seconds out".split():
            self.assertIn(f"--{word}", done.stdout)
        self.assertFalse((self.folder / "built").exists())


if __name__ == "__main__":
    if PYTHON is None:
        print("skipped: no Python here has matplotlib; install python3-matplotlib")
        sys.exit(77)
    support.main()
