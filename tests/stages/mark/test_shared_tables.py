"""Lakes with the same address of their catalog, which may be one catalog or those of two accounts."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pytest

from gc_assets.config.models import Config, StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.stages.mark.lake_refs import locate_catalog, locate_server
from gc_assets.stages.mark.shared_tables import EDIT_COLUMNS, SharedTables
from gc_assets.state.schemas import EXPIRY_PLAN


def context_at(root: Path) -> RunContext:
    """Return a run context with two lakes of the Glue catalogs of two accounts."""
    lakes = tuple(
        IcebergLakeConfig.model_validate(
            {"name": name, "kind": "iceberg", "catalog": {"type": "glue", "glue.region": "eu-1", "glue.profile-name": name}}
        )
        for name in ("red", "blue")
    )
    config = Config(state=str(root / "state"), storages=(StorageConfig(name="disk", location=f"file://{root}/warehouse/"),), lakes=lakes)
    return RunContext.of(config, Clock(), Clock().today())


@pytest.mark.parametrize(
    "listed, reads_same_catalog",
    [({"u2", "u3"}, True), ({"u9"}, False), (set(), True)],
    ids=["tables in common", "no table in common", "nothing read"],
)
def test_table_not_read_by_another_lake_is_kept_only_in_shared_catalog(
    tmp_path: Path, listed: Collection[str], reads_same_catalog: bool
) -> None:
    context, tables = context_at(tmp_path), {"red": frozenset({"u1", "u2"}), "blue": frozenset(listed)}
    neighbours = dict.fromkeys(tables, frozenset(tables))
    assert locate_server(context, "red") == locate_server(context, "blue")
    assert locate_catalog(context, "red") != locate_catalog(context, "blue")
    edit = {"table_uuid": "u1", "action": "remove_snapshot", "snapshot_id": "7", "ref_name": None, "table_name": "db.t"}
    schema = pa.schema([EXPIRY_PLAN.schema.field(name) for name in EDIT_COLUMNS])
    kept = SharedTables(context, tables, tables, {}, neighbours).find_kept_edits("red", pa.Table.from_pylist([edit], schema))
    assert [item.lake for item in kept.values()] == (["blue"] if reads_same_catalog else [])
