"""Certificates for tests of TLS, issued by a test authority with ``openssl``. They are valid for two days."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

__all__ = ["Authority", "Certificate", "why_no_certificates"]

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_DAYS = ("-days", "2")


def why_no_certificates() -> str | None:
    """Return why this machine cannot make certificates; None if it can."""
    return None if shutil.which("openssl") else "openssl is not installed; it makes the certificates"


class Certificate(NamedTuple):
    """Files of one end of a connection; the fields are those of ``Security``."""

    cert_file: Path
    key_file: Path


class Authority:
    """Signs certificates. One folder holds all files.

    Args:
        folder: An empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._openssl("req", "-x509", *_KEY, *_DAYS, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
        self.ca_file = folder / "ca.pem"
        """The authority's certificate, which verifies those that it signs."""

    def sign(self, name: str, *places: str) -> Certificate:
        """Return a new certificate for these places: ``IP:127.0.0.1``, ``DNS:localhost``."""
        (self._folder / f"{name}.ext").write_text(f"subjectAltName={','.join(places)}\n")
        self._openssl("req", "-new", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        self._openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *(*_DAYS, "-extfile", f"{name}.ext", "-out", f"{name}.pem"),
        )
        return Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self._folder, check=True, capture_output=True)
