"""Random histories written by icechunk 2.x, compared with what the library reports about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gc_assets.lakes.icechunk.repo_info import RepoInfo, parse_repo
from gc_assets.lakes.icechunk.repo_updates import Update, UpdateKind
from gc_assets.lakes.icechunk.repo_writer import write_repo
from tests.depth import example_count
from tests.lakes.icechunk.v2.builder import microseconds
from tests.lakes.icechunk.v2.histories import History, write_data_files
from tests.lakes.icechunk.v2.library import Library
from tests.stores.builders import memory_directory

GROUPS, HISTORIES_A_GROUP = example_count(10, 100), 20
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
        return parse_repo("repo", (self.path / "repo").read_bytes())


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


def time_of(text: str) -> int:
    """Return the microseconds of a time in a report of the library."""
    return microseconds(datetime.fromisoformat(text).astimezone(UTC))


def test_library_reads_the_values_that_were_written(written: list[Case]):
    for item in written:
        for snapshot, values in item.history.call("contents").items():
            assert values == item.history.values[snapshot], item.history.seed


def test_refs_and_snapshots_equal_those_of_the_library(written: list[Case]):
    for item in written:
        info, reported = item.info, item.report["repo"]
        assert dict(info.branches) == reported["branches"], item.history.seed
        assert dict(info.tags) == reported["tags"], item.history.seed
        assert list(info.deleted_tags) == reported["deleted_tags"], item.history.seed
        entries = [(entry.snapshot_id, entry.parent_id, entry.flushed_us, entry.message) for entry in info.snapshots.values()]
        assert entries == [
            (entry["id"], entry.get("parent_id"), time_of(entry["flushed_at"]), entry["message"]) for entry in reported["snapshots"]
        ], item.history.seed


def test_operations_log_equals_that_of_the_library(written: list[Case]):
    """Its older part is in the objects of `overwritten/` that `repo_before_updates` names."""
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


def test_rewritten_repo_means_the_same_to_the_library(written: list[Case]):
    for item in written:
        repo = item.path / "repo"
        raw = repo.read_bytes()
        repo.write_bytes(write_repo("repo", raw, item.info))
        assert item.history.call("report") == item.report, item.history.seed
        repo.write_bytes(raw)


def test_random_histories_cover_all_operations(written: list[Case]):
    counts = sum((item.history.counts for item in written), Counter[str]())
    garbage = sum((Counter(item.report["garbage"]) for item in written), Counter[str]())
    assert counts["upgrade"] >= 1
    assert counts.keys() >= {"commit", "amend", "flush", "rewrite_manifests", "reset_branch", "delete_tag", "expire", "collect"}
    assert all(garbage[kind] > HISTORIES_A_GROUP / 4 for kind in ("snapshots", "manifests", "chunks", "transaction_logs"))
