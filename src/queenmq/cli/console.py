"""Where the command line writes: answers to stdout, progress and failures to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.text import Text

# A pipe has no width of its own, and must not get lines folded at 80 columns.
_PIPE_WIDTH = 200


def _width(stream: TextIO | None) -> int | None:
    """As wide as the terminal, if it is one; the stream is None when it was closed before we came."""
    return None if stream is not None and stream.isatty() else _PIPE_WIDTH


out = Console(width=_width(sys.stdout), highlight=False)
err = Console(stderr=True, width=_width(sys.stderr), highlight=False)


def report(sentence: str) -> None:
    """Show progress."""
    err.print(Text(sentence, style="dim"), soft_wrap=True)


def complain(sentence: str) -> None:
    """Show why the command fails, on one line."""
    err.print(Text.assemble(("queen: ", "bold red"), " ".join(sentence.split())), soft_wrap=True)


def warn(sentence: str) -> None:
    """Show what the command goes on in spite of, on one line."""
    err.print(Text.assemble(("queen: warning: ", "bold yellow"), " ".join(sentence.split())), soft_wrap=True)


def line(label: str, value: str) -> None:
    """Show one labelled value, unbroken so that it can be copied."""
    out.print(Text.assemble("  ", (f"{label:<10}", "bold"), value), soft_wrap=True)


@contextmanager
def unread() -> Iterator[None]:
    """What is said meanwhile is not worth ending for. When nobody reads it, or the disk is full, it is lost, and so is
    all that would follow."""
    try:
        yield
    except (OSError, SystemExit):  # rich exits when a pipe is closed
        out.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # Python would fail at its end to write out what is left
        os.close(nowhere)
