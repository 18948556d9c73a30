"""A session on a server that is not Apache Spark."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from gc_assets.core.errors import UsageError

connect_service = pytest.importorskip(
    "gc_assets.resources.connect_service", reason="Spark Connect needs grpcio and pyspark 4.0", exc_type=ImportError
)


class OtherEngine:
    """Refuses artifacts, as Sail does."""

    def addArtifacts(self, *_: str, **__: Any) -> None:  # noqa: N802  (a method of pyspark)
        raise PySparkException("handle add artifacts")


def test_server_that_is_not_apache_spark_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the server at sc://lake:15002 does not accept .*handle add artifacts.*server of Apache Spark"):
        connect_service.send_artifacts(OtherEngine(), {}, "sc://lake:15002")
