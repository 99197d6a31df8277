"""Jobs of launch_shm: training on the GPU beside the CPU's, accuracies, digests, exact sums."""
import json
import statistics

import programs

TUTORIAL = ("--workers", "3", "--model", "mlp", "--batch", "100")
SYNTHETIC = "synthetic:784x10x60000"
PARTS = ("wait", "pull", "compute", "push")


def launch(tools, *arguments, seconds=180):
    done = programs.run([tools / "launch_shm", "--json", *arguments], seconds)
    if done.code != 0:
        raise programs.Failed(f"launch_shm {' '.join(map(str, arguments))}: exit code {done.code}: {done.last_line()}")
    return json.loads(done.out)


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
            "strategy": gpus[0]["strategy"], "resident": gpus[0]["resident"], "graph": gpus[0]["graph"]}


# Where the tutorials' job runs, and how: a GPU's steps are enqueued ahead, behind a wait on the stream, or not.
WAYS = {"cuda": ("--device", "cuda"), "cuda, no stream waits": ("--device", "cuda", "--no-stream-waits"),
        "cpu": ("--device", "cpu")}


def train(report, tools, mnist, quick):
    """The tutorials' job. The repeats of all modes and ways take turns."""
    repeats, steps = (1, 600) if quick else (5, 6000)
    steps_of = {way: steps if way != "cpu" else steps // 10 for way in WAYS}  # the CPU only stands beside it
    arguments = (*TUTORIAL, "--data", mnist or SYNTHETIC)
    kinds = {(mode, way): [] for mode in ("async", "sync") for way in WAYS}
    failed = set()
    for _ in range(repeats):
        for (mode, way), runs in kinds.items():
            if (mode, way) in failed:
                continue
            try:
                runs.append(launch(tools, *arguments, "--steps", steps_of[way], "--mode", mode, *WAYS[way]))
            except programs.Failed as error:
                failed.add((mode, way))
                report.add(f"training, {mode}, {way}", False, str(error))
    found = report.data["training"] = {"arguments": [str(word) for word in arguments], "steps": steps_of, "runs": []}
    for (mode, way), runs in kinds.items():
        found["runs"] += [{"mode": mode, "device": way, **run} for run in runs]
    for mode in ("async", "sync"):
        if any((mode, way) in failed for way in WAYS):
            continue
        one = found[mode] = sum_up(kinds[mode, "cuda"])
        for way in ("cpu", "cuda, no stream waits"):
            one[f"{way.replace(', ', '_').replace(' ', '_')}_steps_per_second"] = median_of(
                run["steps_per_second"] for run in kinds[mode, way])
        timed = one["idle_share"] is not None
        report.add(f"training, {mode}: the GPU's steps are timed", timed, one["strategy"])
        report.figure(f"training, {mode}", f"{one['steps_per_second']:,.0f} steps/s on the GPU "
                      f"({one['cuda_no_stream_waits_steps_per_second']:,.0f} without stream waits), "
                      f"{one['cpu_steps_per_second']:,.0f} on the CPU")
        if timed:
            times = ", ".join(f"{part} {one['step_us'][part]:.1f}" for part in PARTS)
            report.figure(f"training, {mode}, a step in us", f"{times}; idle {one['idle_share']:.0%}")
    return found


def compare_accuracies(report, tools, mnist, quick):
    """Same job, same seed: async steps meet in another order each time, so accuracies agree up to some examples."""
    found = report.data["accuracy"] = {}
    steps = 1000 if quick else 6000
    sets = {"digits": (("--data", "digits", "--steps", steps), 0.02)}
    if mnist:
        sets["mnist"] = ((*TUTORIAL, "--data", mnist, "--steps", steps), 0.01)
    for model in ("logistic", "svm"):
        sets[model] = (("--model", model, "--combine", 100), 0.03)
        sets[f"{model}, keyed"] = (("--model", model, "--combine", 100, "--keyed"), 0.03)
    for name, (arguments, tolerance) in sets.items():
        for mode in ("async",) if "--combine" in arguments else ("async", "sync"):  # rows have no steps in common
            of = {}
            for device in ("cpu", "cuda"):
                run = launch(tools, *arguments, "--mode", mode, "--seed", 1, "--device", device, seconds=400)
                of[device] = run["test_accuracy"]
            found[f"{name}, {mode}"] = {**of, "tolerance": tolerance}
            report.add(f"accuracy, {name}, {mode}", abs(of["cuda"] - of["cpu"]) <= tolerance,
                       f"{of['cuda']:.4f} on the GPU, {of['cpu']:.4f} on the CPU; may differ by {tolerance}")


def compare_digests(report, tools, quick):
    arguments = ("--mode", "sync", "--seed", 1, "--steps", 200 if quick else 1000, "--device", "cuda")
    digests = report.data["digests"] = [launch(tools, *arguments)["digest"] for _ in range(2)]
    report.add("sync digest, twice", digests[0] == digests[1], ", ".join(digests))


def share(report, tools, quick):
    """What it costs that processes take turns with one GPU: the steps of all workers, by their number."""
    steps = 500 if quick else 3000
    found = report.data["sharing"] = {}
    for workers in (1, 2, 4):
        run = launch(tools, "--model", "mlp", "--batch", 100, "--data", SYNTHETIC, "--workers", workers, "--steps", steps,
                     "--device", "cuda:0")
        found[workers] = {"steps_per_second": run["steps_per_second"],
                          "idle_share": median_of(gpu["idle_share"] for gpu in gpus_of(run) if "idle_share" in gpu)}
    report.figure("workers on one GPU, steps/s", ", ".join(f"{n}: {one['steps_per_second']:,.0f}"
                                                           for n, one in found.items()))


def count(report, tools, quick):
    """Every worker adds one a given number of times to each of a million elements: the sum is known."""
    steps, workers = (50 if quick else 500), 3
    found = report.data["count"] = {}
    for layout in ("versioned", "inplace"):
        run = launch(tools, "--model", "count", "--size", 1000000, "--workers", workers, "--steps", steps,
                     "--layout", layout, "--device", "cuda,2:cpu")
        on_gpu = sum("gpu" in worker for worker in run["per_worker"])
        expected = float(steps * workers)
        found[layout] = {**run, "expected": expected, "workers_on_gpu": on_gpu}
        report.add(f"sum of two GPU workers and a CPU's, {layout}",
                   run["value_min"] == run["value_max"] == expected and on_gpu == 2,
                   f"{run['value_min']:.0f} to {run['value_max']:.0f} of {expected:.0f}; {on_gpu} workers on the GPU")
