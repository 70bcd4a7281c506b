"""Options: what is given is read once, and what is not allowed is refused by name."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from queenmq.spark.errors import OptionError, SparkError, UnknownOption
from queenmq.spark.options import OPTIONS, markdown, read_options, write_options

URL = "postgresql://queen@db:5432/queen"
READ = {"databaseUrl": URL, "queue": "orders"}


class TestReading:
    def test_a_queue_and_a_database_are_enough(self) -> None:
        found = read_options(READ, {})
        assert (found.database_url, found.queues, found.starting.word, found.ending.word) == (
            URL,
            ("orders",),
            "earliest",
            "latest",
        )
        assert found.fail_on_data_loss
        assert found.decrypt
        assert (found.max_messages, found.max_bytes, found.splits, found.group) == (None, None, None, None)

    def test_what_spark_itself_adds_is_left_alone(self) -> None:
        assert read_options(READ | {"queryName": "q", "checkpointLocation": "c", "path": "p"}, {}).queues == ("orders",)

    def test_names_ignore_case_as_sparks_do(self) -> None:
        assert read_options({"DATABASEURL": URL, "Queue": "a", "NumSplits": "3"}, {}).splits == 3

    def test_the_environment_says_where_the_database_is_and_keeps_the_password(self) -> None:
        found = read_options({"queue": "a"}, {"DATABASE_URL": "postgresql://queen:geheim@db/queen?sslmode=require"})
        assert found.database_url == "postgresql://queen@db/queen?sslmode=require"
        assert "geheim" not in repr(found)

    def test_a_password_in_an_option_is_refused_and_not_repeated(self) -> None:
        for url in ("postgresql://queen:geheim@db/queen", "postgresql://queen@db/queen?password=geheim"):
            with pytest.raises(OptionError, match=r"databaseUrl is 'a URL with a password'.*PGPASSWORD") as caught:
                read_options({"queue": "a", "databaseUrl": url}, {})
            assert "geheim" not in str(caught.value)

    @pytest.mark.parametrize(
        ("text", "queues"),
        [
            ("a", ("a",)),
            (" a , b ", ("a", "b")),
            ('["a,b", "c"]', ("a,b", "c")),
            ("orders-*", ("orders-*",)),
        ],
    )
    def test_queues_are_one_or_many_or_a_pattern(self, text: str, queues: tuple[str, ...]) -> None:
        assert read_options(READ | {"queue": text}, {}).queues == queues

    @pytest.mark.parametrize(
        ("text", "moment"),
        [
            ("2025-01-31T12:00:00Z", datetime(2025, 1, 31, 12, tzinfo=UTC)),
            ("2025-01-31", datetime(2025, 1, 31, tzinfo=UTC)),
            ("2025-01-31T12:00:00.000001+02:00", datetime(2025, 1, 31, 12, 0, 0, 1, timezone(timedelta(hours=2)))),
        ],
    )
    def test_times_without_a_zone_are_utc(self, text: str, moment: datetime) -> None:
        assert read_options(READ | {"startingOffsets": text}, {}).starting.time == moment

    def test_sequence_numbers_by_queue_and_partition(self) -> None:
        offsets = '{"a": {"x": 3, "y": 0}, "b": {"x": 1}}'
        found = read_options(READ | {"queue": "a,?", "startingOffsets": offsets}, {})
        assert found.starting.seqs == (("a", "x", 3), ("a", "y", 0), ("b", "x", 1))

    @pytest.mark.parametrize(("text", "size"), [("1", 1), ("512k", 1 << 19), ("64 MB", 64 << 20), ("2g", 2 << 30)])
    def test_sizes_have_units(self, text: str, size: int) -> None:
        assert read_options(READ | {"maxBytesPerTrigger": text}, {}).max_bytes == size

    @pytest.mark.parametrize(
        ("option", "value", "words"),
        [
            ("queue", "a\nb", "1 to 255 characters"),
            ("queue", "x" * 256, "1 to 255 characters"),
            ("queue", "[1]", "JSON array of texts"),
            ("partitions", '["a"', "JSON array"),
            ("startingOffsets", "yesterday", "earliest, latest, a time such as"),
            ("startingOffsets", '{"a": 3}', "JSON such as"),
            ("startingOffsets", '{"a": {"x": -1}}', "0 or more"),
            ("startingOffsets", '{"a": {"x": true}}', "0 or more"),
            ("startingOffsets", f'{{"orders": {{"x": {2**63}}}}}', "0 or more, up to 9223372036854775807"),
            ("startingOffsets", '{"orders": {"x\\u0000": 1}}', "without control characters"),
            ("startingOffsets", '{"order": {"x": 1}}', "queues that the option queue names (orders)"),
            ("endingOffsets", '{"orders2": {"x": 1}}', "queues that the option queue names (orders)"),
            ("startingOffsets", "0001-01-01", "years 1900 to 9998"),
            ("endingOffsets", "9999-12-31T23:59:59.999999-14:00", "years 1900 to 9998"),
            ("endingOffsets", "earliest", "latest, a time"),
            ("namespace", "a\0", "without NUL"),
            ("task", "\0", "without NUL"),
            ("partitions", "a\0", "1 to 255 characters"),
            ("pushdown", "yes", "true or false"),
            ("maxMessagesPerTrigger", "0", "1 or more"),
            ("maxMessagesPerTrigger", "1e3", "whole number"),
            ("maxBytesPerTrigger", "10x", "512k"),
            ("maxBytesPerTrigger", "0", "512k"),
            ("numSplits", "100001", "1 to 100,000"),
            ("columns", "queue,nope", "of queue, partition, partition_id"),
            ("columns", "data", "of queue, partition"),
            ("columns", "queue,queue", "without repetitions"),
            ("failOnDataLoss", "yes", "true or false"),
            ("decrypt", "1", "true or false"),
            ("dataset", "queues", "messages or ranges or metrics"),
            ("consumerGroup", "", "1 to 255 characters"),
            ("databaseUrl", "mysql://db", "postgresql://"),
        ],
    )
    def test_what_is_not_allowed_is_named_with_what_is(self, option: str, value: str, words: str) -> None:
        with pytest.raises(OptionError) as caught:
            read_options(READ | {option: value}, {})
        assert caught.value.option == option
        assert words in caught.value.message

    def test_a_table_of_a_catalog_is_refused(self) -> None:
        for read in (read_options, write_options):
            with pytest.raises(SparkError, match=r"cannot be tables of a catalog.*CREATE TEMPORARY VIEW"):
                read(READ | {"provider": "queen"}, {})

    def test_something_must_say_which_queues(self) -> None:
        with pytest.raises(OptionError, match="queue is missing"):
            read_options({"databaseUrl": URL}, {})
        assert read_options({"databaseUrl": URL, "namespace": "billing"}, {}).queues == ()

    def test_without_a_database_it_says_so(self) -> None:
        with pytest.raises(OptionError, match=r"databaseUrl is missing.*DATABASE_URL"):
            read_options({"queue": "a"}, {"QUEEN_URL": "http://localhost:6632"})

    def test_a_misspelt_name_is_answered_with_the_right_one(self) -> None:
        with pytest.raises(UnknownOption, match="did you mean maxMessagesPerTrigger"):
            read_options(READ | {"maxMessagePerTrigger": "1"}, {})
        with pytest.raises(UnknownOption, match="there are databaseUrl, queue"):
            read_options(READ | {"zzz": "1"}, {})

    def test_what_is_for_writing_is_refused(self) -> None:
        with pytest.raises(OptionError, match="for writ"):
            read_options(READ | {"batchSize": "1"}, {})


class TestWriting:
    def test_the_server_comes_before_the_database(self) -> None:
        both = {"DATABASE_URL": URL, "QUEEN_URL": "http://queen:6632"}
        assert write_options({"queue": "a"}, both).url == "http://queen:6632"
        assert write_options({"queue": "a"}, {"DATABASE_URL": URL}).database_url == URL

    def test_an_option_comes_before_the_environment(self) -> None:
        found = write_options({"queue": "a", "databaseUrl": URL}, {"QUEEN_URL": "http://queen:6632"})
        assert (found.url, found.database_url) == (None, URL)
        found = write_options({"queue": "a", "databaseUrl": URL, "url": "http://queen:6632"}, {})
        assert (found.url, found.database_url) == ("http://queen:6632", None)

    @pytest.mark.parametrize(
        "url",
        [
            "queen:6632",
            "http://",
            "http://queen:port",
            "http://queen:99999",
            "http://queen:0",
            "http://no..such",
            "http://a b",
            "http://queen/?x=1",
        ],
    )
    def test_what_is_no_address_is_refused(self, url: str) -> None:
        with pytest.raises(OptionError, match=r"option url is .*http://host:port"):
            write_options({"url": url}, {})

    def test_one_of_them_must_be_there(self) -> None:
        with pytest.raises(OptionError, match="QUEEN_URL or DATABASE_URL"):
            write_options({"queue": "a"}, {})

    def test_credentials_in_the_url_are_refused_and_not_repeated(self) -> None:
        with pytest.raises(OptionError, match="QUEEN_TOKEN") as caught:
            write_options({"url": "http://me:geheim@queen:6632"}, {})
        assert "geheim" not in caught.value.message


def test_errors_survive_the_way_from_a_worker_to_the_driver() -> None:
    for error in (OptionError("queue", "x", "y"), UnknownOption("quee", ["queue"])):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.message, str(copy)) == (type(error), error.message, str(error))


def test_every_option_has_one_row() -> None:
    names = [row.name.lower() for row in OPTIONS]
    assert len(set(names)) == len(names)
    assert all(row.doc and not row.doc.endswith(".") for row in OPTIONS)


def test_the_page_lists_them_all() -> None:
    page = Path(__file__).parents[2] / "docs" / "spark.md"
    assert markdown() in page.read_text("utf-8")
