"""The archive of Spark's classes is used if it fits, and never prevents a JVM from starting."""

import subprocess
import sys
from pathlib import Path

import pytest

from gc_assets.resources.class_archive import archive_path, jvm_options
from gc_assets.resources.java import ensure_java_home

PRINT_MAPS = """
from pathlib import Path
from gc_assets.resources.spark import SparkRuntime
spark = SparkRuntime(master="local[1]").session()
pid = spark._jvm.java.lang.ProcessHandle.current().pid()
print(Path(f"/proc/{pid}/maps").read_text())
spark.stop()
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of a Python environment without an archive."""
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    return tmp_path


def starts(options: str) -> bool:
    java = Path(ensure_java_home()) / "bin" / "java"
    return subprocess.run([java, *options.split(), "-version"], capture_output=True, text=True, check=False).returncode == 0


def test_each_java_version_has_a_separate_class_archive(environment: Path) -> None:
    assert archive_path("/opt/jdk17") != archive_path("/opt/jdk21")
    assert archive_path("/opt/jdk17").is_relative_to(environment)


def test_missing_archive_adds_no_jvm_option(environment: Path) -> None:
    assert jvm_options(ensure_java_home()) == ""


def test_archive_path_with_spaces_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path / "my environment"))
    write_archive_of(archive_path(ensure_java_home()), b"")
    assert jvm_options(ensure_java_home()) == ""


@pytest.mark.parametrize("content", [b"", b"no archive", bytes(1 << 21)], ids=["empty", "text", "zeros"])
def test_jvm_starts_with_a_damaged_archive(environment: Path, content: bytes) -> None:
    home = ensure_java_home()
    write_archive_of(archive_path(home), content)
    assert "SharedArchiveFile" in jvm_options(home)
    assert starts(jvm_options(home))


@pytest.mark.spark
def test_spark_session_maps_the_class_archive() -> None:
    path = archive_path(ensure_java_home())
    if not path.is_file() or not Path("/proc/self/maps").exists():
        pytest.skip("no archive, or this system shows no mapped files: run `make env`")
    # `make test` writes the archive after it started the session of the tests.
    assert str(path) in subprocess.run([sys.executable, "-c", PRINT_MAPS], capture_output=True, text=True, check=True).stdout


def write_archive_of(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
