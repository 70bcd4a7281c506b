"""One Spark for all tests of a run, and an empty database of the embedded server for each.

Starting Spark costs as much as hundreds of other tests, so nobody stops this session, and a test that changes its
settings puts them back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from pyspark.sql import SparkSession

import queenmq.spark
from queenmq.storage.store import Store
from tests.spark.reading import opened

CORES = 2


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    session = queenmq.spark.session(
        "tests",
        f"local[{CORES}]",
        conf={
            # The first compiler only: tests end before the second one has earned what it costs.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": str(CORES),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
            "spark.cleaner.periodicGC.interval": "10min",
        },
    )
    yield session
    session.stop()


@pytest.fixture
async def queue(database: str) -> AsyncIterator[Store]:
    store = await Store.open(database)
    yield store
    await store.close()


@pytest.fixture(autouse=True)
def stop_streams() -> Iterator[None]:
    """Stops the stream readers that a test opened."""
    yield
    while opened:
        opened.pop().stop()
