"""Ends processes step by step: wait, ask, insist, kill; each step is said aloud, and each gets its time."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

REPORT_EVERY = 2.0


@dataclass(frozen=True, slots=True)
class Step:
    signal: signal.Signals | None
    """None only waits."""
    seconds: float
    saying: str


def fast_shutdown(patience: float) -> tuple[Step, ...]:
    """For a postmaster. The later steps leave the cluster to crash recovery, which loses nothing committed."""
    return (
        Step(signal.SIGINT, patience, "stopping PostgreSQL"),
        Step(signal.SIGQUIT, 10.0, "PostgreSQL does not stop; ending it without a checkpoint"),
        Step(signal.SIGKILL, 10.0, "PostgreSQL does not stop; killing it"),
    )


def end(
    steps: Sequence[Step],
    *,
    gone: Callable[[float], bool],
    send: Callable[[signal.Signals], None],
    report: Callable[[str], None],
) -> bool:
    """Whether the processes are gone in the end. `gone(seconds)` waits that long at most."""
    begun = time.monotonic()
    for step in steps:
        if gone(0):
            return True
        report(step.saying)
        if step.signal is not None:
            send(step.signal)
        until = time.monotonic() + step.seconds
        while (left := until - time.monotonic()) > 0:
            if gone(min(left, REPORT_EVERY)):
                return True
            report(f"{step.saying}: {time.monotonic() - begun:.0f} s")
    return gone(0)
