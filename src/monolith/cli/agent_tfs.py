"""``monolith agent tfs``: asks model servers for status, metadata, predictions and their speed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from monolith.agent.config import AgentConfig
    from monolith.agent.prediction import PredictionInput
    from monolith.data.records.framing import Framing

__all__ = ["register"]

_COMMANDS = ("status", "meta", "load", "get", "profile")
_MAX_FILES = 500
_EPILOG = (
    "Example: monolith agent tfs profile --target 10.0.0.7:8500 --model-name clicks:entry --profile-data-dir data "
    "--input-type example_batch --parallel-num 4 --profile-duration 60"
)


def register(app: typer.Typer) -> None:
    """Add ``tfs`` to the group."""
    app.command("tfs", epilog=_EPILOG)(tfs)


def tfs(
    command: Annotated[str | None, typer.Argument(help=f"{', '.join(_COMMANDS)}; default: get.")] = None,
    cmd_type: Annotated[str | None, typer.Option("--cmd-type", "--cmd_type", help="The same as COMMAND.")] = None,
    conf: Annotated[Path | None, typer.Option("--conf", help="Configuration of the agent, for defaults.")] = None,
    target: Annotated[str, typer.Option("--target", help="host:port,... of the servers.")] = "",
    model_name: Annotated[str, typer.Option("--model-name", "--model_name", help="Model on the server.")] = "",
    signature_name: Annotated[
        str, typer.Option("--signature-name", "--signature_name", help="Signature of the model.")
    ] = "serving_default",
    input_type: Annotated[str, typer.Option("--input-type", "--input_type", help="Format of the input file.")] = "dump",
    input_file: Annotated[
        Path | None, typer.Option("--input-file", "--input_file", help="Input; default: random instances.")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", "--batch_size", min=1, help="Rows of a request.")] = 8,
    lagrangex_header: Annotated[
        bool, typer.Option("--lagrangex-header", "--lagrangex_header", help="Records have this header.")
    ] = False,
    has_sort_id: Annotated[bool, typer.Option("--has-sort-id", "--has_sort_id", help="Records have sort ids.")] = False,
    kafka_dump: Annotated[bool, typer.Option("--kafka-dump", "--kafka_dump", help="Records have this word.")] = False,
    kafka_dump_prefix: Annotated[
        bool, typer.Option("--kafka-dump-prefix", "--kafka_dump_prefix", help="Records have this prefix.")
    ] = False,
    parallel_num: Annotated[int, typer.Option("--parallel-num", "--parallel_num", min=1, help="profile: threads.")] = 1,
    profile_duration: Annotated[
        float, typer.Option("--profile-duration", "--profile_duration", min=0.1, help="profile: seconds.")
    ] = 600.0,
    profile_data_dir: Annotated[
        Path | None, typer.Option("--profile-data-dir", "--profile_data_dir", help="profile: folder of input files.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="File with the bearer token; load needs the admin token.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Ask model servers: status and metadata of a model, a reload, a prediction, or their latency under load."""
    from monolith.agent.config import read_config
    from monolith.agent.messages import write_text
    from monolith.agent.prediction import PredictionClient, read_request
    from monolith.agent.profiling import profile_servers
    from monolith.core.errors import ConfigError
    from monolith.data.records.framing import Framing
    from monolith.rpc.security import Security, read_token

    chosen = command or cmd_type or "get"
    if chosen not in _COMMANDS:
        raise ConfigError(f"command is {chosen!r}, expected one of {', '.join(_COMMANDS)}; give one of these")
    config = None if conf is None else read_config(conf, chooses_ports=False)
    targets = [each.strip() for each in target.split(",") if each.strip()] or [_default_target(config)]
    model = model_name or _default_model(config)
    framing = Framing(
        sort_id=has_sort_id,
        kafka_dump=kafka_dump,
        kafka_dump_prefix=kafka_dump_prefix,
        lagrangex_header=lagrangex_header,
    )
    if chosen == "profile":
        inputs = _profile_inputs(profile_data_dir, input_type, batch_size, framing)
        result = profile_servers(
            targets,
            model,
            inputs,
            threads=parallel_num,
            duration_s=profile_duration,
            signature=signature_name,
        )
        typer.echo(json.dumps(result.to_json()) if as_json else str(result))
        if result.count == 0:
            raise typer.Exit(1)
        return
    security = Security(token=read_token(token_file, "--token-file"))
    with PredictionClient(targets[0], security=security) as client:
        if chosen == "status":
            answer = write_text(client.status(model))
        elif chosen == "meta":
            answer = write_text(client.metadata(model))
        elif chosen == "load":
            if input_file is None:
                raise ConfigError("--input-file is missing, expected the text of a ModelServerConfig; give it")
            answer = write_text(client.reload(input_file.read_text(), str(input_file)))
            answer += f"{input_file} load done!\n"
        else:
            given = read_request(input_file, input_type, batch_size=batch_size, framing=framing)
            answer = write_text(client.predict(model, given, signature_name))
    typer.echo(json.dumps({"command": chosen, "answer": answer}) if as_json else answer, nl=as_json)


def _default_target(config: AgentConfig | None) -> str:
    from monolith.agent.hosts import find_own_host
    from monolith.core.errors import ConfigError

    deploy = None if config is None else config.service.deploy_type
    port = None
    if config is not None and deploy is not None:
        port = config.port_of("entry" if deploy.value == "mixed" else deploy.value)
    if config is None or port is None:
        raise ConfigError("--target is '', expected host:port of a server; give --target")
    return find_own_host(config.environment).reachable_address(port)


def _default_model(config: AgentConfig | None) -> str:
    from monolith.core.errors import ConfigError

    deploy = None if config is None or config.service.deploy_type is None else config.service.deploy_type.value
    if config is None or deploy in (None, "unified"):
        raise ConfigError("--model-name is '', expected a model such as clicks:entry; give --model-name")
    return {"ps": f"ps_{config.shard_id or 0}", "dense": "dense_0"}.get(str(deploy), "entry")


def _profile_inputs(folder: Path | None, input_type: str, batch_size: int, framing: Framing) -> list[PredictionInput]:
    from monolith.agent.prediction import random_instances, read_request

    files = [] if folder is None else sorted(path for path in folder.iterdir() if path.is_file())[:_MAX_FILES]
    inputs = [read_request(path, input_type, batch_size=batch_size, framing=framing) for path in files]
    return inputs or [("instances", random_instances(batch_size, seed=each)) for each in range(16)]
