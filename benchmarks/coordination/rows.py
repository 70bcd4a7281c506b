"""The rows of the table: what is measured, what it may be at most, or must be at least."""

from __future__ import annotations

from functools import partial

from ..tables import Row
from .measures import (
    SERVERS,
    Bench,
    contended_saved,
    packets,
    push_saved,
    push_statements,
    quiet,
    seal,
    wake_here,
    wake_there,
    wake_untold,
)

UPKEEP = 0.05
"""Statements that a push may cost beside its own: the vacuum of hot tables after so many of them."""


ROWS: list[Row[Bench]] = [
    Row(
        name="wake",
        work="a push wakes a parked poll at the same worker",
        measure=partial(wake_here, workers=1),
        target=10,
        shown="{:.1f} ms",
        figure="p99",
    ),
    Row(
        name="wake-worker",
        work="a push wakes a parked poll at the other worker",
        measure=partial(wake_here, workers=2),
        target=20,
        shown="{:.1f} ms",
        figure="p99",
    ),
    Row(
        name="wake-server",
        work="a push wakes a parked poll at the other server",
        measure=wake_there,
        target=50,
        shown="{:.1f} ms",
        figure="p99",
    ),
    Row(
        name="wake-untold",
        work="a push wakes a parked poll at the other server, no UDP",
        measure=wake_untold,
        target=1_100,
        shown="{:.0f} ms",
        figure="p99",
    ),
    Row(
        name="push",
        work="statements for a push of one message, to known partitions",
        measure=push_statements,
        target=1 + UPKEEP,
        shown="{:.2f}",
    ),
    Row(
        name="push-saved",
        work="statements that caches save at such a push",
        measure=push_saved,
        target=0.5,
        shown="{:.0%}",
        at_least=True,
    ),
    Row(
        name="contended-saved",
        work="statements that caches and hints save when 8 consumers at 2 servers want the same 4 partitions",
        measure=contended_saved,
        target=0.3,
        shown="{:.0%}",
        at_least=True,
    ),
    Row(
        name="packets",
        work=f"packets for a push, {SERVERS} servers of which one waits, against telling all",
        measure=packets,
        target=1 / (SERVERS - 1),
        shown="{:.3f}",
    ),
    Row(
        name="quiet",
        work="queries per second of 10,000 parked polls on 100 queues, 2 workers",
        measure=quiet,
        target=20,
        shown="{:.1f}",
    ),
    Row(
        name="seal",
        work="a packet sealed and opened",
        measure=seal,
        target=12,
        shown="{:.1f} µs",
    ),
]
