"""``Heartbeat``: heartbeats of a registered process to discovery. A failed call never ends the process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from monolith.core.errors import AlreadyRegistered
from monolith.discovery import Discovery

__all__ = ["Heartbeat"]

logger = logging.getLogger(__name__)

_STOP_S = 0.1


class Heartbeat:
    """Sends a heartbeat every ``interval_s`` while the ``with`` block runs.

    Args:
        discovery: Receives the heartbeats.
        service_id: The id of this process.
        interval_s: Seconds between two heartbeats; None = no heartbeats.
        on_replaced: Called once in the thread of the heartbeats when another process has taken the id.
        losses: Heartbeats in a row that must find another process before ``on_replaced`` is called.
    """

    def __init__(
        self,
        discovery: Discovery,
        service_id: str,
        interval_s: float | None,
        on_replaced: Callable[[AlreadyRegistered], None] | None = None,
        losses: int = 1,
    ) -> None:
        self._losses = losses
        self._discovery = discovery
        self._service_id = service_id
        self._interval_s = interval_s
        self._on_replaced = on_replaced
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._interval_s is not None:
            name = f"heartbeat {self._service_id}"
            self._thread = threading.Thread(target=self._beat, args=(self._interval_s,), name=name, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)  # a thread that hangs in a call is abandoned

    def _beat(self, interval_s: float) -> None:
        losses = 0
        while not self._ending.wait(interval_s):
            try:
                self._discovery.heartbeat(self._service_id)
                losses = 0
            except AlreadyRegistered as error:
                losses += 1
                logger.error("place in discovery lost to another process id=%s error=%s", self._service_id, error)
                if self._on_replaced is not None and losses >= self._losses:
                    self._on_replaced(error)
                    return
            except Exception as error:
                if not self._ending.is_set():
                    logger.warning("heartbeat failed id=%s error=%s", self._service_id, error)
