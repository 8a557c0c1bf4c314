"""Security settings of a connection: TLS, mutual TLS, a bearer token. Plain values; no network code."""

from __future__ import annotations

import functools
import ipaddress
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from monolith.core.errors import ConfigError

__all__ = ["Security", "read_token", "warn_if_exposed"]

logger = logging.getLogger(__name__)

_READABLE_BY_OTHERS = 0o004


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """PEM files and a token; the default is a plain connection.

    A server encrypts when it has ``cert_file`` and ``key_file``; with ``ca_file`` it also requires a client certificate
    of that authority. A client encrypts when it has ``ca_file``, and presents ``cert_file`` when it has one.
    """

    cert_file: Path | None = None
    """Certificate of this end."""
    key_file: Path | None = None
    """Private key of ``cert_file``."""
    ca_file: Path | None = None
    """Certificate of the authority that must have signed the peer's certificate."""
    token: str = field(default="", repr=False)
    """Bearer token: clients send it with every call, servers require it; empty = none."""
    admin_token: str = field(default="", repr=False)
    """Second token of a model server: it allows all calls, also assignments and reloads; empty = none."""
    server_name: str = ""
    """Name in the server's certificate, if it differs from the host that a client dials."""

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            given, missing = ("cert_file", "key_file") if self.key_file is None else ("key_file", "cert_file")
            raise ConfigError(f"Security.{given} is given without {missing}; give both or none")
        tokens = self.token + self.admin_token
        if not tokens.isascii() or not tokens.isprintable():
            raise ConfigError(
                "Security.token has characters that a header cannot carry; use letters, digits and punctuation"
            )

    @property
    def is_encrypted(self) -> bool:
        """Whether connections use TLS."""
        return self.cert_file is not None or self.ca_file is not None

    @property
    def is_mutual(self) -> bool:
        """Whether both ends present a certificate."""
        return self.cert_file is not None and self.ca_file is not None

    def read(self, field: Literal["cert_file", "key_file", "ca_file"]) -> bytes | None:
        """Return the content of one of the files; None if the file is not set.

        Raises:
            ConfigError: The file cannot be read.
        """
        path = getattr(self, field)
        if path is None:
            return None
        if field == "key_file":
            _warn_if_readable(Path(path), "Security.key_file")
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"Security.{field} is {str(path)!r}, which cannot be read ({error.strerror})") from error


def read_token(file: str | Path | None, setting: str) -> str:
    """Return the token in a file, stripped of white space; empty without a file.

    Args:
        file: The file that holds the token.
        setting: Name of the setting, for error messages.

    Raises:
        ConfigError: The file cannot be read, is not text, or is empty: an empty token would admit every caller.
    """
    if file is None:
        return ""
    _warn_if_readable(Path(file), setting)
    try:
        token = Path(file).read_text().strip()
    except OSError as error:
        raise ConfigError(f"{setting} is {str(file)!r}, which cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{setting} is {str(file)!r}, which is not text (byte {error.start} is not UTF-8); write the token into it"
        ) from error
    if not token:
        raise ConfigError(f"{setting} is {str(file)!r}, which is empty; write the token into it, or leave it out")
    return token


def warn_if_exposed(address: str, security: Security, end: Literal["channel", "server"]) -> None:
    """Log a warning, once per address, if a connection beyond this machine is not protected.

    A token without TLS can be read on the way; a server without both serves every caller.

    Args:
        address: ``host:port``, or the path of a Unix socket.
        security: Settings of this end.
        end: Which end of the connection this process is.
    """
    host = address.rpartition(":")[0].strip("[]")
    if security.is_encrypted or address.startswith("unix:") or _is_loopback(host):
        return
    if security.token:
        _warn_once("bearer token sent without TLS, use TLS too address=%s", address)
    elif end == "server":
        _warn_once("server reachable without token and TLS, use both address=%s", address)


@functools.lru_cache(maxsize=1024)
def _warn_once(message: str, *arguments: str) -> None:
    logger.warning(message, *arguments)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _warn_if_readable(path: Path, setting: str) -> None:
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # reading it reports the error
    if mode & _READABLE_BY_OTHERS:
        _warn_once("secret readable by all users, run chmod o-r setting=%s path=%s", setting, str(path))
