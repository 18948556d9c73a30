"""Refs and snapshots of a repository, and the errors that stop a run."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from gc_assets.core.errors import LakeUnreadable
from gc_assets.lakes.icechunk import snapshot_files
from gc_assets.lakes.protocol import Lake
from gc_assets.stores.local.objects import LocalObjects
from tests.lakes.icechunk.builder import RepositoryBuilder, numbers, set_file_time, set_value
from tests.lakes.icechunk.icechunk_lakes import commits_of, in_state, lake_at, move_ref, retention_of, states

START = datetime(2026, 1, 1, tzinfo=UTC)
AS_OF = datetime(2026, 2, 1, tzinfo=UTC)
UNKNOWN_ID = "0123456789ABCDEFGHJ0"


@pytest.fixture
def built(tmp_path: Path) -> RepositoryBuilder:
    builder = RepositoryBuilder.create(tmp_path / "repo", START)
    for day in range(1, 4):
        write = numbers("values", range(4)) if day == 1 else set_value("values", day, day)
        snapshot = builder.commit("main", START + timedelta(days=day), write)
    builder.tag("v1", snapshot)
    builder.branch("develop", snapshot)
    return builder


def ref_file(built: RepositoryBuilder, ref: str) -> Path:
    return built.path / "refs" / ref / "ref.json"


def test_freeze_returns_all_refs_with_heads(built: RepositoryBuilder):
    refs = lake_at(built.path).freeze(AS_OF)
    assert {(ref.ref_type, ref.ref_name): ref.head_commit_id for ref in refs.refs} == {
        ("branch", "main"): built.head("main"),
        ("branch", "develop"): built.head("develop"),
        ("tag", "v1"): built.repo.lookup_tag("v1"),
    }


def test_freeze_claims_four_folders_and_keeps_refs_and_config(built: RepositoryBuilder):
    refs = lake_at(built.path).freeze(AS_OF)
    assert {claim.address.removeprefix(built.location) for claim in refs.claims} == {
        "/snapshots/",
        "/manifests/",
        "/transactions/",
        "/chunks/",
    }
    assert {pin.address.removeprefix(built.location) for pin in refs.pinned} == {
        "/config.yaml",
        "/refs/branch.main/ref.json",
        "/refs/branch.develop/ref.json",
        "/refs/tag.v1/ref.json",
    }


def test_deleted_tag_is_not_ref_but_its_files_are_kept(built: RepositoryBuilder):
    built.repo.delete_tag("v1")
    refs = lake_at(built.path).freeze(AS_OF)
    assert {ref.ref_name for ref in refs.refs} == {"main", "develop"}
    pinned = {pin.address.removeprefix(built.location) for pin in refs.pinned}
    assert {"/refs/tag.v1/ref.json", "/refs/tag.v1/ref.json.deleted"} <= pinned


def test_empty_directory_of_deleted_branch_is_not_ref(built: RepositoryBuilder):
    built.repo.delete_branch("develop")
    assert (built.path / "refs" / "branch.develop").is_dir()
    assert {ref.ref_name for ref in lake_at(built.path).freeze(AS_OF).refs} == {"main", "v1"}


@pytest.mark.parametrize("ref", ["branch.main", "tag.v1"])
@pytest.mark.parametrize("content", [b"", b'{"snapshot":"1CECHN', b"[]", b'{"snapshot":null}', b'{"snapshot":"not an id"}', b"\xff\xfe"])
def test_freeze_refuses_unreadable_ref(built: RepositoryBuilder, ref: str, content: bytes):
    ref_file(built, ref).write_bytes(content)
    with pytest.raises(LakeUnreadable, match=f"{ref}/ref.json"):
        lake_at(built.path).freeze(AS_OF)


def test_unreadable_tag_is_not_treated_as_deleted(built: RepositoryBuilder):
    ref_file(built, "tag.v1").write_bytes(b"")
    assert built.reopen().list_tags() == set(), "the library's reading, which destroys the tag's data"
    with pytest.raises(LakeUnreadable, match="tag 'v1' cannot be read"):
        lake_at(built.path).freeze(AS_OF)


@dataclass(frozen=True)
class DenyingStore(LocalObjects):
    """A store that denies reads of one address."""

    address: str

    def read(self, address: str) -> bytes:
        if address == self.address:
            raise PermissionError(f"403 for {address}")
        return LocalObjects.read(self, address)


def test_freeze_refuses_denied_tag(built: RepositoryBuilder):
    lake = lake_at(built.path)
    lake._objects = DenyingStore(f"{built.location}/refs/tag.v1/ref.json")
    with pytest.raises(LakeUnreadable, match=r"tag 'v1' cannot be read.*403"):
        lake.freeze(AS_OF)


def test_commits_refuse_denied_snapshot_without_refs(built: RepositoryBuilder):
    abandoned = built.abandon_snapshot("main", START + timedelta(days=4), set_value("values", 0, 9))
    lake = lake_at(built.path)
    lake._objects = DenyingStore(f"{built.location}/snapshots/{abandoned}")
    with pytest.raises(LakeUnreadable, match=abandoned):
        commits_of(lake, lake.freeze(AS_OF))


@dataclass(frozen=True)
class ChangingStore(LocalObjects):
    """A store that runs the next function of `changes` after each listing of the refs."""

    changes: list[Callable[[], object]]

    def list(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        yield from list(LocalObjects.list(self, prefix))
        if prefix.endswith("/refs/") and self.changes:
            self.changes.pop()()


def test_branch_renamed_during_freeze_is_read(built: RepositoryBuilder):
    def rename() -> None:
        built.repo.create_branch("renamed", built.head("develop"))
        built.repo.delete_branch("develop")

    lake = lake_at(built.path)
    lake._objects = ChangingStore([rename])
    assert {ref.ref_name for ref in lake.freeze(AS_OF).refs} == {"main", "v1", "renamed"}


@dataclass(frozen=True)
class SlowListing(LocalObjects):
    """A store whose first listing contains neither name of a branch that is renamed in the meantime."""

    rename: list[Callable[[], object]]

    def list(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        met = list(LocalObjects.list(self, prefix))
        if prefix.endswith("/refs/") and self.rename:
            self.rename.pop()()
            met = [item for item in met if "branch.develop" not in item[0]]
        yield from met


def test_branch_missing_from_first_listing_is_read(built: RepositoryBuilder):
    def rename() -> None:
        built.repo.create_branch("renamed", built.head("develop"))
        built.repo.delete_branch("develop")

    lake = lake_at(built.path)
    lake._objects = SlowListing([rename])
    assert {ref.ref_name for ref in lake.freeze(AS_OF).refs} == {"main", "v1", "renamed"}


@dataclass(frozen=True)
class MarkedDirectories(LocalObjects):
    """A bucket with empty objects for directories, as the S3 console creates them."""

    def list(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        yield from ((address, 0, START) for address in (prefix, f"{prefix}branch.main/", f"{prefix}new/"))
        yield from LocalObjects.list(self, prefix)


def test_directory_markers_are_not_refs(built: RepositoryBuilder):
    lake = lake_at(built.path)
    expected = lake.freeze(AS_OF)
    lake._objects = MarkedDirectories()
    assert lake.freeze(AS_OF).refs == expected.refs


def test_freeze_refuses_continuously_created_branches(built: RepositoryBuilder):
    lake = lake_at(built.path)
    lake._objects = ChangingStore([partial(built.repo.create_branch, f"b{number}", built.head("main")) for number in range(20)])
    with pytest.raises(LakeUnreadable, match=r"refs in .*/refs/ changed during each of 10 attempts"):
        lake.freeze(AS_OF)


def test_freeze_refuses_continuously_deleted_branches(built: RepositoryBuilder):
    names = [f"b{number}" for number in range(12)]
    for name in names:
        built.repo.create_branch(name, built.head("main"))
    lake = lake_at(built.path)
    lake._objects = ChangingStore([partial(built.repo.delete_branch, name) for name in names])
    with pytest.raises(LakeUnreadable, match=r"branch 'b\d+' cannot be read"):
        lake.freeze(AS_OF)


def test_freeze_refuses_tag_without_ref_file(built: RepositoryBuilder):
    lake = lake_at(built.path)
    lake._objects = ChangingStore([ref_file(built, "tag.v1").unlink])
    with pytest.raises(LakeUnreadable, match="tag 'v1' cannot be read"):
        lake.freeze(AS_OF)


def test_freeze_refuses_ref_directory_without_pointer(built: RepositoryBuilder):
    ref_file(built, "tag.v1").rename(ref_file(built, "tag.v1").with_name("ref.json#1"))
    with pytest.raises(LakeUnreadable, match="tag 'v1' has no"):
        lake_at(built.path).freeze(AS_OF)


def test_freeze_refuses_unknown_ref_type(built: RepositoryBuilder):
    move_ref(built.path, "bookmark.x", built.head("main"))
    with pytest.raises(LakeUnreadable, match=r"bookmark\.x"):
        lake_at(built.path).freeze(AS_OF)


def test_freeze_refuses_repository_without_refs(built: RepositoryBuilder):
    shutil.rmtree(built.path / "refs")
    with pytest.raises(LakeUnreadable, match="no branch and no tag"):
        lake_at(built.path).freeze(AS_OF)


def test_freeze_refuses_missing_location(tmp_path: Path):
    with pytest.raises(LakeUnreadable, match="nowhere/refs/ contains no branch"):
        lake_at(tmp_path / "nowhere").freeze(AS_OF)


def test_freeze_refuses_damaged_repo_object(built: RepositoryBuilder):
    (built.path / "repo").write_bytes(b"ICE")
    with pytest.raises(LakeUnreadable, match="/repo: expected an Icechunk header"):
        lake_at(built.path).freeze(AS_OF)


def test_commits_refuse_snapshot_of_spec_version_2(built: RepositoryBuilder):
    file = built.snapshot_file(built.head("main"))
    raw = bytearray(file.read_bytes())
    raw[36] = 2
    file.write_bytes(raw)
    lake = lake_at(built.path)
    with pytest.raises(LakeUnreadable, match="spec version 2"):
        commits_of(lake, lake.freeze(AS_OF))


def test_retain_refuses_ref_to_missing_snapshot(built: RepositoryBuilder):
    move_ref(built.path, "tag.lost", UNKNOWN_ID)
    with pytest.raises(LakeUnreadable, match=f"tag 'lost' points to snapshot {UNKNOWN_ID}"):
        retention_of(lake_at(built.path), AS_OF)


def test_commits_equal_icechunk_ancestry(built: RepositoryBuilder):
    lake = lake_at(built.path)
    ours = {commit.commit_id: commit for commit in commits_of(lake, lake.freeze(AS_OF))}
    theirs = list(built.reopen().ancestry(branch="main"))
    assert len(ours) == len(theirs) == 4
    for info in theirs:
        commit = ours[info.id]
        assert commit.parents == (() if info.parent_id is None else (info.parent_id,))
        assert commit.committed_at == info.written_at
        assert commit.message == info.message
        assert [root.address for root in commit.content_roots] == [f"{built.location}/snapshots/{info.id}"]
        assert commit.content_roots[0].size_bytes == built.snapshot_file(info.id).stat().st_size


def test_each_snapshot_is_in_one_shard(built: RepositoryBuilder, monkeypatch: pytest.MonkeyPatch):
    all_commits = {commit.commit_id for commit in commits_of(lake_at(built.path), lake_at(built.path).freeze(AS_OF))}
    monkeypatch.setattr(snapshot_files, "SNAPSHOTS_PER_SHARD", 2)
    lake = lake_at(built.path)
    refs = lake.freeze(AS_OF)
    assert len(refs.sources) == 3
    assert sorted(commit.commit_id for commit in commits_of(lake, refs)) == sorted(all_commits)


@pytest.mark.parametrize("readers,handfuls", [(1, 1), (1, 2), (2, 1), (16, 8)])
def test_each_snapshot_is_read_once(built: RepositoryBuilder, monkeypatch: pytest.MonkeyPatch, readers: int, handfuls: int):
    monkeypatch.setattr(snapshot_files, "READERS", readers)
    monkeypatch.setattr(snapshot_files, "BATCHES_PER_READER", handfuls)
    lake = lake_at(built.path)
    found = sorted(commit.commit_id for commit in commits_of(lake, lake.freeze(AS_OF)))
    assert found == sorted(path.name for path in (built.path / "snapshots").iterdir())


def test_object_with_invalid_id_is_noted_and_skipped(built: RepositoryBuilder):
    (built.path / "snapshots" / f"{UNKNOWN_ID}#1").write_bytes(b"half an upload")
    lake = lake_at(built.path)
    refs = lake.freeze(AS_OF)
    assert len(commits_of(lake, refs)) == 4
    assert f"{UNKNOWN_ID}#1" in " ".join(refs.notes)


@pytest.mark.parametrize("content", [b"", b"ICE", None])
def test_retain_refuses_damaged_reachable_snapshot(built: RepositoryBuilder, content: bytes | None):
    parent = next(iter(built.reopen().ancestry(branch="main"))).parent_id
    file = built.snapshot_file(parent)
    file.write_bytes(file.read_bytes()[:-9] if content is None else content)
    with pytest.raises(LakeUnreadable, match=parent):
        retention_of(lake_at(built.path, {"default": {"max_age": "1h"}}), AS_OF)


def damaged_leftover(built: RepositoryBuilder, at: datetime) -> str:
    abandoned = built.abandon_snapshot("main", at, set_value("values", 0, 9))
    file = built.snapshot_file(abandoned)
    file.write_bytes(file.read_bytes()[:50])
    set_file_time(file, at)
    return abandoned


def test_old_damaged_snapshot_is_dangling_and_noted(built: RepositoryBuilder):
    abandoned = damaged_leftover(built, START + timedelta(days=4))
    retention = retention_of(lake_at(built.path, {"default": {"max_age": "1d"}}), AS_OF)
    assert in_state(retention, "dangling") == {abandoned}
    assert any(abandoned in note and "is not needed" in note for note in retention.notes)


def test_retain_refuses_recent_damaged_snapshot(built: RepositoryBuilder):
    abandoned = damaged_leftover(built, AS_OF - timedelta(hours=1))
    with pytest.raises(LakeUnreadable, match=abandoned):
        retention_of(lake_at(built.path, {"default": {"max_age": "1d"}}), AS_OF)


def test_commits_refuse_snapshot_with_another_id(built: RepositoryBuilder):
    shutil.copy(built.snapshot_file(built.head("main")), built.path / "snapshots" / UNKNOWN_ID)
    lake = lake_at(built.path)
    with pytest.raises(LakeUnreadable, match=f"{UNKNOWN_ID} has the content of snapshot {built.head('main')}"):
        commits_of(lake, lake.freeze(AS_OF))


def test_retain_refuses_history_with_missing_snapshot(built: RepositoryBuilder):
    """The snapshots before it would look like dangling ones."""
    _, _, third, _ = (info.id for info in built.reopen().ancestry(branch="main"))
    built.snapshot_file(third).unlink()
    with pytest.raises(LakeUnreadable, match=f"in the history of develop has the parent {third}, which is not in snapshots/"):
        retention_of(lake_at(built.path), AS_OF)


def test_error_lists_all_missing_snapshots(built: RepositoryBuilder):
    """If each error contained only one snapshot, listing all in `lost_snapshots` would need a run
    per snapshot.
    """
    _, second, third, first = (info.id for info in built.reopen().ancestry(branch="main"))
    built.branch("old", third)
    for lost in (second, first):
        built.snapshot_file(lost).unlink()
    with pytest.raises(LakeUnreadable, match=rf"Run again, .* restore .* add ({second}, {first}|{first}, {second}) to lost_snapshots"):
        retention_of(lake_at(built.path), AS_OF)


def test_history_before_an_accepted_loss_is_dangling_and_noted(built: RepositoryBuilder):
    ids: Iterator[str] = (info.id for info in built.reopen().ancestry(branch="main"))
    _, _, third, _ = ids
    built.snapshot_file(third).unlink()
    lake = lake_at(built.path, {"default": {"max_age": "1h"}})
    lake._config = lake._config.model_copy(update={"lost_snapshots": (third,)})
    retention = retention_of(lake, AS_OF)
    assert third not in states(retention)
    assert sorted(states(retention).values()) == ["dangling", "retained", "retained"], "the first snapshot is cut off"
    assert retention.expiry.num_rows == 0
    assert any(third in note for note in retention.notes)


def test_icechunk_lake_can_be_pickled(built: RepositoryBuilder):
    lake = pickle.loads(pickle.dumps(lake_at(built.path)))  # noqa: S301 - bytes of this test
    assert isinstance(lake, Lake)
    assert len(lake.freeze(AS_OF).refs) == 3


def test_commits_refuse_empty_snapshot_folder(built: RepositoryBuilder):
    """On an executor without the disk, all snapshots would look deleted and their objects like garbage."""
    lake = lake_at(built.path)
    refs = lake.freeze(AS_OF)
    shutil.move(built.path / "snapshots", built.path / "elsewhere")
    with pytest.raises(LakeUnreadable, match=r"snapshots/ is empty on .*; mount the same storage on every machine"):
        commits_of(lake, refs)
