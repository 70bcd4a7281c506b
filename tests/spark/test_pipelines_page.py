"""docs/pipelines.md says what the registry says, and its examples are those that work."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from queenmq.cli.exits import Exit
from queenmq.cli.pipeline import exit_of
from queenmq.spark import errors
from queenmq.spark.errors import SparkError
from queenmq.spark.pipelines.registry import PIPELINES, option
from queenmq.spark.pipelines.window_spec import Aggregate, WindowSpec, load, parse

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "pipelines.md").read_text()


def options(names: tuple[str, ...]) -> str:
    return " ".join(f"`{option(name)}`" for name in names)


def test_the_options_of_each_pipeline_are_documented() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| .* \|(.*)\|(.*)\|$", PAGE, re.MULTILINE)
    found = {name: (needs.strip(), takes.strip()) for name, needs, takes in rows if name in {p.name for p in PIPELINES}}
    assert found == {each.name: (options(each.needs), options(each.takes)) for each in PIPELINES}


def test_every_exit_code_of_a_pipeline_is_explained() -> None:
    rows = re.findall(r"^\| (\d[\d, ]*) \| .* \|$", PAGE, re.MULTILINE)
    codes = {int(code) for row in rows for code in row.split(",")}
    assert codes <= {code.value for code in Exit}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SparkError)]
    possible = {exit_of(kind.__new__(kind)) for kind in kinds} | {Exit.OK, Exit.DIFFERENCES, Exit.INTERRUPTED}
    assert {code.value for code in possible} <= codes


def test_the_windows_on_the_page_are_the_example() -> None:
    [shown] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert parse(yaml.safe_load(shown)) == load(str(ROOT / "examples" / "window_orders.yaml"))


def test_the_windows_in_python_are_allowed() -> None:
    [code] = re.findall(r"^spec = (WindowSpec\(.*?^\))", PAGE, re.DOTALL | re.MULTILINE)
    spec = eval(code, {"WindowSpec": WindowSpec, "Aggregate": Aggregate})
    assert (spec.kind, spec.gap) == ("session", "30 minutes")
