"""What is remembered of a queue may be wrong in every way, and a client does not notice: the database decides.

Each test poisons the memory with a configuration that no database has said, and then does what clients do.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import pytest
from msgspec import Raw, structs

from queenmq.domain.cipher import Cipher, EncryptionUnavailable
from queenmq.domain.segments import PushItem, Verdict
from queenmq.engine.broker import Broker
from queenmq.engine.config import EngineConfig
from queenmq.engine.requests import PopAsk
from queenmq.storage.errors import QueueFull
from queenmq.storage.push import push
from queenmq.storage.queue_configs import load_config
from queenmq.storage.store import Store
from queenmq.wire.requests import PushEntry
from tests.conftest import Server
from tests.storage.statements import Counted

QUEUE = "orders"
SECRET = b'"canary"'
CIPHER = Cipher(bytes(range(32)))
PLAIN: dict[str, Any] = {}
BOUNDED: dict[str, Any] = {"maxSize": 100}
ENCRYPTED: dict[str, Any] = {"encryptionEnabled": True}
BOTH = BOUNDED | ENCRYPTED
POISONS: list[dict[str, Any]] = [
    {"max_size": 0},
    {"max_size": 1},
    {"encryption_enabled": False},
    {"encryption_enabled": True},
    {"max_size": 0, "encryption_enabled": False},
    {"max_size": 1, "encryption_enabled": True},
    {"queue_id": 99_999_999},
    {"lease_time": 1},
    {"version": 99_999_999, "max_size": 0, "encryption_enabled": False},
]
How = Literal["push", "transaction"]
HOWS: Final[tuple[How, ...]] = ("push", "transaction")

real = pytest.mark.parametrize("real", [PLAIN, BOUNDED, ENCRYPTED, BOTH], ids=["plain", "bounded", "encrypted", "both"])
wrong = pytest.mark.parametrize("wrong", POISONS, ids=str)
how = pytest.mark.parametrize("how", HOWS)


@pytest.fixture
def server(embedded_server: Server) -> Server:
    """Nothing here depends on PostgreSQL's version."""
    return embedded_server


@pytest.fixture
def keeper(store: Store) -> Store:
    """A store with a key."""
    return Store(store.pool, CIPHER)


async def poison(store: Store, queue: str = QUEUE, **wrong: Any) -> None:
    config = await load_config(store.pool, queue)
    assert config is not None
    store.directory.configs.force(queue, structs.replace(config, **wrong))


async def send(store: Store, how: How, *partitions: str, queue: str = QUEUE) -> list[Verdict]:
    items = [PushItem(queue, SECRET, partition) for partition in partitions or ("p",)]
    if how == "push":
        return await store.push(items)
    return (await store.commit(store.transaction(pushes=items))).pushes


async def contents(store: Store, queue: str = QUEUE) -> tuple[list[bytes], set[bool]]:
    """The messages of a queue as a consumer with the key reads them, and whether they are stored sealed."""
    popped = (await store.pop(queue, batch=100, partitions=100)).messages()
    texts = [CIPHER.decrypt(message.payload) if message.encrypted else message.payload for message in popped]
    return texts, {message.encrypted for message in popped}


@real
@wrong
async def test_nothing_is_refused_lost_or_stored_as_it_must_not_be(
    keeper: Store, real: dict[str, Any], wrong: dict[str, Any]
) -> None:
    """The first time its partitions are not known; then they are, and their places are made with the wrong values."""
    await keeper.configure(QUEUE, **real)
    verdicts = []
    for partitions in (["p", "q"], ["p", "q"], ["p"]):
        for how in HOWS:
            await poison(keeper, **wrong)
            verdicts += await send(keeper, how, *partitions)
    assert [verdict.status for verdict in verdicts] == ["queued"] * 10
    texts, sealed = await contents(keeper)
    assert texts == [SECRET] * 10
    if real.get("encryptionEnabled"):
        assert sealed == {True}
    elif not wrong.get("encryption_enabled"):
        assert sealed == {False}


@pytest.mark.parametrize(
    ("real", "wrong"),
    [
        (BOUNDED, {"max_size": 0}),
        (ENCRYPTED, {"encryption_enabled": False}),
        (PLAIN, {"queue_id": 99_999_999}),
        (BOTH, {"version": 99_999_999, "max_size": 0}),
    ],
    ids=str,
)
async def test_what_the_database_contradicts_is_put_right(
    keeper: Store, real: dict[str, Any], wrong: dict[str, Any]
) -> None:
    await keeper.configure(QUEUE, **real)
    for how in HOWS:
        await poison(keeper, **wrong)
        await send(keeper, how)
        assert keeper.directory.configs.get(QUEUE) == await load_config(keeper.pool, QUEUE)


@how
async def test_after_a_refusal_all_queues_of_a_push_are_asked_for(keeper: Store, how: How) -> None:
    """The database does not say which of them it was."""
    await keeper.configure("small", maxSize=9)
    items = [PushItem(queue, SECRET, "p") for queue in ("small", "open")]
    await keeper.push(items)
    await poison(keeper, "small", max_size=0)
    await poison(keeper, "open", lease_time=1)
    if how == "push":
        await keeper.push(items)
    else:
        await keeper.commit(keeper.transaction(pushes=items))
    for queue in ("small", "open"):
        assert keeper.directory.configs.get(queue) == await load_config(keeper.pool, queue)


async def test_a_wrong_configuration_of_one_queue_does_not_hold_up_another(keeper: Store) -> None:
    await keeper.configure("secret", encryptionEnabled=True)
    await keeper.configure("small", maxSize=1)
    for queue in ("secret", "small"):
        await poison(keeper, queue, encryption_enabled=False, max_size=0)
    items = [PushItem(queue, SECRET, "p") for queue in ("small", "open", "secret")]
    assert [verdict.status for verdict in await keeper.push(items)] == ["queued"] * 3
    await poison(keeper, "small", max_size=0)
    assert [verdict.status for verdict in await keeper.push(items)] == ["queue_full", "queued", "queued"]
    assert await contents(keeper, "secret") == ([SECRET] * 2, {True})
    assert await contents(keeper, "open") == ([SECRET] * 2, {False})


class TestWithoutAKey:
    @how
    async def test_a_queue_that_is_not_encrypted_takes_messages_whatever_is_remembered(
        self, store: Store, how: How
    ) -> None:
        await store.configure(QUEUE)
        for _ in range(2):
            await poison(store, encryption_enabled=True)
            assert [verdict.status for verdict in await send(store, how)] == ["queued"]
            assert store.directory.configs.get(QUEUE) == await load_config(store.pool, QUEUE)
        assert await contents(store) == ([SECRET] * 2, {False})

    async def test_the_database_is_asked_once_and_then_no_more(self, store: Store) -> None:
        await store.push([PushItem(QUEUE, SECRET, partition) for partition in "pq"])
        await poison(store, encryption_enabled=True)
        db = Counted(store.pool)
        items = [PushItem(QUEUE, SECRET, partition) for partition in "pq"]
        await push(db, store.directory, items)
        await push(db, store.directory, items)
        assert db.seen == ["queue_configs_of", "push", "push"]

    @pytest.mark.parametrize("remembered", [True, False])
    async def test_a_queue_that_is_encrypted_takes_none(self, store: Store, remembered: bool) -> None:
        await store.configure(QUEUE, encryptionEnabled=True)
        await poison(store, encryption_enabled=remembered)
        assert [verdict.status for verdict in await send(store, "push")] == ["failed"]
        await poison(store, encryption_enabled=remembered)
        with pytest.raises(EncryptionUnavailable):
            await send(store, "transaction")
        assert await store.pool.fetchval("select count(*) from queen.segments") == 0

    async def test_a_queue_that_was_deleted_is_made_anew(self, store: Store) -> None:
        """The database has nothing to say of it, which is no reason to refuse."""
        await store.configure(QUEUE, encryptionEnabled=True)
        await send(store, "push")
        await Store(store.pool).delete_queue(QUEUE)
        assert [verdict.status for verdict in await send(store, "push")] == ["queued"]


class TestFullQueues:
    @pytest.mark.parametrize("wrong", [{}, {"max_size": 0}, {"max_size": 9}, {"queue_id": 99_999_999}], ids=str)
    async def test_a_full_queue_is_full_whatever_is_remembered(self, store: Store, wrong: dict[str, Any]) -> None:
        await store.configure(QUEUE, maxSize=2)
        await poison(store, **wrong)
        assert [verdict.status for verdict in await send(store, "push", "p", "q")] == ["queued"] * 2
        await poison(store, **wrong)
        assert [verdict.status for verdict in await send(store, "push", "p", "q")] == ["queue_full"] * 2
        await poison(store, **wrong)
        with pytest.raises(QueueFull):
            await send(store, "transaction")
        assert len((await contents(store))[0]) == 2

    @how
    async def test_a_queue_without_a_bound_is_never_full(self, store: Store, how: How) -> None:
        """Not even when it is taken for another one, which is."""
        await store.configure("full", maxSize=1)
        await send(store, "push", queue="full")
        full = await load_config(store.pool, "full")
        assert full is not None
        await store.configure(QUEUE)
        config = await load_config(store.pool, QUEUE)
        assert config is not None
        for queue_id in (config.queue_id, full.queue_id):
            for _ in range(2):
                await poison(store, queue_id=queue_id, max_size=1)
                assert [verdict.status for verdict in await send(store, how)] == ["queued"]
        assert len((await contents(store))[0]) == 4


async def test_a_lease_lasts_as_long_as_the_database_says(store: Store) -> None:
    await store.configure(QUEUE, leaseTime=300)
    await send(store, "push")
    await poison(store, lease_time=1)
    await store.pop(QUEUE)
    left = (
        "select extract(epoch from lease_expires_at - now()) from queen.partition_consumers where lease_id is not null"
    )
    assert 200 < await store.pool.fetchval(left) <= 300


async def test_what_was_sealed_by_mistake_is_delivered_in_clear(dsn: str) -> None:
    broker = await Broker.open(EngineConfig(dsn=dsn, connections=2), CIPHER)
    try:
        for _ in range(2):
            await broker.push([PushEntry(QUEUE, Raw(SECRET), "p")])
            await poison(broker.store, encryption_enabled=True)
        stored = await broker.store.pool.fetch("select data from queen.segments order by last_seq")
        assert [SECRET in row["data"] for row in stored] == [True, False]
        popped = (await broker.pop(PopAsk(QUEUE, batch=2))).messages()
        assert [message.payload for message in popped] == [SECRET] * 2
    finally:
        await broker.drain()
        await broker.close()
