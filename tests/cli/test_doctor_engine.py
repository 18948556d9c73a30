"""`gc-assets doctor` starts Spark and runs a Python task, as a run does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from gc_assets.cli.main import cli
from gc_assets.core.errors import UsageError
from gc_assets.resources import executors


def configure(root: Path, **conf: str) -> Path:
    (root / "warehouse" / "lake").mkdir(parents=True)
    document: dict[str, Any] = {
        "state": "./state",
        "storages": [{"name": "warehouse", "location": f"file://{root}/warehouse/"}],
        "lakes": [{"name": "weather", "kind": "icechunk", "location": f"file://{root}/warehouse/lake/"}],
        "spark": {"master": "local[1]", "conf": conf},
    }
    (root / "lakes.yaml").write_text(json.dumps(document))
    return root / "lakes.yaml"


def session_row(output: str) -> dict[str, Any]:
    (row,) = [row for row in json.loads(output) if (row["subject"], row["check"]) == ("spark", "session")]
    return row


@pytest.mark.spark
def test_spark_session_and_python_task_are_reported_with_versions(spark: SparkSession, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["doctor", "--format", "json", "--config", str(configure(tmp_path))])
    row = session_row(result.stdout)
    python = ".".join(map(str, sys.version_info[:3]))
    assert row["verdict"] == "ok"
    assert row["found"].startswith(f"Spark {spark.version}, Java ")
    assert f", Python {python}: a session on local[1] ran a Python task after " in row["found"]
    assert spark.range(3).count() == 3, "the session of this process is not stopped"


def test_doctor_fails_if_spark_cannot_start(tmp_path: Path) -> None:
    config = configure(tmp_path, **{"spark.driver.extraJavaOptions": "-XX:MaxMetaspaceSize=bad"})
    command = [sys.executable, "-m", "gc_assets", "doctor", "--format", "json", "--config", str(config)]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=120, check=False)
    row = session_row(done.stdout)
    assert (done.returncode, row["verdict"]) == (1, "fail")
    assert row["found"].startswith("Spark cannot start: Improperly specified VM option 'MaxMetaspaceSize=bad'.")
    assert "Traceback" not in done.stderr


@pytest.mark.spark
def test_doctor_fails_if_spark_cannot_run_a_python_task(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del spark

    def fail(*_: object) -> None:
        raise UsageError("executors of local[1] have no module 'pyarrow' in their Python")

    monkeypatch.setattr(executors, "describe_executors", fail)
    result = CliRunner().invoke(cli, ["doctor", "--format", "json", "--config", str(configure(tmp_path))])
    row = session_row(result.stdout)
    assert (result.exit_code, row["verdict"]) == (1, "fail")
    assert "have no module 'pyarrow'" in row["found"]
