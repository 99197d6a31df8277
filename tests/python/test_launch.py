"""launch_shm with a user's own program as its workers."""
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys

import pytest

import ps_shm
from boxes import free_port
from conftest import PATIENCE, read_line, segments, wait_until
from test_page import PAGES

LAUNCH = pathlib.Path(os.environ["PS_SHM_TOOLS"]) / "launch_shm"

COUNT = """
import os, sys, numpy as np, ps_shm
with ps_shm.Worker() as worker:
    v = worker.variable("v", np.zeros(10, np.float32))
    print("rank", os.environ["RANK"], os.environ["LOCAL_RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
    worker.wait_for_workers()
    while not worker.finished:
        v.push(np.ones(10, np.float32))
        worker.step()
"""


@pytest.fixture
def launch(job):
    started = []

    def start(*options, text=COUNT, program=None):
        command = [str(LAUNCH), "--job", job, *options, "--", *(program or [sys.executable, "-c", text])]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def workers_of(job):
    try:
        return [w for w in ps_shm.View(job).workers() if w.state == "alive"]
    except ps_shm.Error:
        return []


def test_a_program_has_a_rank_a_job_and_a_summary(launch, job):
    process = launch("--workers", "3", "--steps", "300", "--optimizer", "add")
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert sorted(re.findall(r"^rank (.*)$", out, re.M)) == [f"{i} {i} of 3" for i in range(3)]
    assert re.search(rf"^job {job}: async, versioned, add, python\S*, 3 workers\n  30\d steps", out, re.M)


def test_its_output_makes_room_for_one_json_object(launch, job):
    process = launch("--workers", "2", "--steps", "50", "--json")
    out, err = process.communicate(timeout=PATIENCE)
    assert json.loads(out)["job"] == job and "[worker 1] rank 1 1 of 2" in err


def test_it_is_replaced_where_it_dies(launch, job):
    process = launch("--workers", "2", "--restart-workers", "--optimizer", "add")
    first = wait_until(lambda: [w for w in workers_of(job) if w.rank == 1 and w.steps > 10], "worker 1 works")[0]
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: [w for w in workers_of(job) if w.rank == 1 and w.pid != first.pid], "another one has its rank")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and "it is being replaced" in err


def test_their_number_follows_the_setting(launch, job):
    process = launch("--workers", "1..3", "--optimizer", "add")
    wait_until(lambda: len(workers_of(job)) == 1, "there is one")
    with ps_shm.Worker(job, rank=9) as worker:
        worker.set(workers=3)
    wait_until(lambda: len(workers_of(job)) == 3, "there are three")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 130


def test_each_is_shown_a_gpu_of_those_that_there_are(job):
    def shown(*options):
        done = subprocess.run([str(LAUNCH), "--job", job, "--workers", "3", *options, "--", "sh", "-c",
                               "echo $RANK $CUDA_VISIBLE_DEVICES"], stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "CUDA_VISIBLE_DEVICES": "3,5"}, timeout=PATIENCE)
        return sorted(done.stdout.split("\n"))[1:4]

    assert shown() == ["0 3", "1 5", "2 3"]
    assert shown("--device", "cuda:1") == ["0 5", "1 5", "2 5"]


@pytest.mark.parametrize("before", ["", "trap '' TERM; "])
def test_what_it_has_started_ends_with_it(launch, before):
    inner = before + "echo pid $$; while :; do sleep 1000; done"
    process = launch("--workers", "1", program=["sh", "-c", 'sh -c "$0" & wait; true', inner])
    descriptor = os.pidfd_open(int(read_line(process.stdout).split()[1]))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE)
    has_ended = select.select([descriptor], [], [], PATIENCE)[0]
    if not has_ended:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    os.close(descriptor)
    assert has_ended


@pytest.mark.parametrize("before", ["", "trap '' TERM; "])
def test_it_ends_when_the_launcher_is_killed(launch, job, before):
    inner = before + "echo pid $$; while :; do sleep 1000; done"
    process = launch("--workers", "2", program=["sh", "-c", 'sh -c "$0" & wait; true', inner])
    descriptors = [os.pidfd_open(int(read_line(process.stdout).split()[1])) for _ in range(2)]
    process.kill()
    process.wait()
    for descriptor in descriptors:
        has_ended = select.select([descriptor], [], [], PATIENCE)[0]
        if not has_ended:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)
        assert has_ended
    assert not process.stdout.read()  # no process keeps it open
    wait_until(lambda: not segments(job), "the ps has removed the job")


def test_it_gets_the_environment_but_for_our_options(launch, monkeypatch):
    for name, value in {"PS_SHM_MINE": "1", "PS_SHM_LR": "0.5", "OPENBLAS_NUM_THREADS": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    process = launch("--workers", "1", program=["sh", "-c", "env; grep SigIgn /proc/self/status"])
    out, _ = process.communicate(timeout=PATIENCE)
    lines = out.split("\n")
    assert "PS_SHM_MINE=1" in lines and "OPENBLAS_NUM_THREADS=3" in lines and "PS_SHM_LR=0.5" not in lines
    assert "OMP_NUM_THREADS=1" in lines  # as torchrun sets it
    ignored = int(re.search(r"^SigIgn:\s*(\w+)$", out, re.M)[1], 16)
    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


def test_what_the_environment_says_of_worker_shm_is_passed_over(launch, monkeypatch):
    for name, value in {"PS_SHM_INIT_FROM": "/not/there", "PS_SHM_EVALUATE_EVERY": "5steps", "PS_SHM_CURVE": "3", "PS_SHM_DELAY": "7:5ms",
                        "PS_SHM_ON_NAN": "restore"}.items():
        monkeypatch.setenv(name, value)
    process = launch("--workers", "1", "--steps", "20")
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err


@pytest.mark.parametrize("more", [[], ["--restart-workers"]])
def test_its_failure_is_the_launchs(launch, job, more):
    process = launch("--workers", "2", *more, text="import sys; sys.exit(3)")
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1 and re.search(r"workers? \d(, \d)? ended with exit code 3", err), err  # both, or the first
    assert "signal" not in err and "launch_shm: ps" not in err


def test_one_that_joins_no_job_fails(launch, job):
    process = launch("--workers", "2", program=["true"])
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1 and f"none of the 2 processes joined job '{job}'; PS_SHM_JOB names it" in err, err


def test_the_job_that_it_joins_instead_is_named(launch, job, tmp_path):
    (tmp_path / "other.py").write_text(f"""
import os, ps_shm
if os.environ["RANK"] == "1":
    with ps_shm.Server("{job}-other", workers=1, mode="async", lr=0.1), ps_shm.Worker("{job}-other", rank=0):
        open("{tmp_path}/gate").read()
""")
    os.mkfifo(tmp_path / "gate")
    # the worker is not the process that the launcher has started
    process = launch("--workers", "2", program=["sh", "-c", f"'{sys.executable}' {tmp_path}/other.py; true"])
    said = next(line for line in process.stderr if "has joined" in line)
    (tmp_path / "gate").write_text("")
    _, err = process.communicate(timeout=PATIENCE)
    assert said == f"launch_shm: worker 1 has joined job '{job}-other', not job '{job}'\n"
    assert process.returncode == 1 and f"none of the 2 processes joined job '{job}', but job '{job}-other'" in err, err


def test_an_optimizer_that_makes_another_job_says_so_once(launch, job):
    pytest.importorskip("torch")
    process = launch("--workers", "1", text=f"""
import torch, ps_shm.torch
for _ in range(2):
    ps_shm.torch.Optimizer(torch.nn.Linear(1, 1), "{job}-other", lr=0.1, create=True).close()
""")
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1 and err.count(f"job '{job}-other' is not job '{job}' of launch_shm") == 1, err


@pytest.fixture
def page(job, tmp_path):
    """The program of the page, which says at its end how many steps its worker has made."""
    pytest.importorskip("torch")
    program = re.search(r"^```python\n(.*?)^```$", (PAGES / "pytorch.md").read_text(), re.M | re.S)[1].replace('"job"', f'"{job}-page"')
    (tmp_path / "train.py").write_text(program.replace("opt.close()", "print('steps', opt.worker.rank, opt.worker.steps)\nopt.close()"))
    return tmp_path / "train.py"


def test_the_program_of_the_page_runs_by_itself(page):
    done = subprocess.run([sys.executable, page], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)
    assert done.returncode == 0 and "steps 0 100\n" in done.stdout, done.stdout


def test_the_launcher_starts_the_program_of_the_page(launch, page, job):
    process = launch("--workers", "2", "--lr", "0.1", program=[sys.executable, str(page)])
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert sorted(re.findall(r"steps (\d) 100$", out, re.M)) == list("01") and f"job {job}: async" in out, out + err


def test_torchrun_starts_the_program_of_the_page(page, tmp_path):
    # PyTorch 1.13 with Python 3.11 fails without the last three, which log the output and show it, too.
    options = ["--nproc_per_node=4", "--master_addr=127.0.0.1", f"--master_port={free_port()}", "--redirects=1", "--tee=1",
               f"--log_dir={tmp_path}"]
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", *options, page],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout
    assert sorted(re.findall(r"steps (\d) 100$", done.stdout, re.M)) == list("0123"), done.stdout


def test_a_python_beside_the_launcher_has_the_packages_that_lie_there(job, tmp_path):
    for name in ("launch_shm", "ps_shm"):
        shutil.copy(LAUNCH.parent / name, tmp_path)
    (tmp_path / "python").symlink_to(sys.executable)
    done = subprocess.run([tmp_path / "launch_shm", "--job", job, "--workers", "1", "--", "python", "-c",
                           "import sys; print(sys.executable)"], stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
    assert done.stdout.strip() == str(tmp_path / "python")


@pytest.mark.parametrize("options, program, says", [
    (["--model", "mlp"], ["true"], "--model: an option of worker_shm only"),
    (["--delay", "1:5ms"], ["true"], "--delay: an option of worker_shm only"),
    ([], [], None),
    ([], ["/not/there"], "cannot start /not/there"),
])
def test_what_it_cannot_be_is_said(launch, job, options, program, says):
    if program:
        process = launch(*options, program=program)
    else:
        process = subprocess.Popen([str(LAUNCH), "--"], stderr=subprocess.PIPE, text=True)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode in (1, 2) and (says or "name a program after it") in err
