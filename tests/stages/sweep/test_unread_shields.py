"""Locations of unreadable tables are protected by sweeps and applies in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.engine.run_context import RunContext
from gc_assets.stages.sweep.claims import claims_of, list_unread_shields
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import LAKE_REFS, LIVE_FILES
from gc_assets.state.side_tables import CLAIMS, CLAIMS_SIDE
from tests.records import EMPTY_LIVE_SET, LAKE, NOW, STORAGE, publish_table, run_context_at


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    return run_context_at(tmp_path)


def publish_claims(context: RunContext, table: Any, *claims: dict[str, Any]) -> PublishedTable:
    rows = [{"address": f"file:///{claim['key']}", "storage": STORAGE, "collect": False, **claim} for claim in claims]
    freeze: dict[str, Any] = {"frozen_at": NOW.isoformat(), "min_age_seconds": 0, "kind": "icechunk"}
    summary = freeze if table is LAKE_REFS else EMPTY_LIVE_SET
    return publish_table(context, LAKE, table, side={CLAIMS_SIDE: pa.Table.from_pylist(rows, CLAIMS)}, **summary)


@pytest.mark.parametrize("wide", ["", "db/"])
def test_wide_location_of_a_table_that_was_never_read_is_narrowed(context: RunContext, wide: str) -> None:
    refs = publish_claims(context, LAKE_REFS, {"key": "other/", "table_uuid": "other", "collect": True})
    table = {"key": "db/t/", "table_uuid": "t", "collect": True}
    live = publish_claims(context, LIVE_FILES, table, {"key": wide, "table_name": "hdfs://nn/w/metadata/1.metadata.json"}, {"key": "kept/"})
    expected = {f"{wide}data/", f"{wide}metadata/", "kept/"}
    assert {claim.prefix for claim in list_unread_shields(context, STORAGE, [refs], [live])} == expected
    swept = claims_of(context, STORAGE, [refs, live])
    assert {prefix for prefix, owner in swept.owners.items() if owner is None} == expected


def test_last_known_location_of_an_unreadable_table_is_protected_completely(context: RunContext) -> None:
    refs = publish_claims(context, LAKE_REFS, {"key": "db/t/inner/", "table_uuid": "inner", "collect": True})
    live = publish_claims(context, LIVE_FILES, {"key": "db/t/", "table_uuid": "t"})
    assert [claim.prefix for claim in list_unread_shields(context, STORAGE, [refs], [live])] == ["db/t/"]
