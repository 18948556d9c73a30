"""Reasons, witnesses and routes of candidates, by hashes in this process or on executors."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from gc_assets.core.claims import Claims, Owner, PrefixClaim
from gc_assets.core.foreign import UNKNOWN_DIRECTORY, ForeignRules
from gc_assets.core.hashing import xxhash64
from gc_assets.engine.parquet_scan import ParquetScan
from gc_assets.engine.run_context import RunContext
from gc_assets.stages.mark import live_hashes
from gc_assets.stages.mark.content_roots import DEAD, REACHED, RELEASED
from gc_assets.stages.sweep import orphan_reasons
from gc_assets.stages.sweep.foreign_files import ForeignFinder
from gc_assets.stages.sweep.live_keys import LiveKeys
from gc_assets.stages.sweep.orphan_reasons import ReasonSearch
from gc_assets.state.parts import PartWriter, read_parts
from gc_assets.state.schemas import LIVE_FILES, MANIFEST_ENTRIES
from gc_assets.state.side_tables import CANDIDATES, FALSE_NEGATIVES_SIDE, HASHES, HASHES_SIDE, NEAR_MISSES_SIDE
from tests.depth import in_turn
from tests.stages.lakehouse import NOW, STORAGE
from tests.stages.live_sets import publish_live_set
from tests.stages.remote_execution import all_remote
from tests.stages.sweep.test_live_filter import LAKES, OTHER, context_of

pytestmark = [pytest.mark.spark, in_turn]


def write_candidates(context: RunContext, name: str, keys: list[str], parts: int = 1) -> ParquetScan:
    paths = list[str]()
    for number in range(parts):
        writer = PartWriter(context.state.files, f"scratch/{name}-{number}", CANDIDATES)
        rows = [{"key": key, "lake": "sales", "last_modified": NOW, "size_bytes": 1} for key in keys[number::parts]]
        writer.write(pa.RecordBatch.from_pylist(rows, schema=CANDIDATES))
        paths += [f"{writer.directory}/{part.name}" for part in writer.close()]
    return ParquetScan(context.state.files, CANDIDATES, tuple(paths), tuple(map(context.state.files.size, paths)))


def find(
    spark: SparkSession, context: RunContext, scan: ParquetScan, rows: int, finder: ForeignFinder | None = None
) -> list[dict[str, Any]]:
    search = ReasonSearch(spark, context, LiveKeys.of(spark, context, STORAGE, context.lake_tables(LIVE_FILES)), finder, None, ())
    found = search.find(scan, rows)
    table = found.toArrow() if isinstance(found, DataFrame) else found
    return sorted(table.to_pylist(), key=lambda row: row["key"])


@pytest.mark.parametrize("is_remote", [False, True])
def test_orphan_reasons_match_comparison_of_keys(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_remote: bool
) -> None:
    for seed in range(2):
        chance = Random(seed)
        context = context_of(tmp_path / str(seed))
        every = [f"k={number}%2F{number}" for number in range(60)]
        ranks = {lake: chance.choice([REACHED, RELEASED, DEAD]) for lake in LAKES}
        named = {lake: chance.sample(every, chance.randint(0, 40)) for lake in LAKES}
        for lake, keys in named.items():
            publish_live_set(context, lake, {STORAGE: keys, OTHER: chance.sample(every, 20)}, ranks[lake])
        respelled = [key.replace("%2F", "/") for key in chance.sample(every, 5)]
        candidates = sorted({*chance.sample(every, 30), *respelled})
        live = {key for lake in LAKES if ranks[lake] == REACHED for key in named[lake]}
        expired = {key for lake in LAKES if ranks[lake] == RELEASED for key in named[lake]}

        def expect(key: str, live: set[str] = live, expired: set[str] = expired) -> tuple[str, str | None, str]:
            owners = [(ranks[lake], lake) for lake in LAKES if ranks[lake] != REACHED and key in named[lake]]  # noqa: B023
            rank, lake = min(owners, default=(None, None))
            route = FALSE_NEGATIVES_SIDE if key in live else NEAR_MISSES_SIDE if key.replace("/", "%2F") in live | (expired - {key}) else ""
            return "expired" if rank == RELEASED else "unreferenced", f"{lake}-{STORAGE}" if lake else None, route

        with all_remote() if is_remote else nullcontext():
            monkeypatch.setattr(orphan_reasons, "MAX_MATCHED", 10)
            monkeypatch.setattr(live_hashes, "MAX_LOCAL_HASHES", -1 if is_remote else 1_000)
            found = find(spark, context, write_candidates(context, "all", candidates, parts=3), len(candidates))
        assert [row["key"] for row in found] == candidates
        got = {row["key"]: (row["reason"], row["last_container"], row["_route"]) for row in found}
        assert got == {key: expect(key) for key in candidates}, seed


def test_file_that_history_holds_is_not_a_near_miss_of_expired_keys(spark: SparkSession, tmp_path: Path) -> None:
    context = context_of(tmp_path)
    publish_live_set(context, "sales", {STORAGE: ["a b", "a%20b"], OTHER: ["c%20d"]}, RELEASED)
    publish_live_set(context, "weather", {STORAGE: ["e%20f"]}, DEAD)
    keys = ["a b", "a%20b", "a%2520b", "c d", "e f"]
    found = find(spark, context, write_candidates(context, "held", keys), len(keys))
    assert {row["key"]: (row["held_by"], row["_route"]) for row in found} == {
        "a b": ("sales", ""),
        "a%20b": ("sales", ""),
        "a%2520b": (None, NEAR_MISSES_SIDE),
        "c d": (None, ""),
        "e f": (None, ""),
    }


@pytest.mark.parametrize("is_remote", [False, True])
def test_foreign_file_with_hash_of_referenced_key_is_not_planned(spark: SparkSession, tmp_path: Path, is_remote: bool) -> None:
    """A file that a commit referenced is not foreign. An equal hash is not sufficient for that."""
    context = context_of(tmp_path)
    segment = publish_live_set(context, "sales", {STORAGE: ["t/named", "t/other"]}, RELEASED)
    publish_live_set(context, "weather", {})
    (run,) = context.state.history("sales", MANIFEST_ENTRIES.name)
    (path,) = run.paths(HASHES_SIDE)
    hashes = read_parts(context.state.files, [path], HASHES)
    forged = pa.array(xxhash64(pa.array(["t/named", "t/stranger"])))
    hashes = hashes.set_column(HASHES.get_field_index("key_hash"), HASHES.field("key_hash"), forged)
    writer = PartWriter(context.state.files, "forged", HASHES)
    writer.write(hashes.to_batches()[0])
    (part,) = writer.close()
    (tmp_path / "state" / path).write_bytes((tmp_path / "state" / "forged" / part.name).read_bytes())
    assert segment.rows == 0

    claims = Claims.of([PrefixClaim("t/", Owner("sales", "1"), collect=True)])
    rules = ForeignRules(claims, {"sales": "own-.*"}, frozenset({"t/"}))
    keys = ["t/named", "t/stranger"]
    with all_remote() if is_remote else nullcontext():
        found = find(spark, context, write_candidates(context, "two", keys), 2, ForeignFinder(rules, frozenset(), frozenset()))
    assert [(row["key"], row["reason"], row["foreign_rule"]) for row in found] == [
        ("t/named", "expired", None),
        ("t/stranger", "foreign", UNKNOWN_DIRECTORY),
    ]
