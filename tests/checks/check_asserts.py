"""The library has no assert, so benches/instructions counts the same whether asserts are enabled or not. Instead, every
structure of the segments is in the fingerprint, field by field, with static asserts that its fields leave no gap."""
import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1])
stray = [
    f"{path}:{number}: {line.strip()}"
    for folder in ("include", "src/shm", "src/update", "src/inspection", "src/server", "src/worker", "src/device")
    for path in sorted((source / folder).rglob("*"))
    if path.suffix in (".hpp", ".cpp")
    for number, line in enumerate(path.read_text().splitlines(), 1)
    if re.search(r"<cassert>|<assert.h>|\bassert\(|NDEBUG", line)
]

layout = "".join((source / "src/shm/segment" / name).read_text() for name in ("layout.hpp", "bundle_layout.hpp", "table_layout.hpp"))
structures = re.findall(r"^struct (?:alignas\(\w+\) )?(\w+Shm) \{", layout, re.MULTILINE)
mixed = re.findall(r"\w+Shm", re.search(r"mix_fields<(.*?)>", (source / "src/shm/segment/layout_fields.hpp").read_text(), re.S)[1])
stray += [f"{name} is not in the fingerprint (layout_fields.hpp)" for name in structures if name not in mixed]

print("\n".join(stray) or f"no asserts; {len(structures)} structures in the fingerprint")
sys.exit(bool(stray) or not structures)
