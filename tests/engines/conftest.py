"""Servers of tiny models, each started once, and names of publications."""
import itertools
import os
import pathlib
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.append(str(pathlib.Path(__file__).resolve().parent))
import pytest  # noqa: E402

import models  # noqa: E402
import ps_shm.engines.http  # noqa: E402
from served import Server  # noqa: E402

_numbers = itertools.count()
TOKENS = [5, 17, 300, 44, 45, 46, 2, 99, 100, 7, 260, 31]


class Served:
    """A model, and the server of a copy of it."""

    def __init__(self, folder, kind, *options, **changes):
        self.model = models.model(kind, **changes)
        self.folder = models.save(self.model, folder)
        self.options = options
        self.server = self.start()

    def start(self):
        return Server(self.folder, *self.options)

    def expected(self):
        return models.logprobs(self.model, TOKENS)


def is_close(ones, others):
    return models.distance(ones, others) < 1e-3


@pytest.fixture(scope="session")
def started(tmp_path_factory):
    """All servers, started at the same time: a Llama whose vocabulary is no multiple of 64, and a Qwen2 of tied matrices."""
    folder = tmp_path_factory.mktemp("served")
    processed = ("--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1")  # as TRL wants it
    made = {"llama": Served(folder / "llama", "llama", *processed, vocab_size=500),
            "qwen2": Served(folder / "qwen2", "qwen2", tie_word_embeddings=True)}
    yield made
    for one in made.values():
        one.server.stop()


@pytest.fixture
def llama(started):
    started["llama"].server.wait()
    return started["llama"]


@pytest.fixture
def qwen2(started):
    started["qwen2"].server.wait()
    return started["qwen2"]


@pytest.fixture
def name():
    """Of a publication, which servers that have subscribed to it would keep."""
    made = f"test-{os.getpid()}-{next(_numbers)}"
    yield made
    for one in pathlib.Path("/dev/shm").glob(f"ps*.{made}*"):
        one.unlink()


@pytest.fixture
def engines(llama):
    return ps_shm.engines.http.Engines([llama.server.url])
