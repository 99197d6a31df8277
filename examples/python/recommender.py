"""A recommender whose table of users and items is the job's: each process has the rows of its batch, and no others.

    python recommender.py --processes 2                          # synthetic ratings
    python recommender.py --ratings ml-100k/u.data               # `user item rating` in each line
    python recommender.py --rows 10000000                        # a larger table, of which the ratings touch few rows
"""

import needed

needed.check("torch")

import argparse
import time

import numpy
import torch
import torch.multiprocessing as mp

import ps_shm
import ps_shm.torch


class Recommender(torch.nn.Module):
    """A rating is a mean, a bias of each side, and the product of their vectors."""

    def __init__(self, rows: int, dim: int, mean: float) -> None:
        super().__init__()
        self.mean = torch.nn.Parameter(torch.tensor([mean]))
        self.table = ps_shm.torch.Embedding("table", rows, dim + 1, rule="rowwise_adagrad", deviation=0.1)

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        rows = self.table(pairs)  # (batch, 2, dim + 1)
        rating: torch.Tensor = self.mean + rows[:, :, 0].sum(1) + (rows[:, 0, 1:] * rows[:, 1, 1:]).sum(1)
        return rating


def ratings(args: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of a user's and an item's row, and what the one gave the other."""
    if args.ratings:
        data = numpy.loadtxt(args.ratings, usecols=(0, 1, 2))
        users, items = data[:, 0].astype(numpy.int64), data[:, 1].astype(numpy.int64)
        given = data[:, 2].astype(numpy.float32)
        items += users.max() + 1
        if items.max() >= args.rows:
            raise SystemExit(f"--rows: these ratings need {items.max() + 1}")
    else:
        random = numpy.random.default_rng(args.seed)
        users = random.zipf(1.3, args.examples) % (args.rows // 2)
        items = random.zipf(1.3, args.examples) % (args.rows // 2) + args.rows // 2
        taste = random.standard_normal((2, 1000, 3), numpy.float32)
        given = 3 + (taste[0, users % 1000] * taste[1, items % 1000]).sum(1)
    return torch.from_numpy(numpy.stack([users, items], 1).astype(numpy.int64)), torch.from_numpy(given)


def train(rank: int, args: argparse.Namespace, job: str) -> None:
    torch.set_num_threads(1)
    pairs, given = ratings(args)
    held_out = torch.arange(len(pairs)) % 10 == 0
    own, own_given = pairs[~held_out][rank :: args.processes], given[~held_out][rank :: args.processes]
    model = Recommender(args.rows, args.dim, float(given.mean()))
    with ps_shm.torch.Optimizer(model, job, rank=rank) as optimizer:
        order = torch.Generator().manual_seed(rank)
        optimizer.worker.wait_for_workers()
        begun = time.monotonic()
        for epoch in range(args.epochs):
            batches = torch.randperm(len(own), generator=order).split(args.batch_size)
            for batch, following in zip(batches, [*batches[1:], batches[0]]):
                model.table.prefetch(own[following])
                optimizer.zero_grad()
                (model(own[batch]) - own_given[batch]).pow(2).mean().backward()
                optimizer.step()
        seconds = time.monotonic() - begun
        optimizer.worker.barrier()
        if rank == 0:
            model.eval()
            with torch.no_grad():
                error = (model(pairs[held_out]) - given[held_out]).pow(2).mean().sqrt()
                plain = (given[held_out] - given[~held_out].mean()).pow(2).mean().sqrt()
            size = ps_shm.View(job).bytes / 2**20
            print(f"{args.rows} rows, {size:.0f} MiB: error {error:.3f}, of the mean {plain:.3f}; "
                  f"{args.processes * args.epochs * len(own) / seconds:.0f} examples/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rows", type=int, default=20000, help="users and items together")
    parser.add_argument("--dim", type=int, default=7)
    parser.add_argument("--ratings", help="a file")
    parser.add_argument("--examples", type=int, default=100000, help="synthetic ratings")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--lr", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with ps_shm.Server(workers=args.processes, lr=args.lr) as server:
        processes = [mp.Process(target=train, args=(rank, args, server.job)) for rank in range(args.processes)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode != 0 for process in processes):
            raise SystemExit("a process failed")


if __name__ == "__main__":
    main()
