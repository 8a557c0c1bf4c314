import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from monolith.core.errors import ClusterError
from monolith.demo.process import DemoProcess


def wait_until(found: Callable[[], object]) -> None:
    pause = threading.Event()
    for _ in range(6000):
        if found():
            return
        pause.wait(0.02)
    raise AssertionError("it does not happen")


def is_over(process: DemoProcess) -> bool:
    try:
        process.check()
    except ClusterError:
        return True
    return False


def test_a_process_that_fails_is_one_error_with_its_last_lines(tmp_path: Path) -> None:
    with DemoProcess("server", ["serve"], tmp_path) as process:
        wait_until(lambda: is_over(process))
        with pytest.raises(ClusterError) as failed:
            process.check()
    text = str(failed.value)
    assert "the server ended with status 1" in text
    assert str(tmp_path / "server.log") in text
    assert "BASE_PATH" in text


def test_a_restarted_process_runs_the_same_command(tmp_path: Path) -> None:
    arguments = ["serve", tmp_path, "--port", 0, "--rest-port", 0, "--json"]
    with DemoProcess("server", arguments, tmp_path) as process:
        wait_until(lambda: process.output)
        first = process.pid
        process.send_signal(signal.SIGSTOP)
        process.restart()
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)
        wait_until(lambda: process.output.count("rest_address") == 2)
        process.check()


def test_a_process_is_gone_after_every_end_of_the_block(tmp_path: Path) -> None:
    arguments = ["serve", tmp_path, "--port", 0, "--rest-port", 0, "--json"]
    process = DemoProcess("server", arguments, tmp_path)

    def interrupted() -> None:
        with process:
            wait_until(lambda: process.output)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    assert "model server stopped" in process.log.read_text()


def test_a_server_ends_with_its_starter(tmp_path: Path) -> None:
    arguments = ["serve", tmp_path, "--port", 0, "--rest-port", 0, "--json"]
    with DemoProcess("server", arguments, tmp_path) as process:
        wait_until(lambda: process.output)
        process._stdin.close()  # as the system does when this process is killed
        wait_until(lambda: is_over(process))
    assert "model server stopped" in process.log.read_text()
