"""Who has consumers for what, and when we know too little of a server to leave it out."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from queenmq.cluster.caches.presence import ANY, Presence


def test_cache_operations_get_and_set() -> None:
    presence = Presence()
    assert presence.servers("orders") == frozenset()
    assert presence.register("orders", "a") == ["orders"]
    assert presence.register("orders", "b") == []
    assert presence.register("orders", "a") == []
    assert presence.register("bills", "b") == ["bills"]
    assert presence.servers("orders") == {"a", "b"}
    assert presence.servers("bills") == {"b"}
    assert presence.queues == {"orders", "bills"}
    assert presence.deregister("orders", "a") == []
    assert presence.deregister("orders", "a") == []
    assert presence.deregister("orders", "b") == ["orders"]
    assert presence.deregister("unknown", "b") == presence.deregister("bills", "unknown") == []
    assert presence.servers("orders") == frozenset()
    assert presence.queues == {"bills"}


def test_who_waits_for_any_queue_is_told_of_every_queue() -> None:
    presence = Presence()
    presence.register("orders", "a")
    assert presence.register(ANY, "b") == [ANY]
    assert presence.servers("orders") == {"a", "b"}
    assert presence.servers("unknown") == presence.servers(ANY) == {"b"}
    assert presence.queues == {"orders", ANY}
    assert presence.deregister(ANY, "b") == [ANY]
    assert presence.servers("unknown") == frozenset()


def test_a_server_that_is_gone_waits_for_nothing() -> None:
    presence = Presence()
    for queue, server in (("orders", "a"), ("bills", "a"), ("bills", "b"), (ANY, "a")):
        presence.register(queue, server)
    presence.told("a", 3)
    assert sorted(presence.forget("a")) == [ANY, "orders"]
    assert presence.forget("a") == presence.forget("unknown") == []
    assert presence.servers("bills") == {"b"}
    assert presence.queues == {"bills"}
    assert not presence.complete("a")


def test_a_server_is_known_completely_when_it_tells_as_many_queues_as_we_hold() -> None:
    presence = Presence()
    assert not presence.complete("a"), "it was never heard"
    presence.register("orders", "a")
    assert not presence.complete("a"), "it has not told how many"
    presence.told("a", 2)
    assert not presence.complete("a"), "one was lost"
    presence.register("bills", "a")
    assert presence.complete("a")
    presence.register("more", "a")
    assert not presence.complete("a"), "more than it told"
    presence.told("a", 3)
    assert presence.complete("a")
    presence.deregister("more", "a")
    presence.told("a", -1)
    assert not presence.complete("a"), "it does not tell"


def test_a_server_without_consumers_is_known_completely() -> None:
    presence = Presence()
    presence.told("a", 0)
    assert presence.complete("a")
    presence.forget("a")
    assert not presence.complete("a"), "a server that began again has not told anything"


def test_stats() -> None:
    presence = Presence(most=3)
    for queue in ("orders", "bills", "orders"):
        presence.register(queue, "a")
    presence.register("orders", "b")
    presence.register("one too many", "c")
    presence.deregister("orders", "a")
    presence.deregister("orders", "a")
    presence.told("d", 0)
    assert presence.stats() == {
        "queues_tracked": 2,
        "servers_tracked": 4,
        "registrations": 3,
        "deregistrations": 1,
        "not_remembered": 1,
    }
    presence.deregister("bills", "a")
    presence.forget("c")
    presence.forget("d")
    assert presence.stats()["servers_tracked"] == 1, "of the others nothing is kept"


def test_what_is_not_remembered_leaves_its_server_incomplete() -> None:
    presence = Presence(most=2)
    presence.register("q1", "a")
    presence.register("q2", "a")
    presence.told("a", 2)
    presence.told("b", 0)
    assert presence.complete("a")
    assert presence.complete("b")
    assert presence.register("q3", "a") == presence.register("q1", "b") == []
    assert presence.register("q2", "a") == []
    assert not presence.complete("a"), "it holds what the last heartbeat told, and one more that was not remembered"
    assert not presence.complete("b")
    presence.told("a", 3)
    assert not presence.complete("a")
    assert presence.servers("q3") == frozenset()
    presence.deregister("q1", "a")
    presence.told("a", 2)
    presence.register("q5", "a")
    assert not presence.complete("a"), "as many as it told, but not the same"
    presence.deregister("q3", "a")
    presence.told("a", 2)
    assert presence.complete("a")


def test_cache_eviction_makes_room_when_a_server_leaves() -> None:
    presence = Presence(most=2)
    presence.register("q1", "a")
    presence.register("q2", "a")
    presence.register("q1", "b")
    presence.forget("a")
    assert presence.register("q1", "b") == ["q1"]
    assert presence.register("q2", "b") == ["q2"]
    presence.deregister("q2", "b")
    assert presence.register("q3", "b") == ["q3"]
    assert presence.register("q4", "b") == []


@given(
    st.lists(st.tuples(st.sampled_from(["on", "off", "gone"]), st.sampled_from(["x", "y", ANY]), st.sampled_from("ab")))
)
def test_what_begins_and_ends_adds_up(steps: list[tuple[str, str, str]]) -> None:
    presence = Presence()
    pairs: set[tuple[str, str]] = set()
    begun: Counter[str] = Counter()
    for what, queue, server in steps:
        if what == "on":
            begun.update(presence.register(queue, server))
            pairs.add((queue, server))
        elif what == "off":
            begun.subtract(presence.deregister(queue, server))
            pairs.discard((queue, server))
        else:
            begun.subtract(presence.forget(server))
            pairs = {pair for pair in pairs if pair[1] != server}
        assert presence.queues == {name for name, count in begun.items() if count == 1} == {name for name, _ in pairs}
        for name in ("x", "y", "z"):
            assert presence.servers(name) == {each for at, each in pairs if at in (name, ANY)}
        for each in "ab":
            presence.told(each, sum(pair[1] == each for pair in pairs))
            assert presence.complete(each)
