"""Random histories of spec version 1 that are collected, and upgraded by icechunk 2.x at any point."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gc_assets.lakes.protocol import DELETE_REF
from tests.depth import example_count, in_turn
from tests.lakes.icechunk.icechunk_lakes import expire, plan_actions
from tests.lakes.icechunk.v2.expiries import (
    AS_OF,
    Expiry,
    apply,
    assert_all_readable,
    assert_library_goes_on,
    expire_by_library,
    lake_of,
    names_in,
    open_with_data,
    repo_of,
)
from tests.lakes.icechunk.v2.histories import History, write_data_files
from tests.lakes.icechunk.v2.library import Library
from tests.lakes.icechunk.v2.marking import FOLDERS, mark
from tests.stores.builders import memory_directory

pytestmark = in_turn

GROUPS, HISTORIES_A_GROUP = example_count(1, 20), 15
STEPS = 10


@pytest.fixture(scope="module", params=range(GROUPS))
def histories(request: pytest.FixtureRequest, icechunk2: Library) -> Iterator[list[History]]:
    with memory_directory() as base:
        write_data_files(base / "data")
        group = []
        for seed in range(request.param * HISTORIES_A_GROUP, (request.param + 1) * HISTORIES_A_GROUP):
            group.append(History(icechunk2, base / str(seed), base / "data", seed, version_1=True))
            group[-1].play(STEPS)
        yield group


@pytest.fixture
def copies(histories: list[History], tmp_path: Path) -> list[History]:
    copied = [history.copy(Path(shutil.copytree(history.path, tmp_path / str(history.seed)))) for history in histories]
    for history in copied:
        history.library.run(history.path, [open_with_data(history)])
    return copied


def paths(found: set[Path], folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in found if path.parent.name in FOLDERS}


def test_upgrade_does_not_change_garbage(copies: list[History]):
    for history in copies:
        before = paths(mark(lake_of(history.path), AS_OF).garbage, history.path)
        history.upgrade()
        assert paths(mark(lake_of(history.path), AS_OF).garbage, history.path) == before, history.seed
        assert plan_actions(lake_of(history.path), AS_OF) == [], history.seed


@pytest.mark.parametrize("semantics", ["seed", "icechunk"])
def test_nothing_expires_if_repository_is_upgraded_after_expiry(copies: list[History], semantics: str):
    """Refs with the tip of another ref are excluded, because only icechunk 2 deletes them."""
    for history in copies:
        expiry = Expiry.of(history)
        apply(expiry.lake(history.path, semantics))
        files = names_in(history.path)
        history.upgrade()
        lake = expiry.lake(history.path, semantics)
        tips = Counter(ref.head_commit_id for ref in lake.freeze(AS_OF).refs)
        left = [item for item in plan_actions(lake, AS_OF) if item.action != DELETE_REF or tips[item.snapshot_id] == 1]
        assert left == [], history.seed
        assert paths(mark(lake, AS_OF).garbage, history.path) == set(), history.seed
        assert files <= names_in(history.path), history.seed
        assert_all_readable(history)
        assert_library_goes_on(history)


def test_plan_made_before_upgrade_changes_nothing(copies: list[History]):
    planned = 0
    for history in copies:
        lake = Expiry.of(history).lake(history.path, "icechunk")
        actions = plan_actions(lake, AS_OF)
        history.upgrade()
        repo = (history.path / "repo").read_bytes()
        assert {outcome.verdict for outcome in expire(lake, AS_OF, actions)} <= {"changed"}, history.seed
        assert (history.path / "repo").read_bytes() == repo, history.seed
        assert_all_readable(history)
        planned += len(actions)
    assert planned > 0


def test_expiry_after_upgrade_matches_icechunk(copies: list[History], icechunk2: Library, tmp_path: Path):
    for history in copies:
        history.upgrade()
        history.play_more(2)
        expiry = Expiry.of(history)
        theirs = Path(shutil.copytree(history.path, tmp_path / f"{history.seed}-theirs"))
        apply(expiry.lake(history.path, "icechunk"))
        expire_by_library(icechunk2, theirs, expiry)
        assert repo_of(history.path).snapshots == repo_of(theirs).snapshots, history.seed
        assert names_in(history.path) == names_in(theirs), history.seed
        assert_all_readable(history)
        assert_library_goes_on(history)
