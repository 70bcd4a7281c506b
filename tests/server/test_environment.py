"""Variables that are no settings of ours never stop a start; misspelt ones are warned of."""

from __future__ import annotations

import pytest

from queenmq.server.environment import WITHOUT_EFFECT
from queenmq.server.settings import Settings, SettingsError, rows, table, warnings

DEFAULT = Settings.from_env({})

OF_KUBERNETES = {
    "QUEEN_SERVICE_HOST": "10.0.0.1",
    "QUEEN_SERVICE_PORT": "6632",
    "QUEEN_SERVICE_PORT_HTTP": "6632",
    "QUEEN_PORT": "tcp://10.0.0.1:6632",
    "QUEEN_PORT_6632_TCP": "tcp://10.0.0.1:6632",
    "QUEEN_PORT_6632_TCP_ADDR": "10.0.0.1",
    "QUEEN_PORT_6632_TCP_PORT": "6632",
    "QUEEN_PORT_6632_TCP_PROTO": "tcp",
    "QUEEN_PORT_6633_UDP": "udp://10.0.0.1:6633",
    "QUEEN_PORT_6633_UDP_ADDR": "10.0.0.1",
    "QUEEN_PORT_6633_UDP_PORT": "6633",
    "QUEEN_PORT_6633_UDP_PROTO": "udp",
    "QUEEN_HEADLESS_2_SERVICE_HOST": "10.0.0.2",
    "QUEEN_HEADLESS_2_SERVICE_PORT": "6632",
    "QUEEN_HEADLESS_2_SERVICE_PORT_WEB": "6632",
    "QUEEN_HEADLESS_2_PORT": "tcp://10.0.0.2:6632",
    "QUEEN_HEADLESS_2_PORT_6632_TCP": "tcp://10.0.0.2:6632",
    "QUEEN_HEADLESS_2_PORT_6632_TCP_ADDR": "10.0.0.2",
    # Services called queen-pg, queen-udp-notify and pg, whose ports have the names of our settings.
    "QUEEN_PG_SERVICE_HOST": "10.0.0.3",
    "QUEEN_PG_PORT": "tcp://10.0.0.3:5432",
    "QUEEN_UDP_NOTIFY_PORT": "udp://[fd00::1]:6633",
    "PG_PORT": "tcp://10.0.0.4:5432",
}

# Every variable that the descriptions of Queen MQ name, with a value they give for it.
OF_QUEEN_MQ = {
    "PORT": "6632",
    "NUM_WORKERS": "20",
    "DB_POOL_SIZE": "300",
    "DB_IDLE_TIMEOUT": "30000",
    "DB_STATEMENT_TIMEOUT": "30000",
    "SIDECAR_POOL_SIZE": "100",
    "SIDECAR_MICRO_BATCH_WAIT_MS": "5",
    "SIDECAR_MAX_ITEMS_PER_TX": "1000",
    "POP_WAIT_INITIAL_INTERVAL_MS": "100",
    "POP_WAIT_BASE_INTERVAL_MS": "100",
    "POP_WAIT_BACKOFF_THRESHOLD": "3",
    "POP_WAIT_BACKOFF_MULTIPLIER": "2.0",
    "POP_WAIT_MAX_INTERVAL_MS": "1000",
    "METRICS_SAMPLE_INTERVAL_MS": "1000",
    "METRICS_AGGREGATE_INTERVAL_S": "60",
    "METRICS_RETENTION_DAYS": "30",
    "RETENTION_INTERVAL": "300000",
    "RETENTION_BATCH_SIZE": "1000",
    "PARTITION_CLEANUP_DAYS": "7",
    "EVICTION_INTERVAL": "60000",
    "EVICTION_BATCH_SIZE": "100",
    "QUEEN_UDP_PEERS": "queen-b:6633,queen-c:6633",
    "QUEEN_UDP_NOTIFY_PORT": "6633",
    "FILE_BUFFER_DIR": "/var/lib/queen/buffers",
    "FILE_BUFFER_FLUSH_MS": "100",
    "FILE_BUFFER_MAX_BATCH": "100",
    "FILE_BUFFER_EVENTS_PER_FILE": "10000",
    "QUEEN_SYNC_ENABLED": "true",
    "QUEEN_SYNC_SECRET": "ab" * 32,
    "QUEEN_SYNC_HEARTBEAT_MS": "1000",
    "QUEEN_SYNC_DEAD_THRESHOLD_MS": "5000",
    "QUEEN_SYNC_RECV_BUFFER_MB": "8",
    "QUEEN_SYNC_CACHE_SHARDS": "16",
    "QUEEN_CACHE_PARTITION_MAX": "10000",
    "QUEEN_CACHE_PARTITION_TTL_MS": "300000",
    "QUEEN_CACHE_REFRESH_INTERVAL_MS": "60000",
}


@pytest.mark.parametrize("name", OF_KUBERNETES)
def test_what_kubernetes_sets_for_a_service_is_passed_over(name: str) -> None:
    given = {name: OF_KUBERNETES[name]}
    assert Settings.from_env(given, strict=True) == DEFAULT
    assert warnings(given) == []


def test_a_pod_beside_such_services_starts_with_its_own_database() -> None:
    given = {**OF_KUBERNETES, "DATABASE_URL": "postgresql://db/queen"}
    assert Settings.from_env(given, strict=True) == Settings.from_env({"DATABASE_URL": "postgresql://db/queen"})


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("QUEEN_SRC", "/x", "`queen config --markdown` lists the settings there are."),
        ("QUEEN_DATADIR", "/x", "did you mean QUEEN_DATA_DIR?"),
        ("QUEEN_PORT", "6632", "did you mean PORT?"),
        ("QUEEN_PORT", "tcp://10.0.0.1", "did you mean PORT?"),
        ("QUEEN_TOKENS", "x", "did you mean QUEEN_TOKEN?"),
        ("QUEEN_", "x", "`queen config --markdown` lists the settings there are."),
    ],
)
def test_an_unknown_queen_name_is_one_warning_and_no_refusal(name: str, text: str, hint: str) -> None:
    sentence = f"{name} is not a setting of this version; {hint}"
    assert warnings({name: text}) == [sentence]
    assert Settings.from_env({name: text}) == DEFAULT
    with pytest.raises(SettingsError) as refused:
        Settings.from_env({name: text, "DB_POOL_SIZE": "0"}, strict=True)
    assert [problem.split()[0] for problem in refused.value.problems] == ["DB_POOL_SIZE", name]


@pytest.mark.parametrize(("name", "text"), [("QUEEN_PG_PORT", "x"), ("QUEEN_PG_PORT", "http://10.0.0.1:80")])
def test_a_port_of_ours_that_is_no_address_of_a_service_is_still_checked(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is '{text}'; it must be a whole number"):
        Settings.from_env({name: text})


@pytest.mark.parametrize("name", OF_QUEEN_MQ)
def test_every_variable_of_queen_mq_is_a_setting_or_said_to_have_no_effect(name: str) -> None:
    needs = {"QUEEN_SYNC_SECRET": "ab" * 32} if name == "QUEEN_UDP_PEERS" else {}
    given = {name: OF_QUEEN_MQ[name], **needs}
    Settings.from_env(given, strict=True)
    settings = {each for row in rows() for each in (row.name, *row.aliases)}
    if name in settings:
        assert warnings(given) == []
    else:
        assert warnings(given) == [f"{name} has no effect on this server: {WITHOUT_EFFECT[name]}."]


def test_all_variables_of_queen_mq_may_be_set_together() -> None:
    settings = Settings.from_env(OF_QUEEN_MQ, strict=True)
    assert (settings.num_workers, settings.sidecar_pool_size, settings.pop_wait_multiplier) == (20, 100, 2.0)
    assert {sentence.split()[0] for sentence in warnings(OF_QUEEN_MQ)} == set(WITHOUT_EFFECT)


def test_no_name_stands_for_two_things() -> None:
    names = [each for row in rows() for each in (row.name, *row.aliases)] + list(WITHOUT_EFFECT)
    assert len(names) == len(set(names))


ALIASES = [(field, meta.name, alias) for field, meta in table() for alias in meta.aliases]


@pytest.mark.parametrize(("field", "name", "alias"), ALIASES)
class TestAlias:
    def test_it_sets_the_same(self, field: str, name: str, alias: str) -> None:
        assert Settings.from_env({alias: "77"}) == Settings.from_env({name: "77"})
        assert getattr(Settings.from_env({alias: "77"}), field) == 77

    def test_a_bad_value_is_named_as_it_was_written(self, field: str, name: str, alias: str) -> None:
        with pytest.raises(SettingsError, match=f"^{alias} is 'x'; it must be"):
            Settings.from_env({alias: "x"})
        with pytest.raises(SettingsError, match=f"^{alias} is set but empty"):
            Settings.from_env({alias: ""})

    def test_both_names_may_say_the_same_but_not_differ(self, field: str, name: str, alias: str) -> None:
        assert Settings.from_env({alias: "77", name: "77"}) == Settings.from_env({name: "77"})
        with pytest.raises(SettingsError) as refused:
            Settings.from_env({alias: "77", name: "78"})
        assert refused.value.problems == [f"{alias} is another name of {name}, and they differ; drop {alias}."]
