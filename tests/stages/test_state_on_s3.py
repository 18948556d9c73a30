"""A state on S3 has the same rows as one on a disk, and all operations on plans work on it."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from gc_assets.core.clock import Clock
from gc_assets.core.errors import StateError
from gc_assets.engine.state_scan import TASK_BYTES, ScanTask, decode_parquet, group_by_size, scan
from gc_assets.engine.tables import publish, read_paths, read_rows, read_table, spark_schema, write_rows
from gc_assets.lakes.kinds import all_tables
from gc_assets.stages.read.doctor import FAIL, doctor
from gc_assets.stages.records.plans import list_plans
from gc_assets.state.files import Files
from gc_assets.state.journal import State
from gc_assets.state.schemas import LIVE_FILES
from tests.archives import unpack
from tests.depth import full_suite_only
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import STORAGE, Lakehouse, counts, days_ago
from tests.state.publisher import DAY, NOW
from tests.state.s3_location import SECRET, unused_location

CLOCK = Clock(NOW)
# Columns that differ between runs: ids, times, and the inode in an etag.
VOLATILE_COLUMNS = {"run_id", "plan_id", "source_plan_id", "etag", "listed_etag", "at", "last_modified"}


UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def build_lake(house: Lakehouse) -> LakeBuilder:
    lake = LakeBuilder(house.root)
    orders = lake.table("db.orders", days_ago(60))
    orders.append(days_ago(50))
    orders.overwrite(days_ago(20))
    orders.append(days_ago(2))
    orders.leftovers(days_ago(10))
    house.lakes = [lake.config("sales")]
    return lake


@dataclass
class StepRecorder:
    """Records the result of each step, without values that differ between runs."""

    house: Lakehouse
    known: set[str] = field(default_factory=set)
    steps: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known = {name for key in self.house.files() for name in UUID.findall(key)}

    def step(self, name: str, *results: Any) -> None:
        self.steps[name] = (*map(str, results), sorted(map(self.plain, self.house.files())), self.tables())

    def plain(self, text: str) -> str:
        """Replace the random part of a file name that an expiry wrote."""
        return UUID.sub(lambda found: found[0] if found[0] in self.known else "new", text)

    def tables(self) -> dict[str, list[str]]:
        """Return the rows of every table of the run, as sorted text."""
        state, found = self.house.run_context().state, dict[str, list[str]]()
        for name, table in all_tables().items():
            for group in (STORAGE, "sales"):
                publish_parts = state.current(group, name, self.house.clock.today())
                if publish_parts is not None:
                    rows = read_rows(state, table, publish_parts).to_pylist(maps_as_pydicts="strict")
                    kept = [repr({key: row[key] for key in row if key not in VOLATILE_COLUMNS}) for row in rows]
                    found[f"{group}/{name}"] = sorted(map(self.plain, kept))
        return found


def run_protocol(house: Lakehouse) -> dict[str, Any]:
    """Create, approve and apply a plan, and restore its files."""
    recorder = StepRecorder(house)
    header = house.plan()
    recorder.step("planned", header.totals, header.expiry_actions, house.planned_actions().values())
    recorder.step("applied", counts(house.approve_and_apply(header).by_outcome), house.trash(header))
    recorder.step("restored", house.restore(header.plan_id)[1])
    return recorder.steps


@full_suite_only
@pytest.mark.spark
def test_run_with_state_on_s3_writes_the_same_rows_as_local(spark: SparkSession, tmp_path: Path) -> None:
    house = Lakehouse(spark, tmp_path / "lake")
    build_lake(house)
    shutil.copytree(tmp_path / "lake", tmp_path / "kept")
    on_disk = run_protocol(house)
    shutil.rmtree(tmp_path / "lake")
    shutil.copytree(tmp_path / "kept", tmp_path / "lake")
    with unused_location() as (root, settings):
        second = Lakehouse(spark, tmp_path / "lake", lakes=house.lakes, state=root, s3=settings)
        on_s3 = run_protocol(second)
        for step, result in on_disk.items():
            assert on_s3[step] == result, step
        assert not (tmp_path / "lake" / "state").exists()
        assert [finding for finding in doctor(second.run_context()) if finding.verdict == FAIL] == []
        assert [plan.status_at(second.now) for plan in list_plans(second.config)] == ["restored"]
        state = second.run_context().state
        holding = [item.name for item in state.files.list("", recursive=True) if SECRET.encode() in state.files.read(item.name)]
        assert holding == []


@pytest.fixture
def state() -> Iterator[State]:
    with unused_location() as (root, settings):
        yield State(Files(root, settings))


def live(*keys: str) -> pa.Table:
    return pa.Table.from_pylist(
        [{"key": key, "storage": STORAGE, "lake": "sales", "size_bytes": len(key)} for key in keys], LIVE_FILES.schema
    )


def publish_parts(state: State, *parts: pa.Table) -> Any:
    run = state.start("sales", LIVE_FILES.name, DAY, CLOCK)
    written = [write_rows(rows, LIVE_FILES, run, state.files) for rows in parts]
    joined = type(written[0])(tuple(part for one in written for part in one.parts), sum(one.digest for one in written) % 2**64)
    return publish(state, run, joined, CLOCK)


def estimate(frame: DataFrame) -> int:
    """Return Spark's estimate of the size of a frame in bytes."""
    return int(str(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))


@pytest.mark.spark
def test_spark_reads_every_row_once(spark: SparkSession, state: State, tmp_path: Path) -> None:
    parts = [live("a", "b"), live(*(f"c{number}" for number in range(200))), live("d")]
    table = publish_parts(state, *parts)
    frame = read_table(spark, state, LIVE_FILES, table)
    on_disk = State.at(str(tmp_path))
    local = read_table(spark, on_disk, LIVE_FILES, publish_parts(on_disk, *parts))
    assert [(f.name, f.dataType) for f in frame.schema] == [(f.name, f.dataType) for f in local.schema]
    assert sorted(frame.collect(), key=str) == sorted(local.collect(), key=str)
    assert read_paths(spark, state.files, LIVE_FILES.schema, []).collect() == []
    assert sorted(row["key"] for row in read_table(spark, state, LIVE_FILES, table, columns=["key"]).collect())[:2] == ["a", "b"]
    unsized = read_paths(spark, state.files, LIVE_FILES.schema, table.paths())
    assert unsized.select("key").distinct().count() == unsized.count() == 203


@pytest.mark.spark
def test_spark_gets_the_size_of_a_table(spark: SparkSession, state: State) -> None:
    """Without a size, Spark would broadcast a table of any size in joins."""
    if not hasattr(spark, "_jsparkSession"):
        return  # a Spark Connect client has no estimates
    paths, ddl = [f"{number}.parquet" for number in range(7)], spark_schema(LIVE_FILES.schema)
    for size in (10**4, 10**6, 10**8):
        frame = scan(spark, state.files, LIVE_FILES.schema, ddl, paths, [size] * 7)
        assert 0.5 < estimate(frame) / (7 * size) < 2
    huge = scan(spark, state.files, LIVE_FILES.schema, ddl, paths, [10**12] * 7)
    assert estimate(huge) > 8 * 2**30


@pytest.mark.spark
def test_missing_part_raises_with_its_name(spark: SparkSession, state: State) -> None:
    table = publish_parts(state, live("a"))
    state.files.delete(table.paths()[0])
    with pytest.raises(Exception, match=r"StateError: .*part-.*parquet is missing, so the table is incomplete"):
        read_table(spark, state, LIVE_FILES, table).collect()


def test_each_scan_task_reads_one_group_of_files(tmp_path: Path) -> None:
    state = State.at(str(tmp_path))
    paths = [path for keys in ("ab", "c", "def") for path in publish_parts(state, live(*keys)).paths()]
    fetch = ScanTask(state.files, ((paths[0],), (paths[1], paths[2])), (0, 4), LIVE_FILES.schema)
    numbers = [pa.record_batch({"id": pa.array(part, pa.int64())}) for part in ([3, 4, 5], [0, 1, 2], [6, 7])]
    keys = [key for batch in fetch(iter(numbers)) for key in batch.column(batch.schema.get_field_index("key")).to_pylist()]
    assert keys == ["c", "d", "e", "f", "a", "b"]


def test_damaged_part_raises_with_its_name(tmp_path: Path) -> None:
    state = State.at(str(tmp_path))
    state.files.replace("part", b"no parquet")
    with pytest.raises(StateError, match=r"part is damaged \(.*\); run `gc-assets doctor --repair`"):
        list(ScanTask(state.files, (("part",),), (0,), LIVE_FILES.schema)(iter([pa.record_batch({"id": pa.array([0], pa.int64())})])))


def test_files_are_divided_by_size() -> None:
    sizes = {"large": 3 * TASK_BYTES, **{f"small {number}": 1000 for number in range(20)}}
    groups = group_by_size(list(sizes), list(sizes.values()))
    assert sorted(path for group in groups for path in group) == sorted(sizes)
    assert ("large",) in groups
    assert group_by_size(["a"], [0]) == (("a",),)
    assert len(group_by_size([str(number) for number in range(10)], [10] * 10)) == 1


def test_parts_of_an_older_release_get_new_columns(tmp_path: Path) -> None:
    unpack(Path(__file__).parents[1] / "data" / "state-0.2.0" / "state.tar.xz", tmp_path)
    tables, read = all_tables(), Counter[str]()
    for path in tmp_path.rglob("state/*/*/run_date=*/*/*.parquet"):
        name = path.parts[-4]
        rows = sum(
            batch.num_rows for batch in decode_parquet(path.read_bytes(), tables[name].schema) if batch.schema.equals(tables[name].schema)
        )
        assert rows == pq.read_metadata(path).num_rows
        read[name] += 1
    assert len(read) > 10
