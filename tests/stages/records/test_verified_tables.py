"""Records of tables that an apply read after its own edits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from gc_assets.core.clock import Clock
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.records.verified_tables import VerifiedTable, read_verified_tables, record_verified_tables
from tests.records import run_context_at

NOW = datetime.now(UTC)


def real_context(root: Path) -> RunContext:
    return RunContext.of(run_context_at(root).config, Clock(), NOW.date())


def record(context: RunContext, uuid: str, at: datetime, *, rehearsal: bool = False) -> None:
    record_verified_tables(context, "sales", [VerifiedTable(table_uuid=uuid, catalog="c", at=at, rehearsal=rehearsal)])


def test_newest_verification_of_table_applies(tmp_path: Path) -> None:
    context = real_context(tmp_path)
    assert read_verified_tables(context, "sales") == {}
    for days in (400, 3, 1):
        record(context, "a", NOW - timedelta(days=days))
    record(context, "b", NOW - timedelta(days=2))
    record(context, "c", NOW + timedelta(days=1))
    found = read_verified_tables(context, "sales")
    assert {uuid: (NOW - item.at).days for uuid, item in found.items()} == {"a": 1, "b": 2}


def test_verification_in_rehearsal_does_not_replace_real_one(tmp_path: Path) -> None:
    context = real_context(tmp_path)
    record(context, "a", NOW - timedelta(days=3))
    record(context, "a", NOW - timedelta(days=1), rehearsal=True)
    assert read_verified_tables(context, "sales")["a"].at == NOW - timedelta(days=3)
    rehearsal = RunContext.of(context.config, Clock(NOW), NOW.date())
    assert read_verified_tables(rehearsal, "sales")["a"].at == NOW - timedelta(days=1)


def test_damaged_verification_record_is_replaced(tmp_path: Path) -> None:
    context = real_context(tmp_path)
    context.state.files.replace("sales/verified_tables.json", b"[{")
    assert read_verified_tables(context, "sales") == {}
    record(context, "a", NOW)
    assert set(read_verified_tables(context, "sales")) == {"a"}
