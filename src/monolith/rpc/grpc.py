"""gRPC servers and channels with TLS and a bearer token.

``open_channel`` and ``translate_error`` are for clients; ``make_server``, ``bind`` and the ``*_handlers`` for servers.
An error of ours crosses the wire as a status code plus the name of its class, and is raised as that class by the
client. Deadlines are gRPC's: pass ``timeout=`` to a call, read ``context.time_remaining()`` in a handler. Handlers run
in the threads of the pool that ``make_server`` gets.
"""

from __future__ import annotations

import hmac
import logging
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

from typing_extensions import override

from monolith.core.errors import ClusterError, ConfigError, MonolithError, RpcTimeout, ShardUnavailable
from monolith.rpc.security import Security, warn_if_exposed
from monolith.rpc.status import code_of, error_class, error_name, text_of

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
    "translate_error",
]

logger = logging.getLogger(__name__)

CallError = grpc.RpcError
Handler = Callable[[Any, Any], Any]

_ERROR_KEY = "monolith-error"
_MAYBE_TLS = (
    "the server closed the connection immediately; if it has TLS, give the authority of its certificate (ca_file), and "
    "if it requires a client certificate, give one that its authority signed (cert_file, key_file)"
)
_REFUSALS = (
    ("certificate has expired", "its certificate, or that of its authority, has expired; renew it"),
    ("certificate is not yet valid", "its certificate is not valid yet; correct the clock here, or renew it"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "its certificate is not of the authority in ca_file; give the authority that signed it",
    ),
    ("Hostname Verification", "its certificate is for another name; dial that name, or give it as server_name"),
    ("WRONG_VERSION_NUMBER", "it has no TLS; leave ca_file out, or give the server a certificate"),
    ("security handshaker", "ca_file, or cert_file with key_file, cannot be used; give certificates as PEM"),
    ("Socket closed", _MAYBE_TLS),
    ("reset by peer", _MAYBE_TLS),
)
"""Text of gRPC about a failed connection, and its cause with a remedy."""
_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}
# Servers are inside the cluster, where a proxy of the environment does not find them. Keepalive detects a vanished peer
# after about 20 s, also while no call is under way.
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


# --- client ---


def open_channel(address: str, security: Security, max_message_bytes: int) -> grpc.Channel:
    """Return a channel to ``host:port`` that sends the token with every call.

    The channel connects on first use and reconnects within a second after a server restarts.

    Args:
        address: ``host:port`` of the server.
        security: TLS files and token of the client.
        max_message_bytes: Limit of one request and one response.

    Raises:
        ConfigError: A file of ``security`` cannot be read.
    """
    # gRPC's own limit of the reconnect backoff is two minutes.
    options = [
        *_options(max_message_bytes),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
    warn_if_exposed(address, security, "channel")
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

    @override
    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        metadata = (*(client_call_details.metadata or ()), self._field)
        return continuation(_CallDetails(client_call_details, metadata), request)

    @override
    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return self.intercept_unary_unary(continuation, client_call_details, request)


def translate_error(error: Any, verb: str, address: str) -> MonolithError:
    """Return the error of ours for a ``CallError``; its text names ``verb`` and ``address``."""
    code, text = error.code(), error.details() or ""
    trailing = {key: value for key, value in error.trailing_metadata() or ()}
    kind = error_class(str(trailing.get(_ERROR_KEY, "")))
    where = f"{verb} at {address}"
    if kind is not None:
        return kind(f"{text} ({where})")
    if code == grpc.StatusCode.UNAVAILABLE:
        return ShardUnavailable(f"{where}: {_connection_failure(text)} ({text})")
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return RpcTimeout(f"{where} exceeded its deadline")
    if code == grpc.StatusCode.CANCELLED:
        return ClusterError(f"{where} was cancelled ({text})")
    if code == grpc.StatusCode.UNAUTHENTICATED:
        return ClusterError(f"{where}: {text}")
    return ClusterError(f"{where}: {text} ({code.name})")


def _connection_failure(text: str) -> str:
    """Return the cause of a failed connection, with a remedy."""
    if "failed to connect" not in text:
        return "the server is not ready, or the connection broke"
    return next((why for sign, why in _REFUSALS if sign in text), "no server answers")


# --- server ---


def make_server(
    workers: ThreadPoolExecutor,
    services: Mapping[str, Mapping[str, Any]],
    security: Security,
    max_message_bytes: int,
    max_calls: int | None = None,
    options: Sequence[tuple[str, Any]] = (),
) -> grpc.Server:
    """Return a server that answers ``services`` to callers that send the token; ``bind`` and ``start`` it next.

    Args:
        workers: Threads that run the handlers.
        services: Handlers by full service name and method, made by ``method_handlers`` and its siblings.
        security: TLS files and token of the server.
        max_message_bytes: Limit of one request and one response.
        max_calls: Limit of concurrent calls, queued calls included; more are refused with RESOURCE_EXHAUSTED.
        options: Further channel arguments of gRPC.
    """
    interceptors: list[grpc.ServerInterceptor[Any, Any]] = (
        [_TokenGuard(security.token, security.admin_token)] if security.token else []
    )
    # Without this option two processes could share one port.
    every = [*_options(max_message_bytes), ("grpc.so_reuseport", 0), *options]
    server = grpc.server(workers, interceptors=interceptors, options=every, maximum_concurrent_rpcs=max_calls)
    for name, handlers in services.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, dict(handlers)),))
    return server


def bind(server: grpc.Server, address: str, security: Security) -> int:
    """Listen on ``host:port``; return the port.

    Raises:
        ClusterError: The port is taken, or the machine lacks the interface.
        ConfigError: The certificate is invalid.
    """
    warn_if_exposed(address, security, "server")
    try:
        if security.is_encrypted:
            return server.add_secure_port(address, _server_credentials(security))
        return server.add_insecure_port(address)
    except RuntimeError as exc:
        _check_certificate(security)  # gRPC raises the same error for a bad certificate and a taken port
        raise ClusterError(f"cannot listen on {address} ({exc}); give a free port, or 0 for any") from exc


def _server_credentials(security: Security) -> grpc.ServerCredentials:
    key, certificate = security.read("key_file"), security.read("cert_file")
    if key is None or certificate is None:
        raise ConfigError("a server with TLS needs Security.cert_file and Security.key_file; give both")
    return grpc.ssl_server_credentials(
        [(key, certificate)], root_certificates=security.read("ca_file"), require_client_auth=security.is_mutual
    )


def _check_certificate(security: Security) -> None:
    """Raise ConfigError if TLS cannot load the files; called after a failed ``bind``."""
    if security.cert_file is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(security.cert_file, security.key_file, password="")
        if security.ca_file is not None:
            context.load_verify_locations(security.ca_file)
    except (ssl.SSLError, ValueError) as error:
        paths = {name: getattr(security, name) for name in ("cert_file", "key_file", "ca_file")}
        files = ", ".join(f"{name} {str(path)!r}" for name, path in paths.items() if path is not None)
        raise ConfigError(
            f"Security has {files}, which TLS cannot use ({error}); give matching PEM files, the key without a password"
        ) from error


class _TokenGuard(grpc.ServerInterceptor):  # type: ignore[type-arg]
    def __init__(self, *tokens: str) -> None:
        self._expected = [f"Bearer {token}".encode() for token in tokens if token]

        def refuse(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "the bearer token is missing or wrong; give the server's token"
            )
            raise AssertionError  # abort has raised

        # A handler of a stream starts before the first message: a body without a token is not received.
        self._refusal = grpc.stream_stream_rpc_method_handler(refuse)

    @override
    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        credentials = dict(handler_call_details.invocation_metadata).get("authorization", "")
        if any([hmac.compare_digest(str(credentials).encode(), each) for each in self._expected]):
            return continuation(handler_call_details)
        return self._refusal


def method_handlers(
    methods: Mapping[str, tuple[type[Any], type[Any]]], handlers: Mapping[str, Handler]
) -> dict[str, Any]:
    """Return handlers of unary methods; ``translate_error`` restores the errors that they raise.

    Args:
        methods: Request and response class of each method.
        handlers: ``handler(request, context) -> response`` of each method.
    """
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
    """Return handlers of methods that stream their response; see ``method_handlers``."""
    return {
        verb: grpc.unary_stream_rpc_method_handler(
            _guarded_stream(verb, answer),
            request_deserializer=methods[verb][0].FromString,
            response_serializer=methods[verb][1].SerializeToString,
        )
        for verb, answer in handlers.items()
    }


def bytes_handlers(handlers: Mapping[str, Callable[[bytes, Any], bytes]]) -> dict[str, Any]:
    """Return handlers of unary methods that parse and serialize their messages themselves."""
    return {verb: grpc.unary_unary_rpc_method_handler(answer) for verb, answer in handlers.items()}


def abort(context: grpc.ServicerContext, code: int, text: str) -> NoReturn:
    """End a call with the status of number ``code``."""
    context.abort(_BY_NUMBER[int(code)], text)
    raise AssertionError  # abort has raised


def _guarded(verb: str, answer: Handler) -> Handler:
    def call(request: Any, context: grpc.ServicerContext) -> Any:
        with _aborting(verb, context):
            return answer(request, context)

    return call


def _guarded_stream(verb: str, answer: Callable[[Any, Any], Iterator[Any]]) -> Callable[[Any, Any], Iterator[Any]]:
    def call(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        with _aborting(verb, context):
            yield from answer(request, context)

    return call


@contextmanager
def _aborting(verb: str, context: grpc.ServicerContext) -> Iterator[None]:
    """End the call with a status if the block raises."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MonolithError):
            context.set_trailing_metadata(((_ERROR_KEY, error_name(error)),))
        elif not isinstance(error, OSError):  # the text of an OSError names the path
            logger.exception("call failed call=%s", verb)
        abort(context, code_of(error), text_of(error))


def on_cancel(context: grpc.ServicerContext) -> Callable[[Callable[[], None]], bool]:
    """Return a function that registers a callback for the end of the call; it returns False if the call has ended."""
    return lambda callback: bool(context.add_callback(callback))
