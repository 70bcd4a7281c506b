"""Hints spare looks in the database, and none that is old, wrong or of the dead keeps a partition from being seen."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from queenmq.cluster.caches.lease_hints import LeaseHints

SURE, PROBE = 0.5, 0.0


class Around:
    """A clock, a coin and servers that do as they are told."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.coin = SURE
        self.dead: set[str] = set()

    def hints(self, most: int = 100) -> LeaseHints:
        return LeaseHints(
            lambda server: server not in self.dead, most, clock=lambda: self.now, random=lambda: self.coin
        )


def test_cache_operations_get_and_set() -> None:
    hints = Around().hints()
    assert not hints.likely_leased("p", "g")
    hints.acquired("p", "g", "a", "orders", 60)
    assert hints.likely_leased("p", "g")
    assert not hints.likely_leased("p", "other")
    assert not hints.likely_leased("other", "g")
    hints.released("p", "g")
    assert not hints.likely_leased("p", "g")
    assert (len(hints), hints.stats()["hints_used"]) == (0, 1)


def test_ttl_expiration() -> None:
    around = Around()
    hints = around.hints()
    hints.acquired("p", "g", "a", "orders", 4)
    around.now += 3.9
    assert hints.likely_leased("p", "g")
    around.now += 0.1
    assert not hints.likely_leased("p", "g")
    assert len(hints) == 0


def test_after_a_few_seconds_the_first_look_asks_and_the_others_believe_its_answer() -> None:
    around = Around()
    hints = around.hints()
    hints.acquired("p", "g", "a", "orders", 60)
    around.now += 5.0
    assert hints.likely_leased("p", "g")
    around.now += 0.1
    assert not hints.likely_leased("p", "g")
    assert hints.likely_leased("p", "g"), "one asks for all"
    hints.answered("p", "g", leased=True)
    around.now += 5.0
    assert hints.likely_leased("p", "g")
    around.now += 0.1
    assert not hints.likely_leased("p", "g")
    hints.answered("p", "g", leased=False)
    assert (len(hints), hints.stats()["probes"]) == (0, 2)


def test_what_is_told_just_after_the_end_of_a_lease_is_asked_about_first() -> None:
    """It may be news of the lease that has just ended, told by the worker that began it."""
    around = Around()
    hints = around.hints()
    hints.released("p", "g")
    around.now += 0.05
    hints.acquired("p", "g", "a", "orders", 60)
    hints.acquired("p", "other", "a", "orders", 60)
    assert hints.likely_leased("p", "other")
    assert not hints.likely_leased("p", "g")
    assert hints.likely_leased("p", "g"), "one asks for all"
    hints.answered("p", "g", leased=False)
    assert not hints.likely_leased("p", "g")
    around.now += 0.1
    hints.acquired("p", "g", "a", "orders", 60)
    assert hints.likely_leased("p", "g")


def test_ends_of_leases_are_forgotten_soon() -> None:
    around = Around()
    hints = around.hints()
    for number in range(1000):
        hints.released(f"p{number}", "g")
        around.now += 0.01
    assert len(hints._ended) < 20


def test_a_later_word_replaces_the_one_before() -> None:
    around = Around()
    hints = around.hints()
    hints.acquired("p", "g", "a", "orders", 60)
    hints.acquired("p", "g", "b", "orders", 10)
    around.dead = {"a"}
    assert hints.likely_leased("p", "g")
    assert len(hints) == 1
    around.now += 10
    assert not hints.likely_leased("p", "g")
    hints.acquired("p", "g", "b", "orders", 10)
    hints.acquired("p", "g", "b", "orders", 0)
    assert not hints.likely_leased("p", "g"), "it is over as soon as it is told"


def test_a_renewed_hint_outlives_the_schedule_of_the_one_before() -> None:
    around = Around()
    hints = around.hints()
    hints.acquired("p", "g", "a", "orders", 2)
    hints.acquired("p", "g", "a", "orders", 60)
    around.now += 2
    assert hints.stats()["size"] == 1
    assert hints.likely_leased("p", "g")


def test_the_dead_hold_nothing() -> None:
    around = Around()
    hints = around.hints()
    hints.acquired("p", "g", "a", "orders", 60)
    around.dead = {"a"}
    assert not hints.likely_leased("p", "g")
    around.dead = set()
    assert not hints.likely_leased("p", "g"), "the hint is gone, and does not come back with the server"
    assert hints.stats() == {
        "size": 0,
        "hints_used": 0,
        "hints_right": 0,
        "hints_wrong": 0,
        "accuracy": 1.0,
        "probes": 0,
        "ignored_dead": 1,
        "evictions": 0,
    }


def test_one_look_in_a_hundred_asks_the_database_and_its_answer_counts() -> None:
    around = Around()
    hints = around.hints()
    for partition in ("right", "wrong"):
        hints.acquired(partition, "g", "a", "orders", 60)
        around.coin = 0.01
        assert hints.likely_leased(partition, "g")
        around.coin = 0.0099
        assert not hints.likely_leased(partition, "g")
        around.coin = SURE
        hints.answered(partition, "g", leased=partition == "right")
    assert hints.likely_leased("right", "g")
    assert not hints.likely_leased("wrong", "g")
    stats = hints.stats()
    assert (stats["probes"], stats["hints_used"], stats["accuracy"]) == (2, 3, 0.5)
    assert (stats["hints_right"], stats["hints_wrong"]) == (1, 1)


def test_an_answer_counts_for_the_hint_that_was_probed_and_once() -> None:
    around = Around()
    hints = around.hints()
    hints.answered("p", "g", leased=False)
    hints.acquired("p", "g", "a", "orders", 60)
    hints.answered("p", "g", leased=False)
    assert hints.likely_leased("p", "g"), "nobody probed: the hint came after the question"
    around.coin = PROBE
    hints.likely_leased("p", "g")
    around.coin = SURE
    hints.acquired("p", "g", "b", "orders", 60)
    hints.answered("p", "g", leased=False)
    assert hints.likely_leased("p", "g"), "another hint has come since"
    around.coin = PROBE
    hints.likely_leased("p", "g")
    around.coin = SURE
    hints.answered("p", "g", leased=True)
    hints.answered("p", "g", leased=False)
    hints.answered("q", "g", leased=False)
    assert hints.likely_leased("p", "g")
    assert (hints.stats()["hints_wrong"], hints.stats()["accuracy"]) == (0, 1.0)


def test_what_is_gone_takes_its_hints_along() -> None:
    hints = Around().hints()
    for partition in ("p1", "p2", "p3"):
        for group in ("g", "h"):
            server, queue = ("b", "bills") if partition == "p2" else ("a", "orders")
            hints.acquired(partition, group, server, queue, 60)
    hints.forget("p1")
    hints.forget("unknown")
    assert (len(hints), hints.likely_leased("p1", "g"), hints.likely_leased("p3", "h")) == (4, False, True)
    hints.forget_queue("bills")
    assert (len(hints), hints.likely_leased("p2", "g"), hints.likely_leased("p3", "h")) == (2, False, True)
    hints.forget_server("b")
    assert len(hints) == 2
    hints.forget_server("a")
    assert (len(hints), hints.likely_leased("p3", "h")) == (0, False)


def test_cache_eviction_takes_the_soonest_to_expire() -> None:
    hints = Around().hints(most=3)
    for partition, seconds in (("p1", 60), ("p2", 10), ("p3", 30)):
        hints.acquired(partition, "g", "a", "orders", seconds)
    hints.acquired("p3", "g", "a", "orders", 5)
    assert (len(hints), hints.stats()["evictions"]) == (3, 0), "a hint that replaces another needs no room"
    hints.acquired("p4", "g", "a", "orders", 1)
    assert (len(hints), hints.stats()["evictions"]) == (3, 1)
    assert [hints.likely_leased(f"p{n}", "g") for n in (1, 2, 3, 4)] == [True, True, False, True]


def test_a_hint_that_is_over_takes_nobody_s_place() -> None:
    hints = Around().hints(most=1)
    hints.acquired("p1", "g", "a", "orders", 60)
    hints.acquired("p2", "g", "a", "orders", 0)
    assert hints.likely_leased("p1", "g")
    assert hints.stats()["evictions"] == 0


def test_cache_eviction_after_many_renewals_still_takes_the_soonest() -> None:
    for renewals in range(60, 75):  # at one of these, what is void is thrown out just before
        hints = Around().hints(most=3)
        for partition, seconds in (("p1", 60), ("p2", 50), *[("p3", 70)] * renewals, ("p4", 80)):
            hints.acquired(partition, "g", "a", "orders", seconds)
        assert [hints.likely_leased(f"p{n}", "g") for n in (1, 2, 3, 4)] == [True, False, True, True]


def test_what_has_expired_makes_room_and_is_no_eviction() -> None:
    around = Around()
    hints = around.hints(most=2)
    hints.acquired("p1", "g", "a", "orders", 2)
    hints.acquired("p2", "g", "a", "orders", 60)
    around.now += 2
    hints.acquired("p3", "g", "a", "orders", 60)
    assert (len(hints), hints.stats()["evictions"]) == (2, 0)
    assert hints.likely_leased("p2", "g")


def test_expired_hints_do_not_pile_up() -> None:
    around = Around()
    hints = around.hints(most=10_000)
    for n in range(2_000):
        hints.acquired(f"p{n}", "g", "a", "orders", 10 if n % 2 else 1)
        around.now += 0.1
        assert len(hints) <= 60
    around.now += 60
    assert hints.stats()["size"] == 0
    assert not hints._hints
    assert not hints._schedule


def test_a_lease_that_is_renewed_all_the_time_takes_no_more_room() -> None:
    hints = Around().hints()
    for n in range(1_000):
        hints.acquired("p", "g", "a", "orders", 60)
        hints.acquired("q", "g", "a", "orders", 60)
        hints.released("q", "g")
        hints.acquired(f"r{n}", "g", "a", "bills", 60)
        hints.forget(f"r{n}")
        assert len(hints._schedule) <= 70
    assert hints.likely_leased("p", "g")


def test_no_room_means_no_hints() -> None:
    hints = Around().hints(most=0)
    hints.acquired("p", "g", "a", "orders", 60)
    assert not hints.likely_leased("p", "g")
    assert len(hints) == 0


PARTITIONS = st.sampled_from(["p1", "p2", "p3", "p4"])
GROUPS = st.sampled_from("gh")
SERVERS = st.sampled_from("ab")
QUEUES = st.sampled_from(["orders", "bills"])


class Hints(RuleBasedStateMachine):
    """Beside a list of what was said, read from its end."""

    @initialize()
    def begin(self) -> None:
        self.around = Around()
        self.hints = self.around.hints()
        self.said: dict[tuple[str, str], tuple[str, str, float]] = {}
        self.sure: dict[tuple[str, str], float] = {}

    @rule(partition=PARTITIONS, group=GROUPS, server=SERVERS, queue=QUEUES, seconds=st.sampled_from([0, 1, 2, 5, 20]))
    def acquired(self, partition: str, group: str, server: str, queue: str, seconds: int) -> None:
        self.hints.acquired(partition, group, server, queue, seconds)
        self.said[partition, group] = (server, queue, self.around.now + seconds)
        self.sure[partition, group] = self.around.now

    @rule(partition=PARTITIONS, group=GROUPS)
    def released(self, partition: str, group: str) -> None:
        self.hints.released(partition, group)
        self.said.pop((partition, group), None)

    @rule(seconds=st.sampled_from([0.5, 1, 3]))
    def time_passes(self, seconds: float) -> None:
        self.around.now += seconds

    @rule(server=SERVERS)
    def forget_server(self, server: str) -> None:
        self.hints.forget_server(server)
        self.said = {key: hint for key, hint in self.said.items() if hint[0] != server}

    @rule(queue=QUEUES)
    def forget_queue(self, queue: str) -> None:
        self.hints.forget_queue(queue)
        self.said = {key: hint for key, hint in self.said.items() if hint[1] != queue}

    @rule(partition=PARTITIONS)
    def forget(self, partition: str) -> None:
        self.hints.forget(partition)
        self.said = {key: hint for key, hint in self.said.items() if key[0] != partition}

    @rule(partition=PARTITIONS, group=GROUPS, leased=st.booleans())
    def probed(self, partition: str, group: str, leased: bool) -> None:
        self.around.coin = PROBE
        assert not self.hints.likely_leased(partition, group)
        self.around.coin = SURE
        self.hints.answered(partition, group, leased)
        self.sure[partition, group] = self.around.now
        if not leased:
            self.said.pop((partition, group), None)

    @rule(partition=PARTITIONS, group=GROUPS)
    def asked(self, partition: str, group: str) -> None:
        hint = self.said.get((partition, group))
        stands = hint is not None and hint[2] > self.around.now
        sure = self.around.now - self.sure.get((partition, group), 0.0) <= 5
        assert self.hints.likely_leased(partition, group) == (stands and sure)
        if not sure:
            self.sure[partition, group] = self.around.now

    @rule()
    def counted(self) -> None:
        assert self.hints.stats()["size"] == sum(hint[2] > self.around.now for hint in self.said.values())

    @invariant()
    def the_size_is_that_of_the_hints(self) -> None:
        assert len(self.hints) == sum(map(len, self.hints._hints.values()))
        assert all(self.hints._hints.values())


TestHints = Hints.TestCase
TestHints.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
