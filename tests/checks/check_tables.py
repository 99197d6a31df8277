"""Code asks the tables of modes and of element types for their properties.

Any other comparison with one mode or one type would have to be found and changed for each new row.
"""
import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1])
TABLES = {  # the form of a comparison -> the files that may have it, and what to use instead
    r"[!=]=\s*(ps_shm::)?Mode::k|\bMode::k\w+\s*[!=]=|case (ps_shm::)?Mode::k": ("src/config/modes.hpp", "traits_of(mode)"),
    r"case (ps_shm::)?DType::k": ("src/update/dtypes.hpp", "find_dtype(dtype), with_element(dtype, body)"),
    r"case (ps_shm::)?UpdateRule::k": ("src/update/rule_table.hpp", "traits_of(rule), with_rule(rule, body)"),
}
faults, lines = [], 0
for folder in ("include", "src", "tools", "python/binding"):
    for path in sorted((source / folder).rglob("*")):
        if path.suffix not in (".hpp", ".cpp"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            lines += 1
            for pattern, (table, instead) in TABLES.items():
                if re.search(pattern, line.split("//")[0]) and path != source / table:
                    faults.append(f"{path}:{number}: {line.strip()}\n    ask {instead} ({table})")
print("\n".join(faults) or f"{lines} lines ask the tables")
sys.exit(bool(faults))
