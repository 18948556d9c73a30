"""The status of a plan whose execution began, or ended without changing everything."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gc_assets.core.errors import StateError
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.records.plans import approve, execution_directory, find_plan, list_plans, record_finished
from gc_assets.state.index import INDEX, Index, PastRun
from gc_assets.state.journal import State
from gc_assets.stores.write_ahead import open_log
from tests.assets.platforms import NOW, platform, stored_plan


@pytest.fixture
def at(tmp_path: Path) -> Platform:
    return platform(tmp_path, mode="apply")


def statuses(at: Platform, hours: float = 0) -> set[str]:
    """Return the status by the list of plans, and by the plan itself."""
    (listed,), now = list_plans(at.config), NOW + timedelta(hours=hours)
    return {listed.status_at(now), find_plan(at.config, listed.header.plan_id).status_at(now)}


def begin(at: Platform) -> Any:
    header = header_of(stored_plan(at))
    approve(at.config, at.clock, header.plan_id, "ada")
    open_log(State.of(at.config).files, execution_directory(header), header.plan_id, header.rows)
    return header


def finish(at: Platform, **by_outcome: int) -> None:
    amounts = {name.replace("_", "/"): {"files": files, "bytes": 100 * files} for name, files in by_outcome.items()}
    record_finished(State.of(at.config), begin(at), {"at": NOW.isoformat(), "by_outcome": amounts, "edits": {}})


def test_plan_with_begun_apply_is_unfinished_and_still_pending(at: Platform) -> None:
    begin(at)
    assert statuses(at) == statuses(at, hours=100) == {"unfinished"}
    (listed,) = list_plans(at.config)
    assert listed.awaits_apply(NOW)
    assert listed.is_open(NOW)
    assert not listed.awaits_apply(NOW + timedelta(hours=73))


def test_plan_with_no_remaining_action_is_applied(at: Platform) -> None:
    finish(at, quarantine_done=1, quarantine_absent=1)
    assert statuses(at) == {"applied"}


@pytest.mark.parametrize("outcome", ["changed", "denied"])
def test_plan_that_ended_with_remaining_rows_is_partially_applied(at: Platform, outcome: str) -> None:
    finish(at, quarantine_done=1, **{f"quarantine_{outcome}": 1})
    assert statuses(at) == {"partially applied"}
    (listed,) = list_plans(at.config)
    assert listed.record.not_done == {f"quarantine/{outcome}": 1}
    assert not listed.is_open(NOW)


def test_plan_with_failed_history_edits_is_partially_applied(at: Platform) -> None:
    record_finished(State.of(at.config), begin(at), {"at": NOW.isoformat(), "by_outcome": {}, "edits": {"done": 3, "denied": 1}})
    assert statuses(at) == {"partially applied"}


def test_plan_status_is_unchanged_after_records_are_rebuilt(at: Platform) -> None:
    finish(at, quarantine_denied=2)
    (Path(at.config.state) / "warehouse" / "apply" / "_records.json").unlink()
    assert statuses(at) == {"partially applied"}
    assert statuses(at) == {"partially applied"}


def test_plan_records_of_older_releases_are_read(at: Platform) -> None:
    """Older releases wrote no outcomes into the list of records and, before 0.4, none into the
    plan's own record.
    """
    finish(at, quarantine_denied=2)
    records = Path(at.config.state) / "warehouse" / "apply" / "_records.json"
    document = json.loads(records.read_text())
    (entry,) = document.values()
    assert entry.pop("not_done") == {"quarantine/denied": 2}
    records.write_text(json.dumps(document))
    (listed,) = list_plans(at.config)
    assert listed.status_at(NOW) == "applied"
    assert "is_started" not in entry


def test_damaged_end_of_a_plan_is_refused(at: Platform) -> None:
    finish(at, quarantine_done=1)
    (path,) = (Path(at.config.state) / "warehouse" / "apply").glob("*/finished.json")
    path.write_text(json.dumps({"at": [1], "by_outcome": [1]}))
    with pytest.raises(
        StateError, match=r"finished\.json: the file is damaged \(2 validation errors for FinishRecord; at\)\. Remove the file"
    ):
        statuses(at)


APPROVE = """
import sys
from pathlib import Path
from gc_assets.stages.records.plans import approve
from tests.assets.platforms import platform
at = platform(Path(sys.argv[1]), mode="apply")
approve(at.config, at.clock, sys.argv[2], "ada")
"""


def test_approval_and_plan_of_another_process_are_seen_immediately(at: Platform, tmp_path: Path) -> None:
    plan_id = header_of(stored_plan(at)).plan_id
    assert statuses(at) == {"ready"}
    subprocess.run([sys.executable, "-c", APPROVE, tmp_path, plan_id], check=True)
    assert statuses(at) == {"approved"}


def test_plan_summaries_are_validated_once_for_all_lists(at: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    stored_plan(at)
    validated: list[str] = []
    validate = PastRun.summary
    monkeypatch.setattr(PastRun, "summary", lambda run, model: validated.append(run.run_id) or validate(run, model))
    assert [len(list(list_plans(at.config))) for _ in range(3)] == [1, 1, 1]
    assert len(validated) == 1


def test_callers_do_not_share_the_counts_of_listed_plans(at: Platform) -> None:
    stored_plan(at)
    (changed,), expected = list_plans(at.config), next(list_plans(at.config)).header.totals
    changed.header.totals.clear()
    assert expected
    assert next(list_plans(at.config)).header.totals == expected


def test_plan_summary_is_validated_again_if_only_summary_changed(at: Platform) -> None:
    stored_plan(at)
    (listed,) = list_plans(at.config)
    entry = listed.run.entry
    plan = {**entry.summary["plan"], "rehearsal": True}
    index = Index(State.of(at.config).files, f"warehouse/deletion_plan/{INDEX}")
    index.replace({entry.run_id: entry.model_copy(update={"summary": {**entry.summary, "plan": plan}})})
    assert next(list_plans(at.config)).header.rehearsal
