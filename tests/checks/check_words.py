"""The library's messages name settings, in backquotes; only the programs know options and their dashes. A setting of a job
has one name: that of its option is the one of its member in C++, with - for _, and Python and JSON derive theirs from it."""
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

MEMBERS = {"optimizer": "rule"}  # JobConfig::optimizer is a structure, whose member names the rule
settings = {
    option: member
    for name in ("job_settings.cpp", "optimizer_settings.cpp")
    for option, member in re.findall(r'\{"([a-z0-9-]+)",\s*\w+\(&\w+::(\w+)', (source / "src/config" / name).read_text())
}
if len(settings) < 25:
    sys.exit(f"found {len(settings)} settings only")
stray += [
    f"the setting {option} is {member} in C++"
    for option, member in settings.items()
    if member != MEMBERS.get(option, option.replace("-", "_"))
]
print("\n".join(stray) or f"no options in the library's messages, and one name of each of {len(settings)} settings")
sys.exit(bool(stray))
