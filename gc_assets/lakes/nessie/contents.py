"""Find live contents: versions of tables and views that retained commits need.

Contents are live if a retained commit puts them, or if they belong to the state at the end of a
retained log. All functions are pure. Each operation is a row, and a state is a selection of rows.
Source: *Nessie GC internals*, "Identify live contents"
(`gc-base/…/identify/IdentifyLiveContents.java`). If a retained commit puts a content, it is live
even if a later commit drops the table (projectnessie/nessie#5210).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.chains import Ints
from gc_assets.lakes.nessie.log_forest import Bools, LogForest
from gc_assets.lakes.nessie.operations import LISTED, operation_table
from gc_assets.state.schemas import LIVE_CONTENTS

_Part = tuple[Ints, Ints, Sequence[str | None], bool]


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """All operations of all commits, ordered by key, and from old to new within each log.

    For each operation, `commit` is the position of its commit, and `key` is the number of its key.
    """

    rows: pa.Table
    commit: Ints
    key: Ints

    @classmethod
    def of(cls, history: LogForest, texts: Sequence[str | None]) -> Self:
        """Parse the operations of each commit from the lines of `operations.operation_lines`."""
        rows, commit = operation_table(list(texts))
        key = rows.column("key").combine_chunks().dictionary_encode().indices.to_numpy() if rows.num_rows else np.zeros(0, np.int32)
        order = np.lexsort((np.arange(len(commit)), history.depth[commit], key))
        return cls(rows.take(pa.array(order)), commit[order], key[order])

    def state_rows(self, history: LogForest, at: int) -> Ints:
        """Select the rows of the state at a commit: each key's newest operation, if that is a put."""
        before = np.flatnonzero(history.select_log(at)[self.commit])
        keys = self.key[before]
        newest = before[np.append(keys[1:] != keys[:-1], np.ones(min(1, len(keys)), np.bool_))]
        return newest[self.is_put[newest]].astype(np.int32)

    @property
    def is_put(self) -> Bools:
        return self.rows.column("type").is_valid().to_numpy()

    @property
    def is_listed(self) -> Bools:
        """True for puts of content types with files that gc-assets can list."""
        return pc.is_in(self.rows.column("type"), pa.array(LISTED)).to_numpy()


def state_digest(lines: Iterable[str]) -> str:
    """Compute the digest of a state from the result of `operations.state_lines`."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def live_contents(
    history: LogForest,
    operations: Operations,
    retained: Bools,
    oldest: Mapping[int, str],
    heads: Mapping[int, str],
    ref_of: Sequence[str | None],
    *,
    branches: Collection[int] = (),
    unreferenced: Iterable[int] = (),
) -> pa.Table:
    """Find the live contents.

    Args:
        history: All commits.
        operations: Operations of all commits.
        retained: True for retained commits.
        oldest: Position of the oldest retained commit of each log, with the name of one of its
            refs.
        heads: Positions of ref heads, with the name of one of their refs.
        ref_of: Name of a ref that reaches each commit, or None.
        branches: Positions of branch heads.
        unreferenced: Positions of commits that no ref reaches and whose complete state is live.

    Returns:
        One row per distinct content, metadata location and snapshot, with the columns of
        `LIVE_CONTENTS`. `ref_name` and `commit_id` show why the content is live. `at_head` is true
        if the state at any head contains it, and `on_branch` if the state at a branch head does.
    """
    listed = operations.is_listed
    put = np.flatnonzero(listed & retained[operations.commit]).astype(np.int32)
    refs = [ref_of[commit] for commit in operations.commit[put]]
    has_ref = np.array([ref is not None for ref in refs], np.bool_)
    # A part consists of rows of `operations`, the commit and ref in which they are visible, and a
    # flag for heads. The first row of a content explains why it is live, so the best parts come
    # first.
    parts: list[_Part] = [(put[has_ref], operations.commit[put[has_ref]], [ref for ref in refs if ref is not None], False)]
    states = {**heads, **oldest}.items()
    parts += [_state_part(history, operations, listed, commit, ref, is_head=commit in heads) for commit, ref in states]
    parts.append((put[~has_ref], operations.commit[put[~has_ref]], [None] * int(np.count_nonzero(~has_ref)), False))
    parts += [_state_part(history, operations, listed, commit, None, is_head=False) for commit in unreferenced]
    rows = operations.rows.take(pa.array(np.concatenate([part[0] for part in parts])))
    commits = np.concatenate([part[1] for part in parts])
    at_head = np.concatenate([np.full(len(part[0]), part[3]) for part in parts])
    table = pa.table(
        {
            "content_id": rows.column("id"),
            "metadata_location": rows.column("location"),
            "snapshot_id": rows.column("snapshot"),
            "content_key": rows.column("key"),
            "content_type": rows.column("type"),
            "ref_name": pa.array([name for part in parts for name in part[2]], pa.string()),
            "commit_id": history.graph.commit_ids.take(pa.array(commits)),
            "at_head": pa.array(at_head),
            "on_branch": pa.array(at_head & np.isin(commits, list(branches))),
        }
    )
    return _deduplicate(table)


def _state_part(history: LogForest, operations: Operations, listed: Bools, commit: int, ref: str | None, *, is_head: bool) -> _Part:
    state = operations.state_rows(history, commit)
    state = state[listed[state]]
    return state, np.full(len(state), commit, np.int32), [ref] * len(state), is_head


def _deduplicate(rows: pa.Table) -> pa.Table:
    """Keep the first row of each content. Its `at_head` and `on_branch` are true if any row's are."""
    key, flags = list(LIVE_CONTENTS.key), ("at_head", "on_branch")
    others = [name for name in LIVE_CONTENTS.schema.names if name not in {*key, *flags}]
    aggregations = [(name, "first", pc.ScalarAggregateOptions(skip_nulls=False)) for name in others]
    grouped = rows.group_by(key, use_threads=False).aggregate([*aggregations, *((name, "any") for name in flags)])
    renames = {f"{name}_first": name for name in others} | {f"{name}_any": name for name in flags}
    return (
        grouped.rename_columns([renames.get(name, name) for name in grouped.column_names])
        .select(LIVE_CONTENTS.schema.names)
        .cast(LIVE_CONTENTS.schema)
    )
