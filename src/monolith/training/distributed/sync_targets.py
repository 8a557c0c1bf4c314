"""Addresses of serving processes that rows are sent to: which forms are good, and when two are the same."""

from __future__ import annotations

from urllib.parse import urlsplit

__all__ = ["canonical_target"]

_PORTS = {"http": 80, "https": 443}


def canonical_target(target: str) -> str:
    """Return ``scheme://host:port`` in lower case, so that equal targets are equal texts.

    Raises:
        ValueError: It is no address; the text says why.

    >>> canonical_target("Serving:80/"), canonical_target("HTTPS://serving")
    ('http://serving:80', 'https://serving:443')
    """
    url = urlsplit(target if "://" in target else f"http://{target}")
    scheme = url.scheme.lower()
    if scheme not in _PORTS:
        raise ValueError("endpoint scheme must be http or https")
    if url.path not in ("", "/") or "?" in target or "#" in target:
        raise ValueError("endpoint must not include a URL path or query")
    if not url.netloc or not url.hostname:
        raise ValueError("endpoint is missing host:port authority")
    if "@" in url.netloc:
        raise ValueError("endpoint must not include userinfo")
    port = url.port if url.port is not None else _PORTS[scheme]
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return f"{scheme}://{host}:{port}"
