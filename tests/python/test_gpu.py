"""Models on a GPU, tested without one: the PyTorch part runs on the CPU, with a link that records the order of its
calls.

In a build with -Dcuda=simulated the link is the real one, on the simulated GPU. To give Python enough room for that
build's thread-local storage, set GLIBC_TUNABLES=glibc.rtld.optional_static_tls=4000000.
"""
import contextlib
import importlib
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import PATIENCE

import ps_shm
import ps_shm.torch
from ps_shm.torch import _gpu, _model, _optimizer
from models import half_model, small_model, train


class NotedLink:
    """Does with the bundle what a GpuLink does with addresses on a GPU."""

    stream = 7

    def __init__(self, bundle, places, sent, log):
        self.bundle, self.places, self.sent, self.log = bundle, places, sent, log

    def pull(self):
        self.log.append("pull")
        self.bundle.pull(self.places)

    def push(self):
        self.log.append("push")
        self.bundle.push(self.sent)

    def close(self):
        self.log.append("close")


class NotedStream:
    def __init__(self, log, number):
        self.log, self.number = log, number

    def wait_stream(self, other):
        self.log.append(f"{self.number} waits for {other.number}")


def link_of(bundle, log, parameters, gradients, device):
    def tensors(addresses):
        made = []
        for address, name in zip(addresses, bundle.names):
            assert address % 256 == 0
            size, shape = bundle[name].size, bundle[name].shape
            made.append(np.ctypeslib.as_array((np.ctypeslib.ctypes.c_float * size).from_address(address)).reshape(shape))
        return made

    return NotedLink(bundle, tensors(parameters), tensors(gradients), log)


class Linking:
    """A bundle with a link() of its own."""

    def __init__(self, bundle, log):
        self.bundle, self.log = bundle, log

    def link(self, parameters, gradients, *, device, wire):
        self.log.append(wire)
        try:
            return self.bundle.link(parameters, gradients, device=device, wire=wire)  # that of the simulated GPU
        except ps_shm.Error as error:
            assert "GPU" in str(error) or "CUDA" in str(error) or "driver" in str(error)
            return link_of(self.bundle, self.log, parameters, gradients, device)


@pytest.fixture
def log(monkeypatch):
    """Makes the CPU pass for a GPU. Returns the recorded calls, in order."""
    noted = []
    monkeypatch.setattr(_model, "is_on_gpu", lambda p: p.device.type == "cpu")
    monkeypatch.setattr(_optimizer, "is_on_gpu", lambda p: p.device.type == "cpu")
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: NotedStream(noted, 1))
    monkeypatch.setattr(_gpu, "_stream_of", lambda link, device: NotedStream(noted, 2))
    gpu = _gpu.Gpu
    monkeypatch.setattr(_optimizer, "Gpu", lambda bundle, parameters, wire: gpu(Linking(bundle, noted), parameters, wire))
    return noted


@pytest.mark.parametrize("settings, theirs", [
    ({"optimizer": "adam", "lr": 0.01}, lambda p: torch.optim.Adam(p, lr=0.01)),
    ({"mode": "sync", "lr": 0.1}, lambda p: torch.optim.SGD(p, lr=0.1)),
])
def test_it_trains_as_the_optimizer_of_torch_does(job, log, settings, theirs):
    plain, model = small_model(), small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, **settings) as opt:
        expected, got = train(plain, theirs(plain.parameters()), 20), train(model, opt, 20)
        assert got == pytest.approx(expected, rel=1e-3)
        for a, b in zip(plain.state_dict().values(), model.state_dict().values()):
            torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4)
        kept = opt.state_dict()
        model.load_state_dict(small_model(4).state_dict())
        opt.assign()
        for a, b in zip(small_model(4).parameters(), model.parameters()):
            assert torch.equal(a, b)
    other = small_model(4)
    with ps_shm.torch.Optimizer(other, job, create=True, restore=kept, **settings) as opt:
        assert opt.global_step == 20


def test_workers_on_gpus_share_the_cores(job, log, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(12)))
    for given, allowed in ({}, 8), ({"workers": 4}, 3), ({"workers": 100}, 1), ({"threads": 2}, 2):
        with ps_shm.torch.Optimizer(small_model(), job, create=True, lr=0.1, **given) as opt:
            assert opt.worker.settings["threads"] == allowed


def test_a_job_that_is_made_for_a_model_on_a_gpu_has_chunks_for_gpus(job, log):
    for given, expected in ({}, "gpu"), ({"chunk_bytes": 4096}, 4096), ({"chunk_bytes": "auto"}, None), ({"wire": "bfloat16-push"}, "gpu"):
        with ps_shm.torch.Optimizer(small_model(), job, create=True, lr=0.1, **given) as opt:
            assert opt.worker.settings["chunk_bytes"] == expected


def test_a_model_on_a_gpu_joins_a_job_with_other_chunks(job, log):
    with ps_shm.Server(job, lr=0.1):
        with ps_shm.torch.Optimizer(small_model(), job, create=True, lr=0.1) as opt:
            assert opt.worker.settings["chunk_bytes"] is None


def test_the_link_gets_the_transfer_dtype(job, log):
    for given, expected in ({}, "float32"), ({"wire": "bfloat16-push"}, "bfloat16-push"):
        log.clear()
        with ps_shm.torch.Optimizer(small_model(), job, create=True, lr=0.1, **given):
            assert log[0] == expected
    with pytest.raises(ValueError, match="wire='bfloat16': it is 'float32', or 'bfloat16-push', with which gradients are rounded"):
        ps_shm.torch.Optimizer(small_model(), job, create=True, lr=0.1, wire="bfloat16")


def test_on_the_cpu_nothing_is_transferred_and_the_transfer_dtype_does_not_matter(job):
    plain, model = small_model(), small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1, wire="bfloat16-push") as opt:
        assert train(model, opt, 5) == pytest.approx(train(plain, torch.optim.SGD(plain.parameters(), lr=0.1), 5), rel=1e-5)


def test_a_worker_on_the_cpu_has_one_thread_and_its_job_chunks_by_size(job):
    with ps_shm.torch.Optimizer(small_model(), job, create=True, lr=0.1) as opt:
        assert (opt.worker.settings["threads"], opt.worker.settings["chunk_bytes"]) == (1, None)


def test_a_view_says_which_gpu_a_worker_uses(job, log):
    with ps_shm.torch.Optimizer(small_model(), job, create=True, lr=0.1):
        gpu = ps_shm.View(job).workers()[0].gpu
        if "pull" in log:  # recorded by the link, which uses none
            assert gpu is None
        else:
            assert gpu.uuid == "01234567-89ab-cdef-fedc-ba9876543210" and gpu.pci_address == "0000:01:00.0"
            assert (gpu.node, gpu.pulls, gpu.pushes, gpu.native_adds) == (None, "kernel", "staged", False)
            assert gpu.registered_bytes > 0
            assert repr(gpu) == f"<GPU {gpu.uuid}: pulls: kernel, pushes: staged>"
    assert isinstance(ps_shm.GpuUse, type)


def test_parameters_of_half_precision_have_masters_of_float32(job, log):
    model = half_model(torch.bfloat16)
    with ps_shm.torch.Optimizer(model, job, create=True, optimizer="adam", lr=0.01) as opt:
        places = [p.data_ptr() for p in model.parameters()]
        train(model, opt, 10)
        for name, p in model.named_parameters():
            values = torch.from_numpy(ps_shm.View(job).values(name))
            assert values.dtype == torch.float32 and torch.equal(values.to(p.dtype), p.detach())
        assert places == [p.data_ptr() for p in model.parameters()]


def test_each_transfer_waits_for_what_torch_has_enqueued(job, log):
    model = small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, lr=0.1) as opt:
        log.clear()
        train(model, opt, 2)
        waits = [entry for entry in log if "waits" in entry]
        assert waits == ["2 waits for 1"] * 4
        if "pull" in log:  # recorded by the link
            assert log == ["2 waits for 1", "push", "2 waits for 1", "pull"] * 2


def test_parameters_lie_in_a_block_and_come_back_there(job, log):
    model = small_model()
    with ps_shm.torch.Optimizer(model, job, create=True, lr=1.0) as opt:
        tensors = [p.data for p in model.parameters()]
        assert all(t.data_ptr() % 256 == 0 for t in tensors)
        assert len({t.storage().data_ptr() for t in tensors}) == 1
        place = model[0].weight.data_ptr()
        model[0].weight.data = model[0].weight.data.clone()
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        before = model[0].weight.detach().clone()
        opt.step()
        assert model[0].weight.data_ptr() == place
        torch.testing.assert_close(model[0].weight.detach(), before - 1)


def test_without_a_gpu_a_link_says_why(worker):
    bundle = worker.variables({"a": np.zeros(64, np.float32)})
    if not torch.cuda.is_available():
        with contextlib.suppress(ps_shm.Error):  # a simulated GPU accepts any address
            with pytest.raises(ps_shm.Error, match="GPU|CUDA|driver"):
                bundle.link([256], [512], device=1)
    with pytest.raises(ValueError, match="aligned to 256 bytes"):
        bundle.link([4], [512], device=0)
    with pytest.raises(ValueError, match="unknown wire 'bf17'"):
        bundle.link([256], [512], device=0, wire="bf17")


def test_models_on_several_devices_are_refused(job):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, device="meta"))
    with pytest.raises(TypeError, match="on meta; pass the model on the CPU"):
        ps_shm.torch.Optimizer(model, job, create=True)


@pytest.fixture
def gpu_checks(monkeypatch):
    """Imports a module of gpu_check."""
    monkeypatch.syspath_prepend(str(pathlib.Path(os.environ["PS_SHM_SOURCE"]) / "tools" / "dev" / "gpu_checks"))
    return importlib.import_module


def test_what_gpu_check_does_with_pytorch(gpu_checks):
    """Its program, on the CPU."""
    python_package, table = gpu_checks("python_package"), gpu_checks("table")
    done = subprocess.run([sys.executable, python_package.PROGRAM, "check", "cpu", "4"], check=True, stdout=subprocess.PIPE, timeout=PATIENCE)
    report = table.Report({"cuda": {}})
    python_package.judge(report, json.loads(done.stdout.splitlines()[-1]))
    assert len(report.checks) == 3 and report.all_hold(), report.checks


def test_gpu_check_ends_workers_that_block_and_keeps_what_was_before_them(gpu_checks, monkeypatch):
    pytorch, processes = gpu_checks("pytorch"), []

    def block(*role):
        words = [sys.executable, "-c", "import signal; signal.pause()", *role]
        processes.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True))
        return processes[-1]

    monkeypatch.setattr(pytorch, "start", block)
    monkeypatch.setattr(pytorch, "SECONDS", 0.1)
    said = pytorch.check("cpu", 4)
    assert "training" in next(said)
    found = next(said)
    assert found["training"]["moved"] > 0 and "worker" in found["sums"]["error"] and "took longer" in found["sums"]["error"]
    assert [process.wait(PATIENCE) for process in processes] == [-9, -9]
    said.close()


def test_gpu_check_times_what_takes_a_generation_and_not_the_wait_for_it(gpu_checks, monkeypatch):
    pytorch = gpu_checks("pytorch")

    class Subscriber:
        """Each generation comes at the fourth look; all time is spent in here."""

        now, looks, step = 0.0, 0, 0

        def __init__(self, name, model):
            self.model = model

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def update(self, wait=False):
            Subscriber.looks += 1
            if Subscriber.looks % 4 != 0:
                Subscriber.now += 10
                return self.update(wait) if wait else None
            Subscriber.now += 1
            self.step += 1
            for tensor in self.model.buffers():
                tensor.fill_(self.step)
            return self.step

    monkeypatch.setattr(ps_shm.torch, "Subscriber", Subscriber)
    monkeypatch.setattr(pytorch.time, "perf_counter", lambda: Subscriber.now)
    assert pytorch.read("a", "cpu", 0)["seconds"] == [1.0] * pytorch.GENERATIONS
    monkeypatch.setattr(Subscriber, "update", lambda self: setattr(Subscriber, "now", Subscriber.now + 10))
    assert "no generation after that of step 0" in pytorch.read("a", "cpu", 0)["error"]
