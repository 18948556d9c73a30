"""`gc-assets restore` of files that were purged."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gc_assets.cli.main import cli
from gc_assets.engine.tables import Totals
from gc_assets.resources.platform import load_platform
from gc_assets.stages.delete import restore_request
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.delete.restore_request import RestoreRequest, RestoreResult, undo_history
from gc_assets.stages.records.ledger import CopySelection
from gc_assets.stages.records.plans import find_plan
from gc_assets.stages.records.purged_files import find_purged
from tests.assets.platforms import stored_plan
from tests.records import log_row, publish_log

PURGER = "3f9c2a71d004" * 5 + "3f9c"
DAY = 24 * 60


@pytest.fixture
def plan_id(tmp_path: Path) -> str:
    """Write a state in which a plan quarantined `lake/a` and `lake/b`, and another plan purged them."""
    (tmp_path / "warehouse" / "lake").mkdir(parents=True)
    document = {
        "state": "./state",
        "storages": [{"name": "warehouse", "location": f"file://{tmp_path}/warehouse/", "mode": "apply"}],
        "lakes": [{"name": "weather", "kind": "icechunk", "location": f"file://{tmp_path}/warehouse/lake/"}],
    }
    (tmp_path / "lakes.yaml").write_text(json.dumps(document))
    at = load_platform({}, str(tmp_path / "lakes.yaml"))
    today = datetime.now(UTC).date()
    plan_id = header_of(stored_plan(at, run_date=today.isoformat(), expiry_actions={"weather": 1})).plan_id
    publish_log(at.run_context(today), *(log_row(f"lake/{key}", "quarantine", plan_id) for key in "ab"))
    purges = [log_row(f"lake/{key}", "purge", PURGER, source=plan_id, minutes=day * DAY) for key, day in (("a", 7), ("b", 8))]
    publish_log(at.run_context(today), *purges)
    return plan_id


def restore(root: Path, *arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "300"}).invoke(cli, ["restore", *arguments, "--config", str(root / "lakes.yaml")])


def test_restore_of_purged_key_fails_with_date_and_plan(tmp_path: Path, plan_id: str) -> None:
    del plan_id
    for key in ("lake/a", f"file://{tmp_path}/warehouse/lake/a"):
        result = restore(tmp_path, "--key", key)
        assert result.exit_code == 1
        assert "The file was purged permanently on 2026-11-27 by plan 3f9c2a71d004, and cannot be restored." in result.stderr
        assert "Nothing to do" not in result.stderr


def test_restore_of_purged_plan_or_prefix_fails_with_dates_and_count(tmp_path: Path, plan_id: str) -> None:
    for arguments in (("--plan", plan_id), ("--prefix", "lake/")):
        result = restore(tmp_path, *arguments)
        assert result.exit_code == 1
        found = "2 files (20 B) were purged permanently between 2026-11-27 and 2026-11-28 by plan 3f9c2a71d004, and cannot be restored."
        assert found in result.stderr


def test_restore_of_a_purging_plan_lists_restorable_plans(tmp_path: Path, plan_id: str) -> None:
    at = load_platform({}, str(tmp_path / "lakes.yaml"))
    context = at.run_context(at.clock.today())
    purging = header_of(stored_plan(at, run_date=at.clock.today().isoformat())).plan_id
    publish_log(context, *(log_row(f"lake/{key}", "quarantine", plan_id) for key in "cd"))
    publish_log(context, log_row("lake/c", "purge", purging, source=plan_id, minutes=7 * DAY))
    result = restore(tmp_path, "--plan", purging)
    assert result.exit_code == 1
    assert f"No file that plan {purging[:12]} moved is in quarantine. The file was purged permanently on 2026-11-27" in result.stderr
    assert f"1 file in quarantine can be restored:\n  gc-assets restore --plan {plan_id[:12]}\n" in result.stderr
    assert "Nothing to do" not in result.stderr


def test_restore_of_shortened_key_suggests_explain_command(tmp_path: Path, plan_id: str) -> None:
    del plan_id
    result = restore(tmp_path, "--key", "lake…a")
    assert (result.exit_code, "gc-assets explain lake…a" in result.stderr.replace("'", "")) == (2, True)


def test_restore_of_file_never_quarantined_succeeds_without_change(tmp_path: Path, plan_id: str) -> None:
    del plan_id
    result = restore(tmp_path, "--key", "lake/c")
    assert (result.exit_code, "Nothing to do: no such file is in quarantine" in result.stderr) == (0, True)


def test_restore_refuses_irreversible_history_before_moving_files(tmp_path: Path, plan_id: str) -> None:
    result = restore(tmp_path, "--plan", plan_id, "--history")
    assert result.exit_code == 2
    message = " ".join(result.stderr.split())
    assert "made no history edit that can be undone" in message
    assert "No file was restored. To restore the files only, leave out `--history`." in message


def test_history_edit_is_not_undone_if_needed_files_were_purged(tmp_path: Path, plan_id: str) -> None:
    """The restored history would reference files that do not exist."""
    at = load_platform({}, str(tmp_path / "lakes.yaml"))
    context = at.run_context(at.clock.today())
    request = RestoreRequest("warehouse", find_plan(at.config, plan_id), None, None, history=True)
    log = publish_log(context)
    purged = find_purged(context.state, "warehouse", CopySelection(plan_id))
    assert undo_history(context, RestoreResult(request, log, {}, purged)) is None


def test_restored_paths_of_a_purged_plan_do_not_count_as_restored_files(
    tmp_path: Path, plan_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore_request, "refuse_irreversible", lambda context, plan: None)
    monkeypatch.setattr(restore_request, "undo_expiry", lambda context, plan, *, only_paths: {"undone": 3} if only_paths else {})
    result = restore(tmp_path, "--plan", plan_id, "--history")
    assert (result.exit_code, "undone" in result.stdout) == (1, True), result.stderr
    assert "2 files (20 B) were purged permanently" in result.stderr
    assert "Can be undone" not in result.stderr


@pytest.mark.parametrize("others, is_undone", [((), True), (("changed",), False), (("failed",), False)])
def test_history_counts_as_undone_if_no_edit_remains(tmp_path: Path, plan_id: str, others: tuple[str, ...], is_undone: bool) -> None:
    at = load_platform({}, str(tmp_path / "lakes.yaml"))
    request = RestoreRequest("warehouse", find_plan(at.config, plan_id), None, None, history=True)
    by_outcome = {"restore/done": Totals(2), "history/undone": Totals(1), **{f"history/{outcome}": Totals(1) for outcome in others}}
    assert RestoreResult(request, publish_log(at.run_context(at.clock.today())), by_outcome).is_history_undone is is_undone


def test_prefix_restore_succeeds_and_reports_purged_files(tmp_path: Path, plan_id: str) -> None:
    del plan_id
    at = load_platform({}, str(tmp_path / "lakes.yaml"))
    trashed = tmp_path / "warehouse" / ".gc-assets" / "trash" / "p9" / "lake" / "c"
    trashed.parent.mkdir(parents=True)
    trashed.write_bytes(b"0123456789")
    etag = at.run_context(at.clock.today()).store("warehouse").trashed_etag("p9", "lake/c")
    publish_log(at.run_context(at.clock.today()), log_row("lake/c", "quarantine", "p9", etag=etag))
    result = restore(tmp_path, "--prefix", "lake/")
    assert result.exit_code == 0, result.stderr
    assert "2 files (20 B) were purged permanently" in result.stderr
    assert (tmp_path / "warehouse" / "lake" / "c").read_bytes() == b"0123456789"
