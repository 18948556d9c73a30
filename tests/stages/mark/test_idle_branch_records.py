"""Earlier runs prove that a branch has not changed. Without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.core.clock import Clock
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import publish, write_rows
from gc_assets.lakes.kinds import config_of
from gc_assets.lakes.protocol import FrozenRefs, Ref
from gc_assets.stages.mark.idle_branches import search_idle_branches
from gc_assets.state.journal import RECEIPT
from gc_assets.state.schemas import LAKE_REFS
from gc_assets.state.summaries import LakeRefsSummary
from tests.assets.platforms import NOW

DAY = timedelta(days=1)
RULES = {"delete_idle": [{"match": ".*", "after": "30d"}]}


@dataclass(frozen=True)
class Freezes:
    """Freezes of the lake `weather`."""

    root: Path

    def at(self, now: datetime) -> RunContext:
        document = {
            "state": f"{self.root}/state",
            "storages": [{"name": "warehouse", "location": f"file://{self.root}/warehouse/"}],
            "lakes": [{"name": "weather", "kind": "icechunk", "location": f"file://{self.root}/warehouse/weather/", "retention": RULES}],
        }
        return RunContext.of(config_of(document), Clock(now), now.date())

    def publish(self, days_ago: int, heads: Mapping[tuple[str | None, str], str]) -> Path:
        """Publish `lake_refs`, and return the path of its receipt."""
        context = self.at(NOW - days_ago * DAY)
        run = context.state.start("weather", LAKE_REFS.name, context.run_date, context.clock)
        rows = [
            {"table_uuid": uuid, "ref_name": name, "ref_type": "branch", "head_commit_id": head} for (uuid, name), head in heads.items()
        ]
        written = write_rows(pa.Table.from_pylist(rows, LAKE_REFS.schema), LAKE_REFS, run, context.state.files)
        values: dict[str, Any] = {"kind": "icechunk", "as_of": context.clock.now(), "frozen_at": context.clock.now(), "historical": False}
        values |= {"rehearsal": context.clock.is_rehearsal, "policy_digest": "", "refs_digest": "", "claims": 0, "pinned": 0, "notes": ()}
        published = publish(
            context.state, run, written, context.clock, summary=LakeRefsSummary(**values, min_age_seconds=0), unsafe=context.unsafe
        )
        return self.root / "state" / published.path / RECEIPT

    def unchanged_since(self, heads: Mapping[tuple[str | None, str], str]) -> dict[str, int]:
        """Return the days since which each branch is unchanged."""
        refs = tuple(Ref(name, "branch", head, uuid, uuid) for (uuid, name), head in heads.items())
        found = search_idle_branches(self.at(NOW), "weather", FrozenRefs("weather", "icechunk", refs, (), (), ()), NOW, NOW)
        return {name: (NOW - since).days for (_, name), since in found.unchanged_since.items()}


@pytest.fixture
def freezes(tmp_path: Path) -> Freezes:
    return Freezes(tmp_path)


def test_branch_is_unchanged_since_first_run_with_its_current_head(freezes: Freezes) -> None:
    freezes.publish(50, {(None, "a"): "x", (None, "b"): "y"})
    freezes.publish(40, {(None, "a"): "x", (None, "b"): "x", (None, "c"): "x"})
    freezes.publish(1, {(None, "a"): "x", (None, "b"): "x"})
    assert freezes.unchanged_since({(None, "a"): "x", (None, "b"): "x"}) == {"a": 40, "b": 40}


def test_branch_of_another_table_does_not_count_as_unchanged_branch(freezes: Freezes) -> None:
    freezes.publish(40, {("t", "a"): "x", ("u", "a"): "x"})
    freezes.publish(20, {("u", "a"): "x"})
    freezes.publish(10, {("t", "b"): "x", ("u", "a"): "x"})
    assert freezes.unchanged_since({("t", "a"): "x"}) == {}
    assert freezes.unchanged_since({("u", "a"): "x"}) == {"a": 40}


def test_unchanged_time_starts_after_run_with_unreadable_refs(freezes: Freezes) -> None:
    freezes.publish(40, {(None, "a"): "x"})
    damaged = freezes.publish(20, {(None, "a"): "y"})
    freezes.publish(10, {(None, "a"): "x"})
    damaged.write_bytes(b"{}")
    assert freezes.unchanged_since({(None, "a"): "x"}) == {"a": 10}
