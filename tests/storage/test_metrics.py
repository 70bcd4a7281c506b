"""Metric rows, their roll-ups, and the cluster's state values."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from queenmq.storage import metrics, system_state
from queenmq.storage.metrics import MetricRow, RollupRow
from queenmq.storage.store import Store

START = datetime.fromisoformat("2026-01-01T00:00:00Z")
MINUTE = timedelta(minutes=1)


def row(minute: int, worker: str = "1", host: str = "a", scope: str = "", **values: int) -> MetricRow:
    return MetricRow(START + minute * MINUTE, host, worker, values, scope)


class TestRows:
    async def test_rows_come_back_oldest_first_from_the_range_asked_for(self, store: Store) -> None:
        rows = [row(minute, cpu=minute) for minute in range(5)]
        await metrics.insert(store.pool, rows[::-1])
        assert await metrics.read(store.pool, START + MINUTE, START + 3 * MINUTE) == rows[1:3]
        assert await metrics.read(store.pool, START, START + 9 * MINUTE, limit=2) == rows[:2]

    async def test_rows_are_chosen_by_host_and_scope(self, store: Store) -> None:
        rows = [row(0, host="a", n=1), row(0, host="b", n=2), row(0, host="b", scope="orders", n=3)]
        await metrics.insert(store.pool, rows)
        until = START + MINUTE
        assert await metrics.read(store.pool, START, until) == rows
        assert await metrics.read(store.pool, START, until, hostname="b") == rows[1:]
        assert await metrics.read(store.pool, START, until, scope="orders") == rows[2:]
        assert await metrics.read(store.pool, START, until, hostname="b", scope="") == rows[1:2]

    async def test_a_repeated_row_replaces_the_first(self, store: Store) -> None:
        await metrics.insert(store.pool, [row(0, n=1), row(0, worker="2", n=2)])
        await metrics.insert(store.pool, [row(0, n=3)])
        found = await metrics.read(store.pool, START, START + MINUTE)
        assert [entry.metrics for entry in found] == [{"n": 3}, {"n": 2}]

    async def test_old_rows_go_in_batches(self, store: Store) -> None:
        now = await store.pool.fetchval("select clock_timestamp()")
        rows = [MetricRow(now - timedelta(days=days), "a", "1", {}) for days in range(5)]
        await metrics.insert(store.pool, rows)
        counts = [await metrics.forget(store.pool, older_than_seconds=1.5 * 86400, batch=2) for _ in range(3)]
        assert counts == [2, 1, 0]
        assert await metrics.read(store.pool, now - timedelta(days=9), now + MINUTE) == rows[1::-1]


class TestRollups:
    async def test_buckets_are_kept_apart_and_upserted(self, store: Store) -> None:
        await metrics.upsert_rollup(
            store.pool, [RollupRow("minute", START, {"n": 1}), RollupRow("hour", START, {"n": 2})]
        )
        await metrics.upsert_rollup(
            store.pool,
            [RollupRow("minute", START, {"n": 3}), RollupRow("minute", START + MINUTE, {"n": 4}, "a", "orders")],
        )
        until = START + 2 * MINUTE
        minutes = await metrics.read(store.pool, START, until, bucket="minute")
        assert [(entry.at, entry.hostname, entry.scope, entry.metrics) for entry in minutes] == [
            (START, "", "", {"n": 3}),
            (START + MINUTE, "a", "orders", {"n": 4}),
        ]
        assert [entry.metrics for entry in await metrics.read(store.pool, START, until, bucket="hour")] == [{"n": 2}]
        assert await metrics.read(store.pool, START, until, bucket="minute", scope="orders") == minutes[1:]
        assert await metrics.read(store.pool, START, until, bucket="day") == []
        assert await metrics.read(store.pool, START, until) == []

    async def test_old_rows_of_one_bucket_go_in_batches(self, store: Store) -> None:
        for bucket in ("minute", "hour"):
            rows = [RollupRow(bucket, START + n * MINUTE, {}) for n in range(3)]
            await metrics.upsert_rollup(store.pool, rows)
        counts = [await metrics.forget(store.pool, older_than_seconds=0, batch=2, bucket="minute") for _ in range(3)]
        assert counts == [2, 1, 0]
        assert len(await metrics.read(store.pool, START, START + 9 * MINUTE, bucket="hour")) == 3


class TestState:
    @pytest.mark.parametrize("value", [True, 0, 1.5, "text", [1, None], {"a": {"b": "ü"}}])
    async def test_a_value_comes_back(self, store: Store, value: system_state.Json) -> None:
        assert await system_state.get(store.pool, "key") is None
        await system_state.put(store.pool, "key", value)
        assert await system_state.get(store.pool, "key") == value

    async def test_a_value_is_replaced(self, store: Store) -> None:
        await system_state.put(store.pool, "key", 1)
        await system_state.put(store.pool, "key", 2)
        assert await system_state.get(store.pool, "key") == 2

    async def test_a_swap_needs_the_expected_value(self, store: Store) -> None:
        assert not await system_state.swap(store.pool, "key", 1, 2)
        assert await system_state.get(store.pool, "key") is None
        assert await system_state.swap(store.pool, "key", None, {"a": 1})
        assert not await system_state.swap(store.pool, "key", None, 5)
        assert not await system_state.swap(store.pool, "key", {"a": 2}, 5)
        assert await system_state.swap(store.pool, "key", {"a": 1}, 5)
        assert await system_state.get(store.pool, "key") == 5

    async def test_of_many_swaps_one_wins(self, store: Store) -> None:
        for expected in (None, 0):
            answers = await asyncio.gather(*[system_state.swap(store.pool, "key", expected, 0) for _ in range(8)])
            assert answers.count(True) == (1 if expected is None else 8)
        answers = await asyncio.gather(*[system_state.swap(store.pool, "key", 0, n) for n in range(1, 9)])
        assert answers.count(True) == 1
