"""Compute which files of a lake would be live with another retention policy or fewer refs.

The other policy is applied to the refs and commits that the run has recorded, so the lake is not
read. Containers are followed only as far as earlier runs have decoded them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.arrow_rows import aggregate_rows
from gc_assets.core.commands import command
from gc_assets.core.errors import StateError, UsageError
from gc_assets.core.suggest import did_you_mean, join_names
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows, report_parts, write_parts
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.protocol import RETAINED, FrozenRefs, Lake
from gc_assets.stages.mark.closure import closure
from gc_assets.stages.mark.content_roots import (
    SPARED,
    RetentionTables,
    RootTables,
    find_root_inputs,
    list_kept_containers,
    open_root_tables,
    rank_roots,
    read_content_roots,
)
from gc_assets.stages.mark.edges import EdgeIndex, read_edges
from gc_assets.stages.mark.former_metadata import read_live_roots
from gc_assets.stages.mark.last_known import as_optional_live
from gc_assets.stages.mark.manifest_entries import count_segment_rows, find_segments
from gc_assets.stages.mark.reachable_snapshots import find_expiry_logs, read_edits, read_policy_refs
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import COMMIT_GRAPH, LAKE_REFS, LIVE_FILES, REACHABLE_SNAPSHOTS
from gc_assets.state.side_tables import (
    CONTAINERS,
    CONTAINERS_SIDE,
    EDGES_SIDE,
    FORMER_ROOTS_SIDE,
    ROOTS,
    SCENARIO_CONTAINERS,
    SCENARIO_CONTAINERS_SIDE,
    SCENARIO_FILES,
    SCENARIO_FILES_SIDE,
    UNREADABLE_ROOTS,
    UNREADABLE_ROOTS_SIDE,
)
from gc_assets.state.summaries import LakeRefsSummary, LiveFilesSummary, ReachableSnapshotsSummary

# The `live` column is a signed 64-bit number. Bit 0 is set if the file is live in the run, and bit
# n if it is live in the n-th scenario.
MAX_SCENARIOS: Final = 62
SCRATCH: Final = "_what_if"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A hypothetical policy or set of refs to evaluate for a run.

    Attributes:
        retention: Default cut-off for the lakes of the scenario, or None to use the configured one.
        dropped: Names of refs to ignore, as if they had been deleted long ago and nothing were kept
            for them.
    """

    label: str
    lakes: tuple[str, ...]
    retention: str | None = None
    dropped: frozenset[str] = frozenset()


def ref_names(context: RunContext, lake_name: str) -> list[str]:
    """Return the distinct names of a lake's recorded refs in alphabetical order."""
    names = read_rows(context.state, LAKE_REFS, context.table(LAKE_REFS, lake_name), columns=["ref_name"]).column("ref_name")
    return sorted(names.unique().to_pylist())


def lakes_with_refs(context: RunContext, lakes: Sequence[str], refs: Collection[str]) -> list[str]:
    """Return the lakes that have at least one of the refs, or all lakes if none has one."""
    return [lake for lake in lakes if not set(refs).isdisjoint(ref_names(context, lake))] or list(lakes)


def require_refs(context: RunContext, scenario: Scenario) -> None:
    """Check that each ref dropped by a scenario exists in one of the scenario's lakes.

    Raises:
        UsageError: If a ref does not exist in any of them.
    """
    if not scenario.dropped:
        return
    known = {name for lake in scenario.lakes for name in ref_names(context, lake)}
    for name in sorted(scenario.dropped - known):
        hint = did_you_mean(name, known) or f"; there are {join_names(sorted(known)) or 'none'}"
        raise UsageError(f"Cannot drop ref {name}: the run of {context.run_date} found no such ref in {', '.join(scenario.lakes)}{hint}")


@dataclass(frozen=True)
class ScenarioTask:
    """Applies the policy of each scenario, and writes the live containers and files.

    `run_single_task` calls it. For each scenario's bit in the column `live`, the task's summary
    contains how many fewer commits are retained than in the run (`expired`). It also contains how
    many metadata objects that a scenario would keep were never decoded (`unknown`).

    Attributes:
        policies: The lake and its refs as modified by each scenario, keyed by the scenario's bit.
    """

    policies: Mapping[int, tuple[Lake, FrozenRefs]]
    roots: RootTables
    logs: tuple[str, ...]
    edges: tuple[str, ...]
    containers: tuple[str, ...]
    unreadable: tuple[str, ...]
    former_roots: tuple[str, ...]
    as_of: datetime
    grace_cutoff: datetime
    run: TableRun
    rows: int

    @classmethod
    def of(cls, context: RunContext, lake_name: str, scenarios: Mapping[int, Scenario]) -> ScenarioTask:
        """Build the task for one lake.

        Args:
            scenarios: The scenarios that include the lake, keyed by their bits.

        Raises:
            UsageError: If the run could not read the lake, or if the lake has lifecycle rules,
                because their effect in a scenario is unknown.
            StateError: If an input table was published again after the lake's live set.
        """
        live, inputs = context.table(LIVE_FILES, lake_name), find_root_inputs(context, lake_name)
        refuse_mixed(live, inputs.values())
        refs, graph = inputs[LAKE_REFS.name], inputs[COMMIT_GRAPH.name]
        if context.config.lake(lake_name).has_lifecycle:
            raise UsageError(
                f"Cannot compute a scenario for lake {lake_name}: its lifecycle rules release files of retained commits, and "
                "their effect in a scenario is unknown. Select other lakes with --lake."
            )
        unread = [item.message for item in live.summary(LiveFilesSummary).unreadable if item.is_whole_lake]
        if unread or inputs[REACHABLE_SNAPSHOTS.name].summary(ReachableSnapshotsSummary).unread is not None:
            raise UsageError(
                f"Cannot compute a scenario for lake {lake_name}: it could not be read on {context.run_date}. Choose an earlier --run-date"
            )
        summary = refs.summary(LakeRefsSummary)
        cache = find_segments(context, lake_name)
        cached = context.state.segments(cache)
        return cls(
            {bit: _apply_scenario(context, lake_name, refs, scenario) for bit, scenario in scenarios.items()},
            open_root_tables(context, lake_name, inputs),
            find_expiry_logs(context, lake_name, until=inputs[REACHABLE_SNAPSHOTS.name].receipt.run_id),
            tuple(cached.paths(EDGES_SIDE)),
            tuple(cached.paths(CONTAINERS_SIDE)),
            tuple(live.paths(UNREADABLE_ROOTS_SIDE)),
            tuple(live.paths(FORMER_ROOTS_SIDE)),
            summary.as_of,
            summary.frozen_at - context.longest_grace(),
            context.state.start(SCRATCH, lake_name, context.run_date, context.clock),
            graph.rows * (len(scenarios) + 1) + count_segment_rows(cache, EDGES_SIDE) + count_segment_rows(cache, CONTAINERS_SIDE),
        )

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = self.roots.files
        for _ in batches:
            commits = read_parts(files, list(self.roots.graph), COMMIT_GRAPH.schema)
            edges = read_edges(files, self.edges)
            decoded = read_parts(files, list(self.containers), CONTAINERS, ["container"]).column("container").combine_chunks()
            unreadable = as_optional_live(read_parts(files, list(self.unreadable), UNREADABLE_ROOTS).select(ROOTS.names))
            kept = pa.concat_tables([unreadable, read_live_roots(files, self.former_roots)])
            edits = read_edits(files, self.logs)
            reachable = read_parts(files, list(self.roots.reachable), REACHABLE_SNAPSHOTS.schema, ["state"])
            below, named = _live(self.roots, pa.concat_tables([read_content_roots(self.roots), kept]), edges, 0)
            current, found, expired, unknown = below, [(below, named)], dict[str, int](), pa.array([], pa.string())
            for bit, (lake, refs) in self.policies.items():
                retention = lake.retain(replace(refs, edits=edits), commits, self.as_of, self.grace_cutoff)
                roots = rank_roots(self.roots, RetentionTables(retention.reachable, retention.expiry, retention.contents))
                below, named = _live(self.roots, pa.concat_tables([roots, kept]), edges, bit)
                found.append((below, named))
                expired[str(bit)] = _count_retained(reachable) - _count_retained(retention.reachable)
                new_containers = below.filter(pc.invert(pc.is_in(below.column("container"), current.column("container").combine_chunks())))
                undecoded = new_containers.filter(pc.invert(pc.is_in(new_containers.column("container"), decoded))).column("container")
                unknown = pc.unique(pa.concat_arrays([unknown, undecoded.combine_chunks()]))
            side_tables = {
                SCENARIO_CONTAINERS_SIDE: _merge_bits([one for one, _ in found], SCENARIO_CONTAINERS),
                SCENARIO_FILES_SIDE: _merge_bits([other for _, other in found], SCENARIO_FILES),
            }
            parts = [part for side, rows in side_tables.items() for part in write_parts(rows, self.run, files, side)]
            yield report_parts(parts, summary={"expired": expired, "unknown": len(unknown)})


def _apply_scenario(context: RunContext, lake_name: str, refs: PublishedTable, scenario: Scenario) -> tuple[Lake, FrozenRefs]:
    """Return the lake with the retention of a scenario, and its refs without the dropped ones."""
    own = context.config.lake(lake_name)
    changed = own if scenario.retention is None else own.with_retention(scenario.retention)
    lakes = tuple(changed if item.name == lake_name else item for item in context.config.lakes)
    lake = replace(context, config=context.config.model_copy(update={"lakes": lakes})).lake(lake_name)
    frozen = read_policy_refs(context, lake, refs)
    left = tuple(ref for ref in frozen.refs if ref.ref_name not in scenario.dropped)
    previous = tuple(item for item in frozen.previous if item.ref.ref_name not in scenario.dropped)
    return lake, replace(frozen, refs=left, previous=previous)


def _live(tables: RootTables, roots: pa.Table, edges: EdgeIndex, bit: int) -> tuple[pa.Table, pa.Table]:
    """Find all containers and files that are live according to ranked content roots.

    Returns:
        The live containers (`SCENARIO_CONTAINERS` columns), and the containers and roots as files
        in storages (`SCENARIO_FILES` columns). Neither contains duplicates.
    """
    files = pc.not_equal(roots.column("kind"), Kind.UNLISTED_LOCATION)
    live = roots.filter(pc.and_(files, pc.less_equal(roots.column("rank"), SPARED)))
    found = closure(live, edges)
    kept = list_kept_containers(tables, closure(roots, edges)) if tables.metadata_claims else found.slice(0, 0)
    direct = pa.concat_tables([found, kept, live.filter(pc.invert(live.column("is_container")))])
    located = direct.filter(pc.is_valid(direct.column("storage"))).group_by(["storage", "key"]).aggregate([])
    mark = pa.scalar(1 << bit, pa.int64())
    below = pa.table({"container": found.column("address"), "live": pa.repeat(mark, found.num_rows)}, SCENARIO_CONTAINERS)
    return below, located.append_column("live", pa.repeat(mark, located.num_rows)).select(SCENARIO_FILES.names).cast(SCENARIO_FILES)


def _merge_bits(policies: list[pa.Table], schema: pa.Schema) -> pa.Table:
    """Combine the bits of all scenarios, so that each container or file occurs once."""
    by = [name for name in schema.names if name != "live"]
    # No scenario contains a row twice, so adding the bits combines them.
    return aggregate_rows(pa.concat_tables(policies), by, {"live": "sum"}).select(schema.names).cast(schema)


def _count_retained(reachable: pa.Table) -> int:
    return pc.sum(pc.equal(reachable.column("state"), RETAINED)).as_py() or 0


def delete_scratch(files: Files, run: TableRun) -> None:
    """Delete the directory of an unpublished run if it exists."""
    parent, _, name = run.path.rpartition("/")
    if name in files.directories(parent):
        files.delete_directory(run.path)


def refuse_mixed(table: PublishedTable, inputs: Iterable[PublishedTable]) -> None:
    """Refuse to combine a table with inputs that were published again after it was made.

    Raises:
        StateError: If the receipt of the table refers to an earlier run of an input.
    """
    for item in inputs:
        place = f"{item.receipt.group}/{item.receipt.asset}/{item.receipt.run_date}"
        if table.receipt.inputs.get(place, item.receipt.reference) != item.receipt.reference:
            raise StateError(
                f"Cannot use {table.receipt.group}/{table.receipt.asset} of {table.receipt.run_date}: it was computed from an "
                f"earlier run of {item.receipt.group}/{item.receipt.asset}. Finish the newest run with "
                f"`{command('run', run_date=str(table.receipt.run_date))}`"
            )
