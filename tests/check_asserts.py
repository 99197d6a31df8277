"""The library has no assert: benches/instructions counts the same whether asserts are on or off."""
import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1])
stray = [
    f"{path}:{number}: {line.strip()}"
    for folder in ("include", "src/shm", "src/update", "src/view", "src/server", "src/worker", "src/device")
    for path in sorted((source / folder).rglob("*"))
    if path.suffix in (".hpp", ".cpp")
    for number, line in enumerate(path.read_text().splitlines(), 1)
    if re.search(r"<cassert>|<assert.h>|\bassert\(|NDEBUG", line)
]
print("\n".join(stray) or "no asserts")
sys.exit(bool(stray))
