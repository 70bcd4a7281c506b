"""Which operating-system user the server runs as.

PostgreSQL refuses to run as root. A manager that is root therefore runs it as the owner of the cluster, or, when there
is no cluster yet, as `postgres` or `nobody`. Any other manager runs it as itself.
"""

from __future__ import annotations

import errno
import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .errors import PrivilegeError

FALLBACK_USERS = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Identity:
    uid: int
    gid: int
    drops_root: bool

    @property
    def name(self) -> str:
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return f"uid {self.uid}"

    def own(self, path: Path) -> None:
        if self.drops_root:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def choose(cluster: Path) -> Identity:
    if os.geteuid() != 0:
        return Identity(os.geteuid(), os.getegid(), drops_root=False)
    if cluster.exists():
        owner = cluster.stat()
        if owner.st_uid != 0:
            return Identity(owner.st_uid, owner.st_gid, drops_root=True)
    for name in FALLBACK_USERS:
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return Identity(user.pw_uid, user.pw_gid, drops_root=True)
    raise PrivilegeError(
        "PostgreSQL does not run as root, and neither of the users postgres and nobody exists to run it as. "
        "Create one of them, or start as another user.",
        tried=", ".join(FALLBACK_USERS),
    )


def can_enter(identity: Identity, directory: Path) -> bool:
    """Whether the server's user can walk to `directory` (the kernel is asked, as that user)."""
    if not identity.drops_root:
        return os.access(directory, os.X_OK)
    return run_as(identity, ["/bin/sh", "-c", 'cd -- "$1"', "sh", str(directory)]) is not None


def run_as(identity: Identity, argv: list[str]) -> str | None:
    """The output of a short, harmless command run as the server's user; None when it cannot be run or fails."""
    drops = identity.drops_root
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            cwd="/",
            check=False,
            user=identity.uid if drops else None,
            group=identity.gid if drops else None,
            extra_groups=[identity.gid] if drops else None,
        )
    except OSError as error:
        # A program that may not be executed gives EACCES; these two come from the change of user.
        if drops and error.errno in (errno.EPERM, errno.EINVAL):
            raise PrivilegeError(
                f"PostgreSQL does not run as root, and this root may not become the user {identity.name}. "
                "Allow it (capabilities SETUID and SETGID), or start as another user.",
                user=identity.name,
            ) from error
        return None
    return done.stdout if done.returncode == 0 else None
