"""What workers on one GPU do to each other: a death in sync mode, and turns on the GPU without and with NVIDIA's MPS."""
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time

import jobs
import programs

CONTROL = "nvidia-cuda-mps-control"
SHARING = {"ahead": (), "by step": ("--enqueue", "step"), "threads of one process": ("--workers-per-process", "auto")}
JOB_SECONDS = 30
DEATH_SECONDS = 30  # for both to begin, and for the other one to go on


def time_death(report, tools, quick):
    """Milliseconds from kill -9 of one of two workers in sync mode until the other one's steps go on without it."""
    job, name = f"gpu-check-{os.getpid()}", "death in sync mode"
    worker = [tools / "worker_shm", "--job", job, "--model", "count", "--count-size", 10**5 if quick else 5 * 10**7, "--steps", 10**9,
              "--together", "--quiet", *jobs.ONE_GPU]

    def steps():
        done = programs.run([tools / "inspect_shm", "show", "--job", job, "--json"], DEATH_SECONDS)
        return json.loads(done.out)["global_step"] if done.code == 0 else 0  # the job may not be there yet

    def milliseconds_until(step, *needed):
        began = time.monotonic()
        while steps() < step:
            for process in needed:
                if process.poll() is not None:
                    said = programs.Done(process.returncode, *process.communicate()).last_line()
                    raise programs.Failed(f"{process.args[0]}: exit code {process.returncode}: {said}")
            if time.monotonic() - began > DEATH_SECONDS:
                raise programs.Failed(f"no step {step} within {DEATH_SECONDS} s")
        return 1000 * (time.monotonic() - began)

    with jobs.case(report, name), programs.running([tools / "ps_shm", "--job", job, "--workers", 2, "--mode", "sync"]) as ps, \
            programs.running(worker) as dying, programs.running(worker) as other:
        milliseconds_until(1, ps, dying, other)
        before = milliseconds_until(steps() + 10, ps, dying, other) / 10
        dying.kill()
        # The step under way may still be closed with what the dead one has pushed.
        after = milliseconds_until(steps() + 2, ps, other)
        report.data["death_in_sync"] = {"goes_on_after_ms": after, "step_ms": before}
        report.add(name, True, f"the other one goes on after {after:.0f} ms; a step of both took {before:.1f} ms")


@contextlib.contextmanager
def mps():
    """Runs its daemon, and yields the environment of its clients; None where it does not start."""
    with tempfile.TemporaryDirectory() as folder:
        env = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        try:  # the daemon would keep a pipe open
            done = programs.run(["sh", "-c", f"exec {CONTROL} -d >/dev/null 2>&1"], 30, env)
            yield env if done.code == 0 else None
        finally:  # whatever is left of the time
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(CONTROL, input="quit\n", text=True, env={**os.environ, **env}, timeout=30, capture_output=True)


def share(report, tools, quick):
    """Steps of four workers that share a GPU."""
    data, steps = ("synthetic:20x10x600", 30) if quick else (jobs.SYNTHETIC, 4000)
    found = report.data["mps"] = {}

    def measure(kind, env):
        for way, options in SHARING.items():
            with jobs.case(report, f"four workers on one GPU {kind}, {way}"):
                run = jobs.launch(tools, *jobs.TUTORIAL, "--data", data, "--workers", 4, "--steps", steps, *jobs.ONE_GPU, *options,
                                  seconds=JOB_SECONDS, env=env)
                found.setdefault(kind, {})[way] = run["steps_per_second"]
        rates = ", ".join(f"{way} {rate:,.0f}" for way, rate in found.get(kind, {}).items())
        report.figure(f"four workers on one GPU {kind}, steps/s", rates or "none")

    measure("without MPS", None)
    if shutil.which(CONTROL) is None:
        return report.add("sharing with MPS", None, f"{CONTROL} is not installed")
    with mps() as env:
        if env is None:
            return report.add("sharing with MPS", None, f"{CONTROL} does not start")
        measure("with MPS", env)
        report.add("sharing with MPS", len(found.get("with MPS", {})) == len(SHARING), "each way")
