"""Whatever is sent again, in whatever order, is taken once at most, and a restarted sender at once."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from queenmq.cluster.packets import Kind, Packet
from queenmq.cluster.senders import Heard, Senders


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
