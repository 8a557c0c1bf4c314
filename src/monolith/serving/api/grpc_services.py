"""TensorFlow Serving's gRPC services: bytes in, bytes out, errors as gRPC statuses.

This module parses the messages, not gRPC, so that an invalid request gets a clear INVALID_ARGUMENT.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from monolith._proto.messages import parse_bytes
from monolith.core.errors import InvalidRequest, ModelNotFound, RecordCorrupt
from monolith.rpc import grpc
from monolith.rpc.status import Code, client_text, code_of
from monolith.serving.api import messages
from monolith.serving.api.access import Access
from monolith.serving.api.impression_log import REQUEST_KEY
from monolith.serving.api.metadata import model_spec, signature_map, status_message
from monolith.serving.api.request_log import RequestLog
from monolith.serving.api.tensors import encode_outputs, read_tensor
from monolith.serving.requests.request_router import PredictRequest, RequestRouter
from monolith.serving.versions.hosted_models import HostedModels
from monolith.serving.versions.hosted_version import HostedVersion
from monolith.serving.versions.loaded_model import DEGRADED
from monolith.serving.versions.model_config import ModelConfig, configs_of

__all__ = ["GrpcServices"]

logger = logging.getLogger(__name__)

_REFUSED = {
    "Classify": "use Predict; Classify needs TensorFlow's classification signatures",
    "Regress": "use Predict; Regress needs TensorFlow's regression signatures",
    "MultiInference": "use Predict, which returns all outputs of all heads",
}


class GrpcServices:
    """Methods of PredictionService, ModelService and gRPC's Health.

    Args:
        router: Answers Predict.
        configure: Replaces the set of models; returns after their versions loaded or failed, or after the timeout.
        log: Log of sampled requests.
        is_serving: Whether the server is ready.
        timeout_s: Timeout of a call.
        access: Rights of callers.
    """

    def __init__(
        self,
        router: RequestRouter,
        configure: Callable[[Sequence[ModelConfig], float], None],
        log: RequestLog,
        is_serving: Callable[[], bool],
        timeout_s: float,
        access: Access,
    ) -> None:
        self._router = router
        self._configure = configure
        self._log = log
        self._is_serving = is_serving
        self._timeout_s = timeout_s
        self._access = access

    def handlers(self) -> dict[str, dict[str, Any]]:
        """Return gRPC handlers by service."""
        refused = {verb: _refusing(verb, reason) for verb, reason in _REFUSED.items()}
        return {
            messages.PREDICTION_SERVICE: grpc.bytes_handlers(
                {"Predict": self._predict, "GetModelMetadata": _guarded(self._metadata), **refused}
            ),
            messages.MODEL_SERVICE: grpc.bytes_handlers(
                {"GetModelStatus": _guarded(self._status), "HandleReloadConfigRequest": _guarded(self._reload)}
            ),
            messages.HEALTH_SERVICE: grpc.bytes_handlers({"Check": _guarded(self._check)}),
        }

    def _predict(self, payload: bytes, context: Any) -> bytes:
        try:
            request = _parsed(messages.PredictRequest, payload)
            key = self._request_key(context)
            parsed = _predict_request(request, self._access.may_assign(_authorization(context)), key)
        except Exception as error:
            return grpc.abort(context, code_of(error), client_text(error))
        result = self._router.call(parsed, "grpc", timeout_s=self._time_left(context), is_wanted=context.is_active)
        if result.error is not None:
            return grpc.abort(context, code_of(result.error), client_text(result.error))
        trailing = [(DEGRADED.lower(), result.missing)] if result.missing else []
        if key:
            trailing.append((REQUEST_KEY.lower(), key.decode()))
        if trailing:
            context.set_trailing_metadata(tuple(trailing))
        hosted = result.hosted
        assert hosted is not None
        response = encode_outputs(result.outputs, model_spec(hosted, result.signature).SerializeToString())
        if self._wants_log(hosted, context):
            self._log.add(payload, response, hosted.log_prefix)
        return response

    def _wants_log(self, hosted: HostedVersion, context: Any) -> bool:
        """Return whether to log a request; plain scores of the native path were drawn before they came here."""
        is_logged: bool | None = getattr(context, "is_logged", None)
        if is_logged is not None:
            return is_logged
        return self._log.wants(self._log.rate if hosted.log_rate is None else hosted.log_rate)

    def _metadata(self, payload: bytes, context: Any) -> bytes:
        request = _parsed(messages.GetModelMetadataRequest, payload)
        if not request.metadata_field:
            raise InvalidRequest("metadata_field is empty, expected 'signature_def'")
        answer = messages.GetModelMetadataResponse()
        with _acquired(self._router.models, request.model_spec) as hosted:
            for field in request.metadata_field:
                if field != "signature_def":
                    raise InvalidRequest(f"metadata_field is {field!r}, expected 'signature_def'")
                found = answer.metadata[field]
                found.type_url = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
                found.value = signature_map(hosted.model).SerializeToString()
            answer.model_spec.CopyFrom(model_spec(hosted))
        return answer.SerializeToString()

    def _status(self, payload: bytes, context: Any) -> bytes:
        spec = _parsed(messages.GetModelStatusRequest, payload).model_spec
        version = spec.version.value if spec.HasField("version") else None
        found = self._router.models.status(spec.name, version, spec.version_label)
        return status_message(found).SerializeToString()

    def _reload(self, payload: bytes, context: Any) -> bytes:
        request = _parsed(messages.ReloadConfigRequest, payload)
        if request.config.WhichOneof("config") is None:
            raise InvalidRequest("ReloadConfigRequest.config is empty, expected a model_config_list")
        models = configs_of(request.config, "ReloadConfigRequest")
        self._access.check_reload(_authorization(context), models)
        self._configure(models, self._time_left(context))
        answer = messages.ReloadConfigResponse()
        answer.status.error_code = 0  # type: ignore[assignment]
        return answer.SerializeToString()

    def _check(self, payload: bytes, context: Any) -> bytes:
        service = _parsed(messages.HealthCheckRequest, payload).service
        if service not in ("", messages.PREDICTION_SERVICE, messages.MODEL_SERVICE):
            raise ModelNotFound(f"service is {service!r}, expected a service of this server")
        answer = messages.HealthCheckResponse(status=1 if self._is_serving() else 2)  # type: ignore[arg-type]
        return answer.SerializeToString()

    def _request_key(self, context: Any) -> bytes:
        if self._router.impressions is None:
            return b""
        return self._router.impressions.make_key(_metadata_text(context, REQUEST_KEY.lower()))

    def _time_left(self, context: Any) -> float:
        left_s = context.time_remaining()
        return self._timeout_s if left_s is None else max(0.0, min(float(left_s), self._timeout_s))


def _authorization(context: Any) -> str:
    return _metadata_text(context, "authorization")


def _metadata_text(context: Any, name: str) -> str:
    return str(dict(context.invocation_metadata() or ()).get(name, ""))


def _predict_request(request: messages.PredictRequest, may_assign: bool, request_key: bytes) -> PredictRequest:
    spec = request.model_spec
    if not spec.name:
        raise InvalidRequest("model_spec.name is empty, expected the name of a model")
    return PredictRequest(
        spec.name,
        {name: read_tensor(tensor, name) for name, tensor in request.inputs.items()},
        spec.version.value if spec.HasField("version") else None,
        spec.version_label,
        spec.signature_name,
        list(request.output_filter),
        may_assign,
        request_key,
    )


def _acquired(models: HostedModels, spec: messages.ModelSpec) -> Any:
    if not spec.name:
        raise InvalidRequest("model_spec.name is empty, expected the name of a model")
    return models.acquire(spec.name, spec.version.value if spec.HasField("version") else None, spec.version_label)


def _parsed(kind: type[Any], payload: bytes) -> Any:
    try:
        return parse_bytes(kind, payload, "the request")
    except RecordCorrupt as exc:
        raise InvalidRequest(f"the request has {len(payload)} bytes, expected a {kind.DESCRIPTOR.name}") from exc


def _guarded(answer: Callable[[bytes, Any], bytes]) -> Callable[[bytes, Any], bytes]:
    def call(payload: bytes, context: Any) -> bytes:
        try:
            return answer(payload, context)
        except Exception as error:
            code = code_of(error)
            if code == Code.INTERNAL:
                logger.exception("call failed")
            return grpc.abort(context, code, client_text(error))

    return call


def _refusing(verb: str, reason: str) -> Callable[[bytes, Any], bytes]:
    def call(payload: bytes, context: Any) -> bytes:
        return grpc.abort(context, Code.UNIMPLEMENTED, f"{verb} is not supported: {reason}")

    return call
