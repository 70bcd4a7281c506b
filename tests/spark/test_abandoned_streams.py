"""What a stream has stored is forgotten when the stream was not in use for a month, and not before."""

from __future__ import annotations

import pytest

from queenmq.domain.segments import PushItem
from queenmq.server.settings import Settings
from queenmq.server.sweep import sweep
from queenmq.spark.errors import DataLoss, NotReady
from queenmq.storage.store import Store
from tests.spark.reading import step, stream

DAY = 86_400
_AGE = (
    "update queen.read_positions set captured_at = captured_at - make_interval(secs => $1),"
    " seen_at = seen_at - make_interval(secs => $1)",
    "update queen.removed_partitions set removed_at = removed_at - make_interval(secs => $1)",
)


async def push(queue: Store) -> None:
    await queue.push([PushItem("orders", b"{}", "p")])


async def pass_time(queue: Store, seconds: float) -> None:
    for statement in _AGE:
        await queue.pool.execute(statement, seconds)


async def swept(database: str) -> tuple[int, int]:
    """Streams and removals that one sweep has forgotten."""
    done = {each.what: each.count for each in await sweep(Settings.from_env({}), database, print)}
    return done["abandoned streams"], done["records of removed partitions"]


async def test_only_a_stream_that_is_not_in_use_is_forgotten(database: str, queue: Store) -> None:
    await push(queue)
    commits, idles, abandoned = (stream(database) for _ in range(3))
    at = {source: step(source, source.initialOffset())[1] for source in (commits, idles, abandoned)}
    await pass_time(queue, 31 * DAY)
    assert step(idles, at[idles]) == ([], at[idles])
    await push(queue)
    _, at[commits] = step(commits, at[commits])
    commits.commit(at[commits])
    assert await swept(database) == (1, 0)
    for source in (commits, idles):
        await push(queue)
        assert step(stream(database), at[source])[0], "it goes on, also after a restart"
    with pytest.raises(NotReady, match="was not used for 30 days"):
        step(stream(database), at[abandoned])
    assert await swept(database) == (0, 0)


async def test_a_stream_that_was_away_for_less_than_a_month_still_learns_what_it_lost(
    database: str, queue: Store
) -> None:
    source = stream(database)
    at = source.initialOffset()
    await push(queue)
    await queue.delete_queue("orders")
    await pass_time(queue, 29 * DAY)
    assert await swept(database) == (0, 0)
    with pytest.raises(DataLoss, match="partition 'p' of queue 'orders' was removed with the messages 1 to 1"):
        step(stream(database), at)


async def test_a_plan_that_came_to_nothing_is_no_look(database: str, queue: Store) -> None:
    """The stream has stored where its next batch ends, and Spark has not written it down: the next plan is another."""
    source = stream(database)
    at = source.initialOffset()
    await push(queue)
    await queue.delete_queue("orders")
    await pass_time(queue, 7200)
    source.latestOffset(at, source.getDefaultReadLimit())
    await pass_time(queue, DAY)
    assert await swept(database) == (0, 0)
    with pytest.raises(DataLoss, match="was removed with"):
        step(stream(database), at)


async def test_a_removal_is_forgotten_when_every_stream_has_looked(database: str, queue: Store) -> None:
    sources = [stream(database), stream(database)]
    at = [step(source, source.initialOffset())[1] for source in sources]
    await push(queue)
    at = [step(source, start)[1] for source, start in zip(sources, at, strict=True)]
    await queue.delete_queue("orders")
    await pass_time(queue, DAY)
    for number, (end, forgotten) in enumerate(zip(at, (0, 1), strict=True)):
        restarted = stream(database)
        assert step(restarted, end) == ([], end)
        assert await swept(database) == (0, forgotten), number


async def test_without_streams_a_removal_is_forgotten_after_an_hour(database: str, queue: Store) -> None:
    await push(queue)
    await queue.delete_queue("orders")
    assert await swept(database) == (0, 0)
    await pass_time(queue, 3601)
    assert await swept(database) == (0, 1)
