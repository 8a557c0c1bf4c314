"""The boxes of the page: a prediction by a model server, and the explanation of an id by parameter servers."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Sequence
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from monolith.core.errors import ConfigError, MonolithError
from monolith.discovery.address import split_address
from monolith.embedding.shard_map import shard_of
from monolith.ps import messages
from monolith.ps.link import ServerLink
from monolith.rpc.security import Security

__all__ = ["Explainer", "Predictor"]

_TIMEOUT_S = 10.0
_DIRECT = build_opener(ProxyHandler({}))  # servers are in the own network
_MODEL = re.compile(r"[A-Za-z0-9_.:-]{1,200}")


class Predictor:
    """Sends requests of the page to one model server.

    Args:
        address: Host and port of the server's REST interface.
        token: Token of the server; None = without.

    Raises:
        ConfigError: The address is invalid.
    """

    def __init__(self, address: str, token: str | None = None) -> None:
        split_address(address)
        self._address = address
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def predict(self, model: Any, body: Any) -> tuple[int, Any]:
        """Return the status and the JSON answer of the server."""
        if not isinstance(model, str) or _MODEL.fullmatch(model) is None:
            return 400, {"error": f"model is {model!r}, expected the name of a model"}
        request = Request(
            f"http://{self._address}/v1/models/{model}:predict", json.dumps(body).encode(), self._headers, method="POST"
        )
        try:
            with _DIRECT.open(request, timeout=_TIMEOUT_S) as response:
                return 200, json.loads(response.read())
        except HTTPError as error:
            return error.code, _read_error(error)
        except (URLError, OSError, http.client.HTTPException, ValueError) as error:
            return 502, {"error": f"server {self._address} did not answer: {getattr(error, 'reason', error)}"}


def _read_error(error: HTTPError) -> Any:
    try:
        return json.loads(error.read())
    except (OSError, http.client.HTTPException, ValueError):
        return {"error": f"status {error.code}: {error.reason}"}


class Explainer:
    """Asks parameter servers why an id is present or absent.

    Args:
        addresses: gRPC addresses of all servers, in the order of their indices.
        security: TLS and token of the servers.
    """

    def __init__(self, addresses: Sequence[str], security: Security | None = None) -> None:
        self._links = [ServerLink(address, security) for address in addresses]

    def explain(self, text: str, tables: Sequence[str]) -> tuple[int, Any]:
        """Return one sentence per table about an id.

        Args:
            text: The id: a whole number of 64 bits, decimal or 0x...
            tables: Tables to search.
        """
        try:
            number = int(text, 0)
            if not -(1 << 63) <= number < 1 << 64:
                raise ValueError
        except ValueError:
            return 400, {"error": f"id is {text!r}, expected a whole number of 64 bits, decimal or 0x..."}
        if not tables:
            return 503, {"error": "no target reports tables; add metrics pages of the parameter servers to --targets"}
        fid = number - (1 << 64) if number >= 1 << 63 else number
        link = self._links[int(shard_of([fid], len(self._links))[0])]
        lines = []
        for table in tables:
            try:
                response = link.call("Explain", messages.ExplainRequest(table=table, fid=fid), _TIMEOUT_S)
                lines.append({"table": table, "text": str(response.text)})
            except ConfigError as error:  # another server has the table
                lines.append({"table": table, "text": str(error)})
            except MonolithError as error:
                return 502, {"error": str(error)}
        return 200, {"id": fid, "server": link.address, "tables": lines}

    def close(self) -> None:
        """Close all connections."""
        for link in self._links:
            link.close()
