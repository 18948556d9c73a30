"""Objects that an earlier run kept stay kept after their repository was moved or a link re-pointed."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.engine.tables import collect, frame_from_arrow
from gc_assets.stages.mark.lakefs.lifecycle_objects import MovedClaim, follow_moved_claims

pytestmark = pytest.mark.spark


def test_kept_objects_are_protected_at_moved_location(spark: SparkSession) -> None:
    kept = frame_from_arrow(spark, pa.table({"storage": ["disk1", "disk1", "disk2"], "key": ["repo/data/a", "other/b", "repo/data/c"]}))
    moved = [MovedClaim("disk1", "repo/data/", "disk2", "new/repo/data/")]
    found = {(row["storage"], row["key"]) for row in collect(follow_moved_claims(kept, moved))}
    assert found == {
        ("disk1", "repo/data/a"),
        ("disk1", "other/b"),
        ("disk2", "repo/data/c"),
        ("disk2", "new/repo/data/a"),
    }
