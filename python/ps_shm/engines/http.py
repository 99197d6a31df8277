"""Tells inference engines over HTTP that there is a generation to take."""

import contextlib
import http.client
import json
import socket
import threading
import time
import urllib.parse
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, Union

from . import sglang

_INTERRUPTED_SECONDS = 5.0  # for the requests that let engines go on after Ctrl-C, together


class EngineError(RuntimeError):
    """An engine refused a request or did not answer. The text has its address, the request, and the engine's answer.

    Attributes:
        answers: for each engine's address what is wrong with its answer to that request, or None if it accepted it.
        loaded: the addresses of the engines that have the new weights, if it was raised by update().
    """

    def __init__(self, text: str, answers: Optional[Mapping[str, Optional[str]]] = None) -> None:
        super().__init__(text)
        self.answers: dict[str, Optional[str]] = dict(answers or {})
        self.loaded: list[str] = []


# One request: its path, and its body for the engine at an address.
_Request = tuple[str, Callable[[str], Optional[dict[str, Any]]]]


def _request(path: str, body: Optional[dict[str, Any]] = None) -> _Request:
    return path, lambda url: body


# The requests of an update are pause, begin, load, end and resume.
class _VLLM:
    PAUSES = {"keep": "keep", "wait": "wait", "abort": "abort"}

    def pause(self, mode: str) -> _Request:
        return _request(f"pause?mode={mode}")

    def begin(self) -> _Request:
        return _request("start_weight_update")

    def load(self, generation: int, version: str, timeout: float) -> _Request:
        return _request("update_weights", {"update_info": {"generation": generation, "timeout": timeout}})

    def end(self, version: Optional[str]) -> _Request:  # None: the update has failed
        return _request("finish_weight_update", {} if version is None else {"weight_version": version})

    def resume(self) -> _Request:
        return _request("resume")


class _SGLang:
    # Requests that are retracted compute the state of their tokens anew, with the new weights.
    PAUSES = {"keep": "retract", "abort": "abort"}

    def __init__(self) -> None:
        self.publication: dict[str, Any] = {}
        self.ranks: dict[str, int] = {}  # by address

    def pause(self, mode: str) -> _Request:
        return _request("pause_generation", {"mode": mode})

    def begin(self) -> _Request:
        return _request("begin_weight_update", {})

    def load(self, generation: int, version: str, timeout: float) -> _Request:
        if not self.publication:
            raise RuntimeError("init() comes before update()")
        return "update_weights_from_tensor", lambda url: sglang.request(
            generation=generation, ranks=self.ranks[url], version=version, timeout=timeout, **self.publication
        )

    def end(self, version: Optional[str]) -> _Request:
        return _request("end_weight_update", {})

    def resume(self) -> _Request:
        return _request("continue_generation", {})


class Engines:
    """vLLM or SGLang servers that take the weights of a publication (ps_shm.engines.vllm, ps_shm.engines.sglang).

        publisher = ps_shm.torch.Publisher("weights", model)
        engines = ps_shm.engines.http.Engines(["http://127.0.0.1:8000"])
        engines.init("weights")
        engines.update(publisher.publish())

    vLLM servers run with VLLM_SERVER_DEV_MODE=1, which the requests for weights need, and SGLang servers with
    --custom-weight-loader ps_shm.engines.sglang.load.

    Proxies of the environment are not used: the servers are on this machine.

    Args:
        urls: the addresses of the servers.
        kind: "vllm" or "sglang".
        timeout: how long each request may take, from connecting to the end of the answer, in seconds.
        headers: what is sent with each request, such as {"Authorization": "Bearer KEY"} for servers with --api-key.

    Raises:
        ValueError: an address is none of HTTP, or has a user's name in it, for which there are headers.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        kind: str = "vllm",
        timeout: float = 300.0,
        headers: Optional[Mapping[str, str]] = None,
    ) -> None:
        if kind not in ("vllm", "sglang"):
            raise ValueError(f"kind is 'vllm' or 'sglang', not {kind!r}")
        if isinstance(urls, (str, bytes)):
            raise ValueError(f"urls is a list of addresses, such as [{urls!r}]")
        self._urls = [_checked(url).rstrip("/") for url in urls]
        self._kind: Union[_VLLM, _SGLang] = _VLLM() if kind == "vllm" else _SGLang()
        self._timeout = timeout
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        for name, value in self._headers.items():
            if any(sign in f"{name}{value}" for sign in "\r\n"):
                raise ValueError(f"the header {name!r} has more than one line")
        self._until: Optional[float] = None  # when requests after an interruption have to have ended

    def init(self, name: str, *, group: str = "", wait: Optional[float] = 60.0, copies: bool = False) -> None:
        """Names the publication to all engines, once, before the first update.

        Args:
            name: the name of the publication.
            group: the Unix group that it is shared with.
            wait: how long the engines wait for it to exist, in seconds. SGLang waits in update().
            copies: whether models get copies of the tensors, for models that change what they load. Otherwise they
                get the shared memory itself, which is read-only.

        Raises:
            EngineError: an engine did not accept it, or was not started as it needs to be; the publication does not fit
                vLLM's model.
        """
        if isinstance(self._kind, _SGLang):
            for url, info in self._post(_request("server_info"), "GET").items():
                if sglang.LOADER not in (info.get("custom_weight_loader") or []):
                    raise EngineError(f"{url} was not started with --custom-weight-loader {sglang.LOADER}")
                if info.get("dp_size", 1) != 1:
                    raise EngineError(f"{url} has --dp-size {info['dp_size']}: SGLang loads tensors in one replica only")
                if not isinstance(info.get("tp_size"), int):
                    raise EngineError(f"{url} does not say its tp_size: it is no SGLang server, or another version of one")
                self._kind.ranks[url] = info["tp_size"]
            self._kind.publication = {"name": name, "group": group, "copies": copies}
            return
        info = {"name": name, "group": group, "wait": wait, "copies": copies}
        self._post(_request("init_weight_transfer_engine", {"init_info": info}))

    def update(self, generation: Optional[int], *, pause: str = "keep", version: Optional[str] = None) -> None:
        """Makes all engines load a generation, and returns when all of them have it.

        Requests that are being answered wait meanwhile. The engines answer again afterwards, whether they have loaded
        it or not. After an EngineError, its `loaded` has those with the new weights; the others have the old ones, as far
        as they have answered. Ctrl-C ends it, at most five seconds later.

        Args:
            generation: what publish() returned. The next one must not be published before this returns.
            pause: what happens to requests that are being answered: "keep" continues them with the new weights,
                "wait" completes them first (vLLM only), "abort" ends them.
            version: what the engines call these weights. None: the number of the generation.

        Raises:
            EngineError: an engine did not load it.
            ValueError: publish() has returned None, as subscribers hold all records; or an engine of this kind does not
                have that `pause`.
        """
        if generation is None:
            raise ValueError("nothing was published, as subscribers hold all records: give the publisher more of them")
        kind, version = self._kind, version or str(generation)
        if pause not in kind.PAUSES:
            raise ValueError(f"pause is one of {', '.join(kind.PAUSES)}, not {pause!r}")
        load = kind.load(generation, version, self._timeout)
        loaded: list[str] = []
        try:
            self._update(pause, version, load, loaded)
        except EngineError as error:
            error.loaded = loaded
            raise
        finally:
            self._until = None

    # Adds the addresses of the engines that have accepted the request for loading to `loaded`.
    def _update(self, pause: str, version: str, load: _Request, loaded: list[str]) -> None:
        kind = self._kind
        with self._followed_by(kind.resume(), kind.resume()):
            self._post(kind.pause(kind.PAUSES[pause]))
            with self._followed_by(kind.end(version), kind.end(None)):
                try:
                    self._post(kind.begin())
                except EngineError:  # a trainer that was killed may have left its update unfinished
                    with contextlib.suppress(EngineError):
                        self._post(kind.end(None))
                    self._post(kind.begin())
                try:
                    loaded += self._post(load)
                except EngineError as error:
                    loaded += [url for url, fault in error.answers.items() if fault is None]
                    raise

    # Sends one request after the block, or another one if the block raises; what the block has raised comes first.
    @contextlib.contextmanager
    def _followed_by(self, request: _Request, after_failure: _Request) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception) and self._until is None:
                self._until = time.monotonic() + _INTERRUPTED_SECONDS
            with contextlib.suppress(EngineError):
                self._post(after_failure)
            raise
        self._post(request)

    # Sends the request to all engines at the same time, and returns when each has answered: the answers by address.
    def _post(self, request: _Request, method: str = "POST") -> dict[str, Any]:
        path, body = request
        until = time.monotonic() + self._timeout
        if self._until is not None:
            until = min(until, self._until)
        sent = {url: _Exchange(method, f"{url}/{path}", body(url), self._headers, until) for url in self._urls}
        answers = {url: exchange.wait() for url, exchange in sent.items()}
        failed = [exchange for exchange in sent.values() if exchange.fault is not None]
        if failed:
            faults = {url: exchange.fault for url, exchange in sent.items()}
            raise EngineError(f"{method} {failed[0].url}: {failed[0].fault}", faults) from failed[0].cause
        return answers


def _checked(url: str) -> str:
    """The address. Raises ValueError if it is none."""
    try:
        parts = urllib.parse.urlsplit(url)
        is_good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not set(url) & set(" \t\r\n")
    except (ValueError, AttributeError, TypeError):
        is_good = False
    if not is_good:
        raise ValueError(f"{url!r} is no address of a server, which looks like http://127.0.0.1:8000")
    if parts.username is not None:
        raise ValueError(f"the address of {parts.hostname} has a user's name in it: give headers={{'Authorization': ...}}")
    return url


class _Exchange:
    """A request and its answer, on a thread of its own that holds nobody up: neither the end of the program, nor wait()."""

    def __init__(self, method: str, url: str, body: Optional[dict[str, Any]], headers: Mapping[str, str], until: float) -> None:
        self.url = url
        self.fault: Optional[str] = None
        self.cause: Optional[Exception] = None
        self._answer: Any = None
        self._until = until
        self._done = threading.Event()
        parts = urllib.parse.urlsplit(url)
        connection = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = connection(parts.hostname or "", parts.port, timeout=max(0.001, until - time.monotonic()))
        target = urllib.parse.urlunsplit(("", "", parts.path, parts.query, ""))
        data = json.dumps(body).encode() if body is not None else b"" if method == "POST" else None
        threading.Thread(target=self._run, args=(method, target, data, headers), daemon=True).start()

    def _run(self, method: str, target: str, data: Optional[bytes], headers: Mapping[str, str]) -> None:
        fault, answer = None, None
        try:
            self._connection.request(method, target, data, dict(headers))
            response = self._connection.getresponse()
            text = response.read()
            if not 200 <= response.status < 300:
                fault = f"{response.status} {response.reason}: {text[:2000].decode(errors='replace')}"
            elif method == "GET":
                answer = json.loads(text)
                if not isinstance(answer, dict):
                    fault = "the answer is no JSON object"
        except Exception as error:  # a server can make http.client, json and the socket raise a dozen kinds
            fault, self.cause = f"{type(error).__name__}: {error}", error
        finally:
            self._connection.close()
        if not self._done.is_set():  # otherwise wait() has given up
            self.fault, self._answer = fault, answer
            self._done.set()

    def wait(self) -> Any:
        """What the server has answered; sets `fault` if it has not, by the time given."""
        try:
            if self._done.wait(max(0.0, self._until - time.monotonic())):
                return self._answer
        except BaseException:
            self._give_up()
            raise
        self._give_up()
        self.fault = "timed out"
        return None

    def _give_up(self) -> None:
        self._done.set()
        sock = self._connection.sock
        if sock is not None:  # whatever the thread waits for there ends
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


__all__ = ["EngineError", "Engines"]
