"""PyTorch trains the multi-layer perceptron of worker_shm (784-500-10, plain SGD) on the same IDX files.

    python3 torch_train.py single|hogwild|ddp FOLDER STEPS [BATCH] [RATE]

hogwild: two processes on parameters in shared memory, as in PyTorch's mnist_hogwild example; ddp: two processes,
DistributedDataParallel over gloo. STEPS is over both processes; each process has one thread. The images lie in memory
and batches are slices of a random order, which costs less than the example's data loaders.
Prints one JSON object: gradients per second over all processes, and the loss of the last batch.
"""

import json
import os
import pathlib
import sys
import tempfile
import time

import numpy
import torch
import torch.distributed
import torch.multiprocessing as multiprocessing
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from idx import read_idx  # noqa: E402

HIDDEN = 500


def read_data(folder):
    images = read_idx(folder, "train-images-idx3-ubyte")
    labels = read_idx(folder, "train-labels-idx1-ubyte")
    return (
        torch.from_numpy(images.reshape(len(images), -1).astype(numpy.float32) / 255),
        torch.from_numpy(labels.astype(numpy.int64)),
    )


def make_model(features):
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(features, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 10))


def train(model, images, labels, steps, batch, rate, seed):
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    order, at = None, len(images)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        if at + batch > len(images):
            order, at = torch.randperm(len(images), generator=generator), 0
        chosen = order[at : at + batch]
        at += batch
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
    return loss.item()


def work(kind, number, processes, model, data, gate, rendezvous, steps, batch, rate, results):
    torch.set_num_threads(1)
    if kind == "ddp":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{rendezvous}", rank=number, world_size=processes
        )
        model = torch.nn.parallel.DistributedDataParallel(model)
    train(model, *data, 10, batch, rate, 100 + number)
    gate.wait(120)
    begin = time.time()
    loss = train(model, *data, steps // processes, batch, rate, number)
    results.put((begin, time.time(), loss))
    if kind == "ddp":
        torch.distributed.destroy_process_group()


def main():
    kind, folder, steps = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
    batch = int(sys.argv[4]) if len(sys.argv) > 4 else 100
    rate = float(sys.argv[5]) if len(sys.argv) > 5 else 0.1
    torch.set_num_threads(1)
    data = read_data(folder)
    model = make_model(data[0].shape[1])
    if kind == "hogwild":
        model.share_memory()
    processes = 1 if kind == "single" else 2
    context = multiprocessing.get_context("fork")
    gate, results = context.Barrier(processes), context.Queue()
    with tempfile.TemporaryDirectory() as rendezvous:
        started = [
            context.Process(
                target=work,
                daemon=True,
                args=(kind, number, processes, model, data, gate, rendezvous + "/file", steps, batch, rate, results),
            )
            for number in range(processes)
        ]
        for process in started:
            process.start()
        found = [results.get(timeout=300) for _ in started]
        for process in started:
            process.join(30)
    seconds = max(end for _, end, _ in found) - min(begin for begin, _, _ in found)
    done = steps // processes * processes
    print(json.dumps({"gradients/s": done / seconds, "seconds": seconds, "loss": max(loss for *_, loss in found)}))


if __name__ == "__main__":
    main()
