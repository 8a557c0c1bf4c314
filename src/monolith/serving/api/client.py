"""``Client`` of a model server, Monolith's or TensorFlow Serving, over gRPC or REST.

>>> Client("127.0.0.1:8500").transport
'grpc'

A server with a token refuses calls without it:

>>> client = Client("127.0.0.1:8500", model="ctr", token="s3cret")
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import (
    ConfigError,
    InvalidRequest,
    ModelNotFound,
    ModelNotReady,
    MonolithError,
    NotPermitted,
    Overloaded,
    RpcTimeout,
    ServingError,
)
from monolith.rpc.security import Security
from monolith.rpc.status import Code
from monolith.rpc.tls import client_context
from monolith.serving.api import messages
from monolith.serving.api.client_values import Column, as_column
from monolith.serving.api.tensors import encode_tensor, read_tensor
from monolith.serving.versions.loaded_model import DEGRADED, ROW_LENGTHS, DegradedOutputs

__all__ = ["Client", "Records", "Version"]

Records: TypeAlias = Literal["instances", "examples", "example_batch", "tf_examples"]
"""Name of the input that carries serialized records; it selects the message type."""

_ERRORS: dict[Code, type[MonolithError]] = {
    Code.INVALID_ARGUMENT: InvalidRequest,
    Code.NOT_FOUND: ModelNotFound,
    Code.RESOURCE_EXHAUSTED: Overloaded,
    Code.DEADLINE_EXCEEDED: RpcTimeout,
    Code.UNAVAILABLE: ModelNotReady,
    Code.PERMISSION_DENIED: NotPermitted,
    Code.UNAUTHENTICATED: NotPermitted,
}
_BY_STATUS = {
    400: Code.INVALID_ARGUMENT,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.NOT_FOUND,
    503: Code.UNAVAILABLE,
    504: Code.DEADLINE_EXCEEDED,
}


class Version:
    """State of one version."""

    __slots__ = ("error", "state", "version")

    def __init__(self, version: int, state: str, error: str) -> None:
        self.version = version
        self.state = state
        """START, LOADING, AVAILABLE, UNLOADING or END."""
        self.error = error
        """Error that ended the version; empty without an error."""

    def __repr__(self) -> str:
        return f"Version({self.version}, {self.state!r}, {self.error!r})"


class Client:
    """Connection to one server. Thread safe. Call ``close``, or use it as a context manager.

    Args:
        address: ``host:port`` for gRPC, ``http://host:port`` or ``https://host:port`` for REST.
        model: Default model of calls.
        timeout_s: Default timeout of calls.
        token: Bearer token of the server; the same as ``security=Security(token=...)``.
        security: TLS and token.
        max_message_bytes: Largest gRPC message.
    """

    def __init__(
        self,
        address: str,
        *,
        model: str = "",
        timeout_s: float = 30.0,
        token: str = "",
        security: Security | None = None,
        max_message_bytes: int = 64 << 20,
    ) -> None:
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s is {timeout_s!r}, expected a number above 0")
        self.address = address
        self._model = model
        self._timeout_s = timeout_s
        if token and security is not None:
            raise ConfigError("token and security are both given, expected one; use security=Security(token=...)")
        security = security or Security(token=token)
        self._link: _Rest | _Grpc = (
            _Rest(address, security) if "://" in address else _Grpc(address, security, max_message_bytes)
        )

    @property
    def transport(self) -> Literal["grpc", "rest"]:
        """Transport of the calls."""
        return self._link.name

    def predict(
        self,
        inputs: Mapping[str, Any],
        *,
        model: str = "",
        version: int | None = None,
        label: str = "",
        signature: str = "",
        outputs: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Return the outputs for inputs by name: features, ids of tables, or serialized records.

        An input is a NumPy array, a list with a value or a list of values per row, a ``Ragged``, an Arrow array, or a
        column of a pandas or polars frame.

        The result is a ``DegradedOutputs`` if the server computed it without some rows.

        Raises:
            InvalidRequest: The inputs do not fit the model.
            ModelNotFound: The model or version does not exist.
            Overloaded: The server is overloaded; retry later.
            ModelNotReady: The model is not loaded yet, or the server is unreachable.
            NotPermitted: The token is missing or wrong, or does not allow the call.
            RpcTimeout: The call timed out.
        """
        columns = {name: as_column(value, name) for name, value in inputs.items()}
        spec = _spec(model or self._model, version, label, signature)
        return self._link.predict(spec, columns, outputs, timeout_s or self._timeout_s)

    def score(
        self, records: bytes | Sequence[bytes], kind: Records = "examples", **choice: Any
    ) -> dict[str, NDArray[Any]]:
        """Return the outputs for serialized records; ``choice`` takes the arguments of ``predict``."""
        listed = [records] if isinstance(records, bytes) else list(records)
        return self.predict({kind: listed}, **choice)

    def status(self, model: str = "", version: int | None = None, label: str = "") -> list[Version]:
        """Return the state of every version of a model, newest first; or of the named version."""
        return self._link.status(_spec(model or self._model, version, label, ""), self._timeout_s)

    def metadata(self, model: str = "", version: int | None = None, label: str = "") -> dict[str, Any]:
        """Return the signatures of a model: name to ``{"inputs": {name: (dtype, shape)}, "outputs": ...}``."""
        return self._link.metadata(_spec(model or self._model, version, label, ""), self._timeout_s)

    def reload(self, config: str, timeout_s: float | None = None) -> None:
        """Replace the models of the server by those of a ModelServerConfig in protobuf text. gRPC only."""
        request = messages.ReloadConfigRequest()
        messages.parse_text(config, request.config, "config")
        self._link.reload(request, timeout_s or self._timeout_s)

    def close(self) -> None:
        """Close the connections."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _spec(model: str, version: int | None, label: str, signature: str) -> messages.ModelSpec:
    if not model:
        raise ConfigError("model is empty, expected a name; give model= to the client or to the call")
    if version is not None and label:
        raise ConfigError(f"version is {version!r} and label is {label!r}, expected only one of them")
    spec = messages.ModelSpec(name=model, signature_name=signature)
    if version is not None:
        spec.version.value = version
    elif label:
        spec.version_label = label
    return spec


def _error(code: Code, text: str, where: str) -> MonolithError:
    return _ERRORS.get(code, ServingError)(f"{text} ({code.name} from {where})")


def _mark_degraded(outputs: dict[str, NDArray[Any]], missing: str) -> dict[str, NDArray[Any]]:
    return DegradedOutputs(outputs, missing.split(",")) if missing else outputs


class _Grpc:
    name: Literal["grpc"] = "grpc"

    def __init__(self, address: str, security: Security, max_message_bytes: int) -> None:
        from monolith.rpc import grpc

        self._address = address
        self._errors = grpc.CallError
        self._channel = grpc.open_channel(address, security, max_message_bytes)
        services = (
            (messages.PREDICTION_SERVICE, messages.PREDICTION_METHODS),
            (messages.MODEL_SERVICE, messages.MODEL_METHODS),
        )
        self._calls = {
            verb: self._channel.unary_unary(
                f"/{service}/{verb}",
                request_serializer=pair[0].SerializeToString,
                response_deserializer=pair[1].FromString,
            )
            for service, methods in services
            for verb, pair in methods.items()
        }

    def predict(
        self, spec: messages.ModelSpec, columns: Mapping[str, Column], outputs: Sequence[str], timeout_s: float
    ) -> dict[str, NDArray[Any]]:
        request = messages.PredictRequest(model_spec=spec, output_filter=outputs)
        for name, column in columns.items():
            request.inputs[name].MergeFromString(encode_tensor(column.values))
            if column.lengths is not None:
                request.inputs[name + ROW_LENGTHS].MergeFromString(encode_tensor(column.lengths))
        answer, trailing = self._call_with_trailing("Predict", request, timeout_s)
        found = {name: read_tensor(tensor, name) for name, tensor in answer.outputs.items()}
        return _mark_degraded(found, trailing.get(DEGRADED.lower(), ""))

    def status(self, spec: messages.ModelSpec, timeout_s: float) -> list[Version]:
        answer = self._call("GetModelStatus", messages.GetModelStatusRequest(model_spec=spec), timeout_s)
        names = messages.ModelVersionStatus.State
        return [
            Version(each.version, names.Name(each.state), each.status.error_message)
            for each in answer.model_version_status
        ]

    def metadata(self, spec: messages.ModelSpec, timeout_s: float) -> dict[str, Any]:
        request = messages.GetModelMetadataRequest(model_spec=spec, metadata_field=["signature_def"])
        packed = self._call("GetModelMetadata", request, timeout_s).metadata["signature_def"].value
        found = messages.SignatureDefMap.FromString(packed).signature_def
        return {
            name: {"inputs": _infos(signature.inputs), "outputs": _infos(signature.outputs)}
            for name, signature in found.items()
        }

    def reload(self, request: messages.ReloadConfigRequest, timeout_s: float) -> None:
        status = self._call("HandleReloadConfigRequest", request, timeout_s).status
        if status.error_code:
            raise _error(Code(status.error_code), status.error_message, self._address)

    def _call(self, verb: str, request: Any, timeout_s: float) -> Any:
        return self._call_with_trailing(verb, request, timeout_s)[0]

    def _call_with_trailing(self, verb: str, request: Any, timeout_s: float) -> tuple[Any, dict[str, str]]:
        try:
            answer, call = self._calls[verb].with_call(request, timeout=timeout_s)
            return answer, {key: str(value) for key, value in call.trailing_metadata() or ()}
        except self._errors as exc:
            code: Any = exc
            raise _error(Code(code.code().value[0]), code.details() or "", self._address) from exc

    def close(self) -> None:
        self._channel.close()


def _infos(tensors: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    from monolith.serving.api.tensors import dtype_name

    return {
        name: (dtype_name(info.dtype), tuple(dim.size for dim in info.tensor_shape.dim))
        for name, info in tensors.items()
    }


class _Rest:
    name: Literal["rest"] = "rest"

    def __init__(self, address: str, security: Security) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"address is {address!r}, expected host:port, http://host:port or https://host:port")
        self._address = address.rstrip("/")
        self._headers = {"Authorization": f"Bearer {security.token}"} if security.token else {}
        context = client_context(security) if parts.scheme == "https" else None
        # Ignore proxy settings of the environment: a proxy cannot reach servers within the cluster.
        handlers: list[Any] = [ProxyHandler({})]
        if context is not None:
            handlers.append(HTTPSHandler(context=context))
        self._opener = build_opener(*handlers)

    def predict(
        self, spec: messages.ModelSpec, columns: Mapping[str, Column], outputs: Sequence[str], timeout_s: float
    ) -> dict[str, NDArray[Any]]:
        body: dict[str, Any] = {"inputs": {name: _plain(column.tolist()) for name, column in columns.items()}}
        if spec.signature_name:
            body["signature_name"] = spec.signature_name
        answer, missing = self._ask_with_mark(spec, ":predict", timeout_s, json.dumps(body).encode())
        found = answer["outputs"]
        if not isinstance(found, dict):  # a single output arrives without its name
            names = list(self.metadata(spec, timeout_s)[spec.signature_name or "serving_default"]["outputs"])
            found = {_name_of_only(names, columns): found}
        arrays = {name: np.asarray(value) for name, value in found.items()}
        shown = {
            name: array.astype(np.float32) if array.dtype == np.float64 else array for name, array in arrays.items()
        }
        for name in outputs:
            if name not in shown:
                raise InvalidRequest(
                    f"output of signature {spec.signature_name or 'serving_default'!r} is {name!r}, expected one of "
                    f"{', '.join(sorted(shown))}"
                )
        return _mark_degraded({name: shown[name] for name in outputs} if outputs else shown, missing)

    def status(self, spec: messages.ModelSpec, timeout_s: float) -> list[Version]:
        found = self._ask(spec, "", timeout_s)["model_version_status"]
        return [Version(int(each["version"]), each["state"], each["status"]["error_message"]) for each in found]

    def metadata(self, spec: messages.ModelSpec, timeout_s: float) -> dict[str, Any]:
        found = self._ask(spec, "/metadata", timeout_s)["metadata"]["signature_def"]["signature_def"]

        def infos(tensors: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
            return {
                name: (info["dtype"], tuple(int(dim["size"]) for dim in info["tensor_shape"]["dim"]))
                for name, info in tensors.items()
            }

        return {
            name: {"inputs": infos(signature["inputs"]), "outputs": infos(signature["outputs"])}
            for name, signature in found.items()
        }

    def reload(self, request: messages.ReloadConfigRequest, timeout_s: float) -> None:
        raise ConfigError(f"address is {self._address!r}, expected the gRPC address host:port: REST has no reload")

    def _ask(self, spec: messages.ModelSpec, verb: str, timeout_s: float) -> Any:
        return self._ask_with_mark(spec, verb, timeout_s)[0]

    def _ask_with_mark(
        self, spec: messages.ModelSpec, verb: str, timeout_s: float, body: bytes | None = None
    ) -> tuple[Any, str]:
        choice = f"/versions/{spec.version.value}" if spec.HasField("version") else ""
        choice = f"/labels/{quote(spec.version_label, safe='')}" if spec.version_label else choice
        url = f"{self._address}/v1/models/{quote(spec.name, safe='')}{choice}{verb}"
        request = Request(url, body, {**self._headers, "Content-Type": "application/json"})
        try:
            with self._opener.open(request, timeout=timeout_s) as answer:
                content, missing = answer.read(), answer.headers.get(DEGRADED, "")
        except HTTPError as exc:
            with exc:
                raise _error(_BY_STATUS.get(exc.code, Code.UNKNOWN), _text(exc.read()), self._address) from exc
        except TimeoutError as exc:
            raise RpcTimeout(f"no response from {self._address} within {timeout_s} s") from exc
        except (URLError, OSError) as exc:
            raise ModelNotReady(f"{self._address} is unreachable ({getattr(exc, 'reason', exc)})") from exc
        except HTTPException as exc:
            raise ModelNotReady(
                f"response of {self._address} is cut or no HTTP ({exc!r:.100}); retry, or give the REST address"
            ) from exc
        try:
            found = json.loads(content)
        except ValueError as exc:
            raise ServingError(
                f"response of {self._address} is {content[:100]!r}, expected JSON; give the REST address of a server"
            ) from exc
        return found, missing

    def close(self) -> None:
        self._opener.close()


def _name_of_only(names: Sequence[str], inputs: Mapping[str, Any]) -> str:
    """Return the name of an output that arrived alone.

    A signature of several tables answers for the tables of the request only: ``user`` for ``user``, and
    ``user_result`` for ``user_id``.
    """
    asked = [name for name in names if name in inputs or f"{name.removesuffix('_result')}_id" in inputs]
    return asked[0] if len(names) > 1 and asked else names[0]


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return {"b64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _text(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:200]
