"""The examples of docs/spark.md, run one after the other, with the numbers they must give.

They name no database. Spark's Java has the environment of its start, so here an option names it.
"""

from __future__ import annotations

import ast
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queenmq.domain.segments import PushItem
from queenmq.storage.store import Store

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
MOMENTS = [
    *("2024-12-31T23:59:59.999999Z", "2025-01-01T00:00:00Z", "2025-01-31T23:59:59.999999Z"),
    *("2025-02-01T00:00:00Z", "2025-03-01T00:00:00Z"),
]


async def fill(url: str) -> None:
    """Five messages of customer-42, at the moments above, and three of another one."""
    store = await Store.open(url)
    try:
        for _ in MOMENTS:
            await store.push([PushItem(queue="orders", partition="customer-42", payload=b'{"total": 1.5}')])
        await store.push([PushItem(queue="orders", partition="customer-7", payload=b"{}")] * 3)
        for seq, moment in enumerate(MOMENTS, 1):
            await store.pool.execute(
                "update queen.segments s set created_at = $2 from queen.partitions p"
                " where p.partition_id = s.partition_id and p.name = 'customer-42' and s.last_seq = $1",
                seq,
                datetime.fromisoformat(moment),
            )
    finally:
        await store.close()


def run(block: str, names: dict[str, Any]) -> Any:
    """The value of the block's last line, if that is an expression."""
    tree = ast.parse(block)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(compile(tree, str(PAGE), "exec"), names)
        return None
    exec(compile(ast.Module(tree.body[:-1], []), str(PAGE), "exec"), names)
    return eval(compile(ast.Expression(last.value), str(PAGE), "eval"), names)


async def test_the_examples_give_the_right_numbers(
    spark: SparkSession, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await fill(database)
    names: dict[str, Any] = {}
    source = 'format("queen")'
    answers = [run(block.replace(source, f'{source}.option("databaseUrl", {database!r})'), names) for block in BLOCKS]
    assert answers == [None, 5, 2, 6, 4, None]
    assert re.search(r"customer-42\|\s*5\|", capsys.readouterr().out)
    assert names["stream"].isStreaming
    assert names["orders"].count() == 8
