"""No thread of a program lets an exception escape, and no way of reading a file throws an exception that its caller
does not expect.

Threads are started only in the few sources listed below, which forward exceptions or report them. A stream buffer and
the range loop over a folder throw if the file or the folder vanishes while it is read, as those in /proc do.
"""
import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1])
THREADS = {  # how each handles an exception
    "tools/common/repeating.hpp": "it is reported",
    "tools/worker_shm/local_checkpoints.hpp": "it is reported",
    "tools/worker_shm/local_checkpoints.cpp": "it is reported",
    "tools/worker_shm/several_workers.cpp": "run_several() throws it",
    "tools/train/data/prefetch_ring.hpp": "next() throws it",
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
