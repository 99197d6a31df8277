"""Each public function of each handle is called in a forked child, at least as often as it has overloads:
tests/worker/test_forked_handles.cpp has these calls.
"""
import collections
import pathlib
import re
import sys

TESTS = "tests/worker/test_forked_handles.cpp"
HANDLES = {  # class -> how a call there begins
    "FolderPublisher": r"folder->",
    "FolderPublisher::Writing": r"file->",
    "Generation": r"held->",
    "GenerationWriting": r"(?:writing|file)->",
    "JobControl": r"control->",
    "JobView": r"(?:view->|JobView::)",
    "Publisher": r"publisher->",
    "Publisher::Writing": r"writing->",
    "Server": r"server->",
    "Snapshot": r"of_(?:worker|view)->",
    "Subscriber": r"subscriber->",
    "Table": r"job\.table\.",
    "Variable": r"rows\.",
    "Worker": r"(?:worker|guest)->",
}
APART = {  # class -> why it is not there
    "Checkpoint": "reads files",
    "Error": "an exception",
    "GpuLink": "CUDA cannot be used in a forked child",
    "GpuRows": "as GpuLink",
    "GpuTable": "as GpuLink",
    "Hook": "does nothing by itself",
    "Publisher::SliceOutput": "exists only within a call of publish_slices()",
    "StepLoop": "calls a Worker",
}


def end_of_braces(text, begin):
    depth = 0
    for at in range(begin, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return at + 1
    sys.exit("braces that do not match")


def functions_of(body, name):
    """(class, function) for each public member function of a class, and of the classes within it."""
    access, statement, at, parentheses = "private", "", 0, 0
    while at < len(body):
        letter = body[at]
        at += 1
        parentheses += (letter == "(") - (letter == ")")
        if letter not in ";{" or parentheses != 0:
            statement += letter
            continue
        while label := re.match(r"\s*(public|private|protected)\s*:(?!:)", statement):
            access, statement = label[1], statement[label.end():]
        inner = re.search(r"\b(class|struct|union|enum)\b[^()]*?(\w+)(?:\s+final)?\s*(?::[^()]*)?$", statement)
        if letter == "{":
            end = end_of_braces(body, at - 1)
            if inner and inner[1] == "class" and access == "public":
                yield from functions_of(body[at:end - 1], f"{name}::{inner[2]}")
            at = end
        function = re.search(r"(~?\w+|\boperator\b[^(]*)\s*\(", statement)
        is_other = inner or re.search(r"\b(using|friend|operator)\b", statement)
        if function and access == "public" and not is_other and function[1].lstrip("~") != name.split("::")[-1]:
            yield name, function[1]
        statement = ""


def handles_in(header):
    text = re.sub(r"//[^\n]*", "", header)
    for found in re.finditer(r"^class (?:PS_SHM_\w+ )?(\w+)[^;{]*\{", text, re.MULTILINE):
        end = end_of_braces(text, found.end() - 1)
        yield from functions_of(text[found.end():end - 1], found[1])


source = pathlib.Path(sys.argv[1])
wanted = collections.Counter(one for path in sorted((source / "include/ps_shm").glob("*.hpp"))
                             for one in handles_in(path.read_text()))
tests = (source / TESTS).read_text()
calls = [tests[found.end() - 1:end_of_braces(tests, found.end() - 1)]
         for found in re.finditer(r"^ +\[&\] \{", tests, re.MULTILINE)]
faults = [f"{name} is in no header of include/ps_shm, or has no public function: take it off the lists"
          for name in sorted((HANDLES.keys() | APART.keys()) - {name for name, _ in wanted})]
for (name, function), overloads in sorted(wanted.items()):
    if name in APART:
        continue
    if name not in HANDLES:
        faults.append(f"{name}::{function}: call it in {TESTS}, and say in check_forks.py how its calls begin")
        continue
    count = sum(len(re.findall(rf"\b{HANDLES[name]}{function}(?:<[^()]*>)?\(", call)) for call in calls)
    if count < overloads:
        faults.append(f"{name}::{function} has {overloads} overloads, of which {TESTS} calls {count} in a forked child")
called = sum(count for (name, _), count in wanted.items() if name in HANDLES)
print("\n".join(faults) or f"{called} functions of {len(HANDLES)} handles are called in a forked child")
sys.exit(bool(faults))
