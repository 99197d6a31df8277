"""No thread of a program lets an exception through, and no way of reading a file throws what its caller does not expect.

A thread is made by the few sources below, which pass exceptions on or report them. A stream buffer and the range loop over
a folder throw where the file or the folder vanishes while it is read, as those of /proc do.
"""
import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1])
THREADS = {  # what becomes of an exception there
    "tools/common/repeating.hpp": "it is reported",
    "tools/worker_shm/local_checkpoints.hpp": "it is reported",
    "tools/worker_shm/local_checkpoints.cpp": "it is reported",
    "src/train/data/prefetch_ring.hpp": "next() throws it",
    "python/binding/server.cpp": "wait() and close() throw it",
}
REFUSED = {
    r"\bstd::(jthread|thread|async|future)\b(?!::)": "makes a thread: use Repeating or PrefetchRing",
    r"\bistreambuf_iterator\b": "throws where reading fails: use getline, or read()",
    r"\bfor \((?:[^;:]|::)+ : .*directory_iterator\b": "throws where going on fails: use increment(error)",
}
faults = []
for folder in ("include", "src", "tools", "python/binding"):
    for path in sorted((source / folder).rglob("*")):
        name = str(path.relative_to(source))
        if path.suffix not in (".hpp", ".cpp"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for pattern, why in REFUSED.items():
                if re.search(pattern, line.split("//")[0]) and not (why.startswith("makes a thread") and name in THREADS):
                    faults.append(f"{name}:{number}: {line.strip()}\n    {why}")
print("\n".join(faults) or "no thread and no reading lets an exception through")
sys.exit(bool(faults))
