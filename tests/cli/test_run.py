"""The commands run, show, explain, report, approve, apply and restore on a small lake."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import shlex
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from gc_assets.cli.main import cli
from gc_assets.core.units import count_of
from gc_assets.lakes.kinds import KINDS, all_tables
from gc_assets.resources.platform import load_platform
from gc_assets.stages.records.ledger import quarantine_ledger
from tests.cli.lakes import SmallLake, small_lake
from tests.dates import now_before_midnight

pytestmark = pytest.mark.spark


class Shell:
    """Runs commands with one configuration."""

    def __init__(self, lakes_yaml: Path) -> None:
        self.lakes_yaml = lakes_yaml

    def __call__(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli, [*arguments, "--config", str(self.lakes_yaml)])

    def json(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the JSON output of a command that must succeed."""
        result = self(*arguments, "--format", "json")
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> SmallLake:
    return small_lake(tmp_path_factory.mktemp("night"))


@pytest.fixture(scope="module")
def run_date() -> str:
    return now_before_midnight(minutes=4).date().isoformat()


@pytest.fixture(scope="module")
def lake_after_run(spark: SparkSession, lake: SmallLake, run_date: str) -> tuple[Shell, Result]:
    """Run on the lake in apply mode. Without an approval it only plans."""
    shell, before = Shell(lake.lakes_yaml), lake.keys()
    result = shell("run", "--run-date", run_date, "--mode", "apply", "--format", "json")
    assert lake.keys() == before
    return shell, result


def hint(message: str) -> list[str]:
    """Return the next command that a command prints."""
    (line,) = [line for line in message.splitlines() if line.startswith("  gc-assets ")]
    return shlex.split(line)[1:]


def reversibility_lines(message: str) -> list[str]:
    """Return the three lines about reversibility."""
    lines = [line for line in message.splitlines() if line.startswith(("Can be undone: ", "Cannot be undone: ", "Becomes free: "))]
    assert len(lines) == 3
    return lines


def plan_of(lake_after_run: tuple[Shell, Result]) -> dict[str, Any]:
    plans = json.loads(lake_after_run[1].stdout)
    assert len(plans) == 1
    return plans[0]


def test_run_prints_one_object_per_storage(lake_after_run: tuple[Shell, Result], lake: SmallLake) -> None:
    result = lake_after_run[1]
    assert result.exit_code == 0, result.stderr
    plan = plan_of(lake_after_run)
    assert plan["storage"] == "warehouse"
    assert plan["files"] - plan["after_expiry"]["files"] == len(lake.leftovers)
    assert plan["bytes"] - plan["after_expiry"]["bytes"] == sum(path.stat().st_size for path in lake.leftovers)
    assert plan["expiry_actions"] == {"sales": len(lake_after_run[0].json("show", "expiry_plan"))}
    assert plan["passed"] is True
    assert "sales/live_files" in result.stderr
    assert f"gc-assets approve {plan['plan_id'][:12]}" in result.stderr


def tables() -> list[str]:
    """Return the tables that a run publishes for an Iceberg lake and its storage."""
    known = [table for table in all_tables().values() if not table.by_apply]
    return [table.name for table in known if table.scope == "storage" or KINDS["iceberg"].has(table)]


@pytest.mark.parametrize("asset", tables())
def test_all_output_formats_show_equal_rows(asset: str, lake_after_run: tuple[Shell, Result], tmp_path: Path) -> None:
    shell = lake_after_run[0]
    rows = shell.json("show", asset)
    assert all(list(row) == all_tables()[asset].schema.names for row in rows)
    as_csv = list(csv.DictReader(io.StringIO(shell("show", asset, "--format", "csv").stdout)))
    assert len(as_csv) == len(rows)
    target = tmp_path / "table.parquet"
    assert shell("show", asset, "--format", "parquet", "-o", str(target)).exit_code == 0
    assert pq.read_table(target).num_rows == len(rows)
    assert pq.read_schema(target).names == all_tables()[asset].schema.names
    table = shell("show", asset, "--limit", "1")
    assert table.exit_code == 0
    assert f"{min(1, len(rows))} of {count_of(len(rows), 'row')}" in table.stderr


def test_explain_traces_a_live_file_to_a_branch_or_tag(lake_after_run: tuple[Shell, Result]) -> None:
    shell = lake_after_run[0]
    data = next(row for row in shell.json("show", "live_files") if row["kind"] == "data")
    (found,) = shell.json("explain", data["key"])
    assert found["verdict"] == "live"
    assert [link["what"] for link in found["chain"]] == [found["chain"][0]["what"], "commit", "manifest_list", "manifest", "data"]
    assert found["chain"][0]["what"] in {"branch", "tag"}
    assert found["chain"][-1]["name"] == data["key"]


def test_explain_file_of_the_current_state(lake_after_run: tuple[Shell, Result], lake: SmallLake) -> None:
    (found,) = lake_after_run[0].json("explain", lake.orders.metadata_location)
    assert found["verdict"] == "live"
    assert [link["what"] for link in found["chain"]] == ["lake", "metadata_json"]


def test_tag_keeps_an_old_snapshot(lake_after_run: tuple[Shell, Result]) -> None:
    shell = lake_after_run[0]
    (audit,) = [row for row in shell.json("show", "lake_refs") if row["ref_name"] == "audit"]
    tagged = next(row for row in shell.json("show", "live_files") if row["commit_id"] == audit["head_commit_id"] and row["kind"] == "data")
    (found,) = shell.json("explain", tagged["key"])
    assert (found["chain"][0]["what"], found["chain"][0]["name"]) == ("tag", "audit")


def test_explain_accepts_any_spelling_of_an_address(lake_after_run: tuple[Shell, Result], lake: SmallLake) -> None:
    path = lake.leftovers[0]
    key = str(path.relative_to(lake.builder.warehouse))
    for spelling in (key, str(path), f"file:{path}", f"file://{path}", f"FILE://localhost{path}"):
        (found,) = lake_after_run[0].json("explain", spelling)
        assert (found["storage"], found["key"], found["verdict"]) == ("warehouse", key, "planned")


def test_explain_shows_the_last_commit_of_an_expired_file(lake_after_run: tuple[Shell, Result]) -> None:
    shell = lake_after_run[0]
    orphan = next(row for row in shell.json("show", "orphan_files") if row["reason"] == "expired" and row["kind"] == "data")
    (found,) = shell.json("explain", orphan["key"])
    assert (found["verdict"], orphan["held_by"]) == ("planned", "sales")
    assert orphan["last_commit_id"] in found["sentence"]
    assert "once it has edited the history of lake sales" in found["sentence"]
    assert [link["what"] for link in found["chain"]][-3:] == ["manifest_list", "manifest", "data"]


def test_explain_young_and_unowned_files(lake_after_run: tuple[Shell, Result], lake: SmallLake) -> None:
    shell = lake_after_run[0]
    assert [shell.json("explain", str(path))[0]["verdict"] for path in (lake.young, lake.unowned)] == ["young", "unowned"]


def test_explain_unknown_and_external_files(lake_after_run: tuple[Shell, Result]) -> None:
    shell = lake_after_run[0]
    assert shell.json("explain", "shop/orders/never.parquet")[0]["verdict"] == "unknown"
    assert shell.json("explain", "s3://elsewhere/file")[0]["verdict"] == "external"


def test_report_contains_the_plan_and_loads_no_external_resources(
    lake_after_run: tuple[Shell, Result], lake: SmallLake, tmp_path: Path
) -> None:
    target = tmp_path / "report.html"
    assert lake_after_run[0]("report", "-o", str(target)).exit_code == 0
    page = target.read_text()
    assert f"gc-assets approve {plan_of(lake_after_run)['plan_id'][:12]}" in page
    assert all(str(path.relative_to(lake.builder.warehouse)) in page for path in lake.leftovers)
    assert "shop.orders" in page
    assert "after expiry" in page
    without_namespaces = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert [word for word in ("http:", "https:", "src=", "<script", "url(", "@import") if word in without_namespaces] == []


def test_doctor_passes_for_a_valid_lake(lake_after_run: tuple[Shell, Result]) -> None:
    rows = lake_after_run[0].json("doctor")
    assert {row["verdict"] for row in rows} == {"ok"}
    assert {"sales", "warehouse", "state", "storages", "spark"} <= {row["subject"] for row in rows}


def test_metrics_match_the_run(lake_after_run: tuple[Shell, Result], tmp_path: Path) -> None:
    shell, plan, file = lake_after_run[0], plan_of(lake_after_run), tmp_path / "gc.prom"
    assert shell("metrics", "--out", str(file)).exit_code == 0
    families = {family.name.removeprefix("gc_assets_"): family.samples for family in text_string_to_metric_families(file.read_text())}
    assert shell("metrics").stdout == file.read_text()
    assert [path.name for path in tmp_path.iterdir()] == [file.name]

    def of(name: str, label: str) -> dict[str, float]:
        return {sample.labels[label]: sample.value for sample in families[name]}

    assert of("planned_files", "action") == {action: amount["files"] for action, amount in plan["totals"].items()}
    assert of("planned_bytes", "action") == {action: amount["bytes"] for action, amount in plan["totals"].items()}
    assert of("planned_edits", "lake") == plan["expiry_actions"]
    assert sum(of("stored_files", "share").values()) == len(shell.json("show", "storage_inventory"))
    assert of("lake_live_files", "lake") == {"sales": len(shell.json("show", "live_files"))}
    states = [row["state"] for row in shell.json("show", "reachable_snapshots")]
    assert of("lake_commits", "state") == {state: states.count(state) for state in ("retained", "expired", "dangling")}
    assert of("lake_unreadable", "lake") == {"sales": 0}


def test_history_is_drawn_before_and_after_expiry(lake_after_run: tuple[Shell, Result]) -> None:
    (found,) = [item for item in lake_after_run[0].json("history") if item["history"] == "shop.orders"]
    assert (len(found["now"]), len(found["after_expiry"])) == (3, 1)
    assert "(main)" in found["after_expiry"][0]
    assert "shop.orders, after expiry" in lake_after_run[0]("history", "--table", "shop.orders").stdout
    assert lake_after_run[0]("history", "--table", "shop.nothing").exit_code == 2


def test_show_prints_table_name_instead_of_uuid(lake_after_run: tuple[Shell, Result]) -> None:
    shell, _ = lake_after_run
    uuid = shell.json("show", "expiry_plan")[0]["table_uuid"]
    assert shell("show", "expiry_plan").stdout.split()[:3] == ["table_name", "action", "snapshot_id"]
    assert uuid in shell("show", "expiry_plan", "--wide").stdout


def test_show_selects_one_table(lake_after_run: tuple[Shell, Result]) -> None:
    rows = lake_after_run[0].json("show", "snapshot_history", "--table", "shop.orders")
    assert {row["table_name"] for row in rows} == {"shop.orders"}
    assert 0 < len(rows) < len(lake_after_run[0].json("show", "snapshot_history"))


def test_what_if_reports_files_of_a_deleted_tag(lake_after_run: tuple[Shell, Result]) -> None:
    shell = lake_after_run[0]
    (audit,) = [row for row in shell.json("show", "lake_refs") if row["ref_name"] == "audit"]
    alone = {row["key"]: row["size_bytes"] for row in shell.json("show", "live_files") if row["commit_id"] == audit["head_commit_id"]}
    listed = {row["key"]: row["size_bytes"] for row in shell.json("show", "storage_inventory")}
    result = shell("what-if", "--drop-ref", "audit", "--format", "json")
    (freed,) = json.loads(result.stdout)
    assert (freed["table"], freed["freed_files"]) == ("shop.visits", len(alone))
    assert freed["freed_bytes"] == sum(listed[key] for key in alone)
    assert (freed["kept_files"], freed["kept_bytes"]) == (0, 0)
    (blamed,) = [row for row in shell.json("blame", "--by", "ref") if row["ref"] == "audit"]
    assert blamed == {"ref": "audit", **freed}
    assert f"without audit: {len(alone)} more files" in result.stderr
    assert "1 commit fewer would be retained" in result.stderr


def test_what_if_with_unchanged_policy_returns_no_rows(lake_after_run: tuple[Shell, Result]) -> None:
    result = lake_after_run[0]("what-if", "--format", "json")
    assert json.loads(result.stdout) == []
    assert "the same commits would be retained" in result.stderr


def test_what_if_refuses_unknown_ref_and_cutoff(lake_after_run: tuple[Shell, Result]) -> None:
    wrong = lake_after_run[0]("what-if", "--drop-ref", "audits")
    assert (wrong.exit_code, "did you mean audit?" in wrong.stderr) == (2, True)
    cutoff = lake_after_run[0]("what-if", "--retention", "soon")
    choices = "soon is not valid; Iceberg retains by age or number of snapshots, for example 14d or 5"
    assert (cutoff.exit_code, choices in " ".join(cutoff.stderr.split())) == (2, True)
    assert lake_after_run[0]("what-if", "--retention", "2026-01-01").exit_code == 2


@pytest.mark.parametrize("arguments", [["what-if"], ["blame", "--by", "ref"], ["report", "-o", "-"]], ids=lambda arguments: arguments[0])
def test_reading_commands_write_progress_to_a_pipe(
    arguments: list[str], lake_after_run: tuple[Shell, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gc_assets.cli.progress.SILENCE_SECONDS", 0.01)
    result = lake_after_run[0](*arguments)
    assert re.search(rf"^  {arguments[0]}: \d+ s", result.stderr, re.MULTILINE)


def test_blame_by_age_frees_nothing_at_365d_and_keeps_nothing_at_1d(lake_after_run: tuple[Shell, Result]) -> None:
    rows = lake_after_run[0].json("blame", "--by", "age")
    freed = {row["age"]: row["freed_bytes"] for row in rows if row["table"] == "shop.orders"}
    kept = {row["age"]: row["kept_bytes"] for row in rows if row["table"] == "shop.orders"}
    assert kept["365d"] > 0 == freed.get("365d", 0)
    assert kept.get("1d", 0) == 0


def test_blame_by_table_counts_every_live_file(lake_after_run: tuple[Shell, Result]) -> None:
    shell = lake_after_run[0]
    rows = shell.json("blame")
    assert {row["table"] for row in rows} >= {"shop.orders", "shop.visits"}
    # Each table has one version hint, which pyiceberg does not write.
    live = [row for row in shell.json("show", "live_files") if row["kind"] != "version_hint"]
    assert sum(row["live_files"] for row in rows) == len(live)
    assert sum(row["garbage_bytes"] for row in rows) == sum(row["size_bytes"] for row in shell.json("show", "orphan_files"))


def reject_plan(shell: Shell, plan_id: str) -> None:
    """Check that a plan without a valid approval cannot be applied, and reject it."""
    unapproved = shell("apply", plan_id, "--mode", "apply")
    assert unapproved.exit_code == 3
    assert f"gc-assets approve {plan_id[:12]}" in unapproved.stderr
    assert shell("approve", plan_id[:12], "--by", "  ").exit_code == 2
    assert shell("approve", plan_id[:12], "--by", "ada", "--override", "nonsense").exit_code == 2
    rejected = shell("reject", plan_id[:12], "--by", "ada", "--comment", "not today")
    assert (rejected.exit_code, "rejected by ada at" in rejected.stdout) == (0, True)
    assert shell("apply", plan_id, "--mode", "apply").exit_code == 3


def require_quarantined(shell: Shell, plan_id: str, key: str) -> None:
    (explained,) = shell.json("explain", key)
    assert explained["verdict"] == "quarantined"
    assert [row["phase"] for row in explained["history"]] == ["quarantine"]
    assert [event["decision"] for event in explained["approval_events"]] == ["rejected", "approved"]
    assert f"plan {plan_id[:12]} rejected by ada: not today\n" in shell("explain", key).stdout


def require_restorable(shell: Shell, plan_id: str, lake: SmallLake, applied: Result, key: str, before: set[str], gone: set[str]) -> None:
    """Restore one file and then all others."""
    one = shell("restore", "--key", str(lake.builder.warehouse / key), "--format", "json")
    assert json.loads(one.stdout)[0]["files"] == 1
    assert "1 file (" in reversibility_lines(one.stderr)[0]
    assert lake.keys() == (before - gone) | {key}
    restored = shell(
        *re.findall(r"`gc-assets (restore --plan \w+)`", reversibility_lines(applied.stderr)[0])[0].split(), "--format", "json"
    )
    assert json.loads(restored.stdout)[0]["files"] == len(gone) - 1
    assert reversibility_lines(restored.stderr)[1] == reversibility_lines(applied.stderr)[1]
    assert lake.keys() == before
    assert "In quarantine now" not in shell("report", "-o", "-").stdout
    assert shell.json("restore", "--plan", plan_id[:12]) == []
    assert shell.json("plans")[0]["status"] == "restored"
    assert shell.json("explain", key)[0]["verdict"] == "restored"


def test_approve_apply_and_restore_work_in_order(
    lake_after_run: tuple[Shell, Result], lake: SmallLake, spark: SparkSession, tmp_path: Path
) -> None:
    shell, plan_id = lake_after_run[0], plan_of(lake_after_run)["plan_id"]
    before, gone = lake.keys(), {row["key"] for row in shell.json("show", "deletion_plan")}
    assert gone > {str(path.relative_to(lake.builder.warehouse)) for path in lake.leftovers}

    reject_plan(shell, plan_id)
    approved = shell(*(word.replace("YOUR_NAME", "ada") for word in hint(lake_after_run[1].stderr)))
    assert approved.exit_code == 0
    in_mode_plan = shell("apply", plan_id)
    assert in_mode_plan.exit_code == 3
    assert "mode: apply" in in_mode_plan.stderr
    assert lake.keys() == before

    applied = shell(*hint(approved.stderr), "--format", "json")
    outcomes = json.loads(applied.stdout)
    assert reversibility_lines(lake_after_run[1].stderr) == reversibility_lines(approved.stderr)
    *before_apply, _ = reversibility_lines(approved.stderr)
    *after_apply, becomes_free = reversibility_lines(applied.stderr)
    assert [line.replace(" to quarantine:", " in quarantine:") for line in before_apply] == after_apply
    assert re.search(r"when a later plan purges them, at the earliest on \d{4}-\d\d-\d\d\.$", becomes_free)
    assert "of the history of lake sales (Iceberg): removed snapshots" in reversibility_lines(applied.stderr)[1]
    edits = len(shell.json("show", "expiry_plan"))
    assert [(row["phase"], row["outcome"], row["files"]) for row in outcomes] == [
        ("expire", "done", edits),
        ("quarantine", "done", len(gone)),
    ]
    assert [row["outcome"] for row in shell.json("show", "expiry_log")] == ["done"] * edits
    assert sum(row["expired"] for row in shell.json("show", "snapshot_history")) == edits
    written = lake.keys() - before
    assert written
    assert all(key.endswith(".metadata.json") for key in written)
    assert lake.keys() == (before - gone) | written
    before |= written
    assert len(shell.json("show", "deletion_log")) == len(gone)
    again = shell("apply", plan_id, "--mode", "apply", "--format", "json")
    assert (again.exit_code, json.loads(again.stdout)) == (0, [])
    assert "applied completely" in again.stderr
    listed = shell.json("plans")[0]
    assert listed["status"] == "applied"
    assert listed["decisions"][-1].startswith("approved by ada at")
    deprecated_events = [{**event, "said": event["decision"]} for event in listed["approval_events"]]
    assert (listed["said"], listed["words"]) == (listed["decisions"], deprecated_events)

    key = min(gone)
    require_quarantined(shell, plan_id, key)
    page = shell("report", "-o", "-").stdout
    assert all(html.escape(line, quote=True).replace("&#x27;", "&#39;") in page for line in reversibility_lines(applied.stderr))
    assert "rejected by ada at " in page
    state = load_platform({}, str(lake.lakes_yaml)).run_context(datetime.now(UTC).date()).state
    assert quarantine_ledger(spark, state, "warehouse").count() == len(gone)
    assert "In quarantine now" in page
    assert f"gc-assets restore --plan {plan_id[:12]}" in page

    require_restorable(shell, plan_id, lake, applied, key, before, gone)
    assert shell("approve", plan_id, "--by", "ada").exit_code == 3


def test_refused_plan_exits_with_3(lake_after_run: tuple[Shell, Result], lake: SmallLake) -> None:
    shell = lake_after_run[0]
    try:
        lake.configure(gates={"max_delete_bytes": 1})
        result = shell("run", "--format", "json")
        (plan,) = json.loads(result.stdout)
        assert result.exit_code == 3
        assert plan["passed"] is False
        assert "delete_bytes" in result.stderr
        assert "--override delete_bytes" in result.stderr
        assert shell("approve", plan["plan_id"], "--by", "ada").exit_code == 3
        assert shell("approve", plan["plan_id"], "--by", "ada", "--override", "delete_bytes").exit_code == 0
    finally:
        lake.configure()


def test_run_in_apply_mode_deletes_nothing_without_approval(lake_after_run: tuple[Shell, Result], lake: SmallLake) -> None:
    assert lake_after_run[1].exit_code == 0, lake_after_run[1].stderr
    assert "warehouse/deletion_log" in lake_after_run[1].stderr
    assert all(path.exists() for path in lake.leftovers)


def test_historical_plan_cannot_be_approved(lake_after_run: tuple[Shell, Result]) -> None:
    yesterday = (datetime.now(UTC).date() - timedelta(days=1)).isoformat()
    result = lake_after_run[0]("run", "--run-date", yesterday, "--format", "json")
    (plan,) = json.loads(result.stdout)
    assert result.exit_code == 0
    assert plan["historical"] is True
    assert "cannot be applied" in result.stderr
    assert lake_after_run[0]("approve", plan["plan_id"], "--by", "ada").exit_code == 3
    assert "Next:" not in result.stderr
    assert plan["plan_id"] not in {row["plan_id"] for row in lake_after_run[0].json("plans", "--status", "ready")}
    assert "Historical" in lake_after_run[0]("report", "--run-date", yesterday, "-o", "-").stdout


def test_table_that_becomes_unreadable_during_a_run_is_reported(lake_after_run: tuple[Shell, Result], lake: SmallLake) -> None:
    """The commits must be unknown from the previous run. Otherwise the table is not read again."""
    path, graph = lake.orders.path(lake.orders.metadata_location), lake.root / "state" / "sales" / "commit_graph"
    content, aside = path.read_bytes(), graph.rename(graph.with_name("aside"))
    try:
        path.write_bytes(content[:100])
        result = lake_after_run[0]("run", "--lake", "sales", "--through", "commit_graph")
        assert result.exit_code == 0
        assert path.name in result.stderr
        assert "Traceback" not in result.stderr
    finally:
        path.write_bytes(content)
        shutil.rmtree(graph, ignore_errors=True)
        aside.rename(graph)


def test_error_for_damaged_state_contains_the_file(lake_after_run: tuple[Shell, Result], lake: SmallLake, run_date: str) -> None:
    pointer = lake.root / "state" / "sales" / "lake_refs" / f"run_date={run_date}" / "current.json"
    content = pointer.read_bytes()
    try:
        pointer.write_bytes(content[:10])
        result = lake_after_run[0]("show", "lake_refs")
        assert (result.exit_code, result.stdout) == (1, "")
        assert str(pointer) in result.stderr
    finally:
        pointer.write_bytes(content)


def test_prune_is_refused_in_a_rehearsal(lake_after_run: tuple[Shell, Result], lake: SmallLake, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted((lake.root / "state").rglob("*"))
    monkeypatch.setenv("GC_ASSETS_UNSAFE_NOW", "2099-01-01T00:00:00+00:00")
    refused = lake_after_run[0]("prune", "--keep-days", "30")
    assert refused.exit_code == 3
    assert "Unset the variable" in refused.stderr
    assert sorted((lake.root / "state").rglob("*")) == before


def test_prune_keeps_current_tables(lake_after_run: tuple[Shell, Result], lake: SmallLake) -> None:
    shell = lake_after_run[0]
    before = {name: shell.json("show", name) for name in ("lake_refs", "live_files", "manifest_entries", "policy_table")}
    removed = shell.json("prune", "--keep-days", "0")
    assert not any(row["removed"].split("/")[1] in {"manifest_entries", "deletion_log", "deletion_plan", "policy_table"} for row in removed)
    assert {name: shell.json("show", name) for name in before} == before


def test_run_without_listing_reports_the_reused_listing(lake_after_run: tuple[Shell, Result], run_date: str) -> None:
    shell = lake_after_run[0]
    listed = shell("run", "--run-date", run_date, "--listing")
    assert "not listed" not in listed.stderr
    inventory = {row["key"]: row for row in shell.json("show", "storage_inventory")}
    reused = shell("run", "--run-date", run_date, "--no-listing")
    assert reused.exit_code == 0, reused.stderr
    assert re.search(r"warehouse: not listed\. The listing of \S+ \S+ UTC is used", reused.stderr)
    assert {row["key"]: row for row in shell.json("show", "storage_inventory")} == inventory
