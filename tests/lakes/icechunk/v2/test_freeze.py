"""Refs, commits and pinned files of repositories of spec version 2, compared with the library's report."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gc_assets.core.errors import LakeUnreadable
from gc_assets.lakes.icechunk import snapshot_files
from gc_assets.lakes.icechunk.graph import ENTRY
from gc_assets.lakes.icechunk.repo_info import RepoInfo, parse_repo
from gc_assets.lakes.icechunk.repo_updates import Availability, RepoStatus
from gc_assets.lakes.icechunk.repo_writer import write_repo
from gc_assets.lakes.protocol import ExpiryAction, NamedPrefixes
from tests.depth import in_turn
from tests.lakes.icechunk.icechunk_lakes import commits_of, deleted_refs, expire, lake_at, move_ref, retention_of, states
from tests.lakes.icechunk.v2.builder import RepositoryBuilder, numbers, set_value
from tests.lakes.icechunk.v2.library import Library
from tests.lakes.icechunk.v2.recordings import NAMES, Recording, unpack_recording

pytestmark = in_turn

START = datetime(2026, 1, 1, tzinfo=UTC)
AS_OF = datetime(2027, 1, 1, tzinfo=UTC)
FIRST = "1CECHNKREP0F1RSTCMT0"


@pytest.fixture(params=NAMES)
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> Recording:
    return unpack_recording(request.param, tmp_path, AS_OF - timedelta(days=100))


@pytest.fixture
def built(icechunk2: Library, tmp_path: Path) -> RepositoryBuilder:
    builder = RepositoryBuilder.create(icechunk2, tmp_path / "repo", START)
    for day in range(1, 4):
        builder.commit("main", START + timedelta(days=day), numbers("values", range(4)) if day == 1 else set_value("values", day, day))
    return builder


def change_repo(path: Path, change: Callable[[RepoInfo], RepoInfo]) -> None:
    raw = (path / "repo").read_bytes()
    (path / "repo").write_bytes(write_repo("repo", raw, change(parse_repo("repo", raw))))


def without_entries(info: RepoInfo, snapshots: set[str]) -> RepoInfo:
    """Remove entries, as another collector does before it deletes their files."""
    return replace(info, snapshots={name: entry for name, entry in info.snapshots.items() if name not in snapshots})


def test_refs_match_icechunk(recording: Recording):
    refs = lake_at(recording.path).freeze(AS_OF).refs
    repo = recording.verdict["repo"]
    assert {ref.ref_name: ref.head_commit_id for ref in refs if ref.ref_type == "branch"} == repo["branches"]
    assert {ref.ref_name: ref.head_commit_id for ref in refs if ref.ref_type == "tag"} == repo["tags"]


def test_commits_match_icechunk_snapshot_entries(recording: Recording):
    lake = lake_at(recording.path)
    listed = {commit.commit_id: commit for commit in commits_of(lake, lake.freeze(AS_OF)) if ENTRY in commit.summary}
    entries = {entry["id"]: entry for entry in recording.verdict["repo"]["snapshots"]}
    assert listed.keys() == entries.keys()
    for snapshot, entry in entries.items():
        assert list(listed[snapshot].parents) == [parent for parent in [entry.get("parent_id")] if parent]
        assert listed[snapshot].committed_at == datetime.fromisoformat(entry["flushed_at"])
        assert listed[snapshot].message == entry["message"]


def test_claims_are_folders_that_icechunk_writes(recording: Recording):
    refs = lake_at(recording.path).freeze(AS_OF)
    prefix = f"file://{recording.path}/"
    folders = {"snapshots/", "manifests/", "transactions/", "chunks/", "overwritten/"}
    assert {claim.address.removeprefix(prefix) for claim in refs.claims} == folders
    assert f"{prefix}repo" in {root.address for root in refs.pinned if root.must_exist}


def unpack(name: str, folder: Path) -> Path:
    return unpack_recording(name, folder, AS_OF - timedelta(days=100)).path


def test_chunk_container_prefixes_are_read_from_repo(tmp_path: Path):
    lake = lake_at(unpack("virtual-chunks", tmp_path))
    expected = NamedPrefixes({"box": "file:///recorded/data/", "my-box": "s3://bucket/prefix/"})
    assert lake.freeze(AS_OF).named_prefixes == lake.read_prefixes() == expected


def test_version_1_ref_files_are_kept_and_reported(tmp_path: Path):
    path = unpack("upgraded-v1-files-kept", tmp_path)
    lake = lake_at(path)
    refs = lake.freeze(AS_OF)
    old = {f"file://{file}" for file in (path / "refs").rglob("*.json")}
    assert old
    assert old <= {root.address for root in refs.pinned}
    assert f"{len(old)} objects in refs/ next to `repo`" in " ".join(refs.notes)
    unlisted = [commit for commit in commits_of(lake, refs) if ENTRY not in commit.summary]
    assert len(unlisted) == 1, "the commit of the session that was open during the upgrade"


def test_snapshot_missing_from_repo_is_kept_for_dangling_time(tmp_path: Path):
    lake = lake_at(unpack("upgraded-v1-files-kept", tmp_path))
    refs = lake.freeze(AS_OF)
    (commit,) = [commit for commit in commits_of(lake, refs) if ENTRY not in commit.summary]
    assert states(retention_of(lake, commit.committed_at + timedelta(days=6)))[commit.commit_id] == "retained"
    assert states(retention_of(lake, commit.committed_at + timedelta(days=8)))[commit.commit_id] == "dangling"
    assert not [row for row in retention_of(lake, AS_OF).expiry.to_pylist() if row["snapshot_id"] == commit.commit_id]


@pytest.mark.parametrize("availability", [Availability.READ_ONLY, Availability.OFFLINE])
def test_nothing_expires_in_repository_that_is_not_online(built: RepositoryBuilder, availability: Availability):
    """The library itself cannot set a repository offline, and reads that status as online."""
    change_repo(built.path, lambda info: replace(info, status=RepoStatus(availability, 0, "moving house")))
    lake = lake_at(built.path, {"default": "1d"})
    refs = lake.freeze(AS_OF)
    assert {claim.collect for claim in refs.claims} == {False}
    assert "moving house" in " ".join(refs.notes)
    found = retention_of(lake, AS_OF)
    assert set(states(found).values()) == {"retained"}
    assert not found.expiry.num_rows


def test_damaged_dangling_snapshot_is_retained_if_repository_is_read_only(built: RepositoryBuilder):
    lost = built.abandon_snapshot("main", START + timedelta(days=6), set_value("values", 0, 6))
    built.snapshot_file(lost).write_bytes(b"damaged")
    status = RepoStatus(Availability.READ_ONLY, 0, None)
    change_repo(built.path, lambda info: replace(without_entries(info, {lost}), status=status))
    assert states(retention_of(lake_at(built.path), AS_OF))[lost] == "retained"


def test_transaction_log_of_expired_ancestor_may_be_missing(built: RepositoryBuilder):
    """icechunk 2.0 deletes these logs, and readers do not need them. `live_listed` counts lost files."""
    lake = lake_at(built.path, {"default": "1d"}, semantics="icechunk")
    expire(lake, AS_OF)
    (tip,) = [commit for commit in commits_of(lake, lake.freeze(AS_OF)) if commit.commit_id == built.head()]
    logs = [root for root in tip.content_roots if "/transactions/" in root.address]
    assert len(logs) == 3, "its own and those of two expired ancestors"
    assert not any(root.must_exist for root in logs)


@pytest.mark.parametrize("tags", ["ignore", "policy"])
@pytest.mark.parametrize("is_allowed", [True, False])
def test_tag_is_deleted_only_if_the_repository_allows_it(built: RepositoryBuilder, tags: str, is_allowed: bool):
    head = built.head()
    built.tag("old", head)
    built.call("reset_branch", name="main", snapshot=FIRST)
    built.call("set_feature_flag", name="delete_tag", setting=None if is_allowed else False)
    found = retention_of(lake_at(built.path, {"default": "1d", "tags": tags}, delete_expired_tags=True), AS_OF)
    assert deleted_refs(found) == ({"old"} if is_allowed else set())
    assert states(found)[head] == ("expired" if is_allowed else "retained")


def test_commit_made_after_freeze_is_read(built: RepositoryBuilder):
    lake = lake_at(built.path)
    refs = lake.freeze(AS_OF)
    added = built.commit("main", START + timedelta(days=5), set_value("values", 0, 9))
    assert added in {commit.commit_id for commit in commits_of(lake, refs)}


def test_listed_snapshot_without_file_is_required(built: RepositoryBuilder):
    head = built.head()
    built.snapshot_file(head).unlink()
    lake = lake_at(built.path)
    (commit,) = [commit for commit in commits_of(lake, lake.freeze(AS_OF)) if commit.commit_id == head]
    root = commit.content_roots[0]
    assert (root.address, root.size_bytes, root.must_exist) == (f"{built.location}/snapshots/{head}", None, True)


def test_commits_refuse_empty_snapshot_folder(built: RepositoryBuilder):
    lake = lake_at(built.path)
    refs = lake.freeze(AS_OF)
    shutil.rmtree(built.path / "snapshots")
    with pytest.raises(LakeUnreadable, match="snapshots/ is empty"):
        commits_of(lake, refs)


def test_each_snapshot_is_in_one_shard(built: RepositoryBuilder, monkeypatch: pytest.MonkeyPatch):
    lost = {built.abandon_snapshot("main", START + timedelta(days=day), set_value("values", 0, day)) for day in (6, 7, 8)}
    change_repo(built.path, lambda info: without_entries(info, lost))
    lake = lake_at(built.path)
    expected = sorted(commit.commit_id for commit in commits_of(lake, lake.freeze(AS_OF)))
    assert lost <= set(expected)
    monkeypatch.setattr(snapshot_files, "SNAPSHOTS_PER_SHARD", 1)
    refs = lake.freeze(AS_OF)
    assert len(refs.sources) == 4
    assert sorted(commit.commit_id for commit in commits_of(lake, refs)) == expected


def test_version_2_snapshot_without_repo_object_is_unreadable(built: RepositoryBuilder):
    """Without `repo`, the history of version 2 would look dangling to the refs that an upgrade left."""
    head = built.head()
    (built.path / "repo").unlink()
    shutil.rmtree(built.path / "overwritten")
    move_ref(built.path, "branch.main", head)
    lake = lake_at(built.path)
    with pytest.raises(LakeUnreadable, match=r"has spec version 2; .*newest copy in overwritten/"):
        commits_of(lake, lake.freeze(AS_OF))


def test_version_1_refs_next_to_missing_repo_object_are_refused(icechunk2: Library, tmp_path: Path):
    """An upgrade can leave the refs of version 1, which lack later changes. Copies of `repo` prove
    the upgrade.
    """
    builder = RepositoryBuilder.create(icechunk2, tmp_path / "repo", START, spec_version=1)
    commit = builder.commit("main", START + timedelta(days=1), numbers("values", range(4)))
    builder.call("upgrade", delete_v1_files=False)
    refs = lake_at(builder.path).freeze(AS_OF).refs
    builder.branch("later", commit)
    assert refs != (frozen := lake_at(builder.path).freeze(AS_OF)).refs
    (builder.path / "repo").rename(tmp_path / "aside")
    lake = lake_at(builder.path)
    with pytest.raises(LakeUnreadable, match=r"repo is missing, but .*/overwritten/repo[.].* is a copy of it"):
        lake.freeze(AS_OF)
    edit = ExpiryAction("edit_parent", commit, "")
    assert [outcome.verdict for outcome in expire(lake, AS_OF, [edit])] == ["failed"]
    (tmp_path / "aside").rename(builder.path / "repo")
    assert lake.freeze(AS_OF).refs == frozen.refs


def test_damaged_repo_object_makes_lake_unreadable(built: RepositoryBuilder):
    repo = built.path / "repo"
    repo.write_bytes(repo.read_bytes()[:-5])
    with pytest.raises(LakeUnreadable, match=r"weather: file://.*/repo: expected one whole zstd frame"):
        lake_at(built.path).freeze(AS_OF)
