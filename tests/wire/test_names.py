"""Names: what is allowed, and that a refusal says which field, what was given and what is allowed."""

from __future__ import annotations

import pytest

from queenmq.wire.names import InvalidValue, check_name, check_transaction_id, check_uuid


@pytest.mark.parametrize(
    "name", ["a", "orders", "a b/c.d:e", "ümläut 🐝", "x" * 255, "é" * 255, "'; drop table", "\u200b", "__QUEUE_MODE__"]
)
def test_names_may_be_almost_any_text(name: str) -> None:
    check_name("queue", name)
    check_transaction_id("transactionId", name)


@pytest.mark.parametrize(
    "bad", ["a\nb", "\x00", "a\x1eb", "tab\t", "a\x7f", "a\x85", "\x9f", "x" * 256, "\ud800", None, 5, b"bytes", ["a"]]
)
def test_other_values_are_refused(bad: object) -> None:
    for check in (check_name, check_transaction_id):
        with pytest.raises(InvalidValue) as refused:
            check("items[0].queue", bad)
        assert str(refused.value).startswith("items[0].queue must be a text of ")
        assert (refused.value.field, refused.value.given) == ("items[0].queue", bad)
        assert "255 characters without control characters" in refused.value.allowed


def test_an_empty_name_is_allowed_where_it_has_a_meaning() -> None:
    check_name("namespace", "", empty=True)
    check_transaction_id("transactionId", "")
    with pytest.raises(InvalidValue, match="a text of 1 to 255"):
        check_name("queue", "")
    with pytest.raises(InvalidValue, match="a text of 0 to 255"):
        check_name("namespace", "\n", empty=True)


def test_what_was_given_is_shown_short_and_in_ascii() -> None:
    with pytest.raises(InvalidValue) as refused:
        check_name("queue", "ü\n" * 200)
    assert str(refused.value).isascii()
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("5", "'5'"),
        (5, "5"),
        (-1.5, "-1.5"),
        (True, "true"),
        (False, "false"),
        (None, "null"),
        (10**99, "1" + "0" * 56),
    ],
)
def test_what_was_given_is_shown_as_in_json(given: object, shown: str) -> None:
    assert str(InvalidValue("options.x", given, "a value")).startswith(f"options.x must be a value, not {shown}")


@pytest.mark.parametrize(
    "good",
    [
        "0196c2f5-1111-7000-8000-000000000000",
        "0196C2F5-1111-7000-8000-00000000ABCD",
        "f" * 8 + "-ffff" * 3 + "-" + "f" * 12,
    ],
)
def test_uuids(good: str) -> None:
    check_uuid("traceId", good)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "nope",
        "0196c2f5111170008000000000000000",
        "0196c2f5-1111-7000-8000-00000000000g",
        " 0196c2f5-1111-7000-8000-000000000000",
        "0196c2f5-1111-7000-8000-000000000000\n",
        None,
        7,
    ],
)
def test_other_texts_are_no_uuids(bad: object) -> None:
    with pytest.raises(InvalidValue, match="traceId must be a UUID, not "):
        check_uuid("traceId", bad)
