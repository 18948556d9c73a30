"""The content roots of lost commits, selected from those of a recorded repository."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gc_assets.lakes.protocol import Commit
from gc_assets.stages.mark.content_roots import REACHED
from gc_assets.stages.mark.lost_commits import select_lost_roots
from gc_assets.state.side_tables import FORMER_ROOTS, ROOTS
from tests.lakes.lakefs.lakefs_lakes import commits_of, open_recording


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Commit], pa.Table]]:
    """The commits of a recorded repository, and everything that a run without rules keeps."""
    with open_recording("basic", tmp_path_factory.mktemp("recorded")) as (_, lake, server):
        server.repositories["basic"].rules = None
        refs = lake.freeze(datetime.now(UTC))
        commits = commits_of(lake, refs)
        rows = [{**asdict(root), "commit_id": commit.commit_id} for commit in commits for root in commit.content_roots]
        rows += [asdict(root) for root in refs.pinned]
        yield commits, pa.Table.from_pylist([{**row, "rank": REACHED} for row in rows], ROOTS)


def test_content_roots_of_each_lost_commit_are_selected(recorded: tuple[list[Commit], pa.Table]) -> None:
    commits, roots = recorded
    lost = sorted(commit.commit_id for commit in commits if commit.content_roots)[::2]
    found = select_lost_roots(roots, {*lost, "another"})
    of_commits = found.filter(pc.is_in(found.column("commit_id"), pa.array(lost)))
    assert found.schema == FORMER_ROOTS
    assert of_commits.column("metadata").to_pylist() == of_commits.column("commit_id").to_pylist()
    expected = {(commit.commit_id, root.address) for commit in commits if commit.commit_id in lost for root in commit.content_roots}
    assert set(zip(*(of_commits.column(name).to_pylist() for name in ("commit_id", "address")), strict=True)) == expected
    assert pc.all(found.column("is_live")).as_py()


def test_expired_and_staged_objects_are_recorded_with_one_lost_commit(recorded: tuple[list[Commit], pa.Table]) -> None:
    commits, roots = recorded
    lost = sorted(commit.commit_id for commit in commits if commit.content_roots)[3:5]
    found = select_lost_roots(roots, lost)
    others = found.filter(pc.not_equal(found.column("commit_id"), lost[1]).fill_null(True))
    assert set(others.column("metadata").to_pylist()) == {lost[0]}
    assert sorted(found.column("address").to_pylist()) == sorted(roots.column("address").to_pylist())
    assert found.column("commit_id").null_count == roots.column("commit_id").null_count > 0


def test_no_content_root_is_selected_without_lost_retained_commit(recorded: tuple[list[Commit], pa.Table]) -> None:
    """A commit without roots is expired, or the empty first commit."""
    commits, roots = recorded
    empty = [commit.commit_id for commit in commits if not commit.content_roots]
    assert len(empty) == 1
    for lost in ([], empty, ["another"]):
        assert select_lost_roots(roots, lost).equals(FORMER_ROOTS.empty_table())
