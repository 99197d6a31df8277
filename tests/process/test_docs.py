"""The commands, outputs and options in the documentation, and the example of docs/start.md built against the installed tree.

CONTRIBUTING.md describes how a block is marked, and which files stand in for others.
"""
import functools
import itertools
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import support
from support import ProcessTest, run

sys.path.insert(0, str(support.SOURCE / "tests" / "checks"))
import check_docs
import check_figures

PAGES = [support.SOURCE / "README.md", support.SOURCE / "CONTRIBUTING.md", *sorted((support.SOURCE / "docs").glob("*.md")),
         *(support.SOURCE / name for name in check_docs.OTHERS)]
PROGRAMS = ("ps_shm", "worker_shm", "launch_shm", "inspect_shm")
MOST_STEPS = 1000
# Options in the text that belong to other programs.
FOREIGN = {"--shm-size", "--build-arg", "--gpus", "--tool", "--benchmark_filter", "--job_name", "--task_index", "--logdir", "--max-restarts",
           "--nproc_per_node", "--ntasks-per-node"}


class Block:
    def __init__(self, info, text, where):
        self.language = info.split(" ")[0]
        self.marks = set(re.sub(r'\w+="[^"]*"', "", info).split()[1:])
        self.values = dict(re.findall(r'(\w+)="([^"]*)"', info))
        self.text, self.where = text, where

    def commands(self):
        lines = self.text.replace("\\\n", " ").splitlines()
        return [command for command in (re.sub(r"(^|\s)#.*", "", line).strip() for line in lines) if command]


def blocks_of(text, page):
    return [
        Block(found[1], found[2], f"{page}:{text.count(chr(10), 0, found.start()) + 1}")
        for found in re.finditer(r"^```(\S[^\n]*)\n(.*?)^```$", text, re.M | re.S)
    ]


def blanked(text):
    """A line with its numbers and job names blanked; a time may be in milliseconds or seconds."""
    text = re.sub(r"\bjob [\w-]+", "job NAME", text)
    text = re.sub(r"(?<=\d) ms\b", " s", text)
    return " ".join(re.sub(r"\d+(\.\d+)?(e[-+]?\d+)?|(?<= )-(?= )", "#", text).split())


@functools.cache
def help_of(program):
    """The help text of a program as a page names it; None for a program of another project."""
    name = pathlib.Path(program).name
    if program == "tools/run":
        name = "launch_shm"
    if name in PROGRAMS:
        command = [support.TOOLS / name]
    elif re.match(r"(tools|benches|tests/mutants)/", program):
        command = [support.SOURCE / program]
        if not command[0].exists():
            raise AssertionError(f"there is no {program}")
    elif re.match(r"build/\w+/benches/", program):
        source = support.SOURCE / "benches" / f"{name}.cpp"
        if source.exists():
            return source.read_text()
        folder = support.SOURCE / "benches" / name
        folder = folder if folder.is_dir() else support.SOURCE / "benches" / "micro"
        return "\n".join(path.read_text() for path in folder.glob("*.cpp"))
    else:
        return None
    texts = ["--help-markdown"] if name == "launch_shm" else []  # options for maintainers: --help omits them
    if name in PROGRAMS[:3]:
        texts.append(subprocess.run([*command, "--help-all"], capture_output=True, text=True, check=True,
                                    timeout=support.PATIENCE, env=support.environment()).stdout)
    for words in [[], *([[word] for word in ("vars", "set", "events", "dump", "stats", "diff", "publications", "doctor", "metrics", "serve", "rm")] if name == "inspect_shm" else [])]:
        done = subprocess.run([*command, *words, "--help"], capture_output=True, text=True, timeout=support.PATIENCE,
                              stdin=subprocess.DEVNULL, env=support.environment())
        if done.returncode != 0:
            raise AssertionError(f"{program} --help: {done.stderr}")
        texts.append(done.stdout)
    return "\n".join(texts)


def has_option(text, option):
    return re.search(rf"{re.escape(option)}(?![\w-])", text) is not None


def check_options(command):
    lexer = shlex.shlex(command, posix=True, punctuation_chars="&|;")  # unquoted, these characters end a command
    lexer.whitespace_split, lexer.commenters = True, ""
    for is_end, words in itertools.groupby(lexer, lambda word: re.fullmatch("[&|;]+", word) is not None):
        if is_end:
            continue
        program, *words = words
        text = help_of(program)
        for word in words:
            if text is not None and word.startswith("--") and not has_option(text, word.split("=")[0]):
                raise AssertionError(f"{program} has no {word}")


def is_run(command):
    program = command.split()[0]
    return program == "tools/run" or program.removeprefix("build/run/tools/") in PROGRAMS


class Place:
    """A folder with the programs and stand-ins for the files that pages name; jobs get names of their own."""

    def __init__(self, folder):
        self.folder = folder
        self.jobs = set()
        (folder / "tools").mkdir()
        (folder / "tools" / "run").symlink_to(support.TOOLS / "launch_shm")
        (folder / "build" / "run").mkdir(parents=True)
        (folder / "build" / "run" / "tools").symlink_to(support.TOOLS)
        rows = random.Random(1)
        for name in ("a9a", "a9a.t"):
            features = [sorted(rows.sample(range(1, 124), 14)) for _ in range(300)]
            lines = [f"{'+1' if 7 in row else '-1'} {' '.join(f'{i}:1' for i in row)}\n" for row in features]
            (folder / name).write_text("".join(lines))
        ratings = [f"{rows.randrange(40)}::{rows.randrange(30)}::{rows.randint(0, 10)}::0\n" for _ in range(600)]
        (folder / "ratings.dat").write_text("".join(ratings))
        (folder / "mnist").mkdir()
        for part, ours in (("train", "train"), ("t10k", "test")):
            for what in ("images-idx3", "labels-idx1"):
                data = support.SOURCE / "tools" / "data" / f"digits-{ours}-{what.replace('-', '.')}-ubyte"
                (folder / "mnist" / f"{part}-{what}-ubyte").symlink_to(data)

    def job_of(self, match):
        job = f"{match[1]}-{os.getpid()}"
        self.jobs.add(job)
        return f"--job {job}"

    def prepared(self, command):
        command = re.sub(r"--job (\w+)", self.job_of, command).replace("/path/to/mnist", str(self.folder / "mnist"))
        command = re.sub(r"--(publish|publication) (\w+)", lambda said: f"--{said[1]} {said[2]}-{os.getpid()}", command)
        return re.sub(r"--steps (\d+)", lambda steps: f"--steps {min(int(steps[1]), MOST_STEPS)}", command)

    def start(self, command):
        env = support.environment({"PATH": f"{support.TOOLS}:{os.environ['PATH']}"})
        if command.startswith("tools/run") and not re.search("--(steps|epochs)", command):
            env["PS_SHM_STEPS"] = str(MOST_STEPS)
        return subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=self.folder, stdin=subprocess.DEVNULL, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)


class Blocks(unittest.TestCase):
    """Runs blocks in a Place."""

    def setUp(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="ps-docs-"))
        self.addCleanup(shutil.rmtree, folder)
        self.place = Place(folder)

    def check(self, process, command):
        code, out, err = support.finish(process)
        if code != 0:
            raise AssertionError(f"{command}: exit code {code}\n{out}{err}")
        return out

    def run_block(self, block):
        """Returns the output of each command."""
        commands = block.commands()
        for command in commands:
            check_options(command)
        if "no-test" in block.marks:
            if not block.values.get("reason"):
                raise AssertionError("no-test wants a reason")
            return {}
        commands = [command for command in commands if is_run(command)]
        if "terminals" in block.marks:
            processes = [self.place.start(self.place.prepared(command)) for command in commands]
            for process in processes:
                self.addCleanup(lambda process=process: process.poll() is None and process.kill())
            return {command: self.check(process, command) for command, process in zip(commands, processes)}
        beside = self.start_beside(block.values["beside"]) if "beside" in block.values else None
        try:
            return {command: self.check(self.place.start(self.place.prepared(command)), command) for command in commands}
        finally:
            if beside:
                beside.send_signal(signal.SIGINT)
                code, out, err = support.finish(beside)
                self.assertEqual(code, 130, out + err)

    def start_beside(self, command):
        check_options(command)
        command = re.sub(r"--job (\w+)", self.place.job_of, command)
        process = self.place.start(command)
        job = re.search(r"--job (\S+)", command)[1]
        expected = int(re.search(r"--workers (\d+)", command)[1])
        trains = lambda: sum(worker["steps"] > 0 for worker in support.workers_of(job) or []) >= expected
        support.wait_until(lambda: process.poll() is not None or trains(), f"{command} trains")
        return process

    def check_output(self, block, printed):
        out = [blanked(line) for line in printed[block.values["of"]].splitlines()]
        for line in block.text.splitlines():
            self.assertIn(blanked(line), out)

    def check_page(self, text, page):
        printed = {}
        for block in blocks_of(text, page):
            with self.subTest(block.where):
                if block.language == "sh":
                    printed |= self.run_block(block)
                elif block.language == "output":
                    self.check_output(block, printed)
                elif block.language in ("bash", "shell", "console"):
                    self.fail("commands stand in blocks that are marked sh")
        for job in self.place.jobs:
            self.assertEqual(support.segments(job), [], f"{page} leaves segments of {job} behind")


class Pages(Blocks):
    """A test for each page, added below."""


def add_page(page):
    name = str(page.relative_to(support.SOURCE))
    setattr(Pages, f"test_{re.sub(r'[^a-z]', '_', name.lower())}", lambda self: self.check_page(page.read_text(), name))


for one in PAGES:
    add_page(one)


class Options(unittest.TestCase):
    def all_help(self):
        scripts = [f"benches/{path.name}" for path in (support.SOURCE / "benches").iterdir()
                   if path.is_file() and os.access(path, os.X_OK)]
        programs = [*PROGRAMS, "tools/test", "tools/ninja_progress.py", "tools/dev/soak", "tools/gpu_check", "tests/mutants/run.py", *scripts, "build/bench/benches/micro", "build/gpu/benches/gpu"]
        bridge = (support.SOURCE / "python/ps_shm/bridge/_options.py").read_text()  # whose --help needs the built package
        return "\n".join([*(help_of(program) for program in programs), bridge])

    def test_options_in_the_text_exist(self):
        known = self.all_help()
        for page in PAGES:
            text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
            for code in re.findall(r"`([^`\n]+)`", text):
                for option in re.findall(r"(?:^|\s)(--[a-z][\w-]*)", code):
                    with self.subTest(page.name, option=option):
                        self.assertTrue(option in FOREIGN or has_option(known, option), code)


class Recording(ProcessTest):
    def test_the_page_shows_what_its_script_records(self):
        page = (support.SOURCE / "docs" / "start.md").read_text()
        (shown,) = [block.text for block in blocks_of(page, "start.md") if block.values.get("by") == "tools/dev/record_start.py"]
        done = subprocess.run([sys.executable, support.SOURCE / "tools" / "dev" / "record_start.py", "--job", self.job, "--steps",
                               "100000"], capture_output=True, text=True, env=os.environ, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        # A line continues on those that begin with four blanks.
        unfolded = lambda text: [blanked(line) for line in re.sub(r"\n {4}(?=\S)", " ", text).splitlines()]
        recorded = [*unfolded(done.stdout), "..."]  # lines are omitted in the output of a longer job
        for line in unfolded(shown):
            self.assertIn(line, recorded)
        self.assertLessEqual(max(map(len, shown.splitlines())), 80)


class Mistakes(Blocks):
    """Mistakes on a page are found."""

    def assert_found(self, page, words):
        (block,) = blocks_of(page, "page")
        with self.assertRaisesRegex(AssertionError, words):
            self.run_block(block)

    def test_a_wrong_option_fails_wherever_it_stands(self):
        for command in ("tools/run --wrokers 2", "benches/hogwild --rnuds 2", "inspect_shm ls --jsno"):
            for mark in ("", ' no-test reason="a test"', " terminals"):
                with self.subTest(command + mark):
                    self.assert_found(f"```sh{mark}\n{command}\n```\n", "has no --")

    def test_a_command_that_fails_or_is_not_there_fails(self):
        self.assert_found("```sh\ninspect_shm show --job nobody\n```\n", "exit code 1")
        self.assert_found("```sh\ntools/run --workers 0   # none\n```\n", "exit code 2")
        self.assert_found("```sh\nbenches/nothing --quick\n```\n", "there is no benches/nothing")
        self.assert_found("```sh no-test\ntools/run\n```\n", "wants a reason")

    def test_output_that_is_not_printed_fails(self):
        page = """```sh beside="launch_shm --job output --model count --workers 1 --count-interval 1ms --steps 1000000"
inspect_shm vars --job output
```
```output of="inspect_shm vars --job output"
NAME  SHAPE  RULE  LAYOUT     SHARD  NODE  SIZE  SLOTS  SLOT SIZE  PIECES  UPDATES  STATE
var   []     %s    versioned      0     -  4 B       -  0 B             1       1   ready
```
"""
        shown, output = blocks_of(page % "add", "page")
        printed = self.run_block(shown)
        self.check_output(output, printed)
        with self.assertRaises(AssertionError):
            self.check_output(blocks_of(page % "sgd", "page")[1], printed)

    def test_links_paths_and_tables(self):
        root = support.SOURCE
        for target in ("docs/nothing.md", "docs/modes.md#nothing", "#nothing"):
            self.assertTrue(list(check_docs.check_links(root, PAGES[0], f"# Here\n[text]({target})\n")), target)
        self.assertEqual(list(check_docs.check_links(root, PAGES[0], "[a](docs/modes.md#modes) [b](https://nothing.org)")), [])
        self.assertTrue(list(check_docs.check_paths(root, "`src/shm/nothing.hpp`")))
        self.assertEqual(list(check_docs.check_paths(root, "`src/shm/segment/layout.hpp`, `tools/run --workers 2`, `build/x`")), [])
        self.assertEqual([what for _, what in check_docs.check_glossary("It begins anew.\nMeetings of heirs")],
                         ["'begins anew': write is reset, starts from scratch", "'heirs': write recover, successor",
                          "'Meetings': write user barrier"])
        self.assertEqual(list(check_docs.check_glossary("for people who train; tapered")), [])
        long = " ".join(["word"] * 36)
        for text in (f"{long}.", f"Short. {long}", f"- Short.\n- {long}:", f"| a | {long} |"):
            self.assertTrue(list(check_docs.check_sentences("page.md", text)), text)
        for text in (" ".join(["word"] * 35) + ". Short.", f"```\n{long}\n```", f"`{long}`", f"{long[:100]}.\n\n{long[:100]}."):
            self.assertEqual(list(check_docs.check_sentences("page.md", text)), [], text)
        page, allowed = next(iter(check_docs.LONG_SENTENCES.items()))
        self.assertTrue(list(check_docs.check_sentences(page, f"{long}. " * (allowed - 1))))  # the number falls, too
        self.assertEqual(list(check_docs.check_sentences(page, f"{long}. " * allowed)), [])
        self.assertTrue(list(check_docs.check_lines("a " * 61)))
        self.assertEqual(list(check_docs.check_lines(f"| {'a ' * 61}|\n![{'a ' * 61}](b.png)\n{'a' * 121}")), [])
        self.assertIn("--lr", check_docs.anchors('| `--lr X`<a id="--lr"></a> |\n'))
        for page in ("# Page\n\nText before.\n", "# Page\n\n*For everybody.*\n", "# Page\n"):
            self.assertTrue(list(check_docs.check_audience(page)), page)
        self.assertEqual(list(check_docs.check_audience("# Page\n\n*For users. Nothing has to be read\nbefore.*\n\nText.")), [])
        for cell in ("97.78 / 1.88 / 30293", "0.00, 0", "85.04 (84.97 to 85.07)"):
            self.assertTrue(list(check_docs.check_tables(f"| a | {cell} |")), cell)
        for cell in ("97.78", "1 000 floats", "23.2 GB/s", "2 P (N - 1) / N", ""):
            self.assertEqual(list(check_docs.check_tables(f"| a | {cell} |")), [], cell)

    def complaints_of(self, page, old, new):
        """What check_figures says of a page in which this has been changed."""
        text, of = (support.SOURCE / page).read_text(), check_figures.Results(support.SOURCE / "benches" / "results")
        self.assertIn(old, text)
        text = text.replace(old, new, 1)
        found = [*check_figures.check_rows(page, text, of.results), *check_figures.check_claims(page, text, of)]
        return [*found, *check_figures.check_outputs(text), *(check_figures.check_losses(text, of) if "bench" in page else [])]

    def test_figures_are_those_of_their_runs(self):
        for page in ("README.md", "docs/benchmarks.md"):
            self.assertEqual(self.complaints_of(page, "# ", "# "), [])
            text = (support.SOURCE / page).read_text()
            for row in re.findall(r"(?m)^\| (?!\*\*).*", text):
                for figure in re.findall(r" (\d+\.\d+) ", row):
                    self.assertTrue(self.complaints_of(page, row, row.replace(f" {figure} ", f" {figure}5 ", 1)), f"{figure}: {row}")
        rate = re.search(r"(\d+) steps/s", (support.SOURCE / "README.md").read_text())[1]
        for page, old, new in (("README.md", "plain sync waits", "sync waits"), ("README.md", f"{rate} steps/s", f"9{rate} steps/s"),
                               ("README.md", "## What changes", "It is 3 times as fast.\n\n## What changes"),
                               ("docs/benchmarks.md", "[speed.json](../benches/results/speed.json)", "speed.json"),
                               ("docs/benchmarks.md", "| an empty sync step |", "| a sync step |")):
            self.assertTrue(self.complaints_of(page, old, new), old)
        lines = re.findall(r"(?m)^\| [^|]* \| 0\.\d\d \| [^|]*\|\n", (support.SOURCE / "docs" / "benchmarks.md").read_text())
        self.assertGreater(len(lines), 10)
        for line in lines:
            self.assertTrue(self.complaints_of("docs/benchmarks.md", line, ""), line)


class Example(ProcessTest):
    """The program of docs/start.md, built as that page describes against an installed tree that was moved from its prefix."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.prefix = support.install(cls.folder / "root")
        cls.blocks = blocks_of((support.SOURCE / "docs" / "start.md").read_text(), "start.md")
        (cls.folder / "example.cpp").write_text(next(block.text for block in cls.blocks if block.language == "cpp"))

    def run_example(self, program):
        environment = {name: value for name, value in support.environment().items() if name != "LD_LIBRARY_PATH"}
        result = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=support.PATIENCE)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("30", result.stdout)

    def test_the_command_of_the_page_builds_it(self):
        command = next(block.text for block in self.blocks if block.text.startswith("g++ -std=c++20 example.cpp"))
        config = next(self.prefix.rglob("ps_shm.pc"))
        compiler = os.environ.get("CXX", "g++") + " -Wall -Wextra -Werror"
        subprocess.run(["sh", "-ec", command.replace("g++", compiler, 1)], cwd=self.folder, check=True,
                       env={**os.environ, "PKG_CONFIG_PATH": str(config.parent)})
        self.run_example(self.folder / "example")

    def test_the_lines_of_the_page_on_publication_build_and_run(self):
        page = (support.SOURCE / "docs" / "publication.md").read_text()
        lines = "".join(block.text for block in blocks_of(page, "publication.md") if block.language == "cpp")
        headers = ["cstdio", "cstring", "optional", "utility", "vector", "ps_shm/folder_publisher.hpp", "ps_shm/publisher.hpp",
                   "ps_shm/subscriber.hpp"]
        program = "".join(f"#include <{header}>\n" for header in headers)
        program += f"int main() {{\n{lines}std::printf(\"%g\\n\", 30.0 * double(w[0]));\n}}\n"
        self.assertIn('"policy"', program)
        program = program.replace('"policy"', f'"{self.job}"').replace("/dev/shm/policy-files", str(self.folder / "files"))
        self.run_example(self.built("publication", program))
        self.assertTrue((self.folder / "files/latest/model.safetensors").exists())

    def test_the_program_of_the_page_on_checkpoints_goes_on_where_it_has_ended(self):
        page = (support.SOURCE / "docs" / "checkpoints.md").read_text()
        (program,) = (block.text for block in blocks_of(page, "checkpoints.md") if block.language == "cpp")
        kept = self.built("checkpoints", program.replace('config.job = "kept"', f'config.job = "{self.job}"')
                          .replace('{.job = "kept"}', f'{{.job = "{self.job}"}}').replace('JobView("kept")', f'JobView("{self.job}")'))
        for steps in (["step-1"], ["step-1", "step-2"]):
            subprocess.run([kept], cwd=self.folder, check=True, timeout=support.PATIENCE)
            self.assertEqual(sorted(path.name for path in (self.folder / "kept").iterdir()), steps)

    def test_the_program_of_the_page_on_tables_prints_what_the_page_says(self):
        page = (support.SOURCE / "docs" / "tables.md").read_text()
        (program,) = (block.text for block in blocks_of(page, "tables.md") if block.language == "cpp")
        tables = self.built("tables", program.replace('"shop"', f'"{self.job}"'))
        said = subprocess.run([tables], check=True, capture_output=True, text=True, timeout=support.PATIENCE).stdout
        self.assertIn(f"It prints `{said.rstrip()}`.", page)

    def test_the_lines_of_the_page_on_hooks_are_a_loop_for_the_example(self):
        page = (support.SOURCE / "docs" / "hooks.md").read_text()
        (lines,) = [block.text for block in blocks_of(page, "hooks.md") if "run_steps" in block.text]
        example = (self.folder / "example.cpp").read_text()
        loop = re.search(r"^  std::vector<float> values.*?^  }\n", example, re.M | re.S)
        program = '#include "ps_shm/hooks.hpp"\n' + example.replace(loop[0], lines)
        folder = self.folder / "hooked"
        self.run_example(self.built("hooks", program.replace('"kept"', f'"{folder}"')))
        kept = sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))
        self.assertEqual(kept[0], 50)
        self.assertEqual(len(kept), 2)
        self.assertLess(kept[1], 200)  # the loss criterion stopped it

    def test_a_program_knows_the_versions_of_its_headers_and_of_its_library(self):
        program = self.built("version", '#include <ps_shm/version.hpp>\n#include <cstdio>\n'
                             'static_assert(PS_SHM_VERSION_MAJOR * 1000 + PS_SHM_VERSION_MINOR < 2000 && PS_SHM_VERSION_PATCH >= 0);\n'
                             'int main() { std::printf("%d.%d.%d %s %s\\n", PS_SHM_VERSION_MAJOR, PS_SHM_VERSION_MINOR, '
                             'PS_SHM_VERSION_PATCH, PS_SHM_VERSION, ps_shm::library_version()); }\n')
        version = run("ps_shm", "--version").out.split()[1]
        said = subprocess.run([program], check=True, capture_output=True, text=True).stdout
        self.assertEqual(said.split(), [version] * 3)
        needed = subprocess.run(["objdump", "-p", program], check=True, capture_output=True, text=True).stdout
        self.assertIn("libps_shm.so." + version.rsplit(".", 1)[0] + "\n", needed)

    def test_a_newer_standard_is_kept_and_an_older_one_is_told(self):
        program = "#include <ps_shm/worker.hpp>\nstatic_assert(__cplusplus > 202002L);\nint main() {}\n"
        self.built("newer", program, standard="c++2b")
        with self.assertRaises(subprocess.CalledProcessError) as failure:
            self.built("older", program, standard="c++17")
        self.assertIn("ps_shm needs C++20", failure.exception.stderr)

    def test_nothing_that_is_installed_has_a_name_of_another_package(self):
        """The packages are pslib1 and pslib-dev (a PostScript library), ps-lite, and procps."""
        theirs = {"libps.so", "libps.so.0", "libps.so.0.4.5", "libps.a", "libps.pc", "pslib.h", "ps.h", "libps", "ps", "ps-lite",
                  "kv_app.h", "libpslite.a", "ps.1", "ps.pc", "ps-config.cmake"}
        places = ("bin", "include", "lib", "lib/*", "lib/*/pkgconfig", "lib/*/cmake", "share/man/man1", "lib/pkgconfig", "lib64")
        ours = {path.name for place in places for path in self.prefix.glob(place + "/*")}
        self.assertLessEqual({"ps_shm", "libps_shm.so", "ps_shm.pc", "ps_shm.1"}, ours)
        self.assertEqual(ours & theirs, set())
        exported = subprocess.run(["nm", "-D", "--defined-only", next(self.prefix.rglob("libps_shm.so"))], check=True,
                                  capture_output=True, text=True).stdout
        self.assertEqual([line for line in exported.splitlines() if not re.search(r" _Z\w*N?K?6ps_shm", line)], [])

    def built(self, name, program, standard="c++20"):
        (self.folder / f"{name}.cpp").write_text(program)
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "ps_shm"], check=True, capture_output=True, text=True,
                               # no other folder
                               env={**os.environ, "PKG_CONFIG_LIBDIR": str(next(self.prefix.rglob("ps_shm.pc")).parent)})
        libraries = next(self.prefix.rglob("libps_shm.so")).parent
        self.assertNotIn("-std", flags.stdout)
        subprocess.run([*os.environ.get("CXX", "g++").split(), f"-std={standard}", "-Wall", "-Wextra", "-Werror", f"{name}.cpp",
                        *flags.stdout.split(), f"-Wl,-rpath,{libraries}", "-o", name], cwd=self.folder, check=True, capture_output=True,
                       text=True)
        return self.folder / name

    def configure(self, lists):
        """The result of cmake, and the configured build folder."""
        source = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        (source / "CMakeLists.txt").write_text(lists)
        shutil.copy(self.folder / "example.cpp", source)
        return subprocess.run(["cmake", "-S", source, "-B", source / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}"],
                              capture_output=True, text=True), source / "build"

    def test_the_cmake_project_of_the_readme_builds_it(self):
        lists = next(block.text for block in self.blocks if block.language == "cmake")
        configured, build = self.configure(lists)
        self.assertEqual(configured.returncode, 0, configured.stderr)
        subprocess.run(["cmake", "--build", build], check=True, stdout=subprocess.DEVNULL)
        self.run_example(build / "example")
        for wanted, fits in (("0.1.0 EXACT", True), ("0", True), ("", True), ("0.2", False), ("1.0", False), ("0.0.9", False)):
            with self.subTest(wanted=wanted):
                configured, _ = self.configure(lists.replace("find_package(ps_shm 0.1 ", f"find_package(ps_shm {wanted} "))
                self.assertEqual(configured.returncode == 0, fits, configured.stderr)


if __name__ == "__main__":
    support.main()
