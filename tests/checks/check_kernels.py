"""Checks the compiled kernels: no registers are spilled, and each transfer makes exactly the accesses of system scope
that its correctness depends on, as many as its source has, and no narrower ones. What copies has several loads in flight."""
import collections
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import tempfile

nvcc, source, build = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])

ACQUIRE, STAMP = "ld.acquire.sys.global.u64", "ld.relaxed.sys.global.u64"
FLOAT, FLOATS, PAIR = "ld.relaxed.sys.global.f32", "ld.relaxed.sys.global.v4.f32", "ld.relaxed.sys.global.v2.u64"
GATE = "ld.relaxed.sys.global.u32"
REPORT, RESULT, OUTSIDE = "st.release.sys.global.u32", "st.release.sys.global.u64", "st.relaxed.sys.global.u64"
ADD, ADDS, FENCE = "red.relaxed.sys.global.add.f32", "red.relaxed.sys.global.add.v4.f32", "fence.acq_rel.sys"

# kernel file -> entry (part of its name) -> its accesses of system scope and its fences: how many occur in the text,
# which unrolling may multiply (None: at least one)
PRESENT = {
    "pull_pieces": {"pull_kernel": {ACQUIRE: 2, STAMP: 1, FLOAT: None, FLOATS: None, FENCE: 1, RESULT: 1}},
    "send_pieces": {"send_kernelILb1": {GATE: 1, REPORT: 1}, "send_kernelILb0": {GATE: 1, REPORT: 1}},
    "send_rows": {"send_kernelIf": {REPORT: 1}, "send_kernelI6float4": {REPORT: 1}},
    "pull_rows": {"pull_vectorsILj1ELb0": {FLOATS: None, OUTSIDE: 1}, "pull_vectorsILj2ELb0": {FLOATS: None, OUTSIDE: 1},
                  "pull_vectorsILj2ELb1": {PAIR: None, OUTSIDE: 1}, "pull_vectorsILj4ELb0": {FLOATS: None, OUTSIDE: 1},
                  "pull_elementsILb0": {FLOAT: None, OUTSIDE: 1}, "pull_elementsILb1": {STAMP: None, OUTSIDE: 1}},
    "pull_keys": {"find_kernel": {ACQUIRE: None, STAMP: None, FENCE: None},
                  "copy_vectorsILj1ELb0": {FLOATS: None, FENCE: 1}, "copy_vectorsILj2ELb0": {FLOATS: None, FENCE: 1},
                  "copy_vectorsILj2ELb1": {PAIR: None, FENCE: 1}, "copy_vectorsILj4ELb0": {FLOATS: None, FENCE: 1},
                  "copy_elements": {FLOAT: None, FENCE: 1}, "check_kernel": {STAMP: 1, OUTSIDE: 1}},
    "put_rows": {"put_kernel": {}},
    "add_pieces": {"add_kernelILb1": {ADD: None, ADDS: None}, "add_kernelILb0": {ADD: None}},
}
# Other required instructions, for exact results or speed.
FORMS = {"pull_pieces": [r"st\.global\.v4"], "send_pieces": [r"st\.(global\.)?v4"], "send_rows": [r"st\.(global\.)?v4"],
         "pull_rows": [r"st\.global\.v4", r"sqrt\.rn\.f32", r"div\.rn\.f32"],
         "pull_keys": [r"st\.global\.v4", r"sqrt\.rn\.f32", r"div\.rn\.f32"]}
# The same of kernels for sm_90 and later.
FORMS_90 = {"bulk_reads": [r"cp\.async\.bulk\.shared::cluster\.global\.mbarrier::complete_tx::bytes",
                           r"mbarrier\.arrive\.expect_tx", r"mbarrier\.try_wait\.parity", r"fence\.mbarrier_init",
                           r"cp\.async\.bulk\.global\.shared::cta\.bulk_group", r"cp\.async\.bulk\.wait_group\.read 1;",
                           r"cp\.async\.bulk\.wait_group 0;", r"globaltimer", r"trap;"]}
# kernel file -> how many vectors each of its entries loads before it stores the first one
LOADED_FIRST = {"send_pieces": 4}
OF_SYSTEM = re.compile(r"^\s*(?:@!?%p\d+ )?((?:ld|st|red|atom)(?:\.\w+)*\.sys(?:\.\w+)*|fence\.[\w.]+|membar\.\w+)", re.M)
ANY_ATOMIC = re.compile(r"^\s*(?:@!?%p\d+ )?((?:atom|red)\.\S+)", re.M)


def ptx_of(kernel, architecture, folder):
    path = pathlib.Path(folder) / f"{kernel}.{architecture}.ptx"
    subprocess.run([nvcc, "-std=c++20", "-O3", "-ptx", f"-arch=compute_{architecture}",
                    source / "kernels" / f"{kernel}.cu", "-o", path], check=True)
    return path.read_text()


def entries_of(ptx):
    """The text of each entry, by name."""
    parts = re.split(r"^\s*(?:\.visible )?(?:\.weak )?\.entry (\w+)", ptx, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def check_entry(where, text, wanted, architecture):
    found = collections.Counter(OF_SYSTEM.findall(text))
    faults = [f"{where}: {form} is another fence than {FENCE}" for form in found
              if form.startswith(("fence", "membar")) and form != FENCE]
    for form, count in found.items():
        form_wanted = wanted.get(form, 0)
        if form == ADDS and architecture < 90:
            faults.append(f"{where}: adds by fours are for sm_90 and later")
        elif form_wanted is None or (form_wanted == 0 and count == 0):
            continue
        elif count != form_wanted:
            faults.append(f"{where}: {count} times {form}, and not {form_wanted} times")
    faults += [f"{where}: no {form}" for form in wanted
               if found[form] == 0 and not (form == ADDS and architecture < 90)]
    faults += [f"{where}: {form} is no add of system scope" for form in ANY_ATOMIC.findall(text)
               if form not in (ADD, ADDS)]
    return faults


def check(kernel, architecture, ptx):
    where = f"{kernel}, sm_{architecture}"
    forms = FORMS.get(kernel, []) + (FORMS_90.get(kernel, []) if architecture >= 90 else [])
    faults = [f"{where}: no {form}" for form in forms if not re.search(form, ptx)]
    entries = entries_of(ptx)
    for part, wanted in PRESENT.get(kernel, {}).items():
        names = [name for name in entries if part in name]
        if len(names) != 1:
            faults.append(f"{where}: {len(names)} entries are called {part}")
        else:
            faults += check_entry(f"{where}, {part}", entries[names[0]], wanted, architecture)
            loads = re.findall(r"\b(ld|st)(?:\.\w+)*\.v4\b", entries[names[0]])
            before = loads.index("st") if "st" in loads else 0
            if kernel in LOADED_FIRST and before != LOADED_FIRST[kernel]:
                faults.append(f"{where}, {part}: {before} vectors are loaded before the first is stored")
    return faults


def check_reports():
    """Checks the output of ptxas for the objects of the build: no thread spills registers to memory."""
    faults, looked_at = [], 0
    for kernel in sorted((source / "kernels").glob("*.cu")):
        text = (build / "kernels" / f"{kernel.stem}.ptxas").read_text()
        of_ours = [part for part in re.split(r"^ptxas info\s+: Compiling entry function ", text, flags=re.M)[1:]
                   if "6ps_shm7kernels" in part.split("'")[1]]
        looked_at += len(of_ours)
        if not of_ours and "__global__" in kernel.read_text():
            faults.append(f"{kernel.name}: ptxas said nothing of its kernels")
        for part in of_ours:
            name, kind = part.split("'")[1], part.split("'")[3]
            sizes = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
            if sizes is None or any(int(size) for size in sizes.groups()):
                faults.append(f"{kernel.name}, {kind}: {name} keeps {sizes[0] if sizes else 'what ptxas does not say'}")
    return faults, looked_at


def check_dependencies():
    """Checks that a kernel is rebuilt when one of our headers that it includes has changed."""
    faults = []
    for kernel in sorted((source / "kernels").glob("*.cu")):
        listed = subprocess.run(["ninja", "-C", build, "-t", "deps", f"kernels/{kernel.stem}.o"], check=True,
                                capture_output=True, text=True).stdout
        wanted = re.findall(r'#include "(\S+)"', kernel.read_text())
        faults += [f"{kernel.name}: ninja does not know that it includes {name}" for name in wanted
                   if not re.search(rf"kernels/{re.escape(name)}$", listed, re.MULTILINE)]
    return faults


with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
    pairs = [(kernel, architecture) for kernel in PRESENT for architecture in (80, 90)] + [(kernel, 90) for kernel in FORMS_90]
    texts = pool.map(lambda pair: ptx_of(*pair, folder), pairs)
    faults = [fault for pair, ptx in zip(pairs, texts) for fault in check(*pair, ptx)]
spills, entries = check_reports()
faults += spills + check_dependencies()
print("\n".join(faults) or f"{len(pairs)} compilations have what they need, none of {entries} kernels spills, ninja knows "
      "what they include")
sys.exit(bool(faults))
