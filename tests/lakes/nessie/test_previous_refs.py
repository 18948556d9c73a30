"""Keep the contents of deleted or reassigned refs, so that a user can create these refs again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from gc_assets.core.key_resolver import KeyResolver
from gc_assets.lakes.nessie.config import NessieLakeConfig
from gc_assets.lakes.nessie.models import Content
from gc_assets.lakes.nessie.operations import OPERATIONS, put_line
from gc_assets.lakes.nessie.retention import retain
from gc_assets.lakes.protocol import Commit, FrozenRefs, PreviousRef, Ref, RefType, Retention
from gc_assets.stages.mark.commit_rows import build_commit_rows
from gc_assets.stages.mark.previous_refs import build_freeze, find_dropped_or_moved
from tests.lakes.nessie.oracle import NO_GRACE

START = datetime(2026, 1, 1, tzinfo=UTC)
# main: 1 - 2 - 3 - 4; dev, a deleted branch: 2 - 5 - 6. One commit per day, each puts a version of one table.
PARENTS = {"1": None, "2": "1", "3": "2", "4": "3", "5": "2", "6": "5"}
PUTS = {"1": "a1", "2": "b2", "3": "a3", "4": "b4", "5": "c5", "6": "c6"}
STATES = {"2": {"a1", "b2"}, "4": {"a3", "b4"}, "5": {"a1", "b2", "c5"}, "6": {"a1", "b2", "c6"}}


def day(commit: int) -> datetime:
    return START + timedelta(days=commit)


def ref(name: str, head: str, kind: RefType = "branch") -> Ref:
    return Ref(name, kind, head)


def graph() -> pa.Table:
    commits: list[Commit] = []
    for name, parent in PARENTS.items():
        put = Content.model_validate({"type": "ICEBERG_TABLE", "id": PUTS[name][0], "metadataLocation": f"/{PUTS[name]}", "snapshotId": 1})
        operations = {OPERATIONS: put_line(PUTS[name][0], put)}
        commits.append(Commit(name, () if parent is None else (parent,), day(int(name)), (), summary=operations))
    return pa.Table.from_batches([build_commit_rows(commits, KeyResolver([]))])


def run_policy(*previous: PreviousRef, grace: datetime = NO_GRACE, **retention: Any) -> Retention:
    config = NessieLakeConfig.model_validate(
        {"name": "shop", "kind": "nessie", "uri": "http://localhost", "retention": {"default": "1", **retention}}
    )
    refs = FrozenRefs("shop", "nessie", (ref("main", "4"),), (), (), (), previous=previous)
    return retain(refs, graph(), day(10), grace, config)


def live_files(found: Retention) -> set[str]:
    assert found.contents is not None
    return {location.removeprefix("/") for location in found.contents["metadata_location"].to_pylist()}


def reasons(found: Retention) -> dict[str, str]:
    return dict(zip(found.reachable["commit_id"].to_pylist(), found.reachable["reason"].to_pylist(), strict=True))


def test_only_contents_of_existing_refs_are_live_by_default() -> None:
    assert live_files(run_policy()) == STATES["4"]


def test_contents_of_dangling_commits_in_grace_period_are_live() -> None:
    assert live_files(run_policy(grace=day(5))) == STATES["4"] | STATES["5"] | STATES["6"]
    assert live_files(run_policy(grace=day(6))) == STATES["4"] | STATES["6"]
    assert live_files(run_policy(default="5d")) == STATES["4"] | {"a1", "b2", "c5", "c6"} | {"a3"}


def test_contents_of_dangling_commits_have_no_ref_name() -> None:
    contents = run_policy(grace=day(5)).contents
    assert contents is not None
    by_location = dict(zip(contents["metadata_location"].to_pylist(), contents["ref_name"].to_pylist(), strict=True))
    assert by_location == {"/a3": "main", "/b4": "main", "/a1": None, "/b2": None, "/c5": None, "/c6": None}


def test_contents_of_tag_deleted_in_grace_period_are_live() -> None:
    found = run_policy(PreviousRef(ref("v1", "2", "tag"), day(9)))
    assert live_files(found) == STATES["2"] | STATES["4"]
    assert reasons(found)["2"].startswith("kept for the grace period: tag v1 pointed to 2 and was deleted before 2026-01-10")
    assert found.notes == (
        "lake shop: tag v1 pointed to 2 and was deleted before 2026-01-10T00:00:00+00:00; its contents are kept for the grace period",
    )


def test_contents_of_deleted_ref_are_kept_by_cutoff_rule() -> None:
    everything = [{"match": "dev", "cutoff": "none"}]
    assert live_files(run_policy(PreviousRef(ref("dev", "6"), day(9)), refs=everything)) == {"a1", "b2", "c5", "c6"} | STATES["4"]


def test_previous_contents_of_reassigned_branch_are_live() -> None:
    found = run_policy(PreviousRef(ref("dev", "6"), day(9), moved_to="4"))
    assert live_files(found) == STATES["4"] | STATES["6"]
    assert "was moved before" in found.notes[0]


def test_previous_contents_of_branch_that_moved_forward_are_not_live() -> None:
    found = run_policy(PreviousRef(ref("main", "2"), day(9), moved_to="4"))
    assert live_files(found) == STATES["4"]
    assert found.notes == ()


def test_deleted_ref_with_unknown_commits_is_reported() -> None:
    found = run_policy(PreviousRef(ref("dev", "99"), day(9)))
    assert live_files(found) == STATES["4"]
    assert "lake shop: branch dev pointed to 99 and was deleted" in found.notes[0]
    assert "cannot be kept" in found.notes[0]


def find_changes(*heads: dict[str, str]) -> list[PreviousRef]:
    return list(
        find_dropped_or_moved(
            [build_freeze(day(number), [ref(name, head) for name, head in refs.items()]) for number, refs in enumerate(heads)]
        )
    )


def test_ref_change_is_dated_by_first_run_without_old_head() -> None:
    found = find_changes({"main": "1", "dev": "2"}, {"main": "3", "dev": "2"}, {"main": "3"}, {"main": "3"})
    assert found == [PreviousRef(ref("main", "1"), day(1), "3"), PreviousRef(ref("dev", "2"), day(2))]


def test_equal_runs_report_no_changed_ref() -> None:
    same: Sequence[dict[str, str]] = [{"main": "1"}] * 3
    assert find_changes(*same) == []


def test_dangling_commits_can_have_their_own_cutoff() -> None:
    assert live_files(run_policy()) == {"b4", "a3"}
    assert live_files(run_policy(dangling=day(6).isoformat())) == {"b4", "a3", "a1", "b2", "c6"}
    assert live_files(run_policy(default="forever", dangling=day(7).isoformat())) == live_files(run_policy(default="forever")) - {
        "c5",
        "c6",
    }
    assert "retention.dangling" in reasons(run_policy(dangling="1d"))["6"]
