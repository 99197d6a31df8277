"""Builds and runs the tests of mutants: in a copy of the tree, or for a kernel with a library of its own."""
import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time

from reading import SOURCE

FOLDER = SOURCE / "build/mutants"
TREE = FOLDER / "tree"
BUILD = TREE / "build/test"  # where each source is compiled by itself, so that a mutant of one takes seconds
# What a rule needed is often unused without it.
QUIET = "".join(f'#pragma GCC diagnostic ignored "-Wunused-{what}"\n'
                for what in ("variable", "but-set-variable", "parameter", "function"))
OWN_MAIN = "kill_matrix", "publication_matrix", "table_matrix"  # programs without doctest
LIBRARY = "tests/support/cuda_on_cpu/libcuda_on_cpu.so"
PATIENCE = 10, 20  # times the usual time, and seconds
PRIVATE = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c",
           'mount -t tmpfs -o size=4g tmpfs /dev/shm && mount -t proc proc /proc && "$@"; exit $?', "sh"]


def run(*command, **options):
    return subprocess.run(command, text=True, stdin=subprocess.DEVNULL, capture_output=True, **options)


@contextlib.contextmanager
def started(words, settings, folder, output):
    """A process, of which nothing is left afterwards."""
    process = subprocess.Popen(words, env={**os.environ, **settings}, cwd=folder, text=True, stdin=subprocess.DEVNULL,
                               stdout=output, stderr=subprocess.STDOUT, start_new_session=True, errors="replace")
    try:
        yield process
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()


def copy_tree():
    """Copies what differs, so that a second run compiles little; returns it."""
    if (SOURCE / ".git").exists():
        files = run("git", "-C", str(SOURCE), "ls-files", "-z", "-co", "--exclude-standard", check=True)
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


class Builder:
    """Builds tests in a copy of the tree, or takes those of `folder`, which then stays as it is."""

    def __init__(self, jobs, has_changed, folder=None):
        self.jobs, self.used, self.usual, self.is_copy = jobs, {}, {}, folder is None
        self.objects = {}  # {name of a test: the objects of its program, where that is linked here}
        self.folder, self.tree = (BUILD, TREE) if self.is_copy else (folder.resolve(), SOURCE)
        self.is_private = run(*PRIVATE, "true").returncode == 0
        if self.is_copy:
            self.set_up(has_changed)
        self.known = {one["name"]: one for one in self.introspect("--tests")}
        self.targets = {one["id"]: [self.relative(name) for name in one["filename"]]
                        for one in self.introspect("--targets")}

    @staticmethod
    def set_up(has_changed):
        if not (BUILD / "build.ninja").exists() or has_changed:
            made = run("meson", "setup", *(["--reconfigure"] if (BUILD / "build.ninja").exists() else []), str(BUILD),
                       str(TREE), "-Dbuildtype=debugoptimized", "-Doptimization=3", "-Dtests=true",
                       env={**os.environ, "CXXFLAGS": "-g1"})
            if made.returncode != 0:
                raise SystemExit(made.stdout + made.stderr)
        # It would be made again for each source that differs: one of its commands gets them all.
        rules = (BUILD / "build.ninja").read_text()
        (BUILD / "build.ninja").write_text(re.sub(r"^build build\.ninja: .*\n pool = console\n", "", rules,
                                                  flags=re.MULTILINE))

    def introspect(self, what):
        return json.loads(run("meson", "introspect", what, str(self.folder), check=True).stdout)

    def compiled(self, objects=()):
        """The sources and headers of these objects, or of all that was built, as names in the tree."""
        dependencies = set(run("ninja", "-C", str(self.folder), "-t", "deps", *objects, check=True).stdout.splitlines())
        paths = (os.path.relpath(self.folder / line.strip(), self.tree) for line in dependencies if line[:4] == "    ")
        return {path for path in paths if not path.startswith("..")}

    def relative(self, path):
        return os.path.relpath(self.folder / path, self.folder)

    def ninja(self, *targets):
        """None, or the compiler's errors."""
        if not self.is_copy:
            return None
        built = run("ninja", "-C", str(self.folder), f"-j{self.jobs}", *targets)
        return None if built.returncode == 0 else "\n".join(built.stdout.splitlines()[-15:])

    def build(self, test, all_cases=False):
        """(the command of the test, None); or (None, the reason why it does not build). It ends with the first case that
        fails, unless all are asked for."""
        if test.name not in self.known:
            raise SystemExit(f"there is no test {test.name}")
        meson = self.known[test.name]
        words = list(meson["cmd"])
        if "--" in words:
            words = words[words.index("--") + 1:]  # the search itself in any case, as tests/skip_if_searched.py would skip it
        if words[-1].endswith(".py"):
            why = self.ninja(*(name for one in meson["depends"] for name in self.targets.get(one, [])))
            if "pytest" in words and test.filter:
                words[-1] += f"::{test.filter}"
            elif test.filter:
                words.append(test.filter)
            return (words, None) if why is None else (None, why)
        file = next((word for word in words if word.startswith("--source-file=")), None)
        program = self.relative(words[0])
        if not self.is_copy or program.endswith("gpu_tests_on_cpu"):  # whose cases are linked from an archive
            why = self.ninja(program)
        else:
            program, why = self.link(program, file and file.split("/", 1)[1], test.name)
        words[0] = str(self.folder / program)
        if test.name not in OWN_MAIN:
            words += [] if all_cases else ["--abort-after=1"]
            words += [f"--test-case={test.filter}"] if test.filter else []
        return (words, None) if why is None else (None, why)

    def link(self, program, source, name):
        """A program of that file of the suite alone, and of those files of the library that it uses: the linker tells
        which these are when it is linked for the first time. What else a broken header concerns is not compiled."""
        command = shlex.split(run("ninja", "-C", str(self.folder), "-t", "commands", "-s", program, check=True).stdout)
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
        linked = run(*words, cwd=self.folder)
        if linked.returncode != 0:
            return part, linked.stderr[-2000:]
        if used is None:
            self.used[part] = [line for line in dict.fromkeys(linked.stdout.split("\n"))
                               if line.endswith(".o") and not line.startswith("/") and line not in own]
        self.objects[name] = own + self.used[part]
        return part, None

    def started(self, test, words, settings=None, output=subprocess.PIPE):
        """The test's process, as started() gives it."""
        settings = {**self.known[test.name]["env"], **dict(test.settings), **(settings or {})}
        return started([*(PRIVATE if self.is_private else []), *words], settings, self.folder, output)

    def run_test(self, test, words, limit, settings=None):
        """None if it passes within this many seconds; otherwise how it fails."""
        with self.started(test, words, settings) as process:
            try:
                out, _ = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                return f"no end in {limit:.0f} s"
        if self.is_copy:
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
        return f"{failed}; see {BUILD / 'mutants.log'}" if failed and self.is_copy else failed

    def find_failure(self, tests, settings=None):
        """The first test that notices, and how; (None, "") if none does; (None, the errors) if it does not build."""
        for test in tests:
            words, why = self.build(test)
            if why is not None:
                return None, why
            if failed := self.run_test(test, words, PATIENCE[0] * self.usual[test] + PATIENCE[1], settings):
                return test, failed
        return None, ""

    @contextlib.contextmanager
    def broken(self, mutant, text):
        """Puts this text in the place of the mutant's source, for as long as it is entered. Gives (the settings with which
        tests meet it, None), or (None, the compiler's errors)."""
        if not mutant.is_of_kernel and not mutant.is_of_package:
            (self.tree / mutant.file).write_text(QUIET + text)
            try:
                yield {}, None
            finally:
                restore(mutant.file)
            return
        with tempfile.TemporaryDirectory() as made:
            if mutant.is_of_kernel:  # of which programs are told where the library lies
                why = self.make_library(pathlib.Path(mutant.file), text, pathlib.Path(made))
                yield {"LD_LIBRARY_PATH": made}, why
            else:  # beside links to what was built of the package's others
                shutil.copytree(self.folder / "python/ps_shm", f"{made}/ps_shm", copy_function=os.symlink,
                                ignore=shutil.ignore_patterns("*.p", "__pycache__"))
                file = pathlib.Path(made, mutant.file.removeprefix("python/"))
                file.unlink()
                file.write_text(text)
                yield {"PYTHONPATH": made, "PYTHONDONTWRITEBYTECODE": "1"}, None

    def make_library(self, kernel, broken, into):
        """The kernels' library for the CPU, with this one broken; None, or the compiler's errors."""
        self.ninja(LIBRARY)
        of_library = [one for one in json.loads((self.folder / "compile_commands.json").read_text())
                      if f"{LIBRARY}.p/" in one["output"]]
        objects = {one["output"]: one["output"] for one in of_library}
        sources = {path.stem: path for path in (self.tree / "kernels").glob("*.cu")}
        (into / kernel.name).write_text(broken)
        sanitizers = []
        for one in of_library:
            name = pathlib.Path(one["file"]).stem
            text = sources[name].read_text() if name in sources else ""
            if name != kernel.stem and f'#include "{kernel.name}"' not in text:
                continue
            (into / f"{name}.cpp").write_text(f'#line 1 "{name}.cu"\n{broken if name == kernel.stem else text}')
            words = shlex.split(one["command"])
            for option in ("-MQ", "-MF", "-o", "-c"):  # and their arguments
                at = words.index(option)
                del words[at:at + 2]
            words.remove("-MD")
            objects[one["output"]] = str(into / f"{name}.o")
            made = run(*words, "-iquote", str(into), "-w", "-O1", "-c", str(into / f"{name}.cpp"), "-o",
                       objects[one["output"]], cwd=self.folder)
            if made.returncode != 0:
                return made.stderr[:2000]
            sanitizers = [word for word in words if word.startswith("-fsanitize=")]
        linked = run("c++", "-shared", *sanitizers, "-o", str(into / pathlib.Path(LIBRARY).name), *objects.values(),
                     "-lopenblas", "-pthread", cwd=self.folder)
        return linked.stderr[:2000] if linked.returncode != 0 else None
