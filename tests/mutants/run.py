#!/usr/bin/env python3
"""Breaks the protocols on purpose, one rule at a time, and checks that the tests of that rule notice.

    tests/mutants/run.py                        all mutants; some seconds each, minutes where a header is broken
    tests/mutants/run.py --sample 5 --seed 1    five random ones
    tests/mutants/run.py --only PART...         those whose names contain one of these
    tests/mutants/run.py --list                 lists them
    tests/mutants/run.py --check                only whether each still fits the code and the tests; some seconds

The tables MUTANTS in the files beside this one have them, by name:

    breaks    describes what is broken
    rule      the label of the protocol's rule
    tests     those that must notice: "[VARIABLE=VALUE] NAME [CASES]". NAME is one of meson's tests; CASES is a filter: of
              doctest's names, or for a process test CLASS.METHOD, or for a test of pytest the name of a function
    survives  the reason, if no test can notice
    file      the source
    changes   the original text, which occurs once in the file, and its replacement

It is applied to a copy of the sources in build/mutants/tree, which has a build folder of its own, to begin with a copy
of build/test, where that is there. Only what its tests need is built there, and it is an error if that does not compile
the mutant's file. The first test that fails, or does not end
in ten times its usual time, has noticed it. Where the system allows it, each test has processes and a /dev/shm of its
own, so that a hang leaves nothing behind.
Exits with 0 if every mutant is noticed, except those that have a reason to survive.
"""
import argparse
import ast
import collections
import fcntl
import fnmatch
import importlib
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
HERE = SOURCE / "tests/mutants"
sys.dont_write_bytecode = True
FOLDER = SOURCE / "build/mutants"
TREE = FOLDER / "tree"
USUAL = SOURCE / "build/test"
BUILD = TREE / "build/test"  # as deep, so that what was built there is known here
# What a rule needed is often unused without it.
QUIET = "".join(f'#pragma GCC diagnostic ignored "-Wunused-{what}"\n'
                for what in ("variable", "but-set-variable", "parameter", "function"))
OWN_MAIN = "kill_matrix", "publication_matrix", "table_matrix"  # programs without doctest
PATIENCE = 10, 20  # times the usual time, and seconds
PRIVATE = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c",
           'mount -t tmpfs -o size=4g tmpfs /dev/shm && mount -t proc proc /proc && "$@"; exit $?', "sh"]

Test = collections.namedtuple("Test", "name filter settings")
Command = collections.namedtuple("Command", "words environment target prepare")


class Mutant:
    def __init__(self, name, breaks, rule, tests, file, changes, survives=None):
        self.name, self.breaks, self.rule, self.file, self.changes, self.survives = name, breaks, rule, file, changes, survives
        self.tests = [parse_test(text, name) for text in tests]

    def applied_to(self, text):
        """(the mutated text, None); or (None, the reason why the mutant does not fit)."""
        for old, new in self.changes:
            if (count := text.count(old)) != 1:
                return None, f"{self.file} has it {count} times: {old.strip()}"
            text = text.replace(old, new)
        return text, None


def read_tables():
    for path in sorted(HERE.glob("*.py")):
        if path != pathlib.Path(__file__).resolve():
            for name, fields in importlib.import_module(path.stem).MUTANTS.items():
                yield Mutant(name, **fields)


def parse_test(text, path):
    words, settings = shlex.split(text), {}
    while words and "=" in words[0]:
        key, _, value = words.pop(0).partition("=")
        settings[key] = value
    if not 1 <= len(words) <= 2:
        sys.exit(f"{path}: '{text}' is no test")
    return Test(words[0], words[1] if len(words) == 2 else "", tuple(settings.items()))


def run(*command, **options):
    return subprocess.run(command, text=True, stdin=subprocess.DEVNULL, capture_output=True, **options)


def find_misfits(mutants):
    """A line for each mutant that does not fit the code, and for each filter that matches no test case."""
    cases = []
    for path in (path for path in (SOURCE / "tests").rglob("*") if path.suffix in (".cpp", ".hpp", ".py")):
        if path.suffix == ".py":
            body = ast.parse(path.read_text()).body
            cases += [node.name for node in body if isinstance(node, ast.FunctionDef)]
            for one in (node for node in body if isinstance(node, ast.ClassDef)):
                cases += [one.name, *(f"{one.name}.{its.name}" for its in one.body if isinstance(its, ast.FunctionDef))]
        else:
            cases += re.findall(r'TEST_CASE\(\s*"([^"]*)"', path.read_text())
    for mutant in mutants:
        _, why = mutant.applied_to((SOURCE / mutant.file).read_text())
        if why:
            yield f"{mutant.name}: {why}"
        for test in mutant.tests:
            if test.filter and not any(fnmatch.fnmatchcase(case, test.filter) for case in cases):
                yield f"{mutant.name}: {test.name} has no case {test.filter}"
            if "," in test.filter:
                yield f"{mutant.name}: a comma ends doctest's filter {test.filter}"


def copy_tree():
    """Copies what differs, so that a second run compiles little; returns it."""
    if (SOURCE / ".git").exists():
        files = run("git", "-C", str(SOURCE), "ls-files", "-z", "--cached", "--others", "--exclude-standard", check=True)
        wanted = {name for name in files.stdout.split("\0") if name and (SOURCE / name).is_file()}
    else:  # a release's tarball
        wanted = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*")
                  if path.is_file() and SOURCE / "build" not in path.parents}
    for old in (path for path in TREE.rglob("*") if path.is_file() and BUILD not in path.parents):
        if str(old.relative_to(TREE)) not in wanted:
            old.unlink()
    return [name for name in wanted if restore(name)]


def restore(name):
    """Whether the copy was of other sources."""
    source, copy = SOURCE / name, TREE / name
    if copy.exists() and copy.read_bytes() == source.read_bytes():
        return False
    copy.parent.mkdir(parents=True, exist_ok=True)
    if BUILD.exists():
        shutil.copy(source, copy)  # newer than the build products of the other sources
    else:
        shutil.copy2(source, copy)
    return True


def copy_build():
    """Takes over the build products of the usual tree, after replacing its paths by those of the copy. The sources of a
    unity build have paths, too: what was compiled of them is compiled again."""
    run("cp", "-a", str(USUAL), str(BUILD.parent), check=True)
    for path in (BUILD / "build.ninja", *(BUILD / "meson-info").glob("*.json"), *BUILD.rglob("*-unity[0-9]*.cpp")):
        old = path.read_text()
        new = re.sub(f"{re.escape(str(SOURCE))}/(?!build/venv)", f"{TREE}/", old)
        if new != old:
            path.write_text(new)


class Builder:
    def __init__(self, jobs, has_changed):
        self.jobs, self.used, self.usual = jobs, {}, {}
        self.is_private = run(*PRIVATE, "true").returncode == 0
        if not BUILD.exists() and (USUAL / "build.ninja").exists():
            BUILD.parent.mkdir(parents=True, exist_ok=True)
            copy_build()
        elif not (BUILD / "build.ninja").exists() or has_changed:
            made = run("meson", "setup", *(["--reconfigure"] if (BUILD / "build.ninja").exists() else []), str(BUILD),
                       str(TREE), "-Dbuildtype=debugoptimized", "-Doptimization=3", "-Dtests=true",
                       env={**os.environ, "CXXFLAGS": "-g1"})
            if made.returncode != 0:
                sys.exit(made.stdout + made.stderr)
        # It would be made again for each source that differs: one of its commands gets them all.
        rules = (BUILD / "build.ninja").read_text()
        (BUILD / "build.ninja").write_text(re.sub(r"^build build\.ninja: .*\n pool = console\n", "", rules,
                                                  flags=re.MULTILINE))
        self.known = {one["name"]: one for one in self.introspect("--tests")}
        self.targets = {one["id"]: [self.relative(name) for name in one["filename"]]
                        for one in self.introspect("--targets")}

    def introspect(self, what):
        return json.loads(run("meson", "introspect", what, str(BUILD), check=True).stdout)

    def compiled(self):
        """The sources and headers of all that was built, as names in the tree."""
        dependencies = set(run("ninja", "-C", str(BUILD), "-t", "deps", check=True).stdout.splitlines())
        paths = (os.path.relpath(BUILD / line.strip(), TREE) for line in dependencies if line.startswith("    "))
        return {path for path in paths if not path.startswith("..")}

    @staticmethod
    def relative(path):
        return os.path.relpath(BUILD / path, BUILD)

    def ninja(self, *targets):
        """None, or the compiler's errors."""
        built = run("ninja", "-C", str(BUILD), f"-j{self.jobs}", *targets)
        return None if built.returncode == 0 else "\n".join(built.stdout.splitlines()[-15:])

    def build(self, test):
        """(the command of the test, None); or (None, the reason why it does not build)."""
        if test.name not in self.known:
            sys.exit(f"there is no test {test.name}")
        meson = self.known[test.name]
        words = list(meson["cmd"])
        if "--" in words:
            words = words[words.index("--") + 1:]  # the search itself in any case, as tests/once.py would skip it
        if words[-1].endswith(".py"):
            why = self.ninja(*(name for one in meson["depends"] for name in self.targets.get(one, [])))
            if "pytest" in words and test.filter:
                words[-1] += f"::{test.filter}"
            elif test.filter:
                words.append(test.filter)
            return (words, None) if why is None else (None, why)
        file = next((word for word in words if word.startswith("--source-file=")), None)
        program, why = self.link(self.relative(words[0]), file and file.split("/", 1)[1])
        words[0] = str(BUILD / program)
        if test.name not in OWN_MAIN:
            words += ["--abort-after=1"] + ([f"--test-case={test.filter}"] if test.filter else [])
        return (words, None) if why is None else (None, why)

    def link(self, program, source):
        """A program of that file of the suite alone, and of those files of the library that it uses: the linker tells
        which these are when it is linked for the first time. What else a broken header concerns is not compiled."""
        command = shlex.split(run("ninja", "-C", str(BUILD), "-t", "commands", "-s", program, check=True).stdout)
        own = [word for word in command if word.endswith(".o")]
        if program.endswith(("unit_tests", "stress_tests")):
            own = [f"{program}.p/{source.replace('/', '_')}.o"]
        archives = [word for word in command if word.endswith(".a") and not word.startswith("/")]
        shared = [word for word in command if word.endswith(".so") and not word.startswith(("/", "-"))]
        part = f"mutants_{pathlib.Path(source or program).stem}"
        used = self.used.get(part)
        if why := self.ninja(*own, *shared, *(archives if used is None else used)):
            return part, why
        start = command.index("-Wl,--start-group")
        words = [part if word == program else word for word in command[:start] if not word.endswith(".o")]
        words += own + (["-Wl,-t"] if used is None else used)
        words += [word for word in command[start:] if used is None or word not in archives]
        linked = run(*words, cwd=BUILD)
        if linked.returncode != 0:
            return part, linked.stderr[-2000:]
        if used is None:
            self.used[part] = [line for line in dict.fromkeys(linked.stdout.split("\n"))
                               if line.endswith(".o") and not line.startswith("/") and line not in own]
        return part, None

    def run_test(self, test, words, limit):
        """None if it passes within this many seconds; otherwise how it fails."""
        environment = {**os.environ, **self.known[test.name]["env"], **dict(test.settings)}
        process = subprocess.Popen([*(PRIVATE if self.is_private else []), *words], env=environment, cwd=BUILD,
                                   text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, start_new_session=True, errors="replace")
        try:
            out, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            return f"no end in {limit:.0f} s"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.communicate()
        (BUILD / "mutants.log").write_text(out)
        if re.search(r"test cases: +0 \|", out):
            return f"has no case {test.filter}"
        return None if process.returncode in (0, 77) else f"exit code {process.returncode}"

    def measure(self, test):
        """Runs it on the unbroken code; None, or the failure."""
        words, why = self.build(test)
        if why is not None:
            return why
        began = time.monotonic()
        failed = self.run_test(test, words, 900)
        self.usual[test] = time.monotonic() - began
        return failed and f"{failed}; see {BUILD / 'mutants.log'}"

    def find_failure(self, tests):
        """The first test that notices, and how; (None, "") if none does; (None, the errors) if it does not build."""
        for test in tests:
            words, why = self.build(test)
            if why is not None:
                return None, why
            if failed := self.run_test(test, words, PATIENCE[0] * self.usual[test] + PATIENCE[1]):
                return test, failed
        return None, ""


def try_mutant(mutant, builder):
    """The outcome in words, and whether it is as expected."""
    file = TREE / mutant.file
    broken, why = mutant.applied_to(file.read_text())
    if why:
        return f"does not fit: {why}", False
    file.write_text(broken if mutant.file.endswith(".py") else QUIET + broken)
    try:
        test, how = builder.find_failure(mutant.tests)
    finally:
        restore(mutant.file)
    if test is not None:
        return f"noticed by {test.name}: {how}", mutant.survives is None
    if how:
        return f"does not build: {how}", False
    return f"survives: {mutant.survives}" if mutant.survives else "SURVIVES", mutant.survives is not None


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sample", type=int, metavar="N", help="so many of them, by chance")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="of the sample")
    parser.add_argument("--only", nargs="+", default=[""], metavar="PART", help="of their names")
    parser.add_argument("--list", action="store_true", help="what there is")
    parser.add_argument("--check", action="store_true", help="only whether each fits the code")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="of the compiler")
    return parser.parse_args()


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    options = parse_arguments()
    mutants = [mutant for mutant in read_tables() if any(part in mutant.name for part in options.only)]
    mutants.sort(key=lambda one: (one.file, one.name))
    if options.sample:
        print(f"a sample by seed {options.seed}")
        mutants = sorted(random.Random(options.seed).sample(mutants, min(options.sample, len(mutants))),
                         key=lambda one: (one.file, one.name))
    if not mutants:
        sys.exit("there is no such mutant")
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name:<34} {mutant.rule:<16} {' '.join(dict.fromkeys(t.name for t in mutant.tests))}")
        return 0
    if options.check:
        misfits = list(find_misfits(mutants))
        print("\n".join([*misfits, f"{len(mutants)} mutants, {len(misfits)} misfits"]))
        return bool(misfits)
    FOLDER.mkdir(parents=True, exist_ok=True)
    lock = open(FOLDER / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"another one runs in {FOLDER}")
    changed = copy_tree()
    builder = Builder(options.jobs, any(pathlib.Path(name).name.startswith("meson") for name in changed))
    counts = collections.Counter()
    for test in dict.fromkeys(test for mutant in mutants for test in mutant.tests):
        if why := builder.measure(test) and builder.measure(test):  # on a busy machine a run may fail by accident
            print(f"! without a mutant, {test.name} {test.filter}: {why}", flush=True)
            counts["unfit", False] += 1
            mutants = [mutant for mutant in mutants if test not in mutant.tests]
    # A file that no command reads where it is in the copy would leave every mutant of it alive.
    compiled = builder.compiled()
    for mutant in [one for one in mutants if one.file.endswith((".cpp", ".hpp")) and one.file not in compiled]:
        print(f"! {mutant.name}: what its tests need does not compile {TREE / mutant.file}", flush=True)
        counts["unfit", False] += 1
        mutants.remove(mutant)
    for mutant in mutants:
        began = time.monotonic()
        verdict, is_good = try_mutant(mutant, builder)
        counts[verdict.split()[0].lower(), is_good] += 1
        print(f"{'  ' if is_good else '! '}{mutant.name:<34} {mutant.rule:<16} {time.monotonic() - began:4.0f} s  {verdict}",
              flush=True)
    noticed, expected = counts["noticed", True] + counts["noticed", False], counts["survives:", True]
    wrong = sum(count for (_, is_good), count in counts.items() if not is_good)
    print(f"{len(mutants)} mutants: {noticed} noticed, {expected} survive for their reason, {wrong} not as they should be")
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
