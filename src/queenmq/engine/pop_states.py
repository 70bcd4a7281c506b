"""The states a pop goes through, and what they count.

    PENDING ──► RESOLVING ──► LEASING ──► FETCHING ──► COMPLETED
      ▲ │           │    ▲       │  │         │
      │ │           │    └───────┘  │         │        a group that was deleted is resolved again
      │ ▼           ▼               ▼         ▼
      └─────────  EMPTY ◄───────────┘       FAILED ◄── every state that can meet an error
    a parked pop is woken; one that comes when another has just found nothing is parked at once

PENDING waits for a flush. RESOLVING turns names into ids, from memory or with one statement for all. LEASING claims
partitions for all requests of a flush with set-based statements. FETCHING turns the segments, which come with the
leases in the same round trip, into messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from time import perf_counter
from typing import Any, Final


class State(Enum):
    __hash__ = object.__hash__  # each is there once, and Enum's own is a call for every look-up

    PENDING = "pending"
    RESOLVING = "resolving"
    LEASING = "leasing"
    FETCHING = "fetching"
    COMPLETED = "completed"
    EMPTY = "empty"
    FAILED = "failed"


TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    State.PENDING: frozenset({State.RESOLVING, State.EMPTY, State.FAILED}),
    State.RESOLVING: frozenset({State.LEASING, State.EMPTY, State.FAILED}),
    State.LEASING: frozenset({State.FETCHING, State.EMPTY, State.RESOLVING, State.FAILED}),
    State.FETCHING: frozenset({State.COMPLETED, State.FAILED}),
    State.EMPTY: frozenset({State.PENDING}),
    State.COMPLETED: frozenset(),
    State.FAILED: frozenset(),
}


@dataclass(slots=True)
class StateStats:
    """How often a state was entered, and the time spent in it by all pops together."""

    entered: int = 0
    seconds: float = 0.0


class IllegalTransition(AssertionError):
    """A pop was moved along an arrow that does not exist."""


class Progress:
    """Where one pop stands."""

    __slots__ = ("_since", "state")

    def __init__(self) -> None:
        self.state = State.PENDING
        self._since = perf_counter()


class Tally:
    """Moves pops from state to state and keeps the count of a worker."""

    def __init__(self) -> None:
        self.states = {state: StateStats() for state in State}

    def begin(self) -> Progress:
        self.states[State.PENDING].entered += 1
        return Progress()

    def move(self, progress: Progress, state: State) -> None:
        if state not in TRANSITIONS[progress.state]:
            raise IllegalTransition(f"a pop cannot go from {progress.state.value} to {state.value}")
        now = perf_counter()
        self.states[progress.state].seconds += now - progress._since
        self.states[state].entered += 1
        progress.state = state
        progress._since = now

    def shown(self) -> dict[str, Any]:
        return {
            state.value: {"entered": stats.entered, "seconds": round(stats.seconds, 6)}
            for state, stats in self.states.items()
        }
