"""``monolith control``: steers a training that runs. Parses arguments, calls its controller, prints the answer."""

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
    "Example: monolith control status out/model    The training listens when it was started with controller_port=0, "
    "or with a port of your choice."
)


class Action(StrEnum):
    """What to do."""

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
        Action,
        typer.Argument(
            help="stop: hold all its workers after the step they are at. resume: let them go on. status: their steps. "
            "blocked: which workers stand still. save: write a checkpoint and wait until it is safe."
        ),
    ],
    target: Annotated[str, typer.Argument(metavar="MODEL_DIR_OR_ADDR", help="Its model folder, or host:port.")],
    timeout_s: Annotated[
        float, typer.Option(min=0.1, help="How long to wait for an answer; a save may take longer.")
    ] = (10.0),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Stop, resume, save or watch a training that runs."""
    from monolith.training.control.client import ControllerClient

    with ControllerClient(target, timeout_s=timeout_s) as client:
        answer = _ask(client, action)
        address = client.address
    if as_json:
        typer.echo(json.dumps({"action": action.value, "address": address, **answer}))
    else:
        typer.echo(_line(action, answer))


def _ask(client: ControllerClient, action: Action) -> dict[str, Any]:
    if action is Action.STOP:
        client.stop_training()
    elif action is Action.RESUME:
        client.resume_training()
    elif action is Action.SAVE:
        client.save_checkpoint()
    elif action is Action.BLOCKED:
        status = client.block_status()
        return {"blocked": list(status.blocked), "unblocked": list(status.unblocked)}
    workers = [dataclasses.asdict(worker) for worker in client.worker_status()]
    return {"step": client.training_status(), **({"workers": workers} if len(workers) > 1 else {})}


def _line(action: Action, answer: dict[str, Any]) -> str:
    if action is Action.BLOCKED:
        return f"blocked: {_indices(answer['blocked'])}; not blocked: {_indices(answer['unblocked'])}"
    said = {
        Action.STOP: "the training will stand still after the step it is at",
        Action.RESUME: "the training goes on",
        Action.SAVE: "a checkpoint is safe",
        Action.STATUS: "the training runs",
    }
    listed = [f"\nworker {one['index']}: step {one['step']:,}, {one['state']}" for one in answer.get("workers", ())]
    return f"{said[action]}; step {answer['step']:,}{''.join(listed)}"


def _indices(workers: list[int]) -> str:
    return ", ".join(f"worker {index}" for index in workers) or "nobody"
