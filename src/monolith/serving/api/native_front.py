"""``NativeFront``: the native servers of REST and gRPC, and the way from them to the handlers in Python.

The native servers own both ports. They answer plain scores of native versions without the interpreter. One thread takes
every other request out of ``next_call``. It calls the handler of REST and that of health checks itself, and hands other
gRPC calls to worker threads.
Thread safe.
"""

from __future__ import annotations

import logging
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from monolith import _native
from monolith.core.errors import ClusterError, ConfigError, EngineError, InvalidRequest
from monolith.rpc.security import warn_if_exposed
from monolith.rpc.status import Code
from monolith.serving.api import messages
from monolith.serving.api.http_server import HttpError, Request
from monolith.serving.api.rest import error_body
from monolith.serving.config import ServingConfig
from monolith.serving.servable.native_model import NotNative, find_onnx_library
from monolith.serving.versions.hosted_models import Routes
from monolith.serving.versions.hosted_version import HostedVersion
from monolith.telemetry import names
from monolith.telemetry.text import Samples

__all__ = ["GrpcHandler", "NativeFront", "RestHandler"]

logger = logging.getLogger(__name__)

RestHandler = Callable[[Request, Callable[..., None]], None]
GrpcHandler = Callable[[bytes, Any], bytes]

_POLL_S = 0.5
_HEALTH = f"/{messages.HEALTH_SERVICE}/Check"
_SMALL_BYTES = 4096
_OVERLOADED = "the server has too many calls; retry later, or use another replica"


class NativeFront:
    """Both native servers of one model server.

    Args:
        config: Settings of the server.
        library: Path of ONNX Runtime's library; default: that of the installed package.

    Raises:
        NotNative: The native path cannot be used on this machine, or with these settings.
    """

    def __init__(self, config: ServingConfig, library: str | None = None) -> None:
        if config.monitoring.log_requests:
            raise NotNative("log_requests is set, expected no stream of impressions")
        if config.grpc.grpc_options:
            raise NotNative("grpc_options are set, expected none: they are settings of the Python path")
        _native.check_transport(config.port is not None, config.security.is_encrypted)
        self._library = library or find_onnx_library()
        version = _native.onnx_version(self._library)
        self._config = config
        batching = config.batching
        self._service = _native.ScoreService(
            batching.native_threads,
            batching.max_rows,
            batching.wait_s,
            batching.max_queued_rows,
            batching.max_queued_bytes,
            list(names.SERVING_REQUEST_SECONDS.bounds_us),
            config.rest.rest_max_values,
        )
        self._server: _native.ScoreServer | None = None
        self._rest: RestHandler | None = None
        self._grpc: Mapping[str, GrpcHandler] = {}
        self._workers: ThreadPoolExecutor | None = None
        self._calls = threading.Semaphore(config.grpc.max_calls)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._dispatch, name="native-calls", daemon=True)
        logger.info("native request path ready onnxruntime=%s", version)

    # --- life cycle ---

    def start(
        self, rest: RestHandler | None, grpc: Mapping[str, GrpcHandler], workers: ThreadPoolExecutor | None
    ) -> tuple[int, int]:
        """Open the ports; return those of REST and gRPC, 0 for one that is off.

        Args:
            rest: Handler of HTTP requests.
            grpc: Handlers by full path, such as ``/package.Service/Method``.
            workers: Threads of the gRPC handlers.

        Raises:
            ClusterError: A port is in use.
            ConfigError: The TLS files do not fit each other.
        """
        config, security = self._config, self._config.security
        warn_if_exposed(f"{config.host}:{config.port or config.rest_port}", security, "server")
        self._rest, self._grpc, self._workers = rest, grpc, workers
        try:
            self._server = _native.ScoreServer(
                self._service,
                config.host,
                config.rest_port,
                config.port,
                config.request_path.io_threads,
                config.grpc.max_message_bytes,
                config.rest.rest_max_pending_bytes,
                config.grpc.max_calls,
                config.request_path.timeouts.idle_timeout_s,
                config.request_path.timeouts.read_timeout_s,
                config.request_path.timeouts.request_timeout_s,
                security.token,
                security.admin_token,
                str(security.cert_file or ""),
                str(security.key_file or ""),
                str(security.ca_file or ""),
            )
        except OSError as error:
            raise ClusterError(
                f"cannot listen on {error.filename} ({os.strerror(error.errno or 0)}); give a free port, or 0 for any"
            ) from error
        self._thread.start()
        return self._server.rest_port, self._server.grpc_port

    def close_ports(self, drain_s: float) -> None:
        """Stop listening, drain current requests for ``drain_s``, and close all connections."""
        if self._server is not None:
            self._server.close(drain_s)

    def close(self, drain_s: float) -> None:
        """Stop the model threads and the thread of calls. Call ``close_ports`` first."""
        self._ending.set()
        self._service.close(drain_s)
        if self._thread.is_alive():
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether the thread of calls runs."""
        return self._thread.is_alive()

    # --- versions ---

    def prepare(self, hosted: HostedVersion) -> None:
        """Make the native form of a version, if it can have one; the log has the reason if not."""
        open_native = getattr(hosted.model, "open_native", None)
        if open_native is None:
            return
        try:
            open_native(self._library, hosted.name, hosted.version)
        except (ConfigError, EngineError) as error:
            logger.info("version scored by Python model=%s version=%d reason=%s", hosted.name, hosted.version, error)

    def publish(self, routes: Routes) -> None:
        """Replace the versions that requests find."""
        rate = self._config.monitoring.request_log_rate
        self._service.set_routes(
            {
                name: (
                    [
                        (
                            version,
                            getattr(hosted.model, "native", None),
                            rate if hosted.log_rate is None else hosted.log_rate,
                            getattr(hosted.model, "on_scored", None) is not None,
                        )
                        for version, hosted in route.versions.items()
                    ],
                    route.labels,
                )
                for name, route in routes.items()
            }
        )

    # --- metrics ---

    @property
    def queued(self) -> tuple[int, int]:
        """Number of queued requests and rows."""
        return self._service.queued()

    def samples(self) -> Iterable[Samples]:
        """Return the counts of requests that Python has not seen, in the metrics of all requests."""
        found = self._service.stats()
        bounds = names.SERVING_REQUEST_SECONDS.bounds_us
        yield names.SERVING_REQUESTS_TOTAL, list(found["answers"].items())
        yield (
            names.SERVING_REQUEST_SECONDS,
            [
                (labels, {"count": count, "sum_us": sum_us, "bounds_us": bounds, "buckets": buckets})
                for labels, (count, sum_us, buckets) in found["durations"].items()
            ],
        )
        yield names.SERVING_NATIVE_REQUESTS_TOTAL, [((), sum(found["answers"].values()))]
        yield names.SERVING_ACCEPT_PAUSES_TOTAL, [((), 0 if self._server is None else self._server.accept_pauses)]
        yield names.SERVING_BATCHES_TOTAL, [((), found["batches"])]
        yield names.SERVING_ROWS_TOTAL, [((), found["rows"])]
        yield names.SERVING_BATCH_WAIT_SECONDS_TOTAL, [((), found["wait_us"] / 1e6)]

    # --- calls ---

    def _dispatch(self) -> None:
        while not self._ending.is_set():
            call = self._service.next_call(_POLL_S)
            for text in self._service.take_errors():
                logger.error("native score failed %s", text)
            if call is None:
                continue
            try:
                if call.api == "rest":
                    self._answer_rest(call)
                else:
                    self._submit_grpc(call)
            except Exception:  # one request must not stop the thread
                logger.exception("request failed path=%s", call.path)
                call.answer(500, error_body("internal error; see the log of the server"), code=Code.INTERNAL)

    def _answer_rest(self, call: _native.PythonCall) -> None:
        assert self._rest is not None
        limit = self._config.grpc.max_message_bytes
        request = Request(call.method, call.path, call.headers, call.body, lambda: call.is_wanted, limit)

        def reply(
            status: int,
            body: bytes,
            content_type: str = "application/json",
            headers: Mapping[str, str] | None = None,
        ) -> None:
            call.answer(status, body, content_type, list((headers or {}).items()))

        try:
            self._rest(request, reply)
        except HttpError as error:
            reply(error.status, error_body(str(error)), headers=error.headers)

    def _submit_grpc(self, call: _native.PythonCall) -> None:
        handler = self._grpc.get(call.path)
        if handler is None or self._workers is None:
            call.answer(200, b"", code=Code.UNIMPLEMENTED, message="Method not found!")
        elif call.path == _HEALTH and not call.is_compressed and len(call.body) <= _SMALL_BYTES:
            self._answer_grpc(call, handler)  # not behind scores that wait: a busy server is healthy
        elif not self._calls.acquire(blocking=False):
            call.answer(200, b"", code=Code.RESOURCE_EXHAUSTED, message=_OVERLOADED)
        else:
            try:
                self._workers.submit(self._answer_counted, call, handler)
            except RuntimeError:  # the workers have stopped
                self._calls.release()
                call.answer(200, b"", code=Code.UNAVAILABLE, message="the server is stopping; use another replica")

    def _answer_counted(self, call: _native.PythonCall, handler: GrpcHandler) -> None:
        try:
            self._answer_grpc(call, handler)
        finally:
            self._calls.release()

    def _answer_grpc(self, call: _native.PythonCall, handler: GrpcHandler) -> None:
        context = _CallContext(call)
        try:
            response = handler(_message_of(call, self._config.grpc.max_message_bytes), context)
            call.answer(200, response, headers=context.trailers)
        except _Aborted as aborted:
            call.answer(200, b"", headers=context.trailers, code=aborted.code, message=aborted.text)
        except InvalidRequest as error:
            call.answer(200, b"", code=Code.INTERNAL, message=str(error))
        except Exception as error:
            logger.exception("call failed path=%s", call.path)
            text = f"internal error ({type(error).__name__}); see the log of the server"
            call.answer(200, b"", code=Code.UNKNOWN, message=text)


class _Aborted(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class _CallContext:
    """The part of gRPC's servicer context that the handlers use."""

    def __init__(self, call: _native.PythonCall) -> None:
        self._call = call
        self.trailers: list[tuple[str, str]] = []
        self.is_logged = call.is_logged
        """Whether the native path has drawn a plain score for the request log; None for other calls."""

    def abort(self, code: Any, details: str) -> None:
        raise _Aborted(code.value[0], details)

    def is_active(self) -> bool:
        return self._call.is_wanted

    def time_remaining(self) -> float:
        return max(0.0, self._call.time_left_s)

    def invocation_metadata(self) -> Iterable[tuple[str, str]]:
        return self._call.headers.items()

    def set_trailing_metadata(self, metadata: Iterable[tuple[str, str]]) -> None:
        self.trailers = list(metadata)


def _message_of(call: _native.PythonCall, limit: int) -> bytes:
    """Return the message of a call, unpacked.

    Raises:
        InvalidRequest: The message is invalid, or too large when unpacked.
    """
    if not call.is_compressed:
        return call.body
    encoding = call.headers.get("grpc-encoding", "identity")
    if encoding not in ("gzip", "deflate"):
        raise InvalidRequest(f"grpc-encoding is {encoding!r}, expected gzip or deflate")
    unpacker: Any = zlib.decompressobj(wbits=31 if encoding == "gzip" else 15)
    try:
        message: bytes = unpacker.decompress(call.body, limit + 1)
    except zlib.error as error:
        raise InvalidRequest(f"the message is invalid, expected {encoding}") from error
    if len(message) > limit or not unpacker.eof:
        raise InvalidRequest(f"the unpacked message is cut or has more than {limit} bytes")
    return message
