"""Repositories of spec version 1 of the icechunk project that several versions of the library wrote and expired."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import icechunk
import pytest

from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.icechunk import entries
from gc_assets.lakes.protocol import Commit, Container
from gc_assets.stores.local.objects import LocalObjects
from tests.lakes.icechunk.icechunk_lakes import FAR_FUTURE, commits_of, container, in_state, lake_at, retention_of

WILD = Path(__file__).parents[4] / "shared" / "fixtures" / "icechunk-wild"
V1 = ["expire-repo-v1-by-2.0.5", "split-repo-v1", "test-repo-v1"]
NOW = datetime(2026, 11, 1, tzinfo=UTC)
EXPIRED = Path(__file__).parents[2] / "data" / "icechunk" / "expire-repo-v1-by-2.0.5"

needs_wild = pytest.mark.skipif(not WILD.is_dir(), reason=f"this clone has no recorded repositories at {WILD}")


@pytest.fixture
def wild(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(WILD / request.param, tmp_path / "repo"))


def repository(path: Path) -> icechunk.Repository:
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))


@needs_wild
@pytest.mark.parametrize("wild", V1, indirect=True)
def test_refs_and_ancestries_match_icechunk(wild: Path):
    lake, repo = lake_at(wild), repository(wild)
    refs = lake.freeze(NOW)
    commits = {commit.commit_id: commit for commit in commits_of(lake, refs)}
    assert {ref.ref_name for ref in refs.refs if ref.ref_type == "branch"} == set(repo.list_branches())
    assert {ref.ref_name for ref in refs.refs if ref.ref_type == "tag"} == set(repo.list_tags())
    for ref in refs.refs:
        ours = ref.head_commit_id
        for info in repo.ancestry(snapshot_id=ref.head_commit_id):
            assert ours == info.id
            assert commits[info.id].committed_at == info.written_at
            ours = next(iter(commits[info.id].parents), None)
        assert ours is None


@needs_wild
@pytest.mark.parametrize("wild", V1, indirect=True)
def test_decoded_snapshots_reference_manifests_that_icechunk_reports(wild: Path):
    lake, repo, objects = lake_at(wild), repository(wild), LocalObjects()
    refs = lake.freeze(NOW)
    commits = {commit.commit_id: commit for commit in commits_of(lake, refs)}
    for info in {info.id: info for ref in refs.refs for info in repo.ancestry(snapshot_id=ref.head_commit_id)}.values():
        root = container(commits[info.id].content_roots[0])
        manifests = [row for row in entries.decode(root, objects.read(root.address)).to_pylist() if row["is_container"]]
        listed = {(item.id, item.size_bytes, item.num_chunk_refs) for item in info.manifests}
        assert {(row["address"][-20:], row["size_bytes"], row["expected_entries"]) for row in manifests} == listed
        for row in manifests:
            rows = entries.decode(
                Container(row["address"], row["kind"], row["size_bytes"], row["expected_entries"]), objects.read(row["address"])
            )
            for chunk in rows.to_pylist():
                assert chunk["kind"] == Kind.VIRTUAL_CHUNK or objects.size(chunk["address"]) > 0


@needs_wild
@pytest.mark.parametrize("wild", ["test-repo-v1"], indirect=True)
def test_virtual_locations_match_icechunk(wild: Path):
    lake, repo, objects = lake_at(wild), repository(wild), LocalObjects()
    expected, found = set(), set()
    for commit in commits_of(lake, lake.freeze(NOW)):
        session = repo.readonly_session(snapshot_id=commit.commit_id)
        expected.update(session.all_virtual_chunk_locations())
        root = container(commit.content_roots[0])
        for row in entries.decode(root, objects.read(root.address)).to_pylist():
            if row["is_container"]:
                rows = entries.decode(Container(row["address"], row["kind"]), objects.read(row["address"])).to_pylist()
                found.update(item["address"] for item in rows if item["kind"] == Kind.VIRTUAL_CHUNK)
    assert expected
    assert found == expected


@needs_wild
@pytest.mark.parametrize("wild", V1, indirect=True)
def test_dangling_snapshots_match_icechunk_garbage(wild: Path):
    retention = retention_of(lake_at(wild, {"default": {"keep": "2100-01-01"}, "refs": [{"match": ".*", "keep": "forever"}]}), NOW)
    summary = repository(wild).garbage_collect(FAR_FUTURE, dry_run=True)
    assert len(in_state(retention, "dangling")) == summary.snapshots_deleted


@pytest.mark.parametrize("default", ["forever", "1d"])
def test_snapshots_expired_by_icechunk_are_dangling_after_week(default: str):
    """The manifests of such a snapshot are deleted. If it were kept, its missing files would refuse
    every plan.
    """
    lake, objects = lake_at(EXPIRED, {"default": default, "refs": [{"match": ".*", "keep": "forever"}]}), LocalObjects()
    refs = lake.freeze(NOW)
    commits = {commit.commit_id: commit for commit in commits_of(lake, refs)}
    left = {id for id, commit in commits.items() if not all(map(objects_exist, manifests_of(objects, commit)))}
    retention = retention_of(lake, max(commits[id].committed_at for id in left) + timedelta(days=7, microseconds=1))
    assert left
    assert left <= in_state(retention, "dangling")
    week = max(commits[id].committed_at for id in left) + timedelta(days=7)
    assert left & in_state(retention_of(lake, week), "retained"), "a week, to the microsecond"


def manifests_of(objects: LocalObjects, commit: Commit) -> list[str]:
    root = container(commit.content_roots[0])
    return [row["address"] for row in entries.decode(root, objects.read(root.address)).to_pylist() if row["kind"] == Kind.CHUNK_MANIFEST]


def objects_exist(address: str) -> bool:
    return Path(address.removeprefix("file://")).exists()
