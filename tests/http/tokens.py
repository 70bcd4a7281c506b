"""Tokens made by hand, so that a test can also make those that a library refuses to make."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

SECRET = "a secret of the tests, long enough for HS256"
NOW = 1_800_000_000.0
GOOD: dict[str, Any] = {"sub": "alice", "role": "read-write", "exp": NOW + 60}
Private = RSAPrivateKey | Ed25519PrivateKey


@cache
def rsa(name: str = "first") -> RSAPrivateKey:
    return generate_private_key(65537, 2048)


@cache
def ed25519(name: str = "first") -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


def pem(key: Private) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def jwk(key: Private, **more: Any) -> dict[str, Any]:
    algorithm: Any = RSAAlgorithm if isinstance(key, RSAPrivateKey) else OKPAlgorithm
    return {**algorithm.to_jwk(key.public_key(), as_dict=True), **more}


def part(value: bytes) -> bytes:
    return base64.urlsafe_b64encode(value).rstrip(b"=")


def hs256(header: dict[str, Any], claims: Any, secret: bytes = SECRET.encode()) -> bytes:
    """A token with a correct HMAC over whatever header and claims these are."""
    body = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    signed = part(json.dumps(header).encode()) + b"." + part(body)
    return signed + b"." + part(hmac.new(secret, signed, hashlib.sha256).digest())


def token(claims: dict[str, Any] | None = None, **header: Any) -> bytes:
    """A good HS256 token unless the arguments spoil it."""
    return hs256({"typ": "JWT", "alg": "HS256", **header}, GOOD | (claims or {}))


def signed(key: Private, claims: dict[str, Any] | None = None, **header: Any) -> bytes:
    algorithm = "RS256" if isinstance(key, RSAPrivateKey) else "EdDSA"
    return jwt.encode(GOOD | (claims or {}), key, algorithm=algorithm, headers=header).encode()


def bearer(value: bytes) -> bytes:
    return b"Bearer " + value
