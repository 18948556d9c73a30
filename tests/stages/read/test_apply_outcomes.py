"""The reasons of outcomes in a log, by number, and the records of an interrupted apply."""

from __future__ import annotations

from pathlib import Path

import pytest

from gc_assets.core.phases import ABORT, PHASES, PURGE, QUARANTINE
from gc_assets.core.plan import PlanHeader, Uploads
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.read.apply_outcomes import MAX_REASONS, count_reasons, read_recorded_actions
from gc_assets.stages.records.plans import execution_directory
from gc_assets.state.journal import State
from gc_assets.stores.protocol import Outcome, PlannedAction
from gc_assets.stores.write_ahead import open_log
from tests.assets.platforms import NOW, platform, stored_plan
from tests.records import log_row, publish_log


@pytest.fixture
def at(tmp_path: Path) -> Platform:
    return platform(tmp_path)


def header(at: Platform) -> PlanHeader:
    return header_of(stored_plan(at)).model_copy(update={"expiry_actions": {"sales": 3}, "uploads": Uploads(count=1)})


def test_reasons_that_differ_only_in_keys_and_numbers_are_counted_together(at: Platform) -> None:
    context = at.run_context(NOW.date())
    changed = [
        log_row(key, QUARANTINE, "p", outcome="changed", error=f"expected 5-{number}-1 at '{key}', found 5-{number}-2")
        for key, number in (("a", 17), ("b", 18))
    ]
    denied = [log_row(key, QUARANTINE, "p", outcome="denied", error="the disk is read-only") for key in "cd"]
    others = [log_row("e", PURGE, "p", outcome="failed"), log_row("f", PURGE, "p", error="purged with 2 older versions")]
    published = publish_log(context, *changed, *denied, *others)
    assert count_reasons(context, header(at), published) == {
        (QUARANTINE, "changed"): {"for example expected 5-17-1 at 'a', found 5-17-2": 2},
        (QUARANTINE, "denied"): {"the disk is read-only": 2},
        (PURGE, "failed"): {"no reason is recorded": 1},
    }


def test_number_of_distinct_reasons_is_limited(at: Platform) -> None:
    context = at.run_context(NOW.date())
    letters = [chr(ord("a") + number % 26) * (1 + number // 26) for number in range(MAX_REASONS + 5)]
    rows = [log_row(text, QUARANTINE, "p", outcome="failed", error=text) for text in letters]
    found = count_reasons(context, header(at), publish_log(context, *rows))[QUARANTINE, "failed"]
    assert (len(found), sum(found.values())) == (MAX_REASONS + 1, MAX_REASONS + 5)


def test_recorded_actions_have_outcome_or_are_unknown(at: Platform) -> None:
    plan, context = header(at), at.run_context(NOW.date())
    assert read_recorded_actions(context, plan, PHASES) is None
    log = open_log(State.of(at.config).files, execution_directory(plan), plan.plan_id, 4)
    rows = [PlannedAction(key, QUARANTINE, 1, "e") for key in "abc"]
    upload = PlannedAction("u", ABORT, 1, "e", "id")
    first = log.write_intent(0, 1, rows[:2])
    log.write_outcomes(0, first, [Outcome(rows[0], "done", None, NOW, 1), Outcome(rows[1], "failed", "EIO", NOW, 1)])
    log.write_intent(0, 1, [rows[2], upload])
    recorded = read_recorded_actions(context, plan, PHASES)
    assert recorded is not None
    assert dict(recorded.counts) == {(QUARANTINE, "done"): 1, (QUARANTINE, "unknown"): 2, (ABORT, "unknown"): 1}
    assert (dict(recorded.edits["sales"]), recorded.tables["sales"], recorded.is_complete) == ({}, (), True)
    assert read_recorded_actions(context, plan, ("restore",)) is None
