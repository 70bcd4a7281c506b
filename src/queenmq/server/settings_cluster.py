"""The settings of coordination between servers, and what must be true of them together.

A server that has peers tells them what happens, in signed packets, and remembers what they tell. Who has no peers needs
none of this. All servers of a cluster need the same secret, and each a name of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from queenmq.server.kinds import BOOLEAN, PORT, Kind, NotAllowedError, integer
from queenmq.server.rows import row
from queenmq.server.settings_security import ENCRYPTION_KEY

_SECTION = "Coordination"
_DAY = 24 * 60 * 60 * 1000
_NOTIFY_PORT = 6633
_HEARTBEAT = 1_000
_HEARTBEATS = integer(10, 60_000)
_DEAD_THRESHOLD = 5_000
_DEAD_THRESHOLDS = integer(20, 600_000)
_EXAMPLE = "addresses like queen-1:6633,10.0.0.2:6633,[fd00::3]:6633"
_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[0-9]{1,5}))?")
_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_][A-Za-z0-9_-]*)*\.?")


def _parse_server_id(text: str) -> str:
    if not re.fullmatch(r"[!-~]{1,31}", text):
        raise NotAllowedError("1 to 31 printable ASCII characters without spaces")
    return text


def _parse_peers(text: str) -> str:
    """The text as it is, once it is clear that it can be read: which port is meant depends on another setting."""
    list(_addresses(text, _NOTIFY_PORT))
    return text


def _addresses(text: str, default_port: int) -> Iterator[tuple[str, int]]:
    for entry in text.split(","):
        if entry == "":
            raise NotAllowedError(f"{_EXAMPLE}; there is an empty one: a comma too many")
        match = _ADDRESS.fullmatch(entry)
        if match is None:
            hint = "an IPv6 address needs brackets" if entry.count(":") > 1 else "its host and port cannot be read"
            raise NotAllowedError(f"{_EXAMPLE}; in {entry!r} {hint}")
        port = default_port if match["port"] is None else int(match["port"])
        if not 1 <= port <= 65_535:
            raise NotAllowedError(f"{_EXAMPLE}; in {entry!r} the port must be 1 to 65535")
        yield _host(entry, match["name"], match["v6"]), port


def _host(entry: str, name: str | None, v6: str | None) -> str:
    """In one spelling, so that an address that is given twice shows."""
    try:
        if name is None:
            return str(IPv6Address(v6 or ""))
        if name.rstrip(".").rpartition(".")[2].isdecimal():  # no name ends in a number
            return str(IPv4Address(name))
    except AddressValueError:
        raise NotAllowedError(f"{_EXAMPLE}; in {entry!r} the IP address is not valid") from None
    if not _NAME.fullmatch(name):
        raise NotAllowedError(f"{_EXAMPLE}; in {entry!r} the host is not a name (spaces are not allowed)")
    return name.lower()


SERVER_ID = Kind("text", "1 to 31 printable ASCII characters without spaces", _parse_server_id)
PEERS = Kind("addresses", "`host`, `host:port` or `[IPv6]:port`, separated by commas", _parse_peers)


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """Read by the supervisor, which talks to the other servers, and by the workers, which remember."""

    server_id: str | None = row(
        "QUEEN_SERVER_ID",
        SERVER_ID,
        None,
        section=_SECTION,
        default_doc="the host's name and the port",
        doc="Name of this server among its peers. No two servers of a database may have the same.",
    )
    udp_peers: str | None = row(
        "QUEEN_UDP_PEERS",
        PEERS,
        None,
        section=_SECTION,
        default_doc="none",
        doc="The other servers on the same database. Without a port: that of `QUEEN_UDP_NOTIFY_PORT`.",
    )
    udp_notify_port: int = row(
        "QUEEN_UDP_NOTIFY_PORT",
        PORT,
        _NOTIFY_PORT,
        section=_SECTION,
        doc="UDP port on which this server hears its peers.",
    )
    sync_enabled: bool = row(
        "QUEEN_SYNC_ENABLED",
        BOOLEAN,
        True,
        section=_SECTION,
        default_doc="true",
        doc="Talk to the peers. With false they are ignored, and nothing is sent.",
    )
    sync_secret: str | None = row(
        "QUEEN_SYNC_SECRET",
        ENCRYPTION_KEY,
        None,
        section=_SECTION,
        secret=True,
        default_doc="none",
        doc="Key that packets are signed with, the same on all servers. Required with `QUEEN_UDP_PEERS`.",
    )
    sync_recv_buffer: int = row(
        "QUEEN_SYNC_RECV_BUFFER_MB",
        integer(1, 1024),
        8,
        section=_SECTION,
        unit="MB",
        doc="Room for packets that have arrived and are not read yet. The system may grant less.",
    )
    sync_heartbeat: int = row(
        "QUEEN_SYNC_HEARTBEAT_MS",
        _HEARTBEATS,
        _HEARTBEAT,
        section=_SECTION,
        unit="ms",
        doc="How often this server tells its peers that it is alive.",
    )
    sync_dead_threshold: int = row(
        "QUEEN_SYNC_DEAD_THRESHOLD_MS",
        _DEAD_THRESHOLDS,
        _DEAD_THRESHOLD,
        section=_SECTION,
        unit="ms",
        doc="Silence after which a peer counts as dead. At least twice `QUEEN_SYNC_HEARTBEAT_MS`.",
    )
    cache_enabled: bool = row(
        "QUEEN_CACHE_ENABLED",
        BOOLEAN,
        True,
        section=_SECTION,
        default_doc="true",
        doc="Remember queues and partitions. With false every look-up asks PostgreSQL, for troubleshooting.",
    )
    cache_partition_max: int = row(
        "QUEEN_CACHE_PARTITION_MAX",
        integer(0, 10_000_000),
        100_000,
        section=_SECTION,
        unit="partitions",
        doc="Most partitions one worker remembers; the least recently used goes first.",
    )
    cache_partition_ttl: int = row(
        "QUEEN_CACHE_PARTITION_TTL_MS",
        integer(1, _DAY),
        300_000,
        section=_SECTION,
        unit="ms",
        doc="How long a partition is remembered before PostgreSQL is asked again.",
    )
    cache_refresh_interval: int = row(
        "QUEEN_CACHE_REFRESH_INTERVAL_MS",
        integer(1_000, _DAY),
        60_000,
        section=_SECTION,
        unit="ms",
        doc="How often what is remembered of queues is compared with PostgreSQL.",
    )
    lease_hint_max: int = row(
        "QUEEN_LEASE_HINT_MAX",
        integer(0, 1_000_000),
        10_000,
        section=_SECTION,
        unit="leases",
        doc="Most leases of other servers one worker remembers. 0: none.",
    )

    @property
    def peers(self) -> tuple[tuple[str, int], ...]:
        """Host and port of each server to talk to; none when they are to be ignored."""
        if self.udp_peers is None or not self.sync_enabled:
            return ()
        return tuple(_addresses(self.udp_peers, self.udp_notify_port))


def problems(environ: Mapping[str, str]) -> Iterator[str]:
    """Faults that show only when several settings are seen together."""
    enabled = environ.get("QUEEN_SYNC_ENABLED", "true").lower() in {"true", "1"}
    if environ.get("QUEEN_UDP_PEERS") and enabled and "QUEEN_SYNC_SECRET" not in environ:
        yield (
            "QUEEN_UDP_PEERS is set but QUEEN_SYNC_SECRET is not; set it to the same 64 hexadecimal digits on all "
            'servers. `openssl rand -hex 32` or `python -c "import secrets; print(secrets.token_hex(32))"` makes some.'
        )
    yield from _given_twice(environ)
    yield from _dies_too_soon(environ)


def _given_twice(environ: Mapping[str, str]) -> Iterator[str]:
    port = _number(environ, "QUEEN_UDP_NOTIFY_PORT", PORT, _NOTIFY_PORT)
    try:
        addresses = list(_addresses(environ["QUEEN_UDP_PEERS"], port or _NOTIFY_PORT))
    except (KeyError, NotAllowedError):  # not set, or refused by its row already
        return
    for host, number in sorted({address for address in addresses if addresses.count(address) > 1}):
        shown = f"[{host}]:{number}" if ":" in host else f"{host}:{number}"
        yield f"QUEEN_UDP_PEERS has {shown} more than once; drop one of them."


def _dies_too_soon(environ: Mapping[str, str]) -> Iterator[str]:
    """One packet that is lost must not make a server dead."""
    beat = _number(environ, "QUEEN_SYNC_HEARTBEAT_MS", _HEARTBEATS, _HEARTBEAT)
    dead = _number(environ, "QUEEN_SYNC_DEAD_THRESHOLD_MS", _DEAD_THRESHOLDS, _DEAD_THRESHOLD)
    if beat is not None and dead is not None and dead < 2 * beat:
        yield (
            f"QUEEN_SYNC_DEAD_THRESHOLD_MS is {dead} but QUEEN_SYNC_HEARTBEAT_MS is {beat}; it must be at least "
            f"twice that, {2 * beat}."
        )


def _number(environ: Mapping[str, str], name: str, kind: Kind[int], default: int) -> int | None:
    """None when it is refused by its row already."""
    try:
        return kind.parse(environ[name]) if name in environ else default
    except NotAllowedError:
        return None
