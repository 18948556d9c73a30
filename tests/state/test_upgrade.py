"""A state that 0.2.0 wrote is read on, and no way back that it left open is closed.

The tests of this module are one story in order; each stands on what the one before it did.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import icechunk
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from gc_assets.cli.main import cli
from gc_assets.core.hashing import digest
from gc_assets.resources.platform import NOW_VARIABLE, load_platform
from gc_assets.stages.records.ledger import quarantine_ledger
from gc_assets.stages.records.plans import find_plan
from gc_assets.stores.local.objects import etag_of
from tests.archives import unpack

pytestmark = pytest.mark.spark

ARCHIVE = Path(__file__).parents[1] / "data" / "state-0.2.0" / "state.tar.xz"
ROOT = Path("/tmp/gc-assets-state-0.2.0")  # noqa: S108  (the lakes' metadata names it)
APPLIED = "1e100d88298cddc59866f6f574c612d3ceba895092fd2a366dd4663289d352f7"
APPROVED = "d5446bf1e165de8059375bec4f9abe4603e45b9b8c3d57e7952f6efdeaa948ac"
FIRST, SECOND, THIRD = "2026-11-20", "2026-11-21", "2026-11-22"


@dataclass(frozen=True)
class Upgraded:
    """What 0.2.0 left, under today's code. `trash` are the files in quarantine: key to sha256."""

    trash: dict[str, str]

    def __call__(self, *arguments: str, day: str = SECOND) -> Result:
        environment = {NOW_VARIABLE: f"{day}T04:00:00+00:00", "GC_ASSETS_CONFIG": str(ROOT / "lakes.yaml")}
        return CliRunner().invoke(cli, list(arguments), env=environment)

    def json(self, *arguments: str, day: str = SECOND) -> list[dict[str, Any]]:
        result = self(*arguments, "--format", "json", day=day)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    @property
    def platform(self) -> Any:
        return load_platform({NOW_VARIABLE: f"{SECOND}T04:00:00+00:00"}, str(ROOT / "lakes.yaml"))


def contents(root: Path) -> dict[str, str]:
    """Key to sha256 of every file below a directory but the collector's own."""
    found = [path for path in root.rglob("*") if path.is_file() and ".gc-assets" not in path.relative_to(root).parts]
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def trash_of(plan_id: str) -> Path:
    return ROOT / "lake" / ".gc-assets" / "trash" / plan_id


def name_inodes(run: Path) -> None:
    """The rows of a run of `deletion_log` name the unpacked files in the trash; receipt and pointer agree with them."""
    receipt = json.loads((run / "_receipt.json").read_text())
    tables: list[pa.Table] = []
    for part in receipt["files"]:
        path = run / part["name"]
        rows = pq.read_table(pa.BufferReader(path.read_bytes()))
        files = [trash_of(row["source_plan_id"] or row["plan_id"]) / row["key"] for row in rows.to_pylist()]
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
    pointer = run.parent / "current.json"
    if json.loads(pointer.read_text())["run_id"] == run.name:
        pointer.write_text(json.dumps({"run_id": run.name, "receipt_sha256": hashlib.sha256(text).hexdigest()}))


@pytest.fixture(scope="module")
def upgraded(spark: SparkSession) -> Iterator[Upgraded]:
    with ROOT.with_name(f"{ROOT.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(ROOT, ignore_errors=True)
        unpack(ARCHIVE, ROOT.parent)
        config = ROOT / "lakes.yaml"  # the tests go on by a clock of their own
        config.write_text(config.read_text().replace("mode: apply", "mode: apply, rehearsals: allowed"))
        for receipt in sorted(ROOT.glob("state/lake/deletion_log/*/*/_receipt.json")):
            name_inodes(receipt.parent)
        yield Upgraded(contents(trash_of(APPLIED)))
        shutil.rmtree(ROOT)


def test_every_plan_is_listed_with_the_status_it_had(upgraded: Upgraded) -> None:
    found = {plan["plan_id"]: plan for plan in upgraded.json("plans")}
    assert {plan_id: plan["status"] for plan_id, plan in found.items()} == {APPROVED: "approved", APPLIED: "restored"}
    assert found[APPROVED]["actions"] == {"purge": 16, "quarantine": 4}
    assert (found[APPLIED]["actions"], found[APPLIED]["expiry_actions"]) == ({"quarantine": 17}, {"shop": 3, "weather": 4})
    assert {plan["approved_by"] for plan in found.values()} == {"ada"}


def test_an_approved_plan_is_still_that_plan(upgraded: Upgraded) -> None:
    plan = find_plan(upgraded.platform.config, APPROVED[:8])
    assert (plan.header.plan_id, plan.header.rows, plan.verdict.approved_by) == (APPROVED, 20, "ada")
    assert plan.header.policy_digest == upgraded.platform.config.policy_digest()


@pytest.mark.parametrize("day", [FIRST, SECOND])
def test_its_tables_are_shown(upgraded: Upgraded, day: str) -> None:
    of_lakes = ("lake_refs", "commit_graph", "reachable_snapshots", "manifest_entries", "live_files", "policy_table", "current_rules")
    for asset in of_lakes:
        for lake in ("shop", "weather"):
            assert upgraded.json("show", asset, "--run-date", day, "--lake", lake), asset
    for asset in ("live_filter", "storage_inventory", "orphan_files", "deletion_plan"):
        assert upgraded.json("show", asset, "--run-date", day, "--storage", "lake"), asset
    assert upgraded.json("show", "snapshot_history", "--run-date", day, "--lake", "shop")
    assert len(upgraded.json("show", "expiry_plan", "--run-date", day, "--lake", "weather")) == (4 if day == FIRST else 0)


def test_the_log_of_an_execution_is_shown_with_nothing_in_the_columns_that_it_lacks(upgraded: Upgraded) -> None:
    rows = upgraded.json("show", "deletion_log", "--run-date", FIRST)
    assert sorted(row["phase"] for row in rows) == ["quarantine"] * 17 + ["restore"]
    assert {row["outcome"] for row in rows} == {"done"}
    assert {row.get("version_id") for row in rows} == {None}


def test_a_quarantined_file_is_explained_and_the_page_is_drawn(upgraded: Upgraded, tmp_path: Path) -> None:
    told = upgraded("explain", min(upgraded.trash), "--run-date", SECOND)
    assert told.exit_code == 0, told.stderr
    assert APPLIED[:12] in told.stdout
    drawn = upgraded("report", "--run-date", SECOND, "-o", str(tmp_path / "report.html"))
    assert drawn.exit_code == 0, drawn.stderr
    assert APPROVED in (tmp_path / "report.html").read_text()


def test_the_ledger_knows_what_waits(upgraded: Upgraded, spark: SparkSession) -> None:
    waiting = quarantine_ledger(spark, upgraded.platform.night(upgraded.platform.clock.today()).state, "lake").collect()
    assert {row["key"] for row in waiting} == upgraded.trash.keys()
    assert {(row["source_plan_id"], row["quarantine"]) for row in waiting} == {(APPLIED, "trash")}


def test_an_approved_plan_leaves_alone_what_is_another_object_by_now(upgraded: Upgraded) -> None:
    """Every inode is another one than was planned, so nothing is touched, and the books say so."""
    before = contents(ROOT / "lake")
    applied = upgraded("apply", APPROVED, "--format", "json")
    assert applied.exit_code == 0, applied.stderr
    books = {(row["phase"], row["outcome"]): row["files"] for row in json.loads(applied.stdout)}
    assert books == {("purge", "changed"): 16, ("quarantine", "changed"): 4}
    assert contents(ROOT / "lake") == before
    assert contents(trash_of(APPLIED)) == upgraded.trash


def test_what_its_plan_quarantined_and_edited_comes_back(upgraded: Upgraded) -> None:
    books = {(row["phase"], row["outcome"]): row["files"] for row in upgraded.json("restore", "--plan", APPLIED, "--history")}
    assert books == {("restore", "done"): len(upgraded.trash), ("history", "undone"): 4}
    assert contents(trash_of(APPLIED)) == {}
    there = contents(ROOT / "lake")
    assert {key: there[key] for key in upgraded.trash} == upgraded.trash
    weather = icechunk.Repository.open(icechunk.local_filesystem_storage(str(ROOT / "lake" / "weather")))
    for branch in weather.list_branches():
        assert [snapshot.id for snapshot in weather.ancestry(branch=branch)]


def test_the_next_night_runs(upgraded: Upgraded) -> None:
    ran = upgraded("run", day=THIRD)
    assert ran.exit_code in {0, 3}, ran.stderr  # 3: a gate may refuse its plan
    found = upgraded.json("plans", day=THIRD)
    assert [plan["run_date"] for plan in found] == [THIRD, SECOND, FIRST]
    assert [plan["status"] for plan in found][1:] == ["applied", "restored"]
    assert len(upgraded.json("show", "manifest_entries", "--lake", "shop", day=THIRD)) > 0
