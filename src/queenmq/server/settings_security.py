"""The settings of authentication and encryption."""

from __future__ import annotations

from dataclasses import dataclass

from queenmq.server.kinds import BOOLEAN
from queenmq.server.rows import row

_AUTH = "Authentication"


@dataclass(frozen=True, kw_only=True)
class SecuritySettings:
    """Read by the workers."""

    jwt_enabled: bool = row(
        "JWT_ENABLED",
        BOOLEAN,
        False,
        section=_AUTH,
        doc="Ask for a JSON Web Token on every request but the public ones.",
    )
