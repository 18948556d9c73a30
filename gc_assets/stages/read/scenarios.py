"""Says which files of a lake are live under other policies and refs than those of a night.

The policy speaks anew, over the refs and the commit graph that the night froze. What its word needs
is followed through the containers that were decoded by then. Nothing of the lake is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import StateError, UsageError
from gc_assets.core.suggest import did_you_mean, join_names
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows, report_parts, write_parts
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.protocol import RETAINED, FrozenRefs, Lake
from gc_assets.stages.mark.content_roots import (
    SPARED,
    RetentionTables,
    RootTables,
    closure,
    find_root_inputs,
    open_root_tables,
    rank_roots,
    read_content_roots,
)
from gc_assets.stages.mark.edges import read_edges
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
    ROOTS,
    SCENARIO_CONTAINERS,
    SCENARIO_CONTAINERS_SIDE,
    SCENARIO_FILES,
    SCENARIO_FILES_SIDE,
    UNREADABLE_ROOTS,
    UNREADABLE_ROOTS_SIDE,
)
from gc_assets.state.summaries import LakeRefsSummary, LiveFilesSummary, ReachableSnapshotsSummary

# A signed number of 64 bits says under which words a file is live: bit 0 stands for the night's own,
# bit n for the n-th scenario.
MAX_SCENARIOS: Final = 62
SCRATCH: Final = "_what_if"


@dataclass(frozen=True, slots=True)
class Scenario:
    """What might hold instead of a night's policy and refs.

    `retention` replaces the default cut-off of the `lakes`; null leaves what the configuration says
    now. `dropped` are names of refs that count as deleted, and whose deletion is so long ago that
    the lake keeps nothing for its sake.
    """

    label: str
    lakes: tuple[str, ...]
    retention: str | None = None
    dropped: frozenset[str] = frozenset()


def ref_names(context: RunContext, lake_name: str) -> list[str]:
    """Returns the names of the lake's refs as frozen, each once, by alphabet."""
    names = read_rows(context.state, LAKE_REFS, context.table(LAKE_REFS, lake_name), columns=["ref_name"]).column("ref_name")
    return sorted(names.unique().to_pylist())


def lakes_with_refs(context: RunContext, lakes: Sequence[str], refs: Collection[str]) -> list[str]:
    """Returns the lakes that have one of these refs, or all of them where none has."""
    return [lake for lake in lakes if not set(refs).isdisjoint(ref_names(context, lake))] or list(lakes)


def require_refs(context: RunContext, scenario: Scenario) -> None:
    """Raises `UsageError` for a dropped ref that none of the scenario's lakes has."""
    if not scenario.dropped:
        return
    known = {name for lake in scenario.lakes for name in ref_names(context, lake)}
    for name in sorted(scenario.dropped - known):
        hint = did_you_mean(name, known) or f"; there are {join_names(sorted(known)) or 'none'}"
        raise UsageError(f"no ref {name} was frozen on {context.run_date} in {', '.join(scenario.lakes)}{hint}")


@dataclass(frozen=True)
class ScenarioTask:
    """Lets the policy speak once for each scenario, and writes which containers and files are live
    by the night's word and by theirs.

    `words` are the lake and its refs under each scenario, by the scenario's bit. Reports by bit how
    many commits fewer than by the night's word are retained (`expired`), and how many metadata
    objects that some scenario keeps again were never decoded (`unknown`). One task, here or in an
    executor (`run_single_task`).
    """

    words: Mapping[int, tuple[Lake, FrozenRefs]]
    roots: RootTables
    logs: tuple[str, ...]
    edges: tuple[str, ...]
    containers: tuple[str, ...]
    unreadable: tuple[str, ...]
    as_of: datetime
    grace_cutoff: datetime
    run: TableRun
    rows: int

    @classmethod
    def of(cls, context: RunContext, lake_name: str, scenarios: Mapping[int, Scenario]) -> ScenarioTask:
        """Returns the task for a lake and the scenarios about it, by their bits.

        Raises `UsageError` where the night could not read the lake, and where rules over paths
        release files of its commits: what these release under other refs is not known. Raises
        `StateError` where the night was marked in part since its live set was published.
        """
        live, inputs = context.table(LIVE_FILES, lake_name), find_root_inputs(context, lake_name)
        refuse_mixed(live, inputs.values())
        refs, graph = inputs[LAKE_REFS.name], inputs[COMMIT_GRAPH.name]
        if context.config.lake(lake_name).has_lifecycle:
            raise UsageError(
                f"lake {lake_name}: its lifecycle rules release files of commits that stay, and what they would release then is not known; "
                "name the other lakes with --lake"
            )
        unread = [item.message for item in live.summary(LiveFilesSummary).unreadable if item.is_whole_lake]
        if unread or inputs[REACHABLE_SNAPSHOTS.name].summary(ReachableSnapshotsSummary).unread is not None:
            raise UsageError(f"lake {lake_name} could not be read on {context.run_date}; choose a --run-date before that")
        summary = refs.summary(LakeRefsSummary)
        cache = find_segments(context, lake_name)
        there = context.state.segments(cache)
        return cls(
            {bit: _word(context, lake_name, refs, scenario) for bit, scenario in scenarios.items()},
            open_root_tables(context, lake_name, inputs),
            find_expiry_logs(context, lake_name, until=inputs[REACHABLE_SNAPSHOTS.name].receipt.run_id),
            tuple(there.paths(EDGES_SIDE)),
            tuple(there.paths(CONTAINERS_SIDE)),
            tuple(live.paths(UNREADABLE_ROOTS_SIDE)),
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
            edits = read_edits(files, self.logs)
            judged = read_parts(files, list(self.roots.reachable), REACHABLE_SNAPSHOTS.schema, ["state"])
            below, named = _live(pa.concat_tables([read_content_roots(self.roots), unreadable]), edges, 0)
            tonight, found, expired, unknown = below, [(below, named)], dict[str, int](), pa.array([], pa.string())
            for bit, (lake, refs) in self.words.items():
                retention = lake.retain(replace(refs, edits=edits), commits, self.as_of, self.grace_cutoff)
                roots = rank_roots(self.roots, RetentionTables(retention.reachable, retention.expiry, retention.contents))
                below, named = _live(pa.concat_tables([roots, unreadable]), edges, bit)
                found.append((below, named))
                expired[str(bit)] = _retained(judged) - _retained(retention.reachable)
                again = below.filter(pc.invert(pc.is_in(below.column("container"), tonight.column("container").combine_chunks())))
                undecoded = again.filter(pc.invert(pc.is_in(again.column("container"), decoded))).column("container")
                unknown = pc.unique(pa.concat_arrays([unknown, undecoded.combine_chunks()]))
            sides = {
                SCENARIO_CONTAINERS_SIDE: _together([one for one, _ in found], SCENARIO_CONTAINERS),
                SCENARIO_FILES_SIDE: _together([other for _, other in found], SCENARIO_FILES),
            }
            parts = [part for side, rows in sides.items() for part in write_parts(rows, self.run, files, side)]
            yield report_parts(parts, summary={"expired": expired, "unknown": len(unknown)})


def _word(context: RunContext, lake_name: str, refs: PublishedTable, scenario: Scenario) -> tuple[Lake, FrozenRefs]:
    """Returns the lake as a scenario configures it, and the refs that are left there."""
    own = context.config.lake(lake_name)
    changed = own if scenario.retention is None else own.with_retention(scenario.retention)
    lakes = tuple(changed if item.name == lake_name else item for item in context.config.lakes)
    lake = replace(context, config=context.config.model_copy(update={"lakes": lakes})).lake(lake_name)
    frozen = read_policy_refs(context, lake, refs)
    left = tuple(ref for ref in frozen.refs if ref.ref_name not in scenario.dropped)
    previous = tuple(item for item in frozen.previous if item.ref.ref_name not in scenario.dropped)
    return lake, replace(frozen, refs=left, previous=previous)


def _live(roots: pa.Table, edges: pa.Table, bit: int) -> tuple[pa.Table, pa.Table]:
    """Returns the live containers below the roots (columns `SCENARIO_CONTAINERS`), and the live files that these
    and the roots are (columns `SCENARIO_FILES`), each once.
    """
    files = pc.not_equal(roots.column("kind"), Kind.UNLISTED_LOCATION)
    live = roots.filter(pc.and_(files, pc.less_equal(roots.column("rank"), SPARED)))
    found = closure(live, edges)
    direct = pa.concat_tables([found, live.filter(pc.invert(live.column("is_container")))])
    placed = direct.filter(pc.is_valid(direct.column("storage"))).group_by(["storage", "key"]).aggregate([])
    mark = pa.scalar(1 << bit, pa.int64())
    below = pa.table({"container": found.column("address"), "live": pa.repeat(mark, found.num_rows)}, SCENARIO_CONTAINERS)
    return below, placed.append_column("live", pa.repeat(mark, placed.num_rows)).select(SCENARIO_FILES.names).cast(SCENARIO_FILES)


def _together(words: list[pa.Table], schema: pa.Schema) -> pa.Table:
    """Returns each container or file once, with the bits of all words under which it is live."""
    by = [name for name in schema.names if name != "live"]
    # A word names each row once, so the sum of its bits is their union.
    summed = pa.concat_tables(words).group_by(by).aggregate([("live", "sum")])
    return summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names]).select(schema.names).cast(schema)


def _retained(reachable: pa.Table) -> int:
    return pc.sum(pc.equal(reachable.column("state"), RETAINED)).as_py() or 0


def delete_scratch(files: Files, run: TableRun) -> None:
    """Removes what was written for a run that is not published. It may have been nothing."""
    parent, _, name = run.path.rpartition("/")
    if name in files.directories(parent):
        files.delete_directory(run.path)


def refuse_mixed(table: PublishedTable, inputs: Iterable[PublishedTable]) -> None:
    """Raises `StateError` where one of these was published anew since the table was made of it."""
    for item in inputs:
        place = f"{item.receipt.group}/{item.receipt.asset}/{item.receipt.run_date}"
        if table.receipt.inputs.get(place, item.receipt.reference) != item.receipt.reference:
            raise StateError(
                f"{table.receipt.group}/{table.receipt.asset} of {table.receipt.run_date} was made of another run of "
                f"{item.receipt.group}/{item.receipt.asset}; finish the night: `gc-assets run --run-date {table.receipt.run_date}`"
            )
