"""The transfer kernels' PTX has the accesses of system scope that their correctness rests on, and no narrower ones."""
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import tempfile

nvcc, source, build = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])

# kernel -> what must be in its PTX, for every GPU
PRESENT = {
    "pull_pieces": [r"ld\.acquire\.sys\.global\.u64", r"ld\.relaxed\.sys\.global\.u64",
                    r"ld\.relaxed\.sys\.global\.f32", r"ld\.relaxed\.sys\.global\.v4\.f32",
                    r"membar\.sys|fence\.\w+\.sys", r"st\.release\.sys\.global\.u64"],
    "send_pieces": [r"membar\.sys|fence\.\w+\.sys", r"st\.release\.sys\.global\.u32", r"st\.(global\.)?v4"],
    "add_pieces": [r"red\.relaxed\.sys\.global\.add\.f32"],
    "pull_rows": [r"ld\.relaxed\.sys\.global\.f32", r"ld\.relaxed\.sys\.global\.v4\.f32",
                  r"ld\.relaxed\.sys\.global\.u64", r"ld\.relaxed\.sys\.global\.v2\.u64",
                  r"st\.relaxed\.sys\.global\.u64", r"sqrt\.rn\.f32", r"div\.rn\.f32"],
    "send_rows": [r"membar\.sys|fence\.\w+\.sys", r"st\.release\.sys\.global\.u32", r"st\.(global\.)?v4"],
}
WIDE_ADD = r"red\.relaxed\.sys\.global\.add\.v4\.f32"
ANY_ATOMIC = r"^\s*(?:@%p\d+ )?((?:atom|red)\.\S+)"
SYSTEM_ADD = r"red\.relaxed\.sys\.global\.add\.(v4\.)?f32$"


def ptx_of(kernel, architecture, folder):
    path = pathlib.Path(folder) / f"{kernel}.{architecture}.ptx"
    subprocess.run([nvcc, "-std=c++20", "-O3", "-ptx", f"-arch=compute_{architecture}",
                    source / "kernels" / f"{kernel}.cu", "-o", path], check=True)
    return path.read_text()


def check(kernel, architecture, ptx):
    where = f"{kernel}, sm_{architecture}"
    faults = [f"{where}: no {form}" for form in PRESENT[kernel] if not re.search(form, ptx)]
    atomics = re.findall(ANY_ATOMIC, ptx, re.MULTILINE)
    faults += [f"{where}: {form} is no add of system scope" for form in atomics if not re.match(SYSTEM_ADD, form)]
    if kernel != "add_pieces" and atomics:
        faults.append(f"{where}: {atomics[0]} where only loads and stores belong")
    if kernel == "add_pieces" and bool(re.search(WIDE_ADD, ptx)) != (architecture >= 90):
        faults.append(f"{where}: adds by fours are for sm_90 and later")
    return faults


def check_dependencies():
    """Every kernel is built again when a header that it includes, of ours, has changed."""
    faults = []
    for kernel in sorted((source / "kernels").glob("*.cu")):
        listed = subprocess.run(["ninja", "-C", build, "-t", "deps", f"kernels/{kernel.stem}.o"], check=True,
                                capture_output=True, text=True).stdout
        wanted = re.findall(r'#include "(\S+)"', kernel.read_text())
        faults += [f"{kernel.name}: ninja does not know that it includes {name}" for name in wanted
                   if not re.search(rf"kernels/{re.escape(name)}$", listed, re.MULTILINE)]
    return faults


with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
    pairs = [(kernel, architecture) for kernel in PRESENT for architecture in (80, 90)]
    texts = pool.map(lambda pair: ptx_of(*pair, folder), pairs)
    faults = [fault for pair, ptx in zip(pairs, texts) for fault in check(*pair, ptx)]
faults += check_dependencies()
print("\n".join(faults) or f"{len(pairs)} compilations have what they need, ninja knows what the kernels include")
sys.exit(bool(faults))
