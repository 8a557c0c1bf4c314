"""``ModelServer``: models, queue, gRPC, REST and polling in one object. Needs no torch. Thread safe."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ConfigError, ModelNotReady, MonolithError
from monolith.rpc import grpc
from monolith.rpc.tls import server_context
from monolith.serving.api.access import Access
from monolith.serving.api.grpc_services import GrpcServices
from monolith.serving.api.http_server import HttpLimits, HttpServer
from monolith.serving.api.impression_log import open_impression_log
from monolith.serving.api.native_front import NativeFront
from monolith.serving.api.request_log import RequestLog
from monolith.serving.api.rest import Rest, error_body
from monolith.serving.config import ServingConfig
from monolith.serving.metrics import ServingMetrics, metrics_page
from monolith.serving.requests.batching import BatchQueue
from monolith.serving.requests.request_router import RequestRouter
from monolith.serving.versions.hosted_models import HostedModels
from monolith.serving.versions.hosted_version import HostedVersion
from monolith.serving.versions.loaded_model import Loader
from monolith.serving.versions.model_config import ModelConfig, parse_model_configs
from monolith.telemetry import names
from monolith.telemetry.text import Samples

__all__ = ["ModelServer"]

logger = logging.getLogger(__name__)

_SCAN_END_S = 2.0
"""How long a stop waits for the end of a scan."""


class ModelServer:
    """Serves models. ``start`` opens the ports; ``stop`` drains current requests and closes them.

    Args:
        config: Settings.
        loader: Loads the version in a folder.
        clock: Clock of requests, deadlines and retries.
        metrics: Metrics of requests; pass them to share them with other components.
        samples: Returns further metrics for the page.
    """

    def __init__(
        self,
        config: ServingConfig,
        loader: Loader,
        clock: Clock | None = None,
        *,
        metrics: ServingMetrics | None = None,
        samples: Callable[[], Iterable[Samples]] = tuple,
    ) -> None:
        clock = clock or SystemClock()
        self._samples = samples
        self.config = config
        self.metrics = metrics or ServingMetrics()
        self._native = _open_native(config)
        self.models = HostedModels(
            loader,
            warm_up=self._prepare,
            verify=_verify if config.loading.verify_tables else None,
            clock=clock,
            load_threads=config.loading.load_threads,
            load_retries=config.loading.load_retries,
            retry_interval_s=config.loading.load_retry_interval_s,
            on_routes=None if self._native is None else self._native.publish,
        )
        self.queue = BatchQueue(config.batching, clock, self.metrics.batch)
        self._log = RequestLog(
            config.monitoring.request_log_rate, config.monitoring.request_log_prefix, self.metrics.logged
        )
        monitoring = config.monitoring
        self._impressions = (
            open_impression_log(monitoring.log_requests, monitoring.log_requests_rate, self.metrics.logged)
            if monitoring.log_requests
            else None
        )
        self._router = RequestRouter(
            self.models,
            self.queue,
            self.metrics,
            clock,
            assigns_following=config.access.allow_assign,
            impressions=self._impressions,
        )
        self._ending = threading.Event()
        self._pollers: list[threading.Thread] = []
        self._grpc: object | None = None
        self._workers: ThreadPoolExecutor | None = None
        self._http: HttpServer | None = None
        self._rest: Rest | None = None
        self._config_text: str | None = None
        self.address = ""
        """gRPC address, ``host:port``; empty before ``start`` and without gRPC."""
        self.rest_address = ""
        """REST address, ``host:port``; empty before ``start`` and without REST."""

    @property
    def is_ready(self) -> bool:
        """Whether every model has a served version, and the server is not stopping."""
        return not self._ending.is_set() and self.models.is_ready

    def start(self) -> Self:
        """Open the ports and start loading models; return before they are loaded.

        Raises:
            ClusterError: A port is in use.
            ConfigError: The model config file is unreadable or invalid.
        """
        config = self.config
        try:
            models = self._read_models()
            self.models.configure(models)
            access = _access(config, models)
            if self._native is not None:
                self._start_native(self._native, access)
            else:
                if config.port is not None:
                    self._start_grpc(config.port, access)
                if config.rest_port is not None:
                    self._start_rest(config.rest_port, access)
        except BaseException:
            self.stop(0.0)
            raise
        self._every(config.sources.version_poll_s, self.models.poll, "version-poll")
        if config.sources.model_config_file is not None:
            self._every(config.sources.model_config_poll_s, self._reread_models, "config-poll")
        logger.info("model server listening grpc=%s rest=%s", self.address or "-", self.rest_address or "-")
        return self

    def configure(self, models: Sequence[ModelConfig], timeout_s: float | None = None) -> None:
        """Replace the set of models; return when their versions are loaded.

        Raises:
            ModelNotReady: A version failed to load, or the timeout passed. The other versions are served.
        """
        self.models.configure(models)
        if not self.models.wait_until_settled(timeout_s):
            raise ModelNotReady(f"models are still loading after {timeout_s:.1f} s; request their status")
        names = {model.name for model in models}
        failed = [f"{name} {each.version}: {each.message}" for name, each in self.models.failures() if name in names]
        if failed:
            raise ModelNotReady(f"{len(failed)} versions failed to load: {'; '.join(failed)}")

    def stop(self, drain_s: float | None = None) -> None:
        """Refuse new requests, drain current ones for ``drain_s``, and unload all. A second call does nothing."""
        if self._ending.is_set():
            return
        self._ending.set()
        drain_s = self.config.request_path.timeouts.drain_s if drain_s is None else drain_s
        stopped = None if self._grpc is None else self._grpc.stop(drain_s)  # type: ignore[attr-defined]
        if self._http is not None:
            self._http.close(drain_s)
        if self._native is not None:
            self._native.close_ports(drain_s)
        if self._rest is not None:
            self._rest.close()
        if stopped is not None:
            stopped.wait()
        if self._workers is not None:
            self._workers.shutdown(wait=False, cancel_futures=True)
        self.queue.close(drain_s)
        if self._native is not None:
            self._native.close(drain_s)
        for thread in self._pollers:  # a scan may download a version for minutes; it changes no closed models
            thread.join(_SCAN_END_S)
        self.models.close()
        self._log.close()
        if self._impressions is not None:
            self._impressions.close()
        logger.info("model server stopped")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(0.0 if kind is not None else None)

    # --- inside ---

    def _prepare(self, hosted: HostedVersion) -> None:
        if self.config.loading.warm_up:
            _warm_up(hosted)
        if self._native is not None:
            self._native.prepare(hosted)

    def _start_native(self, native: NativeFront, access: Access) -> None:
        config = self.config
        server_context(config.security)  # names the file at fault; the native server names none
        if config.port is not None:
            self._workers = ThreadPoolExecutor(config.grpc.grpc_threads, thread_name_prefix="grpc")
        if config.rest_port is not None:
            self._rest = self._make_rest(access)
        handlers = {
            f"/{service}/{verb}": handler.unary_unary
            for service, handlers in self._make_services(access).handlers().items()
            for verb, handler in handlers.items()
        }
        rest_port, port = native.start(self._rest, handlers, self._workers)
        self.rest_address = _join(config.host, rest_port) if rest_port else ""
        self.address = _join(config.host, port) if port else ""

    def _make_services(self, access: Access) -> GrpcServices:
        return GrpcServices(
            self._router,
            self.configure,
            self._log,
            lambda: self.is_ready,
            self.config.request_path.timeouts.request_timeout_s,
            access,
        )

    def _start_grpc(self, port: int, access: Access) -> None:
        config = self.config
        services = self._make_services(access)
        self._workers = ThreadPoolExecutor(config.grpc.grpc_threads, thread_name_prefix="grpc")
        server = grpc.make_server(
            self._workers,
            services.handlers(),
            config.security,
            config.grpc.max_message_bytes,
            config.grpc.max_calls,
            config.grpc.grpc_options,
        )
        bound = grpc.bind(server, _join(config.host, port), config.security)
        server.start()
        self._grpc = server
        self.address = _join(config.host, bound)

    def _make_rest(self, access: Access) -> Rest:
        config = self.config
        return Rest(
            self._router,
            self._metrics_page,
            config.monitoring.metrics_path,
            lambda: self.is_ready,
            access,
            config.request_path.timeouts.request_timeout_s,
            config.rest.rest_max_values,
        )

    def _metrics_page(self) -> str:
        native = self._native
        rows = self.queue.queued[1] + (0 if native is None else native.queued[1])
        counted = () if native is None else native.samples()
        return metrics_page(self.metrics, self.models, rows, self.is_ready, self._all_samples(), counted)

    def _start_rest(self, port: int, access: Access) -> None:
        config = self.config
        rest = self._make_rest(access)
        limits = HttpLimits(
            max_body=config.grpc.max_message_bytes,
            max_pending=config.rest.rest_max_pending_bytes,
            max_connections=config.grpc.max_calls,
            idle_s=config.request_path.timeouts.idle_timeout_s,
            read_s=config.request_path.timeouts.read_timeout_s,
            answer_s=config.request_path.timeouts.request_timeout_s,
        )
        self._rest = rest
        self._http = HttpServer(
            rest, error_body, config.host, port, limits, server_context(config.security), rest.admit
        )
        self.rest_address = _join(config.host, self._http.port)

    def _all_samples(self) -> Iterable[Samples]:
        """Return the given samples, with the liveness of the server's threads among those of its components."""
        threads = [((thread.name,), int(thread.is_alive())) for thread in (*self._pollers, *self.queue.threads)]
        threads.append((("request-log",), int(self._log.is_alive)))
        if self._impressions is not None:
            threads.append((("impression-log",), int(self._impressions.is_alive)))
        if self._native is not None:
            threads.append((("native-calls",), int(self._native.is_alive)))
        for metric, samples in self._samples():
            if metric is names.BACKGROUND_THREAD_UP:
                threads.extend(((label,), value) for (label,), value in samples)
            else:
                yield metric, samples
        yield names.BACKGROUND_THREAD_UP, threads

    def _every(self, pause_s: float, act: object, name: str) -> None:
        if pause_s <= 0:
            return

        def run() -> None:
            while not self._ending.wait(pause_s):
                try:
                    act()  # type: ignore[operator]
                except (MonolithError, OSError) as error:
                    logger.warning("%s failed, keeping models error=%s", name, error)
                except Exception:  # an unexpected class must not stop the thread
                    logger.exception("%s failed, keeping models", name)

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._pollers.append(thread)
        thread.start()

    def _read_models(self) -> Sequence[ModelConfig]:
        if self.config.sources.model_config_file is None:
            return self.config.sources.models
        text = _read(self.config.sources.model_config_file)
        found = parse_model_configs(text, str(self.config.sources.model_config_file))
        self._config_text = text
        return found

    def _reread_models(self) -> None:
        assert self.config.sources.model_config_file is not None
        if _read(self.config.sources.model_config_file) != self._config_text:
            self.models.configure(self._read_models())
            logger.info("model config reloaded file=%s", self.config.sources.model_config_file)


def _open_native(config: ServingConfig) -> NativeFront | None:
    """Return the native request path; None if it is off, or the machine or the settings exclude it."""
    wish = config.request_path.native
    if wish == "off":
        return None
    try:
        return NativeFront(config)
    except ConfigError as error:
        if wish == "on":
            raise ConfigError(f"native is 'on', but the native request path cannot be used: {error}") from error
        logger.warning("native request path off, requests pass through Python reason=%s", error)
        return None


def _warm_up(hosted: HostedVersion) -> None:
    count = hosted.model.warm_up()
    if count:
        logger.info("version warmed up model=%s version=%d requests=%d", hosted.name, hosted.version, count)


def _access(config: ServingConfig, models: Sequence[ModelConfig]) -> Access:
    log_root = [Path(config.monitoring.request_log_prefix).parent] if config.monitoring.request_log_prefix else []
    return Access(
        token=config.security.token,
        admin_token=config.security.admin_token,
        allow_assign=config.access.allow_assign,
        allow_reload=config.access.allow_reload,
        roots=tuple(config.access.model_roots) or tuple(model.base_path.parent for model in models),
        log_roots=log_root,
    )


def _verify(hosted: HostedVersion, is_wanted: Callable[[], bool]) -> None:
    verify = getattr(hosted.model, "verify_tables", None)  # models without files have nothing to check
    if verify is not None:
        verify(is_wanted)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"model_config_file is {str(path)!r}, expected a readable file ({error})") from error


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
