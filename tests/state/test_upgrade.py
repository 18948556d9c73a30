"""States of 0.2.0 and 0.3.0 are read, and every plan in them can be undone as before.

The tests of this module are one story for each release: every test depends on the ones before it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import dagster as dg
import icechunk
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from gc_assets.cli.main import cli
from gc_assets.core.hashing import digest
from gc_assets.core.plan import is_intact
from gc_assets.definitions import build_definitions
from gc_assets.resources.collector import Collector
from gc_assets.resources.platform import NOW_VARIABLE, load_platform
from gc_assets.stages.records.ledger import quarantine_ledger
from gc_assets.stages.records.plans import find_plan
from gc_assets.stores.local.objects import etag_of
from tests.archives import unpack
from tests.depth import in_turn

pytestmark = [pytest.mark.spark, in_turn]

DATA = Path(__file__).parents[1] / "data"


@dataclass(frozen=True)
class Release:
    """The state in `tests/data/state-<version>`.

    `applied` and `approved` are the plans of the first and the last run date. `statuses` are those
    of all plans on the last run date. `unreadable` are lakes and tables. `failures` are the
    subjects and checks that fail in `doctor`.
    """

    version: str
    applied: str
    approved: str
    statuses: Mapping[str, str]
    run_dates: tuple[str, ...]
    next_run_date: str
    approved_by: str
    quarantined: int
    actions: Mapping[str, int]
    rehearsals: bool
    failures: Set[tuple[str, str]]
    unreadable: Mapping[str, str | None] = field(default_factory=dict[str, str | None])

    @property
    def root(self) -> Path:
        """The directory in the metadata of the lakes."""
        return Path(f"/tmp/gc-assets-state-{self.version}")  # noqa: S108

    @property
    def first(self) -> str:
        return self.run_dates[0]

    @property
    def last(self) -> str:
        return self.run_dates[-1]

    def trash_of(self, plan_id: str) -> Path:
        return self.root / "lake" / ".gc-assets" / "trash" / plan_id


OF_0_2_0 = Release(
    version="0.2.0",
    applied="1e100d88298cddc59866f6f574c612d3ceba895092fd2a366dd4663289d352f7",
    approved="d5446bf1e165de8059375bec4f9abe4603e45b9b8c3d57e7952f6efdeaa948ac",
    statuses={
        "d5446bf1e165de8059375bec4f9abe4603e45b9b8c3d57e7952f6efdeaa948ac": "approved",
        "1e100d88298cddc59866f6f574c612d3ceba895092fd2a366dd4663289d352f7": "restored",
    },
    run_dates=("2026-11-20", "2026-11-21"),
    next_run_date="2026-11-22",
    approved_by="ada",
    quarantined=17,
    actions={"purge": 16, "quarantine": 4},
    rehearsals=False,
    failures={("lake", "private")},  # 0.2.0 created the trash with mode 0755
)
OF_0_3_0 = Release(
    version="0.3.0",
    applied="8b0463e4fc291a2af7cb09962793c230cebad9cba3ae05d3f810495e654e5f67",
    approved="9feeef3399c810d5b6d186aee5ade89d0c803570426cd7a34a524377a6eb28a6",
    statuses={
        "9feeef3399c810d5b6d186aee5ade89d0c803570426cd7a34a524377a6eb28a6": "approved",
        "01bb5d6cebbe6dde1821a68db35f0b1a7cf440727e20a381c27ae0956e066ed8": "expired",
        "95ee70cae04a7ad6a32ee3bc0012daefccf41314cf9de65a92913946c39e19c7": "rejected",
        "8b0463e4fc291a2af7cb09962793c230cebad9cba3ae05d3f810495e654e5f67": "restored",
    },
    run_dates=("2026-11-20", "2026-11-21", "2026-11-22", "2026-11-23"),
    next_run_date="2026-11-24",
    approved_by="ada, grace",
    quarantined=19,
    actions={"quarantine": 4},
    rehearsals=True,
    failures={("shop", "unreadable"), ("tides", "readable"), ("lake", "unreadable")},
    unreadable={"shop": "shop.returns", "tides": None},
)


@dataclass(frozen=True)
class UpgradedState:
    """A state of an earlier release under the current code. `trash`: key to sha256 of the files in quarantine."""

    release: Release
    trash: dict[str, str]

    def __call__(self, *arguments: str, day: str | None = None) -> Result:
        environment = {
            NOW_VARIABLE: f"{day or self.release.last}T04:00:00+00:00",
            "GC_ASSETS_CONFIG": str(self.release.root / "lakes.yaml"),
        }
        return CliRunner().invoke(cli, list(arguments), env=environment)

    def json(self, *arguments: str, day: str | None = None) -> list[dict[str, Any]]:
        result = self(*arguments, "--format", "json", day=day)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    @property
    def platform(self) -> Any:
        return load_platform({NOW_VARIABLE: f"{self.release.last}T04:00:00+00:00"}, str(self.release.root / "lakes.yaml"))


def contents(root: Path) -> dict[str, str]:
    """Map each file under a directory to its sha256, without the files of gc-assets."""
    found = [path for path in root.rglob("*") if path.is_file() and ".gc-assets" not in path.relative_to(root).parts]
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def name_inodes(release: Release, run: Path) -> None:
    """Write the inodes of the unpacked trash into a run of `deletion_log`, and correct its receipt, pointer and index."""
    receipt = json.loads((run / "_receipt.json").read_text())
    tables: list[pa.Table] = []
    for part in receipt["files"]:
        path = run / part["name"]
        rows = pq.read_table(pa.BufferReader(path.read_bytes()))
        files = [release.trash_of(row["source_plan_id"] or row["plan_id"]) / row["key"] for row in rows.to_pylist()]
        etags = [etag_of(file.stat()) if file.exists() else old for file, old in zip(files, rows["etag"].to_pylist(), strict=True)]
        rows = rows.set_column(rows.schema.get_field_index("etag"), rows.schema.field("etag"), pa.array(etags))
        pq.write_table(rows, path)
        content = path.read_bytes()
        part |= {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        tables.append(rows)
    size = sum(part["size_bytes"] for part in receipt["files"])
    receipt |= {"digest": f"{digest(pa.concat_tables(tables)):016x}", "size_bytes": size}
    text = json.dumps(receipt, indent=1).encode()
    (run / "_receipt.json").write_bytes(text)
    sha256 = hashlib.sha256(text).hexdigest()
    pointer = run.parent / "current.json"
    if json.loads(pointer.read_text())["run_id"] == run.name:
        pointer.write_text(json.dumps({"run_id": run.name, "receipt_sha256": sha256}))
    index = run.parents[1] / "_index.json"
    if index.exists():
        parts = [{name: part[name] for name in ("name", "rows", "size_bytes")} for part in receipt["files"]]
        document = json.loads(index.read_text())
        document["runs"] = [
            {**entry, "receipt_sha256": sha256, "parts": parts} if entry["run_id"] == run.name else entry for entry in document["runs"]
        ]
        document["sha256"] = hashlib.sha256(json.dumps(document["runs"], sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        index.write_text(json.dumps(document))


@pytest.fixture(scope="module", params=[OF_0_2_0, OF_0_3_0], ids=lambda release: release.version)
def upgraded(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[UpgradedState]:
    release: Release = request.param
    root = release.root
    with root.with_name(f"{root.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(root, ignore_errors=True)
        unpack(DATA / f"state-{release.version}" / "state.tar.xz", root.parent)
        if not release.rehearsals:  # the tests set their own clock
            config = root / "lakes.yaml"
            config.write_text(config.read_text().replace("mode: apply", "mode: apply, rehearsals: allowed"))
        for receipt in sorted(root.glob("state/lake/deletion_log/*/*/_receipt.json")):
            name_inodes(release, receipt.parent)
        yield UpgradedState(release, contents(release.trash_of(release.applied)))
        shutil.rmtree(root)


@pytest.fixture
def cache_of_0_3_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the metadata that 0.3.0 decoded, the only copy of the contents of unreadable tables."""
    monkeypatch.setattr("gc_assets.stages.mark.manifest_entries.__version__", "0.3.0")


def test_plans_keep_their_status(upgraded: UpgradedState) -> None:
    release = upgraded.release
    found = {plan["plan_id"]: plan for plan in upgraded.json("plans")}
    applied, approved = found[release.applied], found[release.approved]
    assert {plan_id: plan["status"] for plan_id, plan in found.items()} == release.statuses
    assert approved["actions"] == release.actions
    assert (applied["actions"], applied["expiry_actions"]) == ({"quarantine": release.quarantined}, {"shop": 3, "weather": 4})
    assert applied["approved_by"] == approved["approved_by"] == release.approved_by


def test_upgraded_plan_id_is_still_the_digest(upgraded: UpgradedState) -> None:
    headers = [find_plan(upgraded.platform.config, plan_id[:8]).header for plan_id in upgraded.release.statuses]
    assert [header.plan_id for header in headers if is_intact(header)] == list(upgraded.release.statuses)


def test_approved_plan_keeps_rows_approval_and_policy(upgraded: UpgradedState) -> None:
    release = upgraded.release
    plan = find_plan(upgraded.platform.config, release.approved[:8])
    assert (plan.header.rows, plan.verdict.approved_by) == (sum(release.actions.values()), release.approved_by)
    assert plan.header.policy_digest == upgraded.platform.config.policy_digest()


def test_plan_lists_unreadable_tables(upgraded: UpgradedState) -> None:
    header = find_plan(upgraded.platform.config, upgraded.release.approved[:8]).header
    assert {item.lake: item.table_name for item in header.unreadable} == upgraded.release.unreadable
    assert {str(item.good_on) for item in header.unreadable} <= {"2026-11-22"}


def test_delivered_event_is_not_sent_again(upgraded: UpgradedState) -> None:
    cursor = upgraded.release.root / "notifications_cursor.json"
    if not cursor.exists():
        pytest.skip("0.2.0 sent no notifications")
    at = upgraded.platform
    definitions = build_definitions(at)
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(
            instance=instance, cursor=cursor.read_text(), resources={"collector": Collector.of(at)}, definitions=definitions
        )
        result = definitions.resolve_sensor_def("notifications").evaluate_tick(context)
    assert result.skip_message == "no new event"


def test_finished_plan_is_refused_without_changes(upgraded: UpgradedState) -> None:
    before = contents(upgraded.release.root / "lake")
    for plan_id, status in upgraded.release.statuses.items():
        if plan_id != upgraded.release.approved:
            assert upgraded("approve", plan_id, "--by", "bob").exit_code == 3
            assert upgraded("apply", plan_id).exit_code == (0 if status == "restored" else 3)
    assert contents(upgraded.release.root / "lake") == before
    assert contents(upgraded.release.trash_of(upgraded.release.applied)) == upgraded.trash


def test_doctor_reports_equal_failures_after_upgrade(upgraded: UpgradedState) -> None:
    found = json.loads(upgraded("doctor", "--format", "json").stdout)
    assert {(finding["subject"], finding["check"]) for finding in found if finding["verdict"] == "fail"} == upgraded.release.failures


@pytest.mark.parametrize("position", [0, -1], ids=["first run", "last run"])
def test_show_reads_tables_of_old_release(upgraded: UpgradedState, position: int) -> None:
    day = upgraded.release.run_dates[position]
    of_lakes = ("lake_refs", "commit_graph", "reachable_snapshots", "live_files", "policy_table", "current_rules")
    for asset in of_lakes:
        for lake in ("shop", "weather"):
            assert upgraded.json("show", asset, "--run-date", day, "--lake", lake), asset
    for asset in ("live_filter", "storage_inventory", "orphan_files", "deletion_plan"):
        assert upgraded.json("show", asset, "--run-date", day, "--storage", "lake"), asset
    for asset in ("manifest_entries", "snapshot_history"):
        assert upgraded.json("show", asset, "--run-date", day, "--lake", "shop")
    assert len(upgraded.json("show", "expiry_plan", "--run-date", day, "--lake", "weather")) == (4 if position == 0 else 0)


def test_missing_columns_of_deletion_log_are_null(upgraded: UpgradedState) -> None:
    rows = upgraded.json("show", "deletion_log", "--run-date", upgraded.release.first)
    assert sorted(row["phase"] for row in rows) == ["quarantine"] * upgraded.release.quarantined + ["restore"]
    assert {row["outcome"] for row in rows} == {"done"}
    assert {row.get("version_id") for row in rows} == {None}


def test_explain_and_report_show_plans_of_old_release(upgraded: UpgradedState, tmp_path: Path) -> None:
    release = upgraded.release
    explained = upgraded("explain", min(upgraded.trash), "--run-date", release.last)
    assert explained.exit_code == 0, explained.stderr
    assert release.applied[:12] in explained.stdout
    written = upgraded("report", "--run-date", release.last, "-o", str(tmp_path / "report.html"))
    assert written.exit_code == 0, written.stderr
    assert release.approved in (tmp_path / "report.html").read_text()


def test_ledger_lists_quarantined_files(upgraded: UpgradedState, spark: SparkSession) -> None:
    at = upgraded.platform
    waiting = quarantine_ledger(spark, at.run_context(at.clock.today()).state, "lake").collect()
    assert {row["key"] for row in waiting} == upgraded.trash.keys()
    assert {(row["source_plan_id"], row["quarantine"]) for row in waiting} == {(upgraded.release.applied, "trash")}


def test_apply_of_old_plan_keeps_changed_objects(upgraded: UpgradedState, cache_of_0_3_0: None) -> None:
    """Unpacking gives every file a new inode, so no file is the planned one."""
    release = upgraded.release
    before = contents(release.root / "lake")
    applied = upgraded("apply", release.approved, "--format", "json")
    assert applied.exit_code == 1, applied.stderr  # nothing was changed
    records = {(row["phase"], row["outcome"]): row["files"] for row in json.loads(applied.stdout)}
    assert records == {(action, "changed"): count for action, count in release.actions.items()}
    assert contents(release.root / "lake") == before
    assert contents(release.trash_of(release.applied)) == upgraded.trash


def test_restore_restores_files_and_history(upgraded: UpgradedState) -> None:
    release = upgraded.release
    records = {(row["phase"], row["outcome"]): row["files"] for row in upgraded.json("restore", "--plan", release.applied, "--history")}
    assert records == {("restore", "done"): len(upgraded.trash), ("history", "undone"): 4}
    assert contents(release.trash_of(release.applied)) == {}
    restored = contents(release.root / "lake")
    assert {key: restored[key] for key in upgraded.trash} == upgraded.trash
    weather = icechunk.Repository.open(icechunk.local_filesystem_storage(str(release.root / "lake" / "weather")))
    for branch in weather.list_branches():
        assert [snapshot.id for snapshot in weather.ancestry(branch=branch)]


def test_run_continues_if_only_old_cache_has_needed_contents(upgraded: UpgradedState) -> None:
    """Each release decodes all metadata again, which fails for unreadable metadata."""
    release = upgraded.release
    if not release.unreadable:
        pytest.skip("every table of this state is readable")
    ran = upgraded("run", day=release.next_run_date)
    assert ran.exit_code in {0, 3}, ran.stderr
    newest = max(upgraded.json("plans", day=release.next_run_date), key=lambda plan: plan["run_date"])
    header = find_plan(upgraded.platform.config, newest["plan_id"]).header
    assert {item.lake: item.table_name for item in header.unreadable} == release.unreadable
    assert "purge" not in newest["actions"]
    rows = upgraded.json("show", "deletion_plan", "--run-date", release.next_run_date, "--limit", "1000", day=release.next_run_date)
    assert not [row["key"] for row in rows if row["key"].startswith(("shop/returns/", "tides/"))]


def test_next_run_after_upgrade_succeeds(upgraded: UpgradedState, cache_of_0_3_0: None) -> None:
    release = upgraded.release
    ran = upgraded("run", day=release.next_run_date)
    assert ran.exit_code in {0, 3}, ran.stderr  # 3: a gate may refuse its plan
    found = upgraded.json("plans", day=release.next_run_date)
    assert [plan["run_date"] for plan in found] == [release.next_run_date, *reversed(release.run_dates)]
    assert (found[1]["status"], found[-1]["status"]) == ("partially applied", "restored")
    assert len(upgraded.json("show", "manifest_entries", "--lake", "shop", day=release.next_run_date)) > 0


def test_next_run_keeps_files_of_unreadable_tables(upgraded: UpgradedState) -> None:
    release = upgraded.release
    if not release.unreadable:
        pytest.skip("every table of this state is readable")
    newest = max(upgraded.json("plans", day=release.next_run_date), key=lambda plan: plan["run_date"])
    header = find_plan(upgraded.platform.config, newest["plan_id"]).header
    assert {(item.lake, item.table_name, item.since.date(), item.good_on) for item in header.unreadable} == {
        (lake, table, date.fromisoformat(release.last), date(2026, 11, 22)) for lake, table in release.unreadable.items()
    }
    assert "purge" not in newest["actions"]

    def live_files(lake: str, run_date: str) -> set[str]:
        rows = upgraded.json("show", "live_files", "--lake", lake, "--run-date", run_date, "--limit", "1000", day=release.next_run_date)
        return {row["key"] for row in rows}

    assert live_files("tides", "2026-11-22") <= live_files("tides", release.next_run_date)
    returns = {key for key in live_files("shop", "2026-11-22") if key.startswith("shop/returns/")}
    assert returns
    assert returns <= live_files("shop", release.next_run_date)


def test_run_decodes_all_containers_when_all_tables_are_readable(upgraded: UpgradedState) -> None:
    release = upgraded.release
    undamaged = release.root / "undamaged"
    if not undamaged.exists():
        pytest.skip("every table of this state is readable")
    for path in filter(Path.is_file, undamaged.rglob("*")):
        path.rename(release.root / "lake" / path.relative_to(undamaged))
    ran = upgraded("run", day="2026-11-25")
    assert ran.exit_code in {0, 3}, ran.stderr
    newest = max(upgraded.json("plans", day="2026-11-25"), key=lambda plan: plan["run_date"])
    assert find_plan(upgraded.platform.config, newest["plan_id"]).header.unreadable == ()
