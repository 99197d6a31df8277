#!/usr/bin/env python3
"""Writes the reference of the Python package for Doxygen, from the docstrings of the built package.

For each public module there is a file of FOLDER/python with its classes and functions, without code, and the docstrings
as comments of Doxygen. Needs a Python that can import ps_shm; ps_shm.torch is left out where there is no PyTorch.

    tools/dev/docs_python.py FOLDER      writes the files
    tools/dev/docs_python.py --check     prints public names and parameters that no docstring describes
"""
import ast
import builtins
import importlib
import inspect
import pathlib
import re
import sys
import textwrap

import ps_shm

MODULES = ("ps_shm", "ps_shm.checkpoint", "ps_shm.torch")


def modules():
    for name in MODULES:
        try:
            yield importlib.import_module(name)
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)


def signature_of(name, function):
    """As in a definition, without the packages of types."""
    function = inspect.unwrap(function)  # as `closed_at_exit` wraps constructors
    if inspect.isfunction(function):
        text = name + str(inspect.signature(function))
    else:  # nanobind's, which begins its docstring with it
        text = inspect.getdoc(function).split("\n")[0]
    text = text.replace("NoneType", "None")
    return re.sub(r"\b([a-z_]\w*\.)+(?=[A-Z])", "", text)


def doc_of(name, thing):
    text = inspect.getdoc(thing) or ""
    if text.startswith(f"{name}("):
        text = text.partition("\n\n")[2]
    return text


def escaped(text):
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if i % 2 else re.sub(r"([@\\<>#%*])", r"\\\1", part) for i, part in enumerate(parts))


def sections(text):
    """{title: lines}: the text before the first section has the title ''."""
    found, title = {"": []}, ""
    for line in text.split("\n"):
        label = re.match(r"(Args|Raises|Attributes|Progress):(?: (.*))?$", line)
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


def prose(lines):
    """The paragraphs of a text: indented ones are code, and aligned ones stay as they are."""
    blocks = re.split(r"\n\n(?!    )|(?<!\n)\n\n(?=    )(?<=[^ ]\n\n)", "\n".join(lines).strip("\n"))
    for block in filter(None, blocks):
        first, *rest = block.split("\n")
        if block.startswith("    "):
            yield f"@code{{.py}}\n{textwrap.dedent(block)}\n@endcode"
        elif re.search(r"\S {3,}\S", first):
            yield f"@code{{.unparsed}}\n{block}\n@endcode"
        elif rest and all(line.startswith("    ") for line in rest):
            yield escaped(first)
            yield "\n".join(f"- {name}: {escaped(text)}" for name, text in entries(rest))
        else:
            yield escaped(block)


def details(parts, arguments, keyword):
    keywords = []
    for names, text in entries(parts.get("Args", [])):
        if not names:
            yield escaped(text)
        elif set(names.split(", ")) <= arguments:
            yield f"@param {names.replace(', ', ',')} {escaped(text)}"
        else:
            keywords.append(f"  - `{names}`: {escaped(text)}")
    if keywords:
        yield "\n".join([f"@param {keyword} by name:", *keywords])
    for names, text in entries(parts.get("Raises", [])):
        yield from (f"@throws {name} {escaped(text)}" for name in names.split(", ")) if names else [escaped(text)]
    if "Progress" in parts:
        yield "@progress " + escaped(" ".join(parts["Progress"]))


def comment(indent, blocks):
    lines = "\n\n".join(blocks).split("\n")
    return "".join(f"{indent}{'##' if i == 0 else '#'} {line}".rstrip() + "\n" for i, line in enumerate(lines))


def function(indent, name, text, parts):
    """A function without types, which its comment shows as Python writes them."""
    definition = ast.parse(f"def {text}: ...").body[0]
    definition.returns = None
    definition.args.args += definition.args.kwonlyargs  # Doxygen knows no `*` between them
    definition.args.defaults += definition.args.kw_defaults
    definition.args.kwonlyargs, definition.args.kw_defaults = [], []
    arguments = [one for one in ast.walk(definition) if isinstance(one, ast.arg)]
    for one in arguments:
        one.annotation = None
    keyword = definition.args.kwarg and definition.args.kwarg.arg
    first, *rest = prose(parts[""])
    rest += details(parts, {one.arg for one in arguments}, keyword)
    lines = comment(indent, [first, f"@code{{.py}}\n{text}\n@endcode", *rest])
    return f"{lines}{indent}{ast.unparse(definition).splitlines()[0]}\n{indent}    pass\n\n"


def members(kind):
    """(name, attribute) of what the package itself defines in a class and its bases."""
    for name in sorted(dir(kind)):
        owner = next((base for base in kind.__mro__ if name in base.__dict__), object)
        if not name.startswith("_") and owner.__module__.startswith("ps_shm"):
            found = inspect.getattr_static(kind, name)
            yield name, found.__func__ if isinstance(found, classmethod) else found


def constructor(kind):
    """Its signature; None if programs do not construct objects of this class."""
    function = next(base.__dict__["__init__"] for base in kind.__mro__ if "__init__" in base.__dict__)
    is_python = inspect.isfunction(function) and function.__module__.startswith("ps_shm")
    if is_python or type(function).__name__ == "nb_method":
        return signature_of("__init__", function)
    return None


def class_text(name, kind):
    parts = sections(doc_of(name, kind))
    text = comment("", prose(parts[""])) + f"class {name}:\n"
    if constructor(kind):
        text += function("    ", "__init__", constructor(kind), {**parts, "": [f"Creates the object: {name}(...)."]})
    for attribute, description in entries(parts.get("Attributes", [])):
        text += comment("    ", [escaped(description)]) + f"    {attribute} = property()\n\n"
    for attribute, value in members(kind):
        inner = sections(doc_of(attribute, value))
        if callable(value):
            text += function("    ", attribute, signature_of(attribute, value), inner)
        elif isinstance(value, property):
            text += comment("    ", prose(inner[""])) + f"    {attribute} = property()\n\n"
    return text + "    pass\n\n"


def module_text(module):
    text = comment("", [f"@package python.{module.__name__}", *prose(sections(inspect.getdoc(module))[""])]) + "\n"
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing):
            text += class_text(name, thing)
        elif inspect.isroutine(thing):
            text += function("", name, signature_of(name, thing), sections(doc_of(name, thing)))
    return text


def public(module):
    """(name, signature or None, docstring, docstring of the class or '') of all that the module offers."""
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing):
            text = doc_of(name, thing)
            yield name, constructor(thing), text, ""
            for inner, attribute in members(thing):
                if callable(attribute):
                    yield f"{name}.{inner}", signature_of(inner, attribute), doc_of(inner, attribute), text
                elif isinstance(attribute, property):
                    yield f"{name}.{inner}", None, doc_of(inner, attribute), text
                else:  # a value, which has no docstring of its own
                    yield f"{name}.{inner}", None, re.search(rf"\b{inner}\b", text), text
        elif inspect.isroutine(thing):
            yield name, signature_of(name, thing), doc_of(name, thing), ""
        elif inspect.ismodule(thing):
            yield name, None, inspect.getdoc(thing), ""


def faults():
    for module in modules():
        for name, signature, text, around in public(module):
            place = f"{module.__name__}.{name}"
            if not text:
                yield f"{place} has no docstring"
            elif signature:
                definition = ast.parse(f"def {signature}: ...")
                for one in [node.arg for node in ast.walk(definition) if isinstance(node, ast.arg)]:
                    if one not in ("self", "cls") and not re.search(rf"\b{one}\b", text):
                        yield f"{place}: the docstring does not describe the parameter {one}"
                if not re.search(r"\b[Rr]aises?\b", text + around):
                    yield f"{place}: the docstring does not say what it raises"
                raised = [names for names, _ in entries(sections(text).get("Raises", [])) if names]
                for one in ", ".join(raised).split(", "):
                    if one and not hasattr(builtins, one) and not hasattr(ps_shm, one):
                        yield f"{place} raises {one}, which does not exist"


def main():
    if sys.argv[1] == "--check":
        found = list(faults())
        print("\n".join(found))
        return bool(found)
    folder = pathlib.Path(sys.argv[1], "python")
    for module in modules():
        path = folder.joinpath(*module.__name__.split(".")) / "__init__.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(module_text(module))
    text = comment("", ["@package python", "The Python package: what `import ps_shm` gives."])
    (folder / "__init__.py").write_text(text)


if __name__ == "__main__":
    sys.exit(main())
