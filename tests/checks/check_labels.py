"""Checks the labels of the protocols (docs/protocols.md): each is defined once and cited somewhere, comments cite only
defined labels, and every non-relaxed atomic operation names its pair on its line or the one above. The page's tables
name existing sources, models and tests."""
import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1])
PAGE = "docs/protocols.md"

LABEL = r"\b[a-z]+\.[A-Z]\d{1,2}\b"
BARE = r"(?<![\w./<-])[A-Z]\d{1,2}(?!\w|\.\w)"  # without the name of its protocol
# L1 and L2 are norms if no protocol is named.
NORMS, WITH_NORMS = ("L1", "L2"), re.compile("train|update|device|tools|include|kernels|rivals|config|sparse")

OPERATION = re.compile(
    r"(\.|->)(load_acquire|store_release|fetch_\w+_acq_rel|try_exchange_acq_rel)\(|"
    r"\bfence_(acquire|release|store_load)\(\)|memory_order_(acquire|release|acq_rel|seq_cst)|"
    r"__ATOMIC_(ACQUIRE|RELEASE|ACQ_REL|SEQ_CST)|!try_exchange_16\(|"
    r"\b(load_acquire|store_release)_system\(|\b__threadfence_system\(")
AS_COMMENT = (".py", ".txt")
MADE_OF = ("atomic.hpp", "system_memory.cuh")  # the building blocks of operations


def parse_page(lines):
    """The lines that define each label, and the labels in tables of pairs."""
    defined, paired, table = {}, set(), ""
    for number, line in enumerate(lines, 1):
        cells = [cell.strip() for cell in line.split("|")[1:-1]] if line.startswith("|") else []
        table = (table or cells[0]) if cells else ""
        found = re.match(rf"- \*\*({LABEL})", line) or (table == "label" and re.match(f"({LABEL})", cells[0]))
        if found:
            defined.setdefault(found[1], []).append(number)
        if table == "publishes":
            paired.update(re.findall(LABEL, cells[0] + " " + cells[2]))
    return defined, paired


def split(path, text):
    """The comment and the code of each line. In Python and texts everything counts as comment: mutants cite labels,
    too."""
    if path.suffix in AS_COMMENT:
        return [(line, "") for line in text.splitlines()]
    inside, lines = False, []
    for rest in text.splitlines():
        comment = code = ""
        while rest:
            if inside:
                part, end, rest = rest.partition("*/")
                comment, inside = comment + part, not end
                continue
            match = re.search(r'"(?:\\.|[^"\\])*"|//|/\*', rest)
            part, token, rest = (rest[:match.start()], match[0], rest[match.end():]) if match else (rest, "", "")
            code += part
            if token == "//":
                comment, rest = comment + rest, ""
            inside = token == "/*"
        lines.append((comment, code))
    return lines


faults, cited, operations = [], set(), 0
page = (source / PAGE).read_text().splitlines()
defined, paired = parse_page(page)
faults += [f"{PAGE}:{lines[1]}: {label} is defined twice, first in line {lines[0]}"
           for label, lines in defined.items() if len(lines) > 1]
for number, line in enumerate(page, 1):
    faults += [f"{PAGE}:{number}: {label} is not defined" for label in re.findall(LABEL, line) if label not in defined]
    faults += [f"{PAGE}:{number}: {bare} lacks its protocol, as in slot.V1" for bare in re.findall(BARE, line)]

# Tables of the page: the entries in backquotes in the columns of sources, models and tests.
tests = (source / "tests/meson.build").read_text()
THERE = {
    "sources": lambda name: (source / name).is_dir() or (source / "src" / name).is_dir()
    or any((source / "src").glob(name + ".?pp")),
    "model": lambda name: (source / "tests/models" / name).exists(),
    "tests beside the models": lambda name: re.search(rf"'({name}|{name.removeprefix('process_')})'", tests),
}
header = []
for number, line in enumerate(page, 1):
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    header = (header or cells) if cells else []
    faults += [f"{PAGE}:{number}: there is no {name}" for column, cell in zip(header, cells) if column in THERE
               for name in re.findall(r"`(\S+?)`", cell) if not THERE[column](name)]

for folder in ("src", "include", "kernels", "python", "tests", "benches", "tools"):
    for path in sorted((source / folder).rglob("*")):
        if path.suffix not in (".hpp", ".cpp", ".cu", ".cuh", ".pml", *AS_COMMENT) or path.name == pathlib.Path(__file__).name:
            continue
        where, above = path.relative_to(source), ""
        for number, (comment, code) in enumerate(split(path, path.read_text()), 1):
            labels = re.findall(LABEL, comment)
            cited.update(labels)
            faults += [f"{where}:{number}: {label} is not defined in {PAGE}" for label in labels if label not in defined]
            if path.suffix not in AS_COMMENT:
                faults += [f"{where}:{number}: {bare} lacks its protocol, as in slot.V1" for bare in re.findall(BARE, comment)
                           if bare not in NORMS or not WITH_NORMS.search(str(where))]
            if folder in ("src", "kernels") and path.name not in MADE_OF and OPERATION.search(code):
                operations += 1
                if not paired.intersection(re.findall(LABEL, above + " " + comment)):
                    faults.append(f"{where}:{number}: names no pair of {PAGE}: {code.strip()}")
            above = comment
faults += [f"{PAGE}:{lines[0]}: {label} is cited nowhere" for label, lines in defined.items() if label not in cited]
print("\n".join(faults) or f"{len(defined)} labels, {operations} operations, each with its pair")
sys.exit(bool(faults) or not operations)
