"""Whatever is sent again, in whatever order, is taken once at most, and a restarted sender at once."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.cluster.packets import Kind, Packet
from queenmq.cluster.senders import Heard, Senders

SECOND = 1_000_000
NOW = 1_700_000_000 * SECOND


def packet(sequence: int, session: int = 1, sender: str = "a") -> Packet:
    return Packet(Kind.HEARTBEAT, sender, session, sequence, b"")


def test_a_sender_is_heard_from_its_first_packet_on() -> None:
    senders = Senders()
    heard = [senders.hear(packet(sequence)) for sequence in (5, 6, 9)]
    assert heard == [Heard.FIRST, Heard.NEXT, Heard.NEXT]


def test_duplicates_and_overtaken_packets_are_not_fresh() -> None:
    senders = Senders()
    heard = [senders.hear(packet(sequence)) for sequence in (1, 3, 3, 2, 1, 4)]
    assert heard == [Heard.FIRST, Heard.NEXT, Heard.REPEATED, Heard.REPEATED, Heard.REPEATED, Heard.NEXT]


def test_a_restarted_sender_is_heard_at_once_and_its_past_never_again() -> None:
    senders = Senders()
    senders.hear(packet(1000, session=7))
    assert senders.hear(packet(1, session=8)) is Heard.RESTARTED
    assert senders.hear(packet(1001, session=7)) is Heard.OUTDATED
    assert senders.hear(packet(2, session=8)) is Heard.NEXT


def test_senders_do_not_know_of_each_other() -> None:
    senders = Senders()
    assert senders.hear(packet(9, session=9, sender="a")) is Heard.FIRST
    assert senders.hear(packet(1, session=1, sender="b")) is Heard.FIRST


def test_there_are_not_more_senders_than_allowed() -> None:
    senders = Senders(most=2)
    assert [senders.hear(packet(1, sender=name)) for name in "abc"] == [Heard.FIRST, Heard.FIRST, Heard.CROWDED]
    assert senders.hear(packet(2, sender="a")) is Heard.NEXT
    assert len(senders) == 2


def test_a_session_that_ended_before_we_began_is_outdated() -> None:
    senders = Senders(floors={"a": 7})
    assert senders.hear(packet(1, session=6)) is Heard.OUTDATED
    assert len(senders) == 0
    assert senders.hear(packet(1, session=6, sender="b")) is Heard.FIRST
    assert senders.hear(packet(1, session=7)) is Heard.FIRST
    assert senders.hear(packet(1, session=9)) is Heard.RESTARTED
    assert Senders(floors={"a": 7}).hear(packet(1, session=8)) is Heard.FIRST


@pytest.mark.parametrize(("off", "taken"), [(-61, False), (-60, True), (0, True), (60, True), (61, False)])
def test_the_first_packet_of_a_sender_is_of_this_minute(off: int, taken: bool) -> None:
    senders = Senders(now=lambda: NOW)
    heard = senders.hear(packet(NOW + off * SECOND))
    assert heard is (Heard.FIRST if taken else Heard.STALE)
    assert (heard.fresh, len(senders)) == (taken, taken)


@pytest.mark.parametrize(("off", "taken"), [(-61, False), (-60, True), (0, True), (60, True), (61, False)])
def test_the_first_packet_of_a_session_is_of_this_minute(off: int, taken: bool) -> None:
    senders = Senders(now=lambda: NOW)
    senders.hear(packet(NOW))
    heard = senders.hear(packet(NOW + off * SECOND, session=2))
    assert heard is (Heard.RESTARTED if taken else Heard.STALE)
    assert senders.hear(packet(NOW + 1)) is (Heard.OUTDATED if taken else Heard.NEXT)


def test_within_a_session_only_the_order_counts() -> None:
    senders = Senders(now=lambda: NOW)
    senders.hear(packet(NOW - 30 * SECOND))
    assert senders.hear(packet(NOW - 29 * SECOND)) is Heard.NEXT
    assert senders.hear(packet(NOW + 3600 * SECOND)) is Heard.NEXT
    assert senders.hear(packet(NOW)) is Heard.REPEATED


def test_a_recording_is_no_better_for_being_sent_to_somebody_who_has_just_begun() -> None:
    begins = NOW + 3600 * SECOND
    recorded = [packet(NOW + n * SECOND, session=5) for n in range(100)]
    assert {Senders(now=lambda: begins).hear(each) for each in recorded} == {Heard.STALE}
    assert {Senders(now=lambda: begins, floors={"a": 6}).hear(each) for each in recorded} == {Heard.OUTDATED}


def test_a_window_can_be_chosen() -> None:
    senders = Senders(now=lambda: NOW, window=SECOND)
    assert senders.hear(packet(NOW + SECOND + 1)) is Heard.STALE
    assert senders.hear(packet(NOW + SECOND)) is Heard.FIRST


@given(
    sent=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 4), st.integers(1, 12)), max_size=60),
    seed=st.integers(0, 2**32),
)
def test_whatever_is_replayed_only_what_is_newer_is_fresh(sent: list[tuple[str, int, int]], seed: int) -> None:
    again = sent * 2
    random.Random(seed).shuffle(again)
    senders = Senders()
    newest: dict[str, tuple[int, int]] = {}
    for sender, session, sequence in sent + again:
        fresh = senders.hear(packet(sequence, session, sender)).fresh
        assert fresh == ((session, sequence) > newest.get(sender, (0, 0)))
        if fresh:
            newest[sender] = (session, sequence)
