"""The library's messages name settings, in backquotes; only the programs know options and their dashes."""
import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1])
stray = [
    f"{path}:{number}: {line.strip()}"
    for folder in ("include", "src")
    for path in sorted((source / folder).rglob("*"))
    if path.suffix in (".hpp", ".cpp")
    for number, line in enumerate(path.read_text().splitlines(), 1)
    if re.search(r'"(?:[^"\\]|\\.)*--[a-z](?:[^"\\]|\\.)*"', line.split("//")[0])
]
print("\n".join(stray) or "no options in the library's messages")
sys.exit(bool(stray))
