"""A look-up refuses a report that lacks an old object, unless the object was restored."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.core.errors import StoreError
from gc_assets.core.phases import QUARANTINE, RESTORE
from gc_assets.stages.records.ledger import LOG_ENTRIES
from gc_assets.stages.sweep import report_look_up
from gc_assets.stages.sweep.report_look_up import ReportLookUp
from gc_assets.stores.inventories.completeness import MAX_LAG
from gc_assets.stores.protocol import Report, StoredObject

SCAN = datetime(2026, 11, 22, 4, tzinfo=UTC)
OLD, EDGE = SCAN - timedelta(days=9), SCAN - MAX_LAG


@dataclass
class StubStore:
    """A store with these objects, which records the keys of all look-ups."""

    objects: dict[str, datetime]
    location: str = "s3://source/lake/"
    looked_up: list[str] = field(default_factory=list)

    def find_object(self, key: str) -> StoredObject | None:
        self.looked_up.append(key)
        return StoredObject("e", 8, self.objects[key]) if key in self.objects else None


@dataclass
class StubLog:
    """A deletion log with these settled entries."""

    entries: list[dict[str, Any]] = field(default_factory=list)

    def read_keys(self, keys: pa.Array) -> pa.Table:
        return pa.Table.from_pylist([entry for entry in self.entries if entry["key"] in keys.to_pylist()], schema=LOG_ENTRIES)


def look_up(store: StubStore, *keys: str, log: StubLog | None = None) -> list[int | None]:
    report: Any = Report("s3://reports/daily/manifest.json", SCAN)
    stubs: list[Any] = [store, log or StubLog()]
    return ReportLookUp(stubs[0], report, stubs[1]).look_up(keys)


def test_report_that_lacks_an_old_object_is_refused() -> None:
    expected = r"report s3://reports/daily/manifest.json is partial: .*2026-11-22T04:00.* lacks s3://source/lake/t/a, .*since 2026-11-13T04"
    with pytest.raises(StoreError, match=expected):
        look_up(StubStore({"t/a": OLD}), "missing", "t/a")


def test_message_says_what_to_do() -> None:
    with pytest.raises(StoreError, match=r"Remove the prefix filter of .* or remove `inventory` to list .* `gc-assets run --listing`"):
        look_up(StubStore({"a": EDGE - timedelta(seconds=1)}), "a")


@pytest.mark.parametrize("modified", [EDGE, SCAN - timedelta(hours=1), SCAN, SCAN + timedelta(days=30)])
def test_report_may_lack_recent_objects(modified: datetime) -> None:
    """They were written shortly before the scan or after it, or deleted and written again. Perhaps the lake is younger than the report."""
    assert look_up(StubStore({"a": modified}), "a", "missing") == [8, None]


def build_log(phase: str, at: datetime, rehearsal: bool | None = False) -> StubLog:
    return StubLog([{"key": "a", "phase": phase, "outcome": "done", "at": at, "rehearsal": rehearsal}])


@pytest.mark.parametrize(
    "log", [build_log(RESTORE, SCAN), build_log(RESTORE, EDGE), build_log(RESTORE, EDGE - timedelta(days=9), rehearsal=True)]
)
def test_report_may_lack_a_version_that_was_restored_after_the_scan(log: StubLog) -> None:
    """A version that becomes visible again keeps its modification time."""
    assert look_up(StubStore({"a": OLD}), "a", log=log) == [8]
    with pytest.raises(StoreError, match="lacks s3://source/lake/b"):
        look_up(StubStore({"a": OLD, "b": OLD}), "a", "b", log=log)


@pytest.mark.parametrize("log", [build_log(RESTORE, EDGE - timedelta(seconds=1)), build_log(QUARANTINE, SCAN)])
def test_other_entries_of_the_log_do_not_excuse_an_object(log: StubLog) -> None:
    with pytest.raises(StoreError, match="is partial"):
        look_up(StubStore({"a": OLD}), "a", log=log)


def test_few_objects_are_looked_up_in_a_partial_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_look_up, "_GROUP_KEYS", 10)
    store = StubStore({f"{number:03}": OLD for number in range(15, 200)})
    with pytest.raises(StoreError, match=r"lacks s3://source/lake/015, "):
        look_up(store, *(f"{number:03}" for number in range(200)))
    assert len(store.looked_up) == 20
