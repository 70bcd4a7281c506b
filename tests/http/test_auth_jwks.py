"""Published keys, fetched from a real HTTP server: rotation, outages, and answers that are no keys."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from queenmq.http import jwks
from queenmq.http.auth import Authenticator, KeysUnavailable, TokenRules, Unauthorized
from queenmq.http.caller import NeedsSlowPath
from tests.http.issuer import Issuer, serving
from tests.http.tokens import NOW, SECRET, bearer, ed25519, hs256, jwk, rsa, signed, token


class Time:
    """The two clocks, moved together."""

    def __init__(self) -> None:
        self.passed = 0.0

    def wall(self) -> float:
        return NOW + self.passed

    def monotonic(self) -> float:
        return 5000 + self.passed


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with serving() as server:
        server.publish(jwk(rsa(), kid="one"))
        yield server


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
async def check(issuer: Issuer, time: Time, reports: list[str]) -> AsyncIterator[Authenticator]:
    made = Authenticator(
        TokenRules(jwks_url=issuer.url), clock=time.wall, monotonic=time.monotonic, report=reports.append
    )
    yield made
    await made.close()


async def until(condition: Callable[[], object]) -> None:
    deadline = asyncio.get_running_loop().time() + 20
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.005)


def accepted(check: Authenticator, authorization: bytes) -> bool:
    try:
        check(authorization)
    except (Unauthorized, NeedsSlowPath):
        return False
    return True


async def refused(check: Authenticator, authorization: bytes) -> str:
    with pytest.raises(Unauthorized) as error:
        await check.slow(authorization)
    return error.value.message


async def test_keys_are_fetched_when_they_are_first_needed(check: Authenticator, issuer: Issuer) -> None:
    value = bearer(signed(rsa(), kid="one"))
    with pytest.raises(NeedsSlowPath):
        check(value)
    assert issuer.asked == 0
    caller = await check.slow(value)
    assert caller.subject == "alice"
    assert check(value) is caller
    assert issuer.asked == 1


async def test_many_who_wait_share_one_fetch(check: Authenticator, issuer: Issuer) -> None:
    issuer.open.clear()
    waiting = [asyncio.create_task(check.slow(bearer(signed(rsa(), kid="one")))) for _ in range(20)]
    await until(lambda: issuer.asked == 1)
    issuer.open.set()
    assert {caller.subject for caller in await asyncio.gather(*waiting)} == {"alice"}
    assert issuer.asked == 1


async def test_one_who_leaves_does_not_take_the_fetch_along(check: Authenticator, issuer: Issuer) -> None:
    issuer.open.clear()
    value = bearer(signed(rsa(), kid="one"))
    leaving, staying = (asyncio.create_task(check.slow(value)) for _ in range(2))
    await until(lambda: issuer.asked == 1)
    leaving.cancel()
    await asyncio.wait([leaving])
    issuer.open.set()
    assert (await staying).subject == "alice"


async def test_a_rotated_key_is_found_and_the_removed_one_forgotten(
    check: Authenticator, issuer: Issuer, time: Time
) -> None:
    old, new = bearer(signed(rsa(), kid="one")), bearer(signed(ed25519(), kid="two"))
    await check.slow(old)
    issuer.publish(jwk(ed25519(), kid="two"))
    time.passed = jwks.PAUSE
    assert (await check.slow(new)).subject == "alice"
    assert "not known here" in await refused(check, old)


async def test_unknown_key_ids_do_not_flood_the_issuer(check: Authenticator, issuer: Issuer, time: Time) -> None:
    await check.slow(bearer(signed(rsa(), kid="one")))
    for number in range(50):
        assert "not known here" in await refused(check, bearer(signed(rsa("another"), kid=f"made up {number}")))
    assert issuer.asked == 1
    time.passed = jwks.PAUSE
    for number in range(50):
        await refused(check, bearer(signed(rsa("another"), kid=f"made up {number}")))
    assert issuer.asked == 2


async def test_old_keys_stay_while_the_issuer_is_down(
    check: Authenticator, issuer: Issuer, time: Time, reports: list[str]
) -> None:
    await check.slow(bearer(signed(rsa(), kid="one")))
    issuer.status, issuer.document = 503, b"down"
    time.passed = jwks.MAX_AGE
    value = bearer(signed(rsa(), {"exp": NOW + 9999}, kid="one"))
    assert check(value).subject == "alice"
    await until(lambda: reports)
    assert "503" in reports[0]
    assert check(bearer(signed(rsa(), {"exp": NOW + 9998}, kid="one"))).subject == "alice"


async def test_old_keys_are_fetched_again_without_anybody_waiting(
    check: Authenticator, issuer: Issuer, time: Time
) -> None:
    await check.slow(bearer(signed(rsa(), kid="one")))
    issuer.publish(jwk(ed25519(), kid="two"))
    time.passed = jwks.MAX_AGE
    assert check(bearer(signed(rsa(), {"exp": NOW + 9999}, kid="one"))).subject == "alice"
    await until(lambda: not accepted(check, bearer(signed(rsa(), {"exp": NOW + 9999}, kid="one"))))
    assert issuer.asked == 2


@pytest.mark.parametrize(
    ("status", "headers", "document", "reason"),
    [
        (200, {}, b"<html>", "keys"),
        (200, {}, b"[]", "keys"),
        (200, {}, b'{"keys":{}}', "keys"),
        (200, {}, b'{"keys":[' + b"[" * 100_000, "keys"),
        (200, {}, b" " * (jwks.MAX_BYTES + 1), "bytes"),
        (200, {}, json.dumps({"keys": [{}] * 101}).encode(), "at most 100"),
        (404, {}, b"", "404"),
        (302, {"Location": "http://127.0.0.1:1/elsewhere"}, b"", "302"),
        (302, {"Location": "file:///etc/passwd"}, b"", "302"),
    ],
)
async def test_answers_that_are_no_keys(
    check: Authenticator,
    issuer: Issuer,
    time: Time,
    reports: list[str],
    status: int,
    headers: dict[str, str],
    document: bytes,
    reason: str,
) -> None:
    issuer.status, issuer.headers, issuer.document = status, headers, document
    with pytest.raises(KeysUnavailable) as unavailable:
        await check.slow(bearer(signed(rsa(), kid="one")))
    assert unavailable.value.status == 503
    assert reason in reports[0]
    issuer.status, issuer.headers = 200, {}
    issuer.publish(jwk(rsa(), kid="one"))
    time.passed = jwks.PAUSE
    assert (await check.slow(bearer(signed(rsa(), kid="one")))).subject == "alice"


async def test_an_issuer_that_does_not_answer_is_given_up(issuer: Issuer, reports: list[str]) -> None:
    keys = jwks.KeySet(issuer.url, report=reports.append, timeout=0.2)
    issuer.open.clear()
    await keys.refresh()
    assert not keys.ready
    assert "no answer in time" in reports[0]


async def test_an_issuer_that_is_not_there(reports: list[str]) -> None:
    with serving() as gone:
        url = gone.url
    keys = jwks.KeySet(url, report=reports.append)
    await keys.refresh()
    assert not keys.ready
    assert "refused" in reports[0]


SECRET_KEY = {"kty": "oct", "kid": "one", "k": "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IHNlY3JldA", "alg": "HS256"}


@pytest.mark.parametrize(
    "published",
    [
        [SECRET_KEY],
        [jwk(rsa(), kid="one", use="enc")],
        [jwk(rsa(), kid="one", alg="RS512")],
        [jwk(rsa(), kid=["one"])],
        [jwk(rsa(), kid="one", n="AQAB")],
        [jwk(rsa(), kid="one", n=7)],
        [{"kty": "RSA", "kid": "one"}],
        [{"kty": ["RSA"], "kid": "one"}],
        [jwk(rsa(), kid="one", d="AQAB")],
        [jwk(rsa(), kid="two")],
        [jwk(rsa())],
        [jwk(ed25519(), kid="one")],
        [None, 7, "key", []],
    ],
)
async def test_published_keys_that_do_not_fit_are_passed_over(
    check: Authenticator, issuer: Issuer, published: list[Any]
) -> None:
    issuer.publish(*published)
    assert "not known here" in await refused(check, bearer(signed(rsa(), kid="one")))
    secret = b"secret secret secret secret secret"
    assert "not accepted here" in await refused(check, bearer(hs256({"alg": "HS256", "kid": "one"}, {}, secret)))


async def test_a_token_without_a_key_id_needs_a_single_key(check: Authenticator, issuer: Issuer, time: Time) -> None:
    assert (await check.slow(bearer(signed(rsa())))).subject == "alice"
    issuer.publish(jwk(rsa(), kid="one"), jwk(rsa("another"), kid="two"))
    time.passed = jwks.PAUSE
    await refused(check, bearer(signed(rsa("another"), kid="three")))
    assert "not known here" in await refused(check, bearer(signed(rsa())))


async def test_what_a_token_points_at_is_not_fetched(check: Authenticator, issuer: Issuer) -> None:
    with serving() as evil:
        evil.publish(jwk(rsa("evil"), kid="evil"))
        for header in ({"jku": evil.url}, {"x5u": evil.url}, {"jku": evil.url, "jwk": jwk(rsa("evil"))}):
            await refused(check, bearer(signed(rsa("evil"), kid="evil", **header)))
        await refused(check, bearer(signed(rsa("evil"), kid=evil.url)))
        assert evil.asked == 0


async def test_a_secret_and_published_keys_side_by_side(issuer: Issuer, time: Time) -> None:
    check = Authenticator(TokenRules(secret=SECRET, jwks_url=issuer.url), clock=time.wall, monotonic=time.monotonic)
    assert check(bearer(token())).subject == "alice"
    assert (await check.slow(bearer(signed(rsa(), kid="one")))).subject == "alice"
    await check.close()


async def test_the_configured_algorithm_limits_published_keys(issuer: Issuer, time: Time) -> None:
    issuer.publish(jwk(rsa(), kid="one"), jwk(ed25519(), kid="two"))
    rules = TokenRules(algorithm="EdDSA", jwks_url=issuer.url)
    check = Authenticator(rules, clock=time.wall, monotonic=time.monotonic)
    assert (await check.slow(bearer(signed(ed25519(), kid="two")))).subject == "alice"
    assert "not accepted here" in await refused(check, bearer(signed(rsa(), kid="one")))
    await check.close()
