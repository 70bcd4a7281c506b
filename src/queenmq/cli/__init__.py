"""The command line, `queen`."""

from __future__ import annotations

from queenmq.cli.app import main

__all__ = ["main"]
