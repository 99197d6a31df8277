"""There is a fault point between every two stores of a protocol, and every point of the list occurs in the sources."""
import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1])

# Effects that others can observe: a published word, a lock byte, a name, the size of a file.
STORE = re.compile(r"store_release\(|try_exchange_acq_rel\(|fetch_(add|or|and)_acq_rel\(|futex_(announce|mark)\(|"
                   r"\.(try_take|release|try_take_all|release_all|link|publish|grow|make_record)\(|(?<!void )(?<!> )unlink_(segment|parts)\(|"
                   r"FreeBuffers::(won|lost)\(|free_buffers\.begin\(")
# Data for such a store: a run of them counts as one store.
PLAIN = re.compile(r"store_relaxed\(|racing_update\(|write_config\(")
POINT = re.compile(r"fault_point\((?:shm::)?FaultPoint::(k\w+)\)")

# Adjacent stores that are intended: function -> why a death between them needs no point.
WITHOUT = {
    "FreeBuffers::won": "one store",
    "FreeBuffers::lost": "one store",
    "keep_segments": "one store",
    "wait_until_open": "what the inspector shows: for people",
    "entry_": "what the inspector shows: for people",
    "WaitMark::~WaitMark": "what the inspector shows: for people",
    "futex_announce": "a wake that is missing: every wait looks again (waiting.W2)",
    "create_own": "publishing comes before the name: nobody can see either",
    "create_shard": "publishing comes before the name: nobody can see either",
    "leave": "three wakes, each of which may be missing (waiting.W2)",
    "try_change_live": "three wakes, each of which may be missing (waiting.W2)",
    "end": "three wakes, each of which may be missing (waiting.W2)",
    "enter": "the last wake may be missing (waiting.W2)",
    "JobSegments::try_add_task": "letting go of a byte of a job that is gone",
    "try_join": "letting go of a byte of a job that is gone",
    "remove_job": "letting go of all bytes: the kernel does the same at a death",
    "remove_bundle": "letting go of all bytes: the kernel does the same at a death",
    "open_bundle": "the byte is of what was found, the name of what was made where nothing was",
    "Publisher::~Publisher": "the wake may be missing (waiting.W2)",
    "recover_jointly": "letting go of bytes: the kernel does the same at a death",
    "create": "giving up: the kernel lets go of the bytes at a death",
    "try_load": "letting go of the byte: the kernel does the same at a death",
    "step": "the last wake may be missing (waiting.W2)",
    "wait_until_open": "what the inspector shows: for people",
    "BridgeState::take_or_make": "publishing comes before the name: nobody can see either",
    "BridgeState::try_take_found": "letting go of the byte: the kernel does the same at a death",
    "try_push_in_place": "tests/faults/test_single_writer_deaths.cpp kills a pusher before each of its stores",
    "complete": "the same test kills a pusher, and its successor, before each of its stores",
    "begin_once": "tests/faults/test_guests.cpp kills a guest before each of its stores",
    "wait_initialised": "the claim is followed by initialise()",
    "initialise": "the last wake may be missing (waiting.W2)",
}

missing, seen = [], set()
for folder in ("shm", "worker", "server", "publish"):
    for path in sorted((source / "src" / folder).rglob("*.?pp")):
        if path.name in ("atomic.hpp", "futex.hpp", "fault_points.hpp", "liveness.cpp", "segment.cpp"):
            continue  # the building blocks of stores
        function, end, last_store = "", "", None
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if function and line.rstrip(";") == end:
                function, last_store = "", None
            head = re.match(r"(?:  )?(?:\S.*?[ &*])?([\w:~]+)\([^;]*(\{|,|\()$", line)
            if head and not re.match(r"\s*(if|for|while|switch|return|else)\b", line) and not function:
                function, end = head[1], line[:len(line) - len(line.lstrip())] + "}"
            for point in POINT.findall(line):
                seen.add(point)
                last_store = None
            if re.match(r"\s*return\b", line):
                last_store = None  # the code that follows is not executed after that store
            code = line.split("//")[0]
            stores = [(match.start(), True) for match in STORE.finditer(code)]
            stores += [(match.start(), False) for match in PLAIN.finditer(code)]
            for _, publishes in sorted(stores):
                if last_store is not None and (publishes or last_publishes) and function.split("::")[-1] not in WITHOUT and function not in WITHOUT:
                    missing.append(f"{path}:{number}: {function}: no point since the store in line {last_store}: {code.strip()}")
                last_store, last_publishes = number, publishes
            if "free_buffers.begin(" in code:
                last_store = None  # ends with a point

declared = set(re.findall(r"\bk\w+", re.search(r"enum class FaultPoint.*?\{(.*?)kCount_", (
    source / "src/shm/base/fault_points.hpp").read_text(), re.S)[1]))
missing += [f"the point {point} is in the list and nowhere in the sources" for point in sorted(declared - seen)]
print("\n".join(missing) or f"{len(declared)} points, none missing")
sys.exit(bool(missing))
