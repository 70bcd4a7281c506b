"""The arrows of the pop state machine are the ones drawn, and every walk along them is counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.engine.pop_states import TRANSITIONS, IllegalTransition, State, Tally


def test_every_state_has_its_row_and_the_ends_lead_nowhere() -> None:
    assert set(TRANSITIONS) == set(State)
    assert {state for state, after in TRANSITIONS.items() if not after} == {State.COMPLETED, State.FAILED}


def test_every_state_is_reached_from_pending() -> None:
    reached, front = {State.PENDING}, [State.PENDING]
    while front:
        fresh = TRANSITIONS[front.pop()] - reached
        reached |= fresh
        front += fresh
    assert reached == set(State)


@given(st.lists(st.sampled_from(State), max_size=12))
def test_only_drawn_arrows_can_be_taken_and_each_step_counts_once(walk: list[State]) -> None:
    tally = Tally()
    progress = tally.begin()
    steps = 1
    for state in walk:
        before = progress.state
        if state in TRANSITIONS[before]:
            tally.move(progress, state)
            steps += 1
            assert progress.state is state
        else:
            with pytest.raises(IllegalTransition, match=f"from {before.value} to {state.value}"):
                tally.move(progress, state)
            assert progress.state is before
    assert sum(stats["entered"] for stats in tally.shown().values()) == steps
