"""Build random Iceberg tables and Icechunk repositories: Hypothesis draws the histories, the libraries of the lakes write them.

Contains no rule about live files; these are in the oracles and in the project.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import zarr
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from tests.lakes.iceberg.builder import LakeBuilder, TableBuilder
from tests.lakes.icechunk.builder import RepositoryBuilder, numbers
from tests.stages.oracles import DAY_MS

# In the past, because icechunk refuses a commit whose parent is younger than the machine's clock.
NOW = datetime(2026, 1, 20, 3, tzinfo=UTC)
AS_OF = datetime(2026, 1, 20, tzinfo=UTC)
GRACE_CUTOFF = NOW - timedelta(hours=72)
TABLES_START = AS_OF - timedelta(days=16)
TREES_START = AS_OF - timedelta(days=14)
# Times are whole steps, so that some are equal to the cut-offs of both clocks (00:00 and 03:00).
STEP = timedelta(hours=3)
PICK = st.integers(0, 5)


def draw_examples(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """Return `count` examples, the same on every machine."""
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


def optional_settings(**settings: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw any subset of the settings."""
    return st.fixed_dictionaries({}, optional=settings)


AGES = st.sampled_from([1, 2, 4, 5, 9, 14]).map(lambda days: days * DAY_MS)
COUNTS = st.integers(1, 3)
REF_SETTINGS = optional_settings(min_snapshots_to_keep=COUNTS, max_snapshot_age_ms=AGES, max_ref_age_ms=AGES)
TAG_SETTINGS = optional_settings(max_ref_age_ms=AGES)
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


def build_table(lake: LakeBuilder, history: tuple[Any, ...]) -> None:
    """Build a table `t` in the namespace with the name of the lake's directory."""
    properties, partitioned, steps = history
    at = TABLES_START
    table = lake.table(f"{lake.warehouse.name}.t", at, properties=properties, partitioned=partitioned)
    table.append(at)
    for gap, step in steps:
        at = min(at + gap * STEP, NOW)
        take_table_step(table, at, *step)


def take_table_step(table: TableBuilder, at: datetime, name: str, *values: Any) -> None:
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
    """A repository and the maximum age of its commits. None keeps all."""

    path: Path
    max_age: timedelta | None

    def config(self, parent: str | None = None) -> IcechunkLakeConfig:
        """Return the configuration of the lake at its path, or under the address `parent`."""
        location = f"{parent or f'file://{self.path.parent}/'}{self.path.name}/"
        keep = "forever" if self.max_age is None else f"{self.max_age.days}d"
        settings = {"name": self.path.name, "kind": "icechunk", "location": location, "retention": {"default": keep, "dangling": keep}}
        return IcechunkLakeConfig.model_validate(settings)


def build_tree(path: Path, tree: tuple[Any, ...]) -> Tree:
    max_age, steps = tree
    at = TREES_START
    builder = RepositoryBuilder.create(path, at)
    for number, (gap, step, pick, other) in enumerate(steps):
        at = min(at + gap * STEP, NOW)
        take_tree_step(builder, number, at, step, pick, other)
    return Tree(path, max_age)


def take_tree_step(builder: RepositoryBuilder, number: int, at: datetime, step: str, pick: int, other: int) -> None:
    repo, snapshots = builder.repo, list(builder.created)
    branches, tags = sorted(repo.list_branches()), sorted(repo.list_tags())
    branch, snapshot = branches[pick % len(branches)], snapshots[pick % len(snapshots)]
    match step:
        case "commit":
            builder.commit(branch, at, write_value(number))
        case "late commit":
            builder.commit(branch, at - (1 + other) * 6 * STEP, write_value(number))  # by a writer whose clock is days behind
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
            builder.abandon_snapshot(branch, at, write_value(number))
        case "abandon manifest":
            builder.abandon_manifest(branch, at, numbers(f"lost{number}", range(2)))
        case "abandon writer":
            builder.abandon_writer(branch, at, numbers(f"lost{number}", range(2)))
        case _:
            raise ValueError(f"no such step: {step}")


def write_value(number: int) -> Any:
    """Return a writer of an array with two chunks, or of one chunk, so that snapshots share chunks."""

    def write(group: zarr.Group) -> None:
        if "values" in group:
            group["values"][number % 2] = number  # type: ignore[index]  # zarr types a member as array or group
        else:
            numbers("values", range(2))(group)

    return write
