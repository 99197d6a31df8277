"""Logistic regression whose gradients JAX computes: python jax_regression.py starts the ps and two workers. Needs jax.

JAX never changes an array, so the job copies into NumPy arrays, from which JAX makes its own. A gradient goes back without
a copy.
"""

import needed

needed.check("numpy", "jax")

import multiprocessing
from typing import Any

import numpy as np

import ps_shm

Params = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


def examples(seed: int, count: int = 2000) -> Params:
    random = np.random.default_rng(seed)
    x = random.standard_normal((count, 20), np.float32)
    return {"x": x, "y": (x @ np.linspace(-1, 1, 20, dtype=np.float32) > 0.5).astype(np.float32)}


def work(rank: int) -> None:
    import jax  # type: ignore[import-not-found,unused-ignore]  # here: the process that starts the workers computes nothing
    import jax.numpy as jnp  # type: ignore[import-not-found,unused-ignore]

    def logits(params: Any, x: Any) -> Any:
        return x @ params["w"] + params["b"]

    def loss(params: Any, x: Any, y: Any) -> Any:
        z = logits(params, x)
        return jnp.mean(jnp.logaddexp(0, z) - y * z)

    gradient_of = jax.jit(jax.grad(loss))
    data = examples(rank)
    params: Params = {"w": np.zeros(20, np.float32), "b": np.zeros(1, np.float32)}
    with ps_shm.Worker(rank=rank) as worker:  # PS_SHM_JOB says which job
        bundle, order = worker.variables(params), np.random.default_rng(rank)
        worker.wait_for_workers()
        for _ in range(500):
            batch = order.integers(0, len(data["x"]), 32)
            bundle.pull(params)
            gradient = gradient_of(params, data["x"][batch], data["y"][batch])
            bundle.push({name: np.asarray(of_variable) for name, of_variable in gradient.items()})
            worker.step()
        bundle.pull(params)
        unseen = examples(99)
        right = np.mean((np.asarray(logits(params, unseen["x"])) > 0) == (unseen["y"] > 0))
        print(f"worker {rank}: accuracy {right:.3f}, {worker.staleness()}")


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")  # JAX has threads, which a fork would lose
    with ps_shm.Server(workers=2, optimizer="sgd", lr=0.5):
        workers = [context.Process(target=work, args=(rank,)) for rank in range(2)]
        for process in workers:
            process.start()
        for process in workers:
            process.join()
    if any(process.exitcode != 0 for process in workers):
        raise SystemExit("a worker failed")
