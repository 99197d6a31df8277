"""Atomics and memory orders appear in one module only, src/shm."""
import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1])
stray = [
    f"{path}:{number}: {line.strip()}"
    for folder in ("include", "src", "tools", "kernels")
    for path in sorted((source / folder).rglob("*"))
    if path.suffix in (".hpp", ".cpp", ".cu", ".cuh") and source / "src" / "shm" not in path.parents
    for number, line in enumerate(path.read_text().splitlines(), 1)
    if re.search(r"<atomic>|memory_order|std::atomic|__atomic_|__sync_", line)
]
print("\n".join(stray) or "no stray atomics")
sys.exit(bool(stray))
