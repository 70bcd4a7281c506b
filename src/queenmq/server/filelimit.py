"""How many files, and so connections, a process may have open."""

from __future__ import annotations

import contextlib
import resource

# What systems without a hard limit still refuse to exceed (macOS).
_ENOUGH = 10_240


def raise_file_limit() -> int:
    """Raise this process's limit as far as it is allowed to; children inherit it. Returns the limit now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else hard
    if soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return soft
