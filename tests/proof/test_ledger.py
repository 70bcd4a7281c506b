"""The ledger sees every anomaly that it is there for, and takes none for one that is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.proof.ledger import Delivery, Event, Key, Ledger, Pushed, Verdict

A, B, C = ("w", 0), ("w", 1), ("w", 2)
Rows = list[tuple[str, int, Key, str]]
Letters = list[tuple[str, str, Key]]
STORED: Rows = [("p", 1, A, "a"), ("p", 2, B, "b"), ("p", 3, C, "c")]


class Case:
    """A good run: all are delivered at 10; A is completed, B fails, is delivered again at 20 and completed with C."""

    def __init__(self) -> None:
        self.ledger = Ledger(("g",))
        self.ledger.pushed = {key: Pushed("p", 1.0, 2.0, sure=True) for key in (A, B, C)}
        self.stored = list(STORED)
        self.dead: Letters = []
        self.first = self.deliver([A, B, C], 10.0)
        self.say(self.first, A, "completed")
        self.say(self.first, B, "failed")
        self.second = self.deliver([B, C], 20.0)
        self.say(self.second, B, "completed")
        self.say(self.second, C, "completed")

    def deliver(self, keys: list[Key], asked: float, *, auto: bool = False) -> Delivery:
        made = self.ledger.deliver("g", "p", keys, asked, auto=auto)
        made.came = asked + 1
        return made

    def say(self, delivery: Delivery, key: Key, status: str, *, success: bool = True, dead: bool = False) -> None:
        sent = delivery.came + 1
        delivery.verdicts.append(Verdict(key, status, success, dead, sent, sent + 1, sure=True, excused=False))

    def change(self, delivery: Delivery, key: Key, **changes: object) -> None:
        delivery.verdicts = [
            one._replace(**changes) if one.key == key else one  # type: ignore[arg-type]  # names of its fields
            for one in delivery.verdicts
        ]

    @property
    def problems(self) -> list[str]:
        return self.ledger.problems(self.stored, self.dead)


class AutoCase(Case):
    """Everything in one answer to an autoAck pop."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger.deliveries.clear()
        self.first = self.deliver([A, B, C], 10.0, auto=True)


def lost(case: Case) -> None:
    case.stored.remove(("p", 3, C, "c"))


def phantom(case: Case) -> None:
    case.stored.append(("p", 4, ("w", 9), "x"))


def stored_twice(case: Case) -> None:
    case.stored.append(("p", 4, B, "x"))


def one_id_twice(case: Case) -> None:
    case.ledger.pushed["w", 3] = Pushed("p", 1.0, 2.0, sure=False)
    case.stored.append(("p", 4, ("w", 3), "b"))


def given_id_not_recognised(case: Case) -> None:
    case.ledger.not_duplicates.append(B)


def stored_out_of_order(case: Case) -> None:
    case.stored = [("p", 1, B, "b"), ("p", 2, A, "a"), ("p", 3, C, "c")]


def never_delivered(case: Case) -> None:
    case.ledger.pushed["w", 3] = Pushed("p", 1.0, 2.0, sure=True)
    case.stored.append(("p", 4, ("w", 3), "d"))


def delivered_from_nowhere(case: Case) -> None:
    case.second.keys.append(("w", 9))


def swallowed(case: Case) -> None:
    """C is completed in the same batch of acks."""
    case.ledger.deliveries.remove(case.second)
    case.say(case.first, C, "completed")


def retry_swallowed(case: Case) -> None:
    swallowed(case)
    case.change(case.first, B, status="retry")


def no_dead_letter(case: Case) -> None:
    case.change(case.second, B, status="dlq")


def no_dead_letter_at_the_limit(case: Case) -> None:
    case.change(case.second, B, status="failed", dead=True)


def came_back(case: Case) -> None:
    case.deliver([C], 30.0)


def came_back_from_the_dead(case: Case) -> None:
    case.change(case.second, C, status="dlq")
    case.dead.append(("g", "p", C))
    case.deliver([C], 30.0)


def skipped(case: Case) -> None:
    case.first.keys = [A, C]


def turned_round(case: Case) -> None:
    case.second.keys = [C, B]


def overtaken(case: Case) -> None:
    """C comes before B is settled."""
    case.second.came = 11.5
    case.second.keys = [C]
    case.deliver([B], 40.0)


def came_back_after_an_earlier_seek(case: Case) -> None:
    case.ledger.seeks.append(Event(15.0, 16.0, "g", None))
    case.first.keys, case.second.keys = [], [A, B, C]
    case.deliver([C], 30.0)


def sought_in_vain(case: Case) -> None:
    case.ledger.seeks.append(Event(40.0, 41.0, "g", None))


def unseen_dead_letter(case: Case) -> None:
    case.dead.append(("g", "p", ("w", 7)))


def dead_twice(case: Case) -> None:
    case.dead += [("g", "p", C)] * 2


def too_early(case: Case) -> None:
    case.ledger.delay = 15.0


def of_a_deleted_queue(case: Case) -> None:
    case.ledger.deletions.append(Event(5.0, 6.0))


ANOMALIES = [
    (lost, "lost after its push was answered"),
    (phantom, "none has pushed"),
    (stored_twice, "stored twice"),
    (one_id_twice, "a transaction id exists twice"),
    (given_id_not_recognised, "not recognised by the id"),
    (stored_out_of_order, "stored out of order"),
    (never_delivered, "never delivered"),
    (delivered_from_nowhere, "where none has pushed it"),
    (swallowed, "swallowed"),
    (retry_swallowed, "swallowed"),
    (no_dead_letter, "there is no dead letter"),
    (no_dead_letter_at_the_limit, "there is no dead letter"),
    (came_back, "came back after a confirmed ack"),
    (came_back_from_the_dead, "came back after a confirmed ack"),
    (came_back_after_an_earlier_seek, "came back after a confirmed ack"),
    (skipped, "out of order or skipped"),
    (turned_round, "out of order or skipped"),
    (overtaken, "before what stands before it was settled"),
    (sought_in_vain, "not delivered after a seek"),
    (unseen_dead_letter, "a dead letter that was never delivered"),
    (dead_twice, "dead-lettered 2 times"),
    (too_early, "before its delay was over"),
    (of_a_deleted_queue, "after its queue was deleted"),
]


def test_a_good_run_has_no_problems() -> None:
    assert Case().problems == []
    assert AutoCase().problems == []


@pytest.mark.parametrize(("plant", "said"), ANOMALIES, ids=[plant.__name__ for plant, _ in ANOMALIES])
def test_an_anomaly_is_found(plant: Callable[[Case], None], said: str) -> None:
    case = Case()
    plant(case)
    assert any(said in problem for problem in case.problems), case.problems


def test_what_an_autoack_pop_takes_is_in_one_answer() -> None:
    missing, twice = AutoCase(), AutoCase()
    missing.first.keys = [A, B]
    assert any("in no answer" in problem for problem in missing.problems)
    missing.ledger.cut_answers = 1
    assert missing.problems == []
    twice.deliver([C], 30.0, auto=True)
    assert any("in two answers" in problem for problem in twice.problems)
    twice.ledger.restarts = True
    assert twice.problems == []


def test_what_a_deletion_or_retention_took_is_not_lost() -> None:
    deleted, trimmed = Case(), Case()
    deleted.stored.clear()
    deleted.ledger.deletions.append(Event(60.0, 61.0))
    assert deleted.problems == []
    trimmed.stored.clear()
    trimmed.ledger.trims = True
    assert trimmed.problems == []


def test_a_seek_brings_everything_back() -> None:
    case = Case()
    case.ledger.seeks.append(Event(40.0, 41.0, "g", "p"))
    case.deliver([A, B, C], 42.0)
    assert case.problems == []


def test_an_ack_of_which_none_knows_may_have_counted() -> None:
    case = Case()
    case.change(case.second, C, success=False, sure=False)
    assert case.problems == []
    case.deliver([C], 30.0)
    assert case.problems == []


def test_a_push_without_id_whose_answer_was_lost_may_be_stored_twice() -> None:
    case = Case()
    case.ledger.pushed[C] = case.ledger.pushed[C]._replace(sure=False)
    case.stored.append(("p", 4, C, "d"))
    case.say(case.deliver([C], 30.0), C, "completed")
    assert case.problems == []


def test_a_failure_behind_which_more_was_completed_is_excused() -> None:
    case = Case()
    swallowed(case)
    case.change(case.first, B, excused=True)
    assert not any("swallowed" in problem for problem in case.problems)
