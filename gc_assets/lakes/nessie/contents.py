"""Which contents the live commits of a lake show: the contents that they put, and the whole state
where each ref's log is cut.

Pure, over columns: an operation is a row, a state is a selection of rows. Source: *Nessie GC
internals*, "Identify live contents" (`gc-base/…/identify/IdentifyLiveContents.java`). A put of a
live commit stays live although a later commit drops the table (#5210).
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


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """Every operation of every commit, ordered by key and then from old to new on any one log.

    `commit` and `key` are positions.
    """

    rows: pa.Table
    commit: Ints
    key: Ints

    @classmethod
    def of(cls, history: LogForest, texts: Sequence[str | None]) -> Self:
        """Reads the operations of each commit from `texts`, as `operations.operation_lines` wrote
        them.
        """
        rows, commit = operation_table(list(texts))
        key = rows.column("key").combine_chunks().dictionary_encode().indices.to_numpy() if rows.num_rows else np.zeros(0, np.int32)
        order = np.lexsort((np.arange(len(commit)), history.depth[commit], key))
        return cls(rows.take(pa.array(order)), commit[order], key[order])

    def state(self, history: LogForest, at: int) -> Ints:
        """Returns the rows that make the state at a commit: the newest operation of each key, if it
        is a put.
        """
        before = np.flatnonzero(history.log(at)[self.commit])
        keys = self.key[before]
        newest = before[np.append(keys[1:] != keys[:-1], np.ones(min(1, len(keys)), np.bool_))]
        return newest[self.is_put[newest]].astype(np.int32)

    @property
    def is_put(self) -> Bools:
        return self.rows.column("type").is_valid().to_numpy()

    @property
    def is_listed(self) -> Bools:
        """True for puts of types whose files can be listed."""
        return pc.is_in(self.rows.column("type"), pa.array(LISTED)).to_numpy()


def state_digest(lines: Iterable[str]) -> str:
    """Returns the digest of the lines of `operations.state_lines`. Equal states have equal digests."""
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
    unnamed: Iterable[int] = (),
) -> pa.Table:
    """Returns one row per distinct (content, metadata location, snapshot), columns of
    `LIVE_CONTENTS`. Each row names one ref and one commit that show the content.

    `oldest` are the last live commits of the logs and `heads` the heads, each with the name of a
    ref. `ref_of` names one ref for each commit. `branches` are the heads of branches. `at_head` is
    true where some ref shows the content now, `on_branch` where some branch does. At the commits
    `unnamed` the whole state is live too, and no ref shows it.
    """
    listed = operations.is_listed
    put = np.flatnonzero(listed & retained[operations.commit]).astype(np.int32)
    refs = [ref_of[commit] for commit in operations.commit[put]]
    named = np.array([ref is not None for ref in refs], np.bool_)
    # Each part holds rows of `operations`, the commit and the ref that show them, and whether that
    # commit is a head. The best witness comes first.
    parts: list[tuple[Ints, Ints, Sequence[str | None], bool]] = [
        (put[named], operations.commit[put[named]], [ref for ref in refs if ref is not None], False)
    ]
    for commit, ref in {**heads, **oldest}.items():
        state = operations.state(history, commit)
        state = state[listed[state]]
        parts.append((state, np.full(len(state), commit, np.int32), [ref] * len(state), commit in heads))
    parts.append((put[~named], operations.commit[put[~named]], [None] * int(np.count_nonzero(~named)), False))
    for commit in unnamed:
        state = operations.state(history, commit)
        state = state[listed[state]]
        parts.append((state, np.full(len(state), commit, np.int32), [None] * len(state), False))
    rows = operations.rows.take(pa.array(np.concatenate([part[0] for part in parts])))
    commits = np.concatenate([part[1] for part in parts])
    at_head = np.concatenate([np.full(len(part[0]), part[3]) for part in parts])
    everything = pa.table(
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
    return _distinct(everything)


def _distinct(rows: pa.Table) -> pa.Table:
    """Returns the first row of each content. `at_head` and `on_branch` are true where they are true
    in any of its rows.
    """
    key, any_of = list(LIVE_CONTENTS.key), ("at_head", "on_branch")
    others = [name for name in LIVE_CONTENTS.schema.names if name not in {*key, *any_of}]
    how = [(name, "first", pc.ScalarAggregateOptions(skip_nulls=False)) for name in others]
    grouped = rows.group_by(key, use_threads=False).aggregate([*how, *((name, "any") for name in any_of)])
    named = {f"{name}_first": name for name in others} | {f"{name}_any": name for name in any_of}
    return (
        grouped.rename_columns([named.get(name, name) for name in grouped.column_names])
        .select(LIVE_CONTENTS.schema.names)
        .cast(LIVE_CONTENTS.schema)
    )
