"""The settings of authentication and encryption, and what must be true of them together."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from queenmq.server.kinds import BOOLEAN, TEXT, Kind, NotAllowedError, choice, integer
from queenmq.server.rows import row

_AUTH = "Authentication"
_ENCRYPTION = "Encryption"
_SMALLEST_SECRET = 32
_LARGEST_KEY_FILE = 64 * 1024
_KNOWN = (
    "JWT_ENABLED",
    "JWT_ALGORITHM",
    "JWT_SECRET",
    "JWT_PUBLIC_KEY",
    "JWT_JWKS_URL",
    "JWT_ISSUER",
    "JWT_AUDIENCE",
    "JWT_CLOCK_SKEW",
)


def _parse_secret(text: str) -> str:
    if len(TEXT.parse(text).encode(errors="surrogateescape")) < _SMALLEST_SECRET:
        raise NotAllowedError(f"at least {_SMALLEST_SECRET} bytes long, as HS256 needs it")
    if "-----BEGIN" in text:
        raise NotAllowedError("a secret, not a key in PEM; a public key belongs in JWT_PUBLIC_KEY")
    return text


def _parse_public_key(text: str) -> str:
    """The PEM text, from the value itself (also with \\n written out, as .env files have it) or from the file."""
    if "-----BEGIN" in text:
        pem = text.replace("\\n", "\n")
    else:
        try:
            with Path(text).expanduser().open("rb") as file:
                pem = file.read(_LARGEST_KEY_FILE).decode(errors="replace")
        except (OSError, ValueError):
            raise NotAllowedError("the text of a public key in PEM, or the path of a file with it") from None
    _algorithm_of(pem)
    return pem


def _algorithm_of(pem: str) -> str:
    # Imported here because it takes longer than everything else `queen config` does, and few need it.
    from queenmq.http.keys import UnusableKey, from_pem

    try:
        return from_pem(pem).algorithm
    except UnusableKey as error:
        raise NotAllowedError(str(error)) from None


def _parse_jwks_url(text: str) -> str:
    example = "a URL like https://issuer.example.com/.well-known/jwks.json"
    try:
        parts = urlsplit(TEXT.parse(text))
        usable = parts.scheme in {"https", "http"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        raise NotAllowedError(example) from None
    if not usable or " " in text or not text.isascii():
        raise NotAllowedError(example)
    if "@" in parts.netloc:
        raise NotAllowedError(f"{example}, without a user or password")
    return text


def _parse_encryption_key(text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise NotAllowedError("64 hexadecimal digits, such as `openssl rand -hex 32` prints")
    return text


SECRET = Kind("text", f"at least {_SMALLEST_SECRET} bytes", _parse_secret)
PUBLIC_KEY = Kind("key", "PEM text, or the path of a PEM file", _parse_public_key)
JWKS_URL = Kind("URL", "https:// or http://", _parse_jwks_url)
ENCRYPTION_KEY = Kind("key", "64 hexadecimal digits", _parse_encryption_key)


@dataclass(frozen=True, kw_only=True)
class SecuritySettings:
    """Read by the workers; `queenmq.server.security` makes the authenticator and the cipher from them."""

    jwt_enabled: bool = row(
        "JWT_ENABLED",
        BOOLEAN,
        False,
        section=_AUTH,
        default_doc="false",
        doc="Ask for a JSON Web Token on every request but the public ones. See docs/security.md.",
    )
    jwt_algorithm: str = row(
        "JWT_ALGORITHM",
        choice("HS256", "RS256", "EdDSA", "auto"),
        "auto",
        section=_AUTH,
        doc="The only signature algorithm that is accepted. `auto`: each one that a key is configured for.",
    )
    jwt_secret: str | None = row(
        "JWT_SECRET",
        SECRET,
        None,
        section=_AUTH,
        secret=True,
        default_doc="none",
        doc="Secret that HS256 tokens are signed with.",
    )
    # A public key is no secret, but a private one may be put here by mistake and must not be printed then.
    jwt_public_key: str | None = row(
        "JWT_PUBLIC_KEY",
        PUBLIC_KEY,
        None,
        section=_AUTH,
        secret=True,
        default_doc="none",
        doc="Key that checks RS256 (RSA, 2048 bits or more) or EdDSA (Ed25519) tokens.",
    )
    jwt_jwks_url: str | None = row(
        "JWT_JWKS_URL",
        JWKS_URL,
        None,
        section=_AUTH,
        default_doc="none",
        doc="Where the issuer publishes its keys for RS256 and EdDSA. Instead of `JWT_PUBLIC_KEY`.",
    )
    jwt_issuer: str | None = row(
        "JWT_ISSUER",
        TEXT,
        None,
        section=_AUTH,
        default_doc="none",
        doc="What a token's `iss` must be. Without it any issuer is accepted.",
    )
    jwt_audience: str | None = row(
        "JWT_AUDIENCE",
        TEXT,
        None,
        section=_AUTH,
        default_doc="none",
        doc="What a token's `aud` must be or contain. Without it any audience is accepted.",
    )
    jwt_clock_skew: int = row(
        "JWT_CLOCK_SKEW",
        integer(0, 3_600),
        30,
        section=_AUTH,
        unit="s",
        doc="How far the clock of the issuer may be from ours.",
    )
    encryption_key: str | None = row(
        "QUEEN_ENCRYPTION_KEY",
        ENCRYPTION_KEY,
        None,
        section=_ENCRYPTION,
        secret=True,
        default_doc="none",
        doc="Key for the payloads of queues with `encryptionEnabled`. Without it, pushes to such queues are refused.",
    )


def problems(environ: Mapping[str, str]) -> Iterator[str]:
    """Faults that show only when several settings are seen together."""
    keys = [name for name in ("JWT_SECRET", "JWT_PUBLIC_KEY", "JWT_JWKS_URL") if name in environ]
    if "JWT_ENABLED" not in environ and keys:
        yield (
            f"{keys[0]} is set but JWT_ENABLED is not; set JWT_ENABLED=true to ask for tokens, "
            "or JWT_ENABLED=false to let everybody in."
        )
    if environ.get("JWT_ENABLED", "").lower() in {"true", "1"}:
        yield from _missing_keys(environ)
        yield from _misspelt(environ)
    if "JWT_PUBLIC_KEY" in environ and "JWT_JWKS_URL" in environ:
        yield "JWT_PUBLIC_KEY and JWT_JWKS_URL are both set; drop one of them."


def _missing_keys(environ: Mapping[str, str]) -> Iterator[str]:
    algorithm = environ.get("JWT_ALGORITHM", "auto")
    public = [name for name in ("JWT_PUBLIC_KEY", "JWT_JWKS_URL") if name in environ]
    if algorithm == "auto" and not public and "JWT_SECRET" not in environ:
        yield "JWT_ENABLED is true but there is no key; set JWT_SECRET, JWT_PUBLIC_KEY or JWT_JWKS_URL."
    if algorithm == "HS256":
        if "JWT_SECRET" not in environ:
            yield "JWT_ALGORITHM is HS256 but JWT_SECRET is not set; set it, or choose another algorithm."
        for name in public:
            yield f"{name} is not used with JWT_ALGORITHM=HS256; drop it, or set JWT_ALGORITHM=auto."
    if algorithm in {"RS256", "EdDSA"}:
        if not public:
            yield f"JWT_ALGORITHM is {algorithm} but there is no key for it; set JWT_PUBLIC_KEY or JWT_JWKS_URL."
        if "JWT_SECRET" in environ:
            yield f"JWT_SECRET is not used with JWT_ALGORITHM={algorithm}; drop it, or set JWT_ALGORITHM=auto."
        yield from _wrong_kind(environ, algorithm)


def _wrong_kind(environ: Mapping[str, str], algorithm: str) -> Iterator[str]:
    try:
        found = _algorithm_of(_parse_public_key(environ["JWT_PUBLIC_KEY"]))
    except (KeyError, NotAllowedError):  # not set, or refused by its row already
        return
    if found != algorithm:
        yield f"JWT_PUBLIC_KEY is a key for {found} but JWT_ALGORITHM is {algorithm}; change one of them."


def _misspelt(environ: Mapping[str, str]) -> Iterator[str]:
    """A check that is silently not done is worse than a server that does not start."""
    for name in sorted(environ):
        if name.startswith("JWT_") and name not in _KNOWN:
            close = difflib.get_close_matches(name, _KNOWN, n=1, cutoff=0.8)
            if close:
                yield f"{name} is not a setting of this version; did you mean {close[0]}?"
