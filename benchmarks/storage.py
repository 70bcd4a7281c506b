"""The table of the storage engine: an embedded PostgreSQL with durable settings, and one connection to it."""

from __future__ import annotations

import asyncio
import platform
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from queenmq.embedded import EmbeddedPostgres
from queenmq.storage.migrate import migrate
from queenmq.storage.pool import connect

from .storage_cost import Row, StorageCost
from .storage_scale import Growth, bloat, discovery

BEGIN, END = "<!-- storage: begin -->", "<!-- storage: end -->"


def measure(rounds: int, console: Console) -> tuple[list[tuple[str, str, str, str, str]], str]:
    """The lines of the table, and PostgreSQL's version."""
    with (
        console.status("starting PostgreSQL") as status,
        tempfile.TemporaryDirectory(prefix="queen-bench-") as directory,
        EmbeddedPostgres(Path(directory)) as server,
    ):
        rows, growth, version = asyncio.run(_measure(server.dsn, rounds, status.update))
    return lines(rows, growth), version


async def _measure(dsn: str, rounds: int, progress: Callable[[str], None]) -> tuple[list[Row], list[Growth], str]:
    report = await migrate(dsn)
    connection = await connect(dsn)
    for_rows = await connect(dsn)
    try:
        growth = await bloat(connection, progress)  # first: it compares with tables that are new
        rows = await StorageCost(connection, for_rows).measure(rounds, progress)
        few, many = await discovery(connection, max(5, rounds // 5), progress)
    finally:
        await connection.close()
        await for_rows.close()
    rows.append(Row("discovery: a pop at 100 partitions", few, 1, "100 partitions", None))
    rows.append(Row("discovery: a pop at 100,000 partitions, 1,000 with work", many, many / few, "100 partitions", 2))
    return rows, growth, report.server_version


def lines(rows: list[Row], growth: list[Growth]) -> list[tuple[str, str, str, str, str]]:
    """Work, µs, ratio, target, verdict."""
    out = [
        (
            row.work,
            f"{row.microseconds:.2f}",
            f"{row.ratio:.2f} {row.baseline}" if row.baseline == "R" else f"{row.ratio:.2f} x",
            "" if row.target is None else f"≤ {row.target:g}",
            "" if row.target is None else "met" if row.ratio <= row.target else "MISSED",
        )
        for row in rows
    ]
    out += [
        (
            f"size of {one.table} after 200,000 messages (first {one.before // 1024} kB, now {one.after // 1024} kB)",
            "",
            f"{one.ratio:.2f} x",
            "≤ 3",
            "met" if one.ratio <= 3 else "MISSED",
        )
        for one in growth
    ]
    return out


def show(console: Console, table_lines: list[tuple[str, str, str, str, str]]) -> None:
    table = Table("work", "PostgreSQL CPU, µs", "ratio", "target", "")
    for line in table_lines:
        table.add_row(*line, style="red" if line[4] == "MISSED" else None)
    console.print(table)


def record(path: Path, table_lines: list[tuple[str, str, str, str, str]], version: str, rounds: int) -> None:
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    head = f"PostgreSQL {version}, fsync on, {platform.machine()}, {today}, median of {rounds} rounds."
    text = ["| work | PostgreSQL CPU, µs | ratio | target | |", "|---|---|---|---|---|"]
    text += ["| " + " | ".join(line) + " |" for line in table_lines]
    old = path.read_text("utf-8")
    before, rest = old.split(BEGIN)
    after = rest.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n{head}\n\n" + "\n".join(text) + f"\n{END}{after}", "utf-8")
