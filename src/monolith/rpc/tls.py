"""TLS settings of Python's HTTP servers and clients; an error names the file at fault."""

from __future__ import annotations

import ssl

from monolith.core.errors import ConfigError
from monolith.rpc.security import Security

__all__ = ["client_context", "server_context"]


def server_context(security: Security) -> ssl.SSLContext | None:
    """Return the TLS settings of a server; None without TLS.

    Raises:
        ConfigError: A file is missing, cannot be read, or does not hold a certificate or its key.
    """
    if not security.is_encrypted:
        return None
    if security.cert_file is None or security.key_file is None:
        raise ConfigError("cert_file or key_file is missing, expected both for a server with TLS")
    context = _context(ssl.Purpose.CLIENT_AUTH, security)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if security.is_mutual:
        context.verify_mode = ssl.CERT_REQUIRED
    _present(context, security)
    return context


def client_context(security: Security) -> ssl.SSLContext:
    """Return the TLS settings of a client; without ``ca_file`` it trusts the authorities of the system.

    Raises:
        ConfigError: A file cannot be read, or does not hold a certificate or its key.
    """
    context = _context(ssl.Purpose.SERVER_AUTH, security)
    if security.is_mutual:
        _present(context, security)
    return context


def _context(purpose: ssl.Purpose, security: Security) -> ssl.SSLContext:
    security.read("ca_file")  # an error of the ssl module names no file
    try:
        return ssl.create_default_context(purpose, cafile=security.ca_file)
    except ssl.SSLError as error:
        raise ConfigError(
            f"ca_file is {str(security.ca_file)!r}, expected certificates of authorities as PEM ({error.reason})"
        ) from error


def _present(context: ssl.SSLContext, security: Security) -> None:
    """Present the certificate of this end."""
    security.read("cert_file")
    security.read("key_file")
    try:
        context.load_cert_chain(security.cert_file, security.key_file)  # type: ignore[arg-type]
    except ssl.SSLError as error:
        raise ConfigError(
            f"cert_file is {str(security.cert_file)!r}, expected a certificate that fits key_file ({error.reason})"
        ) from error
