"""Inference engines that take a publication's generations: vLLM's interface, and notices over HTTP."""
import contextlib
import functools
import http.server
import json
import os
import signal
import socket
import threading
import types

import pytest
import torch

import ps_shm
import ps_shm.engines.http
import ps_shm.engines.sglang
import ps_shm.engines.vllm
from ps_shm.torch import _registration
import vllm_stub

factory = vllm_stub.install()


class Model(torch.nn.Module):
    """Takes the second half of each matrix, as the second of two ranks does with a parallel layer."""

    def load_weights(self, weights):
        self.seen = dict(weights)
        self.weights = {name: tensor[len(tensor) // 2:].clone() if tensor.dim() == 2 else tensor.clone()
                        for name, tensor in self.seen.items()}


class Source:
    """What vLLM's WeightSource is to a trainer, in 0.33."""

    def __init__(self, **tensors):
        self.tensors = tensors
        self.metadata = [types.SimpleNamespace(name=name, dtype=tensor.dtype, shape=tuple(tensor.shape), owners=None)
                         for name, tensor in tensors.items()]

    def owned_names(self, rank):
        return [meta.name for meta in self.metadata]

    def implements_iter_full(self):
        return True

    def iter_full(self):
        yield from self.tensors.items()


class OlderSource:
    """As Source, in 0.32."""

    def __init__(self, **tensors):
        self.tensors, self.held = tensors, None

    def metadata(self):
        return Source(**self.tensors).metadata

    def held_names(self):
        return self.held

    def __iter__(self):
        yield from self.tensors.items()


class Client:
    """A control plane whose engines are in this process."""

    def __init__(self, *engines):
        self.engines, self.calls = engines, []

    def _all(self, name, *given):
        self.calls.append(name)
        for engine in self.engines:
            getattr(engine, name)(*given)

    def init_weight_transfer_engine(self, info):
        for engine in self.engines:
            engine.init_transfer_engine(engine.parse_init_info(info))

    def start_weight_update(self):
        self._all("start_weight_update")

    def update_weights(self, info):
        assert json.loads(json.dumps(info)) == info, "it goes over HTTP"
        self._all("update_weights", info)

    def finish_weight_update(self, weight_version=None):
        self.version = weight_version
        self._all("finish_weight_update")


@pytest.fixture
def engine():
    made = []

    def make():
        ps_shm.engines.vllm.register()
        made.append(factory.WeightTransferEngineFactory.create_engine(
            types.SimpleNamespace(backend="ps_shm"),
            types.SimpleNamespace(parallel_config=None, model_config=types.SimpleNamespace(quantization=None)), torch.device("cpu"),
            Model()))
        return made[-1]

    yield make
    for one in made:
        one.shutdown()
        vars(one.model).clear()  # tensors that it has kept hold their generation


def test_a_worker_on_a_gpu_registers_what_it_copies_from(job, engine, monkeypatch):
    registered = []
    monkeypatch.setattr(_registration, "_driver", lambda: types.SimpleNamespace(
        cuMemHostRegister_v2=lambda address, size, flags: registered.append(address.value) or 0,
        cuMemHostUnregister=lambda address: registered.remove(address.value)))
    worker = engine()
    worker.device = torch.device("cuda:0")
    weights = {"w": torch.ones(5000, 3)}  # most of a row, which has 64 KiB
    with ps_shm.Publisher(job, weights, records=3) as publisher:
        worker.init_transfer_engine(worker.init_info_cls(job))
        for number in (1, 2, 3, 4):
            publisher.publish(weights)
            worker.start_weight_update()
            worker.receive_weights(worker.update_info_cls(number))
            worker.finish_weight_update()
            worker.model.seen.clear()
        assert len(registered) == 2 and publisher.trim() == 0
        worker.shutdown()
        assert not registered and publisher.trim() > 0


@pytest.mark.parametrize("kind", [Source, OlderSource])
def test_a_trainer_gives_every_worker_the_same_generation(job, engine, kind):
    source = kind(w=torch.zeros(4, 3, dtype=torch.bfloat16), b=torch.zeros(3))
    client = Client(engine(), engine())
    trainer = factory.WeightTransferTrainerFactory.trainer_init(
        ps_shm.engines.vllm.trainer_info(job, rank=0), client=client, source=source)
    for number in (1, 2, 3, 4):
        source.tensors["w"].fill_(number)
        source.tensors["b"].fill_(-number)
        vllm_stub.log.clear()
        trainer.send_weights()
        assert client.calls == ["start_weight_update", "update_weights", "finish_weight_update"]
        assert vllm_stub.log[-3:] == ["unchecked", "initialize", "finalize"]
        assert client.version == str(number)
        client.calls.clear()
        for one in client.engines:
            assert one.model.weights["w"].tolist() == [[number] * 3] * 2 and one.model.weights["b"].tolist() == [-number] * 3
            assert one.model.weights["w"].dtype == torch.bfloat16
        assert [one.acknowledged for one in trainer._publisher.readers()] == [number] * 2
    first, second = (one.model.seen["w"] for one in client.engines)
    first_place, second_place = first.data_ptr(), second.data_ptr()
    assert first_place != source.tensors["w"].data_ptr() and first_place != second_place, "each maps the same memory"
    trainer.shutdown()


def test_a_rank_that_does_not_publish_takes_part_in_gathering(job):
    gathered = []

    class Gathering(Source):
        def iter_full(self):
            for name, tensor in self.tensors.items():
                gathered.append(name)
                yield name, tensor

    client = Client()
    trainer = factory.WeightTransferTrainerFactory.trainer_init(
        ps_shm.engines.vllm.trainer_info(job, rank=1), client=client, source=Gathering(a=torch.zeros(1), b=torch.zeros(1)))
    trainer.send_weights()
    assert gathered == ["a", "b"] and client.calls == []
    trainer.shutdown()


def test_workers_refuse_another_generation_than_the_one_that_was_named(job, engine):
    one = engine()
    with pytest.raises(RuntimeError, match="init_weight_transfer_engine comes first"):
        one.update_weights({"generation": 1})
    with ps_shm.Publisher(job, {"w": ("float32", (2,))}) as publisher:
        one.init_transfer_engine(one.parse_init_info({"name": job}))
        publisher.publish({"w": torch.ones(2)})
        publisher.publish({"w": torch.ones(2)})
        with pytest.raises(RuntimeError, match=f"publication '{job}' has generation 2, not 1"):
            one.update_weights({"generation": 1})
        with pytest.raises(ps_shm.Timeout):
            one.update_weights({"generation": 3, "timeout": 0.01})
        for bad in ({"gen": 1}, {}):
            with pytest.raises(ValueError):
                one.parse_update_info(bad)
        one.update_weights({"generation": 2})
        assert one.model.weights["w"].tolist() == [1, 1]


def test_a_worker_that_has_not_loaded_everything_does_not_say_that_it_has(job, engine):
    with ps_shm.Publisher(job, {"w": ("float32", (2,))}) as publisher:
        one = engine()
        one.init_transfer_engine(one.parse_init_info({"name": job}))
        for number, acknowledged in ((1, 1), (2, 1), (3, 3)):
            publisher.publish({"w": torch.ones(2)})
            one.start_weight_update()
            one.model.load_weights = Model.load_weights.__get__(one.model) if number != 2 else lambda weights: 1 / 0
            if number == 2:
                with pytest.raises(ZeroDivisionError):
                    one.update_weights({"generation": number})
            else:
                one.update_weights({"generation": number})
            one.finish_weight_update()
            assert [reader.acknowledged for reader in publisher.readers()] == [acknowledged]


def test_a_worker_may_get_copies_that_its_model_can_change(job, engine):
    with ps_shm.Publisher(job, {"w": ("float32", (2,))}) as publisher:
        publisher.publish({"w": torch.ones(2)})
        one = engine()
        one.init_transfer_engine(one.parse_init_info({"name": job, "copies": True}))
        one.update_weights({"generation": 1})
        one.model.seen["w"].add_(1)
        assert one.model.seen["w"].tolist() == [2, 2]


def test_weights_that_cannot_be_published_are_refused(job):
    info = ps_shm.engines.vllm.trainer_info(job, rank=0)
    init = functools.partial(factory.WeightTransferTrainerFactory.trainer_init, info, client=Client())
    with pytest.raises(TypeError, match="iter_full"):
        init(source=None)
    source = Source(w=torch.zeros(1))
    source.owned_names = lambda rank: []
    older = OlderSource(w=torch.zeros(1))
    older.held = []
    for one in (source, older):
        with pytest.raises(ValueError, match="must own all"):
            init(source=one)


class Server:
    """An HTTP server that records what it is asked, and answers by `answers`."""

    def __init__(self):
        server = self
        self.calls, self.answers, self.key, self.fails_once = [], {}, None, None

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self):
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                server.calls.append((self.path, json.loads(body) if body else None))
                code, text = server.answers.get(self.path.split("?")[0], (200, b"{}"))
                if server.fails_once == self.path:
                    server.fails_once, code, text = None, 400, b"a weight update is already active"
                if server.key not in (None, self.headers["Authorization"]):
                    code, text = 401, b"Unauthorized"
                self.send_response(code)
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = answer

            def log_message(self, *given):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def servers():
    made = [Server(), Server()]
    yield made
    for one in made:
        one.close()


def test_engines_are_told_over_http(servers):
    engines = ps_shm.engines.http.Engines([servers[0].url + "/", servers[1].url])
    engines.init("weights", wait=5)
    engines.update(7)
    expected = [("/init_weight_transfer_engine", {"init_info": {"name": "weights", "group": "", "wait": 5, "copies": False}}),
                ("/pause?mode=keep", None), ("/start_weight_update", None),
                ("/update_weights", {"update_info": {"generation": 7, "timeout": 300.0}}),
                ("/finish_weight_update", {"weight_version": "7"}), ("/resume", None)]
    assert [one.calls for one in servers] == [expected, expected]


def test_an_engine_that_fails_is_named_and_all_of_them_go_on(servers):
    servers[1].answers["/update_weights"] = (500, b"no such generation")
    engines = ps_shm.engines.http.Engines([one.url for one in servers])
    with pytest.raises(ps_shm.engines.http.EngineError, match=f"POST {servers[1].url}/update_weights: 500 .*: no such generation") as raised:
        engines.update(7, pause="abort")
    assert raised.value.loaded == [servers[0].url]
    for one in servers:
        assert [path for path, _ in one.calls] == ["/pause?mode=abort", "/start_weight_update", "/update_weights",
                                                   "/finish_weight_update", "/resume"]
        assert one.calls[3][1] == {}, "the weights have no new name"
    for request, loaded in (("/pause", []), ("/finish_weight_update", [one.url for one in servers])):
        servers[1].answers = {request: (500, b"no")}
        with pytest.raises(ps_shm.engines.http.EngineError, match=request) as raised:
            engines.update(8)
        assert raised.value.loaded == loaded
    servers[0].close()
    with pytest.raises(ps_shm.engines.http.EngineError, match=f"POST {servers[0].url}/"):
        ps_shm.engines.http.Engines([servers[0].url], timeout=5).init("weights")


class Raw:
    """A server that reads a request, calls `answer` with the connection, and closes it."""

    def __init__(self, answer):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.is_asked, self.is_over = threading.Event(), threading.Event()

        def serve(connection):
            with connection, connection.makefile("rb") as stream, contextlib.suppress(OSError):
                lines = iter(stream.readline, b"\r\n")
                # All of it: a connection that is closed with bytes unread is reset, and the answer may be lost.
                stream.read(sum(int(line.split()[1]) for line in lines if line.lower().startswith(b"content-length:")))
                self.is_asked.set()
                answer(self, connection)

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(self.socket.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *given):
        self.is_over.set()
        self.socket.close()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}", b"220 mail.example.org ESMTP\r\n", b"",
                                    b"HTTP/1.1 200 OK\r\n\r\n<html>", b"HTTP/1.1 200 OK\r\n\r\n[1]",
                                    b"HTTP/1.1 200 OK\r\n\r\n\xff", b'HTTP/1.1 200 OK\r\n\r\n{"custom_weight_loader": ["%s"]}'
                                    % ps_shm.engines.sglang.LOADER.encode()])
def test_whatever_a_server_answers_ends_in_an_engine_error(answer):
    with Raw(lambda server, connection: connection.sendall(answer)) as server:
        engines = ps_shm.engines.http.Engines([server.url], kind="sglang", timeout=30)
        with pytest.raises(ps_shm.engines.http.EngineError, match=server.url):
            engines.init("weights")


def test_the_timeout_of_a_request_holds_for_all_of_it():
    def drip(server, connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        for _ in range(400):
            connection.sendall(b" ")
            if server.is_over.wait(0.05):
                return

    with Raw(drip) as server:
        with pytest.raises(ps_shm.engines.http.EngineError, match="timed out") as raised:
            ps_shm.engines.http.Engines([server.url], timeout=0.5).init("weights")
    assert raised.value.answers == {server.url: "timed out"}


def test_an_interrupted_update_waits_for_no_server_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(ps_shm.engines.http, "_INTERRUPTED_SECONDS", 0.2)
    answers = threading.Event()

    def answer(server, connection):
        if answers.is_set():
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            server.is_over.wait(60)

    with Raw(answer) as server:
        def interrupt():
            server.is_asked.wait(60)
            os.kill(os.getpid(), signal.SIGINT)

        engines = ps_shm.engines.http.Engines([server.url], timeout=3600)
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            engines.update(7)
        answers.set()
        engines.init("weights")  # has all of its time again


def test_requests_go_to_the_servers_themselves_with_the_headers_given(servers, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    servers[1].key = "Bearer secret"
    urls = [one.url for one in servers]
    with pytest.raises(ps_shm.engines.http.EngineError, match="401") as raised:
        ps_shm.engines.http.Engines(urls).init("weights")
    assert raised.value.answers[urls[0]] is None
    assert raised.value.answers[urls[1]].startswith("401")
    ps_shm.engines.http.Engines(urls, headers={"Authorization": "Bearer secret"}).init("weights")
    with pytest.raises(ps_shm.engines.http.EngineError) as raised:
        ps_shm.engines.http.Engines(urls, headers={"Authorization": "Bearer other"}).init("weights")
    assert "Bearer" not in str(raised.value)


@pytest.mark.parametrize("urls", ["http://127.0.0.1:8000", ["localhost"], ["localhost:8000"], ["http://"], ["http://a b:8000"],
                                  ["ftp://127.0.0.1"], ["http://127.0.0.1:port"], ["http://user:key@127.0.0.1:8000"], [8000]])
def test_an_address_that_is_none_is_refused_at_once(urls):
    with pytest.raises(ValueError, match="address") as raised:
        ps_shm.engines.http.Engines(urls)
    assert "key" not in str(raised.value)


def test_an_update_that_a_killed_trainer_has_left_is_ended_first(servers):
    servers[1].fails_once = "/start_weight_update"
    ps_shm.engines.http.Engines([one.url for one in servers]).update(7)
    for one in servers:
        assert [path for path, _ in one.calls] == [
            "/pause?mode=keep", "/start_weight_update", "/finish_weight_update", "/start_weight_update", "/update_weights",
            "/finish_weight_update", "/resume"]


def sglang(servers, ranks):
    for one, count in zip(servers, ranks):
        info = {"custom_weight_loader": ["ps_shm.engines.sglang.load"], "tp_size": count}
        one.answers["/server_info"] = (200, json.dumps(info).encode())
    return ps_shm.engines.http.Engines([one.url for one in servers], kind="sglang")


def test_sglang_servers_are_told_as_many_times_as_they_have_ranks(servers):
    engines = sglang(servers, (1, 4))
    with pytest.raises(RuntimeError, match="init"):
        engines.update(7)
    engines.init("weights", group="users", copies=True)
    engines.update(7)
    for one, ranks in zip(servers, (1, 4)):
        body = ps_shm.engines.sglang.request("weights", 7, ranks=ranks, version="7", group="users", timeout=300.0, copies=True)
        assert one.calls == [("/server_info", None), ("/pause_generation", {"mode": "retract"}), ("/begin_weight_update", {}),
                             ("/update_weights_from_tensor", body), ("/end_weight_update", {}), ("/continue_generation", {})]


def test_an_sglang_server_that_fails_leaves_its_update_and_goes_on(servers):
    engines = sglang(servers, (1, 1))
    engines.init("weights")
    servers[0].answers["/update_weights_from_tensor"] = (400, b"no such loader")
    servers[0].answers["/end_weight_update"] = (400, b"another error")
    with pytest.raises(ps_shm.engines.http.EngineError, match="update_weights_from_tensor: 400 .*: no such loader"):
        engines.update(7, pause="abort")
    for one in servers:
        assert [path for path, _ in one.calls][-3:] == ["/update_weights_from_tensor", "/end_weight_update", "/continue_generation"]


def test_what_an_engine_cannot_do_is_refused_before_it_is_asked(servers):
    with pytest.raises(ValueError, match="kind is 'vllm' or 'sglang', not 'tgi'"):
        ps_shm.engines.http.Engines([], kind="tgi")
    engines = sglang(servers, (1, 1))
    servers[1].answers["/server_info"] = (200, b'{"custom_weight_loader": null, "tp_size": 1}')
    with pytest.raises(ps_shm.engines.http.EngineError, match=f"{servers[1].url} was not started with --custom-weight-loader"):
        engines.init("weights")
    servers[1].answers["/server_info"] = (200, b'{"custom_weight_loader": ["ps_shm.engines.sglang.load"], "tp_size": 1, "dp_size": 2}')
    with pytest.raises(ps_shm.engines.http.EngineError, match=f"{servers[1].url} has --dp-size 2"):
        engines.init("weights")
    for one in servers:
        one.calls.clear()
    with pytest.raises(ValueError, match="pause is one of keep, abort, not 'wait'"):
        engines.update(7, pause="wait")
    with pytest.raises(ValueError, match="nothing was published"):
        engines.update(None)
    assert [one.calls for one in servers] == [[], []]
