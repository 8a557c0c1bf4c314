"""The servers, each a process of its own: there once it answers, gone when its owner leaves. And who loads them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from measure.results import PeerMissing
from monolith.core.free_ports import free_port
from serving.workload import MODEL

__all__ = [
    "SETTINGS",
    "WITH_OUR_PARSER",
    "Generator",
    "Load",
    "Ours",
    "Peer",
    "Setting",
    "Target",
    "check_installed",
    "first_request",
]

ROOT = Path(__file__).resolve().parents[1]
START_S = 120.0
END_S = 30.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go, and in which form."""

    protocol: str
    port: int
    path: str
    requests: Path
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Load:
    """What the clients saw."""

    per_s: float
    waits_ms: NDArray[np.float64]
    at_s: NDArray[np.float64]
    """When each answer came, from ``begin_s`` on."""
    begin_s: float
    """Unix time of the first request."""

    def p99_ms(self) -> float:
        """Return the wait that one request in a hundred exceeds."""
        return float(np.percentile(self.waits_ms, 99))


class _Process:
    def __init__(self, command: Sequence[str], environment: Mapping[str, str], **pipes: Any) -> None:
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, "PYTHONPATH": paths, **environment},
            start_new_session=True,  # a peer has processes of its own, which end with it
            **pipes,
        )

    def pause(self) -> None:
        """Hold it and what it started: workers of a server that is not asked may still take a core."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it run again."""
        os.killpg(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it and what it started."""
        for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            if number == signal.SIGCONT:
                continue
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Generator(_Process):
    """The process that offers load."""

    def __init__(self) -> None:
        super().__init__(["-m", "serving.load"], {}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def begin(
        self, target: Target, *, clients: int, seconds: float, settle_s: float, rate: float | None = None
    ) -> None:
        """Order load; ``end`` waits for it."""
        order = {
            "protocol": target.protocol,
            "host": "127.0.0.1",
            "port": target.port,
            "path": target.path,
            "content_type": target.content_type,
            "requests": str(target.requests),
            "clients": clients,
            "seconds": seconds,
            "settle_s": settle_s,
            "rate": rate,
        }
        assert self.process.stdin is not None
        print(json.dumps(order), file=self.process.stdin, flush=True)

    def end(self) -> Load:
        """Return what the clients saw; a request that failed is an error."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {"error": "the load generator ended"}
        if "error" in found:
            raise RuntimeError(f"a request failed under load: {found['error']}")
        return Load(found["per_s"], np.array(found["waits_ms"]), np.array(found["at_s"]), found["begin_s"])

    def offer(self, target: Target, **order: Any) -> Load:
        """Offer load and return what the clients saw."""
        self.begin(target, **order)
        return self.end()


class Ours(_Process):
    """``monolith serve`` on its native request path; a quicker poll for versions where one is to be swapped."""

    name = "monolith"

    def __init__(
        self,
        folder: Path,
        requests: Mapping[str, Path],
        threads: int,
        poll_s: float = 1.0,
        busy_threads: int = 0,
    ) -> None:
        busy = "import threading\ndef spin():\n while True: pass\n" if busy_threads else ""
        start = "threading.Thread(target=spin, daemon=True).start()\n" * busy_threads
        command = [
            "-c",
            f"{busy}{start}from monolith.cli.main import main; main()",
            "--log-level",
            "warning",
            "serve",
            str(folder),
        ]
        command += ["--name", MODEL, "--port", "0", "--rest-port", "0", "--json", "--version-poll-s", str(poll_s)]
        command += ["--model-threads", str(threads), "--native", "on"]
        super().__init__(command, {}, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.close()
            raise RuntimeError(f"monolith serve ended with {self.process.returncode} before it listened")
        said = json.loads(line)
        self.address, self.rest_address = str(said["address"]), str(said["rest_address"])
        path = "/tensorflow.serving.PredictionService/Predict"
        self.grpc = Target("grpc", _port(self.address), path, requests["grpc"])
        self.rest = Target("http", _port(self.rest_address), f"/v1/models/{MODEL}:predict", requests["rest"])

    def await_version(self, version: int) -> None:
        """Wait until a version answers and is the only one."""
        deadline_s = time.monotonic() + START_S
        while True:
            states = self._states()
            if states.get(version) == "AVAILABLE" and list(states.values()).count("AVAILABLE") == 1:
                return
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"version {version} is not served alone after {START_S} s: {states}")
            time.sleep(0.1)  # each look takes some of the server's time

    def metrics(self) -> list[str]:
        """Return the lines of the metrics page."""
        with urllib.request.urlopen(f"http://{self.rest_address}/metrics", timeout=END_S) as answer:
            return str(answer.read().decode()).splitlines()

    def _states(self) -> dict[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.rest_address}/v1/models/{MODEL}", timeout=END_S) as answer:
                found = json.load(answer)["model_version_status"]
        except urllib.error.HTTPError:  # none is known yet
            return {}
        return {int(each["version"]): str(each["state"]) for each in found}


@dataclass(frozen=True, slots=True)
class Setting:
    """How a peer is started."""

    form: str
    workers: int
    threads: int
    batch: int = 1
    parser: str = "protobuf"

    def __str__(self) -> str:
        reader = "" if self.form == "features" else f" read by {self.parser}"
        return f"{self.form}{reader}, {self.workers} workers of {self.threads} threads, batches of {self.batch}"


SETTINGS: dict[str, Sequence[Setting]] = {
    "fastapi": (
        Setting("features", 2, 1),
        Setting("example_batch", 2, 1),
        Setting("example_batch", 1, 1),
    ),
    "litserve": (
        Setting("base64", 2, 1, 16),
        Setting("base64", 1, 1, 16),
        Setting("base64", 2, 1),
        Setting("features", 2, 1, 16),
        Setting("features", 1, 1, 16),
    ),
}
"""What is tried of each peer. The first won on two cores, and is what a quick run takes."""

WITH_OUR_PARSER: dict[str, Sequence[Setting]] = {
    "fastapi": (
        Setting("example_batch", 2, 1, parser="monolith"),
        Setting("example_batch", 1, 2, parser="monolith"),
        Setting("example_batch", 1, 1, parser="monolith"),
    ),
    "litserve": (
        Setting("base64", 2, 1, 16, parser="monolith"),
        Setting("base64", 1, 1, 16, parser="monolith"),
        Setting("base64", 2, 1, parser="monolith"),
    ),
}
"""The same with the parser that no peer has."""

_CONTENT = {"example_batch": "application/octet-stream", "base64": "application/json", "features": "application/json"}


_PACKAGES = {"fastapi": ("fastapi", "uvicorn", "uvloop", "httptools"), "litserve": ("litserve", "uvicorn", "zmq")}


def check_installed(name: str) -> None:
    """Refuse a peer that is not there."""
    for package in _PACKAGES[name]:
        if importlib.util.find_spec(package) is None:
            raise PeerMissing(f"{package} is not installed; pip install --no-deps -r requirements-bench.lock")


class Peer(_Process):
    """FastAPI or LitServe with the model in PyTorch."""

    def __init__(self, name: str, setting: Setting, model: Path, requests: Mapping[str, Path]) -> None:
        self.name = name
        self.setting = setting
        port = free_port()
        command = ["-m", f"serving.{name}_peer", str(port), str(setting.workers)]
        if name == "litserve":
            command.append(str(setting.batch))
        threads = str(setting.threads)
        environment = {
            "PEER_MODEL": str(model),
            "PEER_FORM": setting.form,
            "PEER_PARSER": setting.parser,
            "PEER_THREADS": threads,
            "OMP_NUM_THREADS": threads,
        }
        super().__init__(command, environment, stdout=subprocess.DEVNULL)
        self.target = Target("http", port, "/predict", requests[setting.form], _CONTENT[setting.form])
        try:
            self._await(setting.workers)
        except BaseException:
            self.close()
            raise

    def _await(self, workers: int) -> None:
        """Wait until it answers; each of several workers takes some of a few requests in a row."""
        deadline_s = time.monotonic() + START_S
        body = first_request(self.target.requests)
        answered = 0
        while answered < 4 * workers:
            try:
                self.ask(body)
                answered += 1
            except OSError as error:
                is_refusal = isinstance(error, urllib.error.HTTPError) and error.code < 500
                if is_refusal or self.process.poll() is not None or time.monotonic() > deadline_s:
                    raise RuntimeError(f"{self.name} does not start: {error}") from None
                time.sleep(0.1)

    def ask(self, body: bytes) -> NDArray[np.float64]:
        """Return the scores of one request."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.target.port}{self.target.path}", body, {"Content-Type": self.target.content_type}
        )
        with urllib.request.urlopen(request, timeout=END_S) as answer:
            return np.array(json.load(answer)["ctr"])


def first_request(path: Path) -> bytes:
    """Return the first of a file of requests."""
    data = path.read_bytes()
    return data[4 : 4 + int.from_bytes(data[:4], "little")]


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
