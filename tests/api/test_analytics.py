"""Messages over time: from the messages that are stored, from roll-ups, and from both."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.http.routes import status
from queenmq.storage import analytics
from queenmq.storage.analytics import WIDTHS, RolledUp, ceiling, floor
from queenmq.storage.metrics import Bucket, RollupRow
from tests.api.serving import Api

NOW = datetime.now(UTC)
HOUR = timedelta(hours=1)
PATH = "/api/v1/status/analytics"


async def points(api: Api, **query: str) -> list[tuple[datetime, int]]:
    answer = await api.http.get(PATH, params=query)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return [(datetime.fromisoformat(point["timestamp"]), point["messages"]) for point in body["dataPoints"]]


async def counts(api: Api, **query: str) -> dict[datetime, int]:
    return {at: messages for at, messages in await points(api, **query) if messages}


async def move(api: Api, queue: str, partition: str, seq: int, moment: datetime) -> None:
    """The segment with this message was stored at that moment, and so was everything before it at the latest."""
    pool = api.broker.store.pool
    pid = await pool.fetchval(
        "select partition_id from queen.partitions p join queen.queues q using (queue_id)"
        " where q.name = $1 and p.name = $2",
        queue,
        partition,
    )
    await pool.execute(
        "update queen.segments set created_at = $3"
        " where partition_id = $1 and $2 between last_seq - n + 1 and last_seq",
        pid,
        seq,
        moment,
    )
    await pool.execute(
        "update queen.partition_lookup set last_message_created_at ="
        " (select max(created_at) from queen.segments s where s.partition_id = $1) where partition_id = $1",
        pid,
    )


def rolled(at: datetime, queue: str, messages: float, bucket: Bucket = "hour", host: str = "") -> RollupRow:
    return RollupRow(bucket, at, {"pushMessages": {"count": 1, "sum": messages}}, host, queue)


async def test_without_anything_asked_it_is_the_last_day_by_hours(api: Api) -> None:
    await api.push("orders", 1, 2, 3)
    answer = (await api.http.get(PATH)).json()
    assert set(answer) == {"dataPoints", "interval", "from", "to"}
    assert answer["interval"] == "hour"
    since, until = (datetime.fromisoformat(answer[name]) for name in ("from", "to"))
    assert until - since == 24 * HOUR
    assert len(answer["dataPoints"]) in (24, 25)
    assert answer["dataPoints"][0]["timestamp"] == since.strftime("%Y-%m-%dT%H:00:00.000Z")
    assert sum(point["messages"] for point in answer["dataPoints"]) == 3


@pytest.mark.parametrize("interval", ["minute", "hour", "day"])
async def test_stored_messages_are_counted_in_their_buckets(api: Api, interval: Bucket) -> None:
    """Against a count in Python, for partitions with few messages and for one with many."""
    rng = random.Random(1)
    width = WIDTHS[interval]
    expected: dict[datetime, int] = {}
    high = floor(NOW, interval) + width
    for partition, sizes in (("few", [2, 1, 3]), ("many", [600, 1, 700, 2, 900]), ("none", [1])):
        ago = sorted((rng.uniform(0, 8) for _ in sizes), reverse=True)
        last = 0
        for size, back in zip(sizes, ago, strict=True):
            await api.push("orders", *range(size), partition=partition)
            last += size
            moment = NOW + timedelta(days=-40) if partition == "none" else high - back * width
            await move(api, "orders", partition, last, moment)
            if partition != "none":
                expected[floor(moment, interval)] = expected.get(floor(moment, interval), 0) + size
    query = {"interval": interval, "from": (high - 8 * width).isoformat(), "to": high.isoformat()}
    found = await points(api, **query)
    assert [at for at, _ in found] == [high - n * width for n in range(8, 0, -1)]
    assert {at: n for at, n in found if n} == expected


async def test_what_retention_has_removed_is_not_counted_as_later(api: Api) -> None:
    await api.push("orders", 1, 2, 3)
    await api.push("orders", 4)
    pool = api.broker.store.pool
    await pool.execute("delete from queen.segments where last_seq = 3")
    await pool.execute("update queen.partition_lookup set trimmed_seq = 3")
    assert sum(n for _, n in await points(api)) == 1


async def test_queues_are_chosen_by_name_namespace_and_task(api: Api) -> None:
    for queue, namespace, task in (("a", "n1", "t1"), ("b", "n1", "t2"), ("c", "", "")):
        body = {"queue": queue, "namespace": namespace, "task": task}
        assert (await api.post("/api/v1/configure", body)).status_code == 200
        await api.push(queue, *range({"a": 1, "b": 10, "c": 100}[queue]))

    async def total(**query: str) -> int:
        return sum(n for _, n in await points(api, **query))

    assert await total() == 111
    assert await total(queue="b") == 10
    assert await total(namespace="n1") == 11
    assert await total(namespace="n1", task="t1") == 1
    assert await total(queue="c", task="t1") == 0
    assert await total(queue="nobody") == 0


async def test_old_hours_come_from_roll_ups_and_recent_ones_from_messages(api: Api) -> None:
    """Each part of the range has its source: where roll-ups are settled, stored messages are not asked."""
    pool = api.broker.store.pool
    settled = floor(NOW, "hour") - 2 * HOUR
    rows = [rolled(settled - n * HOUR, "orders", 10 * n) for n in range(1, 4)]
    others = [
        rolled(settled - HOUR, "other", 7),
        rolled(settled - HOUR, "orders", 10, host="a"),
        rolled(settled, "orders", 99),
    ]
    await analytics.merge_rollup(pool, [*rows, *others, RollupRow("hour", settled - HOUR, {"cpu": {"sum": 5}})])
    await analytics.put_rolled_up(pool, RolledUp(settled + 2 * HOUR, settled))
    for partition, moment in (("p1", settled - 2 * HOUR), ("p2", settled + HOUR / 2), ("p3", settled - 20 * HOUR)):
        await api.push("orders", 1, partition=partition)
        await move(api, "orders", partition, 1, moment)
    query = {"from": (settled - 30 * HOUR).isoformat(), "to": (settled + 2 * HOUR).isoformat(), "queue": "orders"}
    assert await counts(api, **query) == {
        settled - 20 * HOUR: 1,  # before anybody measured
        settled - 3 * HOUR: 30,
        settled - 2 * HOUR: 20,
        settled - HOUR: 10,
        settled: 1,  # the roll-up of it is not settled
    }
    del query["queue"]
    assert (await counts(api, **query))[settled - HOUR] == 17


async def test_namespaces_choose_roll_ups_too(api: Api) -> None:
    pool = api.broker.store.pool
    await api.post("/api/v1/configure", {"queue": "a", "namespace": "n"})
    at = floor(NOW, "day") - timedelta(days=3)
    await analytics.merge_rollup(pool, [rolled(at, "a", 5, "day"), rolled(at, "gone", 6, "day")])
    await analytics.put_rolled_up(pool, RolledUp(NOW, NOW))
    query = {"from": at.isoformat(), "to": (at + timedelta(days=1)).isoformat(), "interval": "day"}
    assert await points(api, **query) == [(at, 11)]
    assert await points(api, **query, namespace="n") == [(at, 5)]


@pytest.mark.parametrize(
    ("query", "field", "said"),
    [
        ({"interval": "week"}, "interval", "interval must be minute, hour or day, not 'week'"),
        ({"from": "yesterday"}, "from", "from must be an ISO 8601 time, not 'yesterday'"),
        ({"to": "0001-01-01"}, "to", "to must be a time from 1970 to 9999"),
        ({"to": "9999-12-31T23:59:59-12:00"}, "to", "to must be"),
        ({"from": "2026-01-02", "to": "2026-01-01"}, "from", "from must be a time before to"),
        ({"from": "2026-01-01", "to": "2026-01-01"}, "from", "from must be a time before to"),
        ({"from": "2025-01-01", "to": "2026-01-01", "interval": "minute"}, "from", "at most 10000 minutes before to"),
        ({"queue": "x" * 256}, "queue", "queue must be a text"),
        ({"task": "a\x00"}, "task", "task must be a text"),
    ],
)
async def test_what_cannot_be_answered_is_refused(api: Api, query: dict[str, str], field: str, said: str) -> None:
    answer = await api.http.get(PATH, params=query)
    assert answer.status_code == 400, answer.text
    assert (answer.json()["code"], answer.json()["field"]) == ("invalid_value", field)
    assert said in answer.json()["error"]


async def test_a_plus_that_was_not_encoded_is_understood(api: Api) -> None:
    answer = await api.http.get(f"{PATH}?from=2026-01-01T02:00:00+02:00&to=2026-01-01T01:00:00Z")
    assert answer.json()["from"] == "2026-01-01T00:00:00.000Z"


async def test_a_question_that_takes_too_long_is_given_up(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = await api.broker.store.pool.acquire()
    transaction = blocker.transaction()
    await transaction.start()
    try:
        await blocker.execute("lock table queen.segments")
        monkeypatch.setattr(status, "PATIENCE", 0.2)
        answer = await api.http.get(PATH)
        assert (answer.status_code, answer.json()["code"]) == (503, "too_expensive")
        assert "rollup" in answer.json()["error"]
    finally:
        await transaction.rollback()
        await api.broker.store.pool.release(blocker)
    assert (await api.http.get(PATH)).status_code == 200


@given(st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)), st.sampled_from(["minute", "hour", "day"]))
def test_buckets_begin_where_the_clock_says(naive: datetime, bucket: Any) -> None:
    moment = naive.replace(tzinfo=UTC)
    cut: dict[str, int] = {"second": 0, "microsecond": 0}
    cut |= {} if bucket == "minute" else {"minute": 0}
    cut |= {"hour": 0} if bucket == "day" else {}
    start = moment.replace(**cut)  # type: ignore[arg-type]
    assert floor(moment, bucket) == start
    assert ceiling(moment, bucket) == (start if start == moment else start + WIDTHS[bucket])
