"""The parameters in a database's URL. Such URLs are copied from one program to another, so they are those of libpq.

The driver knows most of them and takes all others for settings of PostgreSQL, which refuses what it does not know. What
tells libpq how to connect and is no matter to us is therefore left out before the driver sees the URL.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote

_DRIVER: Final = {
    *("host", "port", "dbname", "user", "password", "passfile", "service", "target_session_attrs"),
    *("sslmode", "sslnegotiation", "sslcert", "sslkey", "sslpassword", "sslrootcert", "sslcrl"),
    *("ssl_min_protocol_version", "ssl_max_protocol_version", "krbsrvname", "gsslib"),
}
_POSTGRESQL: Final = {"application_name", "options"}
_LEFT_OUT: Final = {
    *("connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
    *("tcp_user_timeout", "load_balance_hosts", "channel_binding", "gssencmode", "sslcompression", "sslsni"),
    *("max_protocol_version", "client_encoding", "fallback_application_name"),
}
KNOWN: Final = _DRIVER | _POSTGRESQL | _LEFT_OUT
_TARGETS: Final = ("any", "primary", "standby", "read-write", "read-only", "prefer-standby")
_INSTEAD: Final = {"pgbouncer": "set QUEEN_PGBOUNCER instead"}


def problem(url: str) -> str | None:
    """What is wrong with the URL's parameters, or None. It quotes nothing that may be a part of a password."""
    fields = _fields(url)
    for number, field in enumerate(fields):
        name, value = _decoded(field)
        if "=" not in field:
            return "its parameters cannot be read"
        if name in KNOWN or (name, value) == ("ssl", "true"):
            if value and (wrong := _wrong_value(name, value)) is not None:
                return wrong
        elif any("@" in later for later in fields[number:]):
            return "where a ? in the user or password is written %3F"
        else:
            return f"its parameter {name!r} is not one that is known here; {_INSTEAD.get(name, 'leave it out')}"
    return None


def _wrong_value(name: str, value: str) -> str | None:
    if name == "target_session_attrs" and value not in _TARGETS:
        return f"its parameter {name!r} can be {', '.join(_TARGETS)}"
    if name == "port" and not re.fullmatch(r"[0-9]{1,5}(,[0-9]{1,5})*", value):
        return "its port must be 1 to 65535"
    if (name, value) == ("gssencmode", "require"):
        return f"its parameter {name!r} cannot be require: GSSAPI encryption is not supported"
    return None


def for_driver(url: str) -> str:
    """The URL with only those parameters that reach whom they are for."""
    kept = []
    for name, value in map(_decoded, _fields(url)):
        if (name, value) == ("ssl", "true"):  # as libpq takes it, for URLs of JDBC
            kept.append("sslmode=require")
        elif name not in _LEFT_OUT and value:
            kept.append(f"{quote(name)}={quote(value)}")  # the driver would take a + for a space
    return _with_fields(url.partition("?")[0], kept)


def without_password(url: str) -> tuple[str, str | None]:
    """The URL as others may see it, and the password that was in it."""
    scheme, _, rest = url.partition("?")[0].partition("://")
    authority, slash, database = rest.partition("/")
    login, at, address = authority.rpartition("@")
    user, _, password = login.partition(":")
    fields = _fields(url)
    given = [value for name, value in map(_decoded, fields) if name == "password"]
    shown = f"{scheme}://{user}{at}{address}{slash}{database}"
    others = [field for field in fields if _decoded(field)[0] != "password"]
    return _with_fields(shown, others), next(filter(None, [unquote(password), *reversed(given)]), None)


def _with_fields(url: str, fields: list[str]) -> str:
    return f"{url}?{'&'.join(fields)}" if fields else url


def _fields(url: str) -> list[str]:
    return [field for field in url.partition("?")[2].split("&") if field]


def _decoded(field: str) -> tuple[str, str]:
    name, _, value = field.partition("=")
    return unquote(name), unquote(value)
