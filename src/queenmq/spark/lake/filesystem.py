"""The file system under a lake: a handful of operations on paths below its root.

Everything goes through pyarrow, so a lake may lie wherever pyarrow can write: a directory, or a URI such as s3:// or hdfs://.
What a commit rests on is stronger on a local file system than pyarrow promises, so it is done by hand there:
`put_if_absent` never replaces a file, not even in a race, and `sync` returns when files would survive a power failure.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
from pyarrow import fs

from ..errors import PipelineError
from . import layout

_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@dataclass(frozen=True, slots=True)
class Found:
    """A file: its path below the root, its size, when it was written."""

    path: str
    size: int
    written: datetime


class Files(Protocol):
    """Paths are relative to the lake's root, with slashes. What is not there is None, or nothing: never an error."""

    def read(self, path: str) -> bytes | None: ...

    def replace(self, path: str, content: bytes) -> None:
        """Write a file as a whole: readers see the one before or this one."""

    def put_if_absent(self, path: str, content: bytes) -> bool:
        """Write a file as a whole unless it is there. Of several who try, one gets True."""

    def move(self, source: str, target: str) -> None: ...

    def delete(self, path: str) -> None: ...

    def delete_tree(self, path: str) -> None: ...

    def find(self, path: str) -> list[Found]:
        """All files below a directory, in the order of their paths."""

    def sync(self, paths: Iterable[str]) -> None:
        """Return when these files are on disk for good."""

    def input(self, path: str) -> Any:
        """A file to read from at any place, for pyarrow."""

    def uri(self, path: str = "") -> str:
        """The path as Spark wants it."""


def open_lake(lake: str | os.PathLike[str]) -> Files:
    """The files of the lake at a path or URI. Nothing is made yet."""
    text = os.fspath(lake)
    scheme = re.match(r"([a-z][a-z0-9+.-]+)://", text)
    if scheme is None or scheme[1] == "file":
        root = fs.FileSystem.from_uri(text)[1] if scheme else text
        return LocalFiles(Path(root).absolute())
    try:
        system, root = fs.FileSystem.from_uri(re.sub("^s3a:", "s3:", text))
    except (OSError, ValueError) as error:
        raise PipelineError(f"the lake {text!r} cannot be opened: {error}") from None
    return RemoteFiles(system, root.rstrip("/"), re.sub("^s3:", "s3a:", text).rstrip("/"))


class RemoteFiles:
    """Any file system of pyarrow. Where nothing is put only if absent, a look and a write do for a single writer."""

    def __init__(self, system: fs.FileSystem, root: str, uri: str) -> None:
        self._fs = system
        self._root = root
        self._uri = uri

    def read(self, path: str) -> bytes | None:
        try:
            with self._fs.open_input_stream(self._at(path)) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def replace(self, path: str, content: bytes) -> None:
        temporary = self._temporary(content)
        self.move(temporary, path)

    def put_if_absent(self, path: str, content: bytes) -> bool:
        if self._exists(path):
            return False
        self.replace(path, content)
        return True

    def move(self, source: str, target: str) -> None:
        self._make_parent(target)
        self._fs.move(self._at(source), self._at(target))

    def delete(self, path: str) -> None:
        if self._exists(path):
            self._fs.delete_file(self._at(path))

    def delete_tree(self, path: str) -> None:
        if self._fs.get_file_info(self._at(path)).type == fs.FileType.Directory:
            self._fs.delete_dir(self._at(path))

    def find(self, path: str) -> list[Found]:
        selector = fs.FileSelector(self._at(path), recursive=True, allow_not_found=True)
        cut = len(self._root) + 1
        infos = [info for info in self._fs.get_file_info(selector) if info.type == fs.FileType.File]
        return sorted((_found(info, cut) for info in infos), key=lambda found: found.path)

    def sync(self, paths: Iterable[str]) -> None:
        """Stores that take whole objects have them for good when the call returns."""

    def input(self, path: str) -> Any:
        return self._fs.open_input_file(self._at(path))

    def uri(self, path: str = "") -> str:
        return f"{self._uri}/{path}" if path else self._uri

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _exists(self, path: str) -> bool:
        return bool(self._fs.get_file_info(self._at(path)).type == fs.FileType.File)

    def _make_parent(self, path: str) -> None:
        self._fs.create_dir(self._at(path.rpartition("/")[0]), recursive=True)

    def _temporary(self, content: bytes) -> str:
        path = f"{layout.TEMPORARY}/{uuid.uuid4().hex}"
        self._make_parent(path)
        with self._fs.open_output_stream(self._at(path)) as file:
            file.write(content)
        return path


class LocalFiles(RemoteFiles):
    """A directory of this machine."""

    def __init__(self, root: Path) -> None:
        super().__init__(fs.LocalFileSystem(), str(root), f"file://{root}")

    def put_if_absent(self, path: str, content: bytes) -> bool:
        """By a second name for a complete file: unlike a rename, that fails when the name is taken."""
        temporary = self._temporary(content)
        self._make_parent(path)
        try:
            os.link(self._at(temporary), self._at(path))
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise PipelineError(
                f"the lake {self._root} is on a file system without hard links, which its commits need; use another"
            ) from None
        finally:
            os.unlink(self._at(temporary))
        self._sync_directories([path])
        return True

    def move(self, source: str, target: str) -> None:
        self._make_parent(target)
        os.replace(self._at(source), self._at(target))

    def sync(self, paths: Iterable[str]) -> None:
        known = list(paths)
        for path in known:
            _sync(self._at(path))
        self._sync_directories(known)

    def _sync_directories(self, paths: Iterable[str]) -> None:
        """A file is only there for good when its directory is, and that in its own, up to the root."""
        folders = {str(parent) for path in paths for parent in Path(path).parents}
        for folder in sorted(folders, reverse=True):
            _sync(self._at("" if folder == "." else folder))

    def _temporary(self, content: bytes) -> str:
        path = super()._temporary(content)
        _sync(self._at(path))
        return path


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _found(info: fs.FileInfo, cut: int) -> Found:
    return Found(info.path[cut:], int(info.size), info.mtime or datetime.now(UTC))


def open_output(uri: str) -> Any:
    """A new file at a URI as `Files.uri` gives it, for pyarrow to write to; directories are made."""
    if uri.startswith("file://"):
        path = Path(uri.removeprefix("file://"))
        path.parent.mkdir(parents=True, exist_ok=True)
        return pa.OSFile(str(path), "wb")
    system, path_in_it = fs.FileSystem.from_uri(re.sub("^s3a:", "s3:", uri))
    return system.open_output_stream(path_in_it)
