"""The archive: queues into a lake, exactly once, with retention waiting for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queenmq.cli.exits import Exit
from queenmq.cli.pipeline import exit_of
from queenmq.domain.cipher import Cipher
from queenmq.domain.segments import PushItem
from queenmq.spark import lake
from queenmq.spark.errors import DataLoss, PipelineError, PipelineFailed
from queenmq.spark.failures import final
from queenmq.spark.lake.compaction import Limits
from queenmq.spark.lake.direct import Planned
from queenmq.spark.lake.filesystem import LocalFiles
from queenmq.spark.lake.manifest import Log
from queenmq.spark.pipelines import archive as archiving
from queenmq.spark.pipelines.archive import archive, release
from queenmq.spark.pipelines.base import Arguments, Quiet
from queenmq.spark.pipelines.registry import find
from queenmq.spark.runner import Job, Runner
from tests.spark.lakes import Blocking, blocking, items
from tests.spark.test_runner import FakeSession, FakeSessions, Shown
from tests.storage.retaining import EXPIRED, trim
from tests.storage.time_travel import age_messages, age_retention

KEY = bytes(range(32))


def archived(spark: SparkSession, home: Path) -> list[tuple[Any, ...]]:
    found = lake.read(spark, home).select("queue", "partition", "seq", "payload").collect()
    return sorted(tuple(row) for row in found)


@pytest.fixture
def store(database: str) -> Iterator[Blocking]:
    with blocking(database) as opened:
        yield opened


def test_queues_are_archived_once_and_released(
    spark: SparkSession, database: str, store: Blocking, tmp_path: Path
) -> None:
    store.run(store.store.configure("orders", **EXPIRED))
    store.push(*items("orders", 1, 2, 3), *items("mails", 1))
    store.run(age_messages(store.store.pool, 3600))
    seen = Quiet()
    arguments = Arguments(queue="*", lake=str(tmp_path), once=True, database_url=database, max_messages=2)
    outcome = find("archive").load()(spark, arguments, seen)
    assert (outcome.rows, outcome.status, seen.seen[-1].lag) == (4, "finished", 0)
    assert archived(spark, tmp_path) == [("mails", "p", 1, "1"), *(("orders", "p", n, str(n)) for n in (1, 2, 3))]
    assert [(hold.queue, hold.released_to is not None) for hold in store.holds()] == [("mails", True), ("orders", True)]
    # What is in the lake may go; what came after may not, although it is old enough.
    store.push(*items("orders", 4), *items("later", 1))
    store.run(age_messages(store.store.pool, 1800))
    store.run(age_retention(store.store.pool, 1800))
    store.run(trim(store.store))
    assert store.kept("orders") == [4]
    assert archive(spark, lake=tmp_path, queue="*", once=True, database_url=database).rows == 2
    assert archive(spark, lake=tmp_path, queue="*", once=True, database_url=database).rows == 0
    assert Counter(archived(spark, tmp_path)).most_common(1)[0][1] == 1
    assert {row[0] for row in archived(spark, tmp_path)} == {"mails", "orders", "later"}
    assert sorted(hold.queue for hold in store.holds()) == ["later", "mails", "orders"]
    assert release(lake=tmp_path, queue="o*", database_url=database) == ["orders"]
    assert sorted(hold.queue for hold in store.holds()) == ["later", "mails"]


def test_a_release_that_was_missed_is_made_up_for(
    spark: SparkSession, database: str, store: Blocking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver died after Spark's commit, and there is nothing new to archive."""
    store.push(*items("orders", 1))
    with monkeypatch.context() as patch:
        patch.setattr("queenmq.spark.pipelines.archive.release_holds", lambda *arguments: None)
        archive(spark, lake=tmp_path, queue="orders", once=True, database_url=database)
    assert [hold.released_to for hold in store.holds()] == [None]
    archive(spark, lake=tmp_path, queue="orders", once=True, database_url=database)
    assert None not in [hold.released_to for hold in store.holds()]


def test_a_queue_that_appears_during_a_run_is_held(
    spark: SparkSession, database: str, store: Blocking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = archiving._started

    def start(*given: Any) -> Any:
        store.push(*items("later", 1))
        return started(*given)

    monkeypatch.setattr(archiving, "_started", start)
    archive(spark, lake=tmp_path, queue="*", once=True, database_url=database)
    assert [(hold.queue, hold.released_to is not None) for hold in store.holds()] == [("later", True)]


def test_a_lake_that_was_lost_is_not_begun_again(
    spark: SparkSession, database: str, store: Blocking, tmp_path: Path
) -> None:
    """As when its disk is not mounted: what retention has removed would be in a lake that nobody sees."""
    again = partial(archive, spark, lake=tmp_path / "lake", queue="orders", once=True, database_url=database)
    store.push(*items("orders", 1))
    again()
    (tmp_path / "lake").rename(tmp_path / "moved")
    with pytest.raises(PipelineError, match=f"the lake file://{tmp_path}/lake is empty, although"):
        again()
    assert not (tmp_path / "lake").exists()
    release(lake=tmp_path / "lake", queue="*", database_url=database)
    with pytest.raises(PipelineError, match="is it mounted"):
        again(checkpoint=tmp_path / "moved/_queen/checkpoints/orders")
    store.push(*items("orders", 2))
    assert again(lake=tmp_path / "moved").rows == 1
    assert len(archived(spark, tmp_path / "moved")) == 2


def test_a_checkpoint_must_be_where_spark_can_write(spark: SparkSession, database: str, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="Spark has no access to the checkpoint gs://anonymous@bucket/cp; give"):
        archive(spark, lake=tmp_path, checkpoint="gs://anonymous@bucket/cp", queue="orders", database_url=database)


def test_small_files_are_compacted_between_batches(
    spark: SparkSession, database: str, store: Blocking, tmp_path: Path
) -> None:
    for number in range(7):
        store.push(*items("orders", number))
    few = Limits(min_files=3, grace_seconds=0)
    archive(spark, lake=tmp_path, queue="orders", once=True, database_url=database, max_messages=1, compaction=few)
    assert archived(spark, tmp_path) == [("orders", "p", seq, str(seq - 1)) for seq in range(1, 8)]
    assert len(lake.files(tmp_path)) < 3 + len({(file.date, file.hour) for file in lake.files(tmp_path)})


def test_payloads_stay_encrypted(
    spark: SparkSession, database: str, store: Blocking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEEN_ENCRYPTION_KEY", KEY.hex())
    sealed = Cipher(KEY).encrypt(b'"secret"')
    store.push(PushItem("orders", sealed, "p", encrypted=True))
    # Spark's Python was started without the key, so what it is told is looked at, too.
    told: list[dict[str, str]] = []
    started = archiving._started

    def start(*given: Any) -> Any:
        told.append(given[1])
        return started(*given)

    monkeypatch.setattr(archiving, "_started", start)
    archive(spark, lake=tmp_path, queue="orders", once=True, database_url=database)
    assert told[0]["decrypt"] == "false"
    (row,) = lake.read(spark, tmp_path).collect()
    assert (row.payload, row.encrypted) == (sealed.decode(), True)
    assert [file.encrypted for file in lake.files(tmp_path)] == [True]


def test_a_batch_that_can_never_be_read_is_given_up_by_an_option(
    spark: SparkSession, database: str, store: Blocking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue is deleted after it was planned, before it is read."""
    store.push(*items("orders", 1, 2), *items("mails", 1))
    stage = Planned.stage

    def deleted(planned: Planned, uri: str) -> Any:
        assert store.run(store.store.delete_queue("orders"))
        return stage(planned, uri)

    arguments = Arguments(queue="*", lake=str(tmp_path), once=True, database_url=database)
    run = partial(find("archive").load(), spark, events=Quiet())
    with monkeypatch.context() as patch:
        patch.setattr(Planned, "stage", deleted)
        with pytest.raises(Exception, match="was removed with the messages 1 to 2") as lost:
            run(arguments=arguments)
    assert isinstance(final(lost.value), DataLoss)
    with pytest.raises(Exception, match="partition 'p' of queue 'orders' was removed with the messages 1 to 2"):
        run(arguments=arguments)
    outcome = run(arguments=replace(arguments, accept_data_loss=True))
    assert outcome.rows == 1, "what is lost was not written"
    assert outcome.summary[1:] == ("left out: partition 'p' of queue 'orders' was removed with the messages 1 to 2",)
    store.push(*items("orders", 3))
    assert run(arguments=arguments).rows == 1
    assert archived(spark, tmp_path) == [("mails", "p", 1, "1"), ("orders", "p", 1, "3")]
    state = Log(LocalFiles(tmp_path)).state
    assert [(each.queue, each.partition, each.first, each.last) for each in state.lost] == [("orders", "p", 1, 2)]


def test_a_loss_that_is_not_recorded_is_not_accepted(
    spark: SparkSession, database: str, store: Blocking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What vanishes after the look at the batch is not in the manifest, so it is not left out."""
    store.push(*items("orders", 1, 2))
    leave_out = Planned.leave_out_lost

    def late(planned: Planned, session: SparkSession) -> Any:
        found = leave_out(planned, session)
        if not found:
            assert store.run(store.store.delete_queue("orders"))
        return found

    run = partial(archive, spark, lake=tmp_path, queue="*", once=True, database_url=database, fail_on_data_loss=False)
    with monkeypatch.context() as patch:
        patch.setattr(Planned, "leave_out_lost", late)
        with pytest.raises(Exception, match="was removed with the messages 1 to 2"):
            run()
    assert run().summary[1:] == ("left out: partition 'p' of queue 'orders' was removed with the messages 1 to 2",)


def test_a_lake_that_cannot_be_written_ends_the_run_at_once(
    spark: SparkSession, database: str, store: Blocking, tmp_path: Path
) -> None:
    store.push(*items("orders", 1))
    (tmp_path / "file").write_text("no directory")

    class Sessions(FakeSessions):
        def open(self) -> Any:
            self.opened.append(FakeSession())
            return spark

    sessions, shown = Sessions(), Shown()
    arguments = Arguments(queue="orders", lake=str(tmp_path / "file" / "lake"), once=True, database_url=database)
    with pytest.raises(PipelineFailed, match=r"a place cannot be used: .*Not a directory") as refused:
        Runner(Job(find("archive"), arguments, database), sessions, shown, pace=0.001).run()
    assert exit_of(refused.value) == Exit.PIPELINE
    assert (len(sessions.opened), shown.said) == (1, [])


def test_another_checkpoint_does_not_archive_a_queue_again(
    spark: SparkSession, database: str, store: Blocking, tmp_path: Path
) -> None:
    store.push(*items("orders", 1))
    archive(spark, lake=tmp_path / "lake", queue="orders", once=True, database_url=database)
    with pytest.raises(Exception, match="queue orders is archived into this lake from another checkpoint") as refused:
        archive(
            spark,
            lake=tmp_path / "lake",
            checkpoint=tmp_path / "other",
            queue="orders",
            once=True,
            database_url=database,
        )
    assert isinstance(final(refused.value), PipelineError)
    assert len(archived(spark, tmp_path / "lake")) == 1
