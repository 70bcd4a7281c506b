"""Who a request comes from: JSON Web Tokens, and the level that each route asks for.

The server's configuration decides which algorithms are accepted and which key belongs to each; of a token's header only
`alg`, `kid` and `crit` are looked at, and only to refuse it or to choose among configured keys. A verified token is
remembered until it expires, so that checking it again costs one look into a dictionary.

AuthError
├── Unauthorized       401: no token, or one that is not accepted
├── Forbidden          403: the role is too low for the route
└── KeysUnavailable    503: the issuer's keys have never been readable
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import jwt
import msgspec

from ..wire.names import InvalidValue, check_name
from .caller import Caller, NeedsSlowPath
from .jwks import KeySet
from .keys import from_pem

Level = Literal["P", "R", "RW", "A"]

MAX_TOKEN: Final = 8192
MAX_KID: Final = 255
REMEMBERED: Final = 4096
REMEMBERED_SECONDS: Final = 300.0
ROLES: Final = ("read-only", "read-write", "admin")
_RANKS: Final = {role: rank for rank, role in enumerate(ROLES, 1)}
_NEEDS: Final[dict[str, int]] = {"P": 0, "R": 1, "RW": 2, "A": 3}
_MALFORMED: Final = (msgspec.MsgspecError, ValueError, RecursionError)


class AuthError(Exception):
    """A request that is not let in: status, machine code, sentence, headers of the answer."""

    status = 401
    code = "unauthorized"
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Unauthorized(AuthError):
    headers = ((b"WWW-Authenticate", b"Bearer"),)


class Forbidden(AuthError):
    status = 403
    code = "forbidden"


class KeysUnavailable(AuthError):
    status = 503
    code = "keys_unavailable"
    headers = ((b"Retry-After", b"5"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What makes a token acceptable. `algorithm` is HS256, RS256, EdDSA, or auto: those that a key is given for."""

    algorithm: str = "auto"
    secret: str | None = None
    public_key: str | None = None
    jwks_url: str | None = None
    issuer: str | None = None
    audience: str | None = None
    clock_skew: float = 30.0


class _Header(msgspec.Struct):
    alg: str
    kid: str | None = None
    crit: Any = msgspec.UNSET
    b64: Any = msgspec.UNSET


class Authenticator:
    """Give it the value of the Authorization header: several of them joined with a comma, as HTTP prescribes."""

    def __init__(
        self,
        rules: TokenRules,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._rules = rules
        self._clock = clock
        self._verified: dict[bytes, tuple[Caller, float]] = {}
        self._keys: dict[str, Any] = {}
        self._published: KeySet | None = None
        wanted = {"HS256", "RS256", "EdDSA"} if rules.algorithm == "auto" else {rules.algorithm}
        if rules.secret is not None and "HS256" in wanted:
            self._keys["HS256"] = rules.secret.encode()
        if rules.public_key is not None:
            key = from_pem(rules.public_key)
            if key.algorithm in wanted:
                self._keys[key.algorithm] = key.public
        self._publishable = frozenset(wanted - {"HS256"} - set(self._keys))
        if rules.jwks_url is not None and self._publishable:
            self._published = KeySet(rules.jwks_url, changed=self._verified.clear, report=report, clock=monotonic)
        if not self._keys and self._published is None:
            raise ValueError(f"no key is given for {rules.algorithm}")
        self._signatures = jwt.PyJWS(algorithms=sorted(wanted))

    def __call__(self, authorization: bytes | None) -> Caller:
        """Raises an AuthError, or NeedsSlowPath when `slow` has to be asked."""
        if authorization is None:
            raise Unauthorized("Authentication required")
        remembered = self._verified.get(authorization)
        if remembered is not None:
            if self._clock() < remembered[1]:
                return remembered[0]
            del self._verified[authorization]
        return self._verify(authorization)

    async def slow(self, authorization: bytes | None) -> Caller:
        """The same, with the time to fetch keys."""
        try:
            return self(authorization)
        except NeedsSlowPath:
            assert self._published is not None
            await self._published.refresh()
        try:
            return self(authorization)
        except NeedsSlowPath:
            raise _refused("it is signed with a key that is not known here") from None

    async def close(self) -> None:
        if self._published is not None:
            await self._published.close()

    def _verify(self, authorization: bytes) -> Caller:
        token = _bearer(authorization)
        header = _header(token)
        key = self._key(header)
        try:
            payload = self._signatures.decode_complete(token, key, algorithms=[header.alg])["payload"]
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise _refused("its signature does not match") from None
        claims = _claims(payload)
        until = self._accept(claims)
        caller = Caller(_subject(claims), _role(claims))
        if len(self._verified) >= REMEMBERED:
            del self._verified[next(iter(self._verified))]
        self._verified[authorization] = (caller, min(until, self._clock() + REMEMBERED_SECONDS))
        return caller

    def _key(self, header: _Header) -> Any:
        """The configured key for the algorithm; the token's `kid` chooses among published ones only."""
        key = self._keys.get(header.alg)
        if key is not None:
            return key
        published = self._published
        if published is None or header.alg not in self._publishable:
            raise _refused("its algorithm is not accepted here")
        published.keep_fresh()
        found = published.find(header.alg, header.kid)
        if found is not None:
            return found.public
        if published.may_change:
            raise NeedsSlowPath
        if not published.ready:
            raise KeysUnavailable("The keys that tokens are checked with cannot be read at the moment; try again.")
        raise _refused("it is signed with a key that is not known here")

    def _accept(self, claims: dict[str, Any]) -> float:
        """Until when the claims are good. `exp` is optional, as in the standard."""
        rules, now = self._rules, self._clock()
        expires = _moment(claims, "exp")
        if expires is not None and now >= expires + rules.clock_skew:
            raise _refused("it has expired")
        for claim in ("nbf", "iat"):
            begins = _moment(claims, claim)
            if begins is not None and begins > now + rules.clock_skew:
                raise _refused("it is not valid yet")
        if rules.issuer is not None and claims.get("iss") != rules.issuer:
            raise _refused("it was issued by somebody else")
        if rules.audience is not None:
            audience = claims.get("aud")
            if rules.audience not in (audience if isinstance(audience, list) else [audience]):
                raise _refused("it is meant for another audience")
        return float("inf") if expires is None else expires + rules.clock_skew


def require(caller: Caller, level: Level) -> None:
    """Raise Forbidden when the caller's role does not reach the level of the route."""
    if _RANKS.get(caller.role, 0) < _NEEDS[level]:
        raise Forbidden("Insufficient permissions")


def _refused(reason: str) -> Unauthorized:
    return Unauthorized(f"Invalid token: {reason}")


def _bearer(authorization: bytes) -> bytes:
    scheme, _, token = authorization.partition(b" ")
    if scheme.lower() != b"bearer" or not token or b"," in token:
        raise Unauthorized("The Authorization header must be one `Bearer <token>`")
    if len(token) > MAX_TOKEN:
        raise _refused(f"it is longer than {MAX_TOKEN} bytes")
    return token


def _header(token: bytes) -> _Header:
    try:
        # PyJWT checks the form of the three parts; only their number decides what is read here.
        first, _, _ = token.split(b".")
        header = msgspec.json.decode(jwt.utils.base64url_decode(first), type=_Header)
    except _MALFORMED:
        raise _refused("it is not a signed JSON Web Token") from None
    if header.crit is not msgspec.UNSET or header.b64 is not msgspec.UNSET:
        raise _refused("it has a critical header that is not known here")
    if header.kid is not None and len(header.kid) > MAX_KID:
        raise _refused(f"its key id is longer than {MAX_KID} characters")
    return header


def _claims(payload: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(payload, type=dict[str, Any])
    except _MALFORMED:
        raise _refused("its claims are not a JSON object") from None


def _moment(claims: dict[str, Any], name: str) -> float | None:
    if name not in claims:
        return None
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused(f"its claim {name} is not a number")
    try:
        return float(value)
    except OverflowError:
        raise _refused(f"its claim {name} is not a number of seconds") from None


def _subject(claims: dict[str, Any]) -> str | None:
    subject = claims.get("sub")
    if subject is None:
        return None
    try:
        check_name("sub", subject, empty=True)
    except InvalidValue as error:
        raise _refused(f"its claim sub must be {error.allowed}") from None
    return subject or None


def _role(claims: dict[str, Any]) -> str:
    """The highest role that is named; every accepted token may read."""
    named = claims.get("roles")
    roles = [claims.get("role"), *(named if isinstance(named, list) else [])]
    known = [_RANKS[role] for role in roles if isinstance(role, str) and role in _RANKS]
    return ROLES[max(known, default=1) - 1]
