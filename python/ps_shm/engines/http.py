"""Tells inference engines over HTTP that there is a generation to take."""

import concurrent.futures
import json
import urllib.error
import urllib.request
from typing import Any, Optional, Sequence


class EngineError(RuntimeError):
    """An engine refused a request or did not answer. The text has its address, the request, and the engine's answer."""


class Engines:
    """vLLM servers that take the weights of a publication (ps_shm.engines.vllm).

        publisher = ps_shm.torch.Publisher("weights", model)
        engines = ps_shm.engines.http.Engines(["http://127.0.0.1:8000"])
        engines.init("weights")
        engines.update(publisher.publish())

    The servers run with VLLM_SERVER_DEV_MODE=1, which the requests for weights need.

    Args:
        urls: the addresses of the servers.
        timeout: how long each request may take, in seconds.
    """

    def __init__(self, urls: Sequence[str], *, timeout: float = 300.0) -> None:
        self._urls = [url.rstrip("/") for url in urls]
        self._timeout = timeout

    def init(self, name: str, *, group: str = "", wait: float = 60.0) -> None:
        """Names the publication to all engines, once, before the first update.

        Args:
            name: the name of the publication.
            group: the Unix group that it is shared with.
            wait: how long the engines wait for it to exist, in seconds.

        Raises:
            EngineError: an engine did not accept it.
        """
        self._post("init_weight_transfer_engine", {"init_info": {"name": name, "group": group, "wait": wait}})

    def update(self, generation: int, *, pause: str = "keep", version: Optional[str] = None) -> None:
        """Makes all engines load a generation, and returns when all of them have it.

        Requests that are being answered wait meanwhile. The engines answer again afterwards, whether they have loaded
        it or not.

        Args:
            generation: the number that publish() returned. The next one must not be published before this returns.
            pause: what happens to requests that are being answered: "keep" continues them with the new weights,
                "wait" completes them first, "abort" ends them.
            version: what the engines call these weights. None: the number of the generation.

        Raises:
            EngineError: an engine did not load it.
        """
        try:
            self._post(f"pause?mode={pause}")
            self._post("start_weight_update")
            self._post("update_weights", {"update_info": {"generation": generation, "timeout": self._timeout}})
            self._post("finish_weight_update", {"weight_version": version or str(generation)})
        finally:
            self._post("resume")

    # Sends the request to all engines at the same time, and returns when each has answered.
    def _post(self, path: str, body: Optional[dict[str, Any]] = None) -> None:
        with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, len(self._urls))) as threads:
            sent = [threads.submit(self._post_one, f"{url}/{path}", body) for url in self._urls]
        for one in sent:
            one.result()

    def _post_one(self, url: str, body: Optional[dict[str, Any]]) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            raise EngineError(f"POST {url}: {error.code} {error.reason}: {error.read(2000).decode(errors='replace')}") from error
        except OSError as error:  # URLError and a timeout of the socket are of this class
            raise EngineError(f"POST {url}: {getattr(error, 'reason', error)}") from error


__all__ = ["EngineError", "Engines"]
