#!/usr/bin/env python3
"""How long a job takes to get over each fault: kills and stops processes of real jobs, and reads when the job went on
from the times of its events.

    benches/recovery.py [--repeats 15]      about a minute; prints a Markdown table of medians and maxima in milliseconds
"""
import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

PATIENCE = 30.0


class Job:
    def __init__(self, tools, number):
        self.tools, self.name, self.processes = tools, f"recovery-{os.getpid()}-{number}", []

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.processes:
            process.wait()
        subprocess.run([self.tools / "inspect_shm", "rm", "--job", self.name], capture_output=True)

    def start(self, program, *arguments):
        process = subprocess.Popen([self.tools / program, "--job", self.name, *map(str, arguments)],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def inspect(self, *arguments):
        done = subprocess.run([self.tools / "inspect_shm", *arguments, "--job", self.name, "--json"],
                              capture_output=True, text=True)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def wait(self, fact):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = fact()
            if found:
                return found
            time.sleep(0.01)
        sys.exit(f"job {self.name} does not go on")

    def workers(self):
        return (self.inspect("workers") or {"workers": []})["workers"]

    def wait_training(self, number):
        self.wait(lambda: sum(w["steps"] > 50 and w["state"] == "alive" for w in self.workers()) == number)

    def event_after(self, unix_ns, kind, accept=lambda event: True):
        """Milliseconds from unix_ns to the first such event."""
        def first():
            events = (self.inspect("events", "--kind", kind) or {"events": []})["events"]
            return [e for e in events if e["unix_ns"] > unix_ns and accept(e)][:1]
        return (self.wait(first)[0]["unix_ns"] - unix_ns) / 1e6

    def count(self, workers, *settings):
        """A ps and workers that count, one step a millisecond."""
        server = self.start("ps_shm", "--workers", workers, *settings)
        started = [self.start("worker_shm", "--model", "count", "--count-size", 10000, "--steps", 10**9, "--count-interval", "1ms",
                              "--rank", rank, "--quiet") for rank in range(workers)]
        self.wait_training(workers)
        return server, started


def strike(process, number=signal.SIGKILL):
    now = time.time_ns()
    process.send_signal(number)
    return now


def worker_in_sync(job):
    _, workers = job.count(3, "--mode", "sync")
    now = strike(workers[1])
    return job.event_after(now, "decided", lambda e: 1 not in e["ranks"])


def stopped_in_sync(job):
    _, workers = job.count(3, "--mode", "sync", "--step-timeout", "100ms")
    now = strike(workers[1], signal.SIGSTOP)
    return job.event_after(now, "decided", lambda e: 1 not in e["ranks"])


def server_by_hand(job):
    server, _ = job.count(2)
    server.kill()
    server.wait()
    now = time.time_ns()
    job.start("ps_shm", "--adopt")
    return job.event_after(now, "adopted")


def launch(job, *settings):
    job.start("launch_shm", "--delay", "1ms", "--steps", 10**8, *settings)
    job.wait_training(3)


def kill_pid(pid):
    now = time.time_ns()
    os.kill(pid, signal.SIGKILL)
    return now


def server_of_launch(job):
    launch(job)
    return job.event_after(kill_pid(job.inspect("show")["ps_pid"]), "adopted")


def worker_of_launch(job):
    launch(job, "--restart-workers")
    return job.event_after(kill_pid(job.workers()[1]["pid"]), "joined", lambda e: e["rank"] == 1)


FAULTS = {
    "worker killed, sync: until the others' next step": worker_in_sync,
    "worker stopped, sync, --step-timeout 100ms: until the others' next step": stopped_in_sync,
    "ps killed: from starting ps_shm --adopt until it serves": server_by_hand,
    "ps killed under launch_shm: until another one serves": server_of_launch,
    "worker killed under launch_shm --restart-workers: until another one has joined": worker_of_launch,
}


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tools", type=pathlib.Path, default=root / "build/run/tools", help="the programs' folder")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    print("| fault | median ms | most ms |\n|---|---|---|")
    number = 0
    for fault, measure in FAULTS.items():
        times = []
        for _ in range(options.repeats):
            number += 1
            with Job(options.tools, number) as job:
                times.append(measure(job))
        print(f"| {fault} | {statistics.median(times):.1f} | {max(times):.1f} |", flush=True)


if __name__ == "__main__":
    main()
