"""The example of icechunk's `design-docs/007-basic-expiration.md` as a real repository, step by step."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import icechunk
import pytest

from gc_assets.core.forest import build_forest
from gc_assets.core.units import Cutoff
from gc_assets.lakes.icechunk.expiration import History, RefPointer, Rule, expire
from gc_assets.lakes.protocol import Ref
from tests.lakes.icechunk.builder import DocumentTree, document_tree
from tests.lakes.icechunk.icechunk_lakes import commits_of, deleted_refs, edits, in_state, lake_at, retention_of

START = datetime(2026, 1, 1, tzinfo=UTC)
AS_OF = datetime(2026, 2, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> DocumentTree:
    return document_tree(tmp_path_factory.mktemp("document") / "repo", START)


def cutoff_rule(tree: DocumentTree) -> dict:
    return {"default": {"max_age": f"{(AS_OF - tree.cutoff) // timedelta(hours=1)}h"}}


def edits_by_number(tree: DocumentTree, edited: dict[str, str]) -> dict[int, int]:
    number = {snapshot: n for n, snapshot in tree.ids.items()}
    return {number[snapshot]: number[parent] for snapshot, parent in edited.items()}


@pytest.mark.parametrize(
    "refs,edited,histories",
    [
        (["main"], {12: 0}, {"main": [14, 13, 12, 0], "develop": [11, 10, 6, 3, 2, 1, 0]}),
        (["main", "develop"], {12: 0, 10: 0}, {"develop": [11, 10, 0], "test": [9, 7, 6, 3, 2, 1, 0]}),
        (["main", "develop", "test"], {12: 0, 10: 0, 9: 0}, {"test": [9, 0], "qa": [8, 7, 6, 3, 2, 1, 0]}),
        (["main", "develop", "test", "qa"], {12: 0, 10: 0, 9: 0, 8: 0}, {"qa": [8, 0]}),
    ],
)
def test_seed_expiry_matches_each_step_of_document(
    tree: DocumentTree, refs: list[str], edited: dict[int, int], histories: dict[str, list[int]]
):
    lake = lake_at(tree.builder.path)
    frozen = lake.freeze(AS_OF)
    commits = sorted(commits_of(lake, frozen), key=lambda commit: commit.committed_at)
    forest = build_forest([commit.commit_id for commit in commits], [next(iter(commit.parents), None) for commit in commits])
    stamps = [commit.committed_at.timestamp() for commit in commits]
    rule = Rule(Cutoff(at=tree.cutoff), "retention.default", tree.cutoff.timestamp())
    heads = {ref.ref_name: ref.head_commit_id for ref in frozen.refs}
    pointers = [RefPointer(Ref(name, "branch", heads[name]), forest.position[heads[name]], rule) for name in refs]
    outcome = expire(History.of(forest, stamps, []), pointers, [], "seed")
    assert {edit.snapshot: edit.new_parent for edit in outcome.edits} == edited  # positions are the numbers of the document
    parent = {**dict(enumerate(forest.parent)), **edited}
    for name, history in histories.items():
        walk = [forest.position[heads[name]]]
        while parent[walk[-1]] != -1:
            walk.append(parent[walk[-1]])
        assert walk == history


def test_seed_semantics_edit_4_snapshots_and_expire_6_and_7(tree: DocumentTree):
    retention = retention_of(lake_at(tree.builder.path, cutoff_rule(tree), semantics="seed"), AS_OF)
    assert edits_by_number(tree, edits(retention)) == {12: 0, 10: 0, 9: 0, 8: 0}
    assert tree.numbers_of(in_state(retention, "expired")) == {6, 7}
    assert in_state(retention, "dangling") == set()


def test_icechunk_v1_semantics_edit_expired_tips_and_expire_1_2_4_6_7(tree: DocumentTree):
    retention = retention_of(lake_at(tree.builder.path, cutoff_rule(tree), semantics="icechunk-v1"), AS_OF)
    assert edits_by_number(tree, edits(retention)) == {12: 0, 10: 0, 9: 0, 8: 0, 3: 0, 5: 0}
    assert tree.numbers_of(in_state(retention, "expired")) == {1, 2, 4, 6, 7}


@pytest.mark.parametrize("semantics", ["seed", "icechunk-v1"])
def test_deleting_expired_tags_expires_snapshots_1_to_7(tree: DocumentTree, semantics: str):
    policy = {**cutoff_rule(tree), "tags": "policy"}
    retention = retention_of(lake_at(tree.builder.path, policy, semantics=semantics, delete_expired_tags=True), AS_OF)
    assert deleted_refs(retention) == {"tag1", "tag2"}
    assert tree.numbers_of(in_state(retention, "expired")) == {1, 2, 3, 4, 5, 6, 7}
    assert edits_by_number(tree, edits(retention)) == {12: 0, 10: 0, 9: 0, 8: 0}, "a snapshot whose tag goes is never edited"


def test_icechunk_v1_semantics_match_icechunk_on_document_tree(tree: DocumentTree, tmp_path: Path):
    shutil.copytree(tree.builder.path, tmp_path / "sister")
    plan_actions = edits(retention_of(lake_at(tree.builder.path, cutoff_rule(tree), semantics="icechunk-v1"), AS_OF))
    before = {
        commit.commit_id: commit.parents for commit in commits_of(lake_at(tree.builder.path), lake_at(tree.builder.path).freeze(AS_OF))
    }

    icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path / "sister"))).expire_snapshots(tree.cutoff)
    sister = lake_at(tmp_path / "sister")
    after = {commit.commit_id: commit.parents for commit in commits_of(sister, sister.freeze(AS_OF))}
    assert {snapshot: parents[0] for snapshot, parents in after.items() if parents != before[snapshot]} == plan_actions


def test_note_reports_expired_counts_of_both_semantics(tree: DocumentTree):
    notes = " ".join(retention_of(lake_at(tree.builder.path, cutoff_rule(tree)), AS_OF).notes)
    assert "`seed` 2, `icechunk-v1` 5" in notes


def test_expiry_reason_contains_rule_and_refs(tree: DocumentTree):
    rows = {row["commit_id"]: row for row in retention_of(lake_at(tree.builder.path, cutoff_rule(tree)), AS_OF).reachable.to_pylist()}
    six = rows[tree.ids[6]]
    assert six["refs"] == ["develop", "qa", "test"]
    assert six["refs_count"] == 3
    assert "retention.default" in six["reason"]
    assert "branch develop" in six["reason"]
    assert "tag tag1" in rows[tree.ids[3]]["reason"]
    assert "first snapshot" in rows[tree.ids[0]]["reason"]
    assert rows[tree.ids[13]]["keep_until"] == START + timedelta(days=13) + (AS_OF - tree.cutoff)
    assert rows[tree.ids[14]]["keep_until"] is None, "a head is kept as long as it is one"
