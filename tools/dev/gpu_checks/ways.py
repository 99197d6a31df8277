"""The tutorials' job in each way in which it can share one GPU, and large counts by one thread and by eight."""
import jobs

WAYS = {"ahead": ("--enqueue", "ahead"), "by step": ("--enqueue", "step"), "by kernels": ("--enqueue", "kernels"),
        "gradients in bfloat16": ("--wire", "bfloat16-push"), "threads of one process": ("--workers-per-process", "auto")}
MODES, WORKERS, REPEATS = ("async", "sync"), (1, 3), 2
COUNTS = {"": (), ", adam": ("--optimizer", "adam"), ", chunks of 1 MiB": ("--chunk-bytes", "1MiB")}
JOB_SECONDS = 45


def train(report, tools, quick):
    """Twice, so that the digests of the sync jobs can be compared. The repeats of all ways take turns."""
    data, steps = ("synthetic:20x10x600", 30) if quick else (jobs.SYNTHETIC, 3000)
    kinds = {(mode, workers, way): [] for workers in WORKERS for mode in MODES for way in WAYS}
    found = report.data["jobs"] = {mode: {str(workers): {} for workers in WORKERS} for mode in MODES}
    for repeat in range(REPEATS):
        for (mode, workers, way), runs in kinds.items():
            if len(runs) < repeat:  # it has failed
                continue
            with jobs.case(report, f"job, {mode}, {workers} workers, {way}"):
                runs.append(jobs.launch(tools, *jobs.TUTORIAL, "--data", data, "--seed", 1, "--mode", mode, "--workers", workers,
                                        "--steps", steps, *jobs.ONE_GPU, *WAYS[way], seconds=JOB_SECONDS))
                found[mode][str(workers)][way] = {**jobs.sum_up(runs), "digests": [run["digest"] for run in runs]}
                report.write()  # whatever ends this program
    compared = {kind: {run["digest"] for run in runs} for kind, runs in kinds.items() if kind[0] == "sync" and len(runs) > 1}
    differ = [f"{workers} workers, {way}" for (_, workers, way), digests in compared.items() if len(digests) > 1]
    report.add("sync digests repeat", bool(compared) and not differ, "; ".join(differ) or f"of {len(compared)} jobs")
    for mode in MODES:
        for workers, ways in found[mode].items():
            rates = ", ".join(f"{way} {one['steps_per_second']:,.0f}" for way, one in ways.items())
            report.figure(f"jobs, {mode}, {workers} workers on one GPU, steps/s", rates)


def count(report, tools, quick):
    """Pushes of large variables, which so many threads of the worker apply."""
    found = report.data["large_counts"] = {}
    for size in (2 * 10**5,) if quick else (2 * 10**7, 10**8):
        for way, options in COUNTS.items():
            name = f"count of {size:,}{way}"
            with jobs.case(report, name):
                runs = {threads: jobs.launch(tools, "--model", "count", "--count-size", size, "--workers", 1, "--steps", 40,
                                             "--threads", threads, *jobs.ONE_GPU, *options, seconds=JOB_SECONDS) for threads in (1, 8)}
                found[name] = {str(threads): jobs.sum_up([run]) for threads, run in runs.items()}
                report.add(name, all(run["value_min"] == run["value_max"] for run in runs.values()),
                           ", ".join(f"{threads} threads: {run['steps_per_second']:.1f} steps/s" for threads, run in runs.items()))
