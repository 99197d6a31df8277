"""What tools/run and tools/test avoid so that nobody has to wait: no build for an answer or a refusal, no rebuild of a
folder that was moved, no second search of the same states; and what a build reports while it runs."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import support
from support import ProcessTest, SOURCE, run

PAGES = {"--help": "docs/help.txt", "--help-all": "docs/help-all.txt", "--help-markdown": "docs/options.md"}
WRONG = ["--mode asink", "--mode=a-synk", "--workers three", "--workers 0", "--workers 257", "--workers 4..2", "--workers 2-4",
         "--workers 2..x", "--workers -3", "--optimizer adm", "--optimizer xyz", "--wrokers 3", "--mod", "--steps 10 --worker=3",
         "--wrong --help", "--workers", "-x", "4", "--lr fast", "--lr -1", "--momentum 1", "--momentum 1.5e0x",
         "--delay 1:xms", "--delay 1:5ms,2:yx", "--delay q:5ms", "--delay 300:5ms", "--delay 1:10x@z", "--device gpu",
         "--device cpu,1:cuda:x", "--wire f16", "--wire 1:f16", "--linger soon", "--linger -1s", "--interval 5ks",
         "--max-part-bytes many", "--max-part-bytes 0", "--chunk-bytes many", "--chunk-bytes gup", "--chunk-bytes 0",
         "--chunk-bytes 4x", "--chunk-bytes -1", "--checkpoint-every 5", "--checkpoint-every xs",
         "--publish-every 0steps", "--publish-every 1-step", "--publish-every x-steps", "--threads 65", "--index-base 2", "--ps-tasks 1.5", "--",
         "--json --mode asink", "--workers three --help", "--steps", "--json --mode"]
RIGHT = ["--mode A-Sync", "--workers 3", "--workers 2..5", "--workers 007", "--lr 1e-3", "--lr .5", "--lr 0", "--lr 5.", "--momentum 0.9e0",
         "--delay 5ms", "--delay 1:5ms,all:10x@0.1", "--device cuda,2:cpu", "--device cuda:1", "--device 1:cuda:0", "--wire 0:bf16,float32,2:bf16-push",
         "--linger 5MIN", "--linger 3", "--max-part-bytes 4mib", "--chunk-bytes 64K", "--chunk-bytes auto",
         "--chunk-bytes GPU", "--checkpoint-every 1000steps",
         "--checkpoint-every 5m", "--seed 18446744073709551615", "--numa 0,1", "--place w=0", "--json",
         "--json=false", "--job w", "--lr-schedule exp:0.5:100", "--save --x", "--mode sync --mode async"]


class Checkout(ProcessTest):
    """A folder with parts of the repository, and a PATH with a shell and the coreutils that --help needs."""

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        self.root = self.folder / "clone"
        for name in ("tools/run", "tools/setup.sh", "tools/check_options.sh", "tools/build_record.py", "meson.build", *PAGES.values()):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCE / name, self.root / name)
        self.bin = self.folder / "bin"
        self.bin.mkdir()

    def put_on_path(self, *programs):
        for program in programs:
            (self.bin / program).symlink_to(shutil.which(program))


class BeforeTheBuild(Checkout):
    def setUp(self):
        super().setUp()
        self.put_on_path("bash", "env", "cat", "dirname", "readlink")

    def tools_run(self, *arguments, **variables):
        done = subprocess.run([self.root / "tools/run", *arguments], env={"PATH": str(self.bin), **variables},
                              capture_output=True, text=True, timeout=support.PATIENCE)
        self.assertFalse((self.root / "build").exists())
        return support.Result(done.returncode, done.stdout, done.stderr)

    def assert_same_refusal(self, arguments, variables):
        own, program = self.tools_run(*arguments, **variables), run("launch_shm", *arguments, env=variables)
        self.assertEqual((own.code, program.code), (2, 2), own.err + program.err)
        self.assertEqual(own.err.removeprefix("tools/run: "), program.err.removeprefix("launch_shm: "))
        self.assertEqual(own.out, program.out)

    def test_its_help_is_that_of_launch_shm(self):
        for option, page in PAGES.items():
            with self.subTest(option):
                program = run("launch_shm", option)
                self.assertEqual((SOURCE / page).read_text(), program.out, f"launch_shm {option} > {page}")
                self.assertEqual(self.tools_run(option), (0, program.out, ""))
        self.assertEqual(self.tools_run("-h"), self.tools_run("--workers", "2", "--help"))

    def test_it_says_its_version_and_whether_it_is_built(self):
        code, out, err = self.tools_run("--version")
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(out.splitlines()[0], run("launch_shm", "--version").out.splitlines()[0])
        self.assertIn("none yet", out)

    def test_it_refuses_what_launch_shm_refuses_in_the_same_words(self):
        for line in WRONG:
            with self.subTest(line):
                self.assert_same_refusal(line.split(), {})
        for variable, value in (("PS_SHM_WORKERS", "three"), ("PS_SHM_MODE", "asink"), ("PS_SHM_DELAY", "1:xms"), ("PS_SHM_LR", "-1"), ("PS_SHM_JSON", "maybe")):
            with self.subTest(variable):
                self.assert_same_refusal([], {variable: value})

    def test_it_passes_what_launch_shm_takes(self):
        for line in RIGHT:
            with self.subTest(line):
                self.assertEqual(run("launch_shm", *line.split(), "--help").code, 0)
                result = self.tools_run(*line.split())
                self.assertNotEqual(result.code, 2, result.err)
                self.assertNotIn("--help", result.err)
        for arguments, variables in (([], {"PS_SHM_WORKERS": ""}), (["--workers", "2"], {"PS_SHM_WORKERS": "three"}),
                                     ([], {"PS_SHM_JSON": "yes"}), (["--", "program", "--mode", "asink"], {})):
            self.assertNotEqual(self.tools_run(*arguments, **variables).code, 2)

    def test_it_reads_options_alike_in_every_language(self):
        locale = self.folder / "tr_TR.UTF-8"  # Turkish: the upper case of i is not I
        if shutil.which("localedef"):
            subprocess.run(["localedef", "-i", "tr_TR", "-f", "UTF-8", locale], capture_output=True)
        if not locale.exists():
            self.skipTest("skipped: no Turkish locale can be made here")
        turkish = {"LOCPATH": str(self.folder), "LC_ALL": locale.name}
        for arguments, variables in ((["--linger", "5MIN"], {}), ([], {"PS_SHM_LINGER": "5min"})):
            result = self.tools_run(*arguments, **turkish, **variables)
            self.assertNotEqual(result.code, 2, result.err)
            self.assertNotIn("invalid variable name", result.err)
        self.assertEqual(self.tools_run(PS_SHM_LINGER="soon", **turkish).code, 2)

    def test_an_option_is_no_command_of_the_shell(self):
        for option in ("--$(echo>x)", "--a[$(echo>x)]", "--workers=$(echo>x)", "--workers=a[$(echo>x)]"):
            self.assertEqual(self.tools_run(option).code, 2)
            self.assertFalse(pathlib.Path("x").exists())


TINY = """project('tiny', 'c')
configure_file(input: 'place.h.in', output: 'place.h', configuration: {'PLACE': meson.project_source_root()})
own = shared_library('own', 'own.c', version: '1')
executable('place', 'place.c', link_with: own)
executable('named', 'named.c', c_args: '-DROOT="@0@"'.format(meson.project_source_root()))
"""


class Building(Checkout):
    def setUp(self):
        super().setUp()
        for name, text in {"meson.build": TINY, "own.h": "int own(void);\n", "own.c": '#include "own.h"\nint own(void) { return 3; }\n',
                           "place.h.in": '#define PLACE "@PLACE@"\n',
                           "place.c": '#include "own.h"\n#include <stdio.h>\nint main(void) { return printf("%d\\n", own()) < 0; }\n',
                           "named.c": '#include <stdio.h>\nint main(void) { return puts(ROOT) < 0; }\n'}.items():
            (self.root / name).write_text(text)

    def build(self, root=None, *options, **variables):
        """Returns the output without its times, and the objects that the compiler made."""
        log = (root or self.root) / "build/run.log"
        log.unlink(missing_ok=True)
        script = 'set -euo pipefail; . "$0/tools/setup.sh" && lock run && build run -Dwerror=false "$@"'
        done = subprocess.run(["bash", "-ec", script, root or self.root, *options], capture_output=True, text=True, timeout=support.PATIENCE,
                              stdin=subprocess.DEVNULL, env={**support.environment(), **variables})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr, sorted(re.findall(r"Compiling C object (\S+)", log.read_text() if log.exists() else ""))

    def says(self, root, program="place"):
        return subprocess.run([root / "build/run" / program], check=True, capture_output=True, text=True).stdout.strip()

    def test_a_moved_checkout_keeps_its_build(self):
        self.build(self.root, f"-Dprefix={self.root}/installed")
        there = self.root.rename(self.folder / "elsewhere")
        option = f"-Dprefix={there}/installed"
        said, compiled = self.build(there, option)
        self.assertIn("build/run was moved or copied here", said)
        self.assertEqual(compiled, ["named.p/named.c.o"])  # its compile command contains the path of the folder
        self.assertEqual((self.says(there), self.says(there, "named")), ("3", str(there)))
        self.assertEqual(self.build(there, option), ("", []))
        self.assertNotIn(str(self.root), (there / "build/run/meson-private/cmd_line.txt").read_text())

    def test_a_copied_checkout_keeps_its_build_and_notices_what_has_changed(self):
        self.build()
        log = self.root / "build/run/.ninja_log"
        header, *entries = log.read_text().splitlines()
        log.write_text("\n".join([header, *reversed(entries)]) + "\n")  # as ninja reorders it now and then
        there = self.folder / "copy"
        there.mkdir()
        # Copies the build first, so that it looks older than its sources.
        for name in sorted(os.listdir(self.root)):
            subprocess.run(["cp", "-r", self.root / name, there], check=True)
        shutil.rmtree(self.root)
        self.assertEqual(self.build(there)[1], ["named.p/named.c.o"])
        self.assertEqual((self.says(there), self.says(there, "named")), ("3", str(there)))
        again = self.folder / "again"
        subprocess.run(["cp", "-r", there, again], check=True)
        source = again / "own.c"
        source.write_text(source.read_text().replace("3", "4"))
        os.utime(source, (1e9, 1e9))  # an old time stamp
        self.assertEqual(self.build(again)[1], ["libown.so.1.p/own.c.o", "named.p/named.c.o"])
        self.assertEqual(self.says(again), "4")

    def test_a_folder_that_cannot_be_kept_says_why(self):
        self.build()
        there = self.folder / "copy"
        subprocess.run(["cp", "-r", self.root, there], check=True)
        (there / "build/run/.ninja_log").write_text((there / "build/run/.ninja_log").read_text() + "# more\n")
        said, compiled = self.build(there)
        self.assertIn("build/run is made anew: it was moved or copied here, and ninja has built", said)
        self.assertEqual(len(compiled), 3)
        said, compiled = self.build(there, CFLAGS="", CXXFLAGS="-g1")
        self.assertIn("build/run is made anew: it was not set up with CXXFLAGS=-g1", said)
        (there / "build/run/settings.txt").unlink()
        self.assertIn("build/run is made anew: it has not been configured to the end", self.build(there, CXXFLAGS="-g1")[0])

    def test_off_a_terminal_a_build_says_how_far_it_is(self):
        self.build()
        (self.bin / "ninja").write_text("""#!/usr/bin/env bash
for argument in "$@"; do [[ $argument != -n ]] || exit 0; done
echo "ninja: Entering directory"
echo "${NINJA_STATUS//%f/120}" | { read -r status && echo "${status//%t/311} Compiling a.c"; }
printf '[121/311] Comp'
for ((i = 0; i < 1000; ++i)); do
  [[ ! -e $PS_SHM_TEST_FOLDER/said ]] || break
  read -r -t 0.02 <> <(:) || true
done
echo 'iling b.c'
exit "${PS_SHM_TEST_CODE:-0}"
""")
        (self.bin / "ninja").chmod(0o755)
        variables = {"PATH": f"{self.bin}:{os.environ['PATH']}", "PS_SHM_TEST_FOLDER": str(self.folder), "PS_SHM_TEST_REPORT_SECONDS": "1"}
        for code, more in (("0", r"built build/run in \d+ s\n"), ("3", r"ninja: Entering directory\n\[120/311\] Compiling a.c\n\[121/311\] Compiling b.c\nfailed: ninja .*\n")):
            with self.subTest(code):
                (self.folder / "said").unlink(missing_ok=True)
                script = 'set -euo pipefail; . "$0/tools/setup.sh" && lock run && build run -Dwerror=false'
                process = support.start("bash", "-c", script, self.root, env={**variables, "PS_SHM_TEST_CODE": code})
                self.started.append(process)
                lines = [support.read_line(process.stderr)]
                while lines[-1] and " of " not in lines[-1]:  # a report may precede ninja's first line
                    lines.append(support.read_line(process.stderr))
                (self.folder / "said").touch()
                done = support.finish(process)
                self.assertEqual(done.code, 1 if code != "0" else 0)
                self.assertRegex("".join(lines) + done.err, r"\Abuilding build/run \.\.\.\n(building build/run: \d+ s\n)*(building build/run: 12[01] of 311, \d+ s\n)+" + more + r"\Z")
                self.assertEqual((self.root / "build/run.log").read_text().splitlines()[-1], "[121/311] Compiling b.c")


class Searches(Checkout):
    """tests/once.py, with a script as the search that counts how often it is run."""

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
        command = [sys.executable, "-B", SOURCE / "tests/once.py", self.model, "sh", "--", self.search, *words]
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
        self.assertEqual(self.explore(PS_SHM_WEAK_SEED="2")[0], 4)
        self.search.write_text(self.search.read_text() + "# another\n")
        self.assertEqual(self.explore()[0], 5)
        self.assertEqual(self.explore(PS_SHM_TEST_FULL="1")[0], 6)
        self.assertEqual(self.explore(PS_SHM_TEST_FULL="1")[0], 7)
        self.assertEqual(self.explore()[0], 7)

    def test_what_the_repository_notes_is_not_searched_in_another_clone(self):
        notes = self.folder / "notes.txt"
        self.model.with_suffix(".pml").write_text("a model")

        def explore(*words, **variables):
            command = [sys.executable, "-B", SOURCE / "tests/once.py", "--notes", notes, self.model.with_suffix(".pml"), "sh", "--",
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
