"""Random lakes against brute force: what is live and what is garbage in 200 Iceberg tables and 200 Icechunk repositories.

Hypothesis draws the histories, the lakes' own libraries write them, and `oracles` reads them back sharing no code with the project.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import icechunk
import pyarrow as pa
import pytest
import zarr
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from gc_assets.config import IcechunkLakeConfig
from gc_assets.lakes.icechunk.lake import IcechunkLake
from gc_assets.lakes.protocol import Container
from gc_assets.schemas import SOURCES
from gc_assets.stages.commit_graph import _ReadCommits, with_generations
from gc_assets.stores.local import LocalObjects
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.lakes.icechunk.builder import RepositoryBuilder, numbers
from tests.stages import oracles
from tests.stages.lakehouse import Lakehouse
from tests.stages.oracles import DAY_MS, FOLDERS, Verdict, iceberg_tables, iceberg_verdict, icechunk_verdict

TABLES = 200
TREES = 200
# A night costs Spark about a second for each lake, so the other trees go through what its executors run, without it.
TREES_IN_SPARK = 12

# In the past, because icechunk refuses a commit whose parent is younger than the machine's clock.
NOW = datetime(2026, 1, 20, 3, tzinfo=UTC)
AS_OF = datetime(2026, 1, 20, tzinfo=UTC)
GRACE_CUTOFF = NOW - timedelta(hours=72)
TABLES_START = AS_OF - timedelta(days=16)
TREES_START = AS_OF - timedelta(days=14)
# Times are whole steps, so that they fall on the cut-offs of both clocks (00:00 and 03:00) as well as beside them.
STEP = timedelta(hours=3)
PICK = st.integers(0, 5)


def drawn(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """`count` examples, the same ones on every machine."""
    examples: list[Any] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(example: Any) -> None:
        examples.append(example)

    collect()
    assert len(examples) == count
    return examples


def given_only(**settings: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Each setting or none of it."""
    return st.fixed_dictionaries({}, optional=settings)


AGES = st.sampled_from([1, 2, 4, 5, 9, 14]).map(lambda days: days * DAY_MS)
COUNTS = st.integers(1, 3)
REF_SETTINGS = given_only(min_snapshots_to_keep=COUNTS, max_snapshot_age_ms=AGES, max_ref_age_ms=AGES)
TAG_SETTINGS = given_only(max_ref_age_ms=AGES)
TABLE_PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "history.expire.min-snapshots-to-keep": COUNTS.map(str),
        "history.expire.max-snapshot-age-ms": AGES.map(str),
        "history.expire.max-ref-age-ms": AGES.map(str),
        "gc.enabled": st.sampled_from(["true", "true", "true", "false"]),
    },
)
TABLE_STEPS = st.one_of(
    st.tuples(st.just("append"), st.sampled_from(["main", "main", "dev", None])),
    st.tuples(st.just("overwrite")),
    st.tuples(st.just("delete")),
    st.tuples(st.just("merge on read")),
    st.tuples(st.just("branch"), st.sampled_from(["dev", "rel"]), PICK, REF_SETTINGS),
    st.tuples(st.just("tag"), st.sampled_from(["v1", "v2"]), PICK, TAG_SETTINGS),
    st.tuples(st.just("rollback"), PICK),
    st.tuples(st.just("statistics"), PICK),
    st.tuples(st.just("leftovers")),
    st.tuples(st.just("forget"), PICK),
)
TABLE_GAPS = st.sampled_from([0, 4, 8, 8, 16, 24, 40])
TABLE_HISTORIES = st.tuples(TABLE_PROPERTIES, st.booleans(), st.lists(st.tuples(TABLE_GAPS, TABLE_STEPS), min_size=2, max_size=5))


def build_table(root: Path, warehouse: Path, number: int, history: tuple[Any, ...]) -> None:
    """A table `h<number>.t` in a folder of its own, all in one catalog."""
    properties, partitioned, steps = history
    lake = LakeBuilder(root, warehouse=warehouse / f"h{number:03}")
    at = TABLES_START
    table = lake.table(f"h{number:03}.t", at, properties=properties, partitioned=partitioned)
    table.append(at)
    for gap, step in steps:
        at = min(at + gap * STEP, NOW)
        take_step(table, at, *step)


def take_step(table: TableBuilder, at: datetime, name: str, *values: Any) -> None:
    metadata = table.table.metadata
    heads = {ref.snapshot_id for ref in metadata.refs.values()}
    listed = [snapshot.snapshot_id for snapshot in metadata.snapshots]
    match name, *values:
        case "append", branch:
            table.append(at, branch=branch if branch is None or branch in metadata.refs else "main")
        case ("overwrite",):
            table.overwrite(at)
        case ("delete",):
            with table.lake.at(at):
                table.table.delete("id = 1")
        case ("merge on read",):
            table.append(at)
            table.position_deletes(at)
        case "branch", branch, pick, settings:
            table.branch(at, branch, str(listed[pick % len(listed)]), **settings)
        case "tag", tag, pick, settings:
            table.tag(at, tag, str(listed[pick % len(listed)]), **settings)
        case "rollback", pick:
            table.rollback(at, str(listed[pick % len(listed)]))
        case "statistics", pick:
            table.statistics(at, str(listed[pick % len(listed)]))
        case ("leftovers",):
            table.leftovers(at, count=1)
        case "forget", pick:
            free = [snapshot for snapshot in listed if snapshot not in heads]
            if free:
                with table.lake.at(at):
                    table.table.maintenance.expire_snapshots().by_id(free[pick % len(free)]).commit()
        case _:
            raise ValueError(f"no such step: {name} {values}")


@dataclass
class Night:
    """A whole night over random lakes on one storage, and the oracle's verdict on each."""

    house: Lakehouse
    verdicts: dict[str, Verdict]

    def expected(self, kind: str) -> Any:
        """`live` as keys, or `orphans` as key to reason, over all lakes."""
        if kind == "live":
            return {self.house.key(path) for verdict in self.verdicts.values() for path in verdict.live}
        return {self.house.key(path): reason for verdict in self.verdicts.values() for path, reason in verdict.orphans.items()}

    def retained(self) -> set[str]:
        rows = (row for lake in self.house.lakes for row in self.house.rows("reachable_snapshots", lake.name))
        return {row["commit_id"] for row in rows if row["state"] == "retained"}


def orphans(house: Lakehouse) -> dict[str, str]:
    return {row["key"]: row["reason"] for row in house.rows("orphan_files")}


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Night:
    house = Lakehouse(spark, tmp_path_factory.mktemp("tables"), now=NOW)
    for number, history in enumerate(drawn(TABLE_HISTORIES, TABLES)):
        build_table(house.root, house.warehouse, number, history)
    house.lakes = [LakeBuilder(house.root).config("sales")]
    found = iceberg_tables(house.root / "catalog.db")
    verdicts = {name: iceberg_verdict(metadata, AS_OF, GRACE_CUTOFF) for name, metadata in found.items()}
    house.plan()
    return Night(house, verdicts)


@pytest.mark.spark
def test_random_tables_keep_the_snapshots_that_brute_force_keeps(tables: Night) -> None:
    assert len(tables.verdicts) == TABLES
    assert tables.retained() == set().union(*(verdict.retained for verdict in tables.verdicts.values()))


@pytest.mark.spark
def test_live_files_of_random_tables_are_those_of_brute_force(tables: Night) -> None:
    assert tables.house.live() == tables.expected("live")


@pytest.mark.spark
def test_orphans_of_random_tables_and_their_reasons_are_those_of_brute_force(tables: Night) -> None:
    assert orphans(tables.house) == tables.expected("orphans")


@pytest.mark.spark
def test_the_random_tables_meet_every_verdict(tables: Night) -> None:
    states = Counter(row["state"] for row in tables.house.rows("reachable_snapshots", "sales"))
    reasons = Counter(orphans(tables.house).values())
    kinds = Counter(row["kind"] for row in tables.house.rows("live_files", "sales"))
    assert min(states["retained"], states["expired"], states["dangling"]) > TABLES // 40, states
    assert min(reasons["expired"], reasons["unreferenced"]) > TABLES // 10, reasons
    assert min(kinds[kind] for kind in ("data", "position_deletes", "statistics", "partition_statistics")) > TABLES // 40, kinds


TREE_STEPS = st.sampled_from(
    [
        *["commit"] * 8,
        "late commit",
        "branch",
        "tag",
        "reset",
        "delete branch",
        "delete tag",
        "abandon snapshot",
        "abandon manifest",
        "abandon writer",
    ]
)
MAX_AGES = st.sampled_from([None, *(timedelta(days=days) for days in (1, 2, 3, 4, 5, 9, 12))])
TREE_GAPS = st.sampled_from([0, 1, 4, 8, 16, 24])
TREE_HISTORIES = st.tuples(MAX_AGES, st.lists(st.tuples(TREE_GAPS, TREE_STEPS, PICK, PICK), min_size=4, max_size=12))


@dataclass(frozen=True)
class Tree:
    """A repository and the cut-off of its lake; null keeps everything."""

    path: Path
    max_age: timedelta | None

    def config(self) -> IcechunkLakeConfig:
        keep = "forever" if self.max_age is None else f"{self.max_age.days}d"
        settings = {"name": self.path.name, "kind": "icechunk", "location": f"file://{self.path}/", "retention": {"default": keep}}
        return IcechunkLakeConfig.model_validate(settings)

    def verdict(self) -> Verdict:
        return icechunk_verdict(self.path, self.max_age, AS_OF, GRACE_CUTOFF)


def build_tree(path: Path, tree: tuple[Any, ...]) -> Tree:
    max_age, steps = tree
    at = TREES_START
    builder = RepositoryBuilder.create(path, at)
    for number, (gap, step, pick, other) in enumerate(steps):
        at = min(at + gap * STEP, NOW)
        grow(builder, number, at, step, pick, other)
    return Tree(path, max_age)


def grow(builder: RepositoryBuilder, number: int, at: datetime, step: str, pick: int, other: int) -> None:
    repo, snapshots = builder.repo, list(builder.created)
    branches, tags = sorted(repo.list_branches()), sorted(repo.list_tags())
    branch, snapshot = branches[pick % len(branches)], snapshots[pick % len(snapshots)]
    match step:
        case "commit":
            builder.commit(branch, at, value(number))
        case "late commit":
            builder.commit(branch, at - (1 + other) * 6 * STEP, value(number))  # by a writer whose clock is days behind
        case "branch":
            builder.branch(f"branch{number}", snapshot)
        case "tag":
            builder.tag(f"tag{number}", snapshot)
        case "reset":
            repo.reset_branch(branch, snapshots[other % len(snapshots)])
        case "delete branch":
            if branch != "main":
                repo.delete_branch(branch)
        case "delete tag":
            if tags:
                repo.delete_tag(tags[pick % len(tags)])
        case "abandon snapshot":
            builder.abandon_snapshot(branch, at, value(number))
        case "abandon manifest":
            builder.abandon_manifest(branch, at, numbers(f"lost{number}", range(2)))
        case "abandon writer":
            builder.abandon_writer(branch, at, numbers(f"lost{number}", range(2)))
        case _:
            raise ValueError(f"no such step: {step}")


def value(number: int) -> Any:
    """Writes an array of two chunks, or one chunk of it, so that snapshots share chunks."""

    def write(group: zarr.Group) -> None:
        if "values" in group:
            group["values"][number % 2] = number  # type: ignore[index]  # zarr types a member as array or group
        else:
            numbers("values", range(2))(group)

    return write


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> list[Tree]:
    root = tmp_path_factory.mktemp("trees") / "warehouse"
    return [build_tree(root / f"t{number:03}", tree) for number, tree in enumerate(drawn(TREE_HISTORIES, TREES))]


@dataclass(frozen=True)
class Marked:
    """One tree through the executors' code: paths that are live, that some ref reaches, and that the sweep would find old and unneeded."""

    live: set[str]
    reached: set[str]
    claimed: set[str]
    retained: set[str]

    @classmethod
    def of(cls, tree: Tree, house: Lakehouse) -> Marked:
        lake = IcechunkLake(tree.config(), LocalObjects())
        refs = lake.freeze(AS_OF)
        rows = [{**asdict(source), "properties": list(source.properties.items())} for source in refs.sources]
        read = _ReadCommits(lake, house.tonight().resolver())
        commits = pa.Table.from_batches(with_generations(read(iter([pa.RecordBatch.from_pylist(rows, schema=SOURCES)]))))
        roots = {row["commit_id"]: row["content_roots"] for row in commits.to_pylist()}
        reachable = lake.retain(refs, commits, AS_OF, GRACE_CUTOFF).reachable.to_pylist()
        retained = [row["commit_id"] for row in reachable if row["state"] == "retained"]
        referred = [row["commit_id"] for row in reachable if row["refs_count"]]
        pinned = {oracles.local(file.address) for file in refs.pinned}
        swept = {path for claim in refs.claims for path in oracles.old_files(oracles.local(claim.address), GRACE_CUTOFF)}
        return cls(
            live=below(lake, (root for commit in retained for root in roots[commit])) | pinned,
            reached=below(lake, (root for commit in referred for root in roots[commit])),
            claimed=swept,
            retained=set(retained),
        )


def below(lake: IcechunkLake, roots: Iterable[dict[str, Any]]) -> set[str]:
    """The roots and everything under them, by the lake's decoder."""
    found: set[str] = set()
    pending = list(roots)
    while pending:
        file = pending.pop()
        path = oracles.local(file["address"])
        if path not in found and file["is_container"]:
            container = Container(file["address"], file["kind"], file["size_bytes"], file.get("expected_entries"))
            pending += lake.decode(container, Path(path).read_bytes()).to_pylist()
        found.add(path)
    return found


@pytest.fixture(scope="module")
def marked(trees: list[Tree]) -> list[tuple[Tree, Marked, Verdict]]:
    house = Lakehouse(None, trees[0].path.parent.parent, now=NOW)  # type: ignore[arg-type]  # nothing here starts Spark
    house.lakes = [tree.config() for tree in trees]
    return [(tree, Marked.of(tree, house), tree.verdict()) for tree in trees]


def test_random_trees_keep_the_snapshots_that_the_document_keeps(marked: list[tuple[Tree, Marked, Verdict]]) -> None:
    wrong = {tree.path.name: found.retained ^ verdict.retained for tree, found, verdict in marked}
    assert {name: snapshots for name, snapshots in wrong.items() if snapshots} == {}


def test_live_files_of_random_trees_are_those_of_brute_force(marked: list[tuple[Tree, Marked, Verdict]]) -> None:
    wrong = {tree.path.name: found.live ^ verdict.live for tree, found, verdict in marked}
    assert {name: paths for name, paths in wrong.items() if paths} == {}


def test_orphans_of_random_trees_are_those_of_brute_force(marked: list[tuple[Tree, Marked, Verdict]]) -> None:
    wrong = {tree.path.name: (found.claimed - found.live) ^ verdict.orphans.keys() for tree, found, verdict in marked}
    assert {name: paths for name, paths in wrong.items() if paths} == {}


def test_what_no_ref_reaches_is_what_the_official_collector_would_free(marked: list[tuple[Tree, Marked, Verdict]]) -> None:
    freed = 0
    for tree, found, _ in marked:
        repo = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tree.path)))
        official = repo.garbage_collect(GRACE_CUTOFF, dry_run=True)
        ours = Counter(Path(path).parent.name for path in found.claimed - found.reached)
        theirs = (
            official.snapshots_deleted,
            official.manifests_deleted,
            official.transaction_logs_deleted,
            official.chunks_deleted,
        )
        assert tuple(ours[folder] for folder in FOLDERS) == theirs, tree.path.name
        assert sum(Path(path).stat().st_size for path in found.claimed - found.reached) == official.bytes_deleted, tree.path.name
        freed += sum(theirs)
    assert freed > TREES


def test_the_random_trees_meet_every_verdict(marked: list[tuple[Tree, Marked, Verdict]]) -> None:
    reasons = Counter(reason for _, _, verdict in marked for reason in verdict.orphans.values())
    spared = sum(bool((found.live - found.reached) & found.claimed) for _, found, _ in marked)
    assert min(reasons["expired"], reasons["unreferenced"]) > TREES // 4, reasons
    assert spared > TREES // 20


@pytest.fixture(scope="module")
def repositories(spark: SparkSession, trees: list[Tree]) -> Night:
    house = Lakehouse(spark, trees[0].path.parent.parent, now=NOW)
    chosen = trees[:: TREES // TREES_IN_SPARK][:TREES_IN_SPARK]
    house.lakes = [tree.config() for tree in chosen]
    house.plan()
    return Night(house, {tree.path.name: tree.verdict() for tree in chosen})


@pytest.mark.spark
def test_live_files_of_a_night_over_random_repositories_are_those_of_brute_force(repositories: Night) -> None:
    assert repositories.retained() == set().union(*(verdict.retained for verdict in repositories.verdicts.values()))
    assert repositories.house.live() == repositories.expected("live")


@pytest.mark.spark
def test_orphans_of_a_night_over_random_repositories_are_those_of_brute_force(repositories: Night) -> None:
    assert orphans(repositories.house) == repositories.expected("orphans")
