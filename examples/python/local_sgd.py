"""Three ways to train one model in several processes, on the digits: every step together (sync), local SGD, EASGD.

    python local_sgd.py --processes 2
"""

import needed

needed.check("torch")

import argparse
import time
from typing import Union

import digits
import torch
import torch.multiprocessing as mp

import ps_shm.torch


def train(rank: int, args: argparse.Namespace, job: str, way: str) -> None:
    torch.manual_seed(args.seed)  # the same first values everywhere
    torch.set_num_threads(1)
    images, labels = digits.load("train")
    model = digits.model()
    local = torch.optim.SGD(model.parameters(), lr=args.lr)
    taker: Union[ps_shm.torch.Optimizer, ps_shm.torch.Elastic]
    if way == "sync":
        taker = ps_shm.torch.Optimizer(model, job, rank=rank)
    elif way == "local SGD":
        taker = ps_shm.torch.Optimizer(model, job, rank=rank, push_every=args.every, local=local)
    else:
        taker = ps_shm.torch.Elastic(model, job, rank=rank, alpha=0.9 / args.processes, every=args.every)
    order = torch.Generator().manual_seed(rank)
    for _ in range(args.steps):
        batch = torch.randint(len(images), (args.batch_size,), generator=order)
        model.zero_grad(set_to_none=False)
        torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        if isinstance(taker, ps_shm.torch.Elastic):
            local.step()
        taker.step()
    taker.worker.barrier()
    taker.pull()
    if rank == 0:
        print(f"{way:10}  accuracy {digits.accuracy(model):.3f}", end="", flush=True)
    taker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=800, help="of each process")
    parser.add_argument("--every", type=int, default=8, help="local SGD, EASGD: steps between two exchanges")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    jobs = {
        "sync": {"mode": "sync", "optimizer": "sgd", "lr": args.lr},
        "local SGD": {"mode": "sync", "optimizer": "add"},
        "EASGD": {"mode": "async", "optimizer": "add"},
    }
    for way, settings in jobs.items():
        with ps_shm.Server(workers=args.processes, **settings) as server:
            begun = time.monotonic()
            processes = [mp.Process(target=train, args=(r, args, server.job, way)) for r in range(args.processes)]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
            print(f" after {time.monotonic() - begun:.1f} s")
            if any(process.exitcode != 0 for process in processes):
                raise SystemExit(f"{way}: a process failed")


if __name__ == "__main__":
    main()
