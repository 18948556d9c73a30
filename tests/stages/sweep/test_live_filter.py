"""The filter over the live keys of a storage, built in this process or on executors."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.config.models import Config, StorageConfig
from gc_assets.core.clock import Clock
from gc_assets.core.errors import StateError
from gc_assets.core.hashing import xxhash64
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.stages.mark import live_hashes
from gc_assets.stages.sweep import live_filter as stage
from gc_assets.stages.sweep.candidate_matches import CandidateMatches
from gc_assets.stages.sweep.live_filter import ProbeFilter, live_filter
from gc_assets.stages.sweep.live_keys import LiveKeys
from gc_assets.state.journal import PublishedTable
from gc_assets.state.parts import PartWriter
from gc_assets.state.schemas import LIVE_FILES, MANIFEST_ENTRIES
from gc_assets.state.side_tables import CANDIDATES, HASHES_SIDE
from tests.depth import example_count
from tests.stages.lakehouse import NOW, STORAGE
from tests.stages.live_sets import publish_live_set

pytestmark = pytest.mark.spark

OTHER = "archive"
LAKES = ("sales", "weather")


def context_of(root: Path, day: int = 0) -> RunContext:
    storages = tuple(StorageConfig(name=name, location=f"file://{root}/{name}/") for name in (STORAGE, OTHER))
    lakes = tuple(
        IcechunkLakeConfig.model_validate({"name": name, "kind": "icechunk", "location": f"file://{root}/{STORAGE}/{name}/"})
        for name in LAKES
    )
    now = NOW + timedelta(days=day)
    return RunContext.of(Config(state=str(root / "state"), storages=storages, lakes=lakes), Clock(now), now.date())


def keys_in_filter(context: RunContext, table: PublishedTable, keys: list[str]) -> list[str]:
    """Return the keys that the filter takes for live."""
    found = ProbeFilter(context.state.files, tuple(table.paths())).contains(xxhash64(pa.array(keys, pa.string())))
    return [key for key, is_in in zip(keys, found.tolist(), strict=True) if is_in]


@pytest.mark.parametrize("slice_keys", [10_000, 300])
def test_executors_and_process_build_equal_live_filters(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_keys: int
) -> None:
    monkeypatch.setattr(stage, "SLICE_KEYS", slice_keys)
    context = context_of(tmp_path)
    mine, executors = [f"a/{number}" for number in range(1000)], [f"b/{number}" for number in range(1000)]
    publish_live_set(context, "sales", {STORAGE: mine[:700], OTHER: executors})
    publish_live_set(context, "weather", {STORAGE: mine[500:]})
    in_process = live_filter(spark, context, STORAGE)
    monkeypatch.setattr(live_hashes, "MAX_LOCAL_HASHES", -1)
    remote = live_filter(spark, context, STORAGE)
    assert (remote.receipt.digest, remote.rows, remote.receipt.balances) == (
        in_process.receipt.digest,
        in_process.rows,
        in_process.receipt.balances,
    )
    assert remote.rows == -(-1200 // slice_keys)
    assert keys_in_filter(context, remote, mine) == mine
    assert keys_in_filter(context, remote, executors) == []


@pytest.mark.parametrize("seed", range(example_count(2, 4)))
def test_live_filter_contains_exactly_live_keys_of_each_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Keys that left the live set must leave the filter, because keys in the filter are never
    candidates.
    """
    chance = Random(seed)
    every = [f"k/{number}" for number in range(400)]
    for day in range(4):
        monkeypatch.setattr(live_hashes, "MAX_LOCAL_HASHES", chance.choice([-1, 100_000]))
        monkeypatch.setattr(stage, "SLICE_KEYS", chance.choice([100, 10_000]))
        context = context_of(tmp_path, day)
        needed: set[str] = set()
        for lake in LAKES:
            keys = chance.sample(every, chance.choice([0, 1, 50, 200]))
            needed |= set(keys)
            publish_live_set(context, lake, {STORAGE: keys, OTHER: chance.sample(every, 20)})
        found = live_filter(spark, context, STORAGE)
        assert set(keys_in_filter(context, found, every)) == needed
        assert (found.rows == 0) == (not needed)


@pytest.mark.parametrize("in_process", [True, False])
@pytest.mark.parametrize("damage", ["gone", "torn"])
def test_missing_or_damaged_part_of_live_keys_stops_sweep(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: bool, damage: str
) -> None:
    context = context_of(tmp_path)
    publish_live_set(context, "sales", {STORAGE: ["a", "b"]})
    publish_live_set(context, "weather", {STORAGE: ["c"]})
    segment = context.state.history("weather", MANIFEST_ENTRIES.name)[0]
    part = tmp_path / "state" / segment.paths(HASHES_SIDE)[0]
    if damage == "gone":
        part.unlink()
    else:
        part.write_bytes(b"\0" * part.stat().st_size)
    if not in_process:
        monkeypatch.setattr(live_hashes, "MAX_LOCAL_HASHES", -1)
    with pytest.raises(StateError, match="part-"):
        live_filter(spark, context, STORAGE)
    assert context.state.history(STORAGE, "live_filter") == ()


@pytest.mark.parametrize("in_process", [True, False])
def test_candidate_matches_live_key_in_any_encoding_but_only_in_its_storage(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: bool
) -> None:
    if not in_process:
        monkeypatch.setattr(live_hashes, "MAX_LOCAL_HASHES", -1)
    context = context_of(tmp_path)
    publish_live_set(context, "sales", {STORAGE: ["a", "x=1%2F2", "y\\1"], OTHER: ["other"]})
    publish_live_set(context, "weather", {STORAGE: []})
    for key, is_hit in (("a", True), ("x=1/2", True), ("y/1", True), ("b", False), ("other", False)):
        writer = PartWriter(context.state.files, f"scratch/{is_hit}-{len(key)}", CANDIDATES)
        writer.write(pa.RecordBatch.from_pylist([{"key": key}], schema=CANDIDATES))
        paths = [f"{writer.directory}/{part.name}" for part in writer.close()]
        keys = LiveKeys.of(spark, context, STORAGE, context.lake_tables(LIVE_FILES))
        assert CandidateMatches.find(keys, context.state.files, paths).may_be_needed == is_hit


def test_wrong_bit_in_stored_hash_stops_sweep(spark: SparkSession, tmp_path: Path) -> None:
    """The number of hashes is still right, and the exact comparison uses the same hashes."""
    context = context_of(tmp_path)
    publish_live_set(context, "sales", {STORAGE: [f"a/{number}" for number in range(1000)]})
    publish_live_set(context, "weather", {})
    (path,) = (tmp_path / "state").rglob(f"{HASHES_SIDE}/*.parquet")
    content = bytearray(path.read_bytes())
    content[content.index(xxhash64(pa.array(["a/7"])).tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(StateError, match=f"{path.name} is damaged .* run `gc-assets doctor --repair`"):
        live_filter(spark, context, STORAGE)
