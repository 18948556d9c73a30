"""Random histories written by icechunk 2.x, compared with what the library reports about them."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.icechunk.repo_info import RepoInfo, parse_repo
from gc_assets.lakes.icechunk.repo_updates import Update, UpdateKind
from gc_assets.lakes.icechunk.repo_writer import write_repo
from gc_assets.lakes.protocol import DELETE_REF
from tests.depth import example_count, in_turn
from tests.lakes.icechunk.icechunk_lakes import expire, lake_at, plan_actions
from tests.lakes.icechunk.v2.builder import microseconds, numbers
from tests.lakes.icechunk.v2.expiries import (
    AS_OF,
    DANGLING,
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
from tests.lakes.icechunk.v2.marking import mark
from tests.stores.builders import memory_directory

pytestmark = in_turn

GROUPS, HISTORIES_A_GROUP = example_count(2, 25), 20
# Each history is edited by one test. In the full suite, all of them edit all histories.
EVERY_HISTORY = example_count(0, 1) == 1
STEPS = 15


@dataclass(frozen=True)
class Case:
    """A history with the report of the library."""

    history: History
    report: dict[str, Any]

    @property
    def path(self) -> Path:
        return self.history.path

    @property
    def info(self) -> RepoInfo:
        return repo_of(self.path)


@pytest.fixture(scope="module", params=range(GROUPS))
def written(request: pytest.FixtureRequest, icechunk2: Library) -> Iterator[list[Case]]:
    with memory_directory() as base:
        write_data_files(base / "data")
        group = []
        for seed in range(request.param * HISTORIES_A_GROUP, (request.param + 1) * HISTORIES_A_GROUP):
            history = History(icechunk2, base / str(seed), base / "data", seed)
            history.play(STEPS)
            group.append(Case(history, history.call("report")))
        yield group


def copies(written: Sequence[Case], remainders: Collection[int]) -> Iterator[Case]:
    """Yield copies of the histories whose seeds have one of the remainders modulo 5."""
    for item in written:
        if EVERY_HISTORY or item.history.seed % 5 in remainders:
            path = Path(shutil.copytree(item.path, item.path.with_name(f"copy-{item.history.seed}")))
            yield Case(item.history.copy(path), item.report)
            shutil.rmtree(path)


def time_of(text: str) -> int:
    """Return the microseconds of a time in a report of the library."""
    return microseconds(datetime.fromisoformat(text).astimezone(UTC))


def test_icechunk_reads_written_values(written: list[Case]):
    for item in written:
        for snapshot, values in item.history.call("contents").items():
            assert values == item.history.values[snapshot], item.history.seed


def test_refs_and_snapshots_match_icechunk(written: list[Case]):
    for item in written:
        info, reported = item.info, item.report["repo"]
        assert dict(info.branches) == reported["branches"], item.history.seed
        assert dict(info.tags) == reported["tags"], item.history.seed
        assert list(info.deleted_tags) == reported["deleted_tags"], item.history.seed
        entries = [(entry.snapshot_id, entry.parent_id, entry.flushed_us, entry.message) for entry in info.snapshots.values()]
        assert entries == [
            (entry["id"], entry.get("parent_id"), time_of(entry["flushed_at"]), entry["message"]) for entry in reported["snapshots"]
        ], item.history.seed


def test_operations_log_matches_icechunk(written: list[Case]):
    """The older part of the log is in the objects of `overwritten/` that `repo_before_updates`
    references.
    """
    for item in written:
        log = [(UpdateKind(update.kind).name.replace("_", ""), update.updated_us) for update in full_log(item)]
        reported = [(kind.upper(), time) for kind, time, _ in item.history.call("ops_log")]
        assert log == reported, item.history.seed
        kept = {name for name in item.info.backups if (item.path / "overwritten" / name).exists()}
        assert kept == set(item.info.backups), item.history.seed


def full_log(item: Case) -> list[Update]:
    info = item.info
    updates = list(info.updates)
    while (before := info.repo_before_updates) is not None:
        info = parse_repo(before, (item.path / "overwritten" / before).read_bytes())
        updates += info.updates
    return updates


def test_icechunk_reads_rewritten_repo_like_original(written: list[Case]):
    for item in written:
        repo = item.path / "repo"
        raw = repo.read_bytes()
        repo.write_bytes(write_repo("repo", raw, item.info))
        assert item.history.call("report") == item.report, item.history.seed
        repo.write_bytes(raw)


def test_garbage_matches_icechunk_gc(written: list[Case], icechunk2: Library):
    """A dry run of the library also counts the logs of removed snapshots as needed, so it collects a copy."""
    for item in written:
        copy = Path(shutil.copytree(item.path, item.path.with_name("collected")))
        icechunk2.run(copy, [("garbage_collect", {}), ("forget", {})])
        garbage = {f"{path.parent.name}/{path.name}" for path in mark(lake_of(item.path), AS_OF).garbage}
        assert names_in(item.path) - garbage == names_in(copy), item.history.seed
        shutil.rmtree(copy)


def test_virtual_chunks_match_icechunk(written: list[Case]):
    """With and without compression of their locations, and with the name of a container."""
    for item in written:
        live = mark(lake_of(item.path), AS_OF).live
        reached = {entry[0] for ancestry in item.report["ancestry"].values() for entry in ancestry}
        locations = {location for snapshot in reached for location in item.report["snapshots"][snapshot]["virtual_locations"]}
        assert live.get(Kind.VIRTUAL_CHUNK, set()) == locations, item.history.seed


def test_apply_and_icechunk_expiry_leave_equal_repositories(written: list[Case], icechunk2: Library, tmp_path: Path):
    for item in copies(written, {0, 1}):
        expiry, seed = Expiry.of(item.history), item.history.seed
        theirs = Path(shutil.copytree(item.path, tmp_path / str(seed)))
        apply(expiry.lake(item.path, "icechunk"))
        expire_by_library(icechunk2, theirs, expiry)
        left, expected = item.info, repo_of(theirs)
        assert (left.branches, left.tags, left.deleted_tags) == (expected.branches, expected.tags, expected.deleted_tags), seed
        assert left.snapshots == expected.snapshots, seed
        assert names_in(item.path) == names_in(theirs), seed
        assert_library_goes_on(item.history)


def test_apply_matches_expiration_document(written: list[Case]):
    for item in copies(written, {2}):
        expiry, before, seed = Expiry.of(item.history), item.info, item.history.seed
        apply(expiry.lake(item.path, "seed"))
        left = item.info
        edited, deleted = expire_by_document(before, expiry)
        assert {*before.branches, *before.tags} - {*left.branches, *left.tags} == deleted, seed
        assert {name: (entry.parent_id, entry.pruned_logs) for name, entry in left.snapshots.items()} == edited, seed
        assert_library_goes_on(item.history)


def expire_by_document(info: RepoInfo, expiry: Expiry) -> tuple[dict[str, tuple[str | None, tuple[str, ...]]], set[str]]:
    """Apply the steps of the document. Return parent and pruned logs of each remaining snapshot, and the names of deleted refs.

    A ref is deleted if its head is expired and no other ref reaches it afterwards.
    """
    parents = {name: entry.parent_id for name, entry in info.snapshots.items()}
    is_old = {name: entry.flushed_at < expiry.cutoff for name, entry in info.snapshots.items()}
    refs = {**info.branches, **info.tags}
    removable = {*(info.tags if expiry.tags else ()), *((info.branches.keys() - {"main"}) if expiry.branches else ())}
    leaving = {name for name in removable if is_old[refs[name]]}
    pruned = {name: entry.pruned_logs for name, entry in info.snapshots.items()}
    for name in sorted(refs.keys() - leaving):
        line = ancestry(parents, refs[name])
        if is_old[line[0]]:
            continue
        editable = [snapshot for snapshot in line if not is_old[snapshot]][-1]
        between = line[line.index(editable) + 1 : -1]
        if between:
            parents[editable] = line[-1]
            pruned[editable] = (*(log for item in reversed(between) for log in (*pruned[item], item)), *pruned[editable])
    kept = {snapshot for name in refs.keys() - leaving for snapshot in ancestry(parents, refs[name])}
    deleted = {name for name in leaving if refs[name] not in kept}
    return {name: (parents[name], pruned[name]) for name in kept}, deleted


def ancestry(parents: Mapping[str, str | None], head: str) -> list[str]:
    line = [head]
    while (parent := parents[line[-1]]) is not None:
        line.append(parent)
    return line


def test_listed_snapshots_stay_readable_at_any_age(written: list[Case]):
    """Young dangling snapshots are kept, and files in the grace period. So an open session can still commit."""
    for item in copies(written, {3}):
        history = item.history
        history.library.run(item.path, [open_with_data(history), ("start_session", {}), ("write", {"writes": [numbers("open", [7])]})])
        rnd = random.Random(-item.history.seed)
        times = sorted(entry.flushed_at for entry in item.info.snapshots.values())
        cutoff, dangling, grace = (rnd.choice(times) for _ in range(3))
        retention = {"default": {"keep": cutoff.isoformat()}, "dangling": dangling.isoformat(), "overwritten": DANGLING}
        lake = lake_at(item.path, retention, semantics=rnd.choice(["seed", "icechunk"]))
        actions = plan_actions(lake, AS_OF, grace)
        assert {outcome.verdict for outcome in lake.expire(actions, AS_OF, grace)} <= {"done"}, item.history.seed
        for file in mark(lake, AS_OF, grace, keep_listed=True).garbage:
            if datetime.fromtimestamp(file.stat().st_mtime, UTC) < grace:
                file.unlink()
        head = history.call("refs")["branches"]["main"]
        history.values[history.call("finish")] = {**history.values[head], "open/c/0": 7}
        assert_all_readable(history)


def test_apply_loses_no_operation_made_after_plan(written: list[Case]):
    """Commits, resets, new refs, and an expiry or collection by the library."""
    verdicts = Counter[str]()
    for item in copies(written, {4}):
        history, seed = item.history, item.history.seed
        lake = Expiry.of(history).lake(item.path, "icechunk" if seed % 2 else "seed")
        actions = plan_actions(lake, AS_OF)
        history.library.run(item.path, [open_with_data(history)])
        history.play_more(4)
        before = item.info
        outcomes = expire(lake, AS_OF, actions)
        verdicts.update(outcome.verdict for outcome in outcomes)
        made = [outcome.action for outcome in outcomes if outcome.verdict == "done"]
        deleted = {action.ref_name for action in made if action.action == DELETE_REF}
        after = item.info
        heads = {name: head for name, head in {**before.branches, **before.tags}.items() if name not in deleted}
        assert {**after.branches, **after.tags} == heads, seed
        assert before.snapshots.keys() - after.snapshots.keys() <= {action.snapshot_id for action in made}, seed
        for file in mark(lake, AS_OF, keep_listed=True).garbage:
            file.unlink()
        assert_all_readable(history)
        apply(lake)
        assert_library_goes_on(history)
    assert verdicts.total() > 0
    assert verdicts.keys() <= {"done", "changed", "absent"}


def test_undo_restores_random_histories(written: list[Case]):
    """A commit since the expiry stays. A deleted tag cannot be created again."""
    restored = 0
    for item in copies(written, {0, 3}):
        history, before, seed = item.history, item.info, item.history.seed
        lake = Expiry.of(history).lake(item.path, "icechunk" if seed % 2 else "seed")
        actions = plan_actions(lake, AS_OF)
        expire(lake, AS_OF, actions)
        head = history.call("refs")["branches"]["main"]
        commit = history.call("commit", writes=[numbers("between", [5])])
        history.values[commit] = {**history.values[head], "between/c/0": 5}
        outcomes = list(lake.undo(actions))
        refused = {(outcome.action.action, outcome.action.ref_type) for outcome in outcomes if outcome.verdict != "done"}
        assert refused <= {(DELETE_REF, "tag")}, seed
        after = item.info
        assert after.snapshots == {**before.snapshots, commit: after.snapshots[commit]}, seed
        assert after.branches == {**before.branches, "main": commit}, seed
        assert_all_readable(history)
        restored += len(outcomes) - len(refused)
    assert restored > 0


def test_random_histories_cover_all_operations(written: list[Case]):
    counts = sum((item.history.counts for item in written), Counter[str]())
    garbage = sum((Counter(item.report["garbage"]) for item in written), Counter[str]())
    assert counts["upgrade"] >= 1
    assert counts.keys() >= {"commit", "amend", "flush", "rewrite_manifests", "reset_branch", "delete_tag", "expire", "collect"}
    assert all(garbage[kind] > HISTORIES_A_GROUP / 4 for kind in ("snapshots", "manifests", "chunks", "transaction_logs"))
