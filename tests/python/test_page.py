"""The code blocks of docs/python.md form one program, those of docs/pytorch.md, of docs/data.md and of each section of
docs/publication.md others, and they run."""
import gc
import pathlib
import re

import test_torchrl  # before the stub of vLLM, which TorchRL would find

import numpy
import pytest
import torch

import ps_shm
import ps_shm.engines.http
import ps_shm.engines.torchrl
import ps_shm.torch
import test_engines

PAGES = pathlib.Path(__file__).resolve().parents[2] / "docs"


def blocks_of(name):
    """Yields the line before each block that runs, and the block."""
    page = (PAGES / name).read_text()
    for block in re.finditer(r"^```python\n(.*?)^```$", page, re.M | re.S):
        yield page[: block.start(1)].count("\n"), block[1]


def section_of(page, line):
    return next(one for one in reversed(page[:line]) if one.startswith("## "))


def run(name, line, text, names):
    exec(compile("\n" * line + text, str(PAGES / name), "exec"), names)


@pytest.mark.parametrize("page, least, printed", [("python.md", 6, ""), ("pytorch.md", 6, r"100 Staleness\(.*\) 0\.1")])
def test_the_blocks_of_the_page_run_one_after_the_other(job, tmp_path, monkeypatch, capsys, page, least, printed):
    monkeypatch.chdir(tmp_path)
    names = {}
    blocks = list(blocks_of(page))
    assert len(blocks) >= least
    for line, text in blocks:
        run(page, line, text.replace('"job"', f'"{job}j"'), names)
    assert re.match(printed, capsys.readouterr().out)


class Collector(test_torchrl.Collector):
    """As TorchRL's, with one worker in this process."""

    def __init__(self, make_envs, policy, *, frames_per_batch, total_frames, weight_sync_schemes):
        super().__init__(policy)
        (self.scheme,) = weight_sync_schemes.values()
        self.batches = range(total_frames // frames_per_batch)
        self.scheme.init_on_sender(model_id="policy", context=self)
        self.scheme.connect()

    def __iter__(self):
        return iter(self.batches)

    def update_policy_weights_(self):
        self.scheme.send()

    def shutdown(self):
        self.generation = self.scheme._shared_transport._publisher.generation
        self.scheme.shutdown()


@pytest.fixture
def server():
    made = test_engines.Server()
    made.answers["/server_info"] = (200, b'{"custom_weight_loader": ["ps_shm.engines.sglang.load"], "tp_size": 1}')
    yield made
    made.close()


def test_the_blocks_of_the_page_on_data_run(job, monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    names = {}
    for line, text in blocks_of("data.md"):
        run("data.md", line, text.replace('"job"', f'"{job}"'), names)
    assert capsys.readouterr().out == "20 steps\n[1, 3, 5, 7, 9]\n50 batches\n"


@pytest.mark.parametrize("section, calls", [("PyTorch", 0), ("NumPy", 0), ("Several writers", 0), ("vLLM", 1 + 3 * 5), ("SGLang", 1 + 5), ("TorchRL", 0),
                                            ("A plain folder", 0)])
def test_the_blocks_of_a_section_of_the_page_on_publications_run(job, server, monkeypatch, tmp_path, capsys, section, calls):
    if not hasattr(torch, "func"):
        monkeypatch.setattr(torch, "func", torch.nn.utils.stateless, raising=False)
    model, trained = torch.nn.Linear(4, 2), []
    names = {
        "ps_shm": ps_shm, "torch": torch, "model": model, "policy": model, "copy": torch.nn.Linear(4, 2),
        "inputs": torch.ones(1, 4), "train": lambda *given: trained.append(given), "rank": 0, "make_env": None,
        "gather": lambda: {"w": torch.ones(512, 512, dtype=torch.bfloat16), "b": torch.ones(512, dtype=torch.bfloat16)}.items(),
        "world_size": 1, "numpy": numpy, "expert": lambda name: numpy.full((64, 64), int(name[-1]), numpy.float32),
        "client": test_engines.Client(), "source": test_engines.Source(w=torch.ones(2)), "MultiSyncCollector": Collector,
    }
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    page = (PAGES / "publication.md").read_text().splitlines()
    blocks = [block for block in blocks_of("publication.md") if section_of(page, block[0]) == f"## {section}"]
    assert len(blocks) == {"PyTorch": 3, "Several writers": 2, "vLLM": 2}.get(section, 1)
    for line, text in blocks:
        text = re.sub(r"http://127.0.0.1:\d+", server.url, text.replace("range(1000)", "range(3)"))
        text = text.replace("/dev/shm/weights", str(tmp_path / "weights")).replace('"MODEL"', repr(str(tmp_path / "model")))
        run("publication.md", line, re.sub(r'"(weights|gathered|sharded|experts)"', lambda name: f'"{job}{name[1][0]}"', text), names)
    assert len(server.calls) == calls and (not calls or server.calls[-1][0] in ("/resume", "/continue_generation"))
    if section == "PyTorch":
        assert torch.equal(names["outputs"], model(names["inputs"]))
        assert torch.equal(names["copy"].weight, model.weight)
    if section == "Several writers":
        assert names["publisher"].generation == len(trained) == 3 and names["experts"].generation == 1
    if section == "TorchRL":
        assert len(trained) == 5 and names["collector"].generation == 6
    if section == "A plain folder":
        assert (tmp_path / "weights/g00000001/config.json").exists()
        assert capsys.readouterr().out == f"{tmp_path}/weights/g00000001\n"
        names["publisher"].close()
    for name in ("weights", "generation"):
        names.pop(name, None)  # which hold a generation
    gc.collect()
    for one in names.values():
        if isinstance(one, (ps_shm.Publisher, ps_shm.Subscriber, ps_shm.torch.Publisher, ps_shm.torch.Subscriber)):
            one.close()
    if "trainer" in names:
        names["trainer"].shutdown()
