#!/usr/bin/env python3
"""Rows of a table in host memory to a GPU: GpuRows beside what PyTorch's users do, index_select on a page-locked tensor
into another one and a copy to the GPU, and beside the processor's own gather with a copy.

    benches/gpu_rows.py [--table-mib 200000] [--json FILE] [--quick] [--build build]
                                            prints a Markdown table of millions of rows a second

Give --table-mib more than the GPU has to see a table that only host memory holds; /dev/shm needs room for it, and the
machine for it once more while it is filled. PyTorch's table comes after ours is gone. PyTorch gets its ids in host memory,
where its users' loaders leave them; GpuRows gets them on the GPU. Without a GPU it says so and exits with 77.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

FOLDER = pathlib.Path(__file__).resolve().parent
SKIPPED = 77
BATCHES = 4  # take turns, so that no cache holds a batch's rows
COLUMNS = {"pull": "GpuRows pulls", "processor_gathers_then_copy": "processor gathers, copy",
           "torch_index_select_then_copy": "index_select, copy", "bare_copy": "bare copy", "push": "GpuRows pushes",
           "copy_then_processor_pushes": "copy, processor pushes"}


def our_side(options):
    command = [options.build / "benches" / "gpu", "--only", "rows"]
    command += ["--quick"] * options.quick
    command += ["--table-mib", str(options.table_mib)] if options.table_mib else []
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    except OSError as error:
        sys.exit(f"gpu_rows: {command[0]}: {error.strerror}; build it: meson setup {options.build} && "
                 f"ninja -C {options.build}")
    if done.returncode == SKIPPED:
        print(done.stdout.strip())
        sys.exit(SKIPPED)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        sys.exit(f"gpu_rows: {command[0]} ended with {done.returncode} and without a result")
    if "error" in found.get("rows", {"error": "it has none"}):
        sys.exit(f"gpu_rows: {found.get('rows', {}).get('error', 'no rows were measured')}")
    return found


def draw_ids(torch, case, exponent, seed):
    """The law of benches/gpu/rows.cpp."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(case["batch"], dtype=torch.float64, generator=generator)
    rows, power = case["rows"], 1 - exponent
    rank = (((rows**power - 1) * u + 1) ** (1 / power) - 1) if case["ids"] == "zipf" else u * rows
    return rank.to(torch.int64).clamp_(0, rows - 1) * 2654435761 % rows


def time_torch(torch, table, case, exponent, seconds):
    batches = [draw_ids(torch, case, exponent, seed) for seed in range(1, BATCHES + 1)]
    gathered = torch.empty(case["batch"], case["elements"], pin_memory=True)
    taken, end, turn = [], time.perf_counter() + seconds, 0
    while len(taken) < 4 or (time.perf_counter() < end and len(taken) < 51):
        began = time.perf_counter()
        torch.index_select(table, 0, batches[turn % BATCHES], out=gathered)
        gathered.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
        turn += 1
    return case["batch"] / statistics.median(taken[1:])  # the first one allocates


def add_torch(found, quick):
    """Returns why there is no figure of PyTorch's, or nothing."""
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    if not torch.cuda.is_available():
        return "PyTorch finds no GPU"
    found["torch"] = {"version": torch.__version__, "threads": torch.get_num_threads()}
    cases, table = found["rows"]["cases"], None
    for case in cases:
        shape = (case["rows"], case["elements"])
        if table is None or tuple(table.shape) != shape:
            table = None  # only one at a time
            table = torch.empty(shape, pin_memory=True).fill_(1.0)
        rate = time_torch(torch, table, case, found["rows"]["zipf_exponent"], 0.2 if quick else 0.6)
        case["torch_index_select_then_copy"] = {"rows/s": rate}
    return None


def as_table(found):
    rows = found["rows"]
    columns = [name for name in COLUMNS if any(name in case for case in rows["cases"])]
    lines = [f"A table of {rows['table_bytes'] >> 20} MiB beside a GPU of {rows['gpu_memory_bytes'] >> 20} MiB; "
             f"{rows['strategy']}; {rows['threads']} threads; millions of rows a second", "",
             "| floats | ids | batch | distinct | " + " | ".join(COLUMNS[name] for name in columns) + " |",
             "|" + "---|" * (4 + len(columns))]
    for case in rows["cases"]:
        figures = [f"{case[name]['rows/s'] * 1e-6:.2f}" if name in case else "" for name in columns]
        lines.append(f"| {case['elements']} | {case['ids']} | {case['batch']} | {case['distinct_share']:.0%} | "
                     + " | ".join(figures) + " |")
    return "\n".join(lines + [f"warning: {line}" for line in rows["warnings"]])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default=FOLDER.parent / "build", help="the build folder")
    parser.add_argument("--table-mib", type=int, default=0)
    parser.add_argument("--json", type=pathlib.Path, help="where all figures go, too")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds")
    options = parser.parse_args()
    if options.table_mib < 0:
        parser.error("--table-mib: at least 1")
    found = our_side(options)
    missing = add_torch(found, options.quick)
    print(as_table(found))
    if missing:
        print(f"without index_select: {missing}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if not all(case["is_right"] for case in found["rows"]["cases"]):
        sys.exit("gpu_rows: a pull brought something else than the processor's")


if __name__ == "__main__":
    main()
