"""`queen config`: the settings in effect, and the documentation made from the same table."""

from __future__ import annotations

import os
from collections.abc import Container
from itertools import groupby
from typing import Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from queenmq.cli.console import out, warn
from queenmq.server.environment import WITHOUT_EFFECT, read
from queenmq.server.rows import Row
from queenmq.server.settings import Settings, rows, table


def config(
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/configuration.md instead.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Fail also when a QUEEN_ name is not known.")] = False,
) -> None:
    """Show the settings in effect and where each comes from. Secrets are masked."""
    if markdown:
        print(reference(), end="")
        return
    given = read(os.environ, rows())
    for sentence in given.without_effect if strict else given.warnings:
        warn(sentence)
    entries = effective(Settings.from_env(os.environ, strict=strict), given.written)
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


def effective(settings: Settings, given: Container[str] = ()) -> list[Entry]:
    """The settings in the order of their table, fit to be shown. `given`: those that the environment sets."""
    return [_entry(meta, getattr(settings, field), given) for field, meta in table()]


def _entry(meta: Row, value: object, given: Container[str]) -> Entry:
    shown = value if isinstance(value, int) else meta.show(value)
    return Entry(meta.name, shown, meta.unit, "env" if meta.name in given else "default")


def reference() -> str:
    """The text of docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "Every setting is an environment variable. This page is generated from the table in",
        "`src/queenmq/server/settings.py` by `queen config --markdown`; `queen config` shows the values in effect.",
        "",
        "A value that is not allowed, or is empty, stops the start with a sentence that names it. A name that starts",
        "with `QUEEN_` and is not known is warned of, with the nearest setting there is; `queen config --strict` fails",
        "with exit code 2 instead, for checks before a deployment. What Kubernetes sets for a Service called `queen`",
        "or `queen-…` (`QUEEN_SERVICE_HOST`, `QUEEN_PORT=tcp://…` and so on) is passed over, also where such a port",
        "has the name of a setting (`QUEEN_PG_PORT`). Settings marked *secret* are masked wherever they are shown.",
    ]
    for section, of_section in groupby(rows(), key=lambda meta: meta.section):
        lines += ["", f"## {section}", "", "| setting | type | allowed | default | meaning |", "|---|---|---|---|---|"]
        lines += [_reference_row(meta) for meta in of_section]
    lines += [
        "",
        "## Names without effect",
        "",
        "Settings of Queen MQ that this server accepts and does not need. Each is one line in the log:",
        "",
    ]
    lines += ["| name | why it changes nothing |", "|---|---|"]
    lines += [f"| `{name}` | {why} |" for name, why in WITHOUT_EFFECT.items()]
    return "\n".join(lines) + "\n"


def _reference_row(meta: Row) -> str:
    allowed = f"{meta.kind.allowed} {meta.unit}".rstrip()
    default = f"{meta.default} {meta.unit}".rstrip()
    secret = " *Secret.*" if meta.secret else ""
    also = "".join(f" Also `{name}`." for name in meta.aliases)
    return f"| `{meta.name}` | {meta.kind.name} | {allowed} | {default} | {meta.doc}{also}{secret} |"
