"""What pipelines say of themselves, over HTTP."""

from __future__ import annotations

from dataclasses import replace

from queenmq.storage import pipeline_states
from queenmq.storage.pipeline_states import GONE_SECONDS, PipelineState
from tests.api.serving import Api

STATE = PipelineState(
    "archive:eu",
    "archive",
    "run-1",
    "2026-01-01T00:00:00.000Z",
    "2026-01-01T00:01:00.000Z",
    host="a",
    pid=7,
    master="local[2]",
    rows=10,
    rows_per_second=2.5,
    lag=3,
    batch=4,
    arguments={"queue": "orders"},
)


async def test_without_pipelines_the_list_is_empty(api: Api) -> None:
    answer = await api.http.get("/api/v1/status/pipelines")
    assert (answer.status_code, answer.json()) == (200, {"pipelines": []})


async def test_a_running_pipeline_shows_everything_it_says(api: Api) -> None:
    assert await pipeline_states.claim(api.broker.store.pool, STATE)
    assert (await api.http.get("/api/v1/status/pipelines")).json() == {
        "pipelines": [
            {
                "id": "archive:eu",
                "pipeline": "archive",
                "run": "run-1",
                "startedAt": "2026-01-01T00:00:00.000Z",
                "updatedAt": "2026-01-01T00:01:00.000Z",
                "state": "running",
                "host": "a",
                "pid": 7,
                "master": "local[2]",
                "rows": 10,
                "rowsPerSecond": 2.5,
                "lag": 3,
                "batch": 4,
                "restarts": 0,
                "lastError": None,
                "arguments": {"queue": "orders"},
                "stale": False,
            }
        ]
    }


async def test_one_that_fell_silent_while_it_ran_is_stale(api: Api) -> None:
    pool = api.broker.store.pool
    await pipeline_states.claim(pool, STATE)
    ended = replace(STATE, id="rollup", pipeline="rollup", state="finished")
    await pipeline_states.claim(pool, ended)
    await pool.execute(
        "update queen.system_state set updated_at = updated_at - make_interval(secs => $1)", GONE_SECONDS
    )
    found = (await api.http.get("/api/v1/status/pipelines")).json()["pipelines"]
    assert [(each["id"], each["stale"]) for each in found] == [("archive:eu", True), ("rollup", False)]


async def test_other_state_is_no_pipeline(api: Api) -> None:
    await api.broker.store.pool.execute(
        "insert into queen.system_state (key, value) values ('pipelines', '{}'), ('x', '1')"
    )
    assert (await api.http.get("/api/v1/status/pipelines")).json() == {"pipelines": []}
