"""Choose the ports of an agent and of its servers: from the file, from the environment, or free ones.

Main function: ``choose_ports``. Only the ports that the deploy type needs are chosen. Free ports stay reserved while
the agent runs, so no other agent of the machine chooses them, also while a server restarts.
"""

from __future__ import annotations

from collections.abc import Mapping

from monolith.core.errors import ConfigError
from monolith.core.free_ports import free_port

__all__ = ["choose_ports", "environment_ports"]

_ENTRY = ("tfs_entry_port", "tfs_entry_http_port", "tfs_entry_archon_port")
_PS = ("tfs_ps_port", "tfs_ps_http_port", "tfs_ps_archon_port")
_DENSE = ("tfs_dense_port", "tfs_dense_http_port", "tfs_dense_archon_port")
_UNIFIED = ("tfs_port_grpc", "tfs_port_http", "tfs_port_archon")
_MAIN = ("PORT3", "PORT4", "PORT")

_VARIABLES: dict[str, dict[str, str]] = {
    "mixed": {
        **dict(zip(_ENTRY, _MAIN, strict=True)),
        **dict(zip(_PS, ("PORT5", "PORT6", "PORT7"), strict=True)),
        **dict(zip(_DENSE, ("PORT8", "PORT9", "PORT10"), strict=True)),
    },
    "entry": dict(zip(_ENTRY, _MAIN, strict=True)),
    "ps": dict(zip(_PS, _MAIN, strict=True)),
    "dense": dict(zip(_DENSE, _MAIN, strict=True)),
    "unified": dict(zip(_UNIFIED, _MAIN, strict=True)),
}


def environment_ports(
    deploy_type: str, ports: Mapping[str, int], *, dense_alone: bool, dense_service_index: int = 0
) -> dict[str, int | None]:
    """Return the port fields that a deploy type needs, each with its port of the environment or None.

    Args:
        deploy_type: ``mixed``, ``entry``, ``ps``, ``dense`` or ``unified``.
        ports: Variables ``PORT`` .. ``PORT10`` that are set.
        dense_alone: Whether dense servers run alone; mixed has dense ports only then.
        dense_service_index: Which of the dense processes of the host; all but the first take free ports.
    """
    is_later_dense = dense_service_index > 0
    fields: dict[str, int | None] = {}
    for name, variable in _VARIABLES[deploy_type].items():
        is_dense = name in _DENSE
        if is_dense and not (dense_alone or deploy_type == "dense"):
            continue
        fields[name] = None if is_dense and is_later_dense else ports.get(variable)
    is_later_agent = is_later_dense and deploy_type == "dense"
    fields["agent_port"] = None if is_later_agent else ports.get("PORT2")
    return fields


def choose_ports(fields: Mapping[str, int | None]) -> dict[str, int]:
    """Return a port for each field; a field without one gets a free port.

    Raises:
        ConfigError: Two fields have the same port.
    """
    owners: dict[int, str] = {}
    for name, port in fields.items():
        if port is None:
            continue
        if port in owners:
            raise ConfigError(
                f"{name} is {port}, the port of {owners[port]} too; give each its own port in the file or in PORT*"
            )
        owners[port] = name
    chosen: dict[str, int] = {}
    for name, port in fields.items():
        while port is None or (port in owners and owners[port] != name):
            port = free_port("")
        owners[port] = name
        chosen[name] = port
    return chosen
