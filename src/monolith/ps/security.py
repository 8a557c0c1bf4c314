"""Who may talk to a parameter server, and whether others can listen: TLS, mutual TLS, a bearer token. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from monolith.core.errors import ConfigError

__all__ = ["Security", "read_token"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Files in PEM form, and a secret; the default is a plain connection.

    A server encrypts when it has ``cert_file`` and ``key_file``; with ``ca_file`` it also asks its clients for a
    certificate of that authority. A client encrypts when it has ``ca_file``, and shows ``cert_file`` when it has one.
    """

    cert_file: Path | None = None
    """Certificate of this end."""
    key_file: Path | None = None
    """Its private key."""
    ca_file: Path | None = None
    """Certificate of the authority that the other end's must be signed by."""
    token: str = field(default="", repr=False)
    """Sent with every call, and asked of every caller; empty = none."""
    admin_token: str = field(default="", repr=False)
    """Second token of a model server: it allows all calls, also assignments and reloads; empty = none."""
    server_name: str = ""
    """Name in the server's certificate, where it is not the host that a client dials."""

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            given, missing = ("cert_file", "key_file") if self.key_file is None else ("key_file", "cert_file")
            raise ConfigError(f"Security.{given} is given without {missing}; give both or none")
        if not (self.token + self.admin_token).isascii() or not (self.token + self.admin_token).isprintable():
            raise ConfigError("Security.token has signs that no header can carry; use letters, digits and punctuation")

    @property
    def is_encrypted(self) -> bool:
        """Whether connections use TLS."""
        return self.cert_file is not None or self.ca_file is not None

    @property
    def is_mutual(self) -> bool:
        """Whether both ends show a certificate."""
        return self.cert_file is not None and self.ca_file is not None

    def read(self, field: Literal["cert_file", "key_file", "ca_file"]) -> bytes | None:
        """Return the content of one of the files; None where there is none.

        Raises:
            ConfigError: It cannot be read.
        """
        path = getattr(self, field)
        if path is None:
            return None
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"Security.{field} is {str(path)!r}, which cannot be read ({error.strerror})") from error


def read_token(file: str | Path | None, setting: str) -> str:
    """Return the secret in a file; the empty one where no file is given.

    Args:
        file: Where it is; space around it does not count.
        setting: What the user calls this file.

    Raises:
        ConfigError: It cannot be read, or nothing is in it: a server would let everybody in.
    """
    if file is None:
        return ""
    try:
        token = Path(file).read_text().strip()
    except OSError as error:
        raise ConfigError(f"{setting} is {str(file)!r}, which cannot be read ({error.strerror})") from error
    if not token:
        raise ConfigError(f"{setting} is {str(file)!r}, which is empty; write the token into it, or leave it out")
    return token
