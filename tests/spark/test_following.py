"""Following a query: every committed batch is told once and in order, and a stop waits for the batch under way."""

from __future__ import annotations

import pytest

from queenmq.spark.pipelines.base import Outcome, Progress, Quiet, follow
from tests.spark.queries import FakeQuery, batch, end, fail, idle


def test_every_committed_batch_is_told_once_and_in_order() -> None:
    committed: list[int] = []
    events = Quiet()
    query = FakeQuery(batch(0, 10, 10, latest=25), idle, batch(1, 15, 25), idle, idle, end)
    outcome = follow(query, events, lambda offset: committed.append(offset["position"]))
    assert outcome == Outcome(25)
    assert committed == [10, 25]
    assert events.seen[0] == Progress(rows=10, rows_per_second=10.0, lag=15, batch=0)
    assert events.seen[-1] == Progress(rows=25, rows_per_second=0.0, lag=0, batch=2)


def test_a_source_that_delivers_fewer_rows_than_messages_is_counted_by_messages() -> None:
    events = Quiet()
    query = FakeQuery(batch(0, 1000, 1000, delivered=2), batch(1, 500, 1500, delivered=1), end)
    assert follow(query, events).rows == 1500
    assert [each.rows_per_second for each in events.seen] == [1000.0, 500.0]


def test_a_sink_that_stores_fewer_messages_than_were_passed_is_counted_by_what_it_stores() -> None:
    """An idle query reports under the number of the batch that will come, and has stored nothing of it."""
    events = Quiet()
    stored = {0: 15, 1: 0, 2: 5}
    query = FakeQuery(batch(0, 25, 25), batch(1, 10, 35), idle, batch(2, 5, 40, delivered=1), end)
    assert follow(query, events, written=stored.pop).rows == 20
    assert [(each.rows, each.rows_per_second) for each in events.seen] == [(15, 15.0), (15, 0.0), (15, 0.0), (20, 5.0)]


def test_several_batches_between_two_looks_are_all_told() -> None:
    committed: list[int] = []

    def three(query: FakeQuery) -> None:
        for number in range(3):
            batch(number, 1, number + 1)(query)

    follow(FakeQuery(three, end), Quiet(), lambda offset: committed.append(offset["epoch"]))
    assert committed == [0, 1, 2]


def test_a_batch_that_is_committed_as_the_query_ends_is_told() -> None:
    committed: list[int] = []

    def last(query: FakeQuery) -> None:
        batch(0, 3, 3)(query)
        end(query)

    assert follow(FakeQuery(last), Quiet(), lambda offset: committed.append(offset["epoch"])) == Outcome(3)
    assert committed == [0]


def test_what_was_committed_before_a_failure_is_told_and_the_failure_is_raised() -> None:
    committed: list[int] = []

    def commit_and_fail(query: FakeQuery) -> None:
        batch(0, 3, 3)(query)
        fail(RuntimeError("gone"))(query)

    with pytest.raises(RuntimeError, match="gone"):
        follow(FakeQuery(commit_and_fail), Quiet(), lambda offset: committed.append(offset["epoch"]))
    assert committed == [0]


def test_a_stop_waits_for_the_batch_under_way() -> None:
    events = Quiet()

    def ask(query: FakeQuery) -> None:
        events.stopping = True

    query = FakeQuery(batch(0, 1, 1), ask, batch(1, 2, 3), batch(2, 4, 7))
    assert follow(query, events) == Outcome(3, status="stopped")
    assert query.stopped_after == 2


def test_a_stop_between_two_batches_does_not_wait_for_another() -> None:
    events = Quiet(stopping=True)
    query = FakeQuery(batch(0, 1, 1), batch(1, 1, 2))
    query.status = {"isTriggerActive": False}
    assert follow(query, events) == Outcome(1, status="stopped")


def test_a_commit_that_cannot_be_followed_up_stops_the_query() -> None:
    query = FakeQuery(batch(0, 1, 1), batch(1, 1, 2), end)

    def refuse(offset: object) -> None:
        raise ConnectionError("no database")

    with pytest.raises(ConnectionError):
        follow(query, Quiet(), refuse)
    assert not query.isActive


def test_a_speed_that_is_not_a_number_is_left_out() -> None:
    events = Quiet()

    def odd(query: FakeQuery) -> None:
        batch(0, 1, 1)(query)
        query.recentProgress[0]["processedRowsPerSecond"] = float("inf")

    follow(FakeQuery(odd, end), events)
    assert events.seen == [Progress(rows=1, rows_per_second=None, lag=0, batch=0)]
