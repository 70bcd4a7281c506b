"""The ground of the state machine test: its store, the queues of one example, and the comparison with the model."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Coroutine
from typing import Any, ClassVar, NamedTuple, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from queenmq.domain.segments import PushItem
from queenmq.storage.push import Verdict
from queenmq.storage.store import Store
from tests.storage.model import Cursor, Message, Model, Moment, Partition, Queue

T = TypeVar("T")
DAY_MS = 86_400_000
Planned = list[tuple[Message, PushItem]]

CURSORS = """
    select q.name as queue, g.name as "group", p.name as partition, c.acked_seq, c.lease_id::text, c.lease_to,
           c.last_lease_id::text, c.last_lease_to, c.retries, c.isolate, c.batch_limit, c.ready_at is null as drained
    from queen.partition_consumers c join queen.partitions p using (partition_id)
    join queen.queues q on q.queue_id = p.queue_id join queen.consumer_groups_metadata g using (group_id)
    where q.name like $1
"""
PARTITIONS = """
    select q.name as queue, p.name as partition from queen.partitions p join queen.queues q using (queue_id)
    where q.name like $1
"""
DEAD_LETTERS = """
    select q.name as queue, d.partition_name as partition, d.consumer_group, d.seq, d.retry_count, d.error_message,
           convert_from(d.data, 'UTF8')::int as payload
    from queen.dead_letter_queue d join queen.queues q using (queue_id) where q.name like $1
"""
DISCARDED = """
    select queue_name, partition_name, consumer_group, sum(messages)::int as n from queen.retention_history
    where kind = 'discarded' and queue_name like $1 group by 1, 2, 3
"""
BROKEN_SEQUENCES = """
    select * from (
        select s.partition_id, s.last_seq - s.n as below, lag(s.last_seq, 1, 0::bigint) over w as before,
               s.created_at, lag(s.created_at) over w as earlier
        from queen.segments s join queen.partitions p using (partition_id) join queen.queues q using (queue_id)
        where q.name like $1 window w as (partition by s.partition_id order by s.last_seq)) x
    where below <> before or created_at < earlier
"""


class World:
    """One event loop and one store for all examples."""

    def __init__(self, opening: Coroutine[Any, Any, Store]) -> None:
        self._runner = asyncio.Runner()
        self.store = self.run(opening)
        self.examples = itertools.count(1)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def close(self) -> None:
        self.run(self.store.close())
        self._runner.close()


class Handle(NamedTuple):
    """A delivery: what an ack may refer to later, when its lease is current, ended or stolen, or its queue deleted."""

    queue: Queue
    partition: Partition
    group: str
    lease: str | None
    first: int

    def is_gone(self) -> bool:
        return self.queue.partitions.get(self.partition.name) is not self.partition


class Machine(RuleBasedStateMachine):
    world: ClassVar[World]

    @initialize(
        limits=st.tuples(st.integers(0, 2), st.integers(0, 2)),
        delays=st.tuples(st.sampled_from([0, DAY_MS]), st.sampled_from([0, DAY_MS])),
        letters=st.tuples(st.booleans(), st.booleans()),
        endless=st.sampled_from([False, False, True]),
    )
    def begin(
        self, limits: tuple[int, int], delays: tuple[int, int], letters: tuple[bool, bool], endless: bool
    ) -> None:
        self.store = self.world.store
        self.prefix = f"m{next(self.world.examples)}."
        self.numbers = itertools.count(1)
        self.handles: list[Handle] = []
        self.ids: dict[tuple[Partition, int], str] = {}
        self.model = Model(
            [
                Queue(f"{self.prefix}a", limits[0], delays[0], letters[0], True),
                Queue(f"{self.prefix}b", limits[1], delays[1], letters[1], not endless),
            ]
        )
        for queue in self.model.queues.values():
            self.create(queue)
        self.moments = [self.moment()]

    def create(self, queue: Queue) -> None:
        self.run(
            self.store.configure(
                queue.name,
                retryLimit=queue.retry_limit,
                retryDelay=queue.retry_delay,
                deadLetterQueue=queue.dead_letter_queue,
                dlqAfterMaxRetries=queue.dlq_after_max_retries,
            )
        )
        self.model.ensure_partition(queue, "Default")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.world.run(work)

    def sql(self, query: str, *args: object) -> list[Any]:
        return self.run(self.store.pool.fetch(query, *args))

    def moment(self) -> Moment:
        return self.model.moment(self.sql("select clock_timestamp() as t")[0]["t"])

    def queue(self, name: str) -> Queue:
        return self.model.queues[self.prefix + name]

    def recent(self, back: int) -> Handle:
        return self.handles[-1 - back % len(self.handles)]

    def plan(self, items: list[tuple[str, str, str | None]]) -> Planned:
        planned = []
        for queue, partition, tx in items:
            message = Message(next(self.numbers), tx)
            planned.append((message, PushItem(self.prefix + queue, str(message.payload).encode(), partition, tx)))
        return planned

    def pushed(self, planned: Planned, verdicts: list[Verdict]) -> None:
        """Each verdict is the model's, and the messages stand where the model puts them."""
        for queue in self.model.queues.values():
            mine = [n for n, (_, item) in enumerate(planned) if item.queue == queue.name]
            expected = self.model.push(queue, [(planned[n][1].partition or "", planned[n][0]) for n in mine])
            assert [verdicts[n].status for n in mine] == expected
            for n in mine:
                partition, verdict = queue.partitions[planned[n][1].partition or ""], verdicts[n]
                partition.uid = verdict.partition_id
                assert verdict.seq is not None
                assert verdict.message_id is not None
                if verdict.status == "queued":
                    assert partition.messages[verdict.seq - 1] == planned[n][0]
                    self.ids[partition, verdict.seq] = verdict.message_id
                else:
                    assert self.ids[partition, verdict.seq] == verdict.message_id

    @invariant()
    def cursors_are_as_in_the_model(self) -> None:
        rows = {(row["queue"], row["group"], row["partition"]): row for row in self.sql(CURSORS, self.prefix + "%")}
        expected = {
            (queue.name, group.name, cursor.partition.name): cursor
            for queue in self.model.queues.values()
            for group in queue.groups.values()
            for cursor in group.cursors.values()
        }
        assert rows.keys() == expected.keys()
        for key, cursor in expected.items():
            assert (key, *_stored(rows[key], cursor)) == (key, *_modelled(cursor))

    @invariant()
    def dead_letters_are_as_in_the_model(self) -> None:
        expected = [
            (
                queue.name,
                p.name,
                death.group,
                death.seq,
                death.retry_count,
                death.error,
                p.messages[death.seq - 1].payload,
            )
            for queue in self.model.queues.values()
            for death in self.model.dead.values()
            if (p := death.partition) in queue.partitions.values()
        ]
        assert sorted(tuple(row) for row in self.sql(DEAD_LETTERS, self.prefix + "%")) == sorted(expected)
        assert (
            Counter({tuple(row)[:3]: row["n"] for row in self.sql(DISCARDED, self.prefix + "%")})
            == self.model.discarded
        )

    def check_storage(self) -> None:
        """What must hold of the tables, whatever happened."""
        assert self.sql(BROKEN_SEQUENCES, self.prefix + "%") == []
        assert self.sql("select * from queen.partition_lookup_check()") == []
        stored = self.sql(
            "select queue, partition, payload::int as n from queen.messages where queue like $1 order by seq",
            self.prefix + "%",
        )
        for queue in self.model.queues.values():
            for partition in queue.partitions.values():
                got = [row["n"] for row in stored if (row["queue"], row["partition"]) == (queue.name, partition.name)]
                assert got == [message.payload for message in partition.messages]


def _stored(row: Any, cursor: Cursor) -> tuple[object, ...]:
    return (
        0 if cursor.unresolved else row["acked_seq"],
        row["lease_id"],
        row["lease_to"] or 0,
        row["last_lease_id"] and (row["last_lease_id"], row["last_lease_to"]),
        {int(seq): count for seq, count in json.loads(row["retries"] or "{}").items()},
        row["isolate"],
        row["batch_limit"] if row["retries"] else None,
        row["drained"],
    )


def _modelled(cursor: Cursor) -> tuple[object, ...]:
    return (
        0 if cursor.unresolved else cursor.acked,
        cursor.lease,
        cursor.lease_to,
        cursor.last_lease and (cursor.last_lease, cursor.last_lease_to),
        cursor.retries,
        cursor.isolate,
        cursor.batch_limit,
        cursor.ready is None,
    )
