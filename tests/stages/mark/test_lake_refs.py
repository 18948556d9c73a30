"""The refs of the first run are kept for later runs of the date, unless a table could not be read."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest

from gc_assets.config.models import Config, StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.protocol import FrozenRefs
from gc_assets.stages.mark.lake_refs import lake_refs, read_frozen_refs
from gc_assets.state.summaries import LakeRefsSummary
from tests.lakes.iceberg.builder import LakeBuilder
from tests.records import run_context_at
from tests.stages.lakehouse import NOW, days_ago

RECORDED = Path(__file__).parents[2] / "data" / "icechunk" / "virtual-chunk-containers" / "reader"


class Freezes:
    """A lake with table `db.t`, frozen every minute."""

    def __init__(self, root: Path) -> None:
        self.builder = LakeBuilder(root)
        self.table = self.builder.table("db.t", days_ago(40))
        storage = StorageConfig.model_validate({"name": "w", "location": f"file://{root}/warehouse/", "rehearsals": "allowed"})
        self._config = Config(state=str(root / "state"), storages=(storage,), lakes=(self.builder.config("sales"),))
        self._now = NOW

    def freeze(self, after: timedelta = timedelta(minutes=1)) -> FrozenRefs:
        self._now += after
        clock = Clock(self._now)
        context = RunContext.of(self._config, clock, clock.today())
        return read_frozen_refs(context, "sales", lake_refs(context, "sales"))


def test_repeated_freeze_of_date_returns_first_refs(tmp_path: Path) -> None:
    lake = Freezes(tmp_path)
    first = lake.freeze()
    lake.table.append(days_ago(1))
    assert lake.freeze() == first


def test_refs_frozen_with_clock_days_ahead_are_not_reused_on_that_date(tmp_path: Path) -> None:
    lake = Freezes(tmp_path)
    ahead = lake.freeze(timedelta(days=10))
    lake.freeze(timedelta(days=-9))
    lake.table.append(days_ago(1))
    current = lake.freeze(timedelta(days=9))
    assert current.refs != ahead.refs
    assert lake.freeze() == current, "the new freeze of the date is kept"


def test_repaired_table_is_read_by_next_run_of_date(tmp_path: Path) -> None:
    lake = Freezes(tmp_path)
    path = lake.table.path(lake.table.metadata_location)
    backup = path.rename(path.with_suffix(".backup"))
    assert [item.table_name for item in lake.freeze().unreadable] == ["db.t"]
    backup.rename(path)
    refs = lake.freeze()
    assert not refs.unreadable
    assert {ref.table_name for ref in refs.refs} == {"db.t"}


def test_unreadable_table_that_was_dropped_is_left_out_by_next_run(tmp_path: Path) -> None:
    lake = Freezes(tmp_path)
    lake.builder.table("db.other", days_ago(40))
    lake.table.path(lake.table.metadata_location).unlink()
    assert [item.table_name for item in lake.freeze().unreadable] == ["db.t"]
    lake.builder.catalog.drop_table("db.t")
    assert not lake.freeze().unreadable


def test_unexpected_error_in_named_prefixes_makes_a_new_freeze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lake is unreadable then, and the run continues with the other lakes."""
    shutil.copytree(RECORDED, tmp_path / "warehouse" / "weather")
    context = run_context_at(tmp_path)
    assert lake_refs(context, "weather").summary(LakeRefsSummary).unread == ()

    monkeypatch.setattr("gc_assets.lakes.icechunk.repository_v1.read_chunk_containers", Mock(side_effect=KeyError("foo")))
    (unread,) = lake_refs(context, "weather").summary(LakeRefsSummary).unread
    assert unread.why == "lake weather: its current state cannot be read: KeyError: 'foo'"
