"""The books of the stress test: what writers were told, what readers settled, and whether the database agrees."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from queenmq.storage.store import Store
from tests.storage.machine import BROKEN_SEQUENCES

STORED = """
    select partition, seq, payload ->> 'w' as writer, (payload ->> 'n')::int as n from queen.messages
    where queue = $1 order by partition, seq
"""
STUCK = """
    select g.name as "group", p.name as partition, c.acked_seq, l.last_seq, c.ready_at, c.lease_id
    from queen.partition_consumers c join queen.partition_lookup l using (partition_id)
    join queen.partitions p using (partition_id) join queen.consumer_groups_metadata g using (group_id)
    join queen.queues q on q.queue_id = p.queue_id where q.name = $1 and c.acked_seq < l.last_seq
"""
ASLEEP = """
    select g.name as "group", p.name as partition, c.acked_seq, l.last_seq
    from queen.partition_consumers c join queen.partition_lookup l using (partition_id)
    join queen.partitions p using (partition_id) join queen.consumer_groups_metadata g using (group_id)
    where c.ready_at is null and c.acked_seq < l.last_seq
"""
DEAD = """
    select d.consumer_group as "group", d.partition_name as partition, d.seq, m.payload ->> 'w' as writer,
           (m.payload ->> 'n')::int as n
    from queen.dead_letter_queue d join queen.queues q using (queue_id),
    lateral (select convert_from(d.data, 'UTF8')::jsonb as payload) m where q.name = $1
"""

Payload = tuple[str, int]
"""Who wrote a message, and his how-manieth it is in that partition's order."""


@dataclass
class Ledger:
    """`written` are the messages whose push was answered and committed; `settled` what each group has acknowledged."""

    queue: str
    written: dict[str, set[Payload]] = field(default_factory=lambda: defaultdict(set))
    settled: dict[tuple[str, str], list[tuple[int, Payload]]] = field(default_factory=lambda: defaultdict(list))
    leases: dict[tuple[str, str], list[tuple[datetime, int]]] = field(default_factory=lambda: defaultdict(list))
    dead: set[tuple[str, str, int]] = field(default_factory=set)

    async def check(self, store: Store) -> None:
        """Nothing lost, nothing twice, nothing out of order, nobody asleep."""
        rows = await store.pool.fetch(STORED, self.queue)
        stored: dict[str, dict[int, Payload]] = defaultdict(dict)
        for row in rows:
            stored[row["partition"]][row["seq"]] = (row["writer"], row["n"])
        self._check_pushes(stored)
        dead = await store.pool.fetch(DEAD, self.queue)
        self._check_deliveries(stored, dead, await self._groups(store))
        assert await store.pool.fetch(BROKEN_SEQUENCES, self.queue) == []
        assert await store.pool.fetch("select * from queen.partition_lookup_check()") == []
        assert await store.pool.fetch(STUCK, self.queue) == []

    async def _groups(self, store: Store) -> list[str]:
        rows = await store.pool.fetch(
            "select g.name from queen.consumer_groups_metadata g join queen.queues q using (queue_id)"
            " where q.name = $1",
            self.queue,
        )
        return [row["name"] for row in rows]

    def _check_pushes(self, stored: dict[str, dict[int, Payload]]) -> None:
        assert stored.keys() == self.written.keys()
        for partition, messages in stored.items():
            assert len(set(messages.values())) == len(messages), "stored twice"
            assert set(messages.values()) == self.written[partition], "lost, or kept after a rollback"
            latest: dict[str, int] = {}
            for _, (writer, n) in sorted(messages.items()):
                assert n > latest.get(writer, -1), f"{writer}'s messages changed places in {partition}"
                latest[writer] = n

    def _check_deliveries(self, stored: dict[str, dict[int, Payload]], dead: list[Any], groups: list[str]) -> None:
        letters = {(row["group"], row["partition"], row["seq"]): (row["writer"], row["n"]) for row in dead}
        for (_, partition, seq), payload in letters.items():
            assert stored[partition][seq] == payload
        assert self.dead <= letters.keys()
        for group in groups:
            for partition, messages in stored.items():
                settled = self.settled[group, partition] + [
                    (seq, payload) for (g, p, seq), payload in letters.items() if (g, p) == (group, partition)
                ]
                assert len(settled) == len(dict(settled)), f"{group} settled a message of {partition} twice"
                assert dict(settled) == messages, f"{group} missed a message of {partition}"
                turns = [first for _, first in sorted(self.leases[group, partition])]
                assert turns == sorted(turns), f"{group} read {partition} out of order"
