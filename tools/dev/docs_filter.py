#!/usr/bin/env python3
"""The filter in tools/dev/Doxyfile: prints a public header or a page as Doxygen expects it, line by line.

In a header, `//` comments become documentation: the first one that of the file, one before a declaration that of the
declaration and of the overloads directly below it, and one behind a member or an enumerator that of this one. If a line
declares several members, each gets its part of the comment, between `;`, or all of it if there are not as many parts.
`Throws:`, `Requires:` and `Progress:` become sections, and indented lines code. Private members are left out.

In a page, headings get the anchors that GitHub gives them, and links lead to the pages of the reference.

    tools/dev/docs_filter.py FILE
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXCEPTIONS = r"std::bad_alloc|Error|Interrupted|JobFinished|PublisherGone|Timeout"
COMMANDS = {"Throws": "@throws others", "Requires": "@pre", "Progress": "@progress", "Throws and Progress": "@both"}
# What members do whose comment may be left out.
MOVES = "Moves: takes over what the other object has, which cannot be used afterwards."
USUAL = {
    r"\w+\(\w+&&( other)?\).*": MOVES,
    r"\w+& operator=\(\w+&&( other)?\) = delete;": "Cannot be assigned to.",
    r"\w+& operator=\(\w+&&( other)?\).*": MOVES,
    r"(\w+& operator=|\w+)\(const \w+&\) = delete;": "Cannot be copied.",
    r"bool operator==\(const \w+&\) const = default;": "Compares all members.",
    r"(virtual )?~\w+\(\).*": "Destroys the object.",
}
# Names of classes that are words, too: prose does not link to them.
WORDS = re.compile(r"(`[^`]*`)|(?<![\w:])(Every|Event|Hooks?|Layout|Mode|Notice|Placement|Reduce|Slots)(?!\w|::|\()")
SEVERAL = re.compile(r"([\w:<>]+) (\w+(?: = [^,;(){}]+)?(?:, \w+(?: = [^,;(){}]+)?)+);$")


def section(text):
    """A paragraph, or that part of one that begins with a label."""
    text = WORDS.sub(lambda word: word[1] or f"%{word[2]}", text)
    label = re.match(f"({'|'.join(COMMANDS)}): *", text)
    if not label:
        return text
    text = text[label.end():]
    if label[1] != "Throws" or not re.match(rf"(?:{EXCEPTIONS})\b", text):
        return f"{COMMANDS[label[1]]} {text}"
    text = re.sub(rf";(\s)(?=(?:{EXCEPTIONS})\b)", r"\1@throws ", text)
    text = re.sub(r";(\s)(?:and )?(what(?:ever)?\s)", r"\1@throws others \2", text)
    return re.sub(r"(@throws [\w:]+)[.,;](?=\s|$)", r"\1", f"@throws {text}")


def as_code(found):
    kind = ".cpp" if re.search(r"[;{}](  .*)?$", found[1], re.MULTILINE) else ".unparsed"
    lines = "\n".join(line[2:] for line in found[1].split("\n"))
    return f"@code{{{kind}}}\n{lines}" + ("\n@endcode\n" if found[2] else " @endcode")


def documentation(lines):
    """The lines of a comment, without slashes, as Doxygen's: as many lines as before."""
    text = re.sub(r"^\n((?:(?:  .*)?\n)*?  .*)(\n\n(?!  )|\Z)", as_code, "\n".join(lines), flags=re.MULTILINE)
    parts = re.split(r"(@code.*?@endcode)", text, flags=re.DOTALL)
    for i in range(0, len(parts), 2):
        labelled = re.split(rf"^(?=(?:{'|'.join(COMMANDS)}):)", parts[i], flags=re.MULTILINE)
        parts[i] = "".join(map(section, labelled))
    return "".join(parts).split("\n")


def block(indent, lines):
    return "\n".join(f"{indent}{' *' if i else '/**'} {line}" for i, line in enumerate(lines)) + " */"


def in_line(lines):
    return f"/** {' '.join(line or '@para' for line in lines)} */"


def of_each(several, indent, lines):
    """One line that declares each of several members by itself, with its documentation."""
    members = several[2].split(", ")
    parts = " ".join(lines).split("; ")
    parts = parts if len(parts) == len(members) else [" ".join(lines)] * len(members)
    return indent + " ".join(f"{in_line([part])} {several[1]} {one};" for part, one in zip(parts, members))


def header(text):
    out, comment, is_private = [], [], False
    above = None  # of the function declared above: its name, documentation and indentation
    for line in text.split("\n"):
        code = line.strip()
        indent = line[:len(line) - len(line.lstrip())]
        if is_private or code == "private:":
            is_private = not line.startswith("}")
            out.append(line if not is_private else "")
            continue
        if code.startswith("//"):
            comment.append(code[3:])
            out.append(line)
            continue
        lines, trailing = None, re.match(r"([^/}].*?[\w;,})\"])\s+// (.*)$", code)
        if comment and code == "#pragma once":
            out[:] = block("", ["@about " + documentation(comment)[0], *documentation(comment)[1:]]).split("\n")
        elif trailing and not re.match(r"(class|struct) \w+;", code):  # not the declaration of a class
            code, lines = trailing[1], documentation([*comment[:-1], " ".join([*comment[-1:], trailing[2]])])
            line = indent + code
        elif comment and code:
            lines = documentation(comment)
        name = None if "std::function<" in code else re.search(r"([\w~]+|operator\W+)\(|#(define)", code)
        name = name and (name[1] or name[2])
        usual = [text for pattern, text in USUAL.items() if re.fullmatch(pattern, code)][:1]
        several = SEVERAL.match(code)
        if several and lines:
            line = of_each(several, indent, lines)
        elif not lines and usual:
            line = f"{indent}{in_line(usual)} {code}"
        elif not lines and name and above and above[0] == name and name != "define":  # an overload
            line = f"{indent}{in_line(above[1])} {code}"
        elif lines and name == "define":
            line = f"{code} {in_line(lines).replace('/**', '/**<')}"
        elif lines and not comment:
            line = f"{indent}{in_line(lines)} {code}"
        elif lines:
            out[len(out) - len(comment):] = block(indent, lines).split("\n")
        if name and not usual and lines:
            above = (name, lines, indent)
        elif above and not (name == above[0] or len(indent) > len(above[2]) or code == "}"):
            above = None  # neither an overload nor the rest of a declaration
        comment = []
        out.append(line)
    return "\n".join(out)


# What a page has otherwise than Doxygen wants it: code, links, and words that it takes for something else.
MARKS = re.compile(r"(?P<code>`[^`]*`)|(?P<image>!?)\[(?P<words>(?:[^][`]|`[^`]*`)*)\]\((?P<target>[^)\s]+)\)"
                   r"(?P<behind>[.,;:)]* ?)|<a id=\"(?P<anchor>[^\"]+)\"></a>|"
                   r"(?P<word>(?<![\w./-])(?:ps_shm\b|--(?=[a-z])))")


def slug(title):
    """The anchor that GitHub gives a heading."""
    title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).strip().lower()
    return re.sub(r"[^\w\- ]", "", title).replace(" ", "-")


def label_of(path):
    """Of the page that the file is in the reference; None if it is none."""
    name = path.relative_to(ROOT)
    is_page = name.suffix == ".md" and name.parent.as_posix() in (".", "docs", "examples", "benches", "src/device")
    return "page-" + re.sub("[^a-z]+", "-", str(name.with_suffix("")).lower()) if is_page and path.exists() else None


def page(path, text):
    taken = {}

    def heading(found):
        name = slug(found[2])
        taken[name] = taken.get(name, -1) + 1
        parts = [label_of(path), *([name] if found[1] != "#" else []), *([str(taken[name])] if taken[name] else [])]
        return f"{found[1]} {found[2]} {{#{'-'.join(parts)}}}"

    def altered(found):
        if found["word"]:  # neither a link to the namespace nor a dash
            return ("%" if found["word"] == "ps_shm" else "\\") + found["word"]
        if found["anchor"]:
            return f" @anchor {label_of(path)}-{found['anchor']} "
        if found["code"]:  # `a'b` would be a quotation
            return re.sub("^`(.*'.*)`$", r"``\1``", found["code"].replace("ps_shm", "%ps_shm"), flags=re.DOTALL)
        words, target, behind = found["words"], found["target"], found["behind"]
        if "\n" in words:  # Doxygen wants links in one line
            words, behind = words.replace("\n", " "), behind.rstrip() + "\n"
        file, _, anchor = target.partition("#")
        other = (path.parent / file).resolve() if file else path
        if re.match("[a-z]+:", target):
            return f"[{words}]({target}){behind}"
        if found["image"]:
            return f"![{words}]({other.name}){behind}"
        if label_of(other):
            words = words.replace("`", "")
            return f"[{words}](@ref {label_of(other)}{f'-{anchor}' if anchor else ''}){behind}"
        return f"{words} (`{other.relative_to(ROOT)}`){behind}"

    parts = re.split(r"^(```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    for i, part in enumerate(parts):
        if i % 2:  # fenced code: the first word is the language
            parts[i] = re.sub(r"^```(?:(sh|cpp|python|cmake|json|yaml)\b)?.*", lambda f: f"```{f[1] or ''}", part)
        else:
            part = re.sub(r"^(#+) +(.*)$", heading, part, flags=re.MULTILINE)
            parts[i] = MARKS.sub(altered, part)
    return "".join(parts)


def main():
    path = pathlib.Path(sys.argv[1]).resolve()
    print(header(path.read_text()) if path.suffix == ".hpp" else page(path, path.read_text()), end="")


if __name__ == "__main__":
    main()
