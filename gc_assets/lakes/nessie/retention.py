"""The policy over the history of a server: a verdict for each commit, and the contents that the
kept commits show.

Pure: no server, no clock. History itself is never edited: a metadata file of a catalog holds one
snapshot, and readers time travel by the log of commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.units import Cutoff
from gc_assets.lakes.nessie.config import NessieLakeConfig
from gc_assets.lakes.nessie.contents import Operations, live_contents, state_digest
from gc_assets.lakes.nessie.cutoffs import Kept, kept, micros
from gc_assets.lakes.nessie.log_forest import Bools, LogForest
from gc_assets.lakes.nessie.operations import OPERATIONS, row_lines
from gc_assets.lakes.protocol import DANGLING, EXPIRED, RETAINED, FrozenRefs, PreviousRef, Ref, Retention
from gc_assets.state.arrow_types import TIMESTAMP
from gc_assets.state.schemas import EXPIRY_PLAN, REACHABLE_SNAPSHOTS

# Keys of a commit's summary, beside its operations: the digest and the number of entries of its
# state as the server lists it, and whether the log ends there although the commit has a parent
# (`cut-history` of the server's admin tool).
STATE_DIGEST = "state_digest"
STATE_ENTRIES = "state_entries"
LOG_ENDS = "log_ends"
# Key of a ref's properties: the number of commits in its log, by the server's own count.
TOTAL_COMMITS = "total_commits"
# A report names this many former refs, and counts the rest.
MAX_NAMED = 5
_Facts = Mapping[str, Sequence[str | None]]


@dataclass(frozen=True, slots=True, eq=False)
class _Log:
    """A ref with the position of its head, its cut-off, the rule that gives the cut-off, and what
    the cut-off keeps.
    """

    ref: Ref
    head: int
    cutoff: Cutoff
    rule: str
    kept: Kept

    @property
    def label(self) -> str:
        return _label(self.ref)

    @property
    def head_id(self) -> str:
        return self.ref.head_commit_id or ""


@dataclass(frozen=True, slots=True, eq=False)
class _Former:
    """A ref that an earlier night saw elsewhere, and what its cut-off would keep if it were still
    there. `kept` is null if its commits are unknown.
    """

    was: PreviousRef
    kept: Kept | None

    @property
    def sentence(self) -> str:
        where = "is gone" if self.was.moved_to is None else "points elsewhere"
        return f"{_label(self.was.ref)} pointed to {self.was.ref.head_commit_id} and {where} since {self.was.missed_at.isoformat()}"


def _label(ref: Ref) -> str:
    return f"{ref.ref_type} {ref.ref_name}"


def retain(refs: FrozenRefs, commits: pa.Table, as_of: datetime, grace_cutoff: datetime, config: NessieLakeConfig) -> Retention:
    """Returns one row per commit of `commits`, in its order, no edits of history, and the live
    contents.

    A young commit that no ref reaches is kept with the whole state behind it. A former ref keeps
    what it kept as long as `refs.previous` holds it, which is the grace period after the night that
    missed it: somebody can make it again where it was.

    Raises `LakeUnreadable` where a ref's head is not among the commits. It also raises where the
    number of commits behind a head is not the server's own count, and where the state that the log
    makes at a head is not the state that the server lists. A principal that may not see everything
    is shown less, without a word. The state is compared only where the commit's summary holds the
    server's digest.
    """
    summary = {name: _summary(commits, name) for name in (OPERATIONS, STATE_DIGEST, STATE_ENTRIES, LOG_ENDS)}
    times = commits["committed_at"].cast(TIMESTAMP).cast(pa.int64()).combine_chunks().to_numpy()
    history = LogForest.of(refs.lake, commits["commit_id"].combine_chunks(), commits["parents"].combine_chunks(), times)
    operations = Operations.of(history, summary[OPERATIONS])
    logs = _logs(refs, history, as_of, config)
    if config.empty_commits == "refuse":
        _refuse_empty_commits(refs.lake, history, summary[OPERATIONS])
    for log in logs:
        _refuse_hidden_commits(refs.lake, history, log, summary[LOG_ENDS])
    for log in {log.head: log for log in logs}.values():
        _refuse_hidden_entries(refs.lake, history, operations, log, summary)

    formers = list(_formers(refs, history, as_of, config))
    kept_by_formers = [former.kept for former in formers if former.kept is not None]
    retained = _any_of(history, [log.kept for log in logs])
    names, counts = history.graph.reaching_refs({log.ref.ref_name: log.head_id for log in logs})
    reached = counts.to_numpy() > 0
    young = ~reached & ((history.times >= (micros(grace_cutoff) or 0)) | _within_default(history, as_of, config))
    spared = young | _any_of(history, kept_by_formers)
    shown = names.to_pylist()
    rule = "retention.default" if config.retention.dangling is None else "retention.dangling"
    rows = pa.table(
        {
            "table_uuid": pa.nulls(len(history), pa.string()),
            "commit_id": commits["commit_id"],
            "state": [RETAINED if keep else EXPIRED if reach else DANGLING for keep, reach in zip(retained | spared, reached, strict=True)],
            "refs": names,
            "refs_count": counts,
            "keep_until": pa.array(_keep_until(history, logs, retained), TIMESTAMP),
            "reason": _reasons(logs, formers, retained, young, shown, rule),
            "table_name": pa.nulls(len(history), pa.string()),
        }
    )
    contents = live_contents(
        history,
        operations,
        retained | spared,
        {log.kept.oldest: log.ref.ref_name for log in reversed(logs)},
        {log.head: log.ref.ref_name for log in reversed(logs)},
        [reaching[0] if reaching else None for reaching in shown],
        branches={log.head for log in logs if log.ref.ref_type == "branch"},
        unnamed={*_beginnings(history, young), *(item.oldest for item in kept_by_formers)},
    )
    return Retention(
        reachable=rows.select(REACHABLE_SNAPSHOTS.schema.names).cast(REACHABLE_SNAPSHOTS.schema),
        expiry=EXPIRY_PLAN.schema.empty_table(),
        notes=tuple(_notes(refs, history, summary[LOG_ENDS], formers)),
        contents=contents,
    )


def _logs(refs: FrozenRefs, history: LogForest, as_of: datetime, config: NessieLakeConfig) -> list[_Log]:
    """Returns every ref that has commits, by name."""
    pointing = [(ref.ref_name, ref.head_commit_id, ref) for ref in refs.refs if ref.head_commit_id is not None]
    pointing.sort(key=lambda item: item[0])
    heads = history.graph.index_of([head for _, head, _ in pointing]).tolist()
    logs: list[_Log] = []
    known: dict[tuple[int, Cutoff], Kept] = {}
    for (_, _, ref), head in zip(pointing, heads, strict=True):
        cutoff, rule = config.retention.cutoff_for(ref.ref_name)
        if (head, cutoff) not in known:
            known[head, cutoff] = kept(history, head, cutoff, as_of, state_at_cutoff=config.retention.state_at_cutoff)
        logs.append(_Log(ref, head, cutoff, rule, known[head, cutoff]))
    return logs


def _formers(refs: FrozenRefs, history: LogForest, as_of: datetime, config: NessieLakeConfig) -> Iterator[_Former]:
    """Yields the former refs, without those that only went on from where they were."""
    known = dict(zip(history.graph.commit_ids.to_pylist(), range(len(history)), strict=True)) if refs.previous else {}
    for was in refs.previous:
        head, moved_to = known.get(was.ref.head_commit_id), known.get(was.moved_to)
        if head is None:
            yield _Former(was, None)
            continue
        if moved_to is not None and history.log(moved_to)[head]:
            continue
        cutoff, _ = config.retention.cutoff_for(was.ref.ref_name)
        yield _Former(was, kept(history, head, cutoff, as_of, state_at_cutoff=config.retention.state_at_cutoff))


def _any_of(history: LogForest, several: Sequence[Kept]) -> Bools:
    commits = np.zeros(len(history), np.bool_)
    for item in several:
        commits |= item.commits
    return commits


def _beginnings(history: LogForest, young: Bools) -> list[int]:
    """Returns the first commit of each run of young commits. Its whole state, with what the others
    put, makes the state at every one of them.
    """
    parent = np.full(len(history), -1, np.int32)
    parent[history.graph.child] = history.graph.parent
    return np.flatnonzero(young & ((parent < 0) | ~young[parent])).tolist()


def _refuse_empty_commits(lake: str, history: LogForest, operations: Sequence[str | None]) -> None:
    empty = [index for index, text in enumerate(operations) if not text]
    if empty:
        raise LakeUnreadable(
            f"lake {lake}: {len(empty):,} commits show no operation, for example {history.graph.commit_ids[empty[0]]}: the server leaves "
            "out what the principal may not see, and what it does not see would look like garbage. Give it READ_CONTENT_KEY on "
            "everything; if an old server really made empty commits, say `empty_commits: allow`"
        )


def _refuse_hidden_commits(lake: str, history: LogForest, log: _Log, log_ends: Sequence[str | None]) -> None:
    total = log.ref.properties.get(TOTAL_COMMITS)
    found = int(history.depth[log.head]) + 1
    oldest = int(np.flatnonzero(history.log(log.head) & (history.depth == 0))[0])
    if total is not None and int(total) != found and log_ends[oldest] is None:
        raise LakeUnreadable(
            f"lake {lake}: {log.label} has {int(total):,} commits by the server's count, its log shows {found:,}; "
            "the principal may not see everything, and what it does not see would look like garbage: give it LIST_COMMIT_LOG on every ref"
        )


def _refuse_hidden_entries(lake: str, history: LogForest, operations: Operations, log: _Log, summary: _Facts) -> None:
    listed = summary[STATE_DIGEST][log.head]
    if listed is None:
        return
    lines = row_lines(operations.rows.take(pa.array(operations.state(history, log.head))))
    if state_digest(lines) != listed:
        raise LakeUnreadable(
            f"lake {lake}: at the head {log.head_id} of {log.label} the log makes {len(lines):,} entries, the server lists "
            f"{summary[STATE_ENTRIES][log.head]}, or as many others; the principal may not see everything, and what it does not see "
            "would look like garbage: give it READ_ENTRIES, READ_CONTENT_KEY and READ_ENTITY_VALUE on everything"
        )


def _within_default(history: LogForest, as_of: datetime, config: NessieLakeConfig) -> Bools:
    """Returns True where the lake's own cut-off keeps a commit that no ref reaches (design 2,
    dangling): `retention.dangling`, else `retention.default`.
    """
    cutoff = config.retention.dangling_cutoff() or config.retention.default.as_cutoff()
    moment = micros(cutoff.moment(as_of))
    return np.full(len(history), cutoff.forever) if moment is None else history.times >= moment


def _keep_until(history: LogForest, logs: Sequence[_Log], retained: Bools) -> pa.Array:
    """Returns for each commit that only age keeps the latest end of its age over its refs."""
    until = np.zeros(len(history), np.int64)
    otherwise = ~retained
    for log in logs:
        otherwise[[log.head, *([log.kept.at_cutoff] if log.kept.at_cutoff is not None else [])]] = True
        if log.cutoff.max_age is None or log.cutoff.keep_last is not None:
            otherwise |= log.kept.commits
        else:
            ends = history.times + log.cutoff.max_age // timedelta(microseconds=1)
            until = np.where(log.kept.commits, np.maximum(until, ends), until)
    return pa.array(until, mask=otherwise)


def _reasons(
    logs: Sequence[_Log], formers: Sequence[_Former], retained: Bools, young: Bools, shown: Sequence[Sequence[str]], rule: str
) -> pa.Array:
    """Returns one sentence for each commit. Where several refs keep a commit, the first by name
    speaks. `rule` is the key that decides about commits that no ref reaches.
    """
    texts = [
        f"dangling: no ref reaches it, and it is older than {rule} and the grace period",
        f"kept: no ref reaches it, and it is within {rule} or younger than the grace period",
    ]
    said = np.where(young, 1, 0)
    number = {log.ref.ref_name: index for index, log in enumerate(logs)}
    lost = np.flatnonzero(~retained & ~young).tolist()
    texts += [f"expired: {log.cutoff.beyond} ({log.rule}) on {log.label}" for log in logs]
    said[lost] = [2 + number[shown[index][0]] if shown[index] else 0 for index in lost]
    for former in formers:
        if former.kept is not None:
            said[former.kept.commits & ~young] = len(texts)
        texts.append(f"kept for the grace period after that: {former.sentence}")
    for text, commits in _kept_because(logs):
        said[commits] = len(texts)
        texts.append(text)
    return pa.array(texts).take(pa.array(said))


def _kept_because(logs: Sequence[_Log]) -> Iterator[tuple[str, Bools | int]]:
    """Yields sentences with the commits they speak about, the strongest last."""
    for log in reversed(logs):
        yield f"kept: {log.cutoff.within} ({log.rule}) on {log.label}", log.kept.commits
        if log.kept.at_cutoff is not None:
            yield f"kept: current when {log.cutoff} ({log.rule}) begins on {log.label}", log.kept.at_cutoff
    for log in reversed(logs):
        yield f"kept: head of {log.label}", log.head


def _summary(commits: pa.Table, name: str) -> list[str | None]:
    found: pa.ChunkedArray = pc.map_lookup(commits["summary"], pa.scalar(name), "first")
    return found.to_pylist()


def _notes(refs: FrozenRefs, history: LogForest, log_ends: Sequence[str | None], formers: Sequence[_Former]) -> Iterator[str]:
    for former in formers[:MAX_NAMED]:
        fate = "stays for the grace period after that" if former.kept is not None else "cannot be kept: its commits are not known any more"
        yield f"lake {refs.lake}: {former.sentence}; what it kept {fate}"
    if len(formers) > MAX_NAMED:
        yield f"lake {refs.lake}: and {len(formers) - MAX_NAMED:,} more refs that are gone or point elsewhere"
    ends = [str(history.graph.commit_ids[index]) for index, end in enumerate(log_ends) if end is not None]
    if ends:
        yield (
            f"lake {refs.lake}: {len(ends):,} logs end at a commit whose parent the server no longer has (for example {ends[0]}): "
            "older history was cut there, and the locations that only it named are not known"
        )
