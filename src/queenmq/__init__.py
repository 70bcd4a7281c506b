"""A partitioned FIFO message queue on PostgreSQL."""

from __future__ import annotations

from importlib.metadata import version

__version__ = version("queenmq")
