"""The summary of a run for each table: policy, snapshots and files."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gc_assets.cli.run_tables import MAX_TABLES, print_claims_outside, print_run, purge_rows
from gc_assets.core.plan import Amount
from gc_assets.engine.tables import read_rows
from gc_assets.report.lakes import lake_page
from gc_assets.report.shares import breakdown_steps
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.read import plan_tables
from gc_assets.stages.read.file_tables import FileTables
from gc_assets.stages.read.plan_text import summarize_plans
from gc_assets.stages.read.run_tables import CURRENT_STATE, RunTable, summarize_tables, unowned_files
from gc_assets.stages.read.usage import usage_by_table
from gc_assets.stages.records import accepted_runs
from gc_assets.state.schemas import ORPHAN_FILES
from gc_assets.state.summaries import OrphanFilesSummary
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.icechunk.builder import RepositoryBuilder
from tests.records import publish_mark, run_context_at
from tests.stages.lakehouse import STORAGE, Lakehouse, days_ago

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def house(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Run twice. `shop.old` is dropped between the runs."""
    house = Lakehouse(spark, tmp_path_factory.mktemp("house"))
    lake = LakeBuilder(house.root)
    orders = lake.table("shop.orders", days_ago(40), properties={"history.expire.max-snapshot-age-ms": str(10 * 86_400_000)})
    for day in (30, 20, 2):
        orders.append(days_ago(day))
    orders.leftovers(days_ago(20), 2)
    lake.table("shop.kept", days_ago(40), properties={"gc.enabled": "false"}).append(days_ago(30))
    lake.table("shop.old", days_ago(40)).append(days_ago(30))
    RepositoryBuilder.create(house.warehouse / "weather", days_ago(30))
    house.lakes = [lake.config("sales"), house.weather(retention={"default": {"max_age": "30d", "keep_last": 2}})]
    house.now = days_ago(1)
    house.plan()
    lake.catalog.drop_table("shop.old")
    house.now = days_ago(0)
    house.plan()
    return house


def test_each_table_row_has_policy_snapshots_and_files(house: Lakehouse) -> None:
    rows = {(item.lake, item.table): item for item in summarize_tables(house.run_context(), ["sales", "weather"], [STORAGE])}
    assert {name: item.policy for name, item in rows.items()} == {
        ("sales", "shop.orders"): "the last 10d and at least 1 snapshot (Iceberg's defaults, table properties)",
        ("sales", "shop.kept"): "everything (its gc.enabled is false)",
        ("weather", None): "the last 30d and the newest 2",
        ("sales", CURRENT_STATE): "",
    }
    orders = rows["sales", "shop.orders"]
    assert (orders.kept, orders.expiring) == (1, 2)
    orphans = [row for row in house.rows("orphan_files") if row["table_uuid"] is not None]
    expired = [row for row in orphans if row["reason"] == "expired"]
    assert orders.expired == Amount(files=len(expired), bytes=sum(row["size_bytes"] for row in expired))
    assert orders.garbage.files == len(orphans) - len(expired) == 3
    assert orders.live is not None
    assert orders.present == Amount.total((orders.live, orders.expired))
    live = sum(item.live.files for item in rows.values() if item.live is not None)
    assert live == sum(not key.endswith("/version-hint.text") for key in house.live()), "pyiceberg writes no such file"


def test_live_table_with_dropped_in_its_name_is_not_shown_as_dropped(spark: SparkSession, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path, settings={"gates": {"max_delete_share": 1.0, "max_live_drop": 1.0}})
    lake = LakeBuilder(house.root)
    for name in ("shop.a", "shop.a (dropped)"):
        lake.table(name, days_ago(40)).append(days_ago(30))
    house.lakes, house.now = [lake.config("sales")], days_ago(20)
    house.plan()
    lake.catalog.drop_table("shop.a")
    for day in (19, 0):
        house.now = days_ago(day)
        house.plan()
    found = {(item.table, item.is_dropped, item.live.files > 0) for item in usage_by_table(house.run_context(), [STORAGE])}
    assert {("shop.a (dropped)", True, False), ("shop.a (dropped)", False, True)} <= found


def test_table_metadata_size_is_taken_from_listing(house: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_state() -> RunTable:
        tables = summarize_tables(house.run_context(), ["sales", "weather"], [STORAGE])
        return next(item for item in tables if item.table == CURRENT_STATE)

    metadata = [house.warehouse / key for key in house.live() if key.endswith(".metadata.json")]
    size = sum(path.stat().st_size for path in metadata)
    assert (read_state().live, read_state().unsized) == (Amount(files=len(metadata), bytes=size), 0)
    usage = {row.refs: (row.files, row.size_bytes) for row in lake_page(house.run_context(), "sales", "iceberg").usage}
    assert usage["current state (metadata, refs, configuration)"] == (len(metadata), size)
    monkeypatch.setattr("gc_assets.stages.read.usage.MAX_LISTED", 0)
    unknown = read_state()
    assert unknown.unsized > 0
    assert unknown.live is not None
    assert unknown.live.bytes < size


def test_files_of_waiting_dropped_table_do_not_count_as_unowned(house: Lakehouse) -> None:
    context, files = house.run_context(), house.files()
    dropped = [key for key in files if key.startswith("shop/old/")]
    assert unowned_files(context, STORAGE) == Amount()
    summary = context.table(ORPHAN_FILES, STORAGE).summary(OrphanFilesSummary)
    steps = {step.label: (step.files, step.size_bytes) for step in breakdown_steps(summary)}
    assert steps["dropped tables"] == (len(dropped), sum((house.warehouse / key).stat().st_size for key in dropped))
    assert steps["stored"][0] == len(files)


def test_tables_outside_all_storages_add_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The row of such a table shows no file, as if it were empty."""
    context = run_context_at(tmp_path)
    outside = {"key": "", "address": "file:///lake/shop/customers/", "storage": None}
    publish_mark(context, [{"key": "orders/"}, outside, {**outside, "address": "file:///lake/left/", "collect": False}])
    print_claims_outside(context, "weather")
    assert capsys.readouterr().err == (
        "Lake weather: 1 claimed prefix is in no storage: file:///lake/shop/customers/. "
        "Files there are neither counted nor collected. Add a storage for it, or correct `location`.\n"
    )


def test_tables_inside_storages_add_no_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    context = run_context_at(tmp_path)
    publish_mark(context, [{"key": "orders/"}])
    print_claims_outside(context, "weather")
    assert capsys.readouterr().err == ""


def test_files_are_counted_for_table_that_claims_them(house: Lakehouse) -> None:
    state, orphans = house.run_context().state, house.find_table("orphan_files")
    rows = read_rows(state, ORPHAN_FILES, orphans)
    tables = FileTables.of(house.run_context(), STORAGE)
    names = {name for batch in rows.to_batches() for name in tables.names_of(batch)}
    assert "shop.orders" in names
    assert names <= {"shop.orders", "weather"}


@pytest.mark.parametrize("width", [80, 100])
def test_run_summary_fits_terminal_width(
    house: Lakehouse, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_run(house.run_context(), [STORAGE])
    printed = capsys.readouterr()
    assert max(map(len, (printed.out + printed.err).splitlines())) <= width
    assert " ".join(printed.out.splitlines()[0].split()) == "lake table kept expiring files now after expiry other garbage"
    assert "policy keeps: the last 10d and at least 1 snapshot" in printed.out
    message = " ".join(printed.err.split())
    assert "Dropped table sales: shop.old, 5 files (" in message
    assert ", waits: its waiting time ends at 2026-11-27 03:00 UTC, if this run is accepted." in message, "live_drop refuses it"


def test_dropped_table_shows_no_condition_after_accepted_run(
    house: Lakehouse, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = house.find_table("deletion_plan")
    assert "live_drop" in {gate.name for gate in header_of(plan).failed_gates}
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(accepted_runs, "newest_accepted_run", lambda *_: plan)
    print_run(house.run_context(), [STORAGE])
    assert ", waits: its waiting time ends at 2026-11-27 03:00 UTC.\n" in capsys.readouterr().err


def test_files_to_purge_have_separate_column(house: Lakehouse, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Files to purge are in quarantine, so no other column counts them."""
    monkeypatch.setenv("COLUMNS", "200")
    purges = {("sales", "shop.orders"): Amount(files=2, bytes=300), ("", None): Amount(files=1, bytes=5)}
    monkeypatch.setattr(plan_tables, "purges_by_table", lambda *_: purges)
    print_run(house.run_context(), [STORAGE])
    printed = capsys.readouterr()
    assert "other garbage  to purge" in printed.out
    (orders,) = [line for line in printed.out.splitlines() if "shop.orders" in line]
    assert "2 (300 B)" in orders
    assert [line.split() for line in printed.out.splitlines() if "1 (5 B)" in line] == [["-", "1", "(5", "B)"]]
    assert "to purge counts files in quarantine that the plan deletes permanently." in printed.err


def test_many_purge_only_tables_are_combined_in_one_row(house: Lakehouse) -> None:
    purges = {("sales", f"t{number}"): Amount(files=1, bytes=number) for number in range(MAX_TABLES + 3)}
    rows = purge_rows(house.run_context(), purges, {("sales", f"t{MAX_TABLES + 2}")})
    assert len(rows) == MAX_TABLES + 1
    assert (rows[-1]["table"], rows[-1]["to purge"]) == ("2 more tables", "2 (1 B)")


def test_plan_line_counts_snapshots_and_files(house: Lakehouse) -> None:
    header = header_of(house.find_table("deletion_plan"))
    line = summarize_plans([header])
    assert header.edits_by_action == {"remove_snapshot": 2}
    files = header.totals["quarantine"].files
    assert line.startswith(f"Plan: quarantine {files} files (")
    assert line.endswith("), expire 2 snapshots, purge 0, restore 0")
    older = header.model_copy(update={"edits_by_action": {}, "totals": {}})
    assert summarize_plans([older]) == "Plan: quarantine 0, make 2 history edits, purge 0, restore 0"
    empty = older.model_copy(update={"expiry_actions": {}})
    assert summarize_plans([empty, empty]) == "Plan: quarantine 0, expire 0, purge 0, restore 0"
