"""What is remembered of queues: the newest version wins, and who reads a snapshot sees one moment."""

from __future__ import annotations

from queenmq.domain.queue_config import QueueConfig
from queenmq.domain.queue_configs import QueueConfigs


def config(version: int, lease_time: int = 300) -> QueueConfig:
    return QueueConfig(queue_id=1, version=version, lease_time=lease_time)


def remembering(**versions: int) -> QueueConfigs:
    configs = QueueConfigs()
    for queue, version in versions.items():
        configs.put(queue, config(version))
    return configs


def versions(configs: QueueConfigs) -> dict[str, int]:
    return {queue: each.version for queue, each in configs.snapshot.items()}


def test_only_a_higher_version_replaces_another() -> None:
    configs = remembering(a=5)
    assert not configs.put("a", config(4))
    assert not configs.put("a", config(5, lease_time=1))
    assert configs.snapshot["a"] == config(5)
    assert configs.put("a", config(6))
    assert versions(configs) == {"a": 6}


def test_of_many_the_newer_ones_are_taken() -> None:
    configs = remembering(a=5, b=5)
    assert configs.put_all({"a": config(4), "b": config(6), "c": config(1)}) == 2
    assert versions(configs) == {"a": 5, "b": 6, "c": 1}


def test_what_the_database_has_said_counts_whatever_its_version() -> None:
    configs = remembering(a=5, b=5)
    configs.force("a", config(4))
    assert versions(configs) == {"a": 4, "b": 5}


def test_a_snapshot_does_not_change() -> None:
    configs = remembering(a=1, b=1)
    before = configs.snapshot
    configs.put("a", config(2))
    configs.force("c", config(1))
    configs.remove("b")
    assert {queue: each.version for queue, each in before.items()} == {"a": 1, "b": 1}
    assert versions(configs) == {"a": 2, "c": 1}
    before = configs.snapshot
    configs.refresh({}, {})
    assert (len(before), len(configs)) == (2, 0)


def test_remove_says_whether_there_was_one() -> None:
    configs = remembering(a=1, b=1, c=1)
    assert (configs.remove("a"), configs.remove("a")) == (True, False)
    assert configs.remove_all(["b", "x"]) == 1
    assert versions(configs) == {"c": 1}


def test_a_refresh_replaces_all_but_what_is_newer() -> None:
    configs = remembering(gone=9, older=1, newer=7, absurd=99, same=1)
    asked = configs.snapshot
    same = asked["same"]
    configs.put("newer", config(9))
    found = {"older": config(2), "newer": config(8), "absurd": config(3), "same": config(1), "added": config(3)}
    configs.refresh(found, asked)
    assert versions(configs) == {"older": 2, "newer": 9, "absurd": 3, "same": 1, "added": 3}
    assert configs.snapshot["same"] is same


def test_a_refresh_corrects_a_wrong_value_of_the_same_version() -> None:
    configs = QueueConfigs()
    configs.force("a", config(1, lease_time=7))
    configs.refresh({"a": config(1)}, configs.snapshot)
    assert configs.snapshot["a"] == config(1)


def test_hits_and_misses_are_counted() -> None:
    configs = remembering(a=1)
    assert configs.get("a") == config(1)
    assert configs.get("b") is configs.get("c") is None
    assert configs.stats() == {"size": 1, "hits": 1, "misses": 2}


def test_when_it_is_off_nothing_is_remembered() -> None:
    configs = QueueConfigs(enabled=False)
    assert not configs.put("a", config(1))
    configs.force("a", config(1))
    configs.refresh({"a": config(1)}, configs.snapshot)
    assert (configs.get("a"), len(configs), configs.remove("a")) == (None, 0, False)
