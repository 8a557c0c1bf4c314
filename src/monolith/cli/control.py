"""``monolith control``: pauses, resumes, saves or watches a running training."""

from __future__ import annotations

import dataclasses
import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from monolith.training.control.client import ControllerClient

__all__ = ["register"]

_EPILOG = (
    "Example: monolith control status runs/clicks    The training must run with --controller-port 0, or with another "
    "port."
)


class ControlAction(StrEnum):
    """The actions of ``control``."""

    STOP = "stop"
    RESUME = "resume"
    STATUS = "status"
    BLOCKED = "blocked"
    SAVE = "save"


def register(app: typer.Typer) -> None:
    """Add ``control`` to the program."""
    app.command("control", epilog=_EPILOG)(control)


def control(
    action: Annotated[
        ControlAction,
        typer.Argument(
            help="stop: pause all workers after their current step. resume: resume them. status: print their steps. "
            "blocked: print the paused workers. save: save a checkpoint and wait until it is on disk."
        ),
    ],
    target: Annotated[
        str, typer.Argument(metavar="MODEL_DIR_OR_ADDR", help="Model folder or URL of the training, or host:port.")
    ],
    timeout_s: Annotated[
        float, typer.Option(min=0.1, max=1e6, help="Timeout in seconds; a save may take longer.")
    ] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Pause, resume, save or watch a running training."""
    from monolith.training.control.client import ControllerClient

    with ControllerClient(target, timeout_s=timeout_s) as client:
        answer = _ask(client, action)
        address = client.address
    if as_json:
        typer.echo(json.dumps({"action": action.value, "address": address, **answer}))
    else:
        typer.echo(_line(action, answer))


def _ask(client: ControllerClient, action: ControlAction) -> dict[str, Any]:
    if action is ControlAction.STOP:
        client.stop_training()
    elif action is ControlAction.RESUME:
        client.resume_training()
    elif action is ControlAction.SAVE:
        client.save_checkpoint()
    elif action is ControlAction.BLOCKED:
        status = client.block_status()
        return {"blocked": list(status.blocked), "unblocked": list(status.unblocked)}
    workers = [dataclasses.asdict(worker) for worker in client.worker_status()]
    return {"step": client.training_status(), **({"workers": workers} if len(workers) > 1 else {})}


def _line(action: ControlAction, answer: dict[str, Any]) -> str:
    if action is ControlAction.BLOCKED:
        return f"blocked: {_indices(answer['blocked'])}; not blocked: {_indices(answer['unblocked'])}"
    texts = {
        ControlAction.STOP: "training pauses after the current step",
        ControlAction.RESUME: "training resumed",
        ControlAction.SAVE: "checkpoint saved",
        ControlAction.STATUS: "training runs",
    }
    workers = [
        f"\nworker {each['index']}: step {each['step']:,}, {each['state']}" for each in answer.get("workers", ())
    ]
    return f"{texts[action]}; step {answer['step']:,}{''.join(workers)}"


def _indices(workers: list[int]) -> str:
    return ", ".join(f"worker {index}" for index in workers) or "no worker"
