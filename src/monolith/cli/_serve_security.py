"""The options of ``monolith serve`` about who may ask it, and whether others can listen."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from monolith.core.errors import ConfigError

if TYPE_CHECKING:
    from monolith.rpc.security import Security

__all__ = ["SecurityOptions", "client_security"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityOptions:
    """TLS and token."""

    tls_cert: Annotated[Path | None, typer.Option(help="Certificate of the server (PEM); turns TLS on.")] = None
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None
    tls_client_ca: Annotated[Path | None, typer.Option(help="Authority of the clients' certificates (PEM).")] = None
    ssl_config_file: Annotated[Path | None, typer.Option(help="SSLConfig of TensorFlow Serving, as text.")] = None
    token_file: Annotated[Path | None, typer.Option(help="File with the bearer token that callers must know.")] = None

    @contextmanager
    def opened(self) -> Iterator[Security]:
        """Give what was asked for; files that it needs are there while the context lasts.

        Raises:
            ConfigError: TLS is asked for twice, or by halves, or a file says what cannot be.
        """
        from monolith.rpc.security import Security, read_token

        token = read_token(self.token_file, "--token-file")
        files = {"cert_file": self.tls_cert, "key_file": self.tls_key, "ca_file": self.tls_client_ca}
        if self.ssl_config_file is None:
            yield Security(token=token, **files)  # type: ignore[arg-type]
            return
        if any(file is not None for file in files.values()):
            raise ConfigError("--ssl-config-file is given beside --tls-...; give one of them")
        with tempfile.TemporaryDirectory(prefix="monolith-tls-") as folder:  # only this user can enter it
            yield Security(token=token, **_unpacked(self.ssl_config_file, Path(folder)))  # type: ignore[arg-type]


def client_security(
    of: str, *, ca: Path | None, cert: Path | None, key: Path | None, server_name: str, token_file: Path | None
) -> Security:
    """Return how this server talks to others; ``of`` is what its options begin with.

    Raises:
        ConfigError: A file cannot be read, or TLS is asked for by halves: told now, and not at every call.
    """
    from monolith.rpc.security import Security, read_token

    token = read_token(token_file, f"--{of}-token-file")
    security = Security(ca_file=ca, cert_file=cert, key_file=key, server_name=server_name, token=token)
    for file in ("ca_file", "cert_file", "key_file"):
        security.read(file)
    return security


def _unpacked(ssl_config: Path, folder: Path) -> dict[str, Path]:
    from monolith.serving import messages

    found = messages.SSLConfig()
    messages.parse_text(ssl_config.read_text(), found, str(ssl_config))
    texts = {"cert_file": found.server_cert, "key_file": found.server_key}
    if found.client_verify:
        texts["ca_file"] = found.custom_ca
    files = {field: folder / field for field in texts}
    for field, path in files.items():
        path.write_text(texts[field])
    return files
