#!/usr/bin/env python3
"""What an evaluator costs a trainer that has a core of its own: its steps per second of processor time. On the other core
ps_shm publishes every 20 ms. Beside it either nobody runs, or worker_shm --evaluate, which tests each generation, or a
process that copies as many private bytes as a generation has, again and again. Prints a Markdown table of medians.

    benches/evaluation.py                        about two minutes on two cores
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

MODELS = {
    "mlp, 39 KiB": ["--model", "mlp", "--data", "digits"],
    "mlp, 4.0 MiB": ["--model", "mlp", "--data", "synthetic:2048x10x4000"],
    "softmax, 3.8 MiB": ["--model", "softmax", "--data", "synthetic:10000x100x1000"],
}
COPIER = """
import sys
size = int(sys.argv[1])
source, target = memoryview(bytearray(b"a" * size)), memoryview(bytearray(size))
while True:
    target[:] = source
"""
TRAINER, OTHER = 0, 1  # cores


def start(core, *command):
    process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    os.sched_setaffinity(process.pid, {core})
    return process


def seconds_of(process):
    """Of the processor, with all threads."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def inspect(options, job, command):
    done = subprocess.run([options.tools / "inspect_shm", command, "--job", job, "--json"], capture_output=True, text=True,
                          timeout=60)
    return json.loads(done.stdout) if done.returncode == 0 else {"workers": [], "variables": []}


def measure(options, model, beside):
    job = f"evaluation-{os.getpid()}"
    publish = ["--publish", job, "--publish-every", "20ms"] if beside != "nothing" else []
    processes = [start(OTHER, options.tools / "ps_shm", "--job", job, "--workers", "1", *publish),
                 start(TRAINER, options.tools / "worker_shm", "--job", job, *MODELS[model])]
    try:
        def steps():
            return sum(worker["steps"] for worker in inspect(options, job, "workers")["workers"])
        end = time.monotonic() + 60
        while steps() == 0 and time.monotonic() < end:
            time.sleep(0.05)
        if beside == "evaluator":
            processes.append(start(OTHER, options.tools / "worker_shm", "--evaluate", "--job", job, "--evaluate-every", "1ms",
                                   *MODELS[model]))
        if beside == "copier":
            size = sum(variable["bytes"] for variable in inspect(options, job, "vars")["variables"])
            processes.append(start(OTHER, sys.executable, "-c", COPIER, size))
        time.sleep(1)  # data is read
        begin = steps(), seconds_of(processes[1])
        time.sleep(options.seconds)
        end = steps(), seconds_of(processes[1])
        return (end[0] - begin[0]) / (end[1] - begin[1])
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "build/bench/tools",
                        help="the folder with the programs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    options = parser.parse_args()
    ways = ("nothing", "publication", "copier", "evaluator")
    print("| the trainer's model | a publication alone, of no publication | with a copier, of the publication alone "
          "| with an evaluator, of the publication alone |\n|---|---:|---:|---:|")
    for model in MODELS:
        rounds = [{beside: measure(options, model, beside) for beside in ways} for _ in range(options.rounds)]
        shares = [statistics.median(one[a] / one[b] for one in rounds)
                  for a, b in (("publication", "nothing"), ("copier", "publication"), ("evaluator", "publication"))]
        print(f"| {model} | " + " | ".join(f"{share:.3f}" for share in shares) + " |", flush=True)


if __name__ == "__main__":
    main()
