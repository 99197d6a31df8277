"""PyTorch's own ways to share a vector on one machine, in two processes, and to update one.

    python3 torch_tensor.py add COUNT SECONDS        a tensor in shared memory, both add into it (what Hogwild does)
    python3 torch_tensor.py allreduce COUNT SECONDS  gloo's all-reduce over the loopback interface
    python3 torch_tensor.py adam COUNT SECONDS       a step of Adam on a vector of one process, in one thread

Prints one JSON object: seconds of one operation; for add GB/s summed over both and lost updates in per cent; for adam GB/s
of gradient, and which implementation that was: "fused", or where this PyTorch has none for CPUs, its default.
"""

import json
import os
import sys
import tempfile
import time

import torch
import torch.distributed
import torch.multiprocessing as multiprocessing

PROCESSES = 2


def time_together(gate, wanted, operation):
    """Seconds of one operation, and how many were done in all."""
    operation()
    gate.wait(60)
    begin = time.perf_counter()
    for _ in range(3):
        operation()
    # Every process needs the same number of rounds: all-reduces wait for each other. The first one decides.
    gate.rounds.value = max(gate.rounds.value, min(100_000, max(3, int(3 * wanted / (time.perf_counter() - begin)))))
    gate.wait(60)
    rounds = gate.rounds.value
    begin = time.perf_counter()
    for _ in range(rounds):
        operation()
    return (time.perf_counter() - begin) / rounds, rounds + 4


class Gate:
    def __init__(self, context):
        self.barrier, self.rounds = context.Barrier(PROCESSES), context.Value("q", 0)

    def wait(self, seconds):
        self.barrier.wait(seconds)


def add(number, gate, target, count, wanted, results):
    torch.set_num_threads(1)
    ones = torch.ones(count)
    results.put(time_together(gate, wanted, lambda: target.add_(ones)))


def allreduce(number, gate, rendezvous, count, wanted, results):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=number, world_size=PROCESSES)
    ones = torch.ones(count)
    results.put(time_together(gate, wanted, lambda: torch.distributed.all_reduce(ones)))
    torch.distributed.destroy_process_group()


def adam(count, wanted):
    torch.set_num_threads(1)
    vector = torch.nn.Parameter(torch.zeros(count))
    vector.grad = torch.full((count,), 1e-3)
    try:
        optimizer, which = torch.optim.Adam([vector], lr=1e-6, fused=True), "fused"
        optimizer.step()
    except (RuntimeError, TypeError):
        optimizer, which = torch.optim.Adam([vector], lr=1e-6), "default"
        optimizer.step()
    rounds, begin = 0, time.perf_counter()
    while rounds < 3 or time.perf_counter() - begin < wanted:
        optimizer.step()
        rounds += 1
    seconds = (time.perf_counter() - begin) / rounds
    print(json.dumps({"seconds": seconds, "GB/s": 4e-9 * count / seconds, "implementation": which}))


def main():
    kind, count, wanted = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    if kind == "adam":
        adam(count, wanted)
        return
    context = multiprocessing.get_context("fork")
    gate, results = Gate(context), context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        target = torch.zeros(count).share_memory_()
        work, what = {"add": (add, target), "allreduce": (allreduce, folder + "/rendezvous")}[kind]
        processes = [
            context.Process(target=work, args=(number, gate, what, count, wanted, results), daemon=True)
            for number in range(PROCESSES)
        ]
        for process in processes:
            process.start()
        found = [results.get(timeout=60 + 10 * wanted) for _ in processes]
        for process in processes:
            process.join(30)
    report = {"seconds": max(seconds for seconds, _ in found)}
    if kind == "add":
        updates = sum(rounds for _, rounds in found)
        report["GB/s"] = sum(4e-9 * count / seconds for seconds, _ in found)
        report["lost_%"] = 100 * (1 - target.double().mean().item() / updates)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
