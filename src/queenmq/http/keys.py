"""The public keys that may verify a token, each tied to the one algorithm it is for.

A key decides its algorithm, never the token: that is what makes it impossible to have a public key taken for a shared
secret. RSA keys are for RS256, Ed25519 keys for EdDSA; keys of other kinds are not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt import PyJWTError
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

_SMALLEST_RSA: Final = 2048
MAX_KEYS: Final = 100
_KINDS: Final[dict[str, type[RSAAlgorithm] | type[OKPAlgorithm]]] = {"RSA": RSAAlgorithm, "OKP": OKPAlgorithm}


class UnusableKey(ValueError):
    """The message completes the sentence "the key must be ..."."""


@dataclass(frozen=True, slots=True)
class Key:
    algorithm: str
    public: RSAPublicKey | Ed25519PublicKey
    kid: str | None = None


def from_pem(text: str) -> Key:
    """The key in a PEM text."""
    try:
        return _tied(load_pem_public_key(text.encode()), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UnusableKey("a public key in PEM, RSA of 2048 bits or more, or Ed25519") from None


def from_jwks(document: bytes) -> list[Key]:
    """The usable keys of a JSON Web Key Set; what is not for us is passed over."""
    try:
        entries = msgspec.json.decode(document)["keys"]
    except (msgspec.MsgspecError, ValueError, RecursionError, TypeError, KeyError):
        entries = None
    if not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise UnusableKey(f"in a JSON object with a list `keys` of at most {MAX_KEYS}")
    return list(_usable(entries))


def _usable(entries: list[object]) -> Iterator[Key]:
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or "d" in entry:
            continue
        kty, kid = entry.get("kty"), entry.get("kid")
        kind = _KINDS.get(kty) if isinstance(kty, str) else None
        if kind is None or not isinstance(kid, str | None):
            continue
        try:
            key = _tied(kind.from_jwk(entry), kid)
        except (PyJWTError, ValueError, TypeError, KeyError, AttributeError):
            continue
        if entry.get("alg", key.algorithm) == key.algorithm:
            yield key


def _tied(public: Any, kid: str | None) -> Key:
    if isinstance(public, RSAPublicKey) and public.key_size >= _SMALLEST_RSA:
        return Key("RS256", public, kid)
    if isinstance(public, Ed25519PublicKey):
        return Key("EdDSA", public, kid)
    raise UnusableKey("an RSA key of 2048 bits or more, or an Ed25519 key")
