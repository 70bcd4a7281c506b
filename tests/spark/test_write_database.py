"""Rows straight into PostgreSQL: what is stored, in which order, and what happens when something is in the way."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queenmq.domain.cipher import Cipher
from queenmq.spark.errors import NotReady, OptionError, WriteRefused
from queenmq.spark.pushing import Tally
from queenmq.storage.pop import Message
from queenmq.storage.store import Store
from tests.conftest import Server
from tests.engine.relay import Relay
from tests.server.running import eventually
from tests.spark.json_values import messages
from tests.spark.writing import SCOPE, asked, numbered, payloads, rows, stored, to_database, write

KEY = "0123456789abcdef" * 4
FAIL_ONCE = """
    do $do$ begin
        create sequence queen.failures;
        create function queen.fail() returns trigger language plpgsql as $$ begin
            if nextval('queen.failures') = 1 then raise 'once' using errcode = 'CODE'; end if;
            return new;
        end $$;
        create trigger fail before insert on queen.segments for each row execute function queen.fail();
    end $do$
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUEEN_ENCRYPTION_KEY", "QUEEN_TOKEN", "QUEEN_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def store(database: str) -> AsyncIterator[Store]:
    opened = await Store.open(database)
    yield opened
    await opened.close()


def test_rows_are_stored_in_their_order(database: str) -> None:
    names = [f"p{number % 3}" for number in range(250)]
    batches = [rows(payload=list(numbered(250, start)), partition=names) for start in (0, 250)]
    assert write(to_database(database, queue="q", batchSize="40"), *batches) == Tally(500)
    found = stored(database, "q")
    assert len({message.transaction_id for message in found}) == 500
    for partition in ("p0", "p1", "p2"):
        numbers = [json.loads(message.payload)["n"] for message in found if message.partition == partition]
        assert len(numbers) > 160
        assert numbers == sorted(numbers)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages, st.integers(1, 50))
async def test_what_is_written_is_popped(
    database: str, store: Store, drawn: list[tuple[str, str]], at_once: int
) -> None:
    name = f"q{os.urandom(6).hex()}"
    batch = rows(payload=[payload for _, payload in drawn], partition=[partition for partition, _ in drawn])
    options = to_database(database, queue=name, batchSize=str(at_once))
    assert await asyncio.to_thread(write, options, batch) == Tally(len(drawn))
    result = await store.pop(name, batch=1000, partitions=10, auto_ack=True)
    popped = {claim.partition: [message.payload.decode() for message in claim.messages()] for claim in result.claims}
    for partition in {each for each, _ in drawn}:
        assert popped.pop(partition) == [payload for each, payload in drawn if each == partition]
    assert popped == {}


def test_everything_a_row_brings_is_stored(database: str) -> None:
    trace = "0190e8f0-0000-7000-8000-000000000000"
    large = json.dumps({"text": "ü😀" * 200_000}, ensure_ascii=False)
    batch = rows(
        payload=['"ü😀\\n"', None, large, "[[]]"],
        queue=[None, "q", None, "other"],
        partition=["ä b", None, "p", None],
        transaction_id=["mine", None, None, None],
        trace_id=[trace, None, None, None],
        producer_sub=["me", None, "you", None],
    )
    assert write(to_database(database, queue="q"), batch) == Tally(4)
    found = {message.partition: message for message in stored(database, "q")}
    assert found["ä b"] == replace(
        found["ä b"], payload='"ü😀\\n"', transaction_id="mine", trace_id=trace, producer_sub="me", encrypted=False
    )
    assert (found["Default"].payload, found["Default"].trace_id) == ("null", None)
    assert json.loads(found["p"].payload) == json.loads(large)
    assert payloads(database, "other") == ["[[]]"]


def test_a_second_attempt_in_another_order_adds_nothing(database: str) -> None:
    options = to_database(database, queue="q", batchSize="7")
    texts = [*numbered(50), *numbered(50)]
    assert write(options, rows(payload=texts[:60])) == Tally(60)
    assert write(options, rows(payload=texts[::-1])) == Tally(40, 60)
    assert sorted(payloads(database, "q")) == sorted(texts)


def test_equal_rows_of_two_tasks_are_two_messages(database: str) -> None:
    options = to_database(database, queue="q")
    for task in range(2):
        assert write(options, rows(payload=["1", "1"]), scope=replace(SCOPE, task=task)) == Tally(2)
    assert payloads(database, "q") == ["1"] * 4


def test_a_bad_row_stops_its_push_and_leaves_earlier_ones(database: str) -> None:
    options = to_database(database, queue="q", batchSize="2")
    good = rows(payload=list(numbered(4)))
    with pytest.raises(WriteRefused, match="row 5 of task 3: payload must be valid JSON"):
        write(options, good, rows(payload=['{"n": 4}', "{", '{"n": 5}']), scope=replace(SCOPE, task=3))
    assert payloads(database, "q") == list(numbered(4))


async def test_a_lost_answer_is_asked_for_again(database: str) -> None:
    """PostgreSQL has stored the push whose answer is lost; repeated, it is recognised, and is no duplicate."""
    async with Relay(database) as relay:
        options = to_database(relay.dsn, queue="q", batchSize="10")
        first = rows(payload=list(numbered(10)))
        assert await asyncio.to_thread(write, options, first) == Tally(10)
        relay.lose_replies(1, after=2)
        work = partial(write, options, rows(payload=list(numbered(30, 10))))
        assert await asyncio.to_thread(work) == Tally(30)
        assert relay.lost == 1
    assert await asyncio.to_thread(payloads, database, "q") == list(numbered(40))


async def test_a_database_that_stays_away_is_given_up(database: str) -> None:
    async with Relay(database) as relay:
        await relay.down()
        options = replace(to_database(relay.dsn, queue="q"), max_retry_seconds=0.2)
        with pytest.raises(WriteRefused, match=r"given up after 0.2 s \(maxRetrySeconds\): PostgreSQL cannot store it"):
            await asyncio.to_thread(write, options, rows(payload=["1"]))


async def test_a_full_queue_is_waited_for(database: str, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Also one that is smaller than a push. Rows of other queues do not wait."""
    await store.configure("q", maxSize=3)
    options = to_database(database, queue="q", batchSize="20")
    batch = rows(payload=list(numbered(20)), queue=["q", "free"] * 10)
    writing = asyncio.ensure_future(asyncio.to_thread(write, options, batch))
    popped: list[Message] = []
    await asyncio.to_thread(eventually, lambda: "queue q is full" in caplog.text)
    async with asyncio.timeout(30):
        while len(popped) < 10:
            popped += (await store.pop("q", batch=100, auto_ack=True)).messages()
    assert await writing == Tally(20)
    assert [json.loads(message.payload)["n"] for message in popped] == list(range(0, 20, 2))
    assert await asyncio.to_thread(payloads, database, "free") == [f'{{"n": {number}}}' for number in range(1, 20, 2)]


async def test_a_queue_that_stays_full_is_given_up(database: str, store: Store) -> None:
    await store.configure("q", maxSize=2)
    options = replace(to_database(database, queue="q"), max_retry_seconds=0.2)
    with pytest.raises(WriteRefused, match=r"given up after 0.2 s \(maxRetrySeconds\): queue q is full: maxSize is 2"):
        await asyncio.to_thread(write, options, rows(payload=list(numbered(5))))
    assert await asyncio.to_thread(payloads, database, "q") == list(numbered(2))


def test_what_a_full_queue_refuses_again_and_again_is_not_changed(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its neighbours are stored at once, and it is when there is room: the queue is emptied in the second pause."""
    asyncio.run(with_store(database, lambda store: store.configure("q", maxSize=1)))
    options = to_database(database, queue="q")
    write(options, rows(payload=["0"]))
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            asyncio.run(with_store(database, lambda store: store.pop("q", auto_ack=True)))

    monkeypatch.setattr("queenmq.spark.pushing.sleep", pause)
    sealed = [Cipher(bytes.fromhex(KEY)).encrypt(b"%d" % number).decode() for number in range(3)]
    batch = rows(payload=sealed, encrypted=[False, False, True], producer_sub=["a", "b", "c"], queue=["x", "x", None])
    assert write(options, batch) == Tally(3)
    assert len(pauses) == 2
    assert len(payloads(database, "x")) == 2
    last = stored(database, "q")[-1]
    assert (json.loads(last.payload), last.encrypted, last.producer_sub) == (json.loads(sealed[2]), True, "c")


async def with_store(database: str, work: Callable[[Store], Awaitable[object]]) -> None:
    opened = await Store.open(database)
    try:
        await work(opened)
    finally:
        await opened.close()


@pytest.mark.parametrize("code", ["40P01", "40001"])
def test_what_postgresql_has_undone_is_repeated(database: str, code: str) -> None:
    """A deadlock, or a conflict of transactions: here from a trigger that fails once."""
    asked(database, FAIL_ONCE.replace("CODE", code))
    assert write(to_database(database, queue="q"), rows(payload=list(numbered(3)))) == Tally(3)
    assert payloads(database, "q") == list(numbered(3))
    assert asked(database, "select last_value from queen.failures")[0][0] == 2


async def test_an_encrypted_queue_gets_sealed_payloads(
    database: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.configure("q", encryptionEnabled=True)
    options = to_database(database, queue="q")
    batch = rows(payload=['{"secret": 1}'], partition=["a"])
    with pytest.raises(WriteRefused, match="queue q is encrypted and there is no QUEEN_ENCRYPTION_KEY") as refused:
        await asyncio.to_thread(write, options, batch)
    assert "secret" not in str(refused.value)
    monkeypatch.setenv("QUEEN_ENCRYPTION_KEY", KEY)
    assert await asyncio.to_thread(write, options, batch) == Tally(1)
    (message,) = await asyncio.to_thread(stored, database, "q")
    assert message.encrypted
    assert Cipher(bytes.fromhex(KEY)).decrypt(message.payload.encode()) == b'{"secret": 1}'


async def test_what_is_sealed_already_is_stored_as_it_is(database: str, store: Store) -> None:
    """As an archive has it: nobody needs the key to put it back."""
    await store.configure("q", encryptionEnabled=True)
    sealed = Cipher(bytes.fromhex(KEY)).encrypt(b'{"secret": 1}').decode()
    batch = rows(payload=[sealed], encrypted=[True])
    assert await asyncio.to_thread(write, to_database(database, queue="q"), batch) == Tally(1)
    (message,) = await asyncio.to_thread(stored, database, "q")
    assert message.encrypted
    assert json.loads(message.payload) == json.loads(sealed)


def test_a_wrong_key_is_refused_without_showing_it(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEEN_ENCRYPTION_KEY", "hunter2")
    with pytest.raises(OptionError, match=r"QUEEN_ENCRYPTION_KEY .* it must be 64 hexadecimal digits"):
        write(to_database(database, queue="q"), rows(payload=["1"]))


def test_an_empty_database_is_named(embedded_server: Server) -> None:
    name = asyncio.run(embedded_server.create("template1"))
    try:
        with pytest.raises(NotReady, match="run: queen db migrate"):
            write(to_database(embedded_server.database(name), queue="q"), rows(payload=["1"]))
    finally:
        asyncio.run(embedded_server.drop(name))


def test_nothing_is_left_behind(database: str) -> None:
    """Neither by a task that succeeds nor by one that fails."""
    options = to_database(database, queue="q")
    write(options, rows(payload=["1"]))
    with pytest.raises(WriteRefused):
        write(options, rows(payload=["1"]), rows(payload=["{"]))
    empty = pa.record_batch({"payload": pa.array([], pa.string())})
    assert write(options, empty) == Tally()
    sessions = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    eventually(lambda: asked(database, sessions)[0][0] == 0)
