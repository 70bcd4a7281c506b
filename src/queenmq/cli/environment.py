"""The settings of a command, from its environment."""

from __future__ import annotations

import os

from queenmq.cli.console import warn
from queenmq.server.settings import Settings, warnings


def settings() -> Settings:
    """Names that are not known, or have no effect, are warned of. Raises SettingsError."""
    for sentence in warnings(os.environ):
        warn(sentence)
    return Settings.from_env(os.environ)
