"""How the programs document their options: --help, the page in docs/, and inspect_shm."""
import json
import pathlib
import re
import shutil
import subprocess
import tempfile

import support
from support import ProcessTest, run

GROUPS = ["Job", "Workers", "Optimizer", "Placement", "Data", "Output", "Run"]
PAGE = support.SOURCE / "docs" / "options.md"


def rows():
    """Option, variable, default, programs, whether it can be set at run time, and meaning: of each line of the page."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `--")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def name_of(row):
    return re.match(r"`--([a-z0-9-]+)", row[0]).group(1)


class Page(ProcessTest):
    def test_it_is_what_the_tables_make(self):
        code, made, err = run("launch_shm", "--help-markdown")
        self.assertEqual(code, 0, err)
        self.assertEqual(PAGE.read_text(), made, "launch_shm --help-markdown > docs/options.md")

    def test_links_lead_to_each_option(self):
        anchors = re.findall(r'<a id="([^"]+)"></a>', PAGE.read_text())
        self.assertEqual(sorted(anchors), sorted({"--" + name_of(row) for row in rows()}))

    def test_it_has_each_option_with_its_variable_and_default(self):
        self.assertGreater(len(rows()), 60)
        for row in rows():
            with self.subTest(row[0]):
                self.assertEqual(len(row), 6)
                self.assertEqual(row[1], "`PS_SHM_" + name_of(row).upper().replace("-", "_") + "`")
                self.assertTrue(row[2] and row[3] and row[5])


def examples_of(text):
    """The commands under the heading; their lines are indented less than the descriptions."""
    lines = text[text.index("\nExamples\n"):].splitlines()[2:]
    return [re.split(r"\s{2,}", line.strip())[0] for line in lines if re.match(r"  \w", line)]


class Help(ProcessTest):
    def help_of(self, program, option, *more):
        code, out, err = run(program, *more, option)
        self.assertEqual(code, 0, err)
        return out

    def options_in(self, text):
        return re.findall(r"^  --([a-z0-9-]+)", text, re.M)

    def test_help_all_shows_each_option_under_its_heading_with_its_default(self):
        for program, but in (("ps_shm", []), ("worker_shm", ["Placement"]), ("launch_shm", [])):
            with self.subTest(program):
                out = self.help_of(program, "--help-all")
                headings = [line for line in out.splitlines() if line in GROUPS]
                self.assertEqual(headings, [group for group in GROUPS if group not in but])
                shown = self.options_in(out)
                self.assertEqual(sorted(shown), sorted({name_of(row) for row in rows() if program in row[3]}))
                self.assertEqual(len(re.findall(r"\[default: ", out)), len(shown))
                self.assertNotIn("help-markdown", out)

    def test_help_shows_those_that_are_needed_most(self):
        for program, count in (("ps_shm", 10), ("worker_shm", 10), ("launch_shm", 11)):
            with self.subTest(program):
                out, everything = self.help_of(program, "--help"), self.help_of(program, "--help-all")
                shown = self.options_in(out)
                self.assertEqual(len(shown), count)
                self.assertIn("job", shown)
                self.assertIn(f"These are the {count} most common options; --help-all lists all {len(self.options_in(everything))}.",
                              out)
                order = [name for name in self.options_in(everything) if name in shown]
                self.assertEqual(shown, order)

    def test_it_says_what_times_and_sizes_are_and_the_programs_take_them(self):
        for program in ("ps_shm", "worker_shm", "launch_shm"):
            text = " ".join(self.help_of(program, "--help").split())
            times = re.search(r"TIME is in seconds, or has a unit: ([^.]+)\.", text)[1].split(", ")
            sizes = re.search(r"SIZE is in bytes, or has a unit: ([^.]+)\.", text)[1].split(", ")
            self.assertGreaterEqual(min(len(times), len(sizes)), 3)
        for time in times:
            self.assertEqual(run("ps_shm", "--job", self.job, "--linger", time, "--help")[0], 0, time)
        intervals = re.search(r"INTERVAL is a time with its unit, or global steps: ([^.]+)\.", text)[1]
        for interval in re.split(", | or ", intervals):
            self.assertEqual(run("ps_shm", "--job", self.job, "--publish-every", interval, "--help")[0], 0, interval)
        for size in sizes:
            self.assert_fails(2, run("ps_shm", "--job", self.job, "--max-part-bytes", size), "--placement partition")

    def test_no_type_is_left_unnamed(self):
        texts = [self.help_of(program, "--help-all") for program in ("ps_shm", "worker_shm", "launch_shm")]
        texts += [self.help_of("inspect_shm", "--help", command)
                  for command in ("ls", "show", "vars", "workers", "events", "set", "dump", "stats", "diff", "doctor", "metrics",
                                  "serve", "rm")]
        for text in [*texts, self.help_of("inspect_shm", "--help")]:
            self.assertNotRegex(text, r"\b(TEXT|UINT|INT|FLOAT)\b")
        self.assertIn("  --limit N ", self.help_of("inspect_shm", "--help", "dump"))
        self.assertRegex(self.help_of("inspect_shm", "--help", "dump"), r"\[default: 16\]")

    def test_three_examples_end_it_and_work(self):
        for program in ("ps_shm", "worker_shm", "launch_shm", "inspect_shm"):
            examples = examples_of(self.help_of(program, "--help"))
            self.assertEqual(len(examples), 3)
            for example in examples:
                with self.subTest(example):
                    words = example.split()
                    self.assertEqual(words[0], program)
                    helped = run(*words, "--help" if program == "inspect_shm" else "--help-all")
                    self.assertEqual(helped[0], 0)  # the values are checked before help is printed
                    options = {word for word in words if word.startswith("--")}
                    self.assertLessEqual(options, set(re.findall(r"^  (--[a-z-]+)", helped[1], re.M)))
        for example in examples_of(self.help_of("launch_shm", "--help")):
            code, out, err = run(*example.split(), "--job", self.job, "--steps", "200")
            self.assertEqual(code, 0, err)


class Version(ProcessTest):
    def test_each_program_says_what_it_was_made_of(self):
        version = re.search(r"version: '([\d.]+)'", (support.SOURCE / "meson.build").read_text())[1]
        for program in ("ps_shm", "worker_shm", "launch_shm", "inspect_shm"):
            code, out, err = run(program, "--version")
            self.assertEqual((code, err), (0, ""))
            first, *others = out.splitlines()
            self.assertEqual(first, f"{program} {version}")
            said = dict(line.split(None, 1) for line in others)
            self.assertEqual(set(said), {"build", "CUDA", "compiler", "licences", "notice"})
            self.assertRegex(said["build"], r"^([0-9a-f]{7,}(-dirty)?|unknown), \w+$")
            self.assertRegex(said["compiler"], r"^(gcc|clang) \d+\.")
            self.assertEqual(said["licences"], "Apache-2.0; digits CC BY 4.0")
            self.assertRegex(said["notice"], "NOTICE")
        doctor = json.loads(run("inspect_shm", "doctor", "--json")[1])["cuda"]["built_for"]
        self.assertTrue(said["CUDA"] == doctor or doctor is None and not said["CUDA"][0].isdigit(), said)

    def test_the_notice_is_the_one_that_was_installed_with_the_program(self):
        package = "ps_shm-0.1.0.dist-info/licenses/NOTICE"
        for program, notice in (("bin/ps_shm", "share/doc/ps-shm/NOTICE"), ("bin/ps_shm", f"lib/python3.11/site-packages/{package}"),
                                ("lib/python3.11/site-packages/ps_shm.scripts/ps_shm", f"lib/python3.11/site-packages/{package}")):
            with self.subTest(program=program, notice=notice), tempfile.TemporaryDirectory() as folder:
                place = pathlib.Path(folder).resolve()
                for file, source in ((program, support.TOOLS / "ps_shm"), (notice, support.SOURCE / "NOTICE")):
                    (place / file).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(source, place / file)
                said = subprocess.run([place / program, "--version"], capture_output=True, text=True, timeout=support.PATIENCE)
                self.assertEqual(said.stdout.splitlines()[-1].split(None, 1), ["notice", str(place / notice)], said)


class Inspector(ProcessTest):
    def show(self):
        return json.loads(run("inspect_shm", "show", "--job", self.job, "--json")[1])

    def test_it_shows_each_setting_that_a_ps_takes_and_stores(self):
        ps = self.start_ps("--numa", "none", "--place", "a=0,b.c=0", "--chunk-bytes", "4KiB", "--workers", "2..5")
        shown = self.show()
        not_stored = {"job", "group", "task", "wait-job", "keep-segments", "adopt", "publish", "publish-every",
                      "publish-averages", "publish-partial", "summary-dir", "summary-every", "checkpoint-dir", "checkpoint-every", "keep-checkpoints",
                      "keep-best", "max-file-bytes", "fresh-start"}
        names = {name_of(row) for row in rows() if "ps_shm" in row[3]} - not_stored
        key_of = lambda name: name.replace("-", "_") + ("_seconds" if name in ("linger", "step-timeout") else "")
        self.assertEqual(set(shown["settings"]), {key_of(name) for name in names} | {"elastic_min", "elastic_max", "restore", "first_step"})
        self.assertEqual(shown["settings"]["numa"], "none")
        self.assertEqual(shown["settings"]["place"], {"a": 0, "b.c": 0})
        self.assertEqual(shown["settings"]["chunk_bytes"], 4096)
        self.assertIs(shown["settings"]["huge_pages"], False)
        self.assertEqual([shown["settings"][n] for n in ("workers", "elastic_min", "elastic_max")], [2, 2, 5])
        self.assertEqual(set(shown["live"]), {key_of(name_of(row)) for row in rows() if "ps_shm" in row[3] and row[4] == "yes"})
        self.assertEqual(run("inspect_shm", "set", "--job", self.job, "lr=0.25", "workers=3")[0], 0)
        shown = self.show()
        self.assertEqual((shown["live"]["lr"], shown["live"]["workers"]), (0.25, 3))
        self.assertEqual((shown["settings"]["lr"], shown["settings"]["workers"]), (0.1, 2))  # as given at the start
        ps.terminate()
        support.finish(ps)

    def test_what_cannot_be_set_is_refused_with_what_can(self):
        ps = self.start_ps()
        for change, words in (("seed=2", ("'seed' cannot be set", "workers, mode, staleness, quorum, stale-limit, lr, momentum, beta1, clip-norm")),
                              ("mode=fast", ("unknown mode 'fast'", "async|ssp|sync")), ("staleness=x", ("'x'",))):
            with self.subTest(change):
                self.assert_fails(2, run("inspect_shm", "set", "--job", self.job, change), *words)
        ps.terminate()
        support.finish(ps)


if __name__ == "__main__":
    support.main()
