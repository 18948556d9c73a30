"""Sessions that follow each other on pyspark's local Connect server share its Python processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.depth import full_suite_only

pytest.importorskip("pyspark.sql.connect.local_server", reason="pyspark 4.3 has the first reusable local server")
from benchmarks.long_lived import open_sessions

pytestmark = [pytest.mark.spark, full_suite_only]


def test_three_sessions_have_one_daemon_and_two_workers(tmp_path: Path) -> None:
    *_, last = open_sessions("local", 3, tmp_path)
    assert last.count == 3
    assert last.children <= 3
