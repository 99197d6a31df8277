"""Tells inference engines over HTTP that there is a generation to take."""

import concurrent.futures
import contextlib
import json
import urllib.error
import urllib.request
from typing import Any, Callable, Iterator, Optional, Sequence, Union

from . import sglang


class EngineError(RuntimeError):
    """An engine refused a request or did not answer. The text has its address, the request, and the engine's answer."""


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

    Args:
        urls: the addresses of the servers.
        kind: "vllm" or "sglang".
        timeout: how long each request may take, in seconds.
    """

    def __init__(self, urls: Sequence[str], *, kind: str = "vllm", timeout: float = 300.0) -> None:
        if kind not in ("vllm", "sglang"):
            raise ValueError(f"kind is 'vllm' or 'sglang', not {kind!r}")
        self._urls = [url.rstrip("/") for url in urls]
        self._kind: Union[_VLLM, _SGLang] = _VLLM() if kind == "vllm" else _SGLang()
        self._timeout = timeout

    def init(self, name: str, *, group: str = "", wait: float = 60.0, copies: bool = False) -> None:
        """Names the publication to all engines, once, before the first update.

        Args:
            name: the name of the publication.
            group: the Unix group that it is shared with.
            wait: how long the engines wait for it to exist, in seconds. SGLang waits in update().
            copies: whether models get copies of the tensors, for models that change what they load. Otherwise they
                get the shared memory itself, which is read-only.

        Raises:
            EngineError: an engine did not accept it, or was not started as it needs to be.
        """
        if isinstance(self._kind, _SGLang):
            for url, info in self._post(_request("server_info"), "GET").items():
                if sglang.LOADER not in (info.get("custom_weight_loader") or []):
                    raise EngineError(f"{url} was not started with --custom-weight-loader {sglang.LOADER}")
                if info.get("dp_size", 1) != 1:
                    raise EngineError(f"{url} has --dp-size {info['dp_size']}: SGLang loads tensors in one replica only")
                self._kind.ranks[url] = info["tp_size"]
            self._kind.publication = {"name": name, "group": group, "copies": copies}
            return
        info = {"name": name, "group": group, "wait": wait, "copies": copies}
        self._post(_request("init_weight_transfer_engine", {"init_info": info}))

    def update(self, generation: Optional[int], *, pause: str = "keep", version: Optional[str] = None) -> None:
        """Makes all engines load a generation, and returns when all of them have it.

        Requests that are being answered wait meanwhile. The engines answer again afterwards, whether they have loaded
        it or not. After an EngineError, engines may have the old weights, the new ones, or layers of both, until an
        update succeeds.

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
        with self._followed_by(kind.resume(), kind.resume()):
            self._post(kind.pause(kind.PAUSES[pause]))
            with self._followed_by(kind.end(version), kind.end(None)):
                self._post(kind.begin())
                self._post(load)

    # Sends one request after the block, or another one if the block raises; what the block has raised comes first.
    @contextlib.contextmanager
    def _followed_by(self, request: _Request, after_failure: _Request) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with contextlib.suppress(EngineError):
                self._post(after_failure)
            raise
        self._post(request)

    # Sends the request to all engines at the same time, and returns when each has answered: the answers by address.
    def _post(self, request: _Request, method: str = "POST") -> dict[str, Any]:
        path, body = request
        with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, len(self._urls))) as threads:
            sent = {url: threads.submit(self._post_one, f"{url}/{path}", body(url), method) for url in self._urls}
        return {url: one.result() for url, one in sent.items()}

    def _post_one(self, url: str, body: Optional[dict[str, Any]], method: str) -> Any:
        data = json.dumps(body).encode() if body is not None else b"" if method == "POST" else None
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            said = error.read(2000).decode(errors="replace")
            raise EngineError(f"{method} {url}: {error.code} {error.reason}: {said}") from error
        except OSError as error:  # URLError and a timeout of the socket are of this class
            raise EngineError(f"{method} {url}: {getattr(error, 'reason', error)}") from error
        return json.loads(text) if method == "GET" else None


__all__ = ["EngineError", "Engines"]
