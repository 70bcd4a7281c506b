"""What a worker guards its requests and payloads with, made from the settings."""

from __future__ import annotations

from collections.abc import Callable

from queenmq.domain.cipher import Cipher
from queenmq.http.auth import Authenticator, TokenRules
from queenmq.server.settings_security import SecuritySettings


def authenticator(settings: SecuritySettings, report: Callable[[str], None]) -> Authenticator | None:
    """None lets everybody in."""
    if not settings.jwt_enabled:
        return None
    rules = TokenRules(
        algorithm=settings.jwt_algorithm,
        secret=settings.jwt_secret,
        public_key=settings.jwt_public_key,
        jwks_url=settings.jwt_jwks_url,
        issuer=settings.jwt_issuer,
        audience=settings.jwt_audience,
        clock_skew=settings.jwt_clock_skew,
    )
    return Authenticator(rules, report=report)


def cipher(settings: SecuritySettings) -> Cipher | None:
    """None refuses what asks for encryption."""
    return None if settings.encryption_key is None else Cipher(bytes.fromhex(settings.encryption_key))
