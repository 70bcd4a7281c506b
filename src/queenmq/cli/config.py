"""`queen config`: the settings in effect, and the documentation made from the same table."""

from __future__ import annotations

import os
from itertools import groupby
from typing import Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from queenmq.cli.console import out
from queenmq.server.rows import Row
from queenmq.server.settings import Settings, table


def config(
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/configuration.md instead.")] = False,
) -> None:
    """Show the settings in effect and where each comes from. Secrets are masked."""
    if markdown:
        print(reference(), end="")
        return
    entries = effective(Settings.from_env(os.environ))
    if json:
        print(msgspec.json.format(msgspec.json.encode(entries), indent=2).decode())
        return
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("Setting", "Value", "Unit", "Source"):
        shown.add_column(column, overflow="fold")
    for entry in entries:
        style = "" if entry.source == "env" else "dim"
        value = "-" if entry.value is None else _words(entry.value)
        shown.add_row(*(Text(cell, style=style) for cell in (entry.name, value, entry.unit, entry.source)))
    out.print(shown)


def _words(value: str | int) -> str:
    """As it would be set: `true`, not `True`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class Entry(msgspec.Struct, frozen=True):
    """One setting as `queen config` shows it."""

    name: str
    value: str | int | None
    unit: str
    source: str


def effective(settings: Settings) -> list[Entry]:
    """The settings in the order of their table, fit to be shown."""
    return [_entry(meta, getattr(settings, field)) for field, meta in table()]


def _entry(meta: Row, value: object) -> Entry:
    shown = value if isinstance(value, int) else meta.show(value)
    return Entry(meta.name, shown, meta.unit, "env" if meta.name in os.environ else "default")


def reference() -> str:
    """The text of docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "Every setting is an environment variable. This page is generated from the table in",
        "`src/queenmq/server/settings.py` by `queen config --markdown`; `queen config` shows the values in effect.",
        "",
        "A value that is not allowed, an empty value, or an unknown name that starts with `QUEEN_` stops the start",
        "with a sentence that names it. Settings marked *secret* are masked wherever they are shown.",
    ]
    for section, rows in groupby((meta for _, meta in table()), key=lambda meta: meta.section):
        lines += ["", f"## {section}", "", "| setting | type | allowed | default | meaning |", "|---|---|---|---|---|"]
        lines += [_reference_row(meta) for meta in rows]
    return "\n".join(lines) + "\n"


def _reference_row(meta: Row) -> str:
    allowed = f"{meta.kind.allowed} {meta.unit}".rstrip()
    default = f"{meta.default} {meta.unit}".rstrip()
    secret = " *Secret.*" if meta.secret else ""
    return f"| `{meta.name}` | {meta.kind.name} | {allowed} | {default} | {meta.doc}{secret} |"
