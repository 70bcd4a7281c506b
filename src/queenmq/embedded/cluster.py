"""The cluster's directory: what is in it, how it is made, and how the server's user gets to it.

A new cluster is made in a temporary directory beside its final place, complete with our database and password, and then
renamed: a cluster either is there whole or not at all. A directory that is not understood is never touched.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import diagnosis
from .binaries import Binaries
from .connection import DATABASE, USER
from .errors import DirectoryUnusableError, VersionMismatchError
from .identity import Identity, can_enter
from .launch import launch

TEMPORARY = "postgres.init-"
PASSWORD_FILE = "queen.password"
BUILTIN_LOCALES_SINCE = 17


@dataclass(frozen=True, slots=True)
class Address:
    """How the server's programs are told where the cluster is."""

    argument: str
    inherit: tuple[int, ...] = ()


@contextmanager
def address(cluster: Path, identity: Identity) -> Iterator[Address]:
    """The cluster's path, or, when the server's user cannot walk there, a directory we opened for it.

    A root's data directory often lies in a private place such as /root. Opening those directories to others is not
    ours to do. But `/proc/self/fd/N` leads straight to a directory that the process inherited open, past all parents,
    and PostgreSQL uses nothing but paths below the one it is given.
    """
    if can_enter(identity, cluster.parent):
        yield Address(str(cluster))
        return
    if not os.path.isdir("/proc/self/fd"):
        raise DirectoryUnusableError(
            f"PostgreSQL refuses to run as root, and the user {identity.name}, as whom it runs instead, cannot enter "
            f"{cluster.parent}. Set QUEEN_DATA_DIR to a directory that user can reach, or start as another user.",
            directory=str(cluster.parent),
            user=identity.name,
        )
    opened = os.open(cluster, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield Address(f"/proc/self/fd/{opened}", (opened,))
    finally:
        os.close(opened)


def is_made(cluster: Path, binaries: Binaries) -> bool:
    """Whether there is a cluster that these programs can run; an error when there is something else."""
    if not os.path.lexists(cluster) or (cluster.is_dir() and not any(cluster.iterdir())):
        return False
    try:
        version = (cluster / "PG_VERSION").read_text(encoding="ascii").strip()
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError) as error:
        raise DirectoryUnusableError(
            f"{cluster} exists but is not a PostgreSQL cluster (it has no PG_VERSION). It was left as it is: move it "
            "away, or set QUEEN_DATA_DIR to another directory.",
            directory=str(cluster),
        ) from error
    if version != str(binaries.major):
        raise VersionMismatchError(
            f"The cluster in {cluster} was made by PostgreSQL {version}, and the programs in {binaries.bin_dir} are "
            f"PostgreSQL {binaries.version}. Nothing was changed. Set QUEEN_PG_BIN to the bin directory of a "
            f"PostgreSQL {version}, or move the data over with pg_upgrade or pg_dump.",
            directory=str(cluster),
            cluster_version=version,
            binaries_version=binaries.version,
        )
    return True


def take_possession(cluster: Path, identity: Identity, report: Callable[[str], None]) -> None:
    """See that the server's user owns an existing cluster and nobody else can read it, as PostgreSQL demands."""
    owner = cluster.stat().st_uid
    if owner != identity.uid:
        if not identity.drops_root:
            raise DirectoryUnusableError(
                f"The cluster in {cluster} belongs to uid {owner}, and this process runs as uid {identity.uid}. Start "
                "as that user, or set QUEEN_DATA_DIR to another directory.",
                directory=str(cluster),
                owner=owner,
                uid=identity.uid,
            )
        report(f"Giving the cluster in {cluster}, which is root's, to the user {identity.name}")
        for directory, _, files in os.walk(cluster):
            for path in (directory, *(os.path.join(directory, name) for name in files)):
                identity.own(Path(path))
    if cluster.stat().st_mode & 0o077:
        cluster.chmod(0o700)


def remove_unfinished(data_dir: Path) -> None:
    """Remove what a manager that died in `make` left. The caller holds the lock, so nobody is making one now."""
    for leftover in data_dir.glob(f"{TEMPORARY}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def make(cluster: Path, binaries: Binaries, identity: Identity) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=cluster.parent))
    try:
        identity.own(temporary)
        with address(temporary, identity) as where:
            _initdb(where, binaries, identity, cluster.parent)
            _create_database(where, binaries, identity, cluster.parent, _write_password(temporary, identity))
        temporary.rename(cluster)
        _sync(cluster.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def password(cluster: Path) -> str | None:
    """The password for TCP connections."""
    try:
        return (cluster / PASSWORD_FILE).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None


def _initdb(where: Address, binaries: Binaries, identity: Identity, data_dir: Path) -> None:
    common = [
        *(binaries.program("initdb"), "-D", where.argument, f"--username={USER}"),
        *("--encoding=UTF8", "--data-checksums"),
        # The socket is private to the server's user, who could read the files anyway; TCP takes the password.
        *("--auth-local=trust", "--auth-host=scram-sha-256"),
    ]
    output = ""
    for locale in _locales(binaries.major):
        code, output = _run([*common, *locale], where, identity)
        if code == 0:
            return
        if not diagnosis.locale_unknown(output):
            break
    raise diagnosis.of_init(output, directory=data_dir)


def _locales(major: int) -> list[list[str]]:
    """The same order of text everywhere, from the best to the last resort."""
    builtin = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
    return [*([builtin] if major >= BUILTIN_LOCALES_SINCE else []), ["--locale=C.UTF-8"], ["--locale=C"]]


def _create_database(where: Address, binaries: Binaries, identity: Identity, data_dir: Path, secret: str) -> None:
    """In single-user mode, so that the cluster is complete before anybody can connect to it."""
    statements = f"ALTER ROLE {USER} PASSWORD '{secret}'\nCREATE DATABASE {DATABASE}\n"
    # The log must not quote the statement with the password, should it fail.
    quiet = ("-c", "exit_on_error=on", "-c", "log_min_error_statement=panic", "-c", "log_checkpoints=off")
    argv = [binaries.program("postgres"), "--single", "-D", where.argument, *quiet, "postgres"]
    code, output = _run(argv, where, identity, statements)
    if code != 0:
        raise diagnosis.of_init(output, directory=data_dir)


def _run(argv: list[str], where: Address, identity: Identity, given: str = "") -> tuple[int, str]:
    launched = launch(
        argv,
        identity,
        death_signal=signal.SIGTERM,
        inherit=where.inherit,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        output, _ = launched.process.communicate(given.encode())
    except BaseException:
        launched.process.terminate()
        launched.process.wait()
        raise
    finally:
        launched.forget()
    return launched.process.returncode, output.decode("utf-8", errors="replace")


def _write_password(directory: Path, identity: Identity) -> str:
    secret = secrets.token_hex(24)
    path = directory / PASSWORD_FILE
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(secret + "\n")
        file.flush()
        os.fsync(file.fileno())
    identity.own(path)
    return secret


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
