"""CartPole: actors play with the newest policy, a learner trains it (REINFORCE with a baseline). Needs gymnasium.

    python actor_learner.py --actors 4 --restarts 2

Weights go from the learner to the actors as whole generations: the policy carries a sum of all its weights, and an actor
compares it at every update. Games come back through a queue.

With --restarts, the learner is killed as often. It is started again and goes on from what it had saved, while the actors
play with the weights that they have.
"""

import needed

needed.check("torch", "gymnasium")

import argparse
import os
import queue
import signal
import tempfile
import time
from typing import Any

import gymnasium
import torch
import torch.multiprocessing as mp

import ps_shm.torch


class Policy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
        self.total: torch.Tensor
        self.register_buffer("total", torch.zeros((), dtype=torch.float64))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(states)
        return logits

    def sum(self) -> float:
        return sum(float(p.detach().double().sum()) for p in self.parameters())


def act(number: int, name: str, games: Any, stop: Any, checked: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(number)
    policy = Policy()
    environment = gymnasium.make("CartPole-v1", max_episode_steps=200)
    environment.reset(seed=number)
    with ps_shm.torch.Subscriber(name, policy) as subscriber:
        subscriber.update(wait=True)
        while not stop.is_set():
            states: list[torch.Tensor] = []
            actions: list[int] = []
            state, _ = environment.reset()
            done = False
            while not done:
                if subscriber.update():  # at every step of the game, if there is a newer one
                    if policy.sum() != float(policy.total):
                        raise SystemExit("mixed weights")
                    with checked.get_lock():
                        checked.value += 1
                states.append(torch.from_numpy(state))
                with torch.no_grad():
                    action = int(torch.distributions.Categorical(logits=policy(states[-1])).sample())
                actions.append(action)
                state, _, ended, cut, _ = environment.step(action)
                done = ended or cut
            try:
                games.put((torch.stack(states).numpy(), actions), timeout=0.2)
            except queue.Full:
                pass


def learn(args: argparse.Namespace, name: str, games: Any, kept: str) -> None:
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    steps, first, length = args.games // 8, 0, 20.0
    if os.path.exists(kept):
        state = torch.load(kept)
        policy.load_state_dict(state["policy"])
        optimizer.load_state_dict(state["optimizer"])
        first, length = state["step"], state["length"]
    with ps_shm.torch.Publisher(name, policy) as publisher:
        for step in range(first, steps):
            policy.total.fill_(policy.sum())
            publisher.publish(step)
            states, actions, returns = [], [], []
            for _ in range(8):
                played, chosen = games.get(timeout=60)
                states.append(torch.from_numpy(played))
                actions += chosen
                returns.append(torch.arange(len(chosen), 0.0, -1))  # a point for each step that is still to come
                length += 0.05 * (len(chosen) - length)
            gain = torch.cat(returns)
            gain = (gain - gain.mean()) / (gain.std() + 1e-6)
            optimizer.zero_grad()
            chosen_of = torch.distributions.Categorical(logits=policy(torch.cat(states)))
            loss = -(chosen_of.log_prob(torch.tensor(actions)) * gain).mean()
            loss.backward()
            optimizer.step()
            if step % 25 == 0:
                print(f"after {8 * step} games: {length:.0f} steps a game", flush=True)
            state = {"policy": policy.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1, "length": length}
            torch.save(state, kept + ".new")
            os.replace(kept + ".new", kept)
            if step + 1 in [steps * (n + 1) // (args.restarts + 1) for n in range(args.restarts)]:
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--actors", type=int, default=4)
    parser.add_argument("--games", type=int, default=1600)
    parser.add_argument("--restarts", type=int, default=0, help="how often to kill the learner")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    name = f"policy-{os.getpid()}"
    context = mp.get_context("spawn")
    games, stop, checked = context.Queue(16), context.Event(), context.Value("q", 0)
    actors = [context.Process(target=act, args=(n, name, games, stop, checked), daemon=True) for n in range(args.actors)]
    for actor in actors:
        actor.start()
    begun = time.monotonic()
    restarts = 0
    with tempfile.TemporaryDirectory() as folder:
        kept = os.path.join(folder, "learner.pt")
        while True:
            learner = context.Process(target=learn, args=(args, name, games, kept))
            learner.start()
            learner.join()
            if learner.exitcode != -signal.SIGKILL:
                break
            restarts += 1
        length = torch.load(kept)["length"] if learner.exitcode == 0 else 0.0
    stop.set()
    while any(actor.is_alive() for actor in actors):
        try:
            games.get(timeout=0.1)  # so that none waits for room
        except queue.Empty:
            pass
    if learner.exitcode != 0 or any(actor.exitcode != 0 for actor in actors):
        raise SystemExit("the learner or an actor failed")
    print(f"{length:.0f} steps a game after {args.games} games and {time.monotonic() - begun:.0f} s; "
          f"{restarts} restarts of the learner; {checked.value} updates of actors, none mixed")


if __name__ == "__main__":
    main()
