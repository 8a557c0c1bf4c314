"""``monolith forget``: removes ids from a running training, its delta log, checkpoints and servers."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from monolith.cli.inspect_log import open_topic
from monolith.core.errors import ConfigError, RpcTimeout

if TYPE_CHECKING:
    from monolith.artifacts.forget_receipts import Receipt
    from monolith.core.clock import Deadline

__all__ = ["register"]

_EPILOG = (
    "Example: monolith forget runs/clicks --feature user 7 --receipt forget-7.json    The training must run with "
    "--controller-port 0, or with another port."
)
_CUT_METRIC = "monolith_sync_cut"
_POLL_S = 0.1


def register(app: typer.Typer) -> None:
    """Add ``forget`` to the program."""
    app.command("forget", epilog=_EPILOG)(forget)


def forget(
    target: Annotated[
        str, typer.Argument(metavar="MODEL_DIR_OR_ADDR", help="Model folder or URL of the training, or host:port.")
    ],
    values: Annotated[list[str], typer.Argument(metavar="ID...", help="Values of the features, or ids of the tables.")],
    feature: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Feature of the values; its declared type gives the ids. Repeatable."),
    ] = None,
    table: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Table of the ids. Repeatable.")] = None,
    block: Annotated[
        bool, typer.Option("--block", help="Drop later updates of the ids too; else a later event brings them back.")
    ] = False,
    drop_checkpoints: Annotated[
        bool, typer.Option("--drop-checkpoints", help="Remove the older checkpoints too, which hold the rows.")
    ] = False,
    server: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT[/MODEL]", help="REST address of a model server; wait until it has the cut. Repeatable."
        ),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Topic whose events name the ids; its retention goes into the receipt."),
    ] = None,
    receipt_file: Annotated[
        Path | None, typer.Option("--receipt", metavar="FILE", help="Write the receipt here too.")
    ] = None,
    checkpoint_wait_s: Annotated[
        float, typer.Option(min=0.0, help="Wait for the checkpoint; without it the receipt is incomplete.")
    ] = 60.0,
    timeout_s: Annotated[
        float, typer.Option(min=0.1, max=1e6, help="Timeout in seconds, checkpoint included.")
    ] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the receipt as JSON.")] = False,
) -> None:
    """Remove ids from a running training, its delta log, later checkpoints and following servers."""
    from monolith.core.clock import Deadline, SystemClock
    from monolith.core.durable_files import replace_file
    from monolith.discovery.address import split_address
    from monolith.training.control.client import ControllerClient

    topics = [(url, open_topic(url).settings) for url in log or ()]  # an unknown topic fails before the removal
    if receipt_file is not None and not receipt_file.absolute().parent.is_dir():
        raise ConfigError(f"receipt is '{receipt_file}', expected a file in an existing folder; create the folder")
    for address in server or ():  # an invalid address fails before the removal
        split_address(address.partition("/")[0])
    deadline = Deadline(SystemClock(), timeout_s)
    with ControllerClient(target, timeout_s=timeout_s, save_timeout_s=timeout_s) as client:
        receipt = client.forget(
            values,
            features=feature or (),
            tables=table or (),
            block=block,
            drop_checkpoints=drop_checkpoints,
            checkpoint_wait_s=checkpoint_wait_s,
        )
    body = receipt.to_json()
    body["remaining"] = [*body["remaining"], *(_describe_topic(*topic, receipt) for topic in topics)]
    body["servers"] = []
    try:
        for address in server or ():
            body["servers"].append(_wait_for_server(address, receipt, deadline))
    finally:  # the rows are removed even if a server fails
        if receipt_file is not None:
            replace_file(receipt_file.absolute(), json.dumps(body, indent=2).encode() + b"\n")
    typer.echo(json.dumps(body) if as_json else _describe(receipt, body))


def _describe_topic(url: str, settings: Any, receipt: Receipt) -> dict[str, str]:
    rule = "the owner: the topic has no retention by age"
    if settings.retain_s:
        end = datetime.datetime.fromtimestamp(receipt.requested_at_s + settings.retain_s, datetime.UTC)
        rule = f"retention: retain_s={settings.retain_s:g}, whole segments, from {end:%Y-%m-%d %H:%M} UTC"
    return {"kind": "event log", "path": url, "removed_by": rule}


def _describe(receipt: Receipt, body: dict[str, Any]) -> str:
    removed = sum(row.had_row for row in receipt.rows)
    cut = "not published" if receipt.cut is None else f"cut {receipt.cut}"
    lines = [
        f"{removed} of {len(receipt.rows)} rows removed; receipt {receipt.number}, step {receipt.step:,}, {cut}, "
        + (f"checkpoint {receipt.checkpoint}" if receipt.is_complete else "checkpoint at the next step")
    ]
    lines += [f"server {each['address']}: cut {each['cut']}" for each in body["servers"]]
    lines += [f"still in {each['kind']} {each['path']}; removed by {each['removed_by']}" for each in body["remaining"]]
    return "\n".join(lines)


def _wait_for_server(text: str, receipt: Receipt, deadline: Deadline) -> dict[str, Any]:
    """Wait until a model server has applied the cut of a receipt; return its state."""
    from http.client import HTTPException

    from monolith.core.clock import SystemClock

    address, _, model = text.partition("/")
    if receipt.cut is None:
        raise ConfigError(f"server is {text!r}, and the training publishes nothing; start it with --publish-dir")
    clock = SystemClock()
    seen: Sequence[float] = ()
    error: Exception | None = None
    while not deadline.is_past:
        try:
            seen = _read_cuts(address, model)
            error = None
        except (OSError, HTTPException, ValueError) as failure:  # for example a gRPC port
            error = failure
        if seen and min(seen) >= receipt.cut:
            return {"address": address, "model": model or None, "cut": int(min(seen)), "applied_at_s": clock.now_s()}
        clock.sleep_s(_POLL_S)
    reason = repr(error) if error else (f"cuts are {[int(each) for each in seen]}" if seen else "it follows no cut")
    raise RpcTimeout(
        f"server {address} has not applied cut {receipt.cut}: {reason}; the rows are removed from the training, "
        "check the server",
        retryable=False,
    )


def _read_cuts(address: str, model: str) -> list[float]:
    """Return the cuts of the versions that a server follows."""
    from urllib.request import ProxyHandler, build_opener

    opener = build_opener(ProxyHandler({}))  # servers are in the own network
    with opener.open(f"http://{address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    cuts = [line for line in lines if line.startswith(f"{_CUT_METRIC}{{")]
    return [float(line.rpartition(" ")[2]) for line in cuts if not model or f'model="{model}"' in line]
