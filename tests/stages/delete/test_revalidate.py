"""A row is executed only if its lake claims the key and the identity of the object is old enough."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.core.claims import Claims, Owner, PrefixClaim
from gc_assets.core.foreign import UNKNOWN_DIRECTORY, ForeignRules
from gc_assets.core.globs import glob_regex
from gc_assets.lakes.iceberg.file_names import OWN_NAMES
from gc_assets.stages.delete.foreign_rows import ForeignRows
from gc_assets.stages.delete.revalidate import REFUSED, Revalidation
from gc_assets.stages.sweep.ages import Ages, LakeAge
from gc_assets.stages.sweep.foreign_files import ForeignFinder
from gc_assets.stores.store import open_store

CUTOFF = datetime(2026, 11, 17, tzinfo=UTC)
TICK = timedelta(microseconds=1)
CLAIMS = Claims.of(
    [
        PrefixClaim("db/t/", Owner("sales", None), collect=True),
        PrefixClaim("db/t/kept/", Owner("sales", None), collect=False),
        PrefixClaim("weather/", Owner("weather", None), collect=True),
    ]
)


def read_name_times(_: pa.Array) -> pa.Array:
    return pa.array([CUTOFF], pa.timestamp("us", "UTC"))


REVALIDATIONS = {
    location: Revalidation(CLAIMS, Ages(CUTOFF, {"weather": LakeAge(CUTOFF, read_name_times)}), open_store(location))
    for location in ("file:///data/", "s3://bucket/data/")
}


def identity(location: str, modified: datetime) -> str:
    seconds = int((modified - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    micro = modified.microsecond
    return f"7-{seconds * 10**9 + micro * 1000}-4711" if location.startswith("file") else f"d41d8cd9-2-7-{seconds}"


def refusal(location: str = "file:///data/", **row: Any) -> str | None:
    etag = identity(location, CUTOFF - timedelta(days=1))
    planned = {"key": "db/t/data/a", "action": "quarantine", "etag": etag, "lake": "sales", **row}
    judge = pickle.loads(pickle.dumps(REVALIDATIONS[location]))  # noqa: S301  (made on this line)
    (batch,) = judge(iter([pa.RecordBatch.from_pylist([planned])]))
    return batch.column(REFUSED)[0].as_py()


@pytest.mark.parametrize("location", REVALIDATIONS)
@pytest.mark.parametrize("action", ["quarantine", "purge", "restore"])
def test_old_claimed_file_passes_revalidation(location: str, action: str) -> None:
    assert refusal(location, action=action) is None


@pytest.mark.parametrize("location", REVALIDATIONS)
@pytest.mark.parametrize("action", ["quarantine", "purge"])
def test_young_file_is_refused_even_if_plan_contains_it(location: str, action: str) -> None:
    young = refusal(location, action=action, etag=identity(location, CUTOFF))
    assert young is not None
    assert "too young" in young
    tick = TICK if location.startswith("file") else timedelta(seconds=1)
    assert refusal(location, action=action, etag=identity(location, CUTOFF - tick)) is None


@pytest.mark.parametrize("key", ["README.md", "db/other/data/a", "db/t/kept/a", "lakes.yaml"])
@pytest.mark.parametrize("action", ["quarantine", "purge"])
def test_unclaimed_file_is_refused(key: str, action: str) -> None:
    assert "no lake claims this key" in (refusal(key=key, action=action) or "")


def test_protected_and_foreign_file_is_refused_unless_it_is_restored() -> None:
    """Plans of earlier releases contain such files, and `protect` may be added after a plan was made."""
    rules = ForeignRules(CLAIMS, {"sales": OWN_NAMES}, frozenset({"db/t/"}))
    finder = ForeignFinder(rules, frozenset(), frozenset({"db/t/zarr/"}))
    foreign = ForeignRows(glob_regex(["db/*/raw/**", "db/t/data/b"]), finder, {"db/t/data/x": UNKNOWN_DIRECTORY})
    given = replace(REVALIDATIONS["file:///data/"], foreign=foreign)

    def find_refused(key: str, action: str = "quarantine", reason: str = "unreferenced") -> str | None:
        etag = identity("file", CUTOFF - timedelta(days=1))
        (batch,) = given(
            iter([pa.RecordBatch.from_pylist([{"key": key, "action": action, "etag": etag, "lake": "sales", "reason": reason}])])
        )
        return batch.column(REFUSED)[0].as_py()

    own = "00000-0-7c0f5a52-3b1e-4f3c-9d0e-5b7d3c2a1f00.parquet"
    assert find_refused(f"db/t/data/{own}") is None
    for key in ("db/t/raw/x", "db/t/raw/a/b", "db/t/data/b"):
        assert find_refused(key, reason="expired") == "`protect` in lakes.yaml matches its key"
        assert find_refused(key, "restore") is None
    assert "may belong to others: no commit referenced" in (find_refused("db/t/data/x") or "")
    assert "may belong to others" in (find_refused("db/t/data/x", "purge", "still dead") or "")
    assert find_refused("db/t/data/named", "purge", "still dead") is None
    assert find_refused("db/t/data/x", reason="expired") is None
    assert "dataset of another format" in (find_refused("db/t/zarr/c/0", reason="expired") or "")


@pytest.mark.parametrize("lake", ["weather", None])
def test_file_claimed_by_another_lake_than_planned_is_refused(lake: str | None) -> None:
    assert f"lake sales claims this key, but the plan lists it for lake {lake}" in (refusal(lake=lake) or "")


@pytest.mark.parametrize("etag", [None, "", "x", "7-99-", "7-x-1", "7-\u0661-1", f"7-{10**40}-1"])
def test_file_without_modification_time_in_its_etag_is_refused(etag: str | None) -> None:
    assert "contains no modification time" in (refusal(etag=etag) or "")


def test_creation_time_in_object_name_counts_as_age() -> None:
    assert "too young" in (refusal(key="weather/chunks/a", lake="weather") or "")


def test_each_row_has_its_own_reason() -> None:
    etag = identity("file:///data/", CUTOFF - timedelta(days=1))
    rows = [
        {"key": key, "action": action, "etag": etag, "lake": "sales"}
        for key, action in [("db/t/a", "quarantine"), ("x", "quarantine"), ("x", "restore"), ("x", "purge")]
    ]
    (batch,) = REVALIDATIONS["file:///data/"](iter([pa.RecordBatch.from_pylist(rows)]))
    assert [reason is None for reason in batch.column(REFUSED).to_pylist()] == [True, False, True, False]


def test_empty_batch_stays_empty() -> None:
    nothing = pa.RecordBatch.from_pylist([], pa.schema([(name, pa.string()) for name in ("key", "action", "etag", "lake")]))
    (batch,) = REVALIDATIONS["file:///data/"](iter([nothing]))
    assert batch.num_rows == 0
