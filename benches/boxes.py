#!/usr/bin/env python3
"""Trains one job of all workers, several jobs alone, and the same jobs with bridges; prints a Markdown table.

    benches/boxes.py                       three boxes of two workers on the embedded digits; two minutes on two cores
    benches/boxes.py --data FOLDER         on MNIST or another folder of IDX files
    benches/boxes.py --overlap             instead: what it costs that the boxes go on during a round, in one process
    benches/boxes.py --passes              instead: how long the passes of a round over 100 MiB of a model take
    benches/boxes.py --tables              instead: how long rounds of two boxes take that exchange rows by key

All boxes are on this machine, and their bridges talk over loopback; --delay keeps the workers from filling its cores. The
python3 on the PATH needs the package ps_shm (PYTHONPATH names that of a build folder) and PyTorch.
"""
import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start(options, name, workers, steps, seed, *more):
    data = ["--data", options.data] if options.data else []
    command = [str(options.tools / "launch_shm"), "--job", f"boxes-{os.getpid()}-{name}", "--workers", str(workers), "--steps",
               str(steps), "--seed", str(seed), "--delay", options.delay, "--mode", options.mode, "--json", *data, *more]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment)


def results_of(launches):
    results = []
    for launch in launches:
        out, error = launch.communicate(timeout=3600)
        if launch.returncode != 0:
            sys.exit(f"{' '.join(launch.args)}\n{error}")
        results.append(json.loads(out))
    return results


def row(label, results, rounds="", sent=""):
    accuracies = [result["test_accuracy"] for result in results]
    shown = f"{min(accuracies):.4f}" + (f" to {max(accuracies):.4f}" if len(accuracies) > 1 else "")
    print(f"| {label} | {sum(result['steps'] for result in results)} | {shown} | {rounds} | {sent} |", flush=True)


def compare(options):
    boxes, workers, steps = options.boxes, options.workers, options.steps
    print("| | steps in all | test accuracy | rounds | MB out of a box |\n|---|---:|---:|---:|---:|")
    row(f"one box of {boxes * workers} workers", results_of([start(options, "one", boxes * workers, boxes * steps, 1)]))
    row(f"{boxes} boxes of {workers}, alone",
        results_of([start(options, f"alone{box}", workers, steps, 1 + box) for box in range(boxes)]))
    for bridge in options.bridge:
        with tempfile.TemporaryDirectory() as folder:
            meet = f"127.0.0.1:{free_port()}"
            launches = [
                start(options, f"box{box}", workers, steps, 1 + box, "--bridge",
                      f"{meet}/{boxes} --box {box} --report {folder}/{box} {bridge}")
                for box in range(boxes)
            ]
            results = results_of(launches)
            lines = [json.loads(line) for line in pathlib.Path(folder, "0").read_text().splitlines()]
        rounds = [line for line in lines if "norm" in line]
        row(f"with bridges, {bridge}", results, len(rounds), f"{sum(line['bytes'] for line in rounds) / 1e6:.2f}")
        for part in ("waited", "summed", "given"):
            print(f"  {part}: {1e3 * statistics.median(line[part] for line in rounds):.1f} ms", file=sys.stderr)


def overlap(options):
    """DiLoCo on the digits, whose boxes go on for `late` of 20 steps before they get a round's result."""
    import torch

    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples/python"))
    import digits

    train_images, train_labels = digits.load("train")
    test_images, test_labels = digits.load("test")
    inner, outer, boxes = 20, 30, options.boxes

    def run(seed, late):
        torch.manual_seed(seed)
        model = digits.model()
        parameters = list(model.parameters())

        def put(flat):
            for one, values in zip(parameters, flat.split([p.numel() for p in parameters])):
                one.data.copy_(values.view_as(one))

        def steps(box, count):
            put(values[box])
            for _ in range(count):
                batch = torch.randint(len(train_images), (16,), generator=orders[box])
                model.zero_grad()
                torch.nn.functional.cross_entropy(model(train_images[batch]), train_labels[batch]).backward()
                for one in parameters:
                    one.data.sub_(0.1 * one.grad)
            values[box] = torch.cat([one.detach().ravel() for one in parameters])

        anchor = torch.cat([one.detach().ravel() for one in parameters])
        values, orders = [anchor.clone() for _ in range(boxes)], [torch.Generator().manual_seed(100 * seed + b) for b in range(boxes)]
        velocity = torch.zeros_like(anchor)
        for number in range(outer):
            for box in range(boxes):
                steps(box, inner - (late if number else 0))
            sent = [one.clone() for one in values]
            mean = sum(one - anchor for one in sent) / boxes
            for box in range(boxes):
                steps(box, late)
            velocity = 0.9 * velocity - mean
            anchor = anchor - 0.7 * (0.9 * velocity - mean)
            values = [one + (anchor - cut) for one, cut in zip(values, sent)]
        put(anchor)
        with torch.no_grad():
            out = model(test_images)
        return (float((out.argmax(1) == test_labels).float().mean()), float(torch.nn.functional.cross_entropy(out, test_labels)))

    torch.set_num_threads(1)
    print("| steps of 20 during a round | test accuracy | test loss |\n|---:|---:|---:|")
    for late in (0, 1, 5, 10):
        found = [run(seed, late) for seed in range(options.seeds)]
        accuracy, loss = (statistics.mean(one[k] for one in found) for k in (0, 1))
        print(f"| {late} | {accuracy:.4f} | {loss:.3f} |", flush=True)


def passes(options):
    """The passes of a round of `boxes` boxes, on one core."""
    import numpy
    from ps_shm import _core

    block = _core.BridgeState.BLOCK
    blocks = 25 * 1024 * 1024 // block
    values = numpy.random.default_rng(0).standard_normal(blocks * block).astype("float32")
    print("| wire | cut | sum | outer step | difference for the job | checksums | in all |\n|---|---:|---:|---:|---:|---:|---:|")
    for wire in ("float32", "bfloat16", "int8"):
        state = _core.BridgeState(f"boxes-{os.getpid()}", 1, blocks, wire, "nesterov")
        for array in (state.anchor, state.momentum, state.base):
            array[:] = 0
        delta, dense = numpy.empty_like(values), numpy.zeros(blocks, numpy.uint8)
        share = slice(0, blocks // options.boxes * (state.sum.size // blocks))
        shared_blocks = blocks // options.boxes
        residual = numpy.zeros(0 if wire == "float32" else shared_blocks * block, numpy.float32)
        weights = [1.0] * options.boxes

        def timed(call):
            begin = time.perf_counter()
            call()
            return 1e3 * (time.perf_counter() - begin)

        rounds = []
        for _ in range(7):
            cut = timed(lambda: state.cut(values, 0))
            encoded = state.sum.copy()
            parts, out = [encoded[share]] * options.boxes, encoded[share].copy()
            summed = timed(lambda: state.add_up(parts, weights, True, dense[:shared_blocks], residual, out))
            state.rewind()
            rounds.append((
                cut, summed, timed(lambda: state.step(0.7, 0.9, dense, 0, dense.size)), timed(lambda: state.subtract(0, delta)),
                timed(lambda: (state.checksum(state.sum.size), state.anchor_checksum)),
            ))  # fmt: skip
        medians = [statistics.median(column) for column in zip(*rounds)]
        print(f"| {wire} | " + " | ".join(f"{one:.0f} ms" for one in [*medians, sum(medians)]) + " |", flush=True)
        state.remove()
        del state


def box_with_table(options, box, meet, folder, wire):
    """One box of tables(): its job, whose worker changes rows and makes a step each time that a round is over."""
    import numpy
    import ps_shm

    job, report = f"boxes-{os.getpid()}", pathlib.Path(folder, f"{wire}-{box}")
    rng = numpy.random.default_rng(box)
    with ps_shm.Server(job, optimizer="sgd", lr=0.1, mode="async"), ps_shm.Worker(job) as worker:
        table = worker.table("t", options.row_size, 2 * options.keys, initial_range=0.01)
        gradients = rng.standard_normal((options.changed, options.row_size)).astype("float32")
        for begin in range(0, options.keys, options.changed):
            keys = numpy.arange(begin, min(begin + options.changed, options.keys), dtype="uint64")
            table.push(keys, gradients[: keys.size])
        worker.step()
        command = [sys.executable, "-m", "ps_shm.bridge", "--job", job, "--box", str(box), "--boxes", "2", "--meet", meet, "--wire", wire,
                   "--every", "1", "--seconds", "600", "--timeout", "700", "--report", str(report)]
        bridge = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"})

        def wait_for(word, count):
            while not report.exists() or report.read_text().count(word) < count:
                if bridge.poll() is not None:
                    sys.exit(f"{' '.join(command)} ended with {bridge.returncode}")
                time.sleep(0.01)

        try:
            wait_for("group of 2", 1)
            for number in range(options.rounds):
                table.push(rng.choice(options.keys, options.changed, replace=False).astype("uint64"), gradients)
                worker.step()
                wait_for('"norm"', number + 1)
        finally:
            bridge.kill()
            bridge.wait()


def tables(options):
    """Two boxes with a table by key each, of which some rows change between two rounds."""
    import multiprocessing

    processes = multiprocessing.get_context("spawn")
    print("| wire | rows of a round | MB out of a box | cut and exchange | step and change of the job | in all |\n|---|---:|---:|---:|---:|---:|")
    for wire in ("float32", "bfloat16", "int8"):
        with tempfile.TemporaryDirectory() as folder:
            meet = f"127.0.0.1:{free_port()}"
            boxes = [processes.Process(target=box_with_table, args=(options, box, meet, folder, wire)) for box in range(2)]
            for box in boxes:
                box.start()
            for box in boxes:
                box.join(1200)
                if box.exitcode != 0:
                    sys.exit(f"a box ended with {box.exitcode}")
            lines = [json.loads(line) for box in range(2) for line in pathlib.Path(folder, f"{wire}-{box}").read_text().splitlines()]
        # In the first rounds all rows are new to the boxes.
        rounds = [[line for line in lines if line.get("round") == number] for number in range(3, options.rounds + 1)]
        found = [[max(line[part] for line in one) for part in ("summed", "given")] for one in rounds]
        medians = [1e3 * statistics.median(column) for column in zip(*found)]
        rows, sent = (statistics.median(line[part] for one in rounds for line in one) for part in ("rows", "bytes"))
        shown = " | ".join(f"{one:.0f} ms" for one in [*medians, sum(medians)])
        print(f"| {wire} | {rows:.0f} | {sent / 1e6:.1f} | {shown} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=pathlib.Path, default=pathlib.Path("build/test/tools"), help="folder of launch_shm")
    parser.add_argument("--boxes", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="of each box")
    parser.add_argument("--steps", type=int, default=2000, help="of each box")
    parser.add_argument("--mode", default="async")
    parser.add_argument("--delay", default="all:20ms")
    parser.add_argument("--data", default="", help="folder of IDX files")
    parser.add_argument("--bridge", action="append", help="options of the bridges; may be repeated")
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("--passes", action="store_true")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--keys", type=int, default=1_000_000, help="--tables: of each table")
    parser.add_argument("--changed", type=int, default=100_000, help="--tables: of these, between two rounds in each box")
    parser.add_argument("--row-size", type=int, default=16, help="--tables: floats of a row")
    parser.add_argument("--rounds", type=int, default=9, help="--tables: those that are measured, and two")
    parser.add_argument("--seeds", type=int, default=4, help="--overlap: runs of which the mean is shown")
    options = parser.parse_args()
    wires = [f"--every 100 --outer nesterov --wire {wire}" for wire in ("float32", "bfloat16", "int8")]
    options.bridge = options.bridge or ["--every 100 --outer add", *wires]
    run = [call for call in (overlap, passes, tables) if getattr(options, call.__name__)] or [compare]
    run[0](options)


if __name__ == "__main__":
    main()
