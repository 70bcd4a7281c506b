"""A server is alive while it is heard, and what it was before is not mixed up with what it is after a restart."""

from __future__ import annotations

from queenmq.cluster.caches.health import Health, Heard

DAY = 24 * 60 * 60


def test_a_server_is_heard_for_the_first_time_and_again() -> None:
    health = Health(5)
    assert not health.alive("a")
    assert health.heard("a", 1, 100) is Heard.FIRST
    assert health.heard("a", 1, 101) is Heard.AGAIN
    assert health.heard("b", 1, 101) is Heard.FIRST
    assert health.alive("a")
    assert not health.alive("c")
    assert list(health.servers) == ["a", "b"]


def test_ttl_expiration_of_a_server_that_falls_silent() -> None:
    health = Health(5)
    health.heard("a", 1, 100)
    health.heard("b", 1, 101)
    assert health.expired(104.9) == []
    assert health.expired(105) == ["a"]
    assert health.expired(105.5) == [], "it is told once"
    assert (health.alive("a"), health.alive("b")) == (False, True)
    assert list(health.servers) == ["a", "b"]
    assert health.heard("a", 1, 106) is Heard.BACK
    assert health.alive("a")
    assert health.heard("a", 1, 107) is Heard.AGAIN
    assert health.expired(108) == ["b"]
    assert health.expired(112) == ["a"]


def test_a_restart_shows_whether_it_was_dead_or_not() -> None:
    health = Health(5)
    health.heard("a", 1, 100)
    assert health.heard("a", 2, 101) is Heard.RESTARTED
    assert health.heard("a", 2, 102) is Heard.AGAIN
    health.expired(110)
    assert health.heard("a", 3, 111) is Heard.RESTARTED
    assert health.alive("a")
    assert health.stats()["restarts_detected"] == 2


def test_the_dead_are_forgotten_after_a_day() -> None:
    health = Health(5)
    health.heard("a", 1, 100)
    assert health.expired(100 + 2 * DAY) == ["a"], "nobody is forgotten before it was told that it is dead"
    health.heard("b", 1, 100 + 2 * DAY)
    assert health.stats()["servers_tracked"] == 2
    assert health.expired(101 + 2 * DAY) == []
    assert list(health.servers) == ["b"]
    assert health.expired(105 + 2 * DAY) == ["b"]
    assert health.expired(100 + 3 * DAY - 0.1) == []
    assert list(health.servers) == ["b"]
    health.expired(100 + 3 * DAY)
    assert not health.servers
    assert health.heard("a", 1, 101 + 3 * DAY) is Heard.FIRST


def test_stats() -> None:
    wall = iter([1_704_067_200.0, 1_704_067_200.0625, 1_704_067_201.999])
    health = Health(5, wall=lambda: next(wall))
    health.heard("queen-mq-0", 1, 100)
    health.heard("queen-mq-1", 1, 100)
    health.heard("queen-mq-1", 2, 104)
    health.expired(106)
    assert health.stats() == {
        "servers_tracked": 2,
        "servers_alive": 1,
        "servers_dead": 1,
        "heartbeats_received": 3,
        "restarts_detected": 1,
        "last_heartbeat": {"queen-mq-0": "2024-01-01T00:00:00.000Z", "queen-mq-1": "2024-01-01T00:00:01.999Z"},
    }
