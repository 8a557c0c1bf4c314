"""Runs the ``Controller`` service beside the loop, for as long as the loop runs.

``monolith.training.control`` implements the service; gRPC is imported when a run starts.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from monolith.training.control.address import remove_address, write_address
from monolith.training.control.pause import PauseControl, RunPause
from monolith.training.hooks.base import Hook
from monolith.training.run import Run

if TYPE_CHECKING:
    from monolith.training.control.server import ControllerServer, Forget, Watch

__all__ = ["ControllerHook"]

logger = logging.getLogger(__name__)


class ControllerHook(Hook):
    """Lets others stop, resume, save and watch the run over gRPC.

    The address is in ``<model_dir>/controller_server_addr.txt`` while the run lasts.

    Args:
        port: 0 lets the system choose.
        host: The interface to listen on, as clients name it. Every client that reaches it can stop the training.
        pause_control: Pauses the workers on StopTraining; None = the run itself. A ``Barrier`` pauses all workers of
            the process.
        workers: Returns the status of all workers of the job; None = the run is the only worker.
        grace_s: Grace period of calls in progress when the run has ended.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        pause_control: PauseControl | None = None,
        workers: Watch | None = None,
        grace_s: float = 20.0,
    ) -> None:
        self._port = port
        self._host = host
        self._pause_control = pause_control
        self._workers = workers
        self._grace_s = grace_s
        self.forget: Forget | None = None
        """Forgets ids on request; set before the run."""
        self._server: ControllerServer | None = None
        self._address = ""

    @property
    def address(self) -> str:
        """Where the service listens; empty when it does not."""
        return self._address

    def on_start(self, run: Run) -> None:
        """Open the port and write the address."""
        from monolith.training.control.server import ControllerServer

        control = RunPause(run) if self._pause_control is None else self._pause_control
        server = ControllerServer(
            run, control, host=self._host, port=self._port, workers=self._workers, forget=self.forget
        )
        address = server.start()
        self._server, self._address = server, address
        write_address(run.model_dir, address)
        logger.info("controller listens address=%s", address)

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Take the address back and close the port."""
        if self._server is None:
            return
        server, self._server = self._server, None
        address, self._address = self._address, ""
        try:
            remove_address(run.model_dir, address)
        finally:
            server.stop(self._grace_s)
