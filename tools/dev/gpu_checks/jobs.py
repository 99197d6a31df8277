"""Jobs of launch_shm: training on the GPU beside the CPU's, accuracies, digests, exact sums."""
import contextlib
import json
import statistics

import programs

WORKERS = ("--workers", 3)  # on GPUs there would be one for each, so on most boxes one
TUTORIAL = ("--model", "mlp", "--batch", "100")
SYNTHETIC = "synthetic:784x10x60000"
PARTS = ("wait", "pull", "compute", "push")
ONE_GPU = ("--device", "cuda:0")
ONE_PROCESS = (*ONE_GPU, "--workers-per-process", "auto")


def launch(tools, *arguments, seconds=180, env=None):
    done = programs.run([tools / "launch_shm", "--json", *arguments], seconds, env)
    if done.code != 0:
        raise programs.Failed(f"launch_shm {' '.join(map(str, arguments))}: exit code {done.code}: {done.last_line()}")
    return json.loads(done.out)


@contextlib.contextmanager
def case(report, name):
    """A check of this name fails where a program in it does; the cases behind it are still looked at."""
    try:
        yield
    except programs.Failed as error:
        report.add(name, False, str(error))


def gpus_of(run):
    """What the workers say of their GPUs; every worker of a job on the GPU must."""
    gpus = [worker.get("gpu") for worker in run["per_worker"]]
    if None in gpus:
        raise programs.Failed("a worker of a job on the GPU says nothing of a GPU")
    return gpus


def median_of(values):
    values = list(values)
    return statistics.median(values) if values else None


def sum_up(runs):
    """Medians over repeats, and over the workers of each."""
    gpus = [gpu for run in runs for gpu in gpus_of(run)]
    return {"steps_per_second": median_of(run["steps_per_second"] for run in runs),
            "spread": [f(run["steps_per_second"] for run in runs) for f in (min, max)],
            "idle_share": median_of(gpu["idle_share"] for gpu in gpus if "idle_share" in gpu),
            "step_us": {part: median_of(gpu["step_us"][part] for gpu in gpus if "step_us" in gpu) for part in PARTS},
            "redone_chunks": sum(gpu["redone_chunks"] for gpu in gpus),
            "bounced_chunks": sum(gpu["bounced_chunks"] for gpu in gpus),
            "strategy": gpus[0]["strategy"], "threads": gpus[0]["threads"], "resident": gpus[0]["resident"], "graph": gpus[0]["graph"],
            "graph_operations": gpus[0]["graph_operations"]}


# What one launch of a step starts, by a worker's JSON.
GRAPHS = {"step": "2 a step: the batch, and {} operations from the pull to the push", "none": "each operation of a step by itself"}

# Where the tutorials' job runs, and how: a GPU's steps are enqueued ahead, behind a wait on the stream, or each when it
# has opened, as a graph or by kernels. A worker that has a GPU to itself says how long the GPU waits; of several on one,
# each says how long its own stream does.
WAYS = {"cuda": ("--device", "cuda", "--enqueue", "ahead", *WORKERS),
        "cuda, by step": ("--device", "cuda", "--enqueue", "step", *WORKERS),
        "cuda, by kernels": ("--device", "cuda", "--enqueue", "kernels", *WORKERS),
        "cuda, one worker": ("--device", "cuda", "--workers", 1), "cpu": ("--device", "cpu", *WORKERS)}


def train(report, tools, mnist, quick):
    """The tutorials' job. The repeats of all modes and ways take turns."""
    repeats, steps = (1, 600) if quick else (5, 6000)
    steps_of = {way: steps if way != "cpu" else steps // 10 for way in WAYS}  # the CPU only stands beside it
    arguments = (*TUTORIAL, "--data", mnist or SYNTHETIC)
    kinds = {(mode, way): [] for mode in ("async", "sync") for way in WAYS}
    failed = set()
    found = report.data["training"] = {"arguments": [str(word) for word in arguments], "steps": steps_of, "runs": []}
    for _ in range(repeats):
        for (mode, way), runs in kinds.items():
            if (mode, way) in failed:
                continue
            try:
                runs.append(launch(tools, *arguments, "--steps", steps_of[way], "--mode", mode, *WAYS[way]))
            except programs.Failed as error:
                failed.add((mode, way))
                report.add(f"training, {mode}, {way}", False, str(error))
                continue
            found["runs"].append({"mode": mode, "device": way, **runs[-1]})
            report.write()  # whatever ends this program
    for mode in ("async", "sync"):
        if not all(kinds[mode, way] for way in WAYS):
            continue
        one = found[mode] = sum_up(kinds[mode, "cuda"])
        alone = one["cuda_one_worker_idle_share"] = sum_up(kinds[mode, "cuda, one worker"])["idle_share"]
        for way in [way for way in WAYS if way != "cuda"]:
            one[f"{way.replace(', ', '_').replace(' ', '_')}_steps_per_second"] = median_of(
                run["steps_per_second"] for run in kinds[mode, way])
        timed = None not in (one["idle_share"], alone)
        report.add(f"training, {mode}: the GPU's steps are timed", timed, one["strategy"])
        report.figure(f"training, {mode}", f"{one['steps_per_second']:,.0f} steps/s on the GPU "
                      f"({one['cuda_by_step_steps_per_second']:,.0f} as a graph once it has opened, "
                      f"{one['cuda_by_kernels_steps_per_second']:,.0f} kernel by kernel, "
                      f"{one['cuda_one_worker_steps_per_second']:,.0f} of one worker), "
                      f"{one['cpu_steps_per_second']:,.0f} on the CPU")
        report.figure(f"training, {mode}, launches", GRAPHS[one["graph"]].format(one["graph_operations"]))
        if timed:
            times = ", ".join(f"{part} {one['step_us'][part]:.1f}" for part in PARTS)
            report.figure(f"training, {mode}, a step in us", f"{times}; a worker's stream waits {one['idle_share']:.0%} of the "
                          f"time, with one worker {alone:.0%}")
    return found


def compare_accuracies(report, tools, mnist, quick):
    """Same job, same seed: async steps meet in another order each time, so accuracies agree up to some examples."""
    found = report.data["accuracy"] = {}
    steps = 1000 if quick else 6000
    sets = {"digits": (("--data", "digits", "--steps", steps, *WORKERS), 0.02)}
    if mnist:
        sets["mnist"] = ((*TUTORIAL, "--data", mnist, "--steps", steps, *WORKERS), 0.01)
    for model in ("logistic", "svm"):
        sets[model] = (("--model", model, "--combine", 100, *WORKERS), 0.03)
        sets[f"{model}, keyed"] = (("--model", model, "--combine", 100, "--keyed", *WORKERS), 0.03)
    for name, (arguments, tolerance) in sets.items():
        for mode in ("async",) if "--combine" in arguments else ("async", "sync"):  # rows have no steps in common
            with case(report, f"accuracy, {name}, {mode}"):
                of = {}
                for device in ("cpu", "cuda"):
                    run = launch(tools, *arguments, "--mode", mode, "--seed", 1, "--device", device, seconds=400)
                    of[device] = run["test_accuracy"]
                found[f"{name}, {mode}"] = {**of, "tolerance": tolerance}
                report.add(f"accuracy, {name}, {mode}", abs(of["cuda"] - of["cpu"]) <= tolerance,
                           f"{of['cuda']:.4f} on the GPU, {of['cpu']:.4f} on the CPU; may differ by {tolerance}")


def compare_digests(report, tools, quick):
    arguments = ("--mode", "sync", "--seed", 1, "--steps", 200 if quick else 1000, *WORKERS)
    found = report.data["digests"] = {}
    for name, places in (("twice", [("--device", "cuda")] * 2), ("in one process as in three", (ONE_GPU, ONE_PROCESS))):
        with case(report, f"sync digest, {name}"):
            digests = found[name] = [launch(tools, *arguments, *place)["digest"] for place in places]
            report.add(f"sync digest, {name}", digests[0] == digests[1], ", ".join(digests))


def share(report, tools, quick):
    """What it costs that processes, or threads of one, take turns with one GPU: the steps of all workers, by their number."""
    steps = 500 if quick else 3000
    found = report.data["sharing"] = {}
    for way, place, workers in (("", ONE_GPU, 1), ("", ONE_GPU, 2), ("", ONE_GPU, 4),
                                 (" in one process", ONE_PROCESS, 2), (" in one process", ONE_PROCESS, 4)):
        with case(report, f"workers on one GPU, {workers}{way}"):
            run = launch(tools, "--model", "mlp", "--batch", 100, "--data", SYNTHETIC, "--workers", workers, "--steps", steps,
                         *place)
            found[f"{workers}{way}"] = {"steps_per_second": run["steps_per_second"],
                                        "idle_share": median_of(gpu["idle_share"] for gpu in gpus_of(run) if "idle_share" in gpu)}
    report.figure("workers on one GPU, steps/s", ", ".join(f"{n}: {one['steps_per_second']:,.0f}"
                                                           for n, one in found.items()))


def count(report, tools, quick):
    """Every worker adds one a given number of times to each of a million elements: the sum is known."""
    steps, workers = (50 if quick else 500), 3
    found = report.data["count"] = {}
    ways = [(layout, layout, f"sum of two GPU workers and a CPU's, {layout}", ("--device", "cuda,2:cpu"), 2)
            for layout in ("versioned", "inplace")]
    ways.append(("one process", "versioned", "sum of three GPU workers of one process", ONE_PROCESS, 3))
    for key, layout, name, place, most in ways:
        with case(report, name):
            run = launch(tools, "--model", "count", "--count-size", 1000000, "--workers", workers, "--steps", steps,
                         "--layout", layout, *place)
            on_gpu = sum("gpu" in worker for worker in run["per_worker"])
            expected = float(steps * workers)
            found[key] = {**run, "expected": expected, "workers_on_gpu": on_gpu}
            report.add(name, run["value_min"] == run["value_max"] == expected and on_gpu == most,
                       f"{run['value_min']:.0f} to {run['value_max']:.0f} of {expected:.0f}; {on_gpu} workers on the GPU")
