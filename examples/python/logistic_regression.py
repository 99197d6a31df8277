"""Logistic regression with NumPy alone: python logistic_regression.py starts the ps and two workers."""

import needed

needed.check("numpy")

import multiprocessing

import numpy as np
import numpy.typing

import ps_shm


def examples(seed: int, count: int = 2000) -> "tuple[np.typing.NDArray[np.float32], np.typing.NDArray[np.bool_]]":
    random = np.random.default_rng(seed)
    x = random.standard_normal((count, 20), np.float32)
    return x, (x @ np.linspace(-1, 1, 20, dtype=np.float32) + 0.1 * random.standard_normal(count) > 0)


def work(rank: int) -> None:
    x, y = examples(rank)
    with ps_shm.Worker(rank=rank) as worker:  # PS_SHM_JOB says which job
        w = worker.variable("w", np.zeros(20, np.float32))
        values, order = np.empty(20, np.float32), np.random.default_rng(rank)
        worker.wait_for_workers()
        for _ in range(1000):
            batch = order.integers(0, len(x), 32)
            w.pull(values)
            error = 1 / (1 + np.exp(-x[batch] @ values)) - y[batch]
            w.push((error @ x[batch] / 32).astype(np.float32))
            worker.step()
        x, y = examples(99)
        print(f"worker {rank}: accuracy {np.mean((x @ w.pull() > 0) == y):.3f}, {worker.staleness()}")


if __name__ == "__main__":
    with ps_shm.Server(workers=2, optimizer="sgd", lr=0.5):
        workers = [multiprocessing.Process(target=work, args=(rank,)) for rank in range(2)]
        for process in workers:
            process.start()
        for process in workers:
            process.join()
