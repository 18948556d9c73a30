"""The library 2.x of the tests: its environment, and repositories with chosen times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.debian import Unavailable
from tests.lakes.icechunk.v2 import environment, library
from tests.lakes.icechunk.v2.builder import RepositoryBuilder, document_tree, microseconds, numbers, set_value, virtual_chunk
from tests.lakes.icechunk.v2.library import Library, LibraryError
from tests.lakes.icechunk.v2.recordings import NAMES, unpack_recording

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_icechunk_reads_times_set_by_builder(icechunk2: Library, tmp_path: Path):
    builder = RepositoryBuilder.create(icechunk2, tmp_path / "repo", START)
    first = builder.commit("main", START + HOUR, numbers("group/values", range(3)))
    second = builder.commit("main", START + 2 * HOUR, set_value("group/values", 1, 7))
    ancestry = builder.call("ancestry", snapshot=second)
    assert [entry[0] for entry in ancestry] == [second, first, builder.call("ancestry", snapshot=first)[1][0]]
    assert [entry[2] for entry in ancestry] == [microseconds(START + n * HOUR) for n in (2, 1, 0)]
    assert builder.call("contents", snapshot=second) == {"group/values/c/0": 0, "group/values/c/1": 7, "group/values/c/2": 2}
    assert {(builder.path / name).stat().st_mtime for name in builder.created[second]} == {(START + 2 * HOUR).timestamp()}


def test_icechunk_expires_by_times_set_by_builder(icechunk2: Library, tmp_path: Path):
    tree = document_tree(icechunk2, tmp_path / "repo", START)
    released = tree.builder.call("expire", older_than=microseconds(tree.cutoff))
    assert tree.numbers_of(released) == {1, 2, 4, 6, 7}
    assert tree.builder.call("garbage_collect", dry_run=True)["snapshots"] == 5


def test_version_1_repository_can_be_upgraded(icechunk2: Library, tmp_path: Path):
    tree = document_tree(icechunk2, tmp_path / "repo", START, spec_version=1)
    before = tree.builder.call("ancestries")
    assert not (tree.builder.path / "repo").exists()
    tree.builder.call("upgrade")
    assert tree.builder.call("ancestries") == before
    assert (tree.builder.path / "repo").exists()


def test_writer_writes_every_type_of_chunk(icechunk2: Library, tmp_path: Path):
    settings = {"inline_below_bytes": 8, "compress_locations_from": 2, "containers": [["box", "s3://bucket/data/", None]]}
    builder = RepositoryBuilder.create(icechunk2, tmp_path / "repo", START, **settings)
    locations = [f"vcc://box/file-{n}.nc" for n in range(20)]
    writes = [numbers("v", [None] * 20), *(virtual_chunk("v", n, location) for n, location in enumerate(locations))]
    snapshot = builder.commit("main", START + HOUR, numbers("small", [1, 2]), numbers("large", [3], size=100), *writes)
    report = builder.call("report")
    totals = [sum(counts[kind] for counts in report["manifests"].values()) for kind in ("inline", "native", "virtual")]
    assert totals == [2, 1, 20]
    assert set(report["snapshots"][snapshot]["virtual_locations"]) == {f"s3://bucket/data/file-{n}.nc" for n in range(20)}


def test_failed_step_ends_request_unless_allowed_to_fail(icechunk2: Library, tmp_path: Path):
    path = tmp_path / "repo"
    refused = ("create_tag", {"name": "t", "snapshot": "00000000000000000000"})
    with pytest.raises(LibraryError, match="00000000000000000000"):
        icechunk2.run(path, [("create", {}), refused, ("refs", {})])
    refused[1]["may_fail"] = True
    results = icechunk2.run(path, [refused, ("refs", {})])
    assert "00000000000000000000" in results[0]["error"]
    assert results[1]["tags"] == {}


@pytest.mark.parametrize("name", NAMES)
def test_recorded_reports_match_installed_icechunk(icechunk2: Library, tmp_path: Path, name: str):
    recording = unpack_recording(name, tmp_path)
    assert icechunk2.call(recording.path, "report") == recording.verdict


@pytest.mark.parametrize("mode,end", [("", "Skipped"), ("required", "Failed"), ("none", "Skipped")])
def test_missing_new_python_skips_or_fails_test(mode: str, end: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment, "find_python", _missing)
    monkeypatch.setattr(environment, "works", lambda _: False)
    monkeypatch.setattr(environment, "running_library_is_new", lambda: False)
    monkeypatch.delenv("ICECHUNK_PYTHON", raising=False)
    monkeypatch.setenv(library.VARIABLE, mode)
    with pytest.raises(BaseException, match=r"not here|disabled") as raised, library.running():
        pass
    assert type(raised.value).__name__ == end


def _missing() -> str:
    raise Unavailable("not here")


def test_failed_installation_leaves_no_environment(tmp_path: Path):
    """The interpreter makes a directory and fails, like `venv` without an interpreter to copy."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nmkdir "$3"; echo broken; exit 1\n')
    python.chmod(0o755)
    with pytest.raises(Unavailable, match=r"broken; or run the suite without it: make test ICECHUNK=none"):
        environment.make(str(python), tmp_path / "made")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["python"]
