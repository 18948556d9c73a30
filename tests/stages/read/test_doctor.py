"""Findings of `doctor` on the state and the storages."""

from __future__ import annotations

from pathlib import Path

from gc_assets.stages.read.doctor import FAIL, OK, doctor
from tests.records import run_context_at
from tests.state.publisher import publish_empty


def test_two_paths_of_one_directory_overlap(tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "warehouse")
    run_context = run_context_at(tmp_path, other=f"file://{tmp_path}/link/")
    (found,) = (finding for finding in doctor(run_context) if finding.check == "overlaps")
    assert found.verdict == FAIL


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
