"""Servers tell each other what concerns them, and take nothing from strangers, from the past, or twice."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from queenmq.cluster import local
from queenmq.cluster.local import Local
from queenmq.cluster.messages import (
    ConsumerDeregistered,
    ConsumerRegistered,
    Heartbeat,
    LeaseHintAcquired,
    LeaseHintReleased,
    MessageAvailable,
    PartitionDeleted,
    QueueConfigDelete,
    QueueConfigSet,
    encode,
)
from queenmq.cluster.packets import Kind, Packet, Sealer
from queenmq.cluster.siblings import singly
from queenmq.domain.queue_config import QueueConfig
from tests.cluster.hosts import SECRET, Host, Net
from tests.engine.saying import until


@pytest.fixture
async def net() -> AsyncIterator[Net]:
    made = Net()
    yield made
    made.close()


async def three(net: Net) -> tuple[Host, Host, Host]:
    names = ("a", "b", "c")
    for name in names:
        net.start(name, [other for other in names if other != name])
    await net.met()
    return net.hosts["a"], net.hosts["b"], net.hosts["c"]


async def waits(net: Net, host: Host, queue: str | None) -> None:
    """Somebody begins to wait there, and everybody has heard of it."""
    host.bus.arrived(queue)
    name = queue or ""
    for other in net.hosts.values():
        if other is not host:
            await until(lambda other=other: host.name in other.gateway._audience.presence.servers(name))  # type: ignore[misc]
    await net.met()


async def test_a_push_is_told_to_servers_with_consumers_and_to_no_other(net: Net) -> None:
    a, b, c = await three(net)
    await waits(net, b, "orders")
    a.bus.pushed([("orders", "p1"), ("bills", "p1")])
    await until(lambda: b.worker.pushes == [("orders", "p1")])
    await until(lambda: a.wire.count(Kind.MESSAGE_AVAILABLE) == 5)  # once, and four times more in case it was lost
    assert {address for packet, address in a.wire.packets if packet.kind is Kind.MESSAGE_AVAILABLE} == set(
        net.ports("b")
    )
    assert b.worker.pushes == [("orders", "p1")]
    assert c.worker.pushes == []
    assert a.stats["consumer_presence"]["notifications_targeted"] == 1
    assert a.stats["consumer_presence"]["notifications_broadcast"] == 0


async def test_a_freed_partition_is_told_with_its_group(net: Net) -> None:
    a, b, _ = await three(net)
    await waits(net, b, "orders")
    a.bus.freed("orders", "p1", "billing")
    await until(lambda: b.worker.frees == [("orders", "p1", "billing")])


async def test_who_waits_for_a_namespace_hears_of_every_queue(net: Net) -> None:
    a, b, c = await three(net)
    await waits(net, b, None)
    a.bus.pushed([("orders", "p1")])
    await until(lambda: b.worker.pushes == [("orders", "p1")])
    assert c.worker.pushes == []


async def test_when_nothing_is_known_of_a_server_it_is_told_everything(net: Net) -> None:
    """It has been heard, but not for what it waits: its count does not match what we hold."""
    a, b, c = await three(net)
    b.wire.loses = lambda packet: packet.kind is Kind.CONSUMER_REGISTERED
    b.bus.arrived("orders")
    await until(lambda: "b" in a.gateway._audience.vague)
    await until(lambda: "" in next(iter(a.bus._siblings.values())).waits_for)
    assert not a.gateway._audience.presence.servers("orders")
    a.bus.pushed([("orders", "p1")])
    await until(lambda: b.worker.pushes == [("orders", "p1")])
    assert c.worker.pushes == []


async def test_before_anybody_is_heard_news_goes_everywhere(net: Net) -> None:
    a = net.start("a", ["b", "c"])
    await until(lambda: "" in next(iter(a.bus._siblings.values())).waits_for)
    a.bus.pushed([("orders", "p1")])
    await until(lambda: a.wire.count(Kind.MESSAGE_AVAILABLE) >= 2)
    assert {address for packet, address in a.wire.packets if packet.kind is Kind.MESSAGE_AVAILABLE} == set(
        net.ports("b", "c")
    )
    assert a.stats["consumer_presence"]["notifications_broadcast"] == 1


async def test_news_for_a_single_peer_with_consumers_counts_as_targeted(net: Net) -> None:
    a = net.start("a", ["b"])
    b = net.start("b", ["a"])
    await net.met()
    await waits(net, b, "orders")
    a.bus.pushed([("orders", "p1")])
    a.bus.freed("orders", "p1", "billing")
    await until(lambda: len(b.worker.pushes) == len(b.worker.frees) == 1)
    presence = a.stats["consumer_presence"]
    assert (presence["notifications_targeted"], presence["notifications_broadcast"]) == (2, 0)


async def test_a_peer_whose_address_is_found_late_is_told_everything_too(net: Net) -> None:
    """Its name had no address when this server began."""
    a = net.start("a", ["x"])
    await until(lambda: bool(a.gateway._audience._found) and not a.gateway._audience.unheard)
    a.gateway._audience._dead_after = 60.0  # so that the test has time for what follows
    b = net.start("b", [])
    b.wire.send = lambda datagram, address: None  # type: ignore[method-assign]  # it says nothing
    # Not added to the table: a look-up under way goes through it.
    a.gateway._peers._found = {**a.gateway._peers._found, ("b.late.invalid", 1): net.ports("b")}
    await until(lambda: set(net.ports("b")) <= set(a.gateway._audience._found))
    b.bus.arrived("orders")
    await until(lambda: bool(b.gateway._here))

    def is_told() -> bool:
        a.bus.pushed([("orders", "p1")])
        return bool(b.worker.pushes)

    await until(is_told)


async def test_who_waits_no_longer_is_not_told_any_more(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queenmq.cluster.siblings._LINGER", 0.05)
    a, b, _ = await three(net)
    await waits(net, b, "orders")
    b.bus.left("orders")
    await until(lambda: not a.gateway._audience.presence.servers("orders"))
    await until(lambda: not next(iter(a.bus._siblings.values())).waits_for)
    a.bus.pushed([("orders", "p1")])
    await until(lambda: not a.bus._sending)
    assert a.wire.count(Kind.MESSAGE_AVAILABLE) == 0


async def test_a_dead_server_is_noticed_and_what_it_waited_for_is_forgotten(net: Net) -> None:
    a, b, c = await three(net)
    await waits(net, b, "orders")
    net.stop("b")
    await until(lambda: a.worker.servers() == {"c"} and c.worker.servers() == {"a"})
    assert not a.gateway._audience.presence.servers("orders")
    health = a.stats["server_health"]
    assert (health["servers_alive"], health["servers_dead"]) == (1, 1)
    assert set(health["last_heartbeat"]) == {"b", "c"}


async def test_a_restarted_server_is_heard_at_once_and_its_past_counts_for_nothing(net: Net) -> None:
    a, b, _ = await three(net)
    await waits(net, b, "orders")
    net.stop("b")
    b = net.start("b", ["a", "c"], session=2)
    await until(lambda: a.stats["server_health"]["restarts_detected"] == 1)
    assert "b" in a.worker.servers()
    await until(lambda: not a.gateway._audience.presence.servers("orders"))
    await waits(net, b, "bills")
    a.bus.pushed([("bills", "p1")])
    await until(lambda: b.worker.pushes == [("bills", "p1")])


async def test_a_server_that_comes_back_is_told_for_what_we_wait_and_makes_us_refresh(net: Net) -> None:
    a, b, _ = await three(net)
    await waits(net, b, "orders")
    a.wire.deaf = True
    await until(lambda: a.worker.servers() == set())
    a.worker.notices.clear()
    a.wire.deaf = False
    await until(lambda: a.worker.servers() == {"b", "c"})
    assert Local.REFRESH in [kind for kind, _ in a.worker.notices]
    await until(lambda: "b" in a.gateway._audience.presence.servers("orders"))


async def test_a_server_that_is_first_heard_is_told_at_once_for_what_we_wait(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queenmq.cluster.gateway._REPEATED_PER_HEARTBEAT", 0)
    a = net.start("a", ["b"])
    for name in ("orders", "bills", None):
        a.bus.arrived(name)
    await until(lambda: len(a.gateway._here) == 3 and not a.gateway._echoes._latest)
    b = net.start("b", ["a"])
    await until(lambda: set(b.gateway._audience.presence.queues) == {"orders", "bills", ""})


async def test_who_was_never_heard_is_told_nothing_after_a_while(net: Net) -> None:
    a = net.start("a", ["b"])
    await until(lambda: a.gateway._audience.living() == net.ports("b"))
    await until(lambda: a.gateway._audience.living() == a.gateway._audience.waiting_for("orders") == [])
    a.gateway.pushed("orders", "p1")
    assert a.wire.count(Kind.MESSAGE_AVAILABLE) == 0
    beats = a.wire.count(Kind.HEARTBEAT)
    await until(lambda: a.wire.count(Kind.HEARTBEAT) > beats)  # it may still come


async def test_only_so_much_is_remembered_to_know_echoes(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queenmq.cluster.gateway._MOST_TIMES", 10)
    b = net.start("b", [])
    sealer = Sealer(SECRET, "z", 5, clock=b.gateway._clock.micros)
    for number in range(100):
        b.gateway._heard(sealer.seal(*encode(MessageAvailable("orders", f"p{number}", 1))), ("127.0.0.1", 1))
    assert list(b.gateway._times) == [("z", "orders", f"p{number}") for number in range(90, 100)]


async def test_a_worker_that_begins_anew_hears_who_is_alive(net: Net) -> None:
    a, _, _ = await three(net)
    a.worker.notices.clear()
    a.bus.listen(a.worker)  # says hello again
    await until(lambda: a.worker.servers() == {"b", "c"})


async def test_configurations_go_to_everybody(net: Net) -> None:
    a, b, c = await three(net)
    config = QueueConfig(queue_id=7, version=42, lease_time=30)
    a.tell(QueueConfigSet("orders", config, 42), "config", "orders")
    said = QueueConfigSet("orders", config, 42)
    await until(lambda: said in b.worker.messages and said in c.worker.messages)
    a.tell(QueueConfigDelete("orders"), "config", "orders")
    await until(lambda: QueueConfigDelete("orders") in b.worker.messages)
    a.tell(PartitionDeleted("orders", "p1"), "partition", "orders", "p1")
    await until(lambda: PartitionDeleted("orders", "p1") in c.worker.messages)


async def test_lease_hints_go_to_those_who_want_single_partitions(net: Net) -> None:
    a, b, c = await three(net)
    await waits(net, b, singly("orders"))
    await waits(net, c, "orders")
    ends = int(time.time() * 1000) + 60_000
    hint = LeaseHintAcquired("uid", "g", "a", ends, "orders")
    a.tell(hint, "lease", "uid", "g", concerning=singly("orders"))
    await until(lambda: bool(b.worker.messages))
    (heard,) = set(b.worker.messages)
    assert isinstance(heard, LeaseHintAcquired)
    assert abs(heard.expires_at_ms - ends) < 20_000
    a.tell(LeaseHintReleased("uid", "g", "a", "orders"), "lease", "uid", "g", concerning=singly("orders"))
    await until(lambda: LeaseHintReleased("uid", "g", "a", "orders") in b.worker.messages)
    assert c.worker.messages == []


async def test_the_echo_of_a_hint_does_not_outlive_the_release_by_a_third_server(net: Net) -> None:
    a, b, c = await three(net)
    await waits(net, b, singly("orders"))
    hint = LeaseHintAcquired("uid", "g", "a", int(time.time() * 1000) + 60_000, "orders")
    a.tell(hint, "lease", "uid", "g", concerning=singly("orders"))
    await until(lambda: len(b.worker.messages) == 1)
    c.tell(LeaseHintReleased("uid", "g", "c", "orders"), "lease", "uid", "g", concerning=singly("orders"))
    await until(lambda: a.wire.count(Kind.LEASE_HINT_ACQUIRED) == 5)
    await net.silence(b)
    kinds = [type(each) for each in b.worker.messages]
    assert kinds.count(LeaseHintAcquired) == 1
    assert kinds[-1] is LeaseHintReleased


async def test_the_time_of_a_hint_is_right_although_the_hosts_clocks_are_not(net: Net) -> None:
    """The servers share the database's clock, which is an hour ahead of this host's."""
    ahead = int(time.time() * 1000) + 3_600_000
    a = net.start("a", ["b"], now_ms=ahead)
    b = net.start("b", ["a"], now_ms=ahead)
    await net.met()
    await waits(net, b, singly("orders"))
    ends = int(time.time() * 1000) + 60_000
    a.tell(LeaseHintAcquired("uid", "g", "a", ends, "orders"), "lease", "uid", "g", concerning=singly("orders"))
    await until(lambda: bool(b.worker.messages))
    heard = b.worker.messages[0]
    assert isinstance(heard, LeaseHintAcquired)
    assert abs(heard.expires_at_ms - ends) < 20_000


async def test_what_is_lost_is_said_again_and_heard_once(net: Net) -> None:
    a, b, _ = await three(net)
    await waits(net, b, "orders")
    times: Counter[bytes] = Counter()

    def four_of_five(packet: Packet) -> bool:
        times[packet.payload] += 1
        return packet.kind is Kind.MESSAGE_AVAILABLE and times[packet.payload] < 5

    a.wire.loses = four_of_five
    a.bus.pushed([("orders", "p1"), ("orders", "p2")])
    await until(lambda: sorted(b.worker.pushes) == [("orders", "p1"), ("orders", "p2")])
    a.wire.loses = lambda packet: False
    b.worker.pushes.clear()
    a.bus.pushed([("orders", "p1")])
    await until(lambda: a.wire.count(Kind.MESSAGE_AVAILABLE) == 15)
    await net.silence(b)
    assert b.worker.pushes == [("orders", "p1")]


async def test_two_pushes_of_the_same_moment_are_two(net: Net) -> None:
    a, b, _ = await three(net)
    await waits(net, b, "orders")
    a.gateway._clock.millis = lambda: 5  # type: ignore[method-assign]
    a.gateway.pushed("orders", "p1")
    await until(lambda: len(b.worker.pushes) == 1)
    a.gateway.pushed("orders", "p1")
    await until(lambda: len(b.worker.pushes) == 2)


async def test_of_very_much_news_of_one_queue_a_part_is_held_back(net: Net) -> None:
    a, b, _ = await three(net)
    await waits(net, b, "orders")
    for number in range(1000):
        a.gateway.pushed("orders", f"p{number}")
    assert a.stats["transport"]["held_back"] > 0
    await until(lambda: len(b.worker.pushes) >= 50)


async def test_a_payload_that_is_too_large_is_refused_and_counted(net: Net) -> None:
    a, b, _ = await three(net)
    long = "ü" * 255
    await waits(net, b, long)
    a.bus.freed(long, long, long)
    await until(lambda: a.stats["transport"]["too_large"] == 1)
    assert b.worker.frees == []


class Recorder:
    """Somebody on the network who has seen everything that `a` sent to `b`."""

    def __init__(self, a: Host, b: Host) -> None:
        self._b = b
        self._seen = list(a.wire.datagrams)

    def replay(self) -> int:
        for datagram in self._seen:
            self._b.gateway._heard(datagram, ("203.0.113.9", 6633))
        return len(self._seen)


async def test_replays_of_the_same_and_of_older_sessions_change_nothing(net: Net) -> None:
    a, b, _ = await three(net)
    await waits(net, b, "orders")
    a.bus.pushed([("orders", "p1")])
    await until(lambda: b.worker.pushes == [("orders", "p1")] and not a.gateway._echoes._latest)
    net.stop("a")
    await net.silence(b)
    recorder = Recorder(a, b)
    b.worker.pushes.clear()
    assert recorder.replay() == b.stats["transport"]["dropped"]["repeated"]
    assert b.worker.pushes == []
    a = net.start("a", ["b", "c"], session=2)
    await until(lambda: b.stats["server_health"]["restarts_detected"] == 1)
    assert recorder.replay() == b.stats["transport"]["dropped"]["outdated"]
    assert b.worker.pushes == []
    assert b.gateway._peers.address("a") == net.ports("a")[0]


async def test_a_server_that_has_just_begun_takes_no_recordings_either(net: Net) -> None:
    """Of an older session it knows from the database, of the same session by the time in the packet."""
    a, b, _ = await three(net)
    await waits(net, b, "orders")
    a.bus.pushed([("orders", "p1")])
    await until(lambda: b.worker.pushes == [("orders", "p1")])
    recorder = Recorder(a, b)
    net.stop("a")
    net.stop("b")
    later = int(time.time() * 1000) + 120_000
    b = net.start("b", [], session=2, floors={"a": 2})
    recorder._b = b
    assert recorder.replay() == b.stats["transport"]["dropped"]["outdated"]
    net.stop("b")
    b = net.start("b", [], session=3, floors={"a": 1}, now_ms=later)
    recorder._b = b
    assert recorder.replay() == b.stats["transport"]["dropped"]["stale"]
    assert b.worker.servers() == set()
    assert b.worker.pushes == []


async def test_forged_packets_change_nothing(net: Net) -> None:
    _, b, _ = await three(net)
    await waits(net, b, "orders")
    forger = Sealer(b"x" * 32, "a", 99)
    for message in (MessageAvailable("orders", "p1", 1), Heartbeat(1, 0), QueueConfigDelete("orders")):
        b.gateway._heard(forger.seal(*encode(message)), net.ports("a")[0])
    assert b.stats["transport"]["dropped"]["signature"] == 3
    assert b.worker.pushes == []
    assert b.worker.messages == []


async def test_a_payload_that_is_no_message_is_dropped_and_the_next_packet_is_heard(net: Net) -> None:
    b = net.start("b", [])
    sealer = Sealer(SECRET, "z", 5, clock=b.gateway._clock.micros)
    for kind in Kind:
        b.gateway._heard(sealer.seal(kind, b"\xc1"), ("127.0.0.1", 1))
    assert b.stats["transport"]["dropped"] == {"payload": len(Kind)}
    b.gateway._heard(sealer.seal(*encode(Heartbeat(1, 0))), ("127.0.0.1", 1))
    await until(lambda: b.worker.servers() == {"z"})


async def test_nobody_speaks_for_another(net: Net) -> None:
    b = net.start("b", [])
    sealer = Sealer(SECRET, "z", 5, clock=b.gateway._clock.micros)
    said = (
        ConsumerRegistered("orders", "y"),
        ConsumerDeregistered("orders", "y"),
        LeaseHintAcquired("uid", "g", "y", 2**50, "orders"),
        LeaseHintReleased("uid", "g", "y", "orders"),
    )
    for message in said:
        b.gateway._heard(sealer.seal(*encode(message)), ("127.0.0.1", 1))
    assert b.stats["transport"]["dropped"] == {"payload": len(said)}
    assert not b.gateway._audience.presence.queues


async def test_a_server_that_is_among_its_own_peers_stops_talking_to_itself(net: Net) -> None:
    a = net.start("a", ["a", "b"])
    await until(lambda: a.gateway._peers.addresses() == net.ports("b"))
    assert a.stats["transport"]["dropped"]["own"] >= 1
    assert a.stats["server_health"]["servers_tracked"] == 0


async def test_a_namesake_is_warned_of(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    a = net.start("a", [])
    other = Sealer(SECRET, "a", 2, clock=a.gateway._clock.micros)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            a.gateway._heard(other.seal(*encode(Heartbeat(1, 0))), ("127.0.0.1", 9))
        earlier = Sealer(SECRET, "a", 0, clock=a.gateway._clock.micros)
        a.gateway._warned -= 3600
        a.gateway._heard(earlier.seal(*encode(Heartbeat(1, 0))), ("127.0.0.1", 9))  # a recording of ourselves
    assert ["QUEEN_SERVER_ID" in record.message for record in caplog.records] == [True]
    assert a.stats["transport"]["dropped"] == {"namesake": 4}


async def test_a_server_that_moved_is_followed(net: Net) -> None:
    a = net.start("a", ["b"])
    b = net.start("b", ["a"])
    await net.met()
    b.bus.arrived("orders")
    await until(lambda: "b" in a.gateway._audience.presence.servers("orders"))
    net.stop("b")
    (elsewhere,) = net.ports("b2")
    own = net._sockets["b2"].dup()
    b = net.hosts["b"] = Host("b", own, net.ports("a"), session=2)
    net._started.append(b)
    await until(lambda: a.gateway._peers.address("b") == elsewhere)
    b.bus.arrived("orders")
    await until(lambda: "b" in a.gateway._audience.presence.servers("orders"))
    a.bus.pushed([("orders", "p1")])
    await until(lambda: b.worker.pushes == [("orders", "p1")])


async def test_a_registration_that_was_lost_is_told_again(net: Net) -> None:
    a, b, _ = await three(net)
    b.wire.loses = lambda packet: True
    b.bus.arrived("orders")
    await until(lambda: b.wire.count(Kind.CONSUMER_REGISTERED) >= 5 * 2)
    b.wire.loses = lambda packet: False
    await until(lambda: "b" in a.gateway._audience.presence.servers("orders"))


async def test_a_departure_that_was_lost_does_not_stay_forever(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queenmq.cluster.audience._VAGUE", 0.2)
    a, b, _ = await three(net)
    await waits(net, b, "orders")
    a.gateway._audience.presence.register("bills", "b")  # it left that one, and we have not heard
    a.gateway._audience._judge("b")
    assert "b" in a.gateway._audience.vague
    await until(lambda: not a.gateway._audience.presence.servers("bills"))
    await until(lambda: "b" in a.gateway._audience.presence.servers("orders") and "b" not in a.gateway._audience.vague)


async def test_the_statistics_are_given_to_a_worker_that_asks(net: Net) -> None:
    a, _, _ = await three(net)
    wanted = local.encode(local.StatsWanted(0, 17))
    a.bus.tell(Local.STATS_WANTED, ("asked", "17"), wanted)
    await until(lambda: any(kind is Local.STATS for kind, _ in a.worker.notices))
    notice = next(notice for kind, notice in a.worker.notices if kind is Local.STATS)
    assert (notice.of, notice.question) == (1, 17)
    assert notice.stats["server_id"] == "a"
    assert notice.stats["transport"]["sent"] > 0


async def test_what_cannot_be_dealt_with_ends_nothing_and_is_told_once(
    net: Net, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = net.start("a", [])
    sealer = Sealer(SECRET, "z", 5, clock=a.gateway._clock.micros)

    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    with caplog.at_level(logging.ERROR):
        with monkeypatch.context() as patched:
            patched.setattr(a.gateway, "_act", broken)
            for _ in range(3):
                a.gateway._received(sealer.seal(*encode(Heartbeat(1, 0))), ("127.0.0.1", 1))
        a.gateway.told(1, b"nonsense")
        a.gateway.told(77, b"nonsense")
    assert a.stats["transport"]["dropped"] == {"failed": 3}
    assert [record.exc_info is not None for record in caplog.records] == [True]
    a.gateway._received(sealer.seal(*encode(Heartbeat(1, 0))), ("127.0.0.1", 1))
    await until(lambda: a.worker.servers() == {"z"})


async def test_the_heart_goes_on_beating_after_a_defect(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    a = net.start("a", ["b"])
    failures: list[int] = []

    def broken() -> list[str]:
        failures.append(a.wire.count(Kind.HEARTBEAT))
        raise RuntimeError("a defect")

    monkeypatch.setattr(a.gateway._audience, "take_stock", broken)
    await until(lambda: len(failures) >= 3)
    assert failures[2] > failures[0]


async def test_the_clock_is_set_by_what_a_worker_tells(net: Net) -> None:
    a = net.start("a", [])
    a.bus.tell(Local.CLOCK, ("clock",), local.encode(local.Clock(1_000_000)))
    await until(lambda: 1_000_000 <= a.gateway._clock.millis() < 1_100_000)
