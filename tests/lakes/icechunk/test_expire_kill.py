"""Expiry that is killed before any step on the disk or at random times: the repository is valid, and another expiry completes it."""

from __future__ import annotations

import random
import re
import shutil
import signal
import time
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import icechunk
import pytest
import zarr

from gc_assets.lakes.icechunk.lake import IcechunkLake
from tests.depth import example_count, in_turn
from tests.lakes.icechunk.builder import DocumentTree, document_tree
from tests.lakes.icechunk.icechunk_lakes import expire, files_of, lake_at, plan_actions, undo, verdicts, wait_and_expire, wait_and_report
from tests.process_kills import PROCESSES, exit_code, kill_before
from tests.stores.builders import memory_directory

pytestmark = in_turn

START = datetime(2026, 1, 1, tzinfo=UTC)
AS_OF = datetime(2026, 2, 1, tzinfo=UTC)
LEFTOVER = re.compile(r".*/([0-9A-Z]{20}|ref\.json(\.deleted)?)#[0-9]+")
# Mode, two syncs, an exchange and an unlink for each of four edits, and three refs. Fewer steps mean that the count is wrong.
FEWEST_STEPS = 4 * 5 + 3 * 3


STEPS = ("fchmod", "fsync", "rename", "exchange_with", "link", "unlink")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> DocumentTree:
    built = document_tree(tmp_path_factory.mktemp("killed") / "repo", START)
    built.builder.repo.create_branch("old", built.ids[7])
    return built


def lake_over(path: Path, tree: DocumentTree) -> IcechunkLake:
    retention = {"default": {"keep": tree.cutoff.isoformat()}, "tags": "policy"}
    return lake_at(path, retention, delete_expired_tags=True, delete_expired_branches=True)


def without_leftovers(path: Path) -> dict[str, bytes]:
    return {name: content for name, content in files_of(path, ".").items() if not LEFTOVER.fullmatch(name)}


def everything_reads(path: Path) -> None:
    """Read every history and all its values with the library."""
    repo = icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))
    walks = [repo.ancestry(branch=name) for name in repo.list_branches()] + [repo.ancestry(tag=name) for name in repo.list_tags()]
    snapshots = {info.id: info for walk in walks for info in walk}
    assert len(snapshots) > 4
    for info in snapshots.values():
        if info.parent_id is None:
            continue
        number = int(info.message.removeprefix("snapshot "))
        values = zarr.open_group(repo.readonly_session(snapshot_id=info.id).store, mode="r")["values"]
        assert number == 1 or values[number % 8] == number, "each snapshot after the first wrote its number there"


def test_expiry_killed_before_any_step_is_completed_by_next_run(tree: DocumentTree):
    with memory_directory() as base:
        wanted = Path(shutil.copytree(tree.builder.path, base / "wanted"))
        plan = plan_actions(lake_over(wanted, tree), AS_OF)
        assert verdicts(expire(lake_over(wanted, tree), AS_OF, plan)) == {"done"}
        everything_reads(wanted)
        for step in count(1, example_count(3, 1)):
            path = Path(shutil.copytree(tree.builder.path, base / "repo"))
            lake = lake_over(path, tree)
            code = exit_code(kill_before, step, STEPS, expire, lake, AS_OF, plan)
            assert code in {0, -signal.SIGKILL}
            everything_reads(path)
            assert verdicts(expire(lake, AS_OF, plan)) <= {"done", "absent"}
            assert without_leftovers(path) == without_leftovers(wanted), step
            shutil.rmtree(path)
            if code == 0:
                break
        assert step > FEWEST_STEPS


def test_undo_killed_before_any_step_is_completed_by_next_run(tree: DocumentTree):
    with memory_directory() as base:
        expired = Path(shutil.copytree(tree.builder.path, base / "expired"))
        lake = lake_over(expired, tree)
        plan = [action for action in plan_actions(lake, AS_OF) if action.ref_type == "branch"]
        assert verdicts(expire(lake, AS_OF, plan)) == {"done"}
        for step in count(1, example_count(3, 1)):
            path = Path(shutil.copytree(expired, base / "repo"))
            lake = lake_over(path, tree)
            code = exit_code(kill_before, step, STEPS, undo, lake, plan)
            assert code in {0, -signal.SIGKILL}
            everything_reads(path)
            assert verdicts(lake.undo(plan)) <= {"done", "absent"}
            assert without_leftovers(path) == without_leftovers(tree.builder.path), step
            shutil.rmtree(path)
            if code == 0:
                break
        assert step > FEWEST_STEPS // 2


def test_expiry_killed_at_random_moment_is_completed_by_next_run(tree: DocumentTree):
    rnd, span, killed_in_the_middle = random.Random(1), 60.0, 0
    with memory_directory() as base:
        plan = plan_actions(lake_over(tree.builder.path, tree), AS_OF)
        for number in range(example_count(9, 21)):
            path = Path(shutil.copytree(tree.builder.path, base / "repo"))
            lake, start = lake_over(path, tree), PROCESSES.Barrier(2)
            child = PROCESSES.Process(target=wait_and_expire, args=(start, lake, AS_OF, plan))
            child.start()
            start.wait()
            began = time.perf_counter()
            if number == 0:  # without a kill, to measure the duration
                child.join(span)
                span = time.perf_counter() - began
            else:
                time.sleep(rnd.uniform(0, span))
                child.kill()
                child.join(300)
            killed_in_the_middle += child.exitcode == -signal.SIGKILL
            everything_reads(path)
            assert verdicts(expire(lake, AS_OF, plan)) <= {"done", "absent"}
            assert plan_actions(lake, AS_OF) == []
            shutil.rmtree(path)
    assert killed_in_the_middle


def test_concurrent_expiries_make_each_edit_once(tree: DocumentTree):
    with memory_directory() as base:
        wanted = Path(shutil.copytree(tree.builder.path, base / "wanted"))
        plan = plan_actions(lake_over(wanted, tree), AS_OF)
        expire(lake_over(wanted, tree), AS_OF, plan)
        for _ in range(5):
            path = Path(shutil.copytree(tree.builder.path, base / "repo"))
            lake, start, queue = lake_over(path, tree), PROCESSES.Barrier(2), PROCESSES.Queue()
            children = [PROCESSES.Process(target=wait_and_report, args=(start, queue, lake, AS_OF, plan)) for _ in range(2)]
            for child in children:
                child.start()
            found = [queue.get(timeout=60) for _ in children]
            for child in children:
                child.join(300)
            for one, other in zip(*found, strict=True):
                assert sorted([one, other]) == ["absent", "done"]
            assert files_of(path, ".") == files_of(wanted, ".")
            shutil.rmtree(path)
