"""vLLM serves what was published, exactly as transformers computes it, and goes on with its weights if an update fails."""
import os
import re
import signal
import threading

import pytest
import torch

import models
import ps_shm
import ps_shm.engines.http
import ps_shm.engines.vllm
import ps_shm.torch
from conftest import TOKENS, is_close
from ps_shm.engines.http import EngineError, Engines


def published(name, tensors):
    specs = {key: (str(one.dtype).removeprefix("torch."), tuple(one.shape)) for key, one in tensors.items()}
    return ps_shm.Publisher(name, specs, records=3)


def is_exact(served):
    return is_close(served.server.logprobs(TOKENS), served.expected())


@pytest.fixture
def good(name, llama, engines):
    """Checks that the server has the weights that it had, and takes others."""
    before = llama.server.logprobs(TOKENS)

    def check():
        assert is_close(llama.server.logprobs(TOKENS), before)
        models.renew(llama.model, 100 + int(name.rpartition("-")[2]))
        with ps_shm.torch.Publisher(f"{name}-good", llama.model) as publisher:
            engines.init(f"{name}-good")
            engines.update(publisher.publish())
            assert is_exact(llama)

    return check


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_server_has_the_weights_of_each_update(request, name, kind):
    served = request.getfixturevalue(kind)
    engines = Engines([served.server.url])
    with ps_shm.torch.Publisher(name, served.model, records=3) as publisher:
        engines.init(name)
        for seed, pause in ((11, "keep"), (12, "wait"), (13, "abort")):
            old = served.server.logprobs(TOKENS)
            models.renew(served.model, seed)
            engines.update(publisher.publish(seed), pause=pause)
            assert is_exact(served) and not is_close(served.expected(), old)
            assert served.server.version() == str(publisher.generation)
            assert [one.acknowledged for one in publisher.readers()] == [publisher.generation]


@pytest.mark.parametrize("fault", ["name", "shape", "part", "layer"])
def test_a_publication_that_does_not_fit_is_refused(name, llama, engines, good, fault):
    tensors = dict(llama.model.state_dict())
    layer, query = "model.layers.1.", "model.layers.1.self_attn.q_proj.weight"
    if fault == "name":
        tensors["model.layers.1.unknown.weight"] = torch.zeros(3)
        said = "unknown"
    elif fault == "shape":
        tensors[query] = torch.zeros(64, 64)
        said = f"does not take '{query}'"
    else:
        tensors = {key: one for key, one in tensors.items() if not key.startswith(layer if fault == "layer" else query)}
        said = r"lacks model.layers.1.self_attn.qkv_proj.weight \(16384 of 32768 elements\)"
        if fault == "layer":
            said = r"lacks model.layers.1.self_attn.qkv_proj.weight \(0 of 32768 elements\), .*layers.1.mlp.down_proj.weight \(0 "
    with published(name, tensors), pytest.raises(EngineError, match="init_weight_transfer_engine") as raised:
        engines.init(name)
    assert re.search(said, str(raised.value))
    good()


def test_a_generation_that_is_not_there_or_not_the_newest_is_refused(name, llama, engines, good):
    with ps_shm.torch.Publisher(name, llama.model, records=3) as publisher:
        engines.init(name)
        number = publisher.publish()
        publisher.publish()
        with pytest.raises(EngineError, match="update_weights"):
            engines.update(number)
        with pytest.raises(EngineError, match="update_weights"):
            Engines([llama.server.url], timeout=2).update(number + 2)
    good()


@pytest.mark.parametrize("request_count", range(1, 6))
def test_the_next_trainer_ends_the_update_of_a_killed_one(name, llama, engines, request_count):
    with ps_shm.torch.Publisher(name, llama.model, records=3) as publisher:
        engines.init(name)
        number = publisher.publish()
        child = os.fork()
        if child == 0:
            post, counted = Engines._post, []

            def post_and_die(self, *given):
                answers = post(self, *given)
                counted.append(given)
                if len(counted) == request_count:
                    os.kill(os.getpid(), signal.SIGKILL)
                return answers

            Engines._post = post_and_die
            try:
                engines.update(number)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        models.renew(llama.model, 30 + request_count)
        later = Engines([llama.server.url])
        later.init(name)
        later.update(publisher.publish())
        assert is_exact(llama)


class Clients:
    """Ask the servers all the time, from six threads."""

    def __init__(self, servers):
        self.servers, self.answers, self.errors, self.is_over = servers, [], [], threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(place,)) for place in range(6)]

    def ask(self, place):
        server = self.servers[place % len(self.servers)]
        try:
            while not self.is_over.is_set():
                self.answers.append(server.logprobs(TOKENS))
        except Exception as error:
            self.errors.append(error)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *given):
        self.is_over.set()
        for thread in self.threads:
            thread.join()


def test_a_late_server_takes_part_and_a_killed_one_holds_nothing_back(name, llama):
    with ps_shm.torch.Publisher(name, llama.model, records=3) as publisher:
        models.renew(llama.model, 50)
        number = publisher.publish()
        late = llama.start().wait()
        try:
            servers = [llama.server, late]
            engines = Engines([one.url for one in servers])
            engines.init(name)
            engines.update(number)
            expected = [llama.expected()]
            assert all(is_close(one.logprobs(TOKENS), expected[0]) for one in servers)
            with Clients(servers) as clients:
                for seed, pause in ((51, "keep"), (52, "wait"), (53, "keep"), (54, "wait")):
                    models.renew(llama.model, seed)
                    expected.append(llama.expected())
                    engines.update(publisher.publish(), pause=pause)
                    assert all(is_close(one.logprobs(TOKENS), expected[-1]) for one in servers)
            assert not clients.errors and clients.answers
            for answer in clients.answers:
                assert any(is_close(answer, one) for one in expected)
            late.kill()
            models.renew(llama.model, 55)
            with pytest.raises(EngineError, match=late.url) as raised:
                engines.update(publisher.publish())
            assert late.url not in raised.value.loaded
            Engines([llama.server.url]).update(publisher.publish())
            assert is_exact(llama)
        finally:
            late.stop()


def test_vllms_own_interface_for_trainers(name, llama):
    from vllm.distributed.weight_transfer.base import ModuleSource
    from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    trainer = WeightTransferTrainerFactory.trainer_init(
        ps_shm.engines.vllm.trainer_info(name, rank=0), client=HTTPVLLMWeightSyncClient(llama.server.url), source=ModuleSource(llama.model))
    try:
        models.renew(llama.model, 60)
        trainer.send_weights()
        assert is_exact(llama)
    finally:
        trainer.shutdown()
