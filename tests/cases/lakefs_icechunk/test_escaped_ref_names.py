"""Icechunk's local store percent-encodes ref names, so that a rule of `retention.refs` silently did not match them.

Source: `object_store`, `PathPart` (its local store and icechunk's `local_filesystem_storage`). The branch `release#1` is in
`refs/branch.release%231/`. With the name `release%231`, `keep: forever` did not apply and three commits expired.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gc_assets.lakes.icechunk.ref_names import escape, unescape
from gc_assets.lakes.icechunk.refs import ref_address
from tests.lakes.icechunk.builder import RepositoryBuilder, numbers, set_value
from tests.lakes.icechunk.support import deleted_refs, edits, expire, in_state, lake_at, plan_actions, retention_of, undo

START = datetime(2026, 1, 1, tzinfo=UTC)
LATER = START + timedelta(days=30)
# Every printable character of ASCII that the library's local store encodes, and characters outside of ASCII.
SPECIAL = [
    *("release#1", "100%", "%231", "a*b", "a\\b", "a?b", 'a"b', "<a>", "[a]", "a^b", "`a`"),
    *("{a|b}", "~a", "rel-é", "日本", "a\tb", "a b", "a.b"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> RepositoryBuilder:
    """Build a history of five snapshots, with a branch and a tag of each special name at its end."""
    builder = RepositoryBuilder.create(tmp_path_factory.mktemp("names") / "repo", START)
    for day in range(1, 5):
        write = numbers("values", range(4)) if day == 1 else set_value("values", day % 4, day)
        tip = builder.commit("main", START + timedelta(days=day), write)
    for name in SPECIAL:
        builder.branch(name, tip)
        builder.tag(f"tag {name}", tip)
    return builder


def test_freeze_returns_the_names_of_the_library(built: RepositoryBuilder) -> None:
    refs = lake_at(built.path).freeze(LATER).refs
    assert {ref.ref_name for ref in refs if ref.ref_type == "branch"} == {"main", *SPECIAL}
    assert {ref.ref_name for ref in refs if ref.ref_type == "tag"} == {f"tag {name}" for name in SPECIAL}
    assert all(built.repo.lookup_branch(ref.ref_name) == ref.head_commit_id for ref in refs if ref.ref_type == "branch")


@pytest.mark.parametrize("name", ["release#1", "100%", "rel-é"])
def test_rule_for_an_escaped_name_keeps_its_history(built: RepositoryBuilder, name: str) -> None:
    retention = retention_of(lake_at(built.path, {"default": 1, "tags": "ignore", "refs": [{"match": name, "keep": "forever"}]}), LATER)
    assert edits(retention) == {}
    assert len(in_state(retention, "retained")) == 5


def test_names_of_directories_match_those_of_the_library(built: RepositoryBuilder) -> None:
    for name in SPECIAL:
        assert (built.path / "refs" / f"branch.{escape(name)}").is_dir()
        assert unescape(escape(name)) == name


@pytest.mark.parametrize("directory", ["release#1", "%zz", "%FF", "a%c3%a9", "~a", "é"])
def test_name_that_the_library_did_not_write_is_the_name_itself(directory: str) -> None:
    """On S3 names are not encoded, and a repository can be copied from there."""
    assert unescape(directory) == directory


def test_branch_with_an_escaped_name_is_deleted_and_restored(tmp_path: Path) -> None:
    builder = RepositoryBuilder.create(tmp_path / "repo", START)
    old = builder.commit("main", START + timedelta(days=1), numbers("values", range(2)))
    builder.branch("work#1", old)
    for day in range(2, 5):
        builder.commit("main", START + timedelta(days=day), set_value("values", 0, day))
    lake = lake_at(tmp_path / "repo", {"default": "27d", "refs": [{"match": "main", "keep": 1}]}, delete_expired_branches=True)
    actions = plan_actions(lake, LATER)
    assert [outcome.verdict for outcome in expire(lake, LATER, actions)] == ["done"] * len(actions)
    assert "work#1" in {action.ref_name for action in actions}
    assert set(builder.reopen().list_branches()) == {"main"}
    undo(lake, actions)
    assert builder.reopen().lookup_branch("work#1") == old


def test_two_directories_of_one_name_both_protect_and_are_never_deleted(tmp_path: Path) -> None:
    """`branch.a#1` was copied from S3, `branch.a%231` was created on the disk."""
    builder = RepositoryBuilder.create(tmp_path / "repo", START)
    old = builder.commit("main", START + timedelta(days=1), numbers("values", range(2)))
    builder.branch("a#1", old)
    (tmp_path / "repo/refs/branch.a%231").rename(tmp_path / "repo/refs/branch.a#1")
    new = builder.commit("main", START + timedelta(days=2), set_value("values", 0, 5))
    builder.branch("a#1", new)
    lake = lake_at(tmp_path / "repo", {"default": "1d"}, delete_expired_branches=True)
    assert {ref.head_commit_id for ref in lake.freeze(LATER).refs if ref.ref_name == "a#1"} == {old, new}
    retention = retention_of(lake, LATER)
    assert deleted_refs(retention) == set()
    assert old in in_state(retention, "retained")
    assert any("2 branches are named 'a#1'" in note for note in retention.notes)


def test_branch_copied_from_a_bucket_is_never_deleted(tmp_path: Path) -> None:
    builder = RepositoryBuilder.create(tmp_path / "repo", START)
    old = builder.commit("main", START + timedelta(days=1), numbers("values", range(2)))
    builder.branch("a#1", old)
    (tmp_path / "repo/refs/branch.a%231").rename(tmp_path / "repo/refs/branch.a#1")
    builder.commit("main", START + timedelta(days=29), set_value("values", 0, 5))
    lake = lake_at(tmp_path / "repo", {"default": "7d"}, delete_expired_branches=True)
    assert deleted_refs(retention_of(lake, LATER)) == set()
    assert {ref.ref_name for ref in lake.freeze(LATER).refs} == {"main", "a#1"}


def test_names_in_a_bucket_are_not_encoded() -> None:
    assert ref_address("s3://lake/repo", "branch", "release#1") == "s3://lake/repo/refs/branch.release#1/ref.json"
    assert ref_address("file:///lake/repo", "branch", "release#1") == "file:///lake/repo/refs/branch.release%231/ref.json"
