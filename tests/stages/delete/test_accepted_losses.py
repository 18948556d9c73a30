"""An override of `live_listed` accepts the files that the sweep of its plan did not find, and no others."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.gates import live_listed
from gc_assets.core.hashing import xxhash64
from gc_assets.core.plan import PlanHeader, Unreadable
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.delete.missing_files import digest_missing, find_unlisted
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.records.accepted_runs import find_baseline_tables
from gc_assets.stages.records.plans import approve, reject
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import DELETION_PLAN, ORPHAN_FILES
from gc_assets.state.side_tables import MISSING_LIVE, MISSING_LIVE_SIDE
from tests.assets.platforms import NOW, platform, stored_plan
from tests.records import EMPTY_SWEEP, STORAGE, publish_table

LOST = [f"data/{number:02}.parquet" for number in range(30)]
OTHER = "data/99.parquet"


class Losses:
    """Sweeps and plans of the storage of one lake."""

    def __init__(self, root: Path) -> None:
        self.at = platform(root)

    @property
    def context(self) -> RunContext:
        return self.at.run_context(NOW.date())

    def sweep(self, *keys: str, lake: str = "sales") -> PublishedTable:
        """Publish a sweep that does not find these keys."""
        rows = pa.table({"lake": [lake] * len(keys), "key_hash": xxhash64(pa.array(keys, pa.string()))}, MISSING_LIVE)
        lost = Unreadable(lake=lake, why=f"{len(keys)} live files are missing", since=NOW)
        summary: dict[str, Any] = {
            "unlisted_lakes": [lost.model_dump(mode="json")],
            "live_unlisted": sorted(keys)[:20],
            "live_unlisted_count": len(keys),
        }
        return publish_table(self.context, STORAGE, ORPHAN_FILES, side={MISSING_LIVE_SIDE: rows}, **EMPTY_SWEEP | summary)

    def plan(self, sweep: PublishedTable) -> PlanHeader:
        count = sweep.receipt.summary["live_unlisted_count"]
        digest = digest_missing(self.context.state, sweep)
        gates = (live_listed(40, count, sweep.receipt.summary["live_unlisted"]),)
        return header_of(stored_plan(self.at, inputs=[sweep], gates=gates, missing_digest=digest))

    def accept(self, *keys: str) -> None:
        approve(self.at.config, self.at.clock, self.plan(self.sweep(*keys)).plan_id, "ada", ("live_listed",))

    def is_accepted(self, sweep: PublishedTable) -> bool:
        return not find_unlisted(self.context, sweep)


@pytest.fixture
def losses(tmp_path: Path) -> Losses:
    return Losses(tmp_path)


def test_accepted_loss_stays_accepted(losses: Losses) -> None:
    losses.accept(*LOST)
    assert losses.is_accepted(losses.sweep(*LOST))


def test_loss_without_files_that_expired_is_accepted(losses: Losses) -> None:
    losses.accept(*LOST)
    assert losses.is_accepted(losses.sweep(*LOST[1:25]))


@pytest.mark.parametrize("kept", [30, 29, 25, 1, 0])
def test_further_lost_file_is_not_accepted(losses: Losses, kept: int) -> None:
    """If more than 20 files were lost, as many or fewer files with others among them counted as the same loss."""
    losses.accept(*LOST)
    assert not losses.is_accepted(losses.sweep(*LOST[:kept], OTHER))


def test_loss_of_the_same_file_in_another_lake_is_not_accepted(losses: Losses) -> None:
    losses.accept(*LOST)
    assert not losses.is_accepted(losses.sweep(*LOST, lake="weather"))


def test_rejected_plan_accepts_nothing(losses: Losses) -> None:
    header = losses.plan(losses.sweep(*LOST))
    approve(losses.at.config, losses.at.clock, header.plan_id, "ada", ("live_listed",))
    reject(losses.at.config, losses.at.clock, header.plan_id, "ada")
    assert not losses.is_accepted(losses.sweep(*LOST))


def test_file_that_was_restored_and_lost_again_is_not_accepted(losses: Losses) -> None:
    losses.accept(*LOST)
    losses.accept(OTHER)
    assert losses.is_accepted(losses.sweep(OTHER))
    assert not losses.is_accepted(losses.sweep(LOST[0], OTHER))


def test_plan_id_depends_on_each_missing_file(losses: Losses) -> None:
    """The gate shows the number and the first 20 keys, which can be the same for other files."""
    one, other = (losses.plan(losses.sweep(*LOST[:29], key)) for key in (LOST[29], OTHER))
    assert one.gates == other.gates
    assert one.plan_id != other.plan_id
    assert losses.plan(losses.sweep(*reversed(LOST))).plan_id == one.plan_id


def test_prune_keeps_the_accepted_files(losses: Losses) -> None:
    losses.accept(*LOST)
    losses.plan(losses.sweep(*LOST[1:]))
    replaced = losses.sweep(*LOST)
    losses.sweep(*LOST)
    later = Clock(NOW + timedelta(days=400))
    removed = losses.context.state.prune(1, later, (DELETION_PLAN.name,), find_baseline_tables(losses.at.config))
    assert removed == [replaced.path]
    assert losses.is_accepted(losses.sweep(*LOST[1:]))


def test_loss_is_not_accepted_if_its_files_are_unknown(losses: Losses) -> None:
    """Sweeps of earlier releases have no side table, and neither have those that miss too many files."""
    known = losses.sweep(*LOST)
    unknown = replace(known, receipt=known.receipt.model_copy(update={"side": {}}))
    losses.accept(*LOST)
    assert losses.is_accepted(known)
    assert not losses.is_accepted(unknown)
