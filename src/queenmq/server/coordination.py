"""How this server takes part in a cluster: its name, its port for the other servers, and its gateway to them."""

from __future__ import annotations

import errno
import hashlib
import re
import socket
from collections.abc import Callable
from functools import partial

from queenmq.cluster import datagrams
from queenmq.cluster.datagrams import Datagrams
from queenmq.cluster.gateway import Gateway, Identity
from queenmq.cluster.packets import MAX_SENDER
from queenmq.cluster.siblings import Siblings
from queenmq.server.listening import ListenError
from queenmq.server.settings import Settings
from queenmq.storage.pool import connect
from queenmq.storage.servers import Session, begin_session

_MB = 1024 * 1024


def server_name(settings: Settings, port: int, host: str = "") -> str:
    """As it is set, or the host's name and the port; a long name is cut, and stays different from others."""
    if settings.server_id is not None:
        return settings.server_id
    plain = re.sub(r"[^!-~]", "-", host or socket.gethostname())
    name = f"{plain}:{port}"
    if len(name) <= MAX_SENDER:
        return name
    tail = f"-{hashlib.sha256(plain.encode()).hexdigest()[:6]}:{port}"
    return plain[: MAX_SENDER - len(tail)] + tail


def bind(settings: Settings) -> socket.socket | None:
    """The port for other servers; None when there are none. Raises ListenError."""
    if not settings.peers:
        return None
    port = settings.udp_notify_port
    try:
        return datagrams.bind(port, settings.sync_recv_buffer * _MB)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        why = "is in use by another program" if taken else f"cannot be used: {error.strerror or error}"
        raise ListenError(f"UDP port {port} {why}. Choose another with QUEEN_UDP_NOTIFY_PORT.") from error


async def begin(settings: Settings, dsn: str, name: str) -> Session:
    """This server's session, from the database."""
    db = await connect(
        dsn,
        connect_timeout=settings.connect_timeout,
        statement_timeout_ms=settings.db_statement_timeout,
        pgbouncer=settings.pgbouncer,
    )
    try:
        return await begin_session(db, name)
    finally:
        await db.close()


def gateway_for(settings: Settings, session: Session, name: str, own: socket.socket) -> Callable[[Siblings], Gateway]:
    """What makes the gateway, once its siblings are there."""
    secret = bytes.fromhex(settings.sync_secret or "")
    identity = Identity(name, secret, session.session, session.now_ms, session.floors)
    return partial(
        Gateway,
        identity,
        settings.peers,
        datagrams=partial(Datagrams, own),
        number=settings.num_workers,
        heartbeat=settings.sync_heartbeat / 1000,
        dead_after=settings.sync_dead_threshold / 1000,
    )
