"""Leases of the storage that are missing from the state, as after a restored backup, are detected."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.findings import WARN
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.read.doctor_records import check_trash, check_unknown_leases
from gc_assets.stages.records.fencing_tokens import (
    describe_unknown_leases,
    note_unknown_leases,
    quarantine_renewed_at,
    reserve_token,
)
from gc_assets.stages.records.leases import take_lease
from gc_assets.stages.records.ledger import read_quarantine
from gc_assets.state.schemas import DELETION_LOG
from gc_assets.stores.local.store import LocalStore
from gc_assets.stores.protocol import Lease
from tests.records import STORAGE, log_row, publish_table, run_context_at
from tests.stores.builders import PLAN


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    """The context of a storage, and a state that contains its lease."""
    (tmp_path / "warehouse").mkdir()
    context = run_context_at(tmp_path)
    take(context).release()
    return context


def take(context: RunContext) -> Lease:
    return take_lease(context, STORAGE, context.store(STORAGE), "plan", "ada")


def note(context: RunContext, days: float = 0) -> datetime | None:
    """Compare the counters some days later, and return when the time in quarantine began again."""
    later = replace(context, clock=Clock(context.clock.now() + timedelta(days=days)))
    note_unknown_leases(later, STORAGE, later.store(STORAGE))
    return quarantine_renewed_at(later, STORAGE)


def restore_backup(context: RunContext) -> None:
    """Take a lease, and then replace the state by one that does not contain it."""
    (path,) = Path(context.state.files.root).rglob("_token.json")
    backup = path.read_bytes()
    take(context).release()
    path.write_bytes(backup)


def test_quarantine_time_restarts_after_state_backup_was_restored(context: RunContext) -> None:
    assert note(context) is None
    restore_backup(context)
    assert note(context, days=1) == context.clock.now() + timedelta(days=1)


def test_quarantine_time_restarts_only_once_after_restored_backup(context: RunContext) -> None:
    restore_backup(context)
    assert note(context) == note(context, days=3) == context.clock.now()


def test_restored_backup_is_detected_by_next_lease(context: RunContext) -> None:
    restore_backup(context)
    take(context).release()
    assert quarantine_renewed_at(context, STORAGE) == context.clock.now()


def test_backup_note_is_shown_until_quarantine_time_ends(context: RunContext) -> None:
    restore_backup(context)
    note(context)
    found = describe_unknown_leases(context, STORAGE)
    assert found is not None
    assert "lacks 1 lease of storage warehouse," in found
    assert "not purged before 2026-11-27 03:00Z" in found
    days = context.storage(STORAGE).quarantine_days
    later = replace(context, clock=Clock(context.clock.now() + timedelta(days=days)))
    assert describe_unknown_leases(later, STORAGE) is None


def test_state_of_release_without_tokens_is_not_compared(context: RunContext) -> None:
    publish_table(context, STORAGE, DELETION_LOG, [log_row("a", "quarantine", "plan")])
    (path,) = Path(context.state.files.root).rglob("_token.json")
    path.unlink()
    assert note(context) is None
    restore_backup(context)
    assert note(context) is not None


def test_second_state_of_a_storage_is_detected_in_both_states(context: RunContext, tmp_path: Path) -> None:
    second = RunContext.of(context.config.model_copy(update={"state": str(tmp_path / "second")}), context.clock, context.run_date)
    for state, others in ((second, 1), (context, 2), (second, 2)):
        (finding,) = check_unknown_leases(state, state.storage(STORAGE))
        assert (finding.verdict, f"lacks {others} lease" in finding.found) == (WARN, True)
        assert "another state is used for the storage" in finding.found
        take(state).release()
        assert quarantine_renewed_at(state, STORAGE) == context.clock.now()
        take(state).release()


def test_doctor_reports_no_other_state_of_an_unused_storage(context: RunContext) -> None:
    assert not list(check_unknown_leases(context, context.storage(STORAGE)))


def test_copies_of_another_state_are_reported_and_never_restored_or_purged(context: RunContext) -> None:
    trashed = Path(context.storage(STORAGE).location.removeprefix("file://")) / ".gc-assets/trash" / PLAN / "data/a"
    trashed.parent.mkdir(parents=True)
    trashed.write_text("a")
    assert read_quarantine(context.state, STORAGE).num_rows == 0
    (finding,) = check_trash(context, context.storage(STORAGE))
    assert "they are neither restored nor purged" in finding.found
    assert finding.todo.startswith("If another state is used for the storage, only that one can restore or purge them. Otherwise, ")


def test_lease_of_process_that_died_immediately_is_known(context: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    acquire = LocalStore.acquire

    def acquire_and_die(*arguments: Any, **options: Any) -> Lease:
        acquire(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalStore, "acquire", acquire_and_die)
    with pytest.raises(KeyboardInterrupt):
        take(context)
    assert context.store(STORAGE).last_token() == 2
    assert note(context) is None


def test_lease_taken_by_faster_process_is_known(context: RunContext) -> None:
    reserved = reserve_token(context.state, STORAGE)
    faster = take(context)
    assert faster.token == reserved + 1
    assert note(context) is None


def test_rehearsal_clock_does_not_delay_real_runs(context: RunContext) -> None:
    restore_backup(context)
    assert note(context, days=400) is not None
    at = quarantine_renewed_at(replace(context, clock=Clock()), STORAGE)
    assert at is not None
    assert at <= datetime.now(UTC)


def test_user_can_end_wait_caused_by_wrong_clock(context: RunContext) -> None:
    restore_backup(context)
    note(context, days=400)
    advice = (describe_unknown_leases(context, STORAGE) or "").rpartition("remove ")[2].removesuffix(".")
    Path(advice.removeprefix("file://")).unlink()
    assert note(context) is None
    assert describe_unknown_leases(context, STORAGE) is None
