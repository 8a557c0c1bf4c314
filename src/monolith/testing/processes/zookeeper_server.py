"""A real ZooKeeper on this machine, for tests: Debian's package, started on a free loopback port.

A test can stop and kill the process, and restart it with or without its data.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from monolith.core.clock import Clock, Deadline, SystemClock
from monolith.core.errors import ConnectionFailed
from monolith.core.free_ports import free_port

__all__ = ["REQUIRED", "ZooKeeperServer", "why_no_zookeeper"]

REQUIRED = "MONOLITH_REQUIRE_ZOOKEEPER"
"""Variable of the environment: if set, a test that needs ZooKeeper fails where it would be skipped."""

_JARS = ("zookeeper.jar", "slf4j-simple.jar")
_JAVA_FOLDER = Path("/usr/share/java")
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


def why_no_zookeeper() -> str | None:
    """Return why this machine cannot start a server; None if it can.

    Raises:
        ConnectionFailed: The machine cannot, and the environment requires a server, as in continuous integration.
    """
    reason = _missing_part()
    if reason is not None and os.environ.get(REQUIRED):
        raise ConnectionFailed(f"{REQUIRED} is {os.environ[REQUIRED]!r}, and ZooKeeper cannot start: {reason}")
    return reason


def _missing_part() -> str | None:
    if importlib.util.find_spec("kazoo") is None:
        return "kazoo is not installed: pip install 'monolith[zookeeper]'"
    if shutil.which("java") is None:
        return "java is not installed; as root: apt-get install zookeeper"
    missing = [name for name in _JARS if not (_JAVA_FOLDER / name).exists()]
    if missing:
        return f"{_JAVA_FOLDER / missing[0]} is missing; as root: apt-get install zookeeper"
    return None


class ZooKeeperServer:
    """One server with a separate folder; also a context manager.

    Args:
        tick_ms: The server's unit of time. Sessions last at least two of them.
        clock: Clock of the wait for the start.
    """

    def __init__(self, *, tick_ms: int = 500, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._folder = Path(tempfile.mkdtemp(prefix="zookeeper-"))
        self._tick_ms = tick_ms
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """``host:port`` of the server; it stays over restarts."""
        return f"127.0.0.1:{self._port}"

    def start(self, timeout_s: float = 60.0) -> None:
        """Start the server and wait until it answers.

        Raises:
            ConnectionFailed: It does not; the text holds the end of its log.
        """
        (self._folder / "data").mkdir(exist_ok=True)
        config = self._folder / "zoo.cfg"
        config.write_text(
            f"dataDir={self._folder}/data\n"
            f"clientPort={self._port}\n"
            "clientPortAddress=127.0.0.1\n"
            f"tickTime={self._tick_ms}\n"
            "admin.enableServer=false\n"
            "4lw.commands.whitelist=srvr\n"
            "maxClientCnxns=0\n"
        )
        command = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no"]
        command += ["-cp", os.pathsep.join(str(_JAVA_FOLDER / name) for name in _JARS), _MAIN, str(config)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)
        deadline = Deadline(self._clock, timeout_s)
        while not self._is_ready():
            if self._process.poll() is not None or deadline.is_past:
                tail = self._log.read_text(errors="replace")[-2000:]
                self.kill()
                raise ConnectionFailed(f"ZooKeeper did not start at {self.address}; its log ends with:\n{tail}")
            self._clock.sleep_s(0.05)

    def stop(self) -> None:
        """Stop the server and wait for its end; its data stays."""
        if self._process is not None:
            self._process.terminate()
            self._end()

    def kill(self) -> None:
        """Kill the server; its data stays."""
        if self._process is not None:
            self._process.kill()
            self._end()

    def forget(self) -> None:
        """Remove the data of a stopped server, so that it restarts without nodes and sessions."""
        shutil.rmtree(self._folder / "data")

    def close(self) -> None:
        """Stop the server and remove its files. A second call does nothing."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> ZooKeeperServer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _end(self) -> None:
        if self._process is not None:
            self._process.wait()
            self._process = None

    def _is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=5) as connection:
                connection.sendall(b"srvr")
                answer = b""
                while part := connection.recv(4096):
                    answer += part
        except OSError:
            return False
        return b"Mode:" in answer
