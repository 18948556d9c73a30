"""The package that is sent to executors on other machines."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gc_assets import __version__
from gc_assets.core.errors import UsageError
from gc_assets.resources import executors

MODULES = ("gc_assets.engine.daemon", "gc_assets.engine.executor_info", "gc_assets.resources.spark", "gc_assets.lakes.kinds")


def test_executor_package_is_complete_and_importable(tmp_path: Path) -> None:
    script = f"import {', '.join(MODULES)}; print(gc_assets.__version__, gc_assets.__file__)"
    environment = {"PYTHONPATH": executors.build_package().name}
    (tmp_path / executors.build_package().name).write_bytes(executors.build_package().read_bytes())
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [__version__, str(tmp_path / executors.build_package().name / "gc_assets" / "__init__.py")]


def test_executor_package_is_reproducible() -> None:
    first = hashlib.sha256(executors.build_package().read_bytes()).digest()
    executors.build_package.cache_clear()
    executors.package_directory.cache_clear()
    assert hashlib.sha256(executors.build_package().read_bytes()).digest() == first


def test_executors_with_another_pyspark_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda *_: "false"), version="4.1.4")
    row = {"version": __version__, "python": "3.11.2", "spark": "4.0.5", "machine": "worker-7"}
    monkeypatch.setattr(executors, "describe_executors", lambda *_: row)
    with pytest.raises(UsageError, match=r"have pyspark 4\.0\.5, but the driver runs Spark 4\.1\.4\..*Python of `worker-7`"):
        executors.check_executors(spark, "spark://cluster")
    spark.version = "4.0.2-amzn-0"
    executors.check_executors(spark, "spark://cluster")


@pytest.mark.parametrize("spelled", ["true", "True", " TRUE"])
def test_enabled_speculation_is_refused_in_any_spelling(spelled: str) -> None:
    """Spark reads all of these spellings as true."""
    spark: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda *_: spelled))
    with pytest.raises(UsageError, match=r"spark\.speculation enabled"):
        executors.check_executors(spark, "spark://cluster")
