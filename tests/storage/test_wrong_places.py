"""Wrong numbers for names: whatever a process remembers of partitions, messages go where their names say.

The tests write wrong places straight into the directory, as a bad packet or a bug would. Each partition holds message 0
under the transactionId "0" from the start, so that a push which looks into the wrong partition would also see wrong
duplicates.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from queenmq.domain.ids import new_segment_base, partition_tag
from queenmq.domain.segments import Place, PushItem, Verdict
from queenmq.storage.pop import PopRequest, PopResult, pop
from queenmq.storage.store import Store
from tests.conftest import Server
from tests.storage.shorthand import ack_of, cursor

Name = tuple[str, str]
Places = dict[Name, Place]
Way = Callable[[Store, Sequence[PushItem]], Awaitable[list[Verdict]]]

AX, AY, BX = NAMES = [("a", "x"), ("a", "y"), ("b", "x")]
GROUP = "g"


def numbered(place: Place, other: Place) -> Place:
    """A place with the number of another partition."""
    return place._replace(partition_id=other.partition_id, uid=other.uid)


KINDS: dict[str, Callable[[Places], Places]] = {
    "two of one queue": lambda p: {AX: numbered(p[AX], p[AY]), AY: numbered(p[AY], p[AX])},
    "two of different queues": lambda p: {AX: numbered(p[AX], p[BX]), BX: numbered(p[BX], p[AX])},
    "whole places": lambda p: {AX: p[BX], BX: p[AX]},
    "one for all": lambda p: {name: numbered(p[name], p[AX]) for name in NAMES},
    "nobody's": lambda p: {AY: p[AY]._replace(partition_id=2**40)},
}
BOUNDED = {"maxSize": 100}
ENCRYPTED = {"encryptionEnabled": True}


@pytest.fixture
def server(embedded_server: Server) -> Server:
    """What is tested here does not depend on PostgreSQL's version."""
    return embedded_server


class Wrapping:
    """Stands for encryption: one can see that it was applied, and to what."""

    def seal(self, payloads: list[bytes]) -> list[bytes]:
        return [b'{"sealed":%s}' % payload for payload in payloads]


def item(name: Name, number: int) -> PushItem:
    return PushItem(name[0], b'"%s/%s/%d"' % (name[0].encode(), name[1].encode(), number), name[1], str(number))


async def prepare(plain: Store, options: dict[str, Any]) -> tuple[Store, Places]:
    """Message 0 in every partition; the options are those of queue a."""
    store = Store(plain.pool, Wrapping())
    await store.configure("a", **options)
    await store.push([item(name, 0) for name in NAMES])
    return store, dict(zip(NAMES, await store.directory.partitions(store.pool, NAMES), strict=True))


def poison(store: Store, wrong: Places) -> None:
    store.directory.configs.remove_all(queue for queue, _ in wrong)  # or it would notice some of it by itself
    for name, place in wrong.items():
        store.directory._remember([name], [(1, *place)])


async def stored(store: Store) -> dict[Name, list[tuple[int, str, str, bool]]]:
    rows = await store.pool.fetch(
        "select queue, partition, seq, transaction_id, payload, encrypted from queen.messages"
    )
    found: dict[Name, list[tuple[int, str, str, bool]]] = {name: [] for name in NAMES}
    for queue, partition, seq, tx, payload, encrypted in rows:
        content = msgspec.json.decode(payload)
        text = content["sealed"] if encrypted else content
        found[queue, partition].append((seq, tx, text, encrypted))
    return {name: sorted(messages) for name, messages in found.items()}


async def one_by_one(store: Store, items: Sequence[PushItem]) -> list[Verdict]:
    return [(await store.push([each]))[0] for each in items]


async def together(store: Store, items: Sequence[PushItem]) -> list[Verdict]:
    return await store.push(items)


async def transaction(store: Store, items: Sequence[PushItem]) -> list[Verdict]:
    return (await store.commit(store.transaction(pushes=items))).pushes


WAYS: list[tuple[Way, dict[str, Any]]] = [
    (one_by_one, {}),
    (one_by_one, ENCRYPTED),
    (together, BOUNDED),
    (together, ENCRYPTED),
    (transaction, BOUNDED),
]


class TestPush:
    @pytest.mark.parametrize(("way", "options"), WAYS, ids=lambda given: getattr(given, "__name__", str(given)))
    @pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
    async def test_every_message_ends_in_the_partition_of_its_name_in_order_once(
        self, store: Store, kind: Callable[[Places], Places], way: Way, options: dict[str, Any]
    ) -> None:
        store, places = await prepare(store, options)
        poison(store, kind(places))
        verdicts = await way(store, [item(name, number) for number in (1, 2, 0) for name in NAMES])
        assert [(v.status, v.partition_id, v.seq) for v in verdicts] == [
            (status, places[name].uid, seq)
            for status, seq in (("queued", 2), ("queued", 3), ("duplicate", 1))
            for name in NAMES
        ]
        found = await stored(store)
        for name in NAMES:
            expected = [(n + 1, str(n), f"{name[0]}/{name[1]}/{n}") for n in range(3)]
            assert [message[:3] for message in found[name]] == expected
        if options == ENCRYPTED:
            assert all(message[3] for name in (AX, AY) for message in found[name])

    @pytest.mark.parametrize("way", [together, transaction])
    async def test_a_full_queue_refuses_only_what_is_for_it(self, store: Store, way: Way) -> None:
        """One message has room in queue a; the other one only looks as if it were for it."""
        store, places = await prepare(store, {"maxSize": 3})
        await store.configure("b", maxSize=100)
        poison(store, {BX: numbered(places[BX], places[AX])})
        verdicts = await way(store, [item(AY, 1), item(BX, 1)])
        assert [verdict.status for verdict in verdicts] == ["queued", "queued"]
        assert [len(messages) for messages in (await stored(store)).values()] == [1, 2, 2]

    @pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
    async def test_a_queue_that_is_full_stays_so(self, store: Store, kind: Callable[[Places], Places]) -> None:
        store, places = await prepare(store, {"maxSize": 2})
        poison(store, kind(places))
        verdicts = await store.push([item(name, 1) for name in NAMES])
        assert [verdict.status for verdict in verdicts] == ["queue_full", "queue_full", "queued"]
        assert [len(messages) for messages in (await stored(store)).values()] == [1, 1, 2]

    async def test_the_acks_of_a_transaction_count_once(self, store: Store) -> None:
        store, places = await prepare(store, {})
        won = (await store.pop("b", GROUP)).claims[0]
        poison(store, KINDS["two of one queue"](places))
        done = await store.commit(store.transaction([ack_of(won, 1, group=GROUP)], [item(AX, 1)]))
        assert [result.success for result in done.acks] == [True]
        row = await cursor(store, "x", GROUP, "b")
        assert (row["acked_seq"], row["consumed"], row["lease_id"]) == (1, 1, None)

    async def test_pieces_of_a_large_push_are_checked_too(self, store: Store) -> None:
        store, places = await prepare(store, {})
        poison(store, KINDS["two of one queue"](places))
        large = [PushItem("a", b'"%s"' % (b"%d" % n * 150_000), "x", str(n)) for n in range(1, 4)]
        assert [verdict.status for verdict in await store.push(large)] == ["queued"] * 3
        assert [tx for _, tx, _, _ in (await stored(store))[AX]] == ["0", "1", "2", "3"]


class TestPop:
    @staticmethod
    async def pop(store: Store, *requests: tuple[int, Name], auto_ack: bool = False) -> list[PopResult]:
        """Each for a partition by its number and the name that it is taken for."""
        group = await store.pool.fetchval("select group_id from queen.register_group_v1('a', $1, 'all', null)", GROUP)
        asked = [PopRequest([group], pid, 10, auto_ack=auto_ack, tag=partition_tag(*name)) for pid, name in requests]
        return await pop(store.pool, asked)

    @pytest.mark.parametrize("auto_ack", [True, False])
    @pytest.mark.parametrize("options", [{}, {"delayedProcessing": 1}, {"ttl": 1000}], ids=str)
    async def test_the_number_of_another_partition_takes_nothing(
        self, store: Store, options: dict[str, Any], auto_ack: bool
    ) -> None:
        store, places = await prepare(store, {})
        await self.pop(store, (places[AX].partition_id, AY))  # the group is there, and its cursors
        await store.configure("a", **options)
        before = [await cursor(store, name[1], GROUP, "a") for name in (AX, AY)]
        wrong = (places[AX].partition_id, AY), (places[AY].partition_id, AX), (places[BX].partition_id, AX), (2**40, AX)
        for result in await self.pop(store, *wrong, auto_ack=auto_ack):
            assert (result.claims, result.reason, result.ready_in) == ([], "unknown_partition", None)
        assert [await cursor(store, name[1], GROUP, "a") for name in (AX, AY)] == before

    @pytest.mark.parametrize("auto_ack", [True, False])
    async def test_it_does_not_disturb_who_has_the_right_one(self, store: Store, auto_ack: bool) -> None:
        store, places = await prepare(store, {})
        pid = places[AX].partition_id
        wrong, right, late = await self.pop(store, (pid, AY), (pid, AX), (pid, AY), auto_ack=auto_ack)
        assert [message.payload for message in right.messages()] == [b'"a/x/0"']
        assert (wrong.reason, late.reason) == ("unknown_partition", "unknown_partition")

    async def test_nothing_to_deliver_is_still_empty(self, store: Store) -> None:
        store, places = await prepare(store, {})
        pid = places[AX].partition_id
        assert len((await self.pop(store, (pid, AX)))[0].claims) == 1
        [leased] = await self.pop(store, (pid, AX))
        assert leased.reason == "empty"
        assert leased.ready_in is not None


class TestUnchecked:
    """Rows made before there were tags have none, and callers from then give none."""

    async def test_partitions_without_a_tag_work_as_ever(self, store: Store) -> None:
        store, places = await prepare(store, {})
        await store.pool.execute("update queen.partition_lookup set tag = null")
        assert [v.seq for v in await store.push([item(AX, 1)])] == [2]
        assert [v.seq for v in await store.push([item(AX, 2), item(AY, 1)])] == [3, 2]
        [result] = await TestPop.pop(store, (places[AX].partition_id, AX))
        assert [message.payload for message in result.messages()] == [b'"a/x/0"', b'"a/x/1"', b'"a/x/2"']
        assert await store.pool.fetch("select * from queen.partition_lookup_check()") == []

    @pytest.mark.parametrize(
        "call",
        [
            "queen.push_segment_v1($1, 1, $2, $2, null, '1', null, null, null, array[$2::uuid], null, null)",
            "queen.push_v1(array[$1::bigint], '{1}', array[$2::uuid], array[$2::uuid], '{null}', '{1}', null, null,"
            " null, array[$2::uuid], '{0}', '{}', null, null)",
            "queen.transaction_v1('{}', false, '{}', '{}', '{}', '{}', array[$1::bigint], '{1}', array[$2::uuid],"
            " array[$2::uuid], '{null}', '{1}', null, null, null, array[$2::uuid], '{0}', '{}', null, null)",
        ],
    )
    async def test_calls_without_tags_are_served(self, store: Store, call: str) -> None:
        store, places = await prepare(store, {})
        await store.pool.execute(f"select * from {call}", places[AX].partition_id, new_segment_base())
        count = await store.pool.fetchval(
            "select count(*) from queen.segments where partition_id = $1", places[AX].partition_id
        )
        assert count == 2
