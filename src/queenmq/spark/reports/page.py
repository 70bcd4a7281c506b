"""One HTML file that needs nothing else: no scripts, no fonts, no other host, readable in light and dark.

What it shows was written by users of the queue, so every text is escaped here, and the page forbids its reader to load
or run anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from . import words

_STYLE: Final = """
:root { color-scheme: light dark; --back: #ffffff; --text: #1c2430; --faint: #5b6675; --line: #d9dee5; --row: #f5f7fa; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14181f; --text: #e4e9f0; --faint: #9aa6b5; --line: #323b47; --row: #1b212a; }
}
* { box-sizing: border-box; }
body { background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 1100px; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
p { max-width: 75ch; } .faint { color: var(--faint); margin: .25rem 0 0; }
figure { margin: 1rem 0; } svg { display: block; height: auto; width: 100%; }
figcaption { color: var(--faint); font-size: .87rem; }
.facts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); margin: 1.5rem 0; }
.facts div { border: 1px solid var(--line); border-radius: 8px; padding: .7rem .9rem; }
.facts b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.facts span { color: var(--faint); font-size: .87rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; width: 100%; }
th, td { border-bottom: 1px solid var(--line); max-width: 28rem; overflow-wrap: break-word; padding: .35rem .6rem;
  text-align: left; vertical-align: top; }
th { color: var(--faint); font-weight: 600; }
tbody tr:nth-child(even) { background: var(--row); }
.number { font-variant-numeric: tabular-nums; text-align: right; white-space: nowrap; }
"""
_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<p class="faint">{subtitle}</p>
{body}
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class Column:
    """How one column of a table is headed and its values are shown; what is shown as a number stands to the right."""

    head: str
    shown: Callable[[Any], str] = str
    number: bool = False


@dataclass(slots=True)
class Page:
    """Filled from top to bottom."""

    title: str
    subtitle: str = ""
    _parts: list[str] = field(default_factory=list)

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def paragraph(self, text: str) -> None:
        self._parts.append(f"<p>{escape(text)}</p>")

    def facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """A few figures that say the most."""
        boxes = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in facts)
        self._parts.append(f'<div class="facts">{boxes}</div>')

    def figure(self, svg: str, caption: str) -> None:
        """`svg` is taken as it is: it comes from `plots`, which escapes texts itself."""
        self._parts.append(f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>")

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> None:
        head = "".join(f"<th{_kind(column)}>{escape(column.head)}</th>" for column in columns)
        body = "".join(f"<tr>{_cells(columns, row)}</tr>\n" for row in rows)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"
        self._parts.append(f'<div class="wide">{table}</div>')

    def html(self, now: datetime | None = None) -> str:
        made = f"{words.moment(now or datetime.now(UTC))} UTC"
        subtitle = f"{self.subtitle} · {made}" if self.subtitle else made
        return _PAGE.format(
            title=escape(self.title), subtitle=escape(subtitle), style=_STYLE, body="\n".join(self._parts)
        )


def _kind(column: Column) -> str:
    return ' class="number"' if column.number else ""


def _cells(columns: Sequence[Column], row: Sequence[Any]) -> str:
    pairs = zip(columns, row, strict=True)
    return "".join(f"<td{_kind(column)}>{escape(_shown(column, value))}</td>" for column, value in pairs)


def _shown(column: Column, value: Any) -> str:
    return words.NOTHING if value is None else column.shown(value)
