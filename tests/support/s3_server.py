"""A real S3 server for tests: ``moto`` in a process, on a free port of loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec

from monolith.core.free_ports import free_port

BUCKET = "bucket"
_START_S = 60.0


def why_no_s3() -> str:
    """Return why no server can be started; empty if one can."""
    missing = [name for name in ("moto", "flask", "s3fs") if find_spec(name) is None]
    return f"{', '.join(missing)} missing; pip install 'moto[s3]' flask flask-cors s3fs" if missing else ""


def clear_s3_connections() -> None:
    """Forget the connections of this process: fsspec keeps one per set of options, and options lack the endpoint."""
    from s3fs import S3FileSystem  # type: ignore[import-untyped]

    S3FileSystem.clear_instance_cache()


@contextmanager
def s3_server() -> Iterator[Mapping[str, str]]:
    """Run a server with an empty bucket; yield the environment variables of its clients."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"},
    )
    try:
        deadline_s = time.monotonic() + _START_S
        while True:
            try:
                request = urllib.request.Request(f"{url}/{BUCKET}", method="PUT")
                urllib.request.urlopen(request, timeout=5).read()
                break
            except (urllib.error.URLError, OSError):
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise
                time.sleep(0.1)
        clear_s3_connections()
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        process.kill()
        process.wait()
