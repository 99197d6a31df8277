"""What a round does, drawn from its seed: a job's command line, and orders of what is done to it and when."""
import random

TROUBLES = ["none", "kills", "stops", "joins", "settings", "resizes", "reads", "ends", "full", "damage", "all"]
MODELS = ["count", "dense", "sparse", "keyed"]  # the last: sparse ones, with the rows of a table by key
ROWS = ("sparse", "keyed")
DTYPES = ["float32", "bfloat16"]
MODES = {"async": ["--mode", "async"], "ssp": ["--mode", "ssp"], "sync": ["--mode", "sync"],
         "sync, backup": ["--mode", "sync"], "sync, atomic": ["--mode", "sync", "--reduce", "atomic"]}
RULES = ["sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam", "adamw", "ftrl"]
READS = [["ls"], ["show"], ["vars"], ["vars", "--placement"], ["workers"], ["events"], ["dump", "--limit", "2"],
         ["stats"], ["doctor"], ["metrics", "--values"], ["publications"], ["diff", "JOB", "JOB@snapshot"]]
SECONDS = 1.5  # in which the orders lie; the job is made to last about as long
CONTINUED = ("none", "kills", "stops", "joins", "reads")  # after these a job that ends well has saved its last step
HARMLESS = ("kills", "stops", "joins", "settings", "reads")


class Order:
    def __init__(self, at, what, number, detail=None):
        self.at, self.what, self.number, self.detail = at, what, number, detail

    def __str__(self):
        return f"{self.at:.3f} s: {self.what} {self.number % 1000} {self.detail or ''}".rstrip()


class Drawn:
    """One round."""

    def __init__(self, seed, trouble, mode, model):
        self.seed, self.trouble, self.mode, self.model = seed, trouble, mode, model
        self.kind = f"{mode} {model}"
        self.options, self.orders = [], []
        self.workers = 1
        self.restarts = self.keeps = self.compares = self.replays = self.is_elastic = self.saves = False
        self.continues = None  # options of another launch, which goes on from the last checkpoint

    def describe(self):
        lines = [f"seed {self.seed}: {self.kind}, {self.trouble}", "  launch_shm " + " ".join(map(str, self.options))]
        flags = [name for name in ("compares", "replays", "keeps", "continues") if getattr(self, name)]
        return "\n".join(lines + [f"  {order}" for order in self.orders] + [f"  and {name}" for name in flags])


def job_options(drawn, rng, has_simulated):
    """The job's options but for those that the trouble wants."""
    mode, model = drawn.mode, drawn.model
    drawn.workers = rng.randint(2 if mode == "sync, backup" else 1, 4)
    options = list(MODES[mode])
    if mode == "ssp":
        options += ["--staleness", rng.choice([0, 1, 4, 50])]
    if mode == "sync, backup":
        options += ["--quorum", drawn.workers - 1]
    inplace = not mode.startswith("sync") and rng.random() < 0.5
    if inplace:
        options += ["--layout", "inplace"]
    elif rng.random() < 0.5:
        options += ["--chunk-bytes", rng.choice(["1KiB", "4KiB", "64KiB"])]
    options += ["--ps-tasks", rng.randint(1, 3), "--placement", rng.choice(["round-robin", "greedy", "partition"])]
    threads = rng.choice([1, 1, 2])
    options += ["--threads", threads]
    lasts = SECONDS if drawn.trouble != "none" else 0.3
    if model == "count":
        options += ["--model", "count", "--count-size", rng.choice([1, 2, 17, 1000, 50_000, 300_000])]
        options += ["--steps", int(lasts * 250), "--count-interval", "3ms"]
    else:
        delay, rate = rng.choice([("1ms", 600), ("2ms", 400), ("3ms@0.5", 450)])  # steps a second, about
        options += ["--optimizer", rng.choice(RULES), "--delay", f"all:{delay}"]
        options += ["--steps", int(lasts * rate * (1 if mode.startswith("sync") else drawn.workers))]
        if model == "dense":
            options += ["--model", rng.choice(["softmax", "mlp"]), "--data",
                        f"synthetic:{rng.choice([3, 50, 784])}x{rng.choice([2, 10])}x200", "--batch", "8"]
            if rng.random() < 0.2 and not inplace:
                options += ["--ema", "0.9"]
        else:
            kind = rng.choice(["logistic", "svm", "fm", "mf"])
            data = "ratings:60x40x2000" if kind == "mf" else f"zipf:{rng.choice([100, 20_000])}x1000"
            options += ["--model", kind, "--data", data, "--batch", "8"]
            if model == "keyed":  # small tables evict all the time
                options += ["--keyed", "--max-rows", rng.choice([512, 4096, 100_000]),
                            "--evict", rng.choice(["lru", "lfu", "age", "none"]),
                            "--admit-after", rng.choice([1, 1, 2]), "--dtype", rng.choice(DTYPES)]
    if has_simulated and rng.random() < 0.2 and model not in ROWS:
        options += ["--device", "simulated,1:cpu"]
    options += ["--seed", rng.randrange(1000)]
    return options


def draw_order(drawn, rng, what):
    at, number = rng.uniform(0.02, SECONDS), rng.randrange(2**30)
    if what == "settings":
        detail = ["lr=" + rng.choice(["0.001", "0.01"]), "clip-norm=" + rng.choice(["0.5", "10"])]
        if drawn.mode in ("async", "ssp"):
            detail += ["mode=async", "mode=ssp", "staleness=" + rng.choice(["0", "3"])]
        else:
            detail += [f"quorum={rng.randint(0, drawn.workers)}"]
        return Order(at, "set", number, [rng.choice(detail)])
    if what == "resizes":
        return Order(at, "set", number, [f"workers={rng.randint(1, 4)}"])
    if what == "stops":
        return Order(at, "stop", number, rng.choice([0.002, 0.05, 0.3]))
    if what == "joins":
        return Order(at, "join", number, rng.choice([None, 0.1, 0.5]))  # how long until it is asked to leave
    if what == "reads":
        return Order(at, "read", number, rng.choice(READS))
    if what == "full":
        return Order(at, "fill", number, rng.choice(["shm", "disk"]))
    if what == "damage":
        return Order(at, "damage", number, rng.choice(["bit", "zero", "ones", "word"]))
    if what == "ends":
        return Order(at, "end", number, rng.choice(["INT", "TERM", "KILL", "INT twice"]))
    return Order(at, "kill", number)


def draw(seed, troubles, models, has_simulated):
    """The round of that seed."""
    rng = random.Random(seed)
    trouble = rng.choice(troubles)
    model = rng.choice(models)
    modes = [mode for mode in MODES if model not in ROWS or not mode.startswith("sync")]  # rows change where they lie
    drawn = Drawn(seed, trouble, rng.choice(modes), model)
    options = job_options(drawn, rng, has_simulated)
    counts = {"none": 0, "ends": 1, "damage": rng.randint(1, 12), "full": rng.randint(1, 2)}
    for _ in range(counts.get(trouble, rng.randint(1, 6))):
        what = rng.choice([*HARMLESS, "resizes"]) if trouble == "all" else trouble
        drawn.orders.append(draw_order(drawn, rng, what))
    if trouble in ("resizes", "all"):
        drawn.is_elastic = True
        options += ["--workers", "1..4"]
    else:
        options += ["--workers", drawn.workers]
        drawn.restarts = trouble == "kills" and rng.random() < 0.75
        if drawn.restarts:
            options += ["--restart-workers"]
    options += ["--max-workers", 16, "--linger", "1s"]
    if trouble == "damage":
        options += ["--step-timeout", "1s"]
    drawn.keeps = model == "count" and trouble not in ("ends", "full", "damage")
    if trouble == "damage" and rng.random() < 0.3:
        drawn.keeps = True
    if drawn.keeps:
        options += ["--keep-segments"]
    drawn.saves = trouble == "full" or rng.random() < (0.5 if model == "keyed" else 0.2)
    if drawn.saves:
        options += ["--checkpoint-dir", "DISK/checkpoints", "--checkpoint-every", rng.choice(["0.1s", "50steps"])]
    if drawn.saves and model == "keyed" and trouble in CONTINUED:
        # A table begins with the checkpoint of one of another type and size.
        changed = {"--steps": options[options.index("--steps") + 1] + 300, "--dtype": rng.choice(DTYPES),
                   "--max-rows": rng.choice([512, 4096, 100_000])}
        drawn.continues = [changed.get(before, word) for before, word in zip(["", *options], options)]
    is_alike = all(order.what in ("stop", "read", "join") for order in drawn.orders) and trouble != "joins"
    drawn.compares = drawn.mode == "sync" and model != "count" and is_alike and not drawn.saves and rng.random() < 0.5
    has_one_thread = options[options.index("--threads") + 1] == 1  # the chunks of several have no order to record
    drawn.replays = (drawn.mode in ("async", "ssp") and model == "dense" and "inplace" not in options and
                     has_one_thread and not drawn.saves and trouble in ("none", "kills", "stops", "reads") and
                     rng.random() < 0.3)
    drawn.orders.sort(key=lambda order: order.at)
    drawn.options = options
    return drawn
