"""Rights of callers of a model server: predict, assign rows, reload models.

======================  =========================  ====================================================
caller                  may                        setting
======================  =========================  ====================================================
with the predict token  predict, read metadata     ``Security.token``; without one every caller
with the admin token    also assign and reload     ``Security.admin_token``
without an admin token  assign, reload if allowed  ``allow_assign``, ``allow_reload``
======================  =========================  ====================================================

A version that follows a publisher takes assignments only with ``allow_assign``, because its state would differ
from the published cut. A reload may use folders below ``roots`` only. Immutable and thread safe.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from monolith.core.errors import NotPermitted
from monolith.serving.versions.model_config import ModelConfig

__all__ = ["Access"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Tokens and rights of one server."""

    token: str = field(default="", repr=False)
    admin_token: str = field(default="", repr=False)
    allow_assign: bool = False
    allow_reload: bool = False
    roots: Sequence[Path] = ()
    """Folders for the base paths of a reload."""
    log_roots: Sequence[Path] = ()
    """Folders for the log prefixes of a reload."""

    def may_call(self, authorization: str) -> bool:
        """Return whether a caller may predict; ``authorization`` is the header's value."""
        return not self.token or _matches(authorization, self.token) or self._is_admin(authorization)

    def may_assign(self, authorization: str) -> bool:
        """Return whether a caller may assign rows."""
        return self._is_admin(authorization) or (self.allow_assign and not self.admin_token)

    def check_reload(self, authorization: str, models: Iterable[ModelConfig]) -> None:
        """Check that a caller may replace the models by these.

        Raises:
            NotPermitted: The caller lacks the right, or a folder is outside of the roots.
        """
        if not (self._is_admin(authorization) or (self.allow_reload and not self.admin_token)):
            raise NotPermitted(
                "a reload needs the admin token; send it, or start the server with --admin-token-file or --allow-reload"
            )
        for model in models:
            if not _is_within(model.base_path, self.roots):
                raise NotPermitted(
                    f"base_path of model {model.name!r} is {str(model.base_path)!r}, expected a folder below "
                    f"{_names(self.roots)}; set --model-root"
                )
            if model.log_prefix and not _is_within(Path(model.log_prefix), self.log_roots):
                raise NotPermitted(
                    f"log prefix of model {model.name!r} is {model.log_prefix!r}, expected a path below "
                    f"{_names(self.log_roots)}; set --request-log"
                )

    def _is_admin(self, authorization: str) -> bool:
        return bool(self.admin_token) and _matches(authorization, self.admin_token)


def _matches(authorization: str, token: str) -> bool:
    return hmac.compare_digest(authorization.encode("latin-1", "replace"), f"Bearer {token}".encode())


def _is_within(path: Path, roots: Sequence[Path]) -> bool:
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(os.path.realpath(root)) for root in roots)


def _names(roots: Sequence[Path]) -> str:
    return ", ".join(repr(str(root)) for root in roots) or "a configured root"
