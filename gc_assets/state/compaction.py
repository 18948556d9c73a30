"""Many small runs of one table in few files, so that the requests of a reader grow with the bytes
of a table and not with its nights.

Some tables are the rows of many runs together (`FOLDED`): each night adds a run and none replaces
another. A *fold* holds copies of the rows of small runs that follow each other. It lies in
`<group>/<asset>/_folds/<name>/`, and `<group>/<asset>/_folds.json` lists the folds. The runs stay
where they are and remain the truth: without the list every run is read by itself.

A fold answers for its runs together or not at all. A reader that wants only some of them takes a
fold that a larger one replaced lately, and else reads those runs' own files.

The first fold of a table waits until that pays. From then on the newest small pieces become one
whenever a run brings rows, so that readers of a thousand nights ask for as much as those of two.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from gc_assets.core.errors import StateError
from gc_assets.core.renamed_keys import RenamedKeys
from gc_assets.core.untrusted_input import parse_json
from gc_assets.state.backend import ABSENT, VersionedContent
from gc_assets.state.files import Files
from gc_assets.state.index import Part, PastRun
from gc_assets.state.summaries import DeletionLogSummary, ExpiryLogSummary, ManifestEntriesSummary

if TYPE_CHECKING:
    import pyarrow as pa

COMPACTED_TABLES: Final = frozenset({ManifestEntriesSummary.TABLE, DeletionLogSummary.TABLE, ExpiryLogSummary.TABLE})
LIST_FILE: Final = "_folds.json"
VERSION: Final = 2
_READ_VERSIONS: Final = frozenset({1, VERSION})
DIRECTORY: Final = "_folds"
# So many small pieces in a row become one, up to this many bytes and pieces at a time. A piece that
# is not small is worth its request.
MIN_SEGMENTS: Final = 8
MAX_SMALL_BYTES: Final = 4 * 2**20
MAX_COMPACTED_BYTES: Final = 64 * 2**20
MAX_SEGMENTS: Final = 256
# Fewer become one up to so many bytes, which is less than a night writes of as many files anyway:
# two where a table has folds, and three where it has none. A fold of the first two runs would cost
# the second night more requests than it spares.
MAX_NEWEST_BYTES: Final = 2**20
MIN_FIRST_SEGMENTS: Final = 3
MIN_NEXT_SEGMENTS: Final = 2
# A state of many nights without folds is folded in a few runs, so that none of them takes long.
MAX_COMPACTIONS: Final = 8
# So many replaced folds stay on the list: for a reader who began before the newest run, or who asks
# what was known before it.
MAX_REPLACED: Final = 2
# A run that began before others may publish after them. In logs the last word counts, so a fold that
# lacks such a run is of no use. The order of other tables' runs tells nothing.
ORDERED_TABLES: Final = frozenset({DeletionLogSummary.TABLE, ExpiryLogSummary.TABLE})
# The column of `deletion_log` that names a row's run. Rows of releases without it get the run's id
# in a fold.
RUN_ID: Final = "run_id"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class CompactedPart(Part):
    """A Parquet file of a fold."""

    sha256: str


class CompactedSegment(_Model):
    """Copies of the rows of `runs`, in this order. That is the order of their ids, but for runs of
    tables that are not `ORDERED`.
    """

    name: str
    runs: tuple[str, ...]
    parts: tuple[CompactedPart, ...]


class CompactedSegments(RenamedKeys, _Model):
    """What `_folds.json` lists. `former` are the last folds whose place a larger one took, the newest
    first. `replaced` tells when others were: readers that began before may still read them.
    """

    RENAMED: ClassVar = {"folds": "segments", "former": "replaced_segments", "replaced": "replaced_at"}

    segments: tuple[CompactedSegment, ...] = ()
    replaced_segments: tuple[CompactedSegment, ...] = ()
    replaced_at: Mapping[str, datetime] = Field(default_factory=dict[str, datetime])


class SegmentList(NamedTuple):
    """The list of a table's folds, and its object as it was seen."""

    content: CompactedSegments
    seen: VersionedContent

    def has_other_runs(self, runs: Sequence[PastRun]) -> bool:
        """Return True if a fold holds a run that is not among these."""
        known = {run.run_id for run in runs}
        return not all(known.issuperset(fold.runs) for fold in self.content.segments)


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A Parquet file, relative to the state. `run_id` is the run of its rows that do not name
    theirs.
    """

    path: str
    run_id: str


@dataclass(frozen=True, slots=True)
class _Segment:
    """What is folded next: a run, or a fold of earlier nights."""

    runs: tuple[PastRun, ...]
    compacted: CompactedSegment | None

    @property
    def size_bytes(self) -> int:
        """Its size. A run of unknown size counts as a large one."""
        parts = self.compacted.parts if self.compacted is not None else self.runs[0].entry.parts
        return sum(part.size_bytes if part.size_bytes is not None else MAX_COMPACTED_BYTES for part in parts)

    @property
    def has_rows(self) -> bool:
        return any(run.entry.parts for run in self.runs)


@dataclass(frozen=True, slots=True)
class Segments:
    """Where the rows of `runs` of one table lie: in folds, by the ids of the runs, or in files of
    their own.
    """

    runs: tuple[PastRun, ...]
    compacted: Mapping[str, CompactedSegment]

    def files(self, side: str | None = None) -> list[SegmentFile]:
        """Return the files that hold the rows, or those of a side table, in the order of the runs."""
        found: list[SegmentFile] = []
        told: set[str] = set()
        for run in self.runs:
            fold = self.compacted.get(run.run_id)
            if fold is None:
                found += [SegmentFile(path, run.run_id) for path in run.paths(side)]
            elif fold.name not in told:
                told.add(fold.name)
                base = f"{run.group}/{run.asset}/{DIRECTORY}/{fold.name}"
                found += [SegmentFile(f"{base}/{part.name}", "") for part in fold.parts if part.belongs_to(side)]
        return found

    def paths(self, side: str | None = None) -> list[str]:
        """Return the paths of `sources`."""
        return [source.path for source in self.files(side)]


def find_segments(files: Files, runs: Sequence[PastRun]) -> Segments:
    """Return where the rows of these runs lie. All are runs of one table."""
    if not runs:
        return Segments((), {})
    there = read_list(files, runs[0].group, runs[0].asset).content
    return Segments(tuple(runs), _segments_by_run((*there.segments, *there.replaced_segments), runs))


def read_list(files: Files, group: str, asset: str) -> SegmentList:
    """Return the list of a table's folds. It is empty where it is missing or damaged: then every
    run is read by itself.
    """
    try:
        content, version = files.read_version(f"{group}/{asset}/{LIST_FILE}")
    except FileNotFoundError:
        return SegmentList(CompactedSegments(), ABSENT)
    return SegmentList(_parse(content) or CompactedSegments(), VersionedContent(content, version))


def compact(files: Files, runs: Sequence[PastRun], there: SegmentList) -> CompactedSegment | None:
    """Folds the first long row of small pieces among all runs of a table, else the newest ones.
    `there` was read before `runs` were. Returns null where too few are small, or where another
    process changed the list meanwhile.

    Raises `StateError` where a copy does not hold as many rows as its runs, or where a fold that is
    to be copied holds other bytes than were written, and `OSError` where a file cannot be read.
    """
    if not runs:
        return None
    base = f"{runs[0].group}/{runs[0].asset}"
    ordered = sorted(runs, key=lambda run: run.run_id)
    row = _select_segments(ordered, there.content.segments)
    if row is None:
        return None
    of = [run for piece in row for run in piece.runs]
    name = uuid.uuid4().hex
    names_runs = runs[0].asset == DeletionLogSummary.TABLE
    parts = [part for piece in row for part in _segment_parts(piece, base)]
    copies = tuple(_copy_parts(files, f"{base}/{DIRECTORY}/{name}", parts, names_runs=names_runs))
    made = CompactedSegment(name=name, runs=tuple(run.run_id for run in of), parts=copies)
    expected, found = sum(part.rows for run in of for part in run.entry.parts), sum(part.rows for part in made.parts)
    if found != expected:
        files.delete_directory(f"{base}/{DIRECTORY}/{name}")
        raise StateError(
            f"{files.root}/{base}: the runs {of[0].run_id} to {of[-1].run_id} have {expected:,} rows by their receipts, "
            f"their files hold {found:,}; `gc-assets doctor` says which receipts and indexes differ"
        )

    is_listed = was_listed = False

    def with_made(content: bytes | None) -> bytes:
        nonlocal is_listed, was_listed
        is_listed = content == there.seen.content
        was_listed = content is not None and name.encode() in content  # by a put whose answer was lost
        return _format(_add_segment(there.content, made, ordered)) if is_listed else content or _format(CompactedSegments())

    files.change(f"{base}/{LIST_FILE}", with_made, there.seen)
    if not is_listed and not was_listed:
        files.delete_directory(f"{base}/{DIRECTORY}/{name}")
    return made if is_listed else None


def _add_segment(before: CompactedSegments, made: CompactedSegment, runs: Sequence[PastRun]) -> CompactedSegments:
    """Return the list with one more fold, which takes the place of all within it."""
    useful = {fold.name for fold in _segments_by_run(before.segments, runs).values()}  # not one that lacks a run, or whose run is gone
    within = [fold for fold in before.segments if fold.name in useful and set(fold.runs) <= set(made.runs)]
    kept = [fold for fold in before.segments if fold.name in useful and fold not in within]
    known = {run.run_id for run in runs}
    former = (*within, *(fold for fold in before.replaced_segments if known.issuperset(fold.runs)))[:MAX_REPLACED]
    names = {fold.name for fold in (*kept, *former)}
    gone = {fold.name: datetime.now(UTC) for fold in (*before.segments, *before.replaced_segments) if fold.name not in names}
    return CompactedSegments(segments=(*kept, made), replaced_segments=former, replaced_at={**before.replaced_at, **gone})


def find_damage(files: Files, group: str, asset: str) -> list[str]:
    """Return one sentence for each file that the list of folds names and that does not hold what
    was written. Reads all of them.
    """
    base = f"{group}/{asset}"
    found: list[str] = []
    there = read_list(files, group, asset).content
    for held in (*there.segments, *there.replaced_segments):
        for part in held.parts:
            path = f"{base}/{DIRECTORY}/{held.name}/{part.name}"
            try:
                is_sound = hashlib.sha256(files.read(path)).hexdigest() == part.sha256
            except FileNotFoundError:
                is_sound = False
            if not is_sound:
                found.append(f"{files.root}/{path} is named by {LIST_FILE} and is not there as it was written")
    return found


def clear_list(files: Files, group: str, asset: str) -> None:
    """Empties the list of folds, so that every run is read by itself. Their files count as
    replaced.
    """

    def emptied(content: bytes | None) -> bytes:
        before = _parse(content) or CompactedSegments()
        gone = {held.name: datetime.now(UTC) for held in (*before.segments, *before.replaced_segments)}
        return _format(CompactedSegments(replaced_at={**before.replaced_at, **gone}))

    files.change(f"{group}/{asset}/{LIST_FILE}", emptied)


def take_replaced(files: Files, group: str, asset: str, before: datetime) -> list[str]:
    """Return the directories of folds that were replaced before a moment. They are taken off the
    list.

    What the list never named stays: a process may be about to list it.
    """
    base = f"{group}/{asset}"
    old: set[str] = set()

    def without_old(content: bytes | None) -> bytes:
        there = _parse(content)
        if content is None or there is None:
            return content or _format(CompactedSegments())
        old.clear()
        old.update(name for name, at in there.replaced_at.items() if at < before)
        kept = {name: at for name, at in there.replaced_at.items() if name not in old}
        return _format(there.model_copy(update={"replaced_at": kept})) if old else content

    if files.directories(f"{base}/{DIRECTORY}"):
        files.change(f"{base}/{LIST_FILE}", without_old)
    return [f"{base}/{DIRECTORY}/{name}" for name in sorted(old)]


def _select_segments(runs: Sequence[PastRun], folds: Sequence[CompactedSegment]) -> list[_Segment] | None:
    """Return the first row of adjacent small pieces of which at least `FOLD_PIECES` have rows, else
    the newest pieces that hold `NEWEST_BYTES` together, null where these are too few.
    """
    newest: list[_Segment] = []
    for row in _adjacent_segments(runs, folds):
        if sum(piece.has_rows for piece in row) >= MIN_SEGMENTS:
            return row
        newest = row
    total = 0
    for start in range(len(newest) - 1, -1, -1):
        total += newest[start].size_bytes
        if total > MAX_NEWEST_BYTES:
            newest = newest[start + 1 :]
            break
    least = MIN_NEXT_SEGMENTS if folds else MIN_FIRST_SEGMENTS
    return newest if sum(piece.has_rows for piece in newest) >= least else None


def _adjacent_segments(runs: Sequence[PastRun], folds: Sequence[CompactedSegment]) -> Iterator[list[_Segment]]:
    """Yield the longest rows of adjacent small pieces that fit into one fold, oldest first. The last
    one ends at the newest run, and is empty where that is not small.
    """
    row: list[_Segment] = []
    size_bytes = segments_with_rows = 0
    for piece in _iterate_segments(runs, folds):
        size = piece.size_bytes
        has_room = segments_with_rows < MAX_SEGMENTS and size_bytes + size <= MAX_COMPACTED_BYTES
        if row and not (size <= MAX_SMALL_BYTES and has_room and _are_compatible(row[-1], piece)):
            yield row
            row, size_bytes, segments_with_rows = [], 0, 0
        if size <= MAX_SMALL_BYTES:
            row.append(piece)
            size_bytes += size
            segments_with_rows += piece.has_rows
    yield row


def _segments_by_run(folds: Sequence[CompactedSegment], runs: Sequence[PastRun]) -> dict[str, CompactedSegment]:
    """Return the largest folds of which all runs are wanted, by the id of each run. No two hold the
    same run. One with fewer or more rows than its runs have by the index is not among them: a run
    was published again since.
    """
    wanted = {run.run_id: sum(part.rows for part in run.entry.parts) for run in runs}
    in_order = sorted(wanted) if runs and runs[0].asset in ORDERED_TABLES else None
    held: dict[str, CompactedSegment] = {}
    for fold in sorted(folds, key=lambda fold: len(fold.runs), reverse=True):
        is_whole = wanted.keys() >= set(fold.runs) and held.keys().isdisjoint(fold.runs)
        is_whole = is_whole and sum(part.rows for part in fold.parts) == sum(wanted[run_id] for run_id in fold.runs)
        if is_whole and (in_order is None or _has_no_gap(fold, in_order)):
            held.update(dict.fromkeys(fold.runs, fold))
    return held


def _has_no_gap(fold: CompactedSegment, wanted: Sequence[str]) -> bool:
    """Return True if a fold holds all runs that are wanted between its first and its last one."""
    return bisect_right(wanted, fold.runs[-1]) - bisect_left(wanted, fold.runs[0]) == len(fold.runs)


def _iterate_segments(runs: Sequence[PastRun], folds: Sequence[CompactedSegment]) -> Iterator[_Segment]:
    by_id = {run.run_id: run for run in runs}
    held = _segments_by_run(folds, runs)
    for run in runs:
        if run.run_id not in held:
            yield _Segment((run,), None)
        elif held[run.run_id].runs[0] == run.run_id:
            yield _Segment(tuple(by_id[run_id] for run_id in held[run.run_id].runs), held[run.run_id])


def _are_compatible(one: _Segment, other: _Segment) -> bool:
    """Run that readers tell apart by their facts are wanted apart, so no fold holds both."""
    return one.runs[0].entry.summary.get("decoded_as") == other.runs[0].entry.summary.get("decoded_as")


def _segment_parts(piece: _Segment, base: str) -> Iterator[tuple[Part, SegmentFile]]:
    """Yield every file of a piece and where it lies."""
    if piece.compacted is not None:
        for part in piece.compacted.parts:
            yield part, SegmentFile(f"{base}/{DIRECTORY}/{piece.compacted.name}/{part.name}", "")
        return
    for run in piece.runs:
        for part in run.entry.parts:
            yield part, SegmentFile(f"{run.path}/{part.name}", run.run_id)


def _copy_parts(files: Files, directory: str, parts: Sequence[tuple[Part, SegmentFile]], *, names_runs: bool) -> Iterator[CompactedPart]:
    """Write the rows of all parts into few, those of each side table and schema together. With
    `names_runs` each row of the table itself names its run.
    """
    import pyarrow as pa  # slow to load, and of no use to a reader
    import pyarrow.parquet as pq

    from gc_assets.state.parts import PartWriter

    writers: dict[str, list[PartWriter]] = defaultdict(list)
    for part, source in parts:
        side = part.name.rpartition("/")[0]
        rows = pq.read_table(pa.BufferReader(_read_verified(files, part, source)))
        if names_runs and not side and source.run_id:
            rows = _add_run_id(rows, source.run_id)
        if not writers[side] or not writers[side][-1].schema.equals(rows.schema):
            writers[side].append(PartWriter(files, directory, rows.schema, side))
        for batch in rows.to_batches():
            writers[side][-1].write(batch)
    for writer in (writer for group in writers.values() for writer in group):
        for made in writer.close():
            yield CompactedPart(name=made.name, rows=made.rows, size_bytes=made.size_bytes, sha256=made.sha256)


def _read_verified(files: Files, part: Part, source: SegmentFile) -> bytes:
    content = files.read(source.path)
    if isinstance(part, CompactedPart) and hashlib.sha256(content).hexdigest() != part.sha256:
        raise StateError(f"{files.root}/{source.path} holds other bytes than were written; `gc-assets doctor --repair` forgets it")
    return content


def _add_run_id(rows: pa.Table, run_id: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    if RUN_ID not in rows.schema.names:
        return rows.append_column(RUN_ID, pa.repeat(run_id, rows.num_rows))
    index = rows.schema.get_field_index(RUN_ID)
    return rows.set_column(index, rows.schema.field(RUN_ID), pc.fill_null(rows.column(RUN_ID), run_id))


def _parse(content: bytes | None) -> CompactedSegments | None:
    """Return a list, or null where it is missing, damaged or of another version."""
    try:
        document: Any = parse_json(content or b"")
        listed = document["list"]
        return (
            CompactedSegments.model_validate(listed)
            if document["sha256"] == _digest(listed) and document["version"] in _READ_VERSIONS
            else None
        )
    except (ValueError, KeyError, TypeError):
        return None


def _format(listed: CompactedSegments) -> bytes:
    document = listed.model_dump(mode="json")
    return json.dumps({"version": VERSION, "sha256": _digest(document), "list": document}, indent=1).encode()


def _digest(held: Any) -> str:
    return hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()
