"""One worker: the place where its parts are put together, and its life from the plan to the last answer.

It needs no database to begin: its connections are opened when they are used, and until then it can say what is missing.
It listens nowhere: connections come from the supervisor, as file descriptors over the control socket (`Intake`).
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from functools import partial
from typing import Literal

import uvloop

from queenmq.cluster.shared_state import SharedState
from queenmq.cluster.siblings import Siblings
from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from queenmq.http.endpoint import Endpoint
from queenmq.http.limits import Limits
from queenmq.server.control import Plan
from queenmq.server.filelimit import raise_file_limit
from queenmq.server.intake import Intake
from queenmq.server.security import authenticator, cipher
from queenmq.server.settings import Settings
from queenmq.storage.directory import Directory

_OTHER_FILES = 64

_log = logging.getLogger(__name__)


def work(plan: Plan, control: socket.socket) -> int:
    """Be that worker until it ends. Returns the process's exit code."""
    return uvloop.run(_life(plan, control, raise_file_limit()))


async def _life(plan: Plan, control: socket.socket, file_limit: int) -> int:
    intake = Intake(control)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    broker = await Broker.open(engine_config(plan), cipher(plan.settings), partial(shared_state, plan))
    await _serve(plan, broker, intake, limits(plan, file_limit), stop)
    return 0


async def _serve(plan: Plan, broker: Broker, intake: Intake, allowed: Limits, stop: asyncio.Event) -> None:
    """Until told to stop; then finish what is under way."""
    callers = authenticator(plan.settings, _log.warning)
    endpoint = Endpoint(
        broker,
        allowed,
        authenticate=callers,
        authenticate_slowly=None if callers is None else callers.slow,
        worker_id=plan.number,
    )
    intake.open(endpoint)
    await stop.wait()
    await intake.close()
    # In this order: no further request is read, and then those that wait are answered.
    await asyncio.gather(endpoint.drain(), broker.drain())
    await broker.close()
    if callers is not None:
        await callers.close()


def shared_state(plan: Plan, directory: Directory) -> SharedState:
    outboxes = {number: socket.socket(fileno=fd) for number, fd in plan.outboxes.items()}
    inbox = socket.socket(fileno=plan.inbox) if outboxes else None
    return SharedState(
        Siblings(plan.number, inbox, outboxes),
        directory,
        server_id=plan.server_id,
        number=plan.number,
        gateway=plan.gateway,
        max_hints=plan.settings.lease_hint_max if plan.settings.cache_enabled else 0,
    )


def engine_config(plan: Plan) -> EngineConfig:
    settings = plan.settings
    return EngineConfig(
        dsn=plan.dsn,
        connections=_share(settings.sidecar_pool_size, plan),
        admin_connections=_share(settings.db_pool_size, plan),
        connect_timeout=settings.connect_timeout,
        statement_timeout_ms=settings.db_statement_timeout,
        pgbouncer=settings.pgbouncer,
        batch_wait=settings.sidecar_micro_batch_wait / 1000,
        max_items=settings.sidecar_max_items,
        max_pending_bytes=settings.sidecar_max_pending * 1024 * 1024,
        retry_timeout=settings.sidecar_retry_timeout / 1000,
        max_pop_bytes=settings.max_pop * 1024 * 1024,
        poll_first=settings.pop_wait_initial / 1000,
        poll_threshold=settings.pop_wait_threshold,
        poll_multiplier=settings.pop_wait_multiplier,
        poll_max=settings.pop_wait_max / 1000,
        remember=settings.cache_enabled,
        max_partitions=settings.cache_partition_max,
        partition_ttl=settings.cache_partition_ttl / 1000,
        refresh_every=settings.cache_refresh_interval / 1000,
    )


def limits(plan: Plan, file_limit: int) -> Limits:
    settings = plan.settings
    links = _share(settings.sidecar_pool_size, plan) + _share(settings.db_pool_size, plan)
    own_files = links + len(plan.outboxes) + _OTHER_FILES
    return Limits(
        max_body_bytes=settings.max_body_bytes,
        max_header_bytes=settings.max_header_bytes,
        max_buffered_bytes=settings.max_buffered * 1024 * 1024,
        max_push_items=settings.max_push_items,
        max_name_length=settings.max_name_length,
        max_json_depth=settings.max_json_depth,
        header_timeout=settings.header_timeout / 1000,
        body_timeout=settings.body_timeout / 1000,
        idle_timeout=settings.idle_timeout / 1000,
        tcp_user_timeout=settings.tcp_user_timeout / 1000,
        tcp_keepalive=settings.tcp_keepalive,
        # A client above the limit gets an answer; one above the system's limit would only see the connection close.
        max_connections=max(1, min(settings.max_connections, file_limit - own_files)),
        default_batch_size=settings.default_batch_size,
        max_batch_size=settings.max_batch_size,
        default_timeout=settings.default_timeout / 1000,
        max_timeout=settings.max_timeout / 1000,
        default_subscription_mode=_subscription_mode(settings),
    )


def _subscription_mode(settings: Settings) -> Literal["all", "new"]:
    return "new" if settings.default_subscription_mode == "new" else "all"


def _share(total: int, plan: Plan) -> int:
    """This worker's part of something all workers share: at least one, and the first get what is left over."""
    each, rest = divmod(total, plan.settings.num_workers)
    return max(1, each + (plan.number < rest))
