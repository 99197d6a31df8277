"""Tests do not sleep: they poll or are notified, so that no result depends on the speed of a machine.

The files that may sleep are listed below, each with the maximum number of lines that do, and the reason. The list may
only shrink.
"""
import pathlib
import re
import sys

POLL = "the pause between two polls of a condition"
MOMENT = "the random moment of a fault, which is what the test varies"
WORK = "stands for the time that work takes, so that threads or processes overlap"
FOREVER = "a process that does nothing until it is killed"

ALLOWED = {  # file -> (lines, reason)
    "faults/publication_matrix.cpp": (2, POLL),
    "faults/strike.hpp": (2, POLL),
    "faults/struck_job.hpp": (2, WORK),
    "faults/table_case.hpp": (1, WORK),
    "gpu/test_gpu_deaths.cpp": (1, MOMENT),
    "gpu/test_transfer_kernels.cpp": (1, WORK),
    "process/crowd.cpp": (1, MOMENT),
    "process/delay_gate.cpp": (1, "the function that it replaces"),
    "process/failing_disk.c": (1, "a disk that hangs"),
    "process/isolation.py": (1, "PS_SHM_TEST_DELAYS"),
    "process/support.py": (1, POLL),
    "process/test_benches.py": (1, POLL),
    "process/test_gpu_check.py": (1, FOREVER),
    "process/test_life_cycle.py": (3, POLL + ", and " + FOREVER),
    "process/test_mistakes.py": (1, POLL),
    "process/test_modes.py": (1, POLL),
    "process/test_storm.py": (2, MOMENT),
    "process/test_sweep.py": (1, POLL),
    "python/conftest.py": (1, POLL),
    "python/test_launch.py": (2, FOREVER),
    "stress/stress_accumulator.cpp": (1, MOMENT),
    "stress/stress_modes.cpp": (1, MOMENT),
    "stress/stress_publication.cpp": (2, WORK),
    "support/fake_cuda.cpp": (3, "stands for the time that a GPU takes"),
    "support/processes.hpp": (1, POLL),
    "persistence/test_checkpoint_folder.cpp": (1, MOMENT),
}

SLEEP = {
    ".py": r"\b(time|asyncio)\.sleep\(|\bfrom time import\b.*\bsleep\b|\bsleep +[\d.]+|(?<!\w)sleep\(",
    ".sh": r"\bsleep +[\d.$]+",
    "": r"\busleep\(|\bsleep_(for|until)\(|\b(clock_)?nanosleep\(|(?<![\w.>:])sleep\(\d",
}

tests = pathlib.Path(sys.argv[1]) / "tests"
faults, found = [], {}
for path in sorted(tests.rglob("*")):
    name = str(path.relative_to(tests))
    if not path.is_file() or path.suffix not in (".py", ".sh", ".cpp", ".hpp", ".c", ".h", ".cu") or name == "check_sleeps.py":
        continue
    pattern = SLEEP.get(path.suffix, SLEEP[""])
    comment = "#" if path.suffix in (".py", ".sh") else "//"
    lines = [f"tests/{name}:{number}: {line.strip()}" for number, line in enumerate(path.read_text().splitlines(), 1)
             if re.search(pattern, line) and not line.strip().startswith(comment)]
    if lines:
        found[name] = len(lines)
    allowed, _ = ALLOWED.get(name, (0, ""))
    if len(lines) > allowed:
        faults += [f"{line}\n    a test that sleeps; {allowed} lines of this file may" for line in lines]
for name, (count, _) in ALLOWED.items():
    if found.get(name, 0) < count:
        faults.append(f"{found.get(name, 0)} lines of tests/{name} sleep, and the list allows {count}: lower it")
print("\n".join(faults) or f"{sum(found.values())} lines sleep, each for a reason")
sys.exit(bool(faults))
