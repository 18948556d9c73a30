"""Commit graph of an Icechunk repository, its refs, and the retention rules for the refs.

All functions are pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.forest import Reach, build_forest, refs_reaching
from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.icechunk.expiration import History, RefPointer, Rule
from gc_assets.lakes.icechunk.ref_names import other_name
from gc_assets.lakes.protocol import Commit, FrozenRefs
from gc_assets.state.arrow_types import TIMESTAMP
from gc_assets.state.schemas import COMMIT_GRAPH

# Keys in a commit's summary. `UNREADABLE` contains the reason if the snapshot object cannot be
# read. `ENTRY` contains the snapshot's entry in `repo` as JSON (spec version 2). It is missing for
# snapshot files that `repo` does not list.
UNREADABLE = "unreadable"
ENTRY = "entry"
# When a listed snapshot's object was stored, in microseconds since 1970.
STORED = "stored_us"


@dataclass(frozen=True, slots=True)
class Graph:
    """Snapshots and refs of a repository. All mappings have snapshot positions as keys.

    Attributes:
        missing_parent: Id of the parent, if it is not among the snapshots.
        unreadable: Why the snapshot cannot be read.
        entries: Entry in `repo`, for listed snapshots. Empty for spec version 1.
        stored: When the snapshot's object was stored, in microseconds since 1970.
        pointers: The refs with their heads and rules: tags first, each group sorted by name.
        renamed: Refs that have a second name, with the rule that applies to this name. They can
            only protect snapshots from expiry.
        reach: Refs that reach each snapshot before any edit, indexed by the snapshot's position.
    """

    history: History
    missing_parent: Mapping[int, str]
    unreadable: Mapping[int, str]
    entries: Mapping[int, str]
    stored: Mapping[int, int]
    pointers: Sequence[RefPointer]
    renamed: Sequence[RefPointer]
    reach: Sequence[Reach]

    @property
    def ids(self) -> Sequence[str]:
        return self.history.forest.ids


def commit_table(commits: Iterable[Commit]) -> pa.Table:
    """Build a table of those `commit_graph` columns that `read_graph` needs."""
    names = ("commit_id", "parents", "committed_at", "summary")
    rows = [(commit.commit_id, commit.parents, commit.committed_at, list(commit.summary.items())) for commit in commits]
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    schema = pa.schema([COMMIT_GRAPH.schema.field(name) for name in names])
    return pa.Table.from_arrays([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)


def read_graph(refs: FrozenRefs, commits: pa.Table, as_of: datetime, config: IcechunkLakeConfig) -> Graph:
    """Build the graph.

    Args:
        refs: Refs read at the start of the run.
        commits: All snapshots, with the columns of `commit_graph`.
        as_of: Time at which the ages of snapshots are computed.
        config: Configuration that contains the rules.

    Raises:
        LakeUnreadable: If the head of a ref is not among the snapshots.
    """
    ids = commits["commit_id"].to_pylist()
    parents = [next(iter(named or ()), None) for named in commits["parents"].to_pylist()]
    forest = build_forest(ids, parents)
    missing = {index: parent for index, parent in enumerate(parents) if parent is not None and parent not in forest.position}
    stamps = commits["committed_at"].cast(TIMESTAMP).cast(pa.int64()).to_pylist()
    summaries = commits["summary"].to_pylist(maps_as_pydicts="lossy")
    unreadable, entries, stored = (
        {index: summary[key] for index, summary in enumerate(summaries) if summary and key in summary}
        for key in (UNREADABLE, ENTRY, STORED)
    )
    stored_us = {index: int(value) for index, value in stored.items()}

    def rule_for(name: str) -> Rule:
        cutoff, path = config.retention.cutoff_for(name)
        return Rule(cutoff, path, cutoff.moment_micros(as_of))

    pointers, renamed = list[RefPointer](), list[RefPointer]()
    for ref in sorted(refs.refs, key=lambda ref: (ref.ref_type != "tag", ref.ref_name)):
        if ref.head_commit_id is None or ref.head_commit_id not in forest.position:
            raise LakeUnreadable(
                f"lake {refs.lake}: {ref.ref_type} {ref.ref_name!r} points to snapshot {ref.head_commit_id}, which is not in snapshots/; "
                "run again if it was just written, otherwise restore the snapshot or delete the ref with icechunk"
            )
        head = forest.position[ref.head_commit_id]
        pointers.append(RefPointer(ref, head, rule_for(ref.ref_name)))
        if (name := other_name(ref.properties)) is not None and (rule := rule_for(name)) != pointers[-1].rule:
            renamed.append(RefPointer(ref, head, rule))
    heads: dict[int, list[str]] = defaultdict(list)
    shared = shared_names(pointers)
    for pointer in pointers:
        heads[pointer.head].append(pointer.label if pointer.ref.ref_name in shared else pointer.ref.ref_name)
    reach = refs_reaching(forest, heads)
    return Graph(History.of(forest, stamps, missing), missing, unreadable, entries, stored_us, pointers, renamed, reach)


def shared_names(pointers: Sequence[RefPointer]) -> frozenset[str]:
    """Return the names that several refs share, such as a branch and a tag."""
    return frozenset(name for name, count in Counter(pointer.ref.ref_name for pointer in pointers).items() if count > 1)
