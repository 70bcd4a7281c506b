"""Tokens: what is accepted, what is not, and for how long a verdict is remembered."""

from __future__ import annotations

import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa as rsa_keys
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as ec_key

from queenmq.http import auth
from queenmq.http.auth import Authenticator, Forbidden, TokenRules, Unauthorized, require
from queenmq.http.caller import ANYONE, Caller
from queenmq.http.keys import UnusableKey, from_pem
from tests.http.tokens import GOOD, NOW, SECRET, bearer, ed25519, hs256, part, pem, rsa, signed, token


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def authenticator(clock: Clock | None = None, **rules: Any) -> Authenticator:
    return Authenticator(TokenRules(**({"secret": SECRET} | rules)), clock=clock or Clock())


def without(*claims: str) -> dict[str, Any]:
    return {name: value for name, value in GOOD.items() if name not in claims}


def refusal(check: Authenticator, authorization: bytes | None) -> str:
    with pytest.raises(Unauthorized) as refused:
        check(authorization)
    assert (refused.value.status, refused.value.code) == (401, "unauthorized")
    assert refused.value.headers == ((b"WWW-Authenticate", b"Bearer"),)
    return refused.value.message


def test_a_good_token_tells_who_calls() -> None:
    assert authenticator()(bearer(token())) == Caller("alice", "read-write")
    assert authenticator()(b"bearer " + token()) == Caller("alice", "read-write")


def test_without_a_token_nobody_is_let_in() -> None:
    assert refusal(authenticator(), None) == "Authentication required"


@pytest.mark.parametrize(
    ("rules", "made"),
    [
        ({"algorithm": "HS256"}, lambda: token()),
        ({"algorithm": "auto"}, lambda: token()),
        ({"algorithm": "RS256", "secret": None, "public_key": "rsa"}, lambda: signed(rsa())),
        ({"algorithm": "EdDSA", "secret": None, "public_key": "ed"}, lambda: signed(ed25519())),
        ({"algorithm": "auto", "secret": None, "public_key": "rsa"}, lambda: signed(rsa())),
        ({"algorithm": "auto", "public_key": "ed"}, lambda: signed(ed25519())),
        ({"algorithm": "auto", "public_key": "ed"}, lambda: token()),
    ],
)
def test_each_algorithm(rules: dict[str, Any], made: Any) -> None:
    keys = {"rsa": pem(rsa()), "ed": pem(ed25519())}
    if "public_key" in rules:
        rules = rules | {"public_key": keys[rules["public_key"]]}
    assert authenticator(**rules)(bearer(made())).subject == "alice"


def test_a_key_without_its_algorithm_is_no_configuration() -> None:
    with pytest.raises(ValueError, match="no key is given for EdDSA"):
        authenticator(algorithm="EdDSA", public_key=pem(rsa()))


FORGED: dict[str, tuple[dict[str, Any], Any]] = {
    "alg none": ({}, lambda: part(b'{"alg":"none"}') + b"." + part(json.dumps(GOOD).encode()) + b"."),
    "alg None, with the signature of a good token": (
        {},
        lambda: part(b'{"alg":"nOnE"}') + b"." + b".".join(token().split(b".")[1:]),
    ),
    "HMAC with the public key as the secret": (
        {"algorithm": "RS256", "secret": None, "public_key": "rsa"},
        lambda: hs256({"alg": "HS256"}, GOOD, pem(rsa()).encode()),
    ),
    "the same where HS256 is accepted as well": (
        {"algorithm": "auto", "public_key": "rsa"},
        lambda: hs256({"alg": "HS256"}, GOOD, pem(rsa()).encode()),
    ),
    "HMAC that says it is RS256": (
        {"algorithm": "RS256", "secret": None, "public_key": "rsa"},
        lambda: hs256({"alg": "RS256"}, GOOD, pem(rsa()).encode()),
    ),
    "RS256 where only HS256 is accepted": ({"algorithm": "HS256"}, lambda: signed(rsa())),
    "RS256 by another key": (
        {"algorithm": "RS256", "secret": None, "public_key": "rsa"},
        lambda: signed(rsa("another")),
    ),
    "EdDSA by another key": (
        {"algorithm": "EdDSA", "secret": None, "public_key": "ed"},
        lambda: signed(ed25519("another")),
    ),
    "HS256 where only EdDSA is accepted": ({"algorithm": "EdDSA", "secret": None, "public_key": "ed"}, token),
    "RS512 with the right key": (
        {"algorithm": "RS256", "secret": None, "public_key": "rsa"},
        lambda: jwt.encode(GOOD, rsa(), algorithm="RS512").encode(),
    ),
    "HS512 with the right secret": ({}, lambda: jwt.encode(GOOD, SECRET + SECRET, algorithm="HS512").encode()),
    "another secret": ({}, lambda: hs256({"alg": "HS256"}, GOOD, b"x" * 40)),
    "an empty secret": ({}, lambda: hs256({"alg": "HS256"}, GOOD, b"")),
    "no signature": ({}, lambda: token().rsplit(b".", 1)[0] + b"."),
    "claims exchanged": (
        {},
        lambda: b".".join([token().split(b".")[0], part(b'{"role":"admin"}'), token().split(b".")[2]]),
    ),
    "two parts": ({}, lambda: token().rsplit(b".", 1)[0]),
    "four parts": ({}, lambda: token() + b".x"),
    "five parts, as an encrypted token has": ({}, lambda: b"a.b.c.d.e"),
    "nothing": ({}, lambda: b"."),
    "not base64": ({}, lambda: b"!!!.???.***"),
    "bytes that are not ASCII": ({}, lambda: "é.é.é".encode()),
    "NUL": ({}, lambda: token() + b"\x00"),
    "two tokens": ({}, lambda: token() + b", Bearer " + token()),
    "two tokens with a space": ({}, lambda: token() + b" " + token()),
    "header that is a list": ({}, lambda: part(b"[]") + b"." + b".".join(token().split(b".")[1:])),
    "header of a million brackets, cut at the limit": ({}, lambda: part(b"[" * 4000) + b".e30.e30"),
    "alg that is a list": ({}, lambda: token(alg=["HS256"])),
    "alg that is null": ({}, lambda: token(alg=None)),
    "alg in small letters": ({}, lambda: token(alg="hs256")),
    "unknown crit": ({}, lambda: token(crit=["exp"])),
    "crit of an extension": ({}, lambda: token(crit=["x-y"], x_y=True)),
    "empty crit": ({}, lambda: token(crit=[])),
    "crit null": ({}, lambda: token(crit=None, b64=False)),
    "unencoded payload": ({}, lambda: token(crit=["b64"], b64=False)),
    "huge kid": ({}, lambda: token(kid="k" * 256)),
    "kid that is a number": ({}, lambda: token(kid=7)),
    "kid that is an object": ({}, lambda: token(kid={"$ne": ""})),
    "kid of /dev/null and its empty content as the secret": (
        {},
        lambda: hs256({"alg": "HS256", "kid": "../../../../dev/null"}, GOOD, b""),
    ),
    "kid with SQL and its result as the secret": (
        {},
        lambda: hs256({"alg": "HS256", "kid": "x' union select 'secret"}, GOOD, b"secret"),
    ),
    "jwk in the header": (
        {},
        lambda: hs256({"alg": "HS256", "jwk": {"kty": "oct", "k": part(b"k" * 32).decode()}}, GOOD, b"k" * 32),
    ),
    "expired": ({}, lambda: token({"exp": NOW - 31})),
    "expired long ago": ({}, lambda: token({"exp": 0})),
    "exp before the beginning": ({}, lambda: token({"exp": -(10**30)})),
    "exp that is a text": ({}, lambda: token({"exp": str(NOW + 60)})),
    "exp that is true": ({}, lambda: token({"exp": True})),
    "exp that is null": ({}, lambda: token({"exp": None})),
    "exp that is a list": ({}, lambda: token({"exp": [NOW + 60]})),
    "exp that is infinite": ({}, lambda: hs256({"alg": "HS256"}, b'{"exp":Infinity}')),
    "exp that is not a number": ({}, lambda: hs256({"alg": "HS256"}, b'{"exp":NaN}')),
    "exp beyond any float": ({}, lambda: token({"exp": 10**400})),
    "not valid yet": ({}, lambda: token({"nbf": NOW + 31})),
    "nbf that is a text": ({}, lambda: token({"nbf": "0"})),
    "issued in the future": ({}, lambda: token({"iat": NOW + 31})),
    "issuer missing": ({"issuer": "https://issuer"}, token),
    "another issuer": ({"issuer": "https://issuer"}, lambda: token({"iss": "https://issuer/"})),
    "list of issuers": ({"issuer": "https://issuer"}, lambda: token({"iss": ["https://issuer"]})),
    "audience missing": ({"audience": "queen"}, token),
    "another audience": ({"audience": "queen"}, lambda: token({"aud": "queens"})),
    "other audiences": ({"audience": "queen"}, lambda: token({"aud": ["a", "b"]})),
    "audience as an object": ({"audience": "queen"}, lambda: token({"aud": {"queen": 1}})),
    "claims that are a list": ({}, lambda: hs256({"alg": "HS256"}, [])),
    "claims that are a text": ({}, lambda: hs256({"alg": "HS256"}, "x")),
    "claims that are not JSON": ({}, lambda: hs256({"alg": "HS256"}, b"{exp:1}")),
    "claims that are not UTF-8": ({}, lambda: hs256({"alg": "HS256"}, b'{"sub":"\xff"}')),
    "claims of many brackets": ({}, lambda: hs256({"alg": "HS256"}, b'{"a":' + b"[" * 5000)),
    "sub too long": ({}, lambda: token({"sub": "x" * 256})),
    "sub with a line break": ({}, lambda: token({"sub": "alice\nbob"})),
    "sub with the separator of segments": ({}, lambda: token({"sub": "alice\x1ebob"})),
    "sub that is a number": ({}, lambda: token({"sub": 7})),
    "longer than the limit": ({}, lambda: token({"x": "x" * 8192})),
}


@pytest.mark.parametrize("name", FORGED)
def test_attacks_are_refused(name: str) -> None:
    rules, made = FORGED[name]
    keys = {"rsa": pem(rsa()), "ed": pem(ed25519())}
    if "public_key" in rules:
        rules = rules | {"public_key": keys[rules["public_key"]]}
    value = made()
    message = refusal(authenticator(**rules), bearer(value))
    assert message != "Authentication required"
    assert value.decode(errors="replace") not in message


@pytest.mark.parametrize("name", [name for name in FORGED if "crit" in name or name == "unencoded payload"])
def test_critical_headers_are_refused_for_what_they_are(name: str) -> None:
    """By us, whatever the library knows about them."""
    _, made = FORGED[name]
    assert "critical header" in refusal(authenticator(), bearer(made()))


@pytest.mark.parametrize("value", [b"", b"Bearer", b"Bearer ", b"Basic YTpi", b"Token abc", b"Bearer\tabc", b"bearer,"])
def test_other_schemes_are_refused(value: bytes) -> None:
    assert "Bearer <token>" in refusal(authenticator(), value)


def test_a_good_token_is_not_good_under_another_scheme() -> None:
    refusal(authenticator(), b"Basic " + token())
    refusal(authenticator(), token())


@pytest.mark.parametrize(
    "header", [{"jku": "http://127.0.0.1:1/keys"}, {"x5u": "http://127.0.0.1:1/"}, {"kid": "../x"}]
)
def test_what_a_header_points_at_is_not_looked_at(header: dict[str, Any]) -> None:
    assert authenticator()(bearer(token(**header))).subject == "alice"


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": NOW - 29},
        {"nbf": NOW + 29},
        {"exp": NOW + 0.5},
        {"iss": "https://issuer", "aud": "queen"},
        {"iss": "https://issuer", "aud": ["other", "queen"]},
    ],
)
def test_clocks_may_differ_a_little_and_claims_may_match(claims: dict[str, Any]) -> None:
    rules: dict[str, Any] = {"issuer": "https://issuer", "audience": "queen"} if "iss" in claims else {}
    assert authenticator(**rules)(bearer(token(claims))).subject == "alice"


def test_a_token_may_have_no_end_and_no_subject() -> None:
    made = hs256({"alg": "HS256"}, without("exp", "sub"))
    assert authenticator()(bearer(made)) == Caller(None, "read-write")


def test_a_verdict_is_remembered_until_the_token_expires() -> None:
    clock = Clock()
    check = authenticator(clock, clock_skew=0)
    value = bearer(token({"exp": NOW + 60}))
    first = check(value)
    clock.now = NOW + 59.9
    assert check(value) is first
    clock.now = NOW + 60
    assert "expired" in refusal(check, value)


def test_a_verdict_is_not_remembered_for_long_without_an_end() -> None:
    clock = Clock()
    check = authenticator(clock)
    value = bearer(hs256({"alg": "HS256"}, without("exp")))
    first = check(value)
    clock.now = NOW + auth.REMEMBERED_SECONDS - 1
    assert check(value) is first
    clock.now = NOW + auth.REMEMBERED_SECONDS
    assert check(value) == first
    assert check(value) is not first


def test_only_so_many_verdicts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "REMEMBERED", 3)
    check = authenticator()
    values = [bearer(token({"sub": f"user{number}"})) for number in range(5)]
    callers = [check(value) for value in values]
    assert [check(value) is caller for value, caller in zip(values[2:], callers[2:], strict=True)] == [True] * 3
    assert check(values[0]) is not callers[0]


def test_a_refused_token_is_not_remembered() -> None:
    clock = Clock()
    check = authenticator(clock)
    value = bearer(token({"nbf": NOW + 60}))
    refusal(check, value)
    clock.now = NOW + 40
    assert check(value).subject == "alice"


@pytest.mark.parametrize(
    ("claims", "role"),
    [
        ({}, "read-only"),
        ({"role": "admin"}, "admin"),
        ({"role": "read-write"}, "read-write"),
        ({"role": "read-only"}, "read-only"),
        ({"role": "Admin"}, "read-only"),
        ({"role": "superuser"}, "read-only"),
        ({"role": ["admin"]}, "read-only"),
        ({"role": {"admin": True}}, "read-only"),
        ({"role": None}, "read-only"),
        ({"roles": ["read-only", "admin", "x"]}, "admin"),
        ({"roles": [["admin"], 7, None]}, "read-only"),
        ({"roles": "admin"}, "read-only"),
        ({"role": "read-only", "roles": ["read-write"]}, "read-write"),
    ],
)
def test_roles(claims: dict[str, Any], role: str) -> None:
    made = hs256({"alg": "HS256"}, without("role") | claims)
    assert authenticator()(bearer(made)).role == role


LEVELS: list[auth.Level] = ["P", "R", "RW", "A"]


@pytest.mark.parametrize(
    ("role", "allowed"),
    [("read-only", "P R"), ("read-write", "P R RW"), ("admin", "P R RW A"), ("", "P"), ("nonsense", "P")],
)
def test_levels(role: str, allowed: str) -> None:
    caller = Caller("alice", role)
    for level in LEVELS:
        if level in allowed.split():
            require(caller, level)
            continue
        with pytest.raises(Forbidden, match=r"^Insufficient permissions$") as refused:
            require(caller, level)
        assert (refused.value.status, refused.value.code) == (403, "forbidden")


def test_without_authentication_everybody_is_an_admin() -> None:
    require(ANYONE, "A")


def test_keys_that_are_too_weak_or_not_public_are_refused() -> None:
    weak = rsa_keys.generate_private_key(65537, 1024)
    for text in (pem(weak), pem(ec_key(SECP256R1())), "nonsense", ""):  # type: ignore[arg-type]
        with pytest.raises(UnusableKey):
            from_pem(text)
    assert from_pem(pem(rsa())).algorithm == "RS256"
