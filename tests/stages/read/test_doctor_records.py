"""Doctor compares the id of a storage with the one on record, and reports the notes of the last run."""

from __future__ import annotations

from pathlib import Path

from gc_assets.core.findings import FAIL, OK, WARN
from gc_assets.engine.recorded_names import record_names, with_recorded_names
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.read.doctor_records import check_identity, check_last_run
from gc_assets.stages.records.leases import take_lease
from gc_assets.state.schemas import DELETION_PLAN, ORPHAN_FILES, STORAGE_INVENTORY
from tests.core.test_plan import plan
from tests.records import EMPTY_SWEEP, STORAGE, publish_table, run_context_at


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


def test_notes_and_uncollectable_objects_of_the_last_run_are_reported(tmp_path: Path) -> None:
    context = run_context_at(tmp_path)
    note = "lake weather: metadata of views that the catalog no longer lists is kept (1 file)"
    publish_table(context, STORAGE, ORPHAN_FILES, **EMPTY_SWEEP, notes=[note])
    odd = [{"key": "b\\xe9.parquet", "kind": "not_utf8", "detail": "the name is not UTF-8: kept"}]
    odd.append({"key": "link", "kind": "symlink", "detail": "../data"})
    counts = {"objects": 2, "bytes": 20, "tasks": 1, "full_listing_on": context.run_date.isoformat()}
    publish_table(context, STORAGE, STORAGE_INVENTORY, **counts, problems={"not_utf8": 1, "symlink": 1}, problem_samples=odd)
    header = plan(run_date=context.run_date, rehearsal=context.clock.is_rehearsal)
    publish_table(context, STORAGE, DELETION_PLAN, plan_id=header.plan_id, header=header.model_dump(mode="json"))
    found = {item.check: item for item in check_last_run(context, context.storage(STORAGE), {}) if item.verdict == WARN}
    assert found["note"].found == f"the run of {context.run_date}: {note}"
    assert found["kept"].found.endswith(r"such as b\xe9.parquet (the name is not UTF-8: kept)")
    assert len(found) == 2
