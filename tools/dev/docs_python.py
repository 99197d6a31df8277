#!/usr/bin/env python3
"""Writes the reference of the Python package with pdoc, from the docstrings of the built package.

pdoc reads signatures and docstrings of Python. nanobind writes a signature as the first line of a docstring, from where
it is taken here; and a class shows what it has from the extension as its own. Needs a Python that can import ps_shm and
pdoc; ps_shm.torch is left out where there is no PyTorch.

    tools/dev/docs_python.py FOLDER      writes HTML pages
    tools/dev/docs_python.py --check     prints public names and parameters that no docstring describes
"""
import builtins
import importlib
import inspect
import pathlib
import re
import sys
import textwrap

import pdoc
import ps_shm

SECTIONS = "Args|Raises|Attributes|Progress"
# The first line of a docstring that nanobind has made: of a function, or of a property.
SIGNATURE = re.compile(r"(?:\w+)?(\(.*\)(?: -> .*)?)(?:\n\n|$)")
MODULES = {}
for name in ("ps_shm", "ps_shm.checkpoint", "ps_shm.torch"):
    try:
        MODULES[name] = importlib.import_module(name)
    except ImportError as error:
        print(f"{name} is left out: {error}", file=sys.stderr)
CLASSES = "|".join(name for module in MODULES.values() for name in module.__all__ if name[0].isupper())
# A class of ps_shm, or something of one, in the page of another module.
OTHERS = re.compile(rf"<code>((?:{'|'.join(ps_shm.__all__)})(?:\.\w+)?)(?:\(\))?</code>(?!</a>)")


class Written(str):
    """A type as it is written in a signature, without quotes."""

    __repr__ = str.__str__


def described(module):
    """pdoc's description of a module, with what the extension defines."""
    module = pdoc.doc.Module(module)
    for member in module.members.values():
        if member.kind == "class":
            member.decorators = []
            for inner in list(member.members.values()):
                is_ours = inner.taken_from[0].startswith("ps_shm")
                if not is_ours or inner.name == "__init__" and not is_constructor(inner.obj):
                    del member.members[inner.name]
                    continue
                inner.taken_from = (member.modulename, inner.qualname)
                take_signature(inner)
        else:
            take_signature(member)
    return module


def is_constructor(function):
    """Whether programs construct objects by it."""
    return inspect.isfunction(function) or type(function).__name__ == "nb_method"


def take_signature(member):
    found = SIGNATURE.match(member.docstring)
    if member.name == "__init__" and not member.obj.__doc__:
        member.docstring = ""  # not that of a base class
    if not found:
        return
    text = re.sub(r"\b([a-z_]\w*\.)+(?=[A-Z])", "", found[1].replace("NoneType", "None"))  # types without packages
    made = {}
    exec(f"from __future__ import annotations\ndef of{text}: ...", vars(ps_shm) | {"ps_shm": ps_shm}, made)
    signature = inspect.signature(made["of"])
    returned = Written(signature.return_annotation)
    if member.kind == "function":
        parameters = [one if one.annotation is one.empty else one.replace(annotation=Written(one.annotation))
                      for one in signature.parameters.values()]
        member.signature = pdoc.doc._PrettySignature(parameters, return_annotation=returned)
    else:
        member.annotation = returned
    member.docstring = member.docstring[found.end():]


def sections(text):
    """{title: lines}: the text before the first section has the title ''."""
    found, title = {"": []}, ""
    for line in text.split("\n"):
        label = re.match(rf"({SECTIONS}):(?: (.*))?$", line)
        if label:
            title = label[1]
            found[title] = [label[2]] if label[2] else []
        else:
            found[title].append(line)
    return found


def entries(lines):
    """(names, text) of each `name: text` of a section; text that has no name is a paragraph."""
    found = []
    for line in lines:
        label = re.match(r" {4}(\w[\w, ]*): (.*)$", line)
        if label:
            found.append([label[1], label[2]])
        elif line.strip() and found and line.startswith("        "):
            found[-1][1] += " " + line.strip()
        elif line.strip():
            found.append([None, line.strip()])
    return found


def escaped(text):
    """Prose as Markdown; calls and classes of the package are code, so that pdoc links them."""
    parts = re.split(r"(`[^`]*`)", text)
    for i in range(0, len(parts), 2):
        text = re.sub(r"([\\*<>#\[])", r"\\\1", parts[i])
        parts[i] = re.sub(rf"(?<![\w.])(\w+\(\)|(?:{CLASSES})\b(?:\.\w+(?:\(\))?)?(?!\())", r"`\1`", text)
    return "".join(parts)


def listed(found, mark):
    return "\n".join(f"- {', '.join(mark + name + mark for name in names.split(', '))}: {escaped(text)}" if names
                     else f"\n{escaped(text)}\n" for names, text in found)


def prose(lines):
    """The paragraphs of a text: indented ones are code, and aligned ones stay as they are."""
    blocks = re.split(r"\n\n(?!    )|(?<!\n)\n\n(?=    )(?<=[^ ]\n\n)", "\n".join(lines).strip("\n"))
    for block in filter(None, blocks):
        first, *rest = block.split("\n")
        if block.startswith("    "):
            yield f"```python\n{textwrap.dedent(block)}\n```"
        elif re.search(r"\S {3,}\S", first):
            yield f"```text\n{block}\n```"
        elif rest and all(line.startswith("    ") for line in rest):
            yield escaped(first)
            yield listed(entries(rest), "`")
        else:
            yield escaped(block)


def markdown(text):
    parts = sections(text)
    blocks = list(prose(parts.pop("")))
    for title, lines in parts.items():
        blocks.append(f"**{title}:**" + (" " + escaped(" ".join(lines)) if title == "Progress" else ""))
        if title != "Progress":
            blocks.append(listed(entries(lines), "`" if title == "Raises" else "**"))
    return "\n\n".join(blocks)


def members(module):
    """(name, description, docstring of the class or '') of all that the module offers."""
    for name, member in module.members.items():
        if name != "__version__":
            yield name, member, ""
        for inner, one in member.members.items() if member.kind == "class" else ():
            if not inner.startswith("_") or inner == "__init__":
                yield f"{name}.{inner}", one, member.docstring


def faults(module):
    for name, member, around in members(module):
        place = f"{module.modulename}.{name}"
        text = member.docstring if not name.endswith(".__init__") else around
        if not text and not re.search(rf"\b{name.split('.')[-1]}\b", around):
            yield f"{place} has no docstring"
        elif member.kind == "function":
            for one in member.signature.parameters:
                if one not in ("self", "cls") and not re.search(rf"\b{one}\b", text):
                    yield f"{place}: the docstring does not describe the parameter {one}"
            if not re.search(r"\b[Rr]aises?\b", text + around):
                yield f"{place}: the docstring does not say what it raises"
            raised = [names for names, _ in entries(sections(text).get("Raises", [])) if names]
            for one in ", ".join(raised).split(", "):
                if one and not hasattr(builtins, one) and not hasattr(ps_shm, one):
                    yield f"{place} raises {one}, which does not exist"


def write(modules, folder):
    pdoc.render.configure(docformat="markdown", show_source=False, footer_text="ps-shm")
    for module in modules.values():
        for _, member, _ in [("", module, ""), *members(module)]:
            member.docstring = markdown(member.docstring)
    for name, module in modules.items():
        path = folder.joinpath(*name.split(".")).with_suffix(".html")
        path.parent.mkdir(parents=True, exist_ok=True)
        text = pdoc.render.html_module(module, modules)
        if name != "ps_shm":
            text = OTHERS.sub(lambda found: f'<a href="../ps_shm.html#{found[1]}">{found[0]}</a>', text)
        path.write_text(text)
    (folder / "index.html").write_text(pdoc.render.html_index(modules))
    (folder / "search.js").write_text(pdoc.render.search_index(modules))


def main():
    modules = {name: described(module) for name, module in MODULES.items()}
    if sys.argv[1] == "--check":
        found = [fault for module in modules.values() for fault in faults(module)]
        print("\n".join(found))
        return bool(found)
    write(modules, pathlib.Path(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
