"""``FakeModelServer``: a gRPC model server without models, whose versions walk through the states of a real one.

It answers ModelService (status, reload) and GetModelMetadata and Predict of PredictionService. Beside it stands
``monolith serve``, which the same agents control.

Threading: one thread advances states; calls run in the threads of gRPC.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from monolith.agent.messages import (
    GetModelMetadataRequest,
    GetModelMetadataResponse,
    GetModelStatusRequest,
    GetModelStatusResponse,
    ModelConfig,
    PredictRequest,
    PredictResponse,
    ReloadConfigRequest,
    ReloadConfigResponse,
    make_version_status,
)
from monolith.agent.model_configs import make_model_config
from monolith.agent.records import ModelState
from monolith.core.errors import ModelNotFound
from monolith.rpc import grpc
from monolith.rpc.security import Security
from monolith.rpc.status import Code

__all__ = ["FakeModelServer"]

_MODEL_SERVICE = "tensorflow.serving.ModelService"
_PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
_STEPS = {
    ModelState.UNKNOWN: ModelState.START,
    ModelState.START: ModelState.LOADING,
    ModelState.LOADING: ModelState.AVAILABLE,
    ModelState.UNLOADING: ModelState.END,
}


def _versions(config: ModelConfig) -> list[int]:
    policy = config.model_version_policy
    if policy.HasField("specific"):
        return sorted(policy.specific.versions)
    if policy.HasField("all"):
        return [1]
    kind = policy.latest_once if policy.HasField("latest_once") else policy.latest
    return list(range(1, max(kind.num_versions, 1) + 1))


class _Model:
    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.states: dict[int, ModelState] = dict.fromkeys(_versions(config), ModelState.UNKNOWN)
        self.is_leaving = False

    def follow(self, config: ModelConfig) -> None:
        self.config = config
        wanted = set(_versions(config))
        for version in wanted - self.states.keys():
            self.states[version] = ModelState.UNKNOWN
        for version in self.states.keys() - wanted:
            self.states[version] = ModelState.UNLOADING

    def unload(self) -> None:
        self.is_leaving = True
        self.states = dict.fromkeys(self.states, ModelState.UNLOADING)

    def step(self) -> None:
        for version, state in list(self.states.items()):
            if state is ModelState.UNLOADING:
                del self.states[version]
            elif state in _STEPS:
                self.states[version] = _STEPS[state]


class FakeModelServer:
    """A fake server on a free port of this machine; also a context manager.

    Args:
        models: Models at the start.
        step_s: Pause between two steps of the states.
    """

    def __init__(self, models: Iterable[ModelConfig] = (), *, step_s: float = 0.01) -> None:
        self._lock = threading.Condition()
        self._models = {config.name: _Model(config) for config in models}
        self._step_s = step_s
        self._is_closed = False
        self._workers = ThreadPoolExecutor(4, thread_name_prefix="fake-model-server")
        model_methods = {
            "GetModelStatus": (GetModelStatusRequest, GetModelStatusResponse),
            "HandleReloadConfigRequest": (ReloadConfigRequest, ReloadConfigResponse),
        }
        prediction_methods = {
            "GetModelMetadata": (GetModelMetadataRequest, GetModelMetadataResponse),
            "Predict": (PredictRequest, PredictResponse),
        }
        services = {
            _MODEL_SERVICE: grpc.method_handlers(
                model_methods,
                {"GetModelStatus": self._get_status, "HandleReloadConfigRequest": self._reload},
            ),
            _PREDICTION_SERVICE: grpc.method_handlers(
                prediction_methods, {"GetModelMetadata": self._metadata, "Predict": self._predict}
            ),
        }
        self._server = grpc.make_server(self._workers, services, Security(), 4 << 20)
        self.port = grpc.bind(self._server, "127.0.0.1:0", Security())
        """Port of the server."""
        self._server.start()
        self._thread = threading.Thread(target=self._run, name="fake-model-server", daemon=True)
        self._thread.start()

    @classmethod
    def with_model(cls, name: str, num_versions: int, base_path: str = "/models", **options: Any) -> FakeModelServer:
        """Return a server with one model and its newest versions."""
        return cls([make_model_config(name, base_path, version_data=num_versions)], **options)

    @property
    def address(self) -> str:
        """``host:port`` of the server."""
        return f"127.0.0.1:{self.port}"

    def add_version(self, name: str) -> int:
        """Add the version after the newest; ``latest`` drops the oldest one then. Return it."""
        with self._lock:
            model = self._models[name]
            newest = max(model.states) + 1
            model.states[newest] = ModelState.UNKNOWN
            while len(model.states) > max(model.config.model_version_policy.latest.num_versions, 1):
                model.states[min(version for version in model.states)] = ModelState.UNLOADING
                break
            self._lock.notify_all()
        return newest

    def close(self) -> None:
        """Stop the server; a second call does nothing."""
        with self._lock:
            self._is_closed = True
            self._lock.notify_all()
        self._server.stop(0).wait()
        self._workers.shutdown()
        self._thread.join(30.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        with self._lock:
            while not self._is_closed:
                is_moving = any(
                    state is not ModelState.AVAILABLE
                    for model in self._models.values()
                    for state in model.states.values()
                )
                if not is_moving:
                    self._lock.wait()
                elif not self._lock.wait_for(lambda: self._is_closed, self._step_s):
                    self._step()

    def _step(self) -> None:
        for name, model in list(self._models.items()):
            model.step()
            if model.is_leaving and not model.states:
                del self._models[name]

    def _get_status(self, request: GetModelStatusRequest, _: Any) -> GetModelStatusResponse:
        spec = request.model_spec
        response = GetModelStatusResponse()
        with self._lock:
            model = self._models.get(spec.name)
            states = {} if model is None else dict(model.states)
            labels = {} if model is None else dict(model.config.version_labels)
        if spec.HasField("version"):
            states = {version: state for version, state in states.items() if version == spec.version.value}
        elif spec.version_label:
            states = {version: state for version, state in states.items() if version == labels.get(spec.version_label)}
        for version, state in sorted(states.items(), reverse=True):
            response.model_version_status.append(make_version_status(version, state))
        if not states:
            response.model_version_status.append(
                make_version_status(-1, ModelState.UNKNOWN, Code.NOT_FOUND, f"{spec.name} is not found")
            )
        return response

    def _reload(self, request: ReloadConfigRequest, _: Any) -> ReloadConfigResponse:
        wanted = {config.name: config for config in request.config.model_config_list.config}
        with self._lock:
            for name, model in self._models.items():
                if name not in wanted:
                    model.unload()
            for name, config in wanted.items():
                model_ = self._models.get(name)
                if model_ is None or model_.is_leaving:
                    self._models[name] = _Model(config)
                elif model_.config != config:
                    model_.follow(config)
            self._lock.notify_all()
        return ReloadConfigResponse()

    def _metadata(self, request: GetModelMetadataRequest, _: Any) -> GetModelMetadataResponse:
        with self._lock:
            model = self._models.get(request.model_spec.name)
        if model is None:
            raise ModelNotFound(f"{request.model_spec.name} is not found")
        response = GetModelMetadataResponse(model_spec=request.model_spec)
        values = {
            "base_path": model.config.base_path,
            "num_versions": len(model.states),
            "signature_name": "serving_default",
        }
        for name in request.metadata_field:
            if name in values:
                response.metadata[name].value = str(values[name]).encode()
        return response

    def _predict(self, request: PredictRequest, _: Any) -> PredictResponse:
        return PredictResponse()
