"""Command lines of started Spark processes, which all users of the machine can read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.depth import in_turn

pytestmark = [pytest.mark.spark, in_turn]

SECRET = "Zm9yIG5vYm9keSdzIGV5ZXM = #"  # noqa: S105
KEY = "spark.hadoop.fs.s3a.secret.key"
SCRIPT = f"""
import json, sys
from gc_assets.resources.spark import SparkRuntime
conf = {{{KEY!r}: sys.stdin.read(), "spark.driver.memory": "512m"}}
spark = SparkRuntime(master="local[1]", conf=conf).session()
print(json.dumps([spark.sparkContext.getConf().get({KEY!r}), spark.sparkContext.master]), flush=True)
spark.stop()
"""


def test_secret_settings_are_not_on_command_lines(tmp_path: Path) -> None:
    given = tmp_path / "secret"
    given.write_text(SECRET)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    with given.open() as secret, (tmp_path / "told").open("w+") as arguments:
        process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdin=secret, stdout=arguments, env=clean)
        seen = set[str]()
        while process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    seen.add(" ".join(child.cmdline()))
            time.sleep(0.05)
        arguments.seek(0)
        assert json.loads(arguments.readlines()[-1]) == [SECRET, "local[1]"]
    assert [line for line in seen if "org.apache.spark.deploy.SparkSubmit" in line]
    assert [line for line in seen if SECRET in line] == []
