"""Ask model servers for the states of their models, and change which models they serve.

Main types: ``ServerClient`` (one server), ``ServerMonitor`` (the servers of a version 2 agent), ``best_status`` (the
one rule that reduces the versions of a model to one status).

Invariant: every call has a deadline. After ``close`` every call raises ``ClusterError``.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from monolith.agent.config import SERVING_HOME, AgentConfig
from monolith.agent.messages import (
    GetModelStatusRequest,
    GetModelStatusResponse,
    ModelServerConfig,
    ModelVersionStatus,
    ReloadConfigRequest,
    ReloadConfigResponse,
    StatusProto,
    make_model_spec,
    make_version_status,
)
from monolith.agent.model_configs import make_model_config, make_server_config
from monolith.agent.records import ModelState, PublishMeta, PublishType, ServerType
from monolith.agent.settings import DeployType
from monolith.core.errors import ClusterError
from monolith.rpc import grpc
from monolith.rpc.security import Security
from monolith.rpc.status import Code

__all__ = [
    "DEFAULT_MODEL",
    "STATUS_TIMEOUT_S",
    "ServerClient",
    "ServerMonitor",
    "best_status",
    "is_late",
    "served_types",
]

STATUS_TIMEOUT_S = 1.0
"""Deadline of a status call."""
_RELOAD_TIMEOUT_S = 30.0
_MAX_MESSAGE_BYTES = 64 << 20
_MODEL_SERVICE = "tensorflow.serving.ModelService"

DEFAULT_MODEL = ("default", f"{SERVING_HOME}/dat/saved_models/entry")
"""Name and folder of the model that every reload of a foreign server carries."""


def best_status(statuses: Sequence[ModelVersionStatus]) -> ModelVersionStatus | None:
    """Return the newest AVAILABLE version's status, else the newest version's; None without versions."""
    available = [each for each in statuses if int(each.state) == ModelState.AVAILABLE]
    return max(available or statuses, key=lambda each: each.version, default=None)


def is_late(status: ModelVersionStatus) -> bool:
    """Return True if the status stands for a call that ran into its deadline."""
    return int(status.status.error_code) == Code.DEADLINE_EXCEEDED


class ServerClient:
    """A client of one model server.

    Args:
        address: ``host:port`` of its gRPC port.
        timeout_s: Deadline of a status call.
        security: Token and TLS of the calls.
    """

    def __init__(self, address: str, *, timeout_s: float = STATUS_TIMEOUT_S, security: Security | None = None) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._is_closed = False
        self._channel = grpc.open_channel(address, security or Security(), _MAX_MESSAGE_BYTES)
        self._get_status = self._method("GetModelStatus", GetModelStatusRequest, GetModelStatusResponse)
        self._reload = self._method("HandleReloadConfigRequest", ReloadConfigRequest, ReloadConfigResponse)

    def model_status(self, name: str, version: int | str | None = None) -> list[ModelVersionStatus]:
        """Return the statuses of a model's versions; a number selects a version, a text selects a label.

        Raises:
            ClusterError: The server does not answer, or does not know the model.
        """
        request = GetModelStatusRequest()
        request.model_spec.CopyFrom(make_model_spec(name, version))
        return list(self._call(self._get_status, "GetModelStatus", request, self._timeout_s).model_version_status)

    def probe_status(self, name: str, version: int | None = None) -> ModelVersionStatus:
        """Return the best status of a model; a failed call gives UNKNOWN with the code and text of the failure."""
        request = GetModelStatusRequest()
        request.model_spec.CopyFrom(make_model_spec(name, version))
        if self._is_closed:
            return make_version_status(-1, ModelState.UNKNOWN, Code.UNAVAILABLE, "the client is closed")
        try:
            answer = self._get_status(request, timeout=self._timeout_s)
        except grpc.CallError as error:
            code: Any = error.code()
            return make_version_status(-1, ModelState.UNKNOWN, code.value[0], error.details() or code.name)
        status = best_status(list(answer.model_version_status))
        return status or make_version_status(-1, ModelState.UNKNOWN, Code.NOT_FOUND, f"{name} not found")

    def probe_again_if_late(self, name: str, version: int | None = None) -> ModelVersionStatus:
        """Return ``probe_status``; after a late answer, ask once more."""
        status = self.probe_status(name, version)
        return self.probe_status(name, version) if is_late(status) else status

    def reload(self, config: ModelServerConfig) -> StatusProto:
        """Replace the models of the server and return its status.

        Raises:
            ClusterError: The server does not answer, or refuses the config.
        """
        request = ReloadConfigRequest(config=config)
        result: StatusProto = self._call(self._reload, "HandleReloadConfigRequest", request, _RELOAD_TIMEOUT_S).status
        return result

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        self._is_closed = True
        self._channel.close()

    def _method(self, verb: str, request: type[Any], response: type[Any]) -> Callable[..., Any]:
        return self._channel.unary_unary(
            f"/{_MODEL_SERVICE}/{verb}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )

    def _call(self, method: Callable[..., Any], verb: str, request: Any, timeout_s: float) -> Any:
        if self._is_closed:
            raise ClusterError(f"{verb} at {self.address}: the client is closed; open another one")
        try:
            return method(request, timeout=timeout_s)
        except grpc.CallError as error:
            raise grpc.translate_error(error, verb, self.address) from error


class ServerMonitor:
    """States and models of the servers of one container of version 2.

    Args:
        config: Gives deploy type, dense_alone and ports.
        host: Address of the own host.
        make_client: Opens a client; tests replace it.
    """

    def __init__(
        self, config: AgentConfig, host: str, *, make_client: Callable[[str], ServerClient] = ServerClient
    ) -> None:
        self._config = config
        self._clients: dict[ServerType, ServerClient] = {
            kind: make_client(f"{host}:{config.port_of(kind)}") for kind in served_types(config)
        }

    @property
    def server_types(self) -> list[ServerType]:
        """Types of the servers of this container."""
        return list(self._clients)

    def client(self, server_type: str) -> ServerClient:
        """Return the client of a server."""
        return self._clients[ServerType(server_type)]

    def type_of(self, sub_model: str) -> ServerType | None:
        """Return the type of the server of a sub-model, or None if this container has no such server."""
        for kind in ServerType:
            if sub_model == kind or sub_model.startswith(f"{kind.value}_"):
                return kind if kind in self._clients else None
        return None

    def get_model_status(
        self,
        publish: PublishMeta,
        *,
        fix_dense_version: bool = False,
        silent: dict[ServerType, ModelVersionStatus] | None = None,
    ) -> dict[str, tuple[str, ModelVersionStatus]]:
        """Return version path and status of each sub-model of a publish, by ``<model>:<sub_model>``.

        Args:
            publish: The publish.
            fix_dense_version: Whether dense sub-models are asked for the version of the publish.
            silent: Late answers of this round by server; a server in it is not asked for its other sub-models.
        """
        silent = {} if silent is None else silent
        result: dict[str, tuple[str, ModelVersionStatus]] = {}
        for sub_model, version_path in (publish.sub_models or {}).items():
            kind = self.type_of(sub_model)
            if kind is None:
                continue
            name = f"{publish.model_name}:{sub_model}"
            version = None
            if fix_dense_version or not self._is_dense_node(sub_model):
                version = int(os.path.basename(version_path))
            status = silent.get(kind) or self._clients[kind].probe_again_if_late(name, version)
            if is_late(status):
                silent[kind] = status
            result[name] = (version_path, status)
        return result

    def gen_model_config(
        self, publishes: Iterable[PublishMeta], *, fix_dense_version: bool = False
    ) -> dict[ServerType, ModelServerConfig]:
        """Return the models of each server; publishes that unload are left out."""
        models: dict[ServerType, list[Any]] = {kind: [] for kind in self._clients}
        for publish in publishes:
            if publish.ptype != PublishType.LOAD:
                continue
            for sub_model, version_path in (publish.sub_models or {}).items():
                kind = self.type_of(sub_model)
                if kind is None:
                    continue
                folder, version = os.path.split(version_path)
                is_fixed = fix_dense_version or not self._is_dense_node(sub_model)
                models[kind].append(
                    make_model_config(
                        f"{publish.model_name}:{sub_model}",
                        folder,
                        version_policy="specific" if is_fixed else "latest",
                        version_data=int(version) if is_fixed else 1,
                    )
                )
        return {kind: make_server_config(configs) for kind, configs in models.items()}

    def handle_reload_config_request(self, server_type: str, config: ModelServerConfig) -> StatusProto:
        """Replace the models of a server; a foreign server also gets the default model."""
        sent = ModelServerConfig()
        sent.CopyFrom(config)
        is_foreign = self._config.environment.foreign_server is not None
        if is_foreign and all(each.name != DEFAULT_MODEL[0] for each in sent.model_config_list.config):
            sent.model_config_list.config.append(make_model_config(*DEFAULT_MODEL))
        return self.client(server_type).reload(sent)

    def close(self) -> None:
        """Close the connections; later calls fail."""
        for client in self._clients.values():
            client.close()

    def _is_dense_node(self, sub_model: str) -> bool:
        wanted = ServerType.DENSE if self._config.dense.dense_alone else ServerType.ENTRY
        return sub_model == wanted or sub_model.startswith(f"{wanted.value}_")


_TYPES: Mapping[DeployType, tuple[ServerType, ...]] = {
    DeployType.PS: (ServerType.PS,),
    DeployType.ENTRY: (ServerType.ENTRY,),
    DeployType.DENSE: (ServerType.DENSE,),
    DeployType.MIXED: (ServerType.PS, ServerType.DENSE, ServerType.ENTRY),
}


def served_types(config: AgentConfig) -> list[ServerType]:
    """Return the types of the servers of a container of version 1 or 2, in start order."""
    assert config.service.deploy_type is not None
    kinds = _TYPES[config.service.deploy_type]
    return [kind for kind in kinds if kind is not ServerType.DENSE or config.dense.dense_alone]
