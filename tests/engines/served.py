"""A server of vLLM, as a process of its own, and requests to it."""
import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

START_SECONDS = 600


class Server:
    """Serves the model in a folder until stop().

    It is started at once, and may be used after wait().
    """

    def __init__(self, folder, *options):
        with socket.create_server(("127.0.0.1", 0)) as one:
            port = one.getsockname()[1]
        self.shared = set()  # inodes of the memory that it would leave
        self.url = f"http://127.0.0.1:{port}"
        self.log = open(f"{folder}-{port}.log", "w+")
        command = [os.path.join(os.path.dirname(sys.executable), "vllm"), "serve", str(folder), "--host", "127.0.0.1", "--port",
                   str(port), "--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager", "--max-model-len", "128",
                   "--weight-transfer-config", '{"backend": "ps_shm"}', *options]
        environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
                       "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        start_new_session=True)

    def wait(self):
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self.process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.get("/health")
                return self
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.2)
        raise RuntimeError(f"the server has not started:\n{self.text()[-4000:]}")

    def text(self):
        self.log.flush()
        self.log.seek(0)
        return self.log.read()

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return answer.read()

    def post(self, path, body=None):
        request = urllib.request.Request(self.url + path, json.dumps(body or {}).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.loads(answer.read() or b"null")

    def logprobs(self, tokens):
        """The log probability of each token but the first, given those before it."""
        answer = self.post("/v1/completions", {"model": "tiny", "prompt": tokens, "max_tokens": 1, "temperature": 0, "echo": True,
                                               "prompt_logprobs": 0})
        found = answer["choices"][0]["prompt_logprobs"]
        return [one[str(token)]["logprob"] for one, token in zip(found[1:], tokens[1:])]

    def version(self):
        return json.loads(self.get("/weight_info"))["weight_version"]

    def kill(self):
        """Kills the server. Its other processes notice; what they share is left to stop()."""
        for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
            with contextlib.suppress(OSError):
                if os.getpgid(int(maps.parent.name)) == self.process.pid:
                    self.shared |= {int(line.split()[4]) for line in maps.read_text().splitlines() if "/dev/shm/" in line}
        self.process.kill()
        self.process.wait()

    def stop(self):
        """Ends the server with all of its processes."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        until = time.monotonic() + 30
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < until:
                os.killpg(self.process.pid, 0)
                threading.Event().wait(0.1)
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()
        for path in pathlib.Path("/dev/shm").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if not path.name.startswith("ps_shm") and path.stat().st_ino in self.shared:
                    path.unlink()
