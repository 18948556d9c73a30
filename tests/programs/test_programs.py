"""A few of the programs that `python -m tests.programs` plays, the same ones on each run."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.programs.nights import play


@pytest.mark.spark
def test_no_program_over_a_store_that_lies_loses_a_file(spark: SparkSession, tmp_path: Path) -> None:
    events = play(spark, tmp_path, range(5), days=2)
    assert min(events[name] for name in ("nights", "applies", "files of a quarantine")) > 0, events
