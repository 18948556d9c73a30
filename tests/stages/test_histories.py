"""Random lakes against brute force: what is live and what is garbage in 50 Iceberg tables and 50 Icechunk repositories, on a disk and in a
bucket (`make test DEPTH=all`: 200 of each on the disk).

`random_lakes` draws and writes them, and `oracles` reads them back sharing no code with the project. `mirrored` puts them into a bucket.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import icechunk
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.objects import Objects
from gc_assets.lakes.icechunk.lake import IcechunkLake
from gc_assets.lakes.protocol import Container
from gc_assets.stages.mark.commit_rows import add_generations, build_commit_rows
from gc_assets.stages.read.scenarios import Scenario
from gc_assets.stores.local.objects import LocalObjects
from tests.depth import example_count, full_suite_only, select_cases
from tests.lakes.iceberg.builder import LakeBuilder, clock_at
from tests.stages.bucket_house import BucketHouse
from tests.stages.bucket_lakes import file_io
from tests.stages.bucket_mirror import SERVER, MirrorBuilder, copy_to_bucket
from tests.stages.forecasts import (
    Forecast,
    difference,
    forecast_orphans,
    orphan_sizes,
    orphans_under_policy,
    orphans_with_new_refs,
    sweep_orphans,
)
from tests.stages.lakehouse import Lakehouse
from tests.stages.oracles import FOLDERS, LOCAL_FOLDERS, Verdict, iceberg_tables, iceberg_verdict, icechunk_verdict, local_path
from tests.stages.random_lakes import (
    AS_OF,
    GRACE_CUTOFF,
    NOW,
    TABLE_HISTORIES,
    TREE_HISTORIES,
    Tree,
    build_table,
    build_tree,
    draw_examples,
)
from tests.stores.s3_bench import S3Bench, in_a_bucket

# The first that Hypothesis draws are the simple ones. So some of many are taken, and not fewer drawn.
DRAWN = 200
EVERY_TABLE, EVERY_TREE = {"disk": example_count(8, 1), "bucket": 4}, {"disk": example_count(4, 1), "bucket": 4}
PLACES = select_cases(["disk"], ["bucket"])
# A night costs Spark about a second for each lake, so the other trees go through what its executors run, without it.
TREES_IN_SPARK = 4
WHAT_IF_TREES = 1


@dataclass
class RunContext:
    """A whole night over random lakes on one storage, and the oracle's verdict on each."""

    house: Lakehouse
    verdicts: dict[str, Verdict]

    def live_by_brute_force(self) -> set[str]:
        return {self.house.key(path) for verdict in self.verdicts.values() for path in verdict.live}

    def orphans_by_brute_force(self) -> dict[str, str]:
        """Key to reason."""
        return {self.house.key(path): reason for verdict in self.verdicts.values() for path, reason in verdict.orphans.items()}


@pytest.fixture(scope="module", params=PLACES)
def tables(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunContext]:
    root, histories = tmp_path_factory.mktemp("tables"), draw_examples(TABLE_HISTORIES, DRAWN)[:: EVERY_TABLE[request.param]]
    with ExitStack() as places:
        if request.param == "disk":
            house = Lakehouse(spark, root, now=NOW)
            for number, history in enumerate(histories):
                build_table(LakeBuilder(root, warehouse=house.warehouse / f"h{number:03}"), history)
            house.lakes = [LakeBuilder(root).config("sales")]
        else:
            bench = places.enter_context(in_a_bucket(SERVER, prefix="lakes/"))
            for number, history in enumerate(histories):
                build_table(MirrorBuilder(root, root / "warehouse", f"h{number:03}", bench.store.location), history)
            LOCAL_FOLDERS[bench.store.location] = f"{root}/warehouse/"
            copy_to_bucket(root / "warehouse", bench, root / "warehouse")
            house = BucketHouse(spark, root, now=NOW, bench=bench)
            lake = LakeBuilder(root)
            lake.properties |= file_io(bench.server)
            house.lakes = [lake.config("sales")]
        found = iceberg_tables(root / "catalog.db")
        assert len(found) == len(histories)
        verdicts = {name: iceberg_verdict(metadata, AS_OF, GRACE_CUTOFF) for name, metadata in found.items()}
        house.plan()
        yield RunContext(house, verdicts)


@pytest.mark.spark
def test_random_tables_keep_the_snapshots_that_brute_force_keeps(tables: RunContext) -> None:
    assert tables.house.commits("retained") == set().union(*(verdict.retained for verdict in tables.verdicts.values()))


@pytest.mark.spark
def test_live_files_of_random_tables_are_those_of_brute_force(tables: RunContext) -> None:
    assert tables.house.live() == tables.live_by_brute_force()


@pytest.mark.spark
def test_orphans_of_random_tables_and_their_reasons_are_those_of_brute_force(tables: RunContext) -> None:
    assert tables.house.orphans() == tables.orphans_by_brute_force()


@pytest.mark.spark
def test_the_random_tables_meet_every_verdict(tables: RunContext) -> None:
    states = Counter(row["state"] for row in tables.house.rows("reachable_snapshots", "sales"))
    reasons = Counter(tables.house.orphans().values())
    kinds = Counter(row["kind"] for row in tables.house.rows("live_files", "sales"))
    many = len(tables.verdicts)
    assert min(states["retained"], states["expired"], states["dangling"]) > many // 40, states
    assert min(reasons["expired"], reasons["unreferenced"]) > many // 10, reasons
    assert min(kinds[kind] for kind in ("data", "position_deletes", "statistics", "partition_statistics")) > many // 40, kinds


@full_suite_only
@pytest.mark.spark
@pytest.mark.parametrize("tables", ["disk"], indirect=True)
def test_what_if_equals_a_real_night_under_that_policy_on_random_tables(tables: RunContext) -> None:
    """Last of its fixture: refs are really dropped."""
    house, (lake,) = tables.house, tables.house.lakes
    asked = [Scenario("longer", (lake.name,), "14d"), Scenario("shorter, fewer refs", (lake.name,), "1d", frozenset({"dev", "v1"}))]
    tonight, (longer, shorter) = orphan_sizes(house), forecast_orphans(house, asked)
    real = orphans_under_policy(house, [lake.with_retention("14d")])
    assert longer == Forecast(real, *difference(tonight, real))
    drop_refs(house.root, {"dev", "v1"})
    real = orphans_with_new_refs(house, [lake.with_retention("1d")])
    assert shorter == Forecast(real, *difference(tonight, real))
    assert min(longer.kept.files, shorter.freed.files) > len(tables.verdicts) // 4


def drop_refs(root: Path, names: set[str]) -> None:
    """Deletes these branches and tags of all tables of the catalog."""
    builder = LakeBuilder(root)
    for name in iceberg_tables(root / "catalog.db"):
        table = builder.catalog.load_table(name)
        for ref in names & table.metadata.refs.keys():
            manage = table.manage_snapshots()
            with clock_at(NOW):
                (manage.remove_branch(ref) if table.metadata.refs[ref].snapshot_ref_type == "branch" else manage.remove_tag(ref)).commit()


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> list[Tree]:
    root = tmp_path_factory.mktemp("trees") / "warehouse"
    return [
        build_tree(root / f"t{number:03}", tree) for number, tree in enumerate(draw_examples(TREE_HISTORIES, DRAWN)[:: EVERY_TREE["disk"]])
    ]


@dataclass(frozen=True)
class Forest:
    """Trees below one address, and how their objects are read. `bench` is null on a disk."""

    trees: Sequence[Tree]
    address: str
    objects: Objects
    bench: S3Bench | None = None

    def house(self, spark: SparkSession) -> Lakehouse:
        root = self.trees[0].path.parent.parent
        if self.bench is None:
            return Lakehouse(spark, root, now=NOW)
        return BucketHouse(spark, root, now=NOW, state=str(root / "state-of-bucket"), bench=self.bench)


@pytest.fixture(scope="module", params=PLACES)
def forest(request: pytest.FixtureRequest, trees: list[Tree]) -> Iterator[Forest]:
    warehouse, taken = trees[0].path.parent, trees[:: EVERY_TREE[request.param] // EVERY_TREE["disk"]]
    if request.param == "disk":
        yield Forest(taken, f"file://{warehouse}/", LocalObjects())
        return
    with in_a_bucket(SERVER, prefix="lakes/") as bench:
        copy_to_bucket(warehouse, bench, *(tree.path for tree in taken))
        LOCAL_FOLDERS[bench.store.location] = f"{warehouse}/"
        yield Forest(taken, bench.store.location, bench.store.objects, bench)


def verdict_of(tree: Tree) -> Verdict:
    return icechunk_verdict(tree.path, tree.max_age, AS_OF, GRACE_CUTOFF)


@dataclass(frozen=True)
class Marked:
    """One tree through the executors' code, without Spark: the paths that are live, that a ref reaches, and that are claimed and old."""

    live: set[str]
    reached: set[str]
    old: set[str]
    retained: set[str]

    @classmethod
    def of(cls, tree: Tree, forest: Forest, resolver: KeyResolver) -> Marked:
        objects = forest.objects
        lake = IcechunkLake(tree.config(forest.address), objects)
        refs = lake.freeze(AS_OF)
        found = [commit for source in refs.sources for commit in lake.commits(source)]
        commits = pa.Table.from_batches(add_generations(iter([build_commit_rows(found, resolver)])))
        roots = {row["commit_id"]: row["content_roots"] for row in commits.to_pylist()}
        reachable = lake.retain(refs, commits, AS_OF, GRACE_CUTOFF).reachable.to_pylist()
        retained = [row["commit_id"] for row in reachable if row["state"] == "retained"]
        referred = [row["commit_id"] for row in reachable if row["refs_count"]]
        pinned = {local_path(file.address) for file in refs.pinned}
        return cls(
            live=below(lake, objects, (root for commit in retained for root in roots[commit])) | pinned,
            reached=below(lake, objects, (root for commit in referred for root in roots[commit])),
            old={local_path(address) for claim in refs.claims for address, _, at in objects.list(claim.address) if at < GRACE_CUTOFF},
            retained=set(retained),
        )


def below(lake: IcechunkLake, objects: Objects, roots: Iterable[dict[str, Any]]) -> set[str]:
    """The roots and everything under them, by the lake's decoder."""
    found: set[str] = set()
    pending = list(roots)
    while pending:
        file = pending.pop()
        path = local_path(file["address"])
        if path not in found and file["is_container"]:
            container = Container(file["address"], file["kind"], file["size_bytes"], file.get("expected_entries"))
            pending += lake.decode(container, objects.read(container.address)).to_pylist()
        found.add(path)
    return found


@pytest.fixture(scope="module")
def marked(forest: Forest) -> list[tuple[Tree, Marked, Verdict]]:
    resolver = KeyResolver([("warehouse", forest.address)])
    return [(tree, Marked.of(tree, forest, resolver), verdict_of(tree)) for tree in forest.trees]


def test_random_trees_keep_the_snapshots_that_the_document_keeps(marked: list[tuple[Tree, Marked, Verdict]]) -> None:
    wrong = {tree.path.name: found.retained ^ verdict.retained for tree, found, verdict in marked}
    assert {name: snapshots for name, snapshots in wrong.items() if snapshots} == {}


def test_live_files_of_random_trees_are_those_of_brute_force(marked: list[tuple[Tree, Marked, Verdict]]) -> None:
    wrong = {tree.path.name: found.live ^ verdict.live for tree, found, verdict in marked}
    assert {name: paths for name, paths in wrong.items() if paths} == {}


def test_orphans_of_random_trees_are_those_of_brute_force(marked: list[tuple[Tree, Marked, Verdict]]) -> None:
    wrong = {tree.path.name: (found.old - found.live) ^ verdict.orphans.keys() for tree, found, verdict in marked}
    assert {name: paths for name, paths in wrong.items() if paths} == {}


def test_what_no_ref_reaches_is_what_the_official_collector_would_free(marked: list[tuple[Tree, Marked, Verdict]]) -> None:
    freed = 0
    for tree, found, _ in marked:
        repo = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tree.path)))
        official = repo.garbage_collect(GRACE_CUTOFF, dry_run=True)
        ours = Counter(Path(path).parent.name for path in found.old - found.reached)
        theirs = (
            official.snapshots_deleted,
            official.manifests_deleted,
            official.transaction_logs_deleted,
            official.chunks_deleted,
        )
        assert tuple(ours[folder] for folder in FOLDERS) == theirs, tree.path.name
        assert sum(Path(path).stat().st_size for path in found.old - found.reached) == official.bytes_deleted, tree.path.name
        freed += sum(theirs)
    assert freed > len(marked)


def test_the_random_trees_meet_every_verdict(marked: list[tuple[Tree, Marked, Verdict]]) -> None:
    reasons = Counter(reason for _, _, verdict in marked for reason in verdict.orphans.values())
    spared = sum(bool((found.live - found.reached) & found.old) for _, found, _ in marked)
    assert min(reasons["expired"], reasons["unreferenced"]) > len(marked) // 4, reasons
    assert spared > len(marked) // 20


@pytest.fixture(scope="module")
def repositories(spark: SparkSession, forest: Forest) -> RunContext:
    house, chosen = forest.house(spark), forest.trees[:: len(forest.trees) // TREES_IN_SPARK][:TREES_IN_SPARK]
    house.lakes = [tree.config(forest.address) for tree in chosen]
    house.plan()
    return RunContext(house, {tree.path.name: verdict_of(tree) for tree in chosen})


@pytest.mark.spark
def test_live_files_of_a_night_over_random_repositories_are_those_of_brute_force(repositories: RunContext) -> None:
    assert repositories.house.commits("retained") == set().union(*(verdict.retained for verdict in repositories.verdicts.values()))
    assert repositories.house.live() == repositories.live_by_brute_force()


@pytest.mark.spark
def test_orphans_of_a_night_over_random_repositories_are_those_of_brute_force(repositories: RunContext) -> None:
    assert repositories.house.orphans() == repositories.orphans_by_brute_force()


@full_suite_only
@pytest.mark.spark
def test_what_if_equals_a_real_night_under_that_policy_on_random_repositories(
    spark: SparkSession, trees: list[Tree], tmp_path: Path
) -> None:
    """Refs are really dropped, so the trees are copies. Beside every chunk lies a checksum file, which goes when the chunk goes."""
    house = Lakehouse(spark, tmp_path, now=NOW)
    taken = trees[:: EVERY_TREE["bucket"] // EVERY_TREE["disk"]]  # the same tree, however many there are
    several = [tree for tree in taken if len(list((tree.path / "refs").iterdir())) > 2][:WHAT_IF_TREES]
    copies = [Tree(Path(shutil.copytree(tree.path, house.warehouse / tree.path.name)), tree.max_age) for tree in several]
    for chunk in [path for tree in copies for path in (tree.path / "chunks").iterdir()]:
        side = chunk.with_name(f".{chunk.name}.crc")
        side.write_bytes(b"crc")
        shutil.copystat(chunk, side)
    house.lakes = [tree.config() for tree in copies]
    tonight = sweep_orphans(house)
    names = tuple(lake.name for lake in house.lakes)
    refs = [row for name in names for row in house.rows("lake_refs", name) if row["ref_name"] != "main"]
    dropped = frozenset(row["ref_name"] for row in refs)
    (told,) = forecast_orphans(house, [Scenario("shorter, fewer refs", names, "1d", dropped)])
    for tree in copies:
        repo = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tree.path)))
        for name in repo.list_branches() - {"main"}:
            repo.delete_branch(name)
        for name in repo.list_tags():
            repo.delete_tag(name)
    real = orphans_with_new_refs(house, [lake.with_retention("1d") for lake in house.lakes])
    assert told == Forecast(real, *difference(tonight, real))
    assert {Path(key).suffix for key in told.orphans.keys() - tonight.keys()} == {"", ".crc"}
