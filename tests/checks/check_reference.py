"""The API reference is complete: every public name, parameter and exception is documented, and Doxygen has no warning.

Doxygen reads the headers and the pages with tools/dev/Doxyfile. It warns of links that lead nowhere. This test checks the
rest in its XML output:

  - A class, a function, a member and an enumerator has a comment (`///`), except for destructors, moves, and functions
    that the compiler defines.
  - The comment of a function, or of an overload, names each parameter, unless the parameter is named after its type,
    such as `const WorkerOptions& options`: the comment of the type describes it.
  - The comment of a function, of an overload if it has only `@overload`, or of its class, says what it throws
    (`@throws` or "Does not throw."), unless the function is noexcept.

Of the Python package tools/dev/docs_python.py checks the same, and writes the pages; where that Python has pdoc.

    tests/checks/check_reference.py ROOT [PYTHON PACKAGES]    PACKAGES: folder with the built package, for this Python
"""
import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

SKIPPED = 77
MEMBERS = {"function", "variable", "typedef", "enum", "define"}
OWNERS = {"class", "struct", "file", "namespace"}
THROWS = r"Throws, and progress guarantee|^Throws$|Does not throw"


def run_python(root, python, packages, *arguments):
    """What tools/dev/docs_python.py finds."""
    if subprocess.run([python, "-c", "import pdoc"], capture_output=True).returncode:
        print("without the Python package: there is no pdoc")
        return []
    done = subprocess.run([python, root / "tools" / "dev" / "docs_python.py", *arguments], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"})
    said = (done.stdout + done.stderr).splitlines()
    return said or [f"tools/dev/docs_python.py: exit code {done.returncode}"] if done.returncode else []


def run_doxygen(root, folder):
    """The warnings of Doxygen."""
    settings = [(root / "tools" / "dev" / "Doxyfile").read_text(), f"OUTPUT_DIRECTORY = {folder}", "GENERATE_XML = YES",
                "GENERATE_MAN = NO"]
    done = subprocess.run(["doxygen", "-"], input="\n".join(settings), cwd=root, capture_output=True, text=True)
    return done.stderr.splitlines() or ([f"doxygen: exit code {done.returncode}"] if done.returncode else [])


def text_of(element):
    parts = [element.find("briefdescription"), element.find("detaileddescription")]
    return " ".join("\n".join(part.itertext()) for part in parts if part is not None).strip()


def is_header(member):
    return member.find("location").get("file").endswith(".hpp")


def is_usual(member):
    """Whether it is a destructor, a move, or a function that the compiler defines."""
    name, arguments = member.findtext("name"), member.findtext("argsstring") or ""
    return name.startswith("~") or re.search(r"= ?(default|delete)$|^\(\w+ ?&& ?(other)?\)", arguments)


def is_named_after_its_type(name, kind):
    last = re.findall(r"\w+", re.sub("<.*|(const|noexcept)", "", kind))[-1]
    return last.lower().endswith(name.replace("_", ""))


def faults_of(member, owner, text_of_overloads):
    if not text_of(member) and not is_usual(member):
        yield "has no comment"
    for value in member.iter("enumvalue"):
        if not text_of(value):
            yield f"{value.findtext('name')} has no comment"
    if member.get("kind") != "function" or is_usual(member):
        return
    for parameter in member.iter("param"):
        name, kind = parameter.findtext("declname"), "".join(parameter.find("type").itertext())
        if name and not re.search(rf"\b{name}\b", text_of_overloads) and not is_named_after_its_type(name, kind):
            yield f"the comment does not name the parameter {name}"
    said = text_of_overloads if "overloaded" in text_of(member) else text_of(member)
    if "noexcept" not in member.findtext("argsstring") and not re.search(THROWS, said + "\n" + text_of(owner), re.M):
        yield "the comment does not say what it throws, and it is not noexcept"


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    if not shutil.which("doxygen"):
        print("skipped: there is no doxygen")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        faults = []
        if len(sys.argv) > 2:
            faults += run_python(root, *sys.argv[2:], "--check") + run_python(root, *sys.argv[2:], folder)
        faults += run_doxygen(root, folder)
        owners = [owner for path in pathlib.Path(folder, "xml").glob("*.xml")
                  for owner in ElementTree.parse(path).iter("compounddef")]
    members, texts = {}, collections.defaultdict(str)
    for owner in owners:
        if owner.get("kind") in OWNERS and is_header(owner) and not text_of(owner):
            faults.append(f"include/{owner.find('location').get('file')}: {owner.findtext('compoundname')} has no comment")
        for member in owner.iter("memberdef"):
            if member.get("kind") in MEMBERS and member.get("prot") == "public" and is_header(member):
                name = member.findtext("qualifiedname") or member.findtext("name")
                if member.get("id") not in members:
                    texts[name] += text_of(member)
                members[member.get("id")] = (name, member, owner)
    for name, member, owner in members.values():
        place = member.find("location")
        where = f"include/{place.get('file')}:{place.get('line')}: {name}{member.findtext('argsstring') or ''}"
        faults += [f"{where}: {fault}" for fault in faults_of(member, owner, texts[name])]
    if len(members) < 680:
        faults.append(f"only {len(members)} names were seen")
    print("\n".join(sorted(set(faults))) or f"{len(members)} public names are documented")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
