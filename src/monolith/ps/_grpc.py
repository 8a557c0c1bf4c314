"""gRPC as parameter servers use it: the one module that imports it.

Channels and servers with TLS and a bearer token, and the way of our errors over the wire: each becomes a status with
the name of its class beside it, and the same class again at the other end. What the calls mean is not known here.
"""

from __future__ import annotations

import hmac
import logging
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

from monolith.core import errors
from monolith.core.errors import ClusterError, ConfigError, MonolithError, RpcTimeout, ShardUnavailable
from monolith.ps.security import Security

try:
    import grpc
except ImportError as exc:
    raise ConfigError(
        "servers and their clients need gRPC: pip install 'monolith[train]' or 'monolith[serve]'"
    ) from exc

__all__ = [
    "CallError",
    "Handler",
    "abort",
    "bind",
    "bytes_handlers",
    "make_server",
    "method_handlers",
    "on_cancel",
    "open_channel",
    "stream_handlers",
    "translated",
]

logger = logging.getLogger(__name__)

CallError = grpc.RpcError
Handler = Callable[[Any, Any], Any]

_ERROR_KEY = "monolith-error"
_CODES: tuple[tuple[type[MonolithError], grpc.StatusCode], ...] = (
    (errors.ConfigError, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.DimensionMismatch, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.SchemaMismatch, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.CapacityExceeded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.SnapshotCorrupt, grpc.StatusCode.DATA_LOSS),
    (errors.RpcTimeout, grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.ShardUnavailable, grpc.StatusCode.UNAVAILABLE),
)
_MAYBE_TLS = (
    "it closed the connection at once; if it has TLS give the authority of its certificate (ca_file), and if it asks "
    "for a certificate one that its authority has signed (cert_file, key_file)"
)
_REFUSALS = (
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not of the authority in ca_file; give the one that signed it"),
    ("Hostname Verification", "its certificate is for another name; dial that one, or give it as server_name"),
    ("WRONG_VERSION_NUMBER", "it has no TLS; leave ca_file out, or give the server a certificate"),
    ("security handshaker", "ca_file, or cert_file with key_file, cannot be used; give certificates as PEM"),
    ("Socket closed", _MAYBE_TLS),
    ("reset by peer", _MAYBE_TLS),
)
"""Words of gRPC about connections that do not come about, and what they mean."""
_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}
# Servers are within the cluster, where a proxy of the environment would not find them. A peer that is gone without a
# word is noticed after some 20 s, also while no call is under way.
_COMMON = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)


def _options(max_message_bytes: int) -> list[tuple[str, int]]:
    limits = ("grpc.max_receive_message_length", "grpc.max_send_message_length")
    return [*_COMMON, *((name, max_message_bytes) for name in limits)]


# --- the client's end ---


def open_channel(address: str, security: Security, max_message_bytes: int) -> grpc.Channel:
    """Return a channel to ``host:port``; it connects when it is used."""
    # A server that comes back is found within a second, not after gRPC's two minutes.
    options = [
        *_options(max_message_bytes),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
    if not security.is_encrypted:
        channel = grpc.insecure_channel(address, options=options)
    else:
        if security.server_name:
            options.append(("grpc.ssl_target_name_override", security.server_name))  # type: ignore[arg-type]
        channel = grpc.secure_channel(address, _channel_credentials(security), options=options)
    if security.token:
        channel = grpc.intercept_channel(channel, _TokenSender(security.token))
    return channel


def _channel_credentials(security: Security) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=security.read("ca_file"),
        private_key=security.read("key_file"),
        certificate_chain=security.read("cert_file"),
    )


class _CallDetails(grpc.ClientCallDetails):
    def __init__(self, details: Any, metadata: tuple[tuple[str, str | bytes], ...]) -> None:
        self.method = details.method
        self.timeout = details.timeout
        self.metadata = metadata
        self.credentials = details.credentials
        self.wait_for_ready = details.wait_for_ready
        self.compression = details.compression


class _TokenSender(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    def __init__(self, token: str) -> None:
        self._field = ("authorization", f"Bearer {token}")

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        metadata = (*(client_call_details.metadata or ()), self._field)
        return continuation(_CallDetails(client_call_details, metadata), request)

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return self.intercept_unary_unary(continuation, client_call_details, request)


def translated(error: Any, verb: str, address: str) -> MonolithError:
    """Return our error for one of gRPC's; it names the address."""
    code, text = error.code(), error.details() or ""
    trailing = {key: value for key, value in error.trailing_metadata() or ()}
    kind = getattr(errors, str(trailing.get(_ERROR_KEY, "")), None)
    where = f"{verb} at {address}"
    if isinstance(kind, type) and issubclass(kind, MonolithError):
        return kind(f"{text} ({where})")
    if code == grpc.StatusCode.UNAVAILABLE:
        return ShardUnavailable(f"{where}: {_why_not_connected(text)} ({text})")
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return RpcTimeout(f"{where} did not end in time")
    if code == grpc.StatusCode.CANCELLED:
        return ClusterError(f"{where} was cancelled ({text})")
    if code == grpc.StatusCode.UNAUTHENTICATED:
        return ClusterError(f"{where}: {text}")
    return ClusterError(f"{where}: {text} ({code.name})")


def _why_not_connected(text: str) -> str:
    """Return what gRPC's words mean, and what to do."""
    is_refused = "failed to connect" in text  # and not lost later, while it was in use
    return next((why for sign, why in _REFUSALS if is_refused and sign in text), "nobody answers")


# --- the server's end ---


def make_server(
    workers: ThreadPoolExecutor,
    services: Mapping[str, Mapping[str, Any]],
    security: Security,
    max_message_bytes: int,
    max_calls: int | None = None,
    options: Sequence[tuple[str, Any]] = (),
) -> grpc.Server:
    """Return a server that answers ``services``, and only callers that know the token.

    Past ``max_calls`` at the same time, waiting ones included, it refuses with RESOURCE_EXHAUSTED. ``options`` are
    further ones of gRPC.
    """
    interceptors: list[grpc.ServerInterceptor[Any, Any]] = (
        [_TokenGuard(security.token, security.admin_token)] if security.token else []
    )
    # A port that another process has is an error, not shared with it.
    every = [*_options(max_message_bytes), ("grpc.so_reuseport", 0), *options]
    server = grpc.server(workers, interceptors=interceptors, options=every, maximum_concurrent_rpcs=max_calls)
    for name, handlers in services.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, dict(handlers)),))
    return server


def bind(server: grpc.Server, address: str, security: Security) -> int:
    """Listen on ``host:port``; return the port.

    Raises:
        ClusterError: The port is taken, or the interface is not this machine's.
        ConfigError: The certificate cannot be used.
    """
    try:
        if security.is_encrypted:
            return server.add_secure_port(address, _server_credentials(security))
        return server.add_insecure_port(address)
    except RuntimeError as exc:
        _check_certificate(security)  # gRPC says the same of both
        raise ClusterError(f"cannot listen on {address} ({exc}); give a free port, or 0 for any") from exc


def _server_credentials(security: Security) -> grpc.ServerCredentials:
    key, certificate = security.read("key_file"), security.read("cert_file")
    if key is None or certificate is None:
        raise ConfigError("a server with TLS needs Security.cert_file and Security.key_file; give both")
    return grpc.ssl_server_credentials(
        [(key, certificate)], root_certificates=security.read("ca_file"), require_client_auth=security.is_mutual
    )


def _check_certificate(security: Security) -> None:
    """See that the files of a server that could not listen are what they should be."""
    if security.cert_file is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(security.cert_file, security.key_file, password="")
        if security.ca_file is not None:
            context.load_verify_locations(security.ca_file)
    except (ssl.SSLError, ValueError) as error:
        given = {name: getattr(security, name) for name in ("cert_file", "key_file", "ca_file")}
        files = ", ".join(f"{name} {str(path)!r}" for name, path in given.items() if path is not None)
        raise ConfigError(
            f"Security has {files}, which TLS cannot use ({error}); give PEM files that belong together, the key "
            "without a password"
        ) from error


class _TokenGuard(grpc.ServerInterceptor):  # type: ignore[type-arg]
    def __init__(self, *tokens: str) -> None:
        self._expected = [f"Bearer {token}".encode() for token in tokens if token]

        def refuse(request: bytes, context: grpc.ServicerContext) -> bytes:
            context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "the bearer token is missing or wrong; give the server's token"
            )
            raise AssertionError  # abort has raised

        self._refusal = grpc.unary_unary_rpc_method_handler(refuse)

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        given = dict(handler_call_details.invocation_metadata).get("authorization", "")
        if any([hmac.compare_digest(str(given).encode(), each) for each in self._expected]):
            return continuation(handler_call_details)
        return self._refusal


def method_handlers(
    methods: Mapping[str, tuple[type[Any], type[Any]]], handlers: Mapping[str, Handler]
) -> dict[str, Any]:
    """Return gRPC's handlers: errors of ours become a status that ``translated`` turns back."""
    return {
        verb: grpc.unary_unary_rpc_method_handler(
            _guarded(verb, answer),
            request_deserializer=methods[verb][0].FromString,
            response_serializer=methods[verb][1].SerializeToString,
        )
        for verb, answer in handlers.items()
    }


def stream_handlers(
    methods: Mapping[str, tuple[type[Any], type[Any]]], handlers: Mapping[str, Callable[[Any, Any], Iterator[Any]]]
) -> dict[str, Any]:
    """Like ``method_handlers``, of methods that answer one request with many messages."""
    return {
        verb: grpc.unary_stream_rpc_method_handler(
            _guarded_stream(verb, answer),
            request_deserializer=methods[verb][0].FromString,
            response_serializer=methods[verb][1].SerializeToString,
        )
        for verb, answer in handlers.items()
    }


def bytes_handlers(handlers: Mapping[str, Callable[[bytes, Any], bytes]]) -> dict[str, Any]:
    """Return gRPC's handlers of methods that read and write their messages themselves."""
    return {verb: grpc.unary_unary_rpc_method_handler(answer) for verb, answer in handlers.items()}


def abort(context: grpc.ServicerContext, code: int, text: str) -> NoReturn:
    """End a call with a status, given by its number."""
    context.abort(_BY_NUMBER[int(code)], text)
    raise AssertionError  # abort has raised


def _guarded(verb: str, answer: Handler) -> Handler:
    def call(request: Any, context: grpc.ServicerContext) -> Any:
        with _telling(verb, context):
            return answer(request, context)

    return call


def _guarded_stream(verb: str, answer: Callable[[Any, Any], Iterator[Any]]) -> Callable[[Any, Any], Iterator[Any]]:
    def call(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        with _telling(verb, context):
            yield from answer(request, context)

    return call


@contextmanager
def _telling(verb: str, context: grpc.ServicerContext) -> Iterator[None]:
    """End the call with a status when something is raised."""
    try:
        yield
    except MonolithError as error:
        kind = next(kind for kind in type(error).__mro__ if hasattr(errors, kind.__name__))
        code = next((code for base, code in _CODES if isinstance(error, base)), grpc.StatusCode.INTERNAL)
        context.set_trailing_metadata(((_ERROR_KEY, kind.__name__),))
        context.abort(code, str(error))
    except OSError as error:  # a path that this server cannot read or write, and the text names it
        context.abort(grpc.StatusCode.INTERNAL, str(error))
    except Exception as error:
        logger.exception("a call failed call=%s", verb)
        context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")


def on_cancel(context: grpc.ServicerContext) -> Callable[[Callable[[], None]], bool]:
    """Return how to be told that the caller is gone; False when it is gone already."""
    return lambda leave: bool(context.add_callback(leave))
