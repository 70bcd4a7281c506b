"""Settings as they are read from an environment, or what is wrong with it."""

from __future__ import annotations

import pytest

from queenmq.server.settings import Settings, SettingsError


def settings(**environ: str) -> Settings:
    return Settings.from_env(environ)


def problems(**environ: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env(environ)
    return caught.value.problems
