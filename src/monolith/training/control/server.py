"""The ``Controller`` service of one training: pauses, resumes, saves and reports the run.

``address`` writes its address for clients; ``monolith.training.hooks.controller`` starts it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from monolith.core.errors import ClusterError, ConfigError, MonolithError
from monolith.rpc.security import Security, warn_if_exposed
from monolith.training.control import messages
from monolith.training.control.pause import PauseControl, WorkerStatus

if TYPE_CHECKING:
    from monolith.artifacts.forget_receipts import Receipt
    from monolith.training.run import Run

try:
    import grpc
except ImportError as exc:
    raise ConfigError("the controller needs gRPC: pip install 'monolith[train]'") from exc

__all__ = ["ControllerServer", "Forget", "Watch"]

logger = logging.getLogger(__name__)

GRACE_S = 20.0
"""Grace period of calls in progress when the server stops."""

Watch: TypeAlias = Callable[[], Sequence[WorkerStatus]]
"""Tells where the workers of a job stand."""


class Forget(Protocol):
    """Removes the rows of values; see ``ForgetHook.forget``."""

    def __call__(
        self,
        values: Sequence[str],
        *,
        features: Sequence[str],
        tables: Sequence[str],
        block: bool,
        drop_checkpoints: bool,
        checkpoint_wait_s: float,
    ) -> Receipt:
        """Remove the rows; return the completed receipt."""
        ...


# Saves may take minutes; status and resume must be answered meanwhile.
_THREADS = 8


class ControllerServer:
    """Serves one run. ``start`` opens the port, ``stop`` closes it.

    Args:
        run: The run to report and save.
        pause_control: Pauses and resumes the workers, for StopTraining and ResumeTraining.
        host: The interface to listen on. Every client that reaches it can stop the training: there is no password.
        port: 0 lets the system choose.
        workers: Returns the status of all workers; None = the run is the only worker.
        forget: Forgets ids on request; None = such requests are refused.
    """

    def __init__(
        self,
        run: Run,
        pause_control: PauseControl,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        workers: Watch | None = None,
        forget: Forget | None = None,
    ) -> None:
        if type(port) is not int or not 0 <= port < 1 << 16:
            raise ConfigError(f"controller port is {port!r}; give 0 (any) to 65535")
        self._run = run
        self._pause_control = pause_control
        self._watch = workers or self._only_worker
        self._forget_rows = forget or _refuse_forget
        self._host = host
        self._port = port
        self._workers = ThreadPoolExecutor(_THREADS, thread_name_prefix="controller")
        # A port that another training has is an error, not shared with it.
        self._server = grpc.server(self._workers, options=[("grpc.so_reuseport", 0)])
        handlers: dict[str, Callable[[Any, Any], Any]] = {
            "StopTraining": self._stop_training,
            "ResumeTraining": self._resume_training,
            "GetBlockStatus": self._get_block_status,
            "SaveCheckpoint": self._save_checkpoint,
            "GetTrainingStatus": self._get_training_status,
            "Forget": self._forget,
        }
        methods = {verb: _handler(verb, answer) for verb, answer in handlers.items()}
        for service in (messages.SERVICE, messages.ORIGINAL_SERVICE):
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))

    def start(self) -> str:
        """Begin to answer; return the address.

        Raises:
            ClusterError: The port is taken.
        """
        wanted = f"{self._host}:{self._port}"
        try:
            port = self._server.add_insecure_port(wanted)
        except RuntimeError as exc:
            raise ClusterError(
                f"the controller cannot listen on {wanted} ({exc}); set controller_port to a free port, or to 0"
            ) from exc
        warn_if_exposed(f"{self._host}:{port}", Security(), "server")
        self._server.start()
        return f"{self._host}:{port}"

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Refuse new calls, let those under way end for ``grace_s``, and close."""
        self._server.stop(grace_s).wait()
        self._workers.shutdown(wait=False, cancel_futures=True)

    # --- the service ---

    def _stop_training(self, request: messages.StopTrainingRequest, context: Any) -> messages.StopTrainingResponse:
        with _told(context):
            has_paused = self._pause_control.pause()
        if not has_paused:
            context.abort(
                grpc.StatusCode.ALREADY_EXISTS,
                "training is paused, expected running; call ResumeTraining first",
            )
        logger.info("training paused step=%d", self._run.step)
        return messages.StopTrainingResponse()

    def _resume_training(
        self, request: messages.ResumeTrainingRequest, context: Any
    ) -> messages.ResumeTrainingResponse:
        with _told(context):
            self._pause_control.resume()
        logger.info("training resumed step=%d", self._run.step)
        return messages.ResumeTrainingResponse()

    def _get_block_status(
        self, request: messages.GetBlockStatusRequest, context: Any
    ) -> messages.GetBlockStatusResponse:
        with _told(context):
            status = self._pause_control.status()
        return messages.GetBlockStatusResponse(blocked_indices=status.blocked, unblocked_indices=status.unblocked)

    def _save_checkpoint(
        self, request: messages.SaveCheckpointRequest, context: Any
    ) -> messages.SaveCheckpointResponse:
        try:
            self._run.save("controller")
        except Exception as exc:  # the caller gets the error; the loop handles its own failures
            logger.warning("checkpoint requested by the controller failed", exc_info=True)
            context.abort(grpc.StatusCode.INTERNAL, f"the checkpoint failed: {exc}")
        return messages.SaveCheckpointResponse()

    def _get_training_status(
        self, request: messages.GetTrainingStatusRequest, context: Any
    ) -> messages.GetTrainingStatusResponse:
        with _told(context):
            workers = self._watch()
        return messages.GetTrainingStatusResponse(
            global_step=sum(worker.step for worker in workers),
            workers=[messages.WorkerStatus(index=one.index, step=one.step, state=one.state) for one in workers],
        )

    def _forget(self, request: messages.ForgetRequest, context: Any) -> messages.ForgetResponse:
        try:
            receipt = self._forget_rows(
                list(request.values),
                features=list(request.features),
                tables=list(request.tables),
                block=request.block,
                drop_checkpoints=request.drop_checkpoints,
                checkpoint_wait_s=request.checkpoint_wait_s,
            )
        except ConfigError as exc:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(exc))
        except Exception as exc:  # the caller gets the error; the loop handles its own failures
            logger.warning("forget request failed", exc_info=True)
            context.abort(grpc.StatusCode.INTERNAL, f"the request was not completed: {exc}")
        return messages.ForgetResponse(receipt=json.dumps(receipt.to_json()))

    def _only_worker(self) -> tuple[WorkerStatus, ...]:
        return (WorkerStatus(index=0, step=self._run.step, state="held" if self._run.is_paused else "training"),)


@contextmanager
def _told(context: Any) -> Iterator[None]:
    """Pass an error of ours to the caller, for example when a parameter server is lost."""
    try:
        yield
    except MonolithError as exc:
        context.abort(grpc.StatusCode.INTERNAL, str(exc))


def _refuse_forget(values: Sequence[str], **options: Any) -> Receipt:
    raise ConfigError("this training has no folder for receipts, expected a model_dir; give RunConfig(model_dir=...)")


def _handler(verb: str, answer: Callable[[Any, Any], Any]) -> Any:
    request, response = messages.METHODS[verb]
    return grpc.unary_unary_rpc_method_handler(
        answer, request_deserializer=request.FromString, response_serializer=response.SerializeToString
    )
