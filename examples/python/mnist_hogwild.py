"""PyTorch's example mnist_hogwild, on the digits: processes train one model without waiting for each other.

    python mnist_hogwild.py --processes 4               # ps_shm: every update counts
    python mnist_hogwild.py --processes 4 --original    # model.share_memory(): some updates are lost

The lines marked with (-) are the original's, those with (+) are in their place.
"""

import needed

needed.check("torch")

import argparse
import subprocess
import sys
import time
from typing import Optional

import digits
import torch
import torch.multiprocessing as mp

import ps_shm.torch


def train(rank: int, args: argparse.Namespace, job: str, model: torch.nn.Module, shared: torch.Tensor) -> None:
    torch.manual_seed(args.seed + rank)
    torch.set_num_threads(1)
    images, labels = digits.load("train")
    optimizer: torch.optim.Optimizer
    if args.original:
        optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)  # (-)
    else:
        optimizer = ps_shm.torch.Optimizer(model, job, rank=rank)  # (+)
        optimizer.worker.wait_for_workers()  # none of them is done before the last one has begun
    begun = time.monotonic()
    for _ in range(args.epochs):
        for batch in torch.randperm(len(images)).split(args.batch_size):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            if args.original:
                shared[2 * args.processes :] += 1  # as racy as what share_memory() shares
    shared[2 * rank], shared[2 * rank + 1] = begun, time.monotonic()
    if isinstance(optimizer, ps_shm.torch.Optimizer):
        optimizer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--original", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = digits.model()
    shared = torch.zeros(2 * args.processes + 5000, dtype=torch.float64).share_memory_()  # times, and a count of updates
    server: Optional[ps_shm.Server] = None
    if args.original:
        model.share_memory()  # (-)
    else:
        server = ps_shm.Server(workers=args.processes, lr=args.lr, linger=0)  # (+)
        server.keep_segments()
    job = server.job if server else ""
    processes = [mp.Process(target=train, args=(r, args, job, model, shared)) for r in range(args.processes)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode != 0:
            raise SystemExit(f"a process ended with exit code {process.exitcode}")
    seconds = float(shared[1 : 2 * args.processes : 2].max() - shared[0 : 2 * args.processes : 2].min())
    images = len(digits.load("train")[0])
    steps = args.processes * args.epochs * -(-images // args.batch_size)
    if server:
        state = {name: torch.from_numpy(values) for name, values in ps_shm.View(job).state().items()}
        model.load_state_dict(state)
        lost = steps - ps_shm.View(job).variables()[0].updates
    else:
        lost = steps - int(shared[2 * args.processes :].min())
    print(f"{args.processes * args.epochs * images / seconds:.0f} examples/s, accuracy {digits.accuracy(model):.3f}, "
          f"{lost} of {steps} updates lost")
    if server:
        server.close()
        subprocess.run([sys.executable, "-m", "ps_shm", "rm", "--job", job, "--yes"], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
