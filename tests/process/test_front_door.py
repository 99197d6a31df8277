"""What a newcomer meets first: summaries, and the examples in Python. What tools/run and tools/test avoid so that
nobody has to wait: no build for an answer or a refusal, no rebuild of a folder that was moved, no second search of the same
states; and what a build reports while it runs."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import support
import terminal
from support import ProcessTest, SOURCE, run

PAGES = {"--help": "docs/help.txt", "--help-all": "docs/options.md", "--help-markdown": "docs/options.md"}
FILES = ("tools/run", "tools/setup.sh", "tools/ninja_progress.py", "tools/unit_seconds.txt", "meson.build",
         *PAGES.values())
UNKNOWN = ["--wrokers 3", "--mod", "--steps 10 --worker=3", "--wrong --help", "x", "--mode sync x", "-x 4",
           "--json --mod=\"sync\""]
KNOWN = ["--mode sync", "--workers 2..5 --lr=.5", "--json", "--json=false --job w", "--save --x", "--workers",
         "--mode asink", "-- program --wrokers 3"]


class Checkout(ProcessTest):
    """A folder with parts of the repository, and a PATH with a shell and the coreutils that --help needs."""

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        self.root = self.folder / "clone"
        for name in FILES:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCE / name, self.root / name)
        self.bin = self.folder / "bin"
        self.bin.mkdir()

    def put_on_path(self, *programs):
        for program in programs:
            (self.bin / program).symlink_to(shutil.which(program))


class Summaries(ProcessTest):
    """A summary has only what means something in its mode."""

    def summary(self, *options):
        result = run("launch_shm", "--job", self.job, "--workers", "2", *(options if "--steps" in options else ("--steps", "200", *options)))
        self.assertEqual(result.code, 0, result.err)
        return result.out

    def test_async_has_staleness_and_no_digest(self):
        said = self.summary()
        self.assertIn("\n  staleness mean ", said)
        self.assertRegex(said, r"(?m)^  worker +steps.* staleness +retries")
        self.assertNotIn("digest", said)

    def test_sync_has_a_digest_and_no_staleness(self):
        said = self.summary("--mode", "sync")
        self.assertNotIn("stale", said)
        self.assertRegex(said, r"\n  \d+ retries, \d+ dropped\n  digest [0-9a-f]{16}\n")

    def test_one_process_has_a_digest_and_no_staleness(self):
        said = run("worker_shm", "--standalone", "--steps", "50").out
        self.assertNotIn("stale", said)
        self.assertRegex(said, r"\n  digest [0-9a-f]{16}\n")

    def test_dropped_gradients_are_warned_of_only_where_workers_have_data_of_their_own(self):
        for own in (False, True):
            said = self.summary("--mode", "sync", "--quorum", "1", "--delay", "0:1ms", "--delay", "1:100ms", "--steps", "1000",
                                *(["--shard-data", "by-label"] if own else []))
            self.assertNotIn(" 0 dropped", said)
            self.assertEqual("what only it has seen is not in the model" in said, own, said)


class PythonExamples(unittest.TestCase):
    FOLDER = SOURCE / "examples/python"
    NAMES = sorted(path.name for path in FOLDER.glob("*.py") if path.name not in ("digits.py", "needed.py"))

    def test_what_is_missing_is_named_in_one_line(self):
        for name in self.NAMES:
            with self.subTest(name):
                done = subprocess.run([sys.executable, "-S", "-E", "-B", self.FOLDER / name], capture_output=True, text=True,
                                      timeout=support.PATIENCE)  # -S: without what is installed
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertRegex(done.stderr, rf"\A{name} needs [^\n]* -m pip install [^\n]*\n\Z")

    def test_each_is_in_the_list_with_what_it_needs(self):
        page, packages = (self.FOLDER / "README.md").read_text(), (self.FOLDER / "requirements.txt").read_text()
        rows = dict(re.findall(r"(?m)^\| \[(\w+\.py)\]\(\1\) \|.*\| ([\w, ]+) \|$", page))
        self.assertEqual(sorted(rows), self.NAMES)
        for name in self.NAMES:
            (checked,) = re.findall(r"(?m)^needed\.check\((.*)\)$", (self.FOLDER / name).read_text())
            self.assertEqual(rows[name].split(", "), re.findall(r"\w+", checked))
            for package in rows[name].split(", "):
                self.assertRegex(packages, rf"(?m)^{package}\b")


class BeforeTheBuild(Checkout):
    def setUp(self):
        super().setUp()
        self.put_on_path("bash", "env", "cat", "dirname", "readlink")

    def tools_run(self, *arguments, built=False):
        done = subprocess.run([self.root / "tools/run", *arguments], env={"PATH": str(self.bin)}, capture_output=True,
                              text=True, timeout=support.PATIENCE)
        self.assertEqual((self.root / "build").exists(), built)
        return support.Result(done.returncode, done.stdout, done.stderr)

    def test_its_help_is_that_of_launch_shm(self):
        self.assertEqual((SOURCE / PAGES["--help"]).read_text(), run("launch_shm", "--help").out,
                         "launch_shm --help > docs/help.txt")
        for option, page in PAGES.items():
            self.assertEqual(self.tools_run(option), (0, (SOURCE / page).read_text(), ""))
        self.assertEqual(self.tools_run("-h"), self.tools_run("--workers", "2", "--help"))

    def test_it_says_its_version_and_whether_it_is_built(self):
        code, out, err = self.tools_run("--version")
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(out.splitlines()[0], run("launch_shm", "--version").out.splitlines()[0])
        self.assertIn("none yet", out)

    def test_it_refuses_unknown_names_as_launch_shm_does(self):
        for line in UNKNOWN:
            with self.subTest(line):
                own, program = self.tools_run(*line.split()), run("launch_shm", *line.split())
                self.assertEqual((own.code, program.code), (2, 2), own.err + program.err)
                hint = re.compile("; did you mean [^?]*[?]")
                self.assertEqual(own.err.removeprefix("tools/run: "),
                                 hint.sub("", program.err.removeprefix("launch_shm: ")))
                self.assertEqual(own.out, hint.sub("", program.out))

    def test_it_passes_the_names_that_launch_shm_has_and_leaves_values_to_it(self):
        names = re.findall(r"(?m)^  (--[a-z0-9-]+)", run("launch_shm", "--help-all").out)
        self.assertGreater(len(names), 90)
        for line in [*KNOWN, *(f"{name}=1" for name in names if not name.startswith(("--help", "--version")))]:
            with self.subTest(line):
                result = self.tools_run(*line.split())
                self.assertNotIn("see --help", result.err)
                self.assertNotIn(result.code, (0, 2))  # nothing can be installed here

    def test_what_is_built_answers_and_refuses_without_a_new_build(self):
        launch = self.root / "build/run/tools/launch_shm"
        launch.parent.mkdir(parents=True)
        launch.write_text('#!/usr/bin/env bash\necho "launch_shm $*"; exit 2\n')
        launch.chmod(0o755)
        for line, passed in (("--workers 3 --help-all", "--help-all"), ("--version", "--version"),
                             ("--mode sync --wrokers=3", "--wrokers=3"), ("--json x", "--json x")):
            with self.subTest(line):
                self.assertEqual(self.tools_run(*line.split(), built=True), (2, f"launch_shm {passed}\n", ""))

    def test_an_option_is_no_command_of_the_shell(self):
        for option in ("--$(echo>x)", "--a[$(echo>x)]", "--workers=$(echo>x)", "--workers=a[$(echo>x)]"):
            self.assertNotEqual(self.tools_run(option).code, 0)
            self.assertFalse(pathlib.Path("x").exists())


TINY = """project('tiny', 'c')
own = shared_library('own', 'own.c', 'more.c', version: '1', install: true)
executable('place', 'place.c', link_with: own, install: true)
custom_target('commit', command: ['echo', 'x'], capture: true, output: 'commit', build_by_default: true,
  build_always_stale: true)
"""


class Building(Checkout):
    def setUp(self):
        super().setUp()
        place = '#include "own.h"\n#include <stdio.h>\nint main(void) { return printf("%d\\n", own()) < 0; }\n'
        for name, text in {"meson.build": TINY, "own.h": "int own(void);\n", "place.c": place,
                           "own.c": '#include "own.h"\nint own(void) { return 3; }\n',
                           "more.c": "int more(void) { return 4; }\n"}.items():
            (self.root / name).write_text(text)

    def start_build(self, root=None, *options, **variables):
        script = 'set -euo pipefail; . "$0/tools/setup.sh" && lock run && build run -Dwerror=false --unity=on "$@"'
        process = support.start("bash", "-c", script, root or self.root, *options, env=variables)
        self.started.append(process)
        return process

    def build(self, root=None, *options, **variables):
        """Returns the output without its times, and how many objects the compiler made."""
        log = (root or self.root) / "build/run.log"
        log.unlink(missing_ok=True)
        done = support.finish(self.start_build(root, *options, **variables))
        self.assertEqual(done.code, 0, done.err)
        return done.err, log.read_text().count("Compiling C object") if log.exists() else 0

    def test_a_copied_checkout_builds_anew_and_says_so(self):
        said, compiled = self.build()
        self.assertRegex(said, r"\Abuilding build/run \.\.\.\nbuilt build/run in \d+ s, with \d+ s of CPU\n\Z")
        self.assertEqual((compiled, self.build()), (2, ("", 0)))
        there = self.folder / "copy"
        shutil.copytree(self.root, there, symlinks=True)
        said, compiled = self.build(there)
        self.assertIn(f"build/run is made anew: it was set up in {self.root}", said)
        self.assertEqual((compiled, self.build(there)), (2, ("", 0)))
        done = subprocess.run([there / "build/run/place"], check=True, capture_output=True, text=True)
        self.assertEqual(done.stdout, "3\n")

    def test_other_settings_or_half_a_folder_are_a_reason_to_build_anew(self):
        self.build()
        self.assertIn("build/run is made anew: it was not set up with CXXFLAGS=-g1", self.build(CXXFLAGS="-g1")[0])
        (self.root / "build/run/settings.txt").unlink()
        self.assertIn("build/run is made anew: it has not been configured to the end", self.build(CXXFLAGS="-g1")[0])

    def test_installing_elsewhere_compiles_nothing_again(self):
        self.build()
        folder = self.root / "build/run"
        for command in (["meson", "configure", folder, f"-Dprefix={self.folder}/elsewhere"],
                        ["ninja", "-C", folder, "build.ninja"]):
            subprocess.run(command, check=True, capture_output=True)
        done = subprocess.run(["ninja", "-C", folder, "-n"], check=True, capture_output=True, text=True)
        self.assertNotIn("Compiling", done.stdout)
        subprocess.run(["meson", "install", "-C", folder], check=True, capture_output=True)
        self.assertTrue((self.folder / "elsewhere/bin/place").exists())
        self.assertEqual(self.build(), ("", 0))

    def test_a_checkout_that_cannot_be_written_is_named_with_a_way_out(self):
        (self.root / "build").write_text("no folder")
        done = support.finish(self.start_build())
        self.assertEqual(done.code, 1)
        self.assertEqual(done.err, f"{self.root}/build cannot be written: build in a copy of your own, as in "
                                   f"cp -r {self.root} ~/ps-shm && ~/ps-shm/tools/run\n")

    def stand_in_ninja(self):
        """A ninja that finishes one of three units, and the second after the file `said` is there."""
        (self.bin / "ninja").write_text("""#!/usr/bin/env bash
said() { status=${NINJA_STATUS//%f/$1}; echo "${status//%t/3}$2"; }
compiler() {
  exec -a cc bash -c 'for ((i = 0; i < 3000; ++i)); do [[ ! -e $0 ]] || exit 0; read -r -t 0.02 <> <(:) || true; done' \\
    "$PS_SHM_TEST_FOLDER/said" -o src/libps_hot.a.p/meson-generated_ps_hot-unity2.cpp.o -c
}
hot() { echo "Compiling C++ object src/libps_hot.a.p/meson-generated_ps_hot-unity$1.cpp.o"; }
case " $* " in
  *' build.ninja '*) exit ;;
  *' -n '*) said 1 "$(hot 0)"; said 2 "$(hot 2)"; said 3 "Linking target src/libps_shm.so"; exit ;;
esac
echo "ninja: Entering directory"
said 1 "$(hot 0)"
(compiler)
said 2 "$(hot 2)"
[[ ${PS_SHM_TEST_CODE:-0} == 0 ]] || echo "FAILED: src/libps_shm.so"
exit "${PS_SHM_TEST_CODE:-0}"
""")
        (self.bin / "ninja").chmod(0o755)
        return {"PATH": f"{self.bin}:{os.environ['PATH']}", "PS_SHM_TEST_FOLDER": str(self.folder),
                "PS_SHM_TEST_REPORT_SECONDS": "0.2"}

    def test_off_a_terminal_a_build_says_how_far_it_is_and_what_it_compiles(self):
        self.build()
        variables = self.stand_in_ninja()
        (self.root / "tools/unit_seconds.txt").write_text("# a table\n30  src hot 0\n70  src hot 2\n")
        for code, end in (("0", r"built build/run in \d+ s, with \d+ s of CPU\n"),
                          ("3", r"ninja: Entering directory\nFAILED: src/libps_shm.so\nfailed: the build of .*\n")):
            with self.subTest(code):
                (self.folder / "said").unlink(missing_ok=True)
                process = self.start_build(**variables, PS_SHM_TEST_CODE=code)
                lines = [support.read_line(process.stderr)]
                while lines[-1] and "hot 2" not in lines[-1]:
                    lines.append(support.read_line(process.stderr))
                (self.folder / "said").touch()
                done = support.finish(process)
                self.assertEqual(done.code, 1 if code != "0" else 0)
                self.assertRegex(lines[-1], r"\Abuilding build/run: \[1/3\] \d+ s, (29|[3-9]\d) %: src hot 2\n\Z")
                self.assertRegex("".join(lines) + done.err,
                                 r"\Abuilding build/run \.\.\.\n(building build/run: \[[0-2]/3\] \d+ s, \d+ %(: src hot 2)?\n)+"
                                 + end + r"\Z")
                self.assertIn("Compiling C++ object", (self.root / "build/run.log").read_text())

    def test_on_a_terminal_it_does_so_in_place(self):
        self.build()
        variables = self.stand_in_ninja()
        script = '. "$0/tools/setup.sh"; build run -Dwerror=false --unity=on'
        with terminal.Terminal(60, shutil.which("bash"), "-c", script, self.root, env=variables) as shell:
            shell.read_until(lambda: re.search(r"\r\x1b\[K\[1/3\] \d+ s, \d+ %: src hot 2", shell.shown), "what is compiled")
            (self.folder / "said").touch()
            self.assertEqual(shell.finish(), 0, shell.shown)
            self.assertRegex(shell.shown, r"\r\x1b\[Kbuilt build/run in \d+ s")


class Times(unittest.TestCase):
    def test_the_time_of_each_suite_and_the_slowest_tests_are_shown(self):
        with tempfile.TemporaryDirectory() as folder:
            logs = [pathlib.Path(folder) / name for name in ("test.json", "asan.json")]
            for log in logs:
                tests = [{"name": f"ps-shm:unit+slow / unit_{i}", "starttime": 1000 + i, "duration": 2 * i} for i in range(12)]
                tests += [{"name": "ps-shm:process / process_x", "starttime": 1003.5, "duration": 40.2}]
                log.write_text("".join(json.dumps(test) + "\n" for test in tests) + '{"name": "half a l')
            done = subprocess.run([sys.executable, "-B", SOURCE / "tools/dev/test_times.py",
                                   *(f"build/{log.stem}={log}" for log in logs)], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lines = done.stdout.splitlines()
        self.assertEqual(lines[:2], ["build/test unit        33 s from start to end,   132 s of 12 tests",
                                     "build/test process     40 s from start to end,    40 s of 1 tests"])
        self.assertEqual((len(lines), lines[4]), (15, "The 10 slowest tests:"))
        self.assertEqual(lines[5], "     40 s  build/test process process_x")
        self.assertEqual(lines[7], "     22 s  build/test unit unit_11")


    def test_the_table_of_units_is_made_of_what_builds_have_taken(self):
        with tempfile.TemporaryDirectory() as folder:
            build = pathlib.Path(folder) / "run"
            build.mkdir()
            hot = "src/libps_hot.a.p/meson-generated_ps_hot-unity{}.cpp.o"
            log = [(0, 90_000, hot.format(0)), (0, 4_000, hot.format(1)), (90_000, 96_000, "src/libps_shm.so")]
            log.append((0, 100_000, "tools/launch_shm.p/launch_shm_main.cpp.o"))
            lines = ("\t".join(map(str, (begin, end, 0, name, "hash"))) for begin, end, name in log)
            (build / ".ninja_log").write_text("# ninja log v5\n" + "\n".join(lines) + "\n")
            (pathlib.Path(folder) / "run.cpu").write_text("80\n20\n")  # half of what passed
            table = subprocess.run([sys.executable, "-B", SOURCE / "tools/ninja_progress.py", "--table", build],
                                   check=True, capture_output=True, text=True).stdout
        self.assertEqual(table.splitlines()[1:], ["50  tools launch_shm launch_shm_main", "45  src hot 0"])

    def test_the_yardstick_fails_with_its_compiler(self):
        def measure(compiler):
            return subprocess.run([SOURCE / "tools/dev/yardstick"], capture_output=True, text=True,
                                  env={**os.environ, "CXX": compiler})
        done = measure("true")
        self.assertRegex(done.stdout, r"\A0\.\d s of CPU\n\Z")
        self.assertEqual((done.returncode, done.stderr, measure("false").returncode), (0, "", 1))


class Searches(Checkout):
    """tests/skip_if_searched.py, with a script as the search that counts how often it is run."""

    def setUp(self):
        super().setUp()
        self.search = self.folder / "search"
        self.model = self.folder / "model"
        self.write_search()
        self.model.write_text("a model")
        self.runs = self.folder / "runs"
        self.runs.touch()

    def write_search(self, code=0):
        self.search.write_text(f"#!/bin/sh\necho run >>{self.folder}/runs\nexit {code}\n")
        self.search.chmod(0o755)

    def explore(self, *words, code=0, **variables):
        """Returns how often the search has been run so far, and the output."""
        command = [sys.executable, "-B", SOURCE / "tests/skip_if_searched.py", self.model, "sh", "--", self.search, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=support.PATIENCE,
                              env={**support.environment(), "PS_SHM_TEST_FULL": "", "PS_SHM_TEST_EXPLORED": str(self.folder / "explored"), **variables})
        self.assertEqual(done.returncode, code, done.stderr)
        return len(self.runs.read_text().splitlines()), done.stdout

    def test_what_has_passed_is_not_searched_again_and_says_when_it_was(self):
        self.assertEqual(self.explore(), (1, ""))
        runs, said = self.explore()
        self.assertEqual(runs, 1)
        self.assertRegex(said, r"explored before, with the same content: it passed on \d{4}-\d\d-\d\d at [\d:]+, in \d+ s")

    def test_other_content_is_searched_and_so_is_all_where_that_is_asked_for(self):
        self.explore()
        self.model.write_text("another model")
        self.assertEqual(self.explore()[0], 2)
        self.assertEqual(self.explore("word")[0], 3)
        self.assertEqual(self.explore(PS_SHM_SCENE_SEED="2")[0], 4)
        self.search.write_text(self.search.read_text() + "# another\n")
        self.assertEqual(self.explore()[0], 5)
        self.assertEqual(self.explore(PS_SHM_TEST_FULL="1")[0], 6)
        self.assertEqual(self.explore(PS_SHM_TEST_FULL="1")[0], 7)
        self.assertEqual(self.explore()[0], 7)

    def test_what_the_repository_notes_is_not_searched_in_another_clone(self):
        notes = self.folder / "notes.txt"
        self.model.with_suffix(".pml").write_text("a model")

        def explore(*words, **variables):
            command = [sys.executable, "-B", SOURCE / "tests/skip_if_searched.py", "--notes", notes, self.model.with_suffix(".pml"), "sh", "--",
                       self.search, *words]
            done = subprocess.run(command, capture_output=True, text=True, timeout=support.PATIENCE,
                                  env={**support.environment(), "PS_SHM_TEST_FULL": "", "PS_SHM_TEST_RECORD": "", **variables})
            self.assertEqual(done.returncode, 0, done.stderr)
            return len(self.runs.read_text().splitlines()), done.stdout

        self.assertEqual(explore()[0], 1)
        self.assertFalse(notes.exists())
        self.assertEqual(explore(PS_SHM_TEST_RECORD="1")[0], 2)
        runs, said = explore()
        self.assertEqual(runs, 2)
        self.assertRegex(said, r"notes.txt says that it passed on \d{4}-\d\d-\d\d")
        self.assertEqual(explore(CC="another compiler")[0], 2)
        self.assertEqual(explore("word")[0], 3)
        self.assertEqual(explore(PS_SHM_TEST_FULL="1")[0], 4)
        self.model.with_suffix(".pml").write_text("another model")
        self.assertEqual(explore()[0], 5)
        self.search.write_text(self.search.read_text() + "# another\n")
        self.assertEqual(explore(PS_SHM_TEST_RECORD="1")[0], 6)
        self.assertEqual(len(notes.read_text().splitlines()), 1)
        self.write_search(1)
        with self.assertRaises(AssertionError):
            explore()

    def test_what_has_failed_or_was_skipped_is_searched_again(self):
        for number, code in enumerate((1, 1, 77, 77), 1):
            self.write_search(code)
            self.assertEqual(self.explore(code=code), (number, ""))


if __name__ == "__main__":
    support.main()
