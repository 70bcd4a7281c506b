"""Where the command line writes: answers to stdout, progress and failures to stderr."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

# A pipe has no width of its own, and must not get lines folded at 80 columns.
_PIPE_WIDTH = 200

out = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
err = Console(stderr=True, width=None if sys.stderr.isatty() else _PIPE_WIDTH, highlight=False)


def report(sentence: str) -> None:
    """Show progress."""
    err.print(Text(sentence, style="dim"), soft_wrap=True)


def complain(sentence: str) -> None:
    """Show why the command fails, on one line."""
    err.print(Text.assemble(("queen: ", "bold red"), " ".join(sentence.split())), soft_wrap=True)


def line(label: str, value: str) -> None:
    """Show one labelled value, unbroken so that it can be copied."""
    out.print(Text.assemble("  ", (f"{label:<10}", "bold"), value), soft_wrap=True)
