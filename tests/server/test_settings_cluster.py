"""The settings of coordination: what they take, what they refuse alone and together, what they never show."""

from __future__ import annotations

import socket

import pytest

from queenmq.cli.config import effective
from queenmq.server.control import Plan, receive_plan, send_plan
from queenmq.server.settings import table
from tests.server.reading import problems, settings

SECRET = "5ec2e7" + "0f" * 29


def peers(text: str, **environ: str) -> tuple[tuple[str, int], ...]:
    return settings(QUEEN_UDP_PEERS=text, QUEEN_SYNC_SECRET=SECRET, **environ).peers


def test_without_settings_a_server_is_alone_and_remembers() -> None:
    alone = settings()
    assert (alone.server_id, alone.peers, alone.sync_secret) == (None, (), None)
    assert (alone.udp_notify_port, alone.sync_enabled, alone.sync_recv_buffer) == (6633, True, 8)
    assert (alone.sync_heartbeat, alone.sync_dead_threshold) == (1_000, 5_000)
    assert (alone.cache_enabled, alone.cache_partition_max, alone.cache_partition_ttl) == (True, 100_000, 300_000)
    assert (alone.cache_refresh_interval, alone.lease_hint_max) == (60_000, 10_000)


def test_peers_are_names_and_addresses() -> None:
    text = "queen-1:7000,Queen_2.Local.,10.0.0.3:6633,[FD00:0::4]:7001,[fe80::5%eth0],4a"
    assert peers(text) == (
        ("queen-1", 7000),
        ("queen_2.local.", 6633),
        ("10.0.0.3", 6633),
        ("fd00::4", 7001),
        ("fe80::5%eth0", 6633),
        ("4a", 6633),
    )


def test_a_peer_without_a_port_has_ours() -> None:
    assert peers("a,b:1", QUEEN_UDP_NOTIFY_PORT="7000") == (("a", 7000), ("b", 1))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a,,b", "there is an empty one: a comma too many"),
        ("a,", "there is an empty one: a comma too many"),
        (",", "there is an empty one: a comma too many"),
        ("a, b", "in ' b' the host is not a name (spaces are not allowed)"),
        (":6633", "in ':6633' the host is not a name"),
        ("a:", "in 'a:' its host and port cannot be read"),
        ("a:x", "in 'a:x' its host and port cannot be read"),
        ("http://a", "in 'http://a' its host and port cannot be read"),
        ("[::1", "in '[::1' an IPv6 address needs brackets"),
        ("fd00::4", "in 'fd00::4' an IPv6 address needs brackets"),
        ("::1:6633", "in '::1:6633' an IPv6 address needs brackets"),
        ("a:0", "in 'a:0' the port must be 1 to 65535"),
        ("a:65536", "in 'a:65536' the port must be 1 to 65535"),
        ("10.0.0.256", "in '10.0.0.256' the IP address is not valid"),
        ("10.0.3:1", "in '10.0.3:1' the IP address is not valid"),
        ("7", "in '7' the IP address is not valid"),
        ("[::g]:1", "in '[::g]:1' the IP address is not valid"),
        ("[]:1", "in '[]:1' the IP address is not valid"),
        ("[10.0.0.1]:1", "in '[10.0.0.1]:1' the IP address is not valid"),
        ("-a", "in '-a' the host is not a name"),
        ("a..b", "in 'a..b' the host is not a name"),
        ("bücher", "in 'bücher' the host is not a name"),
        ("a;b", "in 'a;b' the host is not a name"),
        ("a\n", "in 'a\\n' the host is not a name"),
        ("x" * 254, "the host is not a name"),
    ],
)
def test_peers_that_cannot_be_read_are_refused_and_it_says_which(text: str, fault: str) -> None:
    [problem] = problems(QUEEN_UDP_PEERS=text, QUEEN_SYNC_SECRET=SECRET)
    assert problem.startswith(f"QUEEN_UDP_PEERS is {text!r}; it must be addresses like queen-1:6633,")
    assert fault in problem


@pytest.mark.parametrize(
    ("text", "twice"),
    [
        ("a:1,b:1,a:1", "a:1"),
        ("A:1,a:1", "a:1"),
        ("a,a:7000", "a:7000"),
        ("[fd00::4],[FD00:0::4]:7000,a", "[fd00::4]:7000"),
    ],
)
def test_a_peer_that_is_named_twice_is_refused(text: str, twice: str) -> None:
    assert problems(QUEEN_UDP_PEERS=text, QUEEN_SYNC_SECRET=SECRET, QUEEN_UDP_NOTIFY_PORT="7000") == [
        f"QUEEN_UDP_PEERS has {twice} more than once; drop one of them."
    ]


def test_one_host_may_have_several_peers() -> None:
    assert peers("a:1,a:2") == (("a", 1), ("a", 2))


def test_peers_need_a_secret_and_it_says_how_to_make_one() -> None:
    [problem] = problems(QUEEN_UDP_PEERS="a")
    assert problem.startswith("QUEEN_UDP_PEERS is set but QUEEN_SYNC_SECRET is not;")
    assert "`openssl rand -hex 32`" in problem
    assert '`python -c "import secrets; print(secrets.token_hex(32))"`' in problem
    for yes in ("1", "TRUE"):
        assert problems(QUEEN_UDP_PEERS="a", QUEEN_SYNC_ENABLED=yes) == [problem]
    assert len(problems(QUEEN_UDP_PEERS="")) == 1


@pytest.mark.parametrize("no", ["false", "False", "0"])
def test_peers_are_ignored_on_request(no: str) -> None:
    assert settings(QUEEN_UDP_PEERS="a", QUEEN_SYNC_ENABLED=no).peers == ()
    assert peers("a", QUEEN_SYNC_ENABLED=no) == ()


@pytest.mark.parametrize("name", ["a", "x" * 31, "queen-mq-0:6632", "!~"])
def test_a_server_has_a_name_that_fits_a_packet(name: str) -> None:
    assert settings(QUEEN_SERVER_ID=name).server_id == name


@pytest.mark.parametrize("name", ["x" * 32, "a b", " a", "ü", "a\n", "\x7f"])
def test_other_names_of_a_server_are_refused(name: str) -> None:
    assert problems(QUEEN_SERVER_ID=name) == [
        f"QUEEN_SERVER_ID is {name!r}; it must be 1 to 31 printable ASCII characters without spaces."
    ]


def test_one_lost_heartbeat_is_no_death() -> None:
    fault = "QUEEN_SYNC_DEAD_THRESHOLD_MS is {} but QUEEN_SYNC_HEARTBEAT_MS is {}; it must be at least twice that, {}."
    assert problems(QUEEN_SYNC_HEARTBEAT_MS="2501") == [fault.format(5000, 2501, 5002)]
    assert problems(QUEEN_SYNC_DEAD_THRESHOLD_MS="1999") == [fault.format(1999, 1000, 2000)]
    assert settings(QUEEN_SYNC_HEARTBEAT_MS="2500").sync_heartbeat == 2_500
    assert settings(QUEEN_SYNC_DEAD_THRESHOLD_MS="2000").sync_dead_threshold == 2_000
    [problem] = problems(QUEEN_SYNC_HEARTBEAT_MS="2501", QUEEN_SYNC_DEAD_THRESHOLD_MS="19")
    assert "it must be a whole number from 20 to 600000" in problem


@pytest.mark.parametrize("secret", ["x", SECRET[:-1], SECRET + "0", SECRET[:-1] + "g", f" {SECRET}", f"{SECRET}\n"])
def test_a_secret_is_64_hexadecimal_digits_and_never_shown(secret: str) -> None:
    [problem] = problems(QUEEN_UDP_PEERS="a", QUEEN_SYNC_SECRET=secret)
    assert problem.startswith("QUEEN_SYNC_SECRET is '****'; it must be 64 hexadecimal digits")


def test_the_secret_is_in_no_message_and_no_list_of_the_settings() -> None:
    chosen = settings(QUEEN_UDP_PEERS="a,b", QUEEN_SYNC_SECRET=SECRET)
    shown = {entry.name: entry.value for entry in effective(chosen)}
    assert (shown["QUEEN_SYNC_SECRET"], shown["QUEEN_UDP_PEERS"]) == ("****", "a,b")
    faulty = problems(QUEEN_UDP_PEERS="a,a,", QUEEN_SYNC_SECRET=SECRET, QUEEN_SYNC_HEARTBEAT_MS="x")
    for text in (repr(chosen), str(shown), str(faulty)):
        assert SECRET not in text
    assert "QUEEN_SYNC_SECRET" in {meta.name for _, meta in table() if meta.secret}


def test_a_worker_is_told_the_same_settings() -> None:
    chosen = settings(
        QUEEN_SERVER_ID="queen-mq-0",
        QUEEN_UDP_PEERS="a:1,[fd00::4],10.0.0.3",
        QUEEN_SYNC_SECRET=SECRET,
        QUEEN_CACHE_ENABLED="false",
        QUEEN_LEASE_HINT_MAX="0",
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_plan(ours, Plan(1, 2, "postgresql:///x", chosen))
        received = receive_plan(theirs).settings
    assert received == chosen
    assert received.peers == (("a", 1), ("fd00::4", 6633), ("10.0.0.3", 6633))
