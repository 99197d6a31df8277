"""Reads the mutants of the *.txt beside this file, and finds those that do not fit the sources or the tests."""
import ast
import collections
import fnmatch
import pathlib
import re
import shlex

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent

Test = collections.namedtuple("Test", "name filter settings")


class Mutant:
    def __init__(self, name, rule, tests, file, breaks, survives, changes):
        self.name, self.rule, self.tests, self.file = name, rule, tests, file
        self.breaks, self.survives, self.changes = breaks, survives, changes

    def applied_to(self, text):
        """(the mutated text, None); or (None, the reason why the mutant does not fit)."""
        for old, new in self.changes:
            if (count := text.count(old)) != 1:
                return None, f"{self.file} has it {count} times: {old.strip()}"
            text = text.replace(old, new)
        return text, None

    @property
    def is_of_kernel(self):
        return self.file.startswith("kernels/")

    @property
    def is_of_package(self):
        return self.file.startswith("python/ps_shm/")


def read_mutants():
    names = set()
    for path in sorted(pathlib.Path(__file__).parent.glob("*.txt")):
        file = None
        for paragraph in path.read_text().split("\n\n")[1:]:
            lines = paragraph.strip("\n").split("\n")
            if lines[0].startswith("# "):
                file = lines[0][2:]
                continue
            mutant = parse(lines, file, path)
            if mutant.name in names:
                raise SystemExit(f"{path}: {mutant.name} is there twice")
            names.add(mutant.name)
            yield mutant


def parse(lines, file, path):
    first = next((number for number, line in enumerate(lines) if line[0] in "-+ "), len(lines))
    name, *cells = (cell.strip() for cell in " ".join(lines[:first]).split("|"))
    survives = cells.pop().removeprefix("survives: ") if cells and cells[-1].startswith("survives: ") else None
    if file is None or len(cells) < 3 or not all(cells) or cells[-1][-1] != "." or first == len(lines):
        raise SystemExit(f"{path}: {name} lacks its file, rule, test, sentence or change")
    rule, *tests, breaks = cells
    tests = [test for text in tests for test in parse_tests(text, path)]
    return Mutant(name, rule, tests, file, breaks, survives, list(parse_changes(lines[first:], path)))


def parse_tests(text, path):
    words, settings = shlex.split(text), {}
    while words and "=" in words[0]:
        key, _, value = words.pop(0).partition("=")
        settings[key] = value
    if not 1 <= len(words) <= 2:
        raise SystemExit(f"{path}: '{text}' is no test")
    start, _, rest = words[0].partition("{")
    ends, _, rest = rest.partition("}")
    for end in ends.split(","):
        yield Test(start + end + rest, words[1] if len(words) == 2 else "", tuple(settings.items()))


def parse_changes(lines, path):
    old, new = [], []
    for line in [*lines, "@@"]:
        if line == "@@":
            yield "\n".join(old), "\n".join(new)
            old, new = [], []
        elif line[0] in "-+ ":
            old += [line[1:]] if line[0] != "+" else []
            new += [line[1:]] if line[0] != "-" else []
        else:
            raise SystemExit(f"{path}: '{line}' begins with none of '-', '+' and a space")


def find_cases():
    for path in (path for path in (SOURCE / "tests").rglob("*") if path.suffix in (".cpp", ".hpp", ".py")):
        if path.suffix == ".py":
            body = ast.parse(path.read_text()).body
            yield from (node.name for node in body if isinstance(node, ast.FunctionDef))
            for one in (node for node in body if isinstance(node, ast.ClassDef)):
                yield one.name
                yield from (f"{one.name}.{its.name}" for its in one.body if isinstance(its, ast.FunctionDef))
        else:
            yield from re.findall(r'TEST_CASE\(\s*"([^"]*)"', path.read_text())


def find_misfits(mutants):
    """A line for each mutant that does not fit the code, and for each filter that matches no test case."""
    cases = list(find_cases())
    for mutant in mutants:
        _, why = mutant.applied_to((SOURCE / mutant.file).read_text())
        if why:
            yield f"{mutant.name}: {why}"
        for test in mutant.tests:
            if test.filter and not any(fnmatch.fnmatchcase(case, test.filter) for case in cases):
                yield f"{mutant.name}: {test.name} has no case {test.filter}"
            if "," in test.filter:
                yield f"{mutant.name}: a comma ends doctest's filter {test.filter}"
