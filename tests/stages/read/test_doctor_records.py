"""Doctor compares the id of a storage with the one on record."""

from __future__ import annotations

from pathlib import Path

from gc_assets.core.findings import FAIL, OK
from gc_assets.engine.recorded_names import record_names, with_recorded_names
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.read.doctor_records import check_identity
from gc_assets.stages.records.leases import take_lease
from tests.records import STORAGE, run_context_at


def leased_context(root: Path) -> RunContext:
    """Return the context of a storage that has had a lease, so that it has an id on record."""
    (root / "warehouse").mkdir()
    context = run_context_at(root)
    config = with_recorded_names(context.config)
    record_names(config, context.state, context.clock)
    named = RunContext.of(config, context.clock, context.run_date)
    take_lease(named, STORAGE, named.store(STORAGE), "plan", "ada").release()
    return named


def test_unmounted_disk_is_reported_as_another_storage(tmp_path: Path) -> None:
    context = leased_context(tmp_path)
    (finding,) = check_identity(context, context.storage(STORAGE))
    assert finding.verdict == OK
    (tmp_path / "warehouse").rename(tmp_path / "disk")
    (tmp_path / "warehouse").mkdir()
    (finding,) = check_identity(context, context.storage(STORAGE))
    assert finding.verdict == FAIL
    assert "has no id and no lease" in finding.found
    assert "gc-assets rename warehouse warehouse --by WHO" in finding.todo
