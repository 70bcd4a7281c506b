"""The private directory of the server's Unix socket.

A socket's path is limited to about a hundred bytes, which data directories exceed, so the socket lives in a directory
of its own under a temporary one. Its name is derived from the cluster, so that clients find the server at the same
place after a restart. Only the server's user can enter it (mode 0700), which is why the socket needs no password. A
directory of that name which somebody else made is not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

from .errors import DirectoryUnusableError
from .identity import Identity, can_enter
from .probe import socket_file

LONGEST_SOCKET_PATH = 103
"""The smallest limit among the supported systems (macOS; Linux allows 107)."""


def prepare(cluster: Path, identity: Identity, port: int) -> Path:
    """An empty directory for the socket. The caller knows that no server of this cluster is running."""
    digest = hashlib.sha256(os.fsencode(cluster)).hexdigest()[:10]
    name = f"queen-{identity.uid}-{digest}"
    for base in _bases(identity):
        # mkdtemp adds nine characters to the name when it has to find another one.
        if len(os.fsencode(socket_file(base / name, port))) + 9 <= LONGEST_SOCKET_PATH and can_enter(identity, base):
            return _make(base, name, identity)
    raise DirectoryUnusableError(
        "No directory for the server's Unix socket: neither TMPDIR nor /tmp can be used by the user "
        f"{identity.name}, or their paths are too long. Set TMPDIR to a short directory.",
        user=identity.name,
    )


def remove(directory: Path) -> None:
    """Best effort: the next start empties what is left."""
    with contextlib.suppress(OSError):
        _empty(directory)
        directory.rmdir()


def _bases(identity: Identity) -> list[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    wanted = [Path(runtime)] if runtime and not identity.drops_root else []
    wanted += [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    return [base for base in wanted if base.is_absolute() and os.access(base, os.W_OK | os.X_OK)]


def _make(base: Path, name: str, identity: Identity) -> Path:
    directory = base / name
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        if _is_private(directory, identity):
            _empty(directory)
        else:
            directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=base))
    identity.own(directory)
    return directory


def _is_private(directory: Path, identity: Identity) -> bool:
    found = directory.lstat()
    ours = found.st_uid in (identity.uid, os.geteuid())
    return ours and stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700


def _empty(directory: Path) -> None:
    """Remove sockets and their lock files: PostgreSQL would believe a lock file whose pid is in use again."""
    for leftover in directory.glob(".s.PGSQL.*"):
        leftover.unlink(missing_ok=True)
