"""The config of a window pipeline: the example is one, and what is wrong is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queenmq.spark.errors import PipelineError
from queenmq.spark.pipelines.window_spec import Aggregate, WindowSpec, load, parse, seconds

EXAMPLE = Path(__file__).parents[2] / "examples" / "window_orders.yaml"


def given(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": "revenue",
        "source": "orders",
        "target": "revenue",
        "key": {"customer": "$.customer"},
        "window": {"kind": "tumbling", "size": "1 minute"},
        "aggregates": {"orders": "count", "total": "sum($.total)"},
    }
    return {name: value for name, value in (fields | changes).items() if value is not ...}


def test_the_example_is_a_config() -> None:
    assert load(str(EXAMPLE)) == WindowSpec(
        name="revenue-per-minute",
        source="orders",
        target="revenue",
        kind="tumbling",
        size="1 minute",
        watermark="2 minutes",
        event_time="$.at",
        key={"customer": "$.customer"},
        aggregates={
            "orders": Aggregate("count"),
            "revenue": Aggregate("sum", "$.total"),
            "biggest": Aggregate("max", "$.total"),
        },
    )


def test_what_is_left_out_has_a_default() -> None:
    spec = parse(given(key=...))
    assert (spec.key, spec.event_time, spec.watermark) == ({}, "created_at", "10 minutes")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30 seconds", 30), ("1 minute", 60), ("2 hours", 7200), ("1 week", 604800), ("500 milliseconds", 0.5)],
)
def test_durations(text: str, expected: float) -> None:
    assert seconds("size", text) == expected


@pytest.mark.parametrize("path", ["$.a", "$.a.b-c", "$.items[0].price", "$['a b'].c"])
def test_paths(path: str) -> None:
    assert Aggregate.parse("x", f"max( {path.replace(' ', '_')} )") == Aggregate("max", path.replace(" ", "_"))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"name": ...}, "name is missing; it must be a text"),
        ({"name": ""}, "name is ''; it must be a name of 1 to 255 characters"),
        ({"sorce": "x"}, "sorce is not a field of a window pipeline; did you mean source?"),
        ({"source": "a,,b"}, "source is 'a,,b'; it must be a queue, a comma-separated list of queues or a pattern"),
        ({"target": "orders"}, "target is 'orders'; it must be a queue that is not read, and orders is"),
        ({"source": "a, ord*", "target": "orders"}, "target is 'orders'; it must be a queue that is not read"),
        ({"window": "1 minute"}, "window is '1 minute'; it must be a mapping"),
        ({"window": {"kind": "hopping"}}, "window.kind is 'hopping'; it must be tumbling, sliding, session"),
        ({"window": {"kind": "tumbling"}}, "window.size is missing; it must be a duration such as '30 seconds'"),
        ({"window": {"kind": "tumbling", "size": "5 parsecs"}}, "window.size is '5 parsecs'; it must be a duration"),
        ({"window": {"kind": "tumbling", "size": 60}}, "window.size is 60; it must be a duration"),
        ({"window": {"kind": "tumbling", "size": "0 seconds"}}, "window.size is '0 seconds'; it must be a duration"),
        (
            {"window": {"kind": "session", "gap": "1 minute", "size": "1 hour"}},
            "window.size is '1 hour'; it must be left out: a session window has gap",
        ),
        (
            {"window": {"kind": "sliding", "size": "1 minute", "slide": "1 hour"}},
            "window.slide is '1 hour'; it must be at most the size, which is 1 minute",
        ),
        ({"window": {"kind": "tumbling", "length": "1 hour"}}, "window.length is not a field"),
        ({"watermark": "soon"}, "watermark is 'soon'; it must be a duration"),
        ({"event_time": "at"}, "event_time is 'at'; it must be a JSON path of the payload such as $.at, or created_at"),
        ({"key": {"customer": "customer"}}, "key.customer is 'customer'; it must be a JSON path of the payload"),
        ({"key": {"customer": 7}}, "key.customer is 7; it must be a text"),
        ({"key": {"a b": "$.a"}}, "key is 'a b'; it must be names of letters, digits and _"),
        ({"key": {"a": "$.a", "A": "$.b"}}, "key is 'A'; it must be names that differ, whatever their case"),
        ({"aggregates": {}}, "aggregates is {}; it must be at least one"),
        ({"aggregates": {"x": "median($.a)"}}, "aggregates.x is 'median($.a)'; it must be count, or one of count, sum"),
        ({"aggregates": {"x": "sum"}}, "aggregates.x is 'sum'; it must be count, or one of count, sum"),
        ({"aggregates": {"x": "sum(total)"}}, "aggregates.x is 'sum(total)'; it must be sum of a JSON path"),
        ({"aggregates": {"window": "count"}}, "aggregates is 'window'; it must be names other than window and key"),
        ({"aggregates": {1: "count"}}, "the name 1 in aggregates is 1; it must be a text"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_allowed(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(PipelineError) as refused:
        parse(given(**changes))
    assert refused.value.message.startswith(complaint)


def test_a_file_that_is_not_there_or_not_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"the config \S+/none.yaml cannot be read: No such file"):
        load(str(tmp_path / "none.yaml"))
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [")
    with pytest.raises(PipelineError, match=r"the config \S+/broken.yaml is not YAML: "):
        load(str(broken))
    broken.write_text("just words")
    with pytest.raises(PipelineError, match="the config is 'just words'; it must be a mapping"):
        load(str(broken))
