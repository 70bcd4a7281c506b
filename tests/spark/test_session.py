"""The one way to start Spark: what it sets, who may overrule it, and what never shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import queenmq.spark
from queenmq.spark import SparkError, sessions

GIB = 1 << 30
SECRETS = {
    "DATABASE_URL": "postgresql://u:hidden1@db/queen",
    "PGPASSWORD": "hidden2",
    "QUEEN_TOKEN": "hidden3",
    "QUEEN_ENCRYPTION_KEY": "hidden4",
}


def chosen(master: str = "local[*]", **environment: str) -> dict[str, str]:
    return sessions.settings(master, environment, 8 * GIB)


class TestSettings:
    def test_what_the_source_needs_is_on(self) -> None:
        for master in ("local[2]", "spark://host:7077"):
            settings = chosen(master)
            assert settings["spark.sql.python.filterPushdown.enabled"] == "true"
            assert settings["spark.sql.execution.arrow.pyspark.enabled"] == "true"
            assert settings["spark.sql.session.timeZone"] == "UTC"

    @pytest.mark.parametrize(
        ("memory", "heap"), [(GIB // 2, GIB), (2 * GIB, GIB), (8 * GIB, 2 * GIB), (512 * GIB, 4 * GIB)]
    )
    def test_the_heap_fits_the_machine(self, memory: int, heap: int) -> None:
        settings = sessions.settings("local[*]", {}, memory)
        assert settings["spark.driver.memory"] == f"{heap // 1024**2}m"

    def test_a_heap_that_was_set_stays(self) -> None:
        assert "spark.driver.memory" not in chosen(SPARK_DRIVER_MEMORY="9g")
        assert "spark.driver.memory" not in chosen("spark://host:7077")

    def test_this_machine_has_memory(self) -> None:
        assert GIB // 4 < sessions.machine_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def test_a_local_spark_listens_to_this_machine_only(self) -> None:
        assert chosen("local-cluster[2,1,1024]")["spark.driver.bindAddress"] == "127.0.0.1"
        assert "spark.driver.bindAddress" not in chosen("spark://host:7077")

    def test_none_of_them_is_a_secret(self) -> None:
        assert "hidden" not in str(chosen("spark://host:7077", **SECRETS))


class TestDefaultsFile:
    def test_it_is_read_as_spark_reads_it(self, tmp_path: Path) -> None:
        (tmp_path / "spark-defaults.conf").write_text(
            "# spark.comment 1\n\nspark.master   spark://h:7077\nspark.driver.memory=3g\n"
            "spark.driver.extraJavaOptions  -Da=b -Dc=d  \nspark.empty\n"
        )
        assert sessions.defaults({"SPARK_CONF_DIR": str(tmp_path)}, Path("/nowhere")) == {
            "spark.master": "spark://h:7077",
            "spark.driver.memory": "3g",
            "spark.driver.extraJavaOptions": "-Da=b -Dc=d",
        }

    def test_the_place_is_sparks_own(self, tmp_path: Path) -> None:
        (tmp_path / "conf").mkdir()
        (tmp_path / "conf" / "spark-defaults.conf").write_text("a 1")
        assert sessions.defaults({}, tmp_path) == {"a": "1"}
        assert sessions.defaults({}, tmp_path / "conf") == {}


class TestExecutorEnvironment:
    def test_it_has_what_is_set_here_and_needed_there(self) -> None:
        store = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
        handed = sessions.handed_on({**SECRETS, **store, "QUEEN_URL": "", "HOME": "/root", "MY_SECRET": "x"}, {})
        assert handed == {f"spark.executorEnv.{name}": value for name, value in {**SECRETS, **store}.items()}

    def test_what_kubernetes_gives_as_a_secret_is_not_put_beside_it(self) -> None:
        refs = {f"spark.kubernetes.executor.secretKeyRef.{name}": "queen:x" for name in ("DATABASE_URL", "PGPASSWORD")}
        handed = sessions.handed_on(SECRETS, refs)
        assert set(handed) == {"spark.executorEnv.QUEEN_TOKEN", "spark.executorEnv.QUEEN_ENCRYPTION_KEY"}

    def test_what_may_be_secret_is_not_on_the_command_line(self) -> None:
        given = {"spark.hadoop.fs.s3a.secret.key": "a", "spark.executorEnv.A": "b", "spark.driver.memory": "1g"}
        assert sessions.public(given) == {"spark.driver.memory": "1g"}

    @pytest.mark.parametrize("own", [None, "(?i)mine", "mine|(?i)yours"])
    def test_a_pattern_of_ones_own_hides_ours_as_well(self, spark: SparkSession, own: str | None) -> None:
        names = [f"spark.executorEnv.{name}" for name in sessions.HANDED_ON]
        names += ["spark.my.secret"] if own is None else ["spark.mine"]
        for name in names:
            found = spark.range(1).selectExpr(f"regexp_like('{name}', '{sessions.hidden(own)}') as found").collect()
            assert found[0].found, name

    @pytest.mark.parametrize("name", SECRETS)
    def test_spark_hides_it_where_it_shows_settings(self, spark: SparkSession, name: str) -> None:
        setting = f"spark.executorEnv.{name}"
        spark.conf.set(setting, SECRETS[name])
        try:
            assert spark.sql(f"SET {setting}").collect()[0].value == "*********(redacted)"
        finally:
            spark.conf.unset(setting)


class TestWithout:
    def run(self, program: str) -> str:
        command = [sys.executable, "-W", "error", "-c", program]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    def test_importing_it_does_not_import_pyspark(self) -> None:
        program = "import sys, queenmq.spark; print([m for m in ('pyspark', 'pandas', 'pyarrow') if m in sys.modules])"
        assert self.run(program) == "[]\n"

    def test_without_pyspark_it_says_how_to_get_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pyspark", None)
        with pytest.raises(
            SparkError, match=r"Spark is not installed; install it with: pip install 'queenmq\[spark\]'"
        ):
            queenmq.spark.session()


class TestSession:
    def test_a_second_call_returns_the_running_one(self, spark: SparkSession) -> None:
        again = queenmq.spark.session("another", "local[7]", ui=True, conf={"spark.sql.ansi.enabled": "false"})
        try:
            assert again is spark
            assert spark.sparkContext.master == "local[2]"
            assert spark.conf.get("spark.sql.ansi.enabled") == "false"
        finally:
            spark.conf.unset("spark.sql.ansi.enabled")

    def test_it_sets_what_the_source_needs_in_a_session_that_others_started(self, spark: SparkSession) -> None:
        spark.conf.set(sessions.PUSHDOWN, "false")
        spark.conf.set(sessions.ADAPTIVE_STREAMS, "true")
        queenmq.spark.session()
        assert spark.conf.get(sessions.PUSHDOWN) == "true"
        assert spark.conf.get(sessions.ADAPTIVE_STREAMS) == "false"

    def test_the_source_is_registered(self, spark: SparkSession) -> None:
        with pytest.raises(Exception, match="option queue is missing"):
            spark.read.format("queen").option("databaseUrl", "postgresql://localhost/x").load()

    def test_tasks_run_in_this_python(self, spark: SparkSession) -> None:
        where = F.udf(lambda _: sys.executable, "string")
        assert spark.range(1).select(where("id").alias("python")).collect()[0].python == sys.executable

    def test_times_are_utc(self, spark: SparkSession) -> None:
        row = spark.sql("select string(timestamp '2025-07-01 12:00:00+02:00') as shown").collect()[0]
        assert row.shown == "2025-07-01 10:00:00"

    def test_the_callers_settings_won(self, spark: SparkSession) -> None:
        conf = spark.sparkContext.getConf()
        assert conf.get("spark.ui.enabled") == "false"
        assert conf.get("spark.driver.memory") == "1g"
        options = conf.get("spark.driver.extraJavaOptions") or ""
        assert options.endswith("log4j2.properties -XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

    def test_the_environment_is_as_it_was(self, spark: SparkSession) -> None:
        assert spark.sparkContext.pythonExec == os.environ.get("PYSPARK_PYTHON", sys.executable)
        assert "PYSPARK_DRIVER_PYTHON" not in os.environ
