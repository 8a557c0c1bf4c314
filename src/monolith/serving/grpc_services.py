"""TensorFlow Serving's gRPC services: bytes in, bytes out, errors as gRPC's statuses.

The messages are read here and not by gRPC, so that a request which is none gets an answer that says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from monolith._proto.messages import parse_bytes
from monolith.core.errors import InvalidRequest, ModelNotFound, RecordCorrupt
from monolith.rpc import grpc
from monolith.rpc.status import Code, code_of, text_of
from monolith.serving import messages
from monolith.serving.hosted_models import HostedModels
from monolith.serving.loaded_model import DEGRADED
from monolith.serving.metadata import model_spec, signature_map, status_message
from monolith.serving.model_config import ModelConfig, configs_of
from monolith.serving.request_log import RequestLog
from monolith.serving.scoring import Question, Scoring
from monolith.serving.tensors import encode_outputs, read_tensor

__all__ = ["GrpcServices"]

logger = logging.getLogger(__name__)

_REFUSED = {
    "Classify": "models here are asked with Predict; Classify needs TensorFlow's classification signatures",
    "Regress": "models here are asked with Predict; Regress needs TensorFlow's regression signatures",
    "MultiInference": "models here are asked with Predict, which gives all outputs of all heads at once",
}


class GrpcServices:
    """The methods of PredictionService, ModelService and gRPC's Health.

    Args:
        scoring: Answers Predict.
        configure: Takes another set of models, and returns after their versions were loaded or failed, or when the
            given time is over.
        log: Takes samples of requests.
        is_serving: Whether the server can be sent requests.
        timeout_s: Longest time for a call.
    """

    def __init__(
        self,
        scoring: Scoring,
        configure: Callable[[Sequence[ModelConfig], float], None],
        log: RequestLog,
        is_serving: Callable[[], bool],
        timeout_s: float,
    ) -> None:
        self._scoring = scoring
        self._configure = configure
        self._log = log
        self._is_serving = is_serving
        self._timeout_s = timeout_s

    def handlers(self) -> dict[str, dict[str, Any]]:
        """Return gRPC's handlers by service."""
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
            question = _question(request)
        except Exception as error:
            return grpc.abort(context, code_of(error), text_of(error))
        answer = self._scoring.answer(question, "grpc", timeout_s=self._time_left(context), is_wanted=context.is_active)
        if answer.error is not None:
            return grpc.abort(context, code_of(answer.error), text_of(answer.error))
        if answer.missing:
            context.set_trailing_metadata(((DEGRADED.lower(), answer.missing),))
        hosted = answer.hosted
        assert hosted is not None
        response = encode_outputs(answer.outputs, model_spec(hosted, answer.signature).SerializeToString())
        if self._log.wants(hosted.log_rate):
            self._log.add(payload, response, hosted.log_prefix)
        return response

    def _metadata(self, payload: bytes, context: Any) -> bytes:
        request = _parsed(messages.GetModelMetadataRequest, payload)
        if not request.metadata_field:
            raise InvalidRequest("metadata_field is empty; ask for 'signature_def'")
        answer = messages.GetModelMetadataResponse()
        with _acquired(self._scoring.models, request.model_spec) as hosted:
            for field in request.metadata_field:
                if field != "signature_def":
                    raise InvalidRequest(f"metadata_field {field!r} is not known; ask for 'signature_def'")
                found = answer.metadata[field]
                found.type_url = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
                found.value = signature_map(hosted.model.signatures).SerializeToString()
            answer.model_spec.CopyFrom(model_spec(hosted))
        return answer.SerializeToString()

    def _status(self, payload: bytes, context: Any) -> bytes:
        spec = _parsed(messages.GetModelStatusRequest, payload).model_spec
        version = spec.version.value if spec.HasField("version") else None
        found = self._scoring.models.status(spec.name, version, spec.version_label)
        return status_message(found).SerializeToString()

    def _reload(self, payload: bytes, context: Any) -> bytes:
        request = _parsed(messages.ReloadConfigRequest, payload)
        if request.config.WhichOneof("config") is None:
            raise InvalidRequest("ReloadConfigRequest.config is empty; give a model_config_list")
        self._configure(configs_of(request.config, "ReloadConfigRequest"), self._time_left(context))
        answer = messages.ReloadConfigResponse()
        answer.status.error_code = 0  # type: ignore[assignment]
        return answer.SerializeToString()

    def _check(self, payload: bytes, context: Any) -> bytes:
        service = _parsed(messages.HealthCheckRequest, payload).service
        if service not in ("", messages.PREDICTION_SERVICE, messages.MODEL_SERVICE):
            raise ModelNotFound(f"there is no service {service!r}")
        answer = messages.HealthCheckResponse(status=1 if self._is_serving() else 2)  # type: ignore[arg-type]
        return answer.SerializeToString()

    def _time_left(self, context: Any) -> float:
        left_s = context.time_remaining()
        return self._timeout_s if left_s is None else max(0.0, min(float(left_s), self._timeout_s))


def _question(request: messages.PredictRequest) -> Question:
    spec = request.model_spec
    if not spec.name:
        raise InvalidRequest("model_spec.name is empty; name a model")
    return Question(
        spec.name,
        {name: read_tensor(tensor, name) for name, tensor in request.inputs.items()},
        spec.version.value if spec.HasField("version") else None,
        spec.version_label,
        spec.signature_name,
        list(request.output_filter),
    )


def _acquired(models: HostedModels, spec: messages.ModelSpec) -> Any:
    if not spec.name:
        raise InvalidRequest("model_spec.name is empty; name a model")
    return models.acquire(spec.name, spec.version.value if spec.HasField("version") else None, spec.version_label)


def _parsed(kind: type[Any], payload: bytes) -> Any:
    try:
        return parse_bytes(kind, payload, "the request")
    except RecordCorrupt as exc:
        raise InvalidRequest(f"the request's {len(payload)} bytes are no {kind.DESCRIPTOR.name}") from exc


def _guarded(answer: Callable[[bytes, Any], bytes]) -> Callable[[bytes, Any], bytes]:
    def call(payload: bytes, context: Any) -> bytes:
        try:
            return answer(payload, context)
        except Exception as error:
            code = code_of(error)
            if code == Code.INTERNAL:
                logger.exception("a call failed")
            return grpc.abort(context, code, text_of(error))

    return call


def _refusing(verb: str, reason: str) -> Callable[[bytes, Any], bytes]:
    def call(payload: bytes, context: Any) -> bytes:
        return grpc.abort(context, Code.UNIMPLEMENTED, f"{verb} is not served: {reason}")

    return call
