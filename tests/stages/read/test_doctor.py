"""Findings of `doctor` on the state and the storages."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.findings import SKIPPED, Finding
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.kinds import config_of
from gc_assets.lakes.protocol import CommitSource, FrozenRefs
from gc_assets.stages.read.doctor import FAIL, OK, WARN, doctor
from gc_assets.stages.read.doctor_lakes import check_assets, check_edits
from gc_assets.state.schemas import DELETION_LOG, LAKE_REFS
from tests.records import NOW, publish_table, run_context_at
from tests.state.publisher import publish_empty


def test_two_paths_of_one_directory_overlap(tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "warehouse")
    run_context = run_context_at(tmp_path, other=f"file://{tmp_path}/link/")
    (found,) = (finding for finding in doctor(run_context) if finding.check == "overlaps")
    assert found.verdict == FAIL


def test_clock_check_leaves_no_directory_for_unused_state(tmp_path: Path) -> None:
    """A `lakes.yaml` that was copied but not edited contains another state location."""
    context = run_context_at(tmp_path / "new")
    assert [finding.verdict for finding in doctor(context) if finding.check == "clock"] == [OK]
    assert not (tmp_path / "new").exists()


def test_clock_check_keeps_existing_state_directory(tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    context = run_context_at(tmp_path)
    state = Path(context.config.state.removeprefix("file://"))
    state.mkdir()
    assert [finding.verdict for finding in doctor(context) if finding.check == "clock"] == [OK]
    assert list(state.iterdir()) == []


def test_repository_on_unmounted_disk_is_reported_only_once(tmp_path: Path) -> None:
    found = [finding for finding in doctor(run_context_at(tmp_path)) if finding.check in {"readable", "listable"}]
    assert [(finding.subject, finding.check, finding.verdict) for finding in found] == [
        ("weather", "readable", SKIPPED),
        ("warehouse", "listable", FAIL),
    ]


def test_unexpected_error_of_one_check_is_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "warehouse").mkdir()
    monkeypatch.setattr("gc_assets.lakes.icechunk.lake.IcechunkLake.freeze", Mock(side_effect=KeyError("foo")))
    monkeypatch.setattr("gc_assets.stages.read.doctor_lakes.check_addresses", Mock(side_effect=IndexError("string index out of range")))
    found = {(finding.subject, finding.check): finding for finding in doctor(run_context_at(tmp_path))}
    assert found["weather", "readable"].found == "lake weather: its current state cannot be read: KeyError: 'foo'"
    assert found["weather", "addresses"].found == "IndexError: string index out of range"
    assert found["warehouse", "listable"].verdict == OK


@pytest.mark.parametrize("free, verdict", [(2**30 - 1, WARN), (2**30, OK)])
def test_low_disk_space_for_the_state_is_a_warning(free: int, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "warehouse").mkdir()
    monkeypatch.setattr("gc_assets.state.files.Files.free_bytes", lambda _: free)
    context = run_context_at(tmp_path)
    (found,) = (finding for finding in doctor(context) if finding.check == "space")
    assert (found.verdict, found.found) == (verdict, f"1.07 GB are free for {context.config.state}")


def test_incomplete_index_is_reported_until_repaired(tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    run_context = run_context_at(tmp_path)
    publish_empty(run_context.state)
    index = Path(run_context.config.state.removeprefix("file://")) / "sales" / "live_files" / "_index.json"
    before = index.read_bytes()
    publish_empty(run_context.state)
    index.write_bytes(before)
    (found,) = (finding for finding in doctor(run_context) if finding.check == "index")
    assert (found.verdict, found.todo) == (FAIL, "gc-assets doctor --repair")
    assert "lacks the run" in found.found
    run_context.state.repair()
    assert [finding.verdict for finding in doctor(run_context) if finding.check == "index"] == [OK]


def test_doctor_requires_restoring_missing_deletion_log_receipt(tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    run_context = run_context_at(tmp_path)
    publish_empty(run_context.state, DELETION_LOG.name)
    (run,) = run_context.state.history("sales", DELETION_LOG.name)
    run_context.state.files.delete(f"{run.path}/_receipt.json")
    run_context.state.repair()
    (found,) = (finding for finding in doctor(run_context) if finding.check == "records")
    assert found.verdict == FAIL
    assert "restore it from a backup of the state" in found.todo
    assert run.path in found.found


@pytest.mark.parametrize("mode, verdicts", [("plan", []), ("apply", [SKIPPED])])
def test_right_to_edit_repository_is_reported_as_not_checked(tmp_path: Path, mode: str, verdicts: list[str]) -> None:
    storage = {"name": "warehouse", "location": f"file://{tmp_path}/warehouse/", "mode": mode}
    lake = {"name": "weather", "kind": "icechunk", "location": f"file://{tmp_path}/warehouse/weather"}
    config = config_of({"state": f"{tmp_path}/state", "storages": [storage], "lakes": [lake]})
    context = RunContext.of(config, Clock(NOW), NOW.date())
    found = list(check_edits(context, "weather", FrozenRefs("weather", "icechunk", (), (), (), ())))
    assert [finding.verdict for finding in found] == verdicts
    assert all("is not checked" in finding.found for finding in found)


def assets_context(root: Path, *tables: str | None) -> RunContext:
    """Return a run context with a lake `sales`, and one asset for each of these tables."""
    assets = [{"key": f"shop/{number}"} | ({"table": table} if table else {}) for number, table in enumerate(tables)]
    lake = {"name": "sales", "kind": "iceberg", "catalog": {"type": "sql", "uri": f"sqlite:///{root}/catalog.db"}, "assets": assets}
    document = {"state": f"{root}/state", "storages": [{"name": "warehouse", "location": f"file://{root}/warehouse/"}], "lakes": [lake]}
    return RunContext.of(config_of(document), Clock(NOW), NOW.date())


def freeze_of(*tables: str) -> FrozenRefs:
    return FrozenRefs("sales", "iceberg", (), tuple(CommitSource(f"/{table}", table_name=table) for table in tables), (), ())


def test_asset_for_unknown_table_suggests_nearest_table(tmp_path: Path) -> None:
    found = list(
        check_assets(assets_context(tmp_path, "shop.ordrs", "shop.customers", None), "sales", freeze_of("shop.orders", "shop.customers"))
    )
    assert found == [
        Finding(
            "sales",
            "assets",
            WARN,
            "asset shop/0: the lake has no table shop.ordrs; did you mean shop.orders?",
            "Correct `assets` in lakes.yaml. An asset has no figures before its table is written.",
        )
    ]


def test_asset_table_from_last_run_is_known(tmp_path: Path) -> None:
    """The refs of a Nessie lake contain no table names, but its runs find the tables."""
    context = assets_context(tmp_path, "shop.orders")
    row = {"ref_name": "main", "ref_type": "branch", "table_name": "shop.orders", "head_commit_id": "1"}
    publish_table(context, "sales", LAKE_REFS, [row])
    assert list(check_assets(context, "sales", freeze_of())) == []
