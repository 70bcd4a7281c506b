"""The file system under a lake: a handful of operations on paths below its root.

Everything goes through pyarrow, so a lake may lie wherever pyarrow can write: a directory, or a URI such as s3:// or hdfs://.
What a commit rests on is stronger than what pyarrow promises. So it is done by hand on a local file system:
`put_if_absent` never replaces a file, not even in a race, and `sync` returns when files would survive a power failure.
Elsewhere, the database decides who comes first.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from ..errors import PipelineError
from ..places import URI, check_place
from . import layout
from .claims import Claims

_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_WITHOUT_DIRECTORIES: Final = ("s3", "gcs")


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

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """How many bytes these files have."""

    def sync(self, paths: Iterable[str]) -> None:
        """Return when these files are on disk for good."""

    def input(self, path: str) -> Any:
        """A file to read from at any place, for pyarrow."""

    def uri(self, path: str = "") -> str:
        """The path, with nothing in it escaped; `for_spark` has it for Spark."""

    def below(self, path: str) -> Files:
        """The files of a directory."""


def open_lake(lake: str | os.PathLike[str], claims: Claims | None = None) -> Files:
    """The files of the lake at a path or URI. Nothing is made yet. To write where names are not given by a file system,
    claims are needed."""
    text = os.fspath(lake)
    check_place("lake", text)
    found = URI.match(text)
    if found is None:
        return LocalFiles(Path(text).absolute())
    scheme = found[1].lower()
    if scheme == "file":
        return LocalFiles(Path(unquote(text[len(scheme) + 1 + len(found[2] or "") :])).absolute())
    uri = ("s3" if scheme == "s3a" else scheme) + unquote(text[len(scheme) :].rstrip("/"))
    try:
        system, root = _divided(uri)
    except ValueError as error:
        raise PipelineError(f"the lake {uri} cannot be opened: {error}") from None
    return RemoteFiles(system, root, uri, claims)


def check_writable(files: Files) -> None:
    """Raises OSError when nothing can be written there."""
    probe = f"{layout.TEMPORARY}/{uuid.uuid4().hex}"
    files.replace(probe, b"")
    files.delete(probe)


def for_spark(uri: str) -> str:
    """A URI of `Files` by the name under which Hadoop knows its file system."""
    return re.sub("^s3:", "s3a:", uri)


class RemoteFiles:
    """Any file system of pyarrow."""

    def __init__(self, system: fs.FileSystem, root: str, uri: str, claims: Claims | None = None) -> None:
        self._fs = system
        self._root = root
        self._uri = uri
        self._claims = claims

    def read(self, path: str) -> bytes | None:
        try:
            with self._fs.open_input_stream(self._at(path)) as file:
                return bytes(file.read())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def replace(self, path: str, content: bytes) -> None:
        temporary = self._temporary(content)
        self.move(temporary, path)

    def put_if_absent(self, path: str, content: bytes) -> bool:
        """What was claimed may be written by anybody, as often as they like: it is always the same."""
        if self._claims is None:
            raise PipelineError(f"writing to the lake {self._uri} needs the database of its archive; set DATABASE_URL")
        claimed = self._claims.claim(self._uri, path, content, lambda: self._exists(path))
        if claimed is not None and not self._exists(path):
            self.replace(path, claimed.content)
        return claimed is not None and claimed.mine

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

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        infos = self._fs.get_file_info([self._at(path) for path in paths])
        return [int(info.size) if info.type == fs.FileType.File else None for info in infos]

    def sync(self, paths: Iterable[str]) -> None:
        """Stores that take whole objects have them for good when the call returns."""

    def input(self, path: str) -> Any:
        return self._fs.open_input_file(self._at(path))

    def uri(self, path: str = "") -> str:
        return f"{self._uri}/{path}" if path else self._uri

    def below(self, path: str) -> Files:
        return RemoteFiles(self._fs, self._at(path), self.uri(path), self._claims)

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _exists(self, path: str) -> bool:
        return bool(self._fs.get_file_info(self._at(path)).type == fs.FileType.File)

    def _make_parent(self, path: str) -> None:
        if self._fs.type_name not in _WITHOUT_DIRECTORIES:
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

    def below(self, path: str) -> Files:
        return LocalFiles(Path(self._at(path)))

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
    system, name = _divided(uri)
    return system.open_output_stream(name)


def open_input(uri: str) -> Any:
    """The file at a URI as `Files.uri` gives it, for pyarrow to read."""
    if uri.startswith("file://"):
        return pa.OSFile(uri.removeprefix("file://"), "rb")
    system, name = _divided(uri)
    return system.open_input_file(name)


def _divided(uri: str) -> tuple[fs.FileSystem, str]:
    """A file system and a path in it. Pyarrow gets no path in the URI, as it would take `%2F` for a slash there."""
    scheme, _, rest = uri.partition("://")
    place, slash, path = rest.partition("/")
    system, root = fs.FileSystem.from_uri(f"{scheme}://{place}")
    return system, f"{root.rstrip('/')}{slash}{path}"
