"""What of the Python package needs a GPU, with this Python's PyTorch: jobs and publications of models that are on one.

A program of its own, which prints JSON: PyTorch may end the process that imports it, or not be there. It prints one line
after each part with all that is known by then, should the next part end or block it.
"""
import argparse
import contextlib
import copy
import json
import os
import subprocess
import sys
import time

sys.path.pop(0)  # modules of this folder have names that others may use, too

import torch  # noqa: E402

import ps_shm  # noqa: E402
import ps_shm.torch  # noqa: E402

STEPS, WORKERS = 50, 2
GENERATIONS = 5
SECONDS = 120  # of a worker or a reader, after which all that a part has started are ended


def train_beside_torch(device):
    """How far a model of a job is from the same one with PyTorch's optimizer, and how far that is from its beginning."""
    torch.manual_seed(1)
    plain = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).to(device)
    model, first = copy.deepcopy(plain), copy.deepcopy(plain)
    inputs, labels = torch.randn(512, 64, device=device), torch.randint(10, (512,), device=device)

    def train(module, optimizer):
        for _ in range(STEPS):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(inputs), labels).backward()
            optimizer.step()

    train(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    with ps_shm.torch.Optimizer(model, f"gpu-check-{os.getpid()}", create=True, mode="sync", lr=0.1) as optimizer:
        train(model, optimizer)
    apart = max(float((a - b).abs().max()) for a, b in zip(model.parameters(), plain.parameters()))
    return {"apart": apart, "moved": max(float((a - b).abs().max()) for a, b in zip(first.parameters(), plain.parameters()))}


def push_ones(job, device):
    """A worker, each of whose gradients is 1."""
    model = torch.nn.Linear(1000, 1000).to(device)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    with ps_shm.torch.Optimizer(model, job) as optimizer:
        for _ in range(STEPS):
            optimizer.zero_grad()
            sum(p.sum() for p in model.parameters()).backward()
            optimizer.step()


def count_pushes(device):
    """Two processes push into one job: the sums are exact."""
    job = f"gpu-check-sum-{os.getpid()}"
    with ps_shm.Server(job, optimizer="sgd", lr=1.0, mode="async", workers=WORKERS):
        finish([start("worker", job, device) for _ in range(WORKERS)])
        view = ps_shm.View(job)
        return {"expected": -float(STEPS * WORKERS),
                "values": sorted({float(edge) for name in ("weight", "bias")
                                  for edge in (view.values(name).min(), view.values(name).max())})}


def large_model(mib, device):
    model = torch.nn.Module()
    elements = max(mib << 20 >> 4, 8)  # a quarter in float32, the rest in bfloat16
    for number, dtype in enumerate([torch.float32] + [torch.bfloat16] * 6):
        model.register_buffer(f"tensor{number}", torch.zeros(elements, dtype=dtype, device=device))
    return model


def finish_copies(device):
    if device != "cpu":
        torch.cuda.synchronize(device)


def read(name, device, mib):
    """A process that has the generations in its model, and looks whether each is whole."""
    model, seconds, steps = large_model(mib, device), [], []
    with ps_shm.torch.Subscriber(name, model) as subscriber:
        until = time.perf_counter() + SECONDS / 2
        while subscriber.step < GENERATIONS:
            begin = time.perf_counter()  # anew for each look: what the publisher takes is not the reader's
            if subscriber.update() is None:
                if begin > until:
                    return {"error": f"no generation after that of step {subscriber.step} came within {SECONDS / 2:g} s"}
                continue
            finish_copies(device)
            seconds.append(time.perf_counter() - begin)
            until = time.perf_counter() + SECONDS / 2
            values = {float(value) for tensor in model.buffers() for value in (tensor.min(), tensor.max())}
            if values != {float(subscriber.step)}:
                return {"error": f"the generation of step {subscriber.step} has the values {sorted(values)}"}
            steps.append(subscriber.step)
    return {"steps": steps, "seconds": seconds}


def publish(device, mib):
    """A model is published, and another process takes it."""
    name, model, seconds = f"gpu-check-{os.getpid()}", large_model(mib, device), []
    with ps_shm.torch.Publisher(name, model) as publisher:
        reader = start("reader", name, device, mib)
        with contextlib.suppress(ps_shm.Error):  # the reader says what has happened
            for step in range(1, GENERATIONS + 1):
                for tensor in model.buffers():
                    tensor.fill_(step)
                finish_copies(device)
                begin = time.perf_counter()
                generation = publisher.publish(step)
                seconds.append(time.perf_counter() - begin)
                publisher.wait_for(generation, readers=1)
        [found] = finish([reader])
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.buffers())
    if "error" in found:
        return found
    # The first time the memory is taken, and registered with the driver.
    return {"bytes": size, "publish_GB/s": size / min(seconds[1:]) / 1e9, "first_publish_s": seconds[0],
            "take_GB/s": size / min(found["seconds"]) / 1e9, "steps": found["steps"]}


def start(*role):
    return subprocess.Popen([sys.executable, __file__, *map(str, role)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def finish(processes):
    """What each of them has said. If one fails or takes too long, all are ended."""
    try:
        return [outcome(process) for process in processes]
    finally:
        for process in processes:
            process.kill()  # what has ended is left alone


def outcome(process):
    role = " ".join(process.args[2:])
    try:
        out, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{role}: took longer than {SECONDS} s") from None
    if process.returncode != 0:
        raise RuntimeError(f"{role}: exit code {process.returncode}")
    return json.loads(out)


def check(device, mib):
    """Yields what is known, after each part."""
    found = {"torch": torch.__version__, "python": sys.version.split()[0]}
    if device != "cpu" and not torch.cuda.is_available():
        yield {**found, "skipped": "this PyTorch finds no GPU"}
        return
    for part, run in (("training", lambda: train_beside_torch(device)), ("sums", lambda: count_pushes(device)),
                      ("publication", lambda: publish(device, mib))):
        try:
            found[part] = run()
        except Exception as error:  # whatever it is, the others are still looked at
            found[part] = {"error": f"{type(error).__name__}: {error}"}
        yield found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["check", "worker", "reader"])
    parser.add_argument("words", nargs="*")
    given = parser.parse_args()
    if given.role == "worker":
        push_ones(*given.words)
        said = [{}]
    elif given.role == "reader":
        said = [read(*given.words[:2], int(given.words[2]))]
    else:
        said = check(given.words[0], int(given.words[1]))
    for found in said:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
