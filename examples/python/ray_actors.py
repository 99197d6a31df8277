"""Ray starts the workers as actors and restarts one that is killed: python ray_actors.py. Needs ray.

Parameters do not go through Ray's object store: each actor is a worker of the job, on the same machine. A restarted actor
joins the job again and goes on with the values that the job has.
"""

import needed

needed.check("numpy", "ray")

import argparse
import os
from typing import Any

import numpy as np
import ray  # type: ignore[import-not-found,unused-ignore]

import ps_shm


class Trainer:
    def __init__(self, job: str, rank: int) -> None:
        random = np.random.default_rng(rank)
        self.x = random.standard_normal((2000, 20), np.float32)
        self.y = self.x @ np.linspace(-1, 1, 20, dtype=np.float32) > 0
        self.random = random
        self.worker = ps_shm.Worker(job, rank=rank)
        self.w = self.worker.variable("w", np.zeros(20, np.float32))

    def pid(self) -> int:
        return os.getpid()

    def train(self, steps: int) -> float:
        """Takes steps and returns the accuracy."""
        values = np.empty(20, np.float32)
        for _ in range(steps):
            batch = self.random.integers(0, len(self.x), 32)
            self.w.pull(values)
            error = 1 / (1 + np.exp(-self.x[batch] @ values)) - self.y[batch]
            self.w.push((error @ self.x[batch] / 32).astype(np.float32))
            self.worker.step()
        return float(np.mean((self.x @ self.w.pull() > 0) == self.y))

    def leave(self) -> None:
        self.worker.leave()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--steps", type=int, default=500, help="of each actor, before and after the kill")
    args = parser.parse_args()
    ray.init(num_cpus=args.actors, include_dashboard=False, object_store_memory=100 << 20)
    remote: Any = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)(Trainer)
    with ps_shm.Server(workers=args.actors, optimizer="sgd", lr=0.5) as server:
        actors = [remote.remote(server.job, rank) for rank in range(args.actors)]
        print("accuracy", *(f"{a:.3f}" for a in ray.get([actor.train.remote(args.steps) for actor in actors])))
        before = ray.get(actors[0].pid.remote())
        ray.kill(actors[0], no_restart=False)
        print("accuracy", *(f"{a:.3f}" for a in ray.get([actor.train.remote(args.steps) for actor in actors])))
        was_restarted = ray.get(actors[0].pid.remote()) != before
        ray.get([actor.leave.remote() for actor in actors])
        print(f"actor 0 was {'restarted' if was_restarted else 'not restarted'}; {ps_shm.View(server.job).global_step} steps")
    ray.shutdown()


if __name__ == "__main__":
    main()
