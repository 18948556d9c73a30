"""The range of supported Spark versions."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pyspark
import pytest

from gc_assets.core.errors import UsageError
from gc_assets.remote.spark_submit import submit_version
from gc_assets.resources import spark_version
from gc_assets.resources.connect_server import describe_server, use_own_server
from gc_assets.resources.spark import SparkRuntime, write_properties
from gc_assets.resources.spark_version import NEWEST, OLDEST, is_supported, minor, require_equal

ROOT = Path(__file__).parents[2]


def test_supported_spark_range_matches_the_package_metadata() -> None:
    """A managed service has its own pyspark, which pip does not check. It can be 3.5."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (requirement,) = (name for name in dependencies if name.startswith("pyspark"))
    oldest, below = re.fullmatch(r"pyspark\[connect\]>=([\d.]+),<([\d.]+)", requirement).groups()
    assert oldest == ".".join(map(str, OLDEST))
    assert below == f"{NEWEST[0]}.{NEWEST[1] + 1}"


@pytest.mark.parametrize(
    "version, supported",
    [
        ("3.4.4", False),
        ("3.5.4-amzn-0", True),
        ("3.6.0", False),
        ("4.0.0", True),
        ("4.0.2-amzn-0", True),
        ("4.1.0.dev3", True),
        ("4.3.0", True),
        ("4.4.0", False),
        ("5.0", False),
        ("", False),
    ],
)
def test_spark_versions_of_managed_services_are_parsed(version: str, supported: bool) -> None:
    assert is_supported(version) is supported


def test_session_is_refused_with_unsupported_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.4.4")
    with pytest.raises(UsageError, match=r"this process has Spark 3\.4\.4, but gc-assets supports Spark 3\.5 and 4\.0 to 4\.3"):
        SparkRuntime().session()


@pytest.mark.spark
def test_spark_home_with_another_spark_is_refused(spark: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyspark starts the Spark in SPARK_HOME without comparing versions."""
    monkeypatch.setattr(pyspark, "__version__", "4.1.4" if minor(pyspark.__version__) != "4.1" else "4.0.5")
    with pytest.raises(UsageError) as refused:
        require_equal(spark.version, "local[2]")  # type: ignore[attr-defined]
    assert f"local[2] runs Spark {spark.version}, but this process has pyspark {pyspark.__version__}" in str(refused.value)  # type: ignore[attr-defined]
    assert f"pip install 'pyspark=={minor(spark.version)}.*'" in str(refused.value)  # type: ignore[attr-defined]


def test_error_for_unsupported_server_suggests_no_failing_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.0.5")
    with pytest.raises(UsageError, match=r"must be equal: use a Spark 4\.0 \(docs"):
        require_equal("3.4.1", "spark://host:7077")


def test_spark_connect_is_refused_with_pyspark_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    with pytest.raises(UsageError, match=r"Spark Connect needs pyspark 4\.0 or newer, but this process has pyspark 3\.5\.9"):
        SparkRuntime(mode="connect", remote="sc://localhost:15002").session()


@pytest.mark.parametrize("version, options", [("3.5.9", []), ("4.0.5", ["--load-spark-defaults"])])
def test_run_settings_override_spark_distribution_defaults(tmp_path: Path, version: str, options: list[str]) -> None:
    """Spark 3.5 cannot read both files, so it gets one."""
    defaults = tmp_path / "conf" / "spark-defaults.conf"
    defaults.parent.mkdir()
    defaults.write_text("spark.master local[7]\nspark.eventLog.dir s3a://events")
    file = tmp_path / "spark.conf"
    assert write_properties(file, {"spark.master": "local[2]"}, version, tmp_path) == [*options, "--properties-file", str(file)]
    assert file.read_text().splitlines()[-1] == "spark.master=local[2]"
    assert ("spark.eventLog.dir s3a://events" in file.read_text().splitlines()) is (version == "3.5.9")


def test_spark_distribution_version_is_read_without_java(tmp_path: Path) -> None:
    assert submit_version(str(Path(pyspark.__path__[0]) / "bin" / "spark-submit")) == pyspark.__version__
    assert submit_version(str(tmp_path / "bin" / "spark-submit")) is None


def test_local_server_is_refused_if_pyspark_cannot_reuse_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_version, "find_spec", lambda _: None)
    for use in (use_own_server, describe_server):
        with pytest.raises(UsageError, match=r"has no reusable local Spark Connect server.*Set `mode: session`"):
            use(dict(os.environ))
