"""What is remembered of names: how many statements that spares, how much room it takes, and that one asks for many."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import asyncpg
import pytest
from msgspec import structs

from queenmq.domain.queue_configs import QueueConfigs
from queenmq.domain.segments import PushItem
from queenmq.storage.directory import Directory, GroupPlace
from queenmq.storage.pool import connect
from queenmq.storage.pop import register
from queenmq.storage.push import push
from queenmq.storage.queue_configs import config_of, load_config, load_configs
from queenmq.storage.store import Store
from tests.conftest import Server
from tests.storage.statements import Counted, statements

MANY = 1000


@pytest.fixture
def server(embedded_server: Server) -> Server:
    """Nothing here depends on PostgreSQL's version."""
    return embedded_server


@pytest.fixture
async def db(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture
def counted(store: Store) -> Counted:
    return Counted(store.pool)


def items(*names: str) -> list[PushItem]:
    """One message for each of these, written queue/partition."""
    return [PushItem(queue, b"1", partition) for queue, _, partition in (name.partition("/") for name in names)]


class TestStatements:
    async def test_a_push_takes_one_once_its_names_are_known(self, db: asyncpg.Connection) -> None:
        directory = Directory()
        pushes = [items("a/p"), items("a/p", "a/q", "b/p")]
        for each in pushes:
            await push(db, directory, each)
        async with statements(db) as seen:
            for each in pushes:
                await push(db, directory, each)
        assert seen == ["push_segment", "push"]

    async def test_a_first_push_asks_once_for_all_its_names(self, counted: Counted) -> None:
        directory = Directory()
        await push(counted, directory, items("a/p", "a/q", "b/p", "c/p"))
        assert counted.new() == ["find_partitions", "ensure_partitions", "queue_configs_of", "push"]
        await push(counted, directory, items("a/p", "a/r", "b/q"))
        assert counted.new() == ["find_partitions", "ensure_partitions", "push"]

    async def test_what_others_have_made_is_found(self, store: Store, counted: Counted) -> None:
        await store.push(items("a/p", "b/p"))
        await push(counted, Directory(), items("a/p", "b/p"))
        assert counted.new() == ["find_partitions", "queue_configs_of", "push"]

    async def test_only_an_unknown_configuration_is_asked_for(self, store: Store, counted: Counted) -> None:
        await store.push(items("a/p", "b/p"))
        store.directory.configs.remove("a")
        await push(counted, store.directory, items("a/p", "b/p"))
        assert counted.new() == ["queue_configs_of", "push"]
        assert store.directory.configs.get("a") == await load_config(store.pool, "a")

    async def test_another_configuration_takes_none(self, counted: Counted) -> None:
        directory = Directory()
        [before] = await directory.partitions(counted, [("a", "p")])
        known = directory.configs.snapshot["a"]
        counted.new()
        directory.configs.put("a", structs.replace(known, version=known.version + 1, max_size=5))
        [after] = await directory.partitions(counted, [("a", "p")])
        assert counted.new() == []
        assert after == before._replace(bounded=True)

    async def test_a_queue_that_others_made_anew_costs_no_refused_push(self, store: Store, counted: Counted) -> None:
        """Its configuration arrives before the first push: what is remembered of the partition is of another queue."""
        directory = Directory()
        await push(counted, directory, items("a/p"))
        await store.delete_queue("a")
        directory.configs.put("a", config_of(await store.configure("a", maxSize=7)))
        counted.new()
        assert [verdict.status for verdict in await push(counted, directory, items("a/p"))] == ["queued"]
        assert counted.new() == ["find_partitions", "ensure_partitions", "push_segment"]

    async def test_a_queue_that_others_made_anew_unnoticed_costs_one(self, store: Store, counted: Counted) -> None:
        directory = Directory()
        await push(counted, directory, items("a/p"))
        await store.delete_queue("a")
        await store.configure("a", maxSize=7)
        counted.new()
        assert [verdict.status for verdict in await push(counted, directory, items("a/p"))] == ["queued"]
        found = ["find_partitions", "ensure_partitions", "queue_configs_of"]
        assert counted.new() == ["!push_segment", *found, "push_segment"]
        assert directory.configs.get("a") == await load_config(store.pool, "a")

    @pytest.mark.parametrize("configs", [None, QueueConfigs()])
    async def test_when_it_is_off_every_push_asks_for_everything(
        self, counted: Counted, configs: QueueConfigs | None
    ) -> None:
        directory = Directory(configs=configs, enabled=False)
        await push(counted, directory, items("a/p"))
        counted.new()
        for _ in range(2):
            await push(counted, directory, items("a/p"))
            await register(counted, directory, "a", "g", mode="all", start=None)
        assert counted.new() == ["find_partitions", "queue_configs_of", "push_segment", "register_group"] * 2
        assert directory.stats()["size"] == 0


class TestManyAtOnce:
    """A thousand who miss the same name at the same moment are one question, as are ten thousand."""

    async def test_a_partition_that_nobody_has_made_yet(self, store: Store) -> None:
        db, directory = Counted(store.pool), Directory()
        places = await asyncio.gather(*[directory.partitions(db, [("a", "p")]) for _ in range(MANY)])
        assert len({place for [place] in places}) == 1
        assert db.seen == ["find_partitions", "ensure_partitions", "queue_configs_of"]

    async def test_a_partition_that_exists(self, store: Store) -> None:
        await store.push(items("a/p"))
        db, directory = Counted(store.pool), Directory()
        directory.configs.refresh(await load_configs(store.pool), directory.configs.snapshot)
        await asyncio.gather(*[directory.partitions(db, [("a", "p")]) for _ in range(MANY)])
        assert db.seen == ["find_partitions"]

    async def test_partitions_for_pops(self, store: Store) -> None:
        await store.push(items("a/p"))
        db, directory = Counted(store.pool), Directory()
        found = await asyncio.gather(*[directory.find(db, [("a", "p"), ("a", "none")]) for _ in range(MANY)])
        assert {tuple(names) for names in found} == {(("a", "p"),)}
        assert db.seen == ["find_partitions"]

    async def test_a_configuration(self, store: Store) -> None:
        await store.push(items("a/p"))
        db = Counted(store.pool)
        store.directory.configs.remove("a")
        await asyncio.gather(*[store.directory.partitions(db, [("a", "p")]) for _ in range(MANY)])
        assert db.seen == ["queue_configs_of"]

    async def test_a_group(self, store: Store) -> None:
        await store.push(items("a/p"))
        db, directory = Counted(store.pool), Directory()
        calls = [register(db, directory, "a", "g", mode="all", start=None) for _ in range(MANY)]
        assert len(set(await asyncio.gather(*calls))) == 1
        assert db.seen == ["register_group"]

    async def test_a_group_whose_subscription_some_leave_open(self, store: Store) -> None:
        """Who decides on it does not take the answer of who does not."""
        await store.push(items("a/p"))
        db, directory = Counted(store.pool), Directory()
        modes = [None, "all"] * 10
        places = await asyncio.gather(
            *[register(db, directory, "a", "g", mode=mode, start=None) for mode in modes],
        )
        assert [place is not None and place.decided for place in places] == [False, True] * 10
        assert db.seen == ["register_group"] * 2
        assert await store.pool.fetchval("select subscription_mode from queen.consumer_groups_metadata") == "all"

    async def test_one_broken_connection_fails_nobody_else(self, store: Store, dsn: str) -> None:
        broken = await connect(dsn)
        await broken.close()
        db, directory = Counted(store.pool), Directory()
        first = directory.partitions(broken, [("a", "p")])
        answers = await asyncio.gather(
            first, *[directory.partitions(db, [("a", "p")]) for _ in range(MANY)], return_exceptions=True
        )
        assert [isinstance(answer, Exception) for answer in answers] == [True] + [False] * MANY
        assert isinstance(answers[0], asyncpg.InterfaceError)
        assert db.seen == ["find_partitions", "ensure_partitions", "queue_configs_of"]


class TestForgetting:
    async def test_a_queue_goes_with_all_that_is_known_of_it_and_leaves_the_others(self, store: Store) -> None:
        directory = store.directory
        await store.push(items("a/p", "a/q", "b/p"))
        for queue in "ab":
            await store.pop(queue, "g")
        directory.forget_queue("a")
        assert (directory.group("a", "g"), directory.configs.get("a")) == (None, None)
        assert directory.group("b", "g") is not None
        db = Counted(store.pool)
        await directory.partitions(db, [("b", "p")])
        assert db.seen == []
        await directory.partitions(db, [("a", "p"), ("a", "q")])
        assert db.seen == ["find_partitions", "queue_configs_of"]

    async def test_a_partition_or_group_goes_alone(self, store: Store) -> None:
        directory = store.directory
        await store.push(items("a/p", "a/q"))
        await store.pop("a", "g")
        await store.pop("a", "h")
        directory.forget_partitions([("a", "p"), ("a", "none")])
        directory.forget_group("a", "g")
        assert (directory.stats()["size"], directory.group("a", "g")) == (1, None)
        assert directory.group("a", "h") is not None
        directory.forget_queue("a")
        assert (directory.stats()["size"], directory.group("a", "h")) == (0, None)

    async def test_a_deleted_queue_is_forgotten(self, store: Store) -> None:
        await store.push(items("a/p"))
        await store.delete_queue("a")
        assert (store.directory.stats()["size"], len(store.directory.configs)) == (0, 0)

    async def test_what_was_configured_here_is_known_here(self, store: Store) -> None:
        configured = await store.configure("a", leaseTime=7, ttl=9, maxSize=5, namespace="n", task="t")
        known = store.directory.configs.get("a")
        assert known == config_of(configured) == await load_config(store.pool, "a")
        assert known is not None
        assert (known.lease_time, known.ttl, known.bounded, known.namespace, known.task) == (7, 9, True, "n", "t")
        assert await load_configs(store.pool) == {"a": known}
        assert await load_config(store.pool, "none") is None


class TestRoom:
    async def test_the_least_recently_used_partition_is_forgotten_first(self, store: Store) -> None:
        directory = Directory(max_entries=2)
        for name in ("p", "q", "p", "r"):
            await directory.partitions(store.pool, [("a", name)])
        db = Counted(store.pool)
        await directory.partitions(db, [("a", "p"), ("a", "r")])
        assert db.seen == []
        assert directory.stats() == {
            "size": 2,
            "max_size": 2,
            "hits": 3,
            "misses": 3,
            "evictions": 1,
            "expirations": 0,
        }

    async def test_a_flush_may_have_more_partitions_than_are_remembered(self, db: asyncpg.Connection) -> None:
        verdicts = await push(db, Directory(max_entries=2), items(*[f"a/{n}" for n in range(9)]))
        assert [verdict.status for verdict in verdicts] == ["queued"] * 9

    async def test_no_entry_is_believed_for_longer_than_its_time(self, store: Store) -> None:
        directory = Directory(ttl=0)
        await directory.partitions(store.pool, [("a", "p")])
        directory.remember_group("a", "g", GroupPlace(1, 1, True))
        db = Counted(store.pool)
        await directory.partitions(db, [("a", "p")])
        assert (db.seen, directory.group("a", "g")) == (["find_partitions"], None)
        assert directory.stats()["expirations"] == 1

    async def test_groups_have_a_bound_too(self) -> None:
        directory = Directory(max_entries=2)
        for group in "abc":
            directory.remember_group("q", group, GroupPlace(1, 1, True))
        assert [directory.group("q", group) is not None for group in "abc"] == [False, True, True]

    async def test_ten_times_as_many_partitions_leave_no_more_behind_than_there_is_room(
        self, db: asyncpg.Connection
    ) -> None:
        room = 2_000
        await push(db, Directory(), items("a/p"))
        await db.execute(
            "insert into queen.partitions (queue_id, name)"
            " select queue_id, n::text from queen.queues, generate_series(1, 20000) n; analyze queen.partitions"
        )
        directory = Directory(max_entries=room)
        sizes = []
        tracemalloc.start()
        for start in range(1, 10 * room, room):
            await directory.partitions(db, [("a", str(n)) for n in range(start, start + room)])
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert directory.stats()["size"] == room
        assert max(sizes[3:]) < 1.5 * sizes[2] < room * 3_000


async def test_a_subscription_that_starts_at_a_time_is_registered_once(store: Store) -> None:
    await store.push(items("a/p"))
    db = Counted(store.pool)
    when = datetime(2030, 1, 1, tzinfo=UTC)
    for _ in range(2):
        await register(db, store.directory, "a", "g", mode="timestamp", start=when)
    assert db.seen == ["register_group"]
