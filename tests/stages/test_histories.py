"""Compare live files and garbage of random lakes with brute force, on a disk and in buckets.

A usual run checks 25 Iceberg tables and 50 Icechunk repositories on a disk. `make test DEPTH=all` checks 200 of each there and 50 of each
on S3, on Azurite and on our own server of Google Cloud Storage. `random_lakes` draws and writes the lakes, `bucket_mirror` copies them to
a bucket, and `oracles` reads them without any code of the project.
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
from tests.depth import example_count, full_suite_only, in_turn, select_cases
from tests.lakes.iceberg.builder import LakeBuilder, clock_at
from tests.stages.bucket_lakehouse import BucketLakehouse
from tests.stages.bucket_lakes import file_io
from tests.stages.bucket_mirror import MirrorBuilder, open_mirror
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
from tests.stores.azure_bench import AzureBench
from tests.stores.gcs_bench import GcsBench
from tests.stores.s3_bench import S3Bench

pytestmark = in_turn

# The first examples of Hypothesis are simple. Therefore many are drawn, and a part of them is used.
DRAWN = 200
BUCKETS = ["bucket", "azure", "gcs"]
EVERY_TABLE = {"disk": example_count(8, 1), **dict.fromkeys(BUCKETS, 4)}
EVERY_TREE = {"disk": example_count(4, 1), **dict.fromkeys(BUCKETS, 4)}
LOCATIONS = select_cases(["disk"], BUCKETS)
# A run needs about a second of Spark per lake. The other trees go through the code of the executors without Spark.
TREES_IN_SPARK = 4
WHAT_IF_TREES = 1


Bench = S3Bench | AzureBench | GcsBench


@dataclass
class RandomRun:
    """A run on random lakes in one storage, and the verdict of the oracle on each lake."""

    house: Lakehouse
    verdicts: dict[str, Verdict]

    def live_by_brute_force(self) -> set[str]:
        return {self.house.key(path) for verdict in self.verdicts.values() for path in verdict.live}

    def orphans_by_brute_force(self) -> dict[str, str]:
        """Map each orphan to its reason."""
        return {self.house.key(path): reason for verdict in self.verdicts.values() for path, reason in verdict.orphans.items()}


@pytest.fixture(scope="module", params=LOCATIONS)
def tables(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RandomRun]:
    root, histories = tmp_path_factory.mktemp("tables"), draw_examples(TABLE_HISTORIES, DRAWN)[:: EVERY_TABLE[request.param]]
    with ExitStack() as stack:
        if request.param == "disk":
            house = Lakehouse(spark, root, now=NOW)
            for number, history in enumerate(histories):
                build_table(LakeBuilder(root, warehouse=house.warehouse / f"h{number:03}"), history)
            house.lakes = [LakeBuilder(root).config("sales")]
        else:
            mirror = stack.enter_context(open_mirror(request.param))
            bench = mirror.bench
            for number, history in enumerate(histories):
                build_table(MirrorBuilder(root, root / "warehouse", f"h{number:03}", bench.store.location), history)
            LOCAL_FOLDERS[bench.store.location] = f"{root}/warehouse/"
            mirror.copy(root / "warehouse", root / "warehouse")
            house = BucketLakehouse(spark, root, now=NOW, bench=bench)
            lake = LakeBuilder(root)
            lake.properties |= file_io(bench.server)
            house.lakes = [lake.config("sales")]
        found = iceberg_tables(root / "catalog.db")
        assert len(found) == len(histories)
        verdicts = {name: iceberg_verdict(metadata, AS_OF, GRACE_CUTOFF) for name, metadata in found.items()}
        house.plan()
        yield RandomRun(house, verdicts)


@pytest.mark.spark
def test_retained_snapshots_of_random_tables_equal_brute_force(tables: RandomRun) -> None:
    assert tables.house.commits("retained") == set().union(*(verdict.retained for verdict in tables.verdicts.values()))


@pytest.mark.spark
def test_live_files_of_random_tables_equal_brute_force(tables: RandomRun) -> None:
    assert tables.house.live() == tables.live_by_brute_force()


@pytest.mark.spark
def test_orphans_and_reasons_of_random_tables_equal_brute_force(tables: RandomRun) -> None:
    assert tables.house.orphans() == tables.orphans_by_brute_force()


@pytest.mark.spark
def test_random_tables_cover_all_results(tables: RandomRun) -> None:
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
def test_what_if_equals_real_run_on_random_tables(tables: RandomRun) -> None:
    """Drops refs, so it must be the last test of the fixture."""
    house, (lake,) = tables.house, tables.house.lakes
    scenarios = [Scenario("longer", (lake.name,), "14d"), Scenario("shorter, fewer refs", (lake.name,), "1d", frozenset({"dev", "v1"}))]
    current, (longer, shorter) = orphan_sizes(house), forecast_orphans(house, scenarios)
    expected = orphans_under_policy(house, [lake.with_retention("14d")])
    assert longer == Forecast(expected, *difference(current, expected))
    drop_refs(house.root, {"dev", "v1"})
    expected = orphans_with_new_refs(house, [lake.with_retention("1d")])
    assert shorter == Forecast(expected, *difference(current, expected))
    assert min(longer.kept.files, shorter.freed.files) > len(tables.verdicts) // 4


def drop_refs(root: Path, names: set[str]) -> None:
    """Delete these branches and tags in all tables of the catalog."""
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
    """Trees under one address, and the reader of their objects. `bench` is None on a disk."""

    trees: Sequence[Tree]
    address: str
    objects: Objects
    bench: Bench | None = None

    def house(self, spark: SparkSession) -> Lakehouse:
        root = self.trees[0].path.parent.parent
        if self.bench is None:
            return Lakehouse(spark, root, now=NOW)
        return BucketLakehouse(spark, root, now=NOW, state=str(root / f"state-of-{self.address.partition(':')[0]}"), bench=self.bench)


@pytest.fixture(scope="module", params=LOCATIONS)
def forest(request: pytest.FixtureRequest, trees: list[Tree]) -> Iterator[Forest]:
    warehouse, taken = trees[0].path.parent, trees[:: EVERY_TREE[request.param] // EVERY_TREE["disk"]]
    if request.param == "disk":
        yield Forest(taken, f"file://{warehouse}/", LocalObjects())
        return
    with open_mirror(request.param) as mirror:
        mirror.copy(warehouse, *(tree.path for tree in taken))
        LOCAL_FOLDERS[mirror.bench.store.location] = f"{warehouse}/"
        yield Forest(taken, mirror.bench.store.location, mirror.bench.store.objects, mirror.bench)


def verdict_of(tree: Tree) -> Verdict:
    return icechunk_verdict(tree.path, tree.max_age, AS_OF, GRACE_CUTOFF)


@dataclass(frozen=True)
class MarkedTree:
    """Live, reachable and old claimed paths of one tree, from the code of the executors without Spark."""

    live: set[str]
    reached: set[str]
    old: set[str]
    retained: set[str]

    @classmethod
    def of(cls, tree: Tree, forest: Forest, resolver: KeyResolver) -> MarkedTree:
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
            live=files_under(lake, objects, (root for commit in retained for root in roots[commit])) | pinned,
            reached=files_under(lake, objects, (root for commit in referred for root in roots[commit])),
            old={local_path(address) for claim in refs.claims for address, _, at in objects.list(claim.address) if at < GRACE_CUTOFF},
            retained=set(retained),
        )


def files_under(lake: IcechunkLake, objects: Objects, roots: Iterable[dict[str, Any]]) -> set[str]:
    """Return the roots and all files under them, with the decoder of the lake."""
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
def marked(forest: Forest) -> list[tuple[Tree, MarkedTree, Verdict]]:
    resolver = KeyResolver([("warehouse", forest.address)])
    return [(tree, MarkedTree.of(tree, forest, resolver), verdict_of(tree)) for tree in forest.trees]


def test_retained_snapshots_of_random_trees_match_document(marked: list[tuple[Tree, MarkedTree, Verdict]]) -> None:
    wrong = {tree.path.name: found.retained ^ verdict.retained for tree, found, verdict in marked}
    assert {name: snapshots for name, snapshots in wrong.items() if snapshots} == {}


def test_live_files_of_random_trees_equal_brute_force(marked: list[tuple[Tree, MarkedTree, Verdict]]) -> None:
    wrong = {tree.path.name: found.live ^ verdict.live for tree, found, verdict in marked}
    assert {name: paths for name, paths in wrong.items() if paths} == {}


def test_orphans_of_random_trees_equal_brute_force(marked: list[tuple[Tree, MarkedTree, Verdict]]) -> None:
    wrong = {tree.path.name: (found.old - found.live) ^ verdict.orphans.keys() for tree, found, verdict in marked}
    assert {name: paths for name, paths in wrong.items() if paths} == {}


def test_unreachable_files_equal_those_of_icechunk_gc(marked: list[tuple[Tree, MarkedTree, Verdict]]) -> None:
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


def test_random_trees_cover_all_results(marked: list[tuple[Tree, MarkedTree, Verdict]]) -> None:
    reasons = Counter(reason for _, _, verdict in marked for reason in verdict.orphans.values())
    spared = sum(bool((found.live - found.reached) & found.old) for _, found, _ in marked)
    assert min(reasons["expired"], reasons["unreferenced"]) > len(marked) // 4, reasons
    assert spared > len(marked) // 20


@pytest.fixture(scope="module")
def repositories(spark: SparkSession, forest: Forest) -> RandomRun:
    house, chosen = forest.house(spark), forest.trees[:: len(forest.trees) // TREES_IN_SPARK][:TREES_IN_SPARK]
    house.lakes = [tree.config(forest.address) for tree in chosen]
    house.plan()
    return RandomRun(house, {tree.path.name: verdict_of(tree) for tree in chosen})


@pytest.mark.spark
def test_live_files_of_a_run_on_repositories_equal_brute_force(repositories: RandomRun) -> None:
    assert repositories.house.commits("retained") == set().union(*(verdict.retained for verdict in repositories.verdicts.values()))
    assert repositories.house.live() == repositories.live_by_brute_force()


@pytest.mark.spark
def test_orphans_of_a_run_on_repositories_equal_brute_force(repositories: RandomRun) -> None:
    assert repositories.house.orphans() == repositories.orphans_by_brute_force()


@full_suite_only
@pytest.mark.spark
def test_what_if_equals_real_run_on_random_repositories(spark: SparkSession, trees: list[Tree], tmp_path: Path) -> None:
    """Uses copies of the trees, because it drops refs. Each chunk has a checksum file that is an orphan together with it."""
    house = Lakehouse(spark, tmp_path, now=NOW)
    taken = trees[:: EVERY_TREE["bucket"] // EVERY_TREE["disk"]]  # the same tree for any number of trees
    several = [tree for tree in taken if len(list((tree.path / "refs").iterdir())) > 2][:WHAT_IF_TREES]
    copies = [Tree(Path(shutil.copytree(tree.path, house.warehouse / tree.path.name)), tree.max_age) for tree in several]
    for chunk in [path for tree in copies for path in (tree.path / "chunks").iterdir()]:
        side = chunk.with_name(f".{chunk.name}.crc")
        side.write_bytes(b"crc")
        shutil.copystat(chunk, side)
    house.lakes = [tree.config() for tree in copies]
    current = sweep_orphans(house)
    names = tuple(lake.name for lake in house.lakes)
    refs = [row for name in names for row in house.rows("lake_refs", name) if row["ref_name"] != "main"]
    dropped = frozenset(row["ref_name"] for row in refs)
    (forecast,) = forecast_orphans(house, [Scenario("shorter, fewer refs", names, "1d", dropped)])
    for tree in copies:
        repo = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tree.path)))
        for name in repo.list_branches() - {"main"}:
            repo.delete_branch(name)
        for name in repo.list_tags():
            repo.delete_tag(name)
    expected = orphans_with_new_refs(house, [lake.with_retention("1d") for lake in house.lakes])
    assert forecast == Forecast(expected, *difference(current, expected))
    assert {Path(key).suffix for key in forecast.orphans.keys() - current.keys()} == {"", ".crc"}
