"""The books see every anomaly that they are there for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.proof.books import Books, Key

A, B, C = ("w", 0), ("w", 1), ("w", 2)
STORED: list[tuple[str, int, Key]] = [("p", 1, A), ("p", 2, B), ("p", 3, C)]


def good() -> Books:
    books = Books(["g"])
    books.written["p"] = [A, B, C]
    books.deliver("g", "p", [A, B]).settled = at(0, A)
    books.deliver("g", "p", [B, C]).settled = at(0, B, C)
    return books


def at(moment: float, *keys: Key) -> dict[Key, float]:
    return dict.fromkeys(keys, moment)


def test_a_good_run_passes() -> None:
    good().check(STORED)


def lost(books: Books) -> None:
    books.written["p"].append(("w", 3))


def phantom(books: Books) -> None:
    books.written["p"].remove(B)


def settled_twice(books: Books) -> None:
    books.deliver("g", "p", [C]).settled = at(0, C)


def settled_out_of_order(books: Books) -> None:
    books.deliveries[0].settled, books.deliveries[1].settled = at(0, B), at(0, C)
    books.deliver("g", "p", [A]).settled = at(0, A)


def never_settled(books: Books) -> None:
    books.deliveries[1].settled = at(0, B)


def came_back(books: Books) -> None:
    books.deliveries[1].settled = at(5, B, C)
    books.deliver("g", "p", [C]).asked = 6


def skipped(books: Books) -> None:
    books.deliveries[0].keys = [A, C]


def turned_round(books: Books) -> None:
    books.deliveries[1].keys = [C, B]


def not_stored(books: Books) -> None:
    books.deliveries[1].keys = [B, C, ("w", 9)]


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lost, "lost in p"),
        (phantom, "nobody wrote"),
        (settled_twice, "settled twice"),
        (settled_out_of_order, "settled out of order"),
        (never_settled, "never settled"),
        (came_back, "came back after a confirmed ack"),
        (skipped, "out of order or skipped"),
        (turned_round, "out of order or skipped"),
        (not_stored, "not stored was delivered"),
    ],
)
def test_an_anomaly_is_found(plant: Callable[[Books], None], said: str) -> None:
    books = good()
    plant(books)
    with pytest.raises(AssertionError, match=said):
        books.check(STORED)


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ([*STORED, ("p", 4, A)], "stored twice"),
        ([("p", 1, B), ("p", 2, A), ("p", 3, C)], "changed places"),
    ],
)
def test_a_bad_database_is_found(stored: list[tuple[str, int, Key]], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        good().check(stored)


def test_an_ack_of_which_nobody_knows_may_have_counted_or_not() -> None:
    books = good()
    books.deliveries[1].settled, books.deliveries[1].unsure = at(0, B), [C]
    books.check(STORED)
    books.deliver("g", "p", [C]).settled = at(0, C)
    books.check(STORED)


def overlapping() -> Books:
    """The first lease is of 3 seconds from 10 on at the earliest; the second delivery came at 12.5."""
    books = good()
    one, two = books.deliveries
    one.asked, one.came, two.asked, two.came = 10.0, 11.0, 12.0, 12.5
    return books


def test_two_live_leases_are_found() -> None:
    with pytest.raises(AssertionError, match="two live leases"):
        overlapping().check_leases(3)
    with pytest.raises(AssertionError, match="two live leases"):
        overlapping().check_leases(3, [(8.0, 9.0), (13.0, 14.0)])


def test_a_lease_that_is_over_or_given_back_or_forgotten_is_no_anomaly() -> None:
    assert overlapping().check_leases(2) == 0
    assert overlapping().check_leases(3, [(11.5, 11.6)]) == 1
    books = overlapping()
    books.deliveries[0].answered = 12.0
    assert books.check_leases(3) == 0
