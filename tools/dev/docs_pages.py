#!/usr/bin/env python3
"""The filter in tools/dev/Doxyfile: prints a page as Doxygen expects it, line by line.

Headings get the anchors that GitHub gives them, and links lead to the pages of the reference.

    tools/dev/docs_pages.py FILE
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
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
    print(page(path, path.read_text()), end="")


if __name__ == "__main__":
    main()
