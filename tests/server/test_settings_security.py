"""The settings of authentication and encryption: what they take, what they refuse together, what they never show."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from queenmq.http.caller import Caller
from queenmq.server.security import authenticator, cipher
from queenmq.server.settings import table
from tests.http.tokens import SECRET, bearer, ed25519, hs256, pem, rsa, signed
from tests.server.reading import problems, settings

URL = "https://issuer.example.com/jwks.json"
KEY = "37399bf49155a408ca7f1954f151425c3485f0fa158c7ce8569023baea2883fa"


def nobody_minds(message: str) -> None:
    raise AssertionError(message)


def test_without_settings_everybody_is_let_in_and_nothing_is_encrypted() -> None:
    assert authenticator(settings(), nobody_minds) is None
    assert authenticator(settings(JWT_ENABLED="false", JWT_SECRET=SECRET), nobody_minds) is None
    assert cipher(settings()) is None


def test_a_secret() -> None:
    made = authenticator(settings(JWT_ENABLED="true", JWT_SECRET=SECRET, JWT_ISSUER="me"), nobody_minds)
    assert made is not None
    assert made(bearer(hs256({"alg": "HS256"}, {"iss": "me", "role": "admin"}))) == Caller(None, "admin")


@pytest.mark.parametrize("form", ["text", "escaped text", "path"])
def test_a_public_key_as_text_or_path(form: str, tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text(pem(rsa()))
    forms = {"text": pem(rsa()), "escaped text": pem(rsa()).replace("\n", "\\n"), "path": str(tmp_path / "key.pem")}
    chosen = settings(JWT_ENABLED="1", JWT_ALGORITHM="RS256", JWT_PUBLIC_KEY=forms[form])
    made = authenticator(chosen, nobody_minds)
    assert made is not None
    assert made(bearer(signed(rsa(), {"exp": 4e9}))).subject == "alice"


def test_an_encryption_key() -> None:
    made = cipher(settings(QUEEN_ENCRYPTION_KEY=KEY.upper()))
    again = cipher(settings(QUEEN_ENCRYPTION_KEY=KEY))
    assert made is not None
    assert again is not None
    assert again.decrypt(made.encrypt(b'"x"')) == b'"x"'


@pytest.mark.parametrize("key", ["x", KEY[:-1], KEY + "0", KEY[:-1] + "g", f" {KEY}", f"0x{KEY[2:]}", f"{KEY}\n"])
def test_an_encryption_key_is_64_hexadecimal_digits_and_never_shown(key: str) -> None:
    [problem] = problems(QUEEN_ENCRYPTION_KEY=key)
    assert problem.startswith("QUEEN_ENCRYPTION_KEY is '****'; it must be 64 hexadecimal digits")


_WEAK = {"word": "short", "31 bytes": "x" * 31, "two-byte": "é" * 15, "public key": pem(rsa()).replace("\n", "")}


@pytest.mark.parametrize("secret", list(_WEAK.values()), ids=list(_WEAK))
def test_weak_secrets_are_refused_and_never_shown(secret: str) -> None:
    [problem] = problems(JWT_ENABLED="true", JWT_SECRET=secret)
    assert problem.startswith("JWT_SECRET is '****'; it must be a")


def test_a_private_key_is_refused_and_never_shown(tmp_path: Path) -> None:
    private = rsa().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    (tmp_path / "key.pem").write_text(private)
    for value in (private, str(tmp_path / "key.pem"), str(tmp_path), str(tmp_path / "missing"), "a\0b"):
        [problem] = problems(JWT_ENABLED="true", JWT_PUBLIC_KEY=value)
        assert problem.startswith("JWT_PUBLIC_KEY is '****'; it must be ")


@pytest.mark.parametrize(
    "url",
    [
        "issuer.example.com",
        "ftp://x/y",
        "file:///etc/passwd",
        "https://",
        "https://a b/",
        "https://u:p@x/",
        "http://x:0x1/",
    ],
)
def test_where_keys_are_published_is_a_web_address(url: str) -> None:
    [problem] = problems(JWT_ENABLED="true", JWT_JWKS_URL=url)
    assert "it must be a URL like https://" in problem


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"JWT_ENABLED": "true"}, "there is no key; set JWT_SECRET, JWT_PUBLIC_KEY or JWT_JWKS_URL."),
        ({"JWT_ENABLED": "true", "JWT_ALGORITHM": "HS256"}, "JWT_ALGORITHM is HS256 but JWT_SECRET is not set"),
        ({"JWT_ENABLED": "true", "JWT_ALGORITHM": "RS256"}, "JWT_ALGORITHM is RS256 but there is no key for it"),
        ({"JWT_ENABLED": "true", "JWT_ALGORITHM": "EdDSA"}, "JWT_ALGORITHM is EdDSA but there is no key for it"),
        (
            {"JWT_ENABLED": "true", "JWT_ALGORITHM": "HS256", "JWT_SECRET": SECRET, "JWT_JWKS_URL": URL},
            "JWT_JWKS_URL is not used with JWT_ALGORITHM=HS256",
        ),
        (
            {"JWT_ENABLED": "true", "JWT_ALGORITHM": "RS256", "JWT_SECRET": SECRET, "JWT_JWKS_URL": URL},
            "JWT_SECRET is not used with JWT_ALGORITHM=RS256",
        ),
        (
            {"JWT_ENABLED": "true", "JWT_PUBLIC_KEY": pem(rsa()), "JWT_JWKS_URL": URL},
            "JWT_PUBLIC_KEY and JWT_JWKS_URL are both set",
        ),
        (
            {"JWT_ENABLED": "true", "JWT_ALGORITHM": "RS256", "JWT_PUBLIC_KEY": pem(ed25519())},
            "JWT_PUBLIC_KEY is a key for EdDSA but JWT_ALGORITHM is RS256",
        ),
        ({"JWT_SECRET": SECRET}, "JWT_SECRET is set but JWT_ENABLED is not"),
        ({"JWT_JWKS_URL": URL}, "JWT_JWKS_URL is set but JWT_ENABLED is not"),
        ({"JWT_ENABLED": "true", "JWT_SECRET": SECRET, "JWT_ISUER": "x"}, "did you mean JWT_ISSUER?"),
        ({"JWT_ENABLED": "true", "JWT_SECRET": SECRET, "JWT_AUDIENC": "x"}, "did you mean JWT_AUDIENCE?"),
    ],
)
def test_what_does_not_fit_together_stops_the_start(environ: dict[str, str], sentence: str) -> None:
    [problem] = problems(**environ)
    assert sentence in problem


def test_settings_of_other_programs_are_left_alone() -> None:
    assert settings(JWT_ENABLED="true", JWT_SECRET=SECRET, JWT_EXPIRES_IN="1h", MY_JWT="x").jwt_enabled


def test_secrets_are_not_in_the_text_of_the_settings() -> None:
    text = repr(settings(JWT_ENABLED="true", JWT_SECRET=SECRET, QUEEN_ENCRYPTION_KEY=KEY))
    assert SECRET not in text
    assert KEY not in text
    secrets = {meta.name for _, meta in table() if meta.secret}
    assert {"JWT_SECRET", "JWT_PUBLIC_KEY", "QUEEN_ENCRYPTION_KEY"} <= secrets
