#!/usr/bin/env python3
"""What a call from Python costs, handing a model's weights to another process, and Hogwild: ps_shm beside what there is else.

    PATH=build/test/tools:$PATH PYTHONPATH=build/test/python build/venv/bin/python benches/python.py [--json] [--hogwild ROUNDS]

Each figure is the median of several rounds. The package is built with -Dpython=true, as tools/test does. PyTorch and Ray
are rivals where they are installed.
"""
import argparse
import functools
import json
import multiprocessing
import multiprocessing.shared_memory
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

ROUNDS = 7


def median_us(call, count=20000):
    """Microseconds of one call."""
    rounds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        for _ in range(count):
            call()
        rounds.append((time.perf_counter() - begun) / count * 1e6)
    return statistics.median(rounds)


def overheads(worker):
    small, hundred = np.zeros(4, np.float32), {f"h{i}": np.zeros(4, np.float32) for i in range(100)}
    v = worker.variable("small", small)
    rows = worker.variable("rows", shape=(1000, 8), layout="inplace")
    bundle = worker.variables(hundred)
    pinned, ids, out = bundle.pin(hundred), np.arange(4), np.zeros((4, 8), np.float32)
    found = {
        "`pull` of four floats, NumPy": median_us(lambda: v.pull(small)),
        "`push` of four floats, NumPy": median_us(lambda: v.push(small)),
        "`pull_rows` of four rows": median_us(lambda: rows.pull_rows(ids, out)),
        "`step`, async": median_us(worker.step),
        "`pull` of a pinned bundle of 100 variables": median_us(lambda: bundle.pull(pinned), 5000),
        "`push` of a pinned bundle of 100 variables": median_us(lambda: bundle.push(pinned), 5000),
    }
    try:
        import torch
    except ImportError:
        return found
    tensor = torch.zeros(4)
    found["`pull` of four floats, PyTorch"] = median_us(lambda: v.pull(tensor))
    found["`push` of four floats, PyTorch"] = median_us(lambda: v.push(tensor))
    return found


def in_turns(ways, count, rounds=9):
    """Microseconds of CPU time of one call of each way, by name: the medians, and the median ratio of the first to the best other."""
    times = {name: [] for name in ways}
    for call in ways.values():
        call()
    for _ in range(rounds):
        for name, call in ways.items():
            begun = time.process_time()
            for _ in range(count):
                call()
            times[name].append((time.process_time() - begun) / count * 1e6)
    ours, *others = times.values()
    found = {f"{name}, us": statistics.median(of_way) for name, of_way in times.items()}
    if others:
        found["ratio"] = statistics.median(a / min(b) for a, b in zip(ours, zip(*others)))
    return found


def steps(floats, rule, layout):
    """A step of an Optimizer and of PyTorch's, fused and not, with the same gradients."""
    import torch

    import ps_shm.torch

    torch.set_num_threads(1)
    models = [torch.nn.Linear(floats // 2, 2, bias=False) for _ in range(3)]
    for model in models:
        model.weight.grad = torch.full_like(model.weight, 1e-6)
    settings = {"momentum": 0.9} if rule == "momentum" else {}
    kind = {"sgd": torch.optim.SGD, "momentum": torch.optim.SGD, "adam": torch.optim.Adam, "adagrad": torch.optim.Adagrad}[rule]
    if layout == "single-writer":
        settings_of_job = {"layout": layout, "max_workers": 1}
    else:
        settings_of_job = {"layout": layout}
    with ps_shm.torch.Optimizer(models[0], f"bench-{os.getpid()}", create=True, optimizer=rule, lr=1e-3, **settings,
                                **settings_of_job) as ours:
        ways = {"ps_shm": ours.step}
        for model, fused in zip(models[1:], (True, None)):
            try:
                way = kind(model.parameters(), lr=1e-3, **settings, **({"fused": True} if fused else {}))
                way.step()
            except (TypeError, RuntimeError):  # an older PyTorch, or a rule without a fused step for CPUs
                continue
            ways["PyTorch, fused" if fused else "PyTorch"] = way.step
        return in_turns(ways, max(5, 4_000_000 // floats))


def train_beside(way, rank, model, floats, batch, gate, queue, job):
    """One of two processes that train a model; puts the CPU seconds of an example."""
    import torch

    import ps_shm.torch

    torch.set_num_threads(1)
    if model is None:
        torch.manual_seed(0)
        model = perceptron(floats)
    if way.startswith("ps_shm"):
        optimizer = ps_shm.torch.Optimizer(model, job, create=True, mode=way.split(", ")[1], workers=2, lr=0.01)
        forward = model
    elif way == "DDP, gloo":
        torch.distributed.init_process_group("gloo", init_method=f"file:///dev/shm/{job}", rank=rank, world_size=2)
        forward = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    else:
        forward = model
        optimizer = torch.optim.SGD(model.parameters() if way == "Hogwild" else [torch.zeros(0)], lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    x, y = torch.randn(batch, 784, generator=generator), torch.randint(10, (batch,), generator=generator)

    def train(steps):
        for _ in range(steps):
            forward.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(forward(x), y).backward()
            optimizer.step()

    train(20)
    gate.wait(120)
    steps, begun = 400, time.process_time()
    train(steps)
    queue.put((time.process_time() - begun) / (steps * batch))
    gate.wait(120)
    if way.startswith("ps_shm"):
        optimizer.close()
    elif way == "DDP, gloo":
        torch.distributed.destroy_process_group()


def perceptron(floats):
    import torch

    hidden = max(1, floats // (784 + 10))
    return torch.nn.Sequential(torch.nn.Linear(784, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10))


def beside(floats, batch=64):
    """Examples per CPU second of two processes that train one perceptron, in turns, and ratios to PyTorch's two ways. What has no
    optimizer only computes gradients: no way can have more."""
    import torch

    spawned = torch.multiprocessing.get_context("spawn")
    ways = ["ps_shm, async", "Hogwild", "ps_shm, sync", "DDP, gloo", "no optimizer"]
    found = {way: [] for way in ways}
    for turn in range(ROUNDS):
        for at, way in enumerate(ways):
            gate, queue = spawned.Barrier(2), spawned.Queue()
            model = perceptron(floats).share_memory() if way == "Hogwild" else None
            job = f"bench-{os.getpid()}-{turn}-{at}"
            shared = (model, floats, batch, gate, queue, job)
            processes = [spawned.Process(target=train_beside, args=(way, rank, *shared)) for rank in range(2)]
            for process in processes:
                process.start()
            found[way].append(2 / sum(queue.get(timeout=300) for _ in processes))
            for process in processes:
                process.join()
            pathlib.Path("/dev/shm", job).unlink(missing_ok=True)
    ratios = {f"{ours} to {theirs}": statistics.median(a / b for a, b in zip(found[ours], found[theirs]))
              for ours, theirs in (ways[:2], ways[2:4], (ways[4], ways[1]), (ways[4], ways[3]))}
    return {**{f"{way}, examples/s": statistics.median(figures) for way, figures in found.items()}, **ratios}


def embeddings(rows, batch, width=16, features=26):
    """A forward and a backward pass and a step of Adagrad for `features` ids of each of `batch` examples."""
    import torch

    import ps_shm.torch

    torch.set_num_threads(1)
    random, gradient = np.random.default_rng(0), torch.full((batch * features, width), 1e-3)
    number = random.permutation(rows)
    batches = {  # skewed: a hundredth of the rows has a third of the ids
        "uniform": [torch.from_numpy(random.integers(0, rows, batch * features)) for _ in range(20)],
        "skewed": [torch.from_numpy(number[(rows * random.random(batch * features) ** 4).astype(np.int64)]) for _ in range(20)],
    }

    def way_of(forward, step):
        turn = iter(range(1 << 62))

        def one(kind):
            rows_of_batch = forward(batches[kind][next(turn) % 20])
            rows_of_batch.backward(gradient.view_as(rows_of_batch))
            step()

        return one

    with ps_shm.Server(f"bench-{os.getpid()}", optimizer="adagrad", lr=0.05, initial_accumulator=0.0) as server, \
            ps_shm.Worker(server.job) as worker:
        ours = ps_shm.torch.Embedding("rows", rows, width)
        ours.attach(worker)
        theirs = torch.nn.Embedding(rows, width, sparse=True)
        adagrad = torch.optim.Adagrad(theirs.parameters(), lr=0.05)

        def step():
            adagrad.step()
            adagrad.zero_grad()

        ways = {"`ps_shm.torch.Embedding`": way_of(ours, ours.push), "`torch.nn.Embedding(sparse=True)`": way_of(theirs, step)}
        if of_fbgemm := with_fbgemm(rows, width, features):
            ways["FBGEMM"] = way_of(of_fbgemm, lambda: None)  # its backward pass makes the step
        return {kind: in_turns({name: functools.partial(way, kind) for name, way in ways.items()}, 20) for kind in batches}


def with_fbgemm(rows, width, features):
    """FBGEMM's table for all features, each with bags of one id, or None where it is not installed."""
    try:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
    except (ImportError, OSError):
        return None
    import torch

    table = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, width, EmbeddingLocation.HOST, ComputeDevice.CPU)], feature_table_map=[0] * features,
        optimizer=EmbOptimType.EXACT_ADAGRAD, learning_rate=0.05, device=torch.device("cpu"))
    return lambda ids: table(ids, torch.arange(len(ids) + 1))


def read_publication(name, out, count, queue):
    with ps_shm.Subscriber(name) as subscriber:
        subscriber.read()
        queue.put(median_us(lambda: subscriber.read().copy_to({"w": out}), count))


def read_locked(name, shape, out, count, lock, queue):
    memory = multiprocessing.shared_memory.SharedMemory(name)
    shared = np.ndarray(shape, np.float32, memory.buf)

    def read():
        with lock:
            out[:] = shared

    queue.put(median_us(read, count))
    del shared, read
    memory.close()


def read_torch(shared, out, count, lock, queue):
    def read():
        with lock:
            out.copy_(shared)

    queue.put(median_us(read, count))


def read_ray(holder, count):
    """A reader gets the newest reference, and what it names without a copy; it copies, as the others do."""
    import ray

    out = np.empty_like(ray.get(ray.get(holder.newest.remote())[0]))

    def read():
        out[:] = ray.get(ray.get(holder.newest.remote())[0])

    return median_us(read, count)


def with_ray(weights, count):
    """Weights in Ray's object store; an actor names the newest. Ray says much to stderr."""
    try:
        import ray
    except ImportError:
        return None
    path = os.pathsep.join(sys.path)
    ray.init(num_cpus=3, include_dashboard=False, logging_level="ERROR", log_to_driver=False, object_store_memory=1 << 29,
             runtime_env={"env_vars": {"PYTHONPATH": path}})

    class Holder:
        def __init__(self):
            self.reference = None

        def put(self, reference):
            self.reference = reference

        def newest(self):
            return self.reference

    holder = ray.remote(Holder).remote()
    ray.get(holder.put.remote([ray.put(weights)]))
    reader = ray.remote(read_ray).remote(holder, count)
    writes, begun = 0, time.perf_counter()
    while not ray.wait([reader], timeout=0)[0]:
        ray.get(holder.put.remote([ray.put(weights)]))
        writes += 1
    found = {"read us": ray.get(reader), "writes/s": writes / (time.perf_counter() - begun)}
    ray.shutdown()
    return found


def hogwild(rounds):
    """The example with its changed lines and the original, one after the other in each round."""
    example = pathlib.Path(__file__).resolve().parents[1] / "examples" / "python" / "mnist_hogwild.py"
    line = r"(\d+) examples/s, accuracy ([\d.]+), (-?\d+) of (\d+) updates lost"
    found = {}
    for processes in (2, 4):
        ways = {"`mnist_hogwild.py`": [], "the original": ["--original"]}
        runs = {way: [] for way in ways}
        for _ in range(rounds):
            for way, options in ways.items():
                command = [sys.executable, str(example), "--processes", str(processes), "--epochs", "20", *options]
                out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                runs[way].append([float(figure) for figure in re.search(line, out).groups()])
        for way, all_runs in runs.items():
            rates, accuracies, lost, updates = zip(*all_runs)
            found[f"{way}, {processes} processes"] = {
                "way": way, "processes": processes, "examples/s": statistics.median(rates),
                "accuracy": statistics.median(accuracies), "lost updates": statistics.median(lost), "updates": updates[0]}
    return found


def hand_over(floats, rounds=5):
    """All ways once in each round, so that what else the machine does meets them alike."""
    runs = {}
    for _ in range(rounds):
        for way, figures in hand_over_once(floats).items():
            runs.setdefault(way, []).append(figures)
    return {way: {name: statistics.median(run[name] for run in all_runs) for name in all_runs[0]}
            for way, all_runs in runs.items()}


def hand_over_once(floats):
    """A reader's copy of all weights while a writer replaces them without a pause."""
    weights, out, count = np.ones(floats, np.float32), np.empty(floats, np.float32), max(20, 20_000_000 // floats // 10)
    found, queue = {}, multiprocessing.Queue()
    name = f"bench-{os.getpid()}"

    def while_reading(reader, write):
        reader.start()
        writes, begun = 0, time.perf_counter()
        while reader.is_alive() and queue.empty():
            write()
            writes += 1
        seconds = time.perf_counter() - begun
        result = queue.get()
        reader.join()
        return {"read us": result, "writes/s": writes / seconds}

    with ps_shm.Publisher(name, {"w": weights}) as publisher:
        publisher.publish({"w": weights})
        reader = multiprocessing.Process(target=read_publication, args=(name, out, count, queue))
        found["publication"] = while_reading(reader, lambda: publisher.publish({"w": weights}))
    memory, lock = multiprocessing.shared_memory.SharedMemory(create=True, size=weights.nbytes), multiprocessing.Lock()
    shared = np.ndarray(weights.shape, np.float32, memory.buf)
    shared[:] = weights

    def write():
        with lock:
            shared[:] = weights

    reader = multiprocessing.Process(target=read_locked, args=(memory.name, weights.shape, out, count, lock, queue))
    found["`multiprocessing.shared_memory` with a `Lock`"] = while_reading(reader, write)
    del shared, write
    memory.close()
    memory.unlink()
    try:
        import torch
    except ImportError:
        return found
    tensor, given = torch.from_numpy(weights).clone().share_memory_(), torch.from_numpy(weights)

    def write_tensor():
        with lock:
            tensor.copy_(given)

    torch.set_num_threads(1)
    reader = multiprocessing.Process(target=read_torch, args=(tensor, torch.from_numpy(out), count, lock, queue))
    found["PyTorch, `share_memory()` with a `Lock`"] = while_reading(reader, write_tensor)
    if of_ray := with_ray(weights, count):
        found["Ray, object store"] = of_ray
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--floats", type=int, default=1_000_000, help="of the weights that are handed over")
    parser.add_argument("--hogwild", type=int, default=0, metavar="ROUNDS", help="train the example and the original, too")
    parser.add_argument("--steps", type=int, nargs="+", default=[], metavar="FLOATS", help="time steps of models of these sizes only")
    parser.add_argument("--rules", nargs="+", default=["sgd", "momentum", "adam"], help="of --steps")
    parser.add_argument("--layout", default="versioned", help="of --steps: versioned or single-writer")
    parser.add_argument("--beside", type=int, default=0, metavar="FLOATS", help="train a model of this size in two processes only")
    parser.add_argument("--embeddings", type=int, default=0, metavar="ROWS", help="time steps of a table of so many rows only")
    parser.add_argument("--batch", type=int, default=1024, help="of --embeddings: examples of 26 ids each")
    args = parser.parse_args()
    global np, ps_shm  # after --help, which needs neither
    import numpy as np
    import ps_shm

    if args.steps or args.embeddings or args.beside:
        found = {f"{floats} floats, {rule}": steps(floats, rule, args.layout) for floats in args.steps for rule in args.rules}
        if args.embeddings:
            found.update({f"{args.embeddings} rows, {kind}": of_kind
                          for kind, of_kind in embeddings(args.embeddings, args.batch).items()})
        if args.beside:
            found[f"{args.beside} floats, 2 processes"] = beside(args.beside)
        if args.json:
            print(json.dumps(found))
        else:
            print_steps(found, args)
        return
    with ps_shm.Server(f"bench-{os.getpid()}", optimizer="add") as server, ps_shm.Worker(server.job) as worker:
        calls = overheads(worker)
    weights = hand_over(args.floats)
    trained = hogwild(args.hogwild) if args.hogwild else {}
    if args.json:
        print(json.dumps({"us_per_call": calls, "weights": {"floats": args.floats, **weights}, "hogwild": trained}))
        return
    print_table(["call", "us"], [[name, f"{microseconds:.2f}"] for name, microseconds in calls.items()], 1)
    print(f"\n{args.floats} floats, written and read at the same time:\n")
    print_table(["", "us per read", "writes/s"],
                [[name, f"{figures['read us']:.0f}", f"{figures['writes/s']:.0f}"] for name, figures in weights.items()], 1)
    if trained:
        print()
        print_table(["", "processes", "examples/s", "lost updates", "accuracy"],
                    [[one["way"], one["processes"], f"{one['examples/s']:.0f}", f"{one['lost updates']:.0f} of {one['updates']:.0f}",
                      f"{one['accuracy']:.3f}"] for one in trained.values()], 1)


def print_table(columns, rows, names):
    """A Markdown table, whose first columns are names and whose others are figures."""
    for cells in (columns, ["---"] * names + ["---:"] * (len(columns) - names), *rows):
        print("| " + " | ".join(map(str, cells)) + " |")


def print_steps(found, args):
    """The ratios of CPU time by rule, and for embeddings and for two processes the medians; --json has all."""
    if args.steps:
        rows = [[f"{floats:,}".replace(",", " "), args.layout, *(f"{found[f'{floats} floats, {rule}']['ratio']:.2f}" for rule in args.rules)]
                for floats in args.steps]
        print_table(["floats", "layout", *args.rules], rows, 2)
    if args.embeddings:
        kinds = {kind: found[f"{args.embeddings} rows, {kind}"] for kind in ("uniform", "skewed")}
        ways = [name for name in kinds["uniform"] if name != "ratio"]
        print()
        print_table(["ids", *ways], [[kind, *(f"{figures[way]:.0f}" for way in ways)] for kind, figures in kinds.items()], 1)
    if args.beside:
        for name, figure in found[f"{args.beside} floats, 2 processes"].items():
            print(f"{name:28} {figure:10.{2 if ' to ' in name else 0}f}")


if __name__ == "__main__":
    main()
