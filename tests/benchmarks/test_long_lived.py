"""Sessions that follow each other on a Connect server share its Python processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.depth import full_suite_only

pytest.importorskip("pyspark.sql.connect.local_server", reason="pyspark 4.3 has the first reusable local server")
from benchmarks.long_lived import open_sessions

pytestmark = [pytest.mark.spark, full_suite_only]


@pytest.mark.parametrize("kind", ["local", "service"])
def test_later_sessions_reuse_the_python_daemon(kind: str, tmp_path: Path) -> None:
    first, *_, last = open_sessions(kind, 3, tmp_path)
    assert last.count == 3
    assert last.children <= first.children + 1  # one more worker, not another daemon with workers
