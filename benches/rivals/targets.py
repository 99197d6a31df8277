"""What the hot paths are to reach, against which rival, and why just that.

A figure is named by a key: a case of benches/micro by its own name, a rival's by `mpi/...`, `torch/...`, `tensorflow/...`,
`redis/...` or `shared/...`, whole jobs by `train/...`; benches/rivals/figures.py measures them.
"""

import dataclasses

SIZES = (1_000, 100_000, 1_000_000, 16_000_000)


@dataclasses.dataclass
class Target:
    group: str
    text: str
    ours: str
    counter: str  # seconds: less is better; of_limit, ps_%: figures by themselves; else more is better
    rivals: tuple = ()  # keys; the one that does best counts. None: `counter` itself is compared with the bound
    rival_counter: str | None = None  # where it is not `counter`
    at_least: float | None = None  # of ours / rival; with faster: of the rival's seconds / ours
    at_most: float | None = None
    faster: bool = False
    rival_counter: str | None = None  # where it is not `counter`
    why: str = ""

    @property
    def is_told_only(self):
        return self.at_least is None and self.at_most is None


def _pushes():
    why = "exact updates at the speed of inexact ones and of locks that no crash survives"
    for floats in SIZES:
        two = f"floats:{floats}/processes:2"
        ours = f"push/versioned/{two}"
        rivals = (
            f"push/racy_simd/{two}",
            f"push/block_lock/{two}",
            f"push/vector_lock/{two}",
            f"mpi/accumulate/shared/{two}",
            f"mpi/accumulate/allocate/{two}",
        )
        yield Target("push", f"two writers, {floats:,} floats", ours, "GB/s", rivals, at_least=1.0, why=why)
        yield Target("push", "the same, PyTorch's shared tensors (loses updates)", ours, "GB/s", (f"torch/add/{two}",))
    for floats in SIZES:
        yield Target(
            "push",
            f"one writer, {floats:,} floats, of the triad's rate",
            f"push/versioned/floats:{floats}/processes:1",
            "of_limit",
            at_least=0.9,
            why="a push reads parameter and gradient and writes the parameter: a triad",
        )
    for floats in SIZES:
        yield Target(
            "push",
            f"four writers on two cores, {floats:,} floats, of two writers",
            f"push/versioned/floats:{floats}/processes:4",
            "GB/s",
            (f"push/versioned/floats:{floats}/processes:2",),
            at_least=1.0,
            why="who is not running holds nobody up",
        )


def _rules():
    size = "floats:100000000/processes:1"
    yield Target(
        "push",
        "the only worker, layout single-writer, Adam, 100,000,000 floats, of PyTorch's fused Adam",
        f"push_rule/single-writer/adam/{size}",
        "GB/s",
        (f"torch/adam/{size}",),
        at_least=1.0,
        why="a push is the optimizer's step: the same bytes, by whoever pushes",
    )


def _pulls():
    for floats, bound in ((16_000_000, 0.95), (100_000, 0.85)):
        one, two = f"floats:{floats}/processes:1", f"floats:{floats}/processes:2"
        yield Target(
            "pull",
            f"{floats:,} floats, of memcpy",
            f"pull/versioned/{one}",
            "of_limit",
            at_least=bound,
            why="a pull is one read and one write of each byte",
        )
        yield Target(
            "pull",
            f"{floats:,} floats beside a pusher, of its share of memcpy in two processes",
            f"pull/versioned_beside_pusher/{two}",
            "of_limit",
            at_least=bound,
            why="the same, with half of what the machine copies",
        )
        yield Target(
            "pull",
            f"{floats:,} floats in two processes, MPI_Get",
            f"pull/versioned/{two}",
            "GB/s",
            (f"mpi/get/shared/{two}",),
        )


def _scalars():
    for processes, how in ((1, "alone"), (2, "contended")):
        yield Target(
            "scalar",
            f"add, {how}, of a bare compare-exchange",
            f"scalar/add/processes:{processes}",
            "seconds",
            (f"scalar/bare_exchange/processes:{processes}",),
            at_most=1.3,
            why="an exact add is one compare-exchange",
        )
    for layout, why in (("inplace", "one load"), ("versioned", "a copy between two looks at a stamp")):
        yield Target(
            "scalar",
            f"pull, {layout}, of memcpy of 4 bytes",
            f"scalar/pull/{layout}/processes:1",
            "seconds",
            ("scalar/memcpy4/processes:1",),
            at_most=3.0,
            why=why,
        )
    yield Target(
        "scalar",
        "add in two processes, times as fast as Redis INCRBYFLOAT",
        "scalar/add/processes:2",
        "seconds",
        ("redis/incrbyfloat",),
        faster=True,
    )


def _steps():
    for processes in (2, 3):
        ours = f"sync/empty/processes:{processes}"
        many = f"{processes} processes" + (" on two cores" if processes > 2 else "")
        bare = "of a bare exchange that spins, then sleeps"
        yield Target(
            "sync step",
            f"no work, {many}, {bare}",
            ours,
            "seconds",
            (f"sync/exchange_spin_then_futex/processes:{processes}",),
            at_most=1.5 if processes == 2 else None,
            why="a step is a meeting and a few words" if processes == 2 else "",
        )
        for rival, name in (
            (f"sync/exchange_spin/processes:{processes}", "of one that spins"),
            (f"sync/exchange_futex/processes:{processes}", "of one that sleeps"),
            (f"mpi/barrier/processes:{processes}", "of MPI_Barrier (spins, or yields with too few cores)"),
        ):
            yield Target("sync step", f"no work, {many}, {name}", ours, "seconds", (rival,))
        for rival, name in (
            (f"sync/exchange_spin_then_futex/processes:{processes}", bare),
            (f"mpi/barrier/processes:{processes}", "of MPI_Barrier"),
        ):
            barrier = f"sync/barrier/processes:{processes}"
            yield Target("sync step", f"a barrier, {many}, {name}", barrier, "seconds", (rival,))
    million = "floats:1000000/processes:2"
    yield Target(
        "sync step",
        "1,000,000 floats with SGD, two workers: times as fast as MPI_Allreduce alone",
        f"sync/step/{million}",
        "seconds",
        (f"mpi/allreduce/{million}",),
        at_least=4.0,
        faster=True,
        why="gradients are read where they lie; an all-reduce copies them",
    )
    yield Target(
        "sync step",
        "the same, times as fast as gloo's all-reduce alone",
        f"sync/step/{million}",
        "seconds",
        (f"torch/allreduce/{million}",),
        faster=True,
    )


def _reduces():
    """A dense model with no computing at all: where, if anywhere, an all-reduce is the better way."""
    for processes, sizes in ((2, (1_000, 397_510, 1_000_000, 16_000_000)), (4, (1_000_000, 16_000_000))):
        for floats in sizes:
            size = f"floats:{floats}/processes:{processes}"
            yield Target(
                "against all-reduce",
                f"{floats:,} floats, {processes} workers: times as fast as MPI_Allreduce and SGD",
                f"sync/step/{size}",
                "seconds",
                (f"mpi/step/{size}",),
                faster=True,
            )


def _training():
    alone = "train/standalone"
    for mode, bound in (("async", 1.9), ("ssp", 1.9), ("sync", 1.8)):
        yield Target(
            "training",
            f"MLP 784-500-10, batch 100, two workers, {mode}, of one alone",
            f"train/{mode}",
            "gradients/s",
            (alone,),
            at_least=bound,
            why="two cores compute twice as many gradients; the server is to cost nothing",
        )
    yield Target(
        "training",
        "what the machine allows: two that know nothing of each other, of one alone",
        "train/standalone_twice",
        "gradients/s",
        (alone,),
    )
    yield Target(
        "training",
        "async, of PyTorch's Hogwild (the mnist_hogwild recipe)",
        "train/async",
        "gradients/s",
        ("torch/train/hogwild",),
        at_least=1.3,
        why="the same arithmetic in the same BLAS",
    )
    yield Target(
        "training",
        "sync, of PyTorch's DistributedDataParallel over gloo",
        "train/sync",
        "gradients/s",
        ("torch/train/ddp",),
        at_least=3.0,
        why="no copies over sockets",
    )
    for mode, bound in (("async", 7.5), ("sync", 8.0)):
        yield Target(
            "training",
            f"{mode}, of TensorFlow's parameter server, a ps and two workers over gRPC",
            f"train/{mode}",
            "gradients/s",
            (f"tensorflow/{mode}",),
            at_least=bound,
            why="no calls to a server, no copies over sockets",
        )
    yield Target("training", "one alone, of PyTorch alone", alone, "gradients/s", ("torch/train/single",))
    for mode in ("async", "sync"):
        yield Target(
            "training",
            f"the ps's share of one core, {mode}, in per cent",
            f"train/{mode}",
            "ps_%",
            at_most=1.0,
            why="the arithmetic runs in who pushes; the ps only watches",
        )
    linear = "linear/batch1/floats:100000/processes:2"
    yield Target(
        "training",
        "linear model, batch 1, 100,000 floats, of what push and pull allow",
        linear,
        "steps/s",
        (linear,),
        rival_counter="limit_push_pull",
        at_least=0.8,
        why="nothing but pushes and pulls: the case that the server bounds",
    )
    yield Target(
        "training",
        "the same, of what push, pull and the computing between them allow",
        linear,
        "steps/s",
        (linear,),
        rival_counter="limit",
    )


def _key_values():
    two = "floats:100000/processes:2"
    yield Target(
        "networked store",
        "pull of 400 KB in two processes, of Redis GET",
        f"pull/versioned/{two}",
        "GB/s",
        ("redis/get",),
    )
    yield Target(
        "networked store",
        "push of 400 KB by two, of Redis SET (which adds nothing)",
        f"push/versioned/{two}",
        "GB/s",
        ("redis/set",),
    )


def _publications():
    size = "floats:16777216"
    ours, beside = f"publish/publication/{size}", f"publish/publication_beside_reader/{size}"
    yield Target(
        "publication",
        "64 MiB as a whole, of memcpy",
        ours,
        "of_limit",
        at_least=0.9,
        why="publishing is one copy of what changes",
    )
    yield Target(
        "publication",
        "64 MiB beside a reader that copies it all the time",
        beside,
        "GB/s",
        (f"publish/mutex_beside_reader/{size}", f"publish/seqlock_beside_reader/{size}"),
    )
    yield Target(
        "publication",
        "the same, what the reader gets",
        beside,
        "read_GB/s",
        (f"publish/mutex_beside_reader/{size}", f"publish/seqlock_beside_reader/{size}"),
    )
    yield Target("publication", "64 MiB, of Ray's object store", ours, "GB/s", (f"shared/ray/{size}",))
    yield Target("publication", "64 MiB, of PyTorch's shared memory and a lock", ours, "GB/s", (f"shared/torch/{size}",))
    yield Target(
        "publication",
        "the newest generation taken and given back",
        "lease/alone",
        "seconds",
        at_most=20e-9,
        why="a store, a fence and a look: cheap enough for each episode, batch or request",
    )


TARGETS = [
    *_pushes(),
    *_rules(),
    *_pulls(),
    *_scalars(),
    *_steps(),
    *_reduces(),
    *_training(),
    *_key_values(),
    *_publications(),
]
