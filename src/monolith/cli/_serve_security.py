"""Options of ``monolith serve`` for TLS and tokens."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from monolith.core.errors import ConfigError

if TYPE_CHECKING:
    from monolith.rpc.security import Security

__all__ = ["SecurityOptions", "client_security"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityOptions:
    """TLS and token."""

    tls_cert: Annotated[Path | None, typer.Option(help="Server certificate (PEM); turns TLS on.")] = None
    tls_key: Annotated[Path | None, typer.Option(help="Private key of --tls-cert (PEM).")] = None
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="CA of client certificates (PEM); clients must then have one.")
    ] = None
    ssl_config_file: Annotated[
        Path | None, typer.Option(help="Text file with an SSLConfig of TensorFlow Serving, instead of --tls-...")
    ] = None
    token_file: Annotated[Path | None, typer.Option(help="File with the bearer token that clients must send.")] = None
    admin_token_file: Annotated[
        Path | None, typer.Option(help="File with the bearer token that assignments and reloads need.")
    ] = None
    allow_assign: Annotated[
        bool, typer.Option(help="Accept assignments without an admin token, and for versions that follow.")
    ] = False
    allow_reload: Annotated[bool, typer.Option(help="Accept reloads of models without an admin token.")] = False
    model_root: Annotated[
        list[Path] | None, typer.Option(help="Folder for base paths of reloads; else that of the models.")
    ] = None

    def settings(self) -> dict[str, Any]:
        """Return the fields of ``ServingConfig``."""
        return {
            "allow_assign": self.allow_assign,
            "allow_reload": self.allow_reload,
            "model_roots": tuple(self.model_root or ()),
        }

    @contextmanager
    def opened(self) -> Iterator[Security]:
        """Yield the security settings; their temporary files exist while the context lasts.

        Raises:
            ConfigError: TLS is configured twice or in part, or a file is invalid.
        """
        from monolith.rpc.security import Security, read_token

        tokens = {
            "token": read_token(self.token_file, "--token-file"),
            "admin_token": read_token(self.admin_token_file, "--admin-token-file"),
        }
        files = {"cert_file": self.tls_cert, "key_file": self.tls_key, "ca_file": self.tls_client_ca}
        if self.ssl_config_file is None:
            yield Security(**tokens, **files)  # type: ignore[arg-type]
            return
        if any(file is not None for file in files.values()):
            raise ConfigError("--ssl-config-file and --tls-... are both given, expected one; leave one of them out")
        with tempfile.TemporaryDirectory(prefix="monolith-tls-") as folder:  # only this user can enter it
            yield Security(**tokens, **_unpack(self.ssl_config_file, Path(folder)))  # type: ignore[arg-type]


def client_security(
    of: str, *, ca: Path | None, cert: Path | None, key: Path | None, server_name: str, token_file: Path | None
) -> Security:
    """Return the security settings of calls to other servers; ``of`` is the prefix of the options.

    Raises:
        ConfigError: A file cannot be read, or TLS is configured in part. Raised here, not at every call.
    """
    from monolith.rpc.security import Security, read_token

    token = read_token(token_file, f"--{of}-token-file")
    security = Security(ca_file=ca, cert_file=cert, key_file=key, server_name=server_name, token=token)
    for file in ("ca_file", "cert_file", "key_file"):
        security.read(file)
    return security


def _unpack(ssl_config: Path, folder: Path) -> dict[str, Path]:
    from monolith.serving.api import messages

    config = messages.SSLConfig()
    messages.parse_text(ssl_config.read_text(), config, str(ssl_config))
    texts = {"cert_file": config.server_cert, "key_file": config.server_key}
    if config.client_verify:
        texts["ca_file"] = config.custom_ca
    files = {field: folder / field for field in texts}
    for field, path in files.items():
        path.write_text(texts[field])
    return files
