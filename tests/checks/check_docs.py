#!/usr/bin/env python3
"""Checks the documentation (README.md and similar files, docs/*.md) against the repository.

  - A relative link leads to a file of the repository, and its anchor to a heading of that file.
  - Every page can be reached from the README by links. The README has at most 120 lines, the benchmarks 150, and the
    pages of docs/ have at most 6000 together, without the protocols.
  - Each page of docs/ says under its title for whom it is and what to read before: "*For ... before.*"
  - Each module (MODULES) has a README of at most 20 lines, and the files that it names exist.
  - A path in backticks exists, such as `src/shm/segment/layout.hpp` or `tools/run --workers 2`.
  - A cell of a table has at most one figure. A line has at most 120 columns, except rows of tables;
    so has one of a public header.
  - A page has no more long sentences than LONG_SENTENCES says.
  - Private words for which the field has a term (GLOSSARY) are not used, nor in public headers and --help.

    tests/checks/check_docs.py ROOT
"""
import pathlib
import re
import sys

MODULE_LINES = 20
MOST_LINES = {"README.md": 120, "docs/benchmarks.md": 150}
MODULES = [
    "benches", "kernels", "python", "src", "src/config", "src/device", "src/hooks", "src/inspection", "src/persistence",
    "src/publish", "src/record", "src/shm", "src/update", "src/worker", "tests", "tests/checks", "tests/faults",
    "tests/models", "tests/mutants", "tests/scenes", "tests/support", "tools", "tools/cli", "tools/dev", "tools/inspect_shm",
    "tools/launch_shm", "tools/train", "tools/worker_shm",
]
PAGE_LINES = 6000  # of docs/*.md, without protocols.md
INDEX = "README.md"
MOST_COLUMNS = 120
MOST_WORDS = 35
# How many sentences of each page are longer than that. The numbers may only fall.
LONG_SENTENCES = {
    "CHANGELOG.md": 1,
    "CONTRIBUTING.md": 1,
    "docs/architecture.md": 1,
    "docs/options.md": 5,
    "docs/protocols.md": 22,
}
FOLDERS = "src|include|tests|tools|benches|kernels|docs"
# Two figures with something between them, alone in a cell: "97.78 / 1.88", "0.00, 0", "85.0 (84.9 to 85.1)".
FIGURE = r"[-+]?\d[\d.]*(?:e[-+]?\d+)?[kMG%]?"
TWO_FIGURES = re.compile(rf"^\W*{FIGURE}(?:\s*(?:/|,|to|\(|\))\s*{FIGURE}\W*)+$")


# Words that are rejected, and their replacements.
GLOSSARY = {
    r"past (the|its) (update )?rule": "bypassing the optimizer",
    r"made-up": "synthetic",
    r"settle\w*|heirs?": "recover, successor",
    r"meetings?": "user barrier",
    r"whoever": "the process or the user that",
    r"tapes?|lanes?": "recorder; free list",
    r"spares?": "free buffers",
    r"looked_at|fuzzy": "sampled; not point-in-time",
    r"live settings": "runtime settings",
    r"beg[iau]ns? anew": "is reset, starts from scratch",
    r"strangers?": "other users",
    r"(is )?no whole number": "is not an integer",
    r"the least loss": "the lowest loss",
    r"for people(?! who)": "diagnostic only",
}


OTHERS = ("benches/measurements.md", "src/device/transfers.md")  # pages that stand beside the code


def pages(root):
    return [*sorted(root.glob("*.md")), *sorted((root / "docs").glob("*.md")), *(root / name for name in OTHERS)]


def without_code(text):
    """Replaces fenced blocks by empty lines, so that line numbers do not change."""
    lines, fence = [], None
    for line in text.splitlines():
        mark = re.match(r"\s*(```+|~~~+)", line)
        if fence is None and mark:
            fence = mark[1]
            lines.append("")
        elif fence is not None:
            if line.strip() == fence:
                fence = None
            lines.append("")
        else:
            lines.append(line)
    return lines


def anchors(text):
    """The anchors that GitHub derives from headings, and those that are written out."""
    found = dict.fromkeys(re.findall(r'<a id="([^"]+)"></a>', text), 1)
    for line in without_code(text):
        heading = re.match(r"#+\s+(.*)", line)
        if heading:
            title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
            slug = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
            count = found.get(slug, 0)
            found[slug] = count + 1
            if count:
                found[f"{slug}-{count}"] = 1
    return set(found)


def links(text):
    """Yields (line number, target)."""
    for number, line in enumerate(without_code(text), 1):
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "`code`", line)):
            yield number, target


def check_links(root, page, text):
    for number, target in links(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.exists():
            yield number, f"there is no {target}"
        elif anchor and other.suffix == ".md" and anchor not in anchors(other.read_text()):
            yield number, f"{path or page.name} has no heading #{anchor}"


def unreachable(root):
    seen, todo = set(), [root / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen:
            continue
        seen.add(page)
        for _, target in links(page.read_text()):
            path = target.partition("#")[0]
            other = (page.parent / path).resolve()
            if path.endswith(".md") and not re.match(r"[a-z]+:", path) and other.exists():
                todo.append(other)
    return [page for page in pages(root) if page.resolve() not in {one.resolve() for one in seen}]


def check_paths(root, text):
    for number, line in enumerate(without_code(text), 1):
        for code in re.findall(r"`([^`]+)`", line):
            path = re.match(rf"(?:{FOLDERS})/[\w./*+-]*", code)
            if path and not any(root.glob(path[0].rstrip("/").rstrip("."))):
                yield number, f"there is no {path[0]}"


def check_tables(text):
    for number, line in enumerate(without_code(text), 1):
        if line.startswith("|"):
            for cell in line.strip().strip("|").split("|"):
                if TWO_FIGURES.match(cell.strip()):
                    yield number, f"two figures in one cell: {cell.strip()}"


def check_glossary(text):
    for number, line in enumerate(text.splitlines(), 1):
        for word, instead in GLOSSARY.items():
            found = re.search(rf"\b({word})\b", line, re.IGNORECASE)
            if found:
                yield number, f"'{found[0]}': write {instead}"


def check_files(root, page, text):
    """The files and folders that a module's README names, from its own folder or from the root."""
    for number, line in enumerate(text.splitlines(), 1):
        for name in re.findall(r"`([\w./]+(?:/|\.\w+))`", line):
            if not (page.parent / name).exists() and not (root / name).exists():
                yield number, f"there is no {name}"


def check_audience(text):
    """Under the title, a paragraph in italics says who should read the page, and what before."""
    paragraph = text.split("\n\n")[1] if text.count("\n\n") else ""
    if not re.fullmatch(r"\*For .*\bbefore\b.*\*", paragraph.strip(), re.S):
        yield 3, 'say under the title for whom the page is and what to read before: "*For ... before.*"'


def check_lines(text):
    """No line is longer than MOST_COLUMNS, except rows of tables, images, and what has no blank to break it at."""
    for number, line in enumerate(text.splitlines(), 1):
        is_breakable = " " in line.strip() and not line.startswith(("|", "![")) and "](https://" not in line
        if len(line) > MOST_COLUMNS and is_breakable:
            yield number, f"{len(line)} characters; at most {MOST_COLUMNS}"


def sentences(text):
    """Yields where each sentence of paragraphs, items of lists and cells of tables begins, and its words."""
    part, begin = "", 0
    for number, line in enumerate([*without_code(text), ""], 1):
        line = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", line))
        is_new = not line.strip() or re.match(r"\s*([-*|#]|\d+\.) ", line)
        if is_new and part:
            cells = part.strip().strip("|").split(" | ") if part.startswith("|") else [part]
            for cell in cells:
                yield from ((begin, one.split()) for one in re.split(r"(?<=[.?!])[)*]*\s+", cell) if one.strip())
            part = ""
        begin, part = (begin, f"{part} {line.strip()}") if part else (number, line.strip())


def check_sentences(name, text):
    """A page has as many long sentences as LONG_SENTENCES says, or fewer, and then the number there falls."""
    long = [begin for begin, words in sentences(text) if len(words) > MOST_WORDS]
    allowed = LONG_SENTENCES.get(name, 0)
    if len(long) > allowed:
        where = ", ".join(map(str, long))
        yield long[-1], f"{len(long)} sentences of more than {MOST_WORDS} words, {allowed} allowed; in lines {where}"
    elif len(long) < allowed:
        yield 1, f"{len(long)} sentences of more than {MOST_WORDS} words: write so in LONG_SENTENCES, it may only fall"


def too_long(root):
    counted = [page for page in (root / "docs").glob("*.md") if page.name != "protocols.md"]
    lines = sum(len(page.read_text().splitlines()) for page in counted)
    if lines > PAGE_LINES:
        yield f"docs: {lines} lines without protocols.md; at most {PAGE_LINES}, so say each thing once, and link it"


def complaints(root):
    readmes = [root / module / "README.md" for module in MODULES]
    for missing in (page for page in readmes if not page.is_file()):
        yield f"{missing.relative_to(root)}: a module begins with a README of at most {MODULE_LINES} lines"
    readmes = [page for page in readmes if page.is_file()]
    for page in [*pages(root), *readmes]:
        text = page.read_text()
        name = str(page.relative_to(root))
        checks = [check_links(root, page, text), check_paths(root, text), check_tables(text), check_lines(text),
                  check_sentences(name, text)]
        if page in readmes:
            checks.append(check_files(root, page, text))
            if (lines := len(text.splitlines())) > MODULE_LINES:
                yield f"{name}: {lines} lines; at most {MODULE_LINES}"
        for number, what in (found for check in checks for found in check):
            yield f"{name}:{number}: {what}"
    spoken = [*pages(root), *readmes, *sorted((root / "include").rglob("*.hpp")), *sorted((root / "docs").glob("help*.txt"))]
    for page in sorted((root / "include").rglob("*.hpp")):
        yield from (f"{page.relative_to(root)}:{number}: {what}" for number, what in check_lines(page.read_text()))
    for page in spoken:
        for number, what in check_glossary("\n".join(without_code(page.read_text()))):
            yield f"{page.relative_to(root)}:{number}: {what}"
    for name, most in MOST_LINES.items():
        if (lines := len((root / name).read_text().splitlines())) > most:
            yield f"{name}: {lines} lines; at most {most}: write it on another page, and link that"
    for page in sorted((root / "docs").glob("*.md")):
        if page.name != INDEX:
            for number, what in check_audience(page.read_text()):
                yield f"{page.relative_to(root)}:{number}: {what}"
    yield from too_long(root)
    for page in unreachable(root):
        yield f"{page.relative_to(root)}: no link leads there from the README"


def main():
    found = list(complaints(pathlib.Path(sys.argv[1]).resolve()))
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
