"""Find lakeFS commits whose objects lifecycle rules may newly release, and classify ranges.

All work is done in a single Arrow task, because a lake has millions of objects, but only thousands
of commits and ranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from gc_assets.core.arrow_rows import aggregate_rows
from gc_assets.core.graph import CommitGraph
from gc_assets.core.moments import to_micros
from gc_assets.engine.progress import log_activity, log_progress, start_run
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import merge_written, publish, report_parts, write_parts, write_rows
from gc_assets.engine.tasks import run_single_task
from gc_assets.lakes.lakefs.config import LakeFsLakeConfig
from gc_assets.lakes.lakefs.lifecycle import BEGINNING, OTHERS, Rule, class_of, commit_bound
from gc_assets.lakes.lakefs.tables import POTENTIAL_COMMITS
from gc_assets.lakes.protocol import RETAINED, Ref
from gc_assets.stages.mark.lake_refs import read_frozen_refs
from gc_assets.stages.mark.lakefs.rules import read_lifecycle_rules
from gc_assets.stages.mark.manifest_entries import count_segment_rows, find_segments
from gc_assets.stages.mark.policy import newest_finished_date
from gc_assets.state.arrow_types import STRINGS, TIMESTAMP
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import COMMIT_GRAPH, LAKE_REFS, MANIFEST_ENTRIES, REACHABLE_SNAPSHOTS
from gc_assets.state.side_tables import EDGES, EDGES_SIDE, HEADS, HEADS_SIDE, RANGES, RANGES_SIDE
from gc_assets.state.summaries import PotentialCommitsSummary

_FIRST: Final = "\0"


@log_progress(POTENTIAL_COMMITS)
def potential_commits(spark: SparkSession, context: RunContext, lake_name: str) -> PublishedTable:
    """Publish `potential_commits` for a run date: the commits that lifecycle rules must examine.

    Users can set the date of a commit. Therefore, a commit that the newest finished run did not
    contain is potential regardless of its date, if a rule applies to one of its branches.
    """
    state = context.state
    refs = context.table(LAKE_REFS, lake_name)
    graph = context.table(COMMIT_GRAPH, lake_name)
    reachable = context.table(REACHABLE_SNAPSHOTS, lake_name)
    entries = context.table(MANIFEST_ENTRIES, lake_name)
    day = newest_finished_date(context)
    seen = state.current(lake_name, COMMIT_GRAPH.name, day) if day is not None else None
    run = start_run(context, context.group(lake_name), POTENTIAL_COMMITS)
    log_activity(f"matching the lifecycle rules with {graph.rows:,} commits")
    lake = context.config.lake(lake_name)
    tags_ignored = isinstance(lake, LakeFsLakeConfig) and lake.retention.tags == "ignore"
    task = _Classify(
        tuple(read_lifecycle_rules(context, lake_name)),
        read_frozen_refs(context, lake_name, refs).refs,
        not tags_ignored,
        isinstance(lake, LakeFsLakeConfig) and lake.has_commit_rules,
        state.files,
        tuple(graph.paths()),
        tuple(reachable.paths()),
        tuple(context.state.paths(find_segments(context, lake_name), EDGES_SIDE)),
        tuple(seen.paths()) if seen is not None else (),
        run,
    )
    written = merge_written(
        run_single_task(spark, task, graph.rows + count_segment_rows(find_segments(context, lake_name), EDGES_SIDE), len(task.edges))
    )
    inputs = [refs, graph, reachable, entries]
    summary = PotentialCommitsSummary(**written.summary, notes=tuple(_notes(lake_name, task)))
    return publish(state, run, written, context.clock, inputs=inputs, summary=summary, unsafe=context.unsafe)


def _notes(lake_name: str, task: _Classify) -> Iterator[str]:
    branches = {ref.ref_name for ref in task.refs if ref.ref_type == "branch"}
    for rule in task.rules:
        if rule.branch is not None and rule.branch not in branches:
            yield f"lake {lake_name}: lifecycle rule {rule.rule_id!r} applies to the branch {rule.branch!r}, which does not exist"


@dataclass(frozen=True)
class _Classify:
    """Find the commits of each class of branches, and the classes that reach each range.

    A class is either a branch that a rule lists, or all other branches together (`OTHERS`).
    `run_single_task` calls it in the driver process or on an executor.
    """

    rules: tuple[Rule, ...]
    refs: tuple[Ref, ...]
    tags_protect: bool
    writes_heads: bool
    files: Files
    graph: tuple[str, ...]
    reachable: tuple[str, ...]
    edges: tuple[str, ...]
    seen: tuple[str, ...]
    run: TableRun

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            commits = read_parts(self.files, list(self.graph), COMMIT_GRAPH.schema)
            ids = commits.column("commit_id")
            graph = CommitGraph.build(ids, commits.column("parents"), commits.column("committed_at"))
            states = read_parts(self.files, list(self.reachable), REACHABLE_SNAPSHOTS.schema, ["commit_id", "state"])
            state = states.column("state").take(pc.index_in(ids, states.column("commit_id")))
            retained = pc.equal(state, RETAINED).to_numpy()
            classes, reach = self._classes(graph, retained)
            potential, rows = self._potential(commits, classes, reach, self._branches(graph))
            ranges = self._ranges(commits, classes, reach, retained, potential)
            written = write_rows(rows, POTENTIAL_COMMITS, self.run, self.files)
            parts = [*written.parts, *write_parts(ranges, self.run, self.files, RANGES_SIDE)]
            parts += write_parts(self._heads(commits), self.run, self.files, HEADS_SIDE) if self.writes_heads else ()
            yield report_parts(parts, written.digest, summary={"commits": len(ids), "potential": rows.num_rows, "ranges": ranges.num_rows})

    def _classes(self, graph: CommitGraph, retained: NDArray[np.bool_]) -> tuple[list[str], NDArray[np.bool_]]:
        """Return the classes of branches, and a matrix of which commits (rows) each class reaches.

        A retained commit that no branch reaches counts as reached by the other branches (`OTHERS`).
        """
        heads: dict[str, list[str]] = {OTHERS: []}
        for ref in self.refs:
            if ref.ref_type == "branch":
                heads.setdefault(class_of(self.rules, ref.ref_name), []).append(ref.head_commit_id or "")
        names = sorted(heads)
        reach = np.stack([graph.reachable(heads[name]) if heads[name] else np.zeros(len(graph), np.bool_) for name in names], axis=1)
        reach[retained & ~reach.any(axis=1), names.index(OTHERS)] = True
        return names, reach

    def _branches(self, graph: CommitGraph) -> pa.Array:
        """Return up to 100 branches that reach each commit. Branches listed in rules come first."""
        branches = [ref for ref in self.refs if ref.ref_type == "branch" and ref.head_commit_id is not None]
        # Branch names cannot begin with this character, so marked names sort first.
        marked = {name: _FIRST if class_of(self.rules, name) != OTHERS else "" for name in (ref.ref_name for ref in branches)}
        names = graph.reaching_refs({marked[ref.ref_name] + ref.ref_name: ref.head_commit_id or "" for ref in branches})[0].combine_chunks()
        return pa.ListArray.from_arrays(names.offsets, pc.replace_substring(names.values, _FIRST, ""))

    def _potential(
        self, commits: pa.Table, classes: list[str], reach: NDArray[np.bool_], branches: pa.Array
    ) -> tuple[NDArray[np.bool_], pa.Table]:
        sets, which = np.unique(reach, axis=0, return_inverse=True)
        which = which.reshape(-1)
        named = [[name for name, is_in in zip(classes, row, strict=True) if is_in] for row in sets.tolist()]
        bounds = [commit_bound(self.rules, members) for members in named]
        times = commits.column("committed_at").cast(pa.int64()).to_numpy()
        limits = np.array([to_micros(bound) if bound is not None else np.iinfo(np.int64).max for bound in bounds], np.int64)
        has_rule = np.array([bound is not None for bound in bounds], np.bool_)
        known = read_parts(self.files, list(self.seen), COMMIT_GRAPH.schema, ["commit_id"]).column("commit_id")
        unseen = pc.invert(pc.is_in(commits.column("commit_id"), known)).to_numpy()
        from_the_beginning = np.array([bound == BEGINNING for bound in bounds], np.bool_)
        potential = has_rule[which] & ((times > limits[which]) | unseen | from_the_beginning[which])
        columns = [
            commits.column("commit_id").filter(pa.array(potential)),
            branches.filter(pa.array(potential)),
            pa.array([None if bound in {None, BEGINNING} else bound for bound in bounds], TIMESTAMP).take(pa.array(which[potential])),
        ]
        return potential, pa.table(columns, schema=POTENTIAL_COMMITS.schema)

    def _heads(self, commits: pa.Table) -> pa.Table:
        """Return the ranges at each branch head, as rows of `HEADS`."""
        branches = [ref for ref in self.refs if ref.ref_type == "branch"]
        names, commit_ids = [ref.ref_name for ref in branches], [ref.head_commit_id for ref in branches]
        heads = pa.table({"branch": pa.array(names, pa.string()), "commit": pa.array(commit_ids, pa.string())})
        lists = commits.column("content_roots").combine_chunks()
        owners = commits.column("commit_id").take(pc.list_parent_indices(lists))
        roots = pa.table({"commit": owners, "root": pc.struct_field(pc.list_flatten(lists), "address")})
        edges = read_parts(self.files, list(self.edges), EDGES, ["container", "address"]).rename_columns(["root", "container"])
        found = heads.join(roots, "commit", join_type="inner").join(edges, "root", join_type="inner")
        return found.select(HEADS.names).cast(HEADS)

    def _ranges(
        self, commits: pa.Table, classes: list[str], reach: NDArray[np.bool_], retained: NDArray[np.bool_], potential: NDArray[np.bool_]
    ) -> pa.Table:
        tagged = {ref.head_commit_id for ref in self.refs if ref.ref_type == "tag"} if self.tags_protect else set[str | None]()
        lists = commits.column("content_roots").combine_chunks()
        owner = pc.list_parent_indices(lists).to_numpy()
        # Commits that are neither reachable nor retained are garbage, so they do not keep objects.
        owner_counts = np.asarray(reach.any(axis=1))[owner]
        summary = {
            **{f"class {number}": reach[owner, number].astype(np.uint8) for number in range(len(classes))},
            "first_commit_at": commits.column("committed_at").cast(pa.int64()).to_numpy()[owner],
            "commits": retained[owner].astype(np.int64),
            "tagged": np.isin(
                owner, np.flatnonzero(pc.is_in(commits.column("commit_id"), pa.array(sorted(filter(None, tagged)), pa.string())))
            ),
            "potential": potential[owner],
        }
        roots = pa.table({"address": pc.struct_field(pc.list_flatten(lists), "address"), **{n: pa.array(v) for n, v in summary.items()}})
        metaranges = _merge_rows(roots.filter(pa.array(owner_counts)), classes)
        edges = read_parts(self.files, list(self.edges), EDGES, ["container", "address"])
        at = pc.index_in(edges.column("container"), metaranges.column("address"))
        held = pc.is_valid(at)
        below = metaranges.drop_columns(["address"]).take(at.filter(held)).append_column("address", edges.column("address").filter(held))
        ranges = _merge_rows(below, classes)
        masks = np.stack([ranges.column(f"class {number}").to_numpy() for number in range(len(classes))], axis=1).astype(np.bool_)
        sets, which = np.unique(masks, axis=0, return_inverse=True)
        named = pa.array([[name for name, is_in in zip(classes, row, strict=True) if is_in] for row in sets.tolist()], STRINGS)
        return pa.table(
            [
                ranges.column("address"),
                named.take(pa.array(which.reshape(-1))),
                ranges.column("first_commit_at").cast(TIMESTAMP),
                ranges.column("commits"),
                ranges.column("tagged"),
                ranges.column("potential"),
            ],
            schema=RANGES,
        )


def _merge_rows(rows: pa.Table, classes: Sequence[str]) -> pa.Table:
    """Merge the rows of each metarange or range.

    Classes are united, commits are summed, and the earliest commit time is kept.
    """
    how = {f"class {number}": "max" for number in range(len(classes))}
    how |= {"first_commit_at": "min", "commits": "sum", "tagged": "max", "potential": "max"}
    return aggregate_rows(rows, "address", how)
