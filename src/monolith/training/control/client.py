"""The client of the ``Controller`` service. Turns gRPC's errors into ours; prints nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from monolith.artifacts.forget_receipts import Receipt
from monolith.core.errors import ClusterError, ConfigError, MonolithError, NoSuchService, RpcTimeout
from monolith.training.control import messages
from monolith.training.control.address import read_address
from monolith.training.control.pause import BlockStatus, WorkerStatus

try:
    import grpc
except ImportError as exc:
    raise ConfigError("the controller needs gRPC: pip install 'monolith[train]'") from exc

__all__ = ["ControllerClient"]


class ControllerClient:
    """Steers a training that runs.

    Args:
        target: Its model folder, or the ``host:port`` of its controller.
        timeout_s: How long a call may take.
        save_timeout_s: How long ``save_checkpoint`` may take; None waits for as long as it takes.

    Raises:
        NoSuchService: Nothing trains with that folder.
    """

    def __init__(self, target: str | Path, *, timeout_s: float = 10.0, save_timeout_s: float | None = None) -> None:
        self.address = read_address(target)
        """Where the controller listens."""
        self._timeout_s = timeout_s
        self._save_timeout_s = save_timeout_s
        # Controllers are within the cluster; a proxy of the environment would not find them.
        self._channel = grpc.insecure_channel(self.address, options=[("grpc.enable_http_proxy", 0)])
        self._calls = {
            verb: self._channel.unary_unary(
                f"/{messages.SERVICE}/{verb}",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )
            for verb, (request, response) in messages.METHODS.items()
        }

    def stop_training(self) -> None:
        """Hold the training after the step it is at.

        Raises:
            ClusterError: It is held already.
        """
        self._call("StopTraining", self._timeout_s)

    def resume_training(self) -> None:
        """Resume the training."""
        self._call("ResumeTraining", self._timeout_s)

    def block_status(self) -> BlockStatus:
        """Return the paused workers."""
        answer = self._call("GetBlockStatus", self._timeout_s)
        return BlockStatus(blocked=tuple(answer.blocked_indices), unblocked=tuple(answer.unblocked_indices))

    def save_checkpoint(self) -> None:
        """Have a checkpoint written, and return when it is safe.

        Raises:
            ClusterError: The checkpoint could not be written.
        """
        self._call("SaveCheckpoint", self._save_timeout_s)

    def training_status(self) -> int:
        """Return the step that the training is at: of a job of several workers, of all together."""
        return int(self._call("GetTrainingStatus", self._timeout_s).global_step)

    def worker_status(self) -> tuple[WorkerStatus, ...]:
        """Return where each worker stands; of a server that does not tell, nothing."""
        answer = self._call("GetTrainingStatus", self._timeout_s)
        return tuple(WorkerStatus(index=one.index, step=one.step, state=one.state) for one in answer.workers)

    def forget(
        self,
        values: Sequence[str],
        *,
        features: Sequence[str] = (),
        tables: Sequence[str] = (),
        block: bool = False,
        drop_checkpoints: bool = False,
        checkpoint_wait_s: float = 60.0,
    ) -> Receipt:
        """Remove the rows of values, and return the receipt once a checkpoint without them is on disk.

        The receipt of a run that waits for events is incomplete: its next step saves the checkpoint.

        Raises:
            ConfigError: The request is invalid; nothing was removed.
            ClusterError: The rows are removed, and the cut or the checkpoint failed; ask again.
        """
        request = messages.ForgetRequest(
            values=values,
            features=features,
            tables=tables,
            block=block,
            drop_checkpoints=drop_checkpoints,
            checkpoint_wait_s=checkpoint_wait_s,
        )
        answer = self._call("Forget", self._save_timeout_s, request)
        return Receipt.from_json(json.loads(answer.receipt))

    def close(self) -> None:
        """Let the connection go."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, verb: str, timeout_s: float | None, request: Any = None) -> Any:
        empty, _ = messages.METHODS[verb]
        try:
            return self._calls[verb](empty() if request is None else request, timeout=timeout_s)
        except grpc.RpcError as exc:
            raise self._translated(verb, exc) from exc

    def _translated(self, verb: str, error: Any) -> MonolithError:
        code, text = error.code(), error.details()
        if code == grpc.StatusCode.INVALID_ARGUMENT:
            return ConfigError(text)
        if code == grpc.StatusCode.UNAVAILABLE:
            return NoSuchService(f"no controller answers at {self.address} ({text}); the training may have ended")
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return RpcTimeout(
                f"{verb} at {self.address} did not end in time; a parameter server may be lost: read the log of the "
                "chief, then try again"
            )
        return ClusterError(f"{verb} at {self.address}: {text} ({code.name})")
