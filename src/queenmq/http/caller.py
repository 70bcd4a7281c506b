"""Who sends a request, as far as authentication knows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """`subject` is the token's `sub`. Without authentication everybody is an admin without a name."""

    subject: str | None = None
    role: str = "admin"


ANYONE = Caller()


class NeedsSlowPath(Exception):
    """Who the caller is cannot be said without waiting; the request goes through Starlette, which can wait."""
