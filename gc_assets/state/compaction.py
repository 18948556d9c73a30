"""Merge the rows of many small runs into a few files, to reduce the number of read requests.

In some tables (`COMPACTED_TABLES`), each run adds a segment and never replaces another. A
*compacted segment* holds copies of rows from adjacent small runs. It is stored in
`<group>/<asset>/_folds/<name>/` and listed in `<group>/<asset>/_folds.json`. The runs are kept and
remain authoritative, so without the list every run is read from its own files.

A compacted segment is always read as a whole. A reader that needs only some of its runs falls back
to a recently replaced segment or to the original run files.

A *reduced segment* has no rows that runs no longer need (`Reduction`). Which rows it has depends on
the other segments, so a reader uses either all reduced segments of its runs or none.

The first compaction of a table waits until it pays off. After that, the newest small segments are
compacted whenever a run has rows, so the number of requests stays constant.
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
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field

from gc_assets.core.deferred_models import DEFER_BUILD
from gc_assets.core.errors import StateError
from gc_assets.core.renamed_keys import RenamedKeys
from gc_assets.core.untrusted_input import parse_json
from gc_assets.state.backend import ABSENT, COMPACTED_SEGMENTS, VersionedContent
from gc_assets.state.files import Files
from gc_assets.state.index import Part, PastRun
from gc_assets.state.receipts import PartFile
from gc_assets.state.summaries import DeletionLogSummary, ExpiryLogSummary, ManifestEntriesSummary

if TYPE_CHECKING:
    import pyarrow as pa

COMPACTED_TABLES: Final = frozenset({ManifestEntriesSummary.TABLE, DeletionLogSummary.TABLE, ExpiryLogSummary.TABLE})
LIST_FILE: Final = "_folds.json"
VERSION: Final = 2
_READ_VERSIONS: Final = frozenset({1, VERSION})
DIRECTORY: Final = COMPACTED_SEGMENTS
# Limits of one compaction: minimum number of adjacent small segments, maximum bytes and segments. A
# large segment is not merged, because it justifies its own request.
MIN_SEGMENTS: Final = 8
MAX_SMALL_BYTES: Final = 4 * 2**20
MAX_COMPACTED_BYTES: Final = 64 * 2**20
MAX_SEGMENTS: Final = 256
# Fewer segments are merged if they are smaller than this, which is less than the other files that a
# run writes. With two first segments, compaction would cost the second run more requests than it
# saves.
MAX_NEWEST_BYTES: Final = 2**20
MIN_FIRST_SEGMENTS: Final = 3
MIN_NEXT_SEGMENTS: Final = 2
# A large backlog is compacted over several runs, which bounds the time of each.
MAX_COMPACTIONS: Final = 8
# Number of replaced segments kept on the list for readers that started before the newest run.
MAX_REPLACED: Final = 2
# A run that starts first may publish last. In logs the last entry wins, so a segment without such a
# run is unusable. In other tables, run order is irrelevant.
ORDERED_TABLES: Final = frozenset({DeletionLogSummary.TABLE, ExpiryLogSummary.TABLE})
# Column of `deletion_log` with the run id of a row. Compaction fills it in for rows written by
# older releases.
RUN_ID: Final = "run_id"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=DEFER_BUILD)


class CompactedPart(Part):
    """Parquet file of a compacted segment."""

    sha256: str

    @classmethod
    def of(cls, part: PartFile) -> Self:
        return cls(name=part.name, rows=part.rows, size_bytes=part.size_bytes, sha256=part.sha256)


class CompactedSegment(_Model):
    """Row copies of `runs`, in this order.

    For `ORDERED_TABLES`, the runs are sorted by run id. `dropped_rows` is the number of rows that
    were dropped from a reduced segment.
    """

    name: str
    runs: tuple[str, ...]
    parts: tuple[CompactedPart, ...]
    dropped_rows: int = 0


class CompactedSegments(RenamedKeys, _Model):
    """Content of `_folds.json`.

    Attributes:
        replaced_segments: Most recently replaced segments, newest first.
        replaced_at: Replacement times of older segments, which may still be in use by readers.
    """

    RENAMED: ClassVar = {"folds": "segments", "former": "replaced_segments", "replaced": "replaced_at"}

    segments: tuple[CompactedSegment, ...] = ()
    replaced_segments: tuple[CompactedSegment, ...] = ()
    replaced_at: Mapping[str, datetime] = Field(default_factory=dict[str, datetime])


class SegmentList(NamedTuple):
    """Compacted segments of a table, with the stored object they were read from."""

    content: CompactedSegments
    seen: VersionedContent

    def has_other_runs(self, runs: Sequence[PastRun]) -> bool:
        """Check if any segment contains a run outside `runs`."""
        known = {run.run_id for run in runs}
        return not all(known.issuperset(segment.runs) for segment in self.content.segments)


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """Parquet file, relative to the state. `run_id` applies to rows without a run id."""

    path: str
    run_id: str


@dataclass(frozen=True, slots=True)
class Segment:
    """Compaction input: a run or an earlier compacted segment."""

    runs: tuple[PastRun, ...]
    compacted: CompactedSegment | None

    @property
    def base(self) -> str:
        """Directory of the table, relative to the state."""
        return f"{self.runs[0].group}/{self.runs[0].asset}"

    @property
    def dropped_rows(self) -> int:
        return self.compacted.dropped_rows if self.compacted is not None else 0

    def sources(self) -> Iterator[tuple[Part, SegmentFile]]:
        """Yield the parts and their files."""
        if self.compacted is not None:
            for part in self.compacted.parts:
                yield part, SegmentFile(f"{segment_directory(self.base, self.compacted.name)}/{part.name}", "")
            return
        for run in self.runs:
            for part in run.entry.parts:
                yield part, SegmentFile(f"{run.path}/{part.name}", run.run_id)

    def paths(self, side: str | None = None) -> list[str]:
        """Return the paths of the table's files or of a side table's."""
        return [source.path for part, source in self.sources() if part.belongs_to(side)]

    @property
    def size_bytes(self) -> int:
        """Size in bytes. A run of unknown size is treated as large."""
        parts = self.compacted.parts if self.compacted is not None else self.runs[0].entry.parts
        return sum(part.size_bytes if part.size_bytes is not None else MAX_COMPACTED_BYTES for part in parts)

    @property
    def has_rows(self) -> bool:
        return any(run.entry.parts for run in self.runs)


@dataclass(frozen=True, slots=True)
class Reduction:
    """Copy of a segment without some rows."""

    segment: Segment
    parts: tuple[PartFile, ...]
    dropped_rows: int


@dataclass(frozen=True, slots=True)
class Segments:
    """Files with the rows of `runs` for one table.

    `compacted` maps run ids to compacted segments. Other runs have their own files.
    """

    runs: tuple[PastRun, ...]
    compacted: Mapping[str, CompactedSegment]

    def files(self, side: str | None = None) -> list[SegmentFile]:
        """Return the files of the table or of a side table, in run order."""
        found: list[SegmentFile] = []
        seen_names: set[str] = set()
        for run in self.runs:
            segment = self.compacted.get(run.run_id)
            if segment is None:
                found += [SegmentFile(path, run.run_id) for path in run.paths(side)]
            elif segment.name not in seen_names:
                seen_names.add(segment.name)
                directory = segment_directory(f"{run.group}/{run.asset}", segment.name)
                found += [SegmentFile(f"{directory}/{part.name}", "") for part in segment.parts if part.belongs_to(side)]
        return found

    def paths(self, side: str | None = None) -> list[str]:
        """Return the paths of `files`."""
        return [source.path for source in self.files(side)]


def find_segments(files: Files, runs: Sequence[PastRun], *, complete: bool = False) -> Segments:
    """Find the files that contain the rows of these runs.

    With `complete`, no reduced segments are used.
    """
    if not runs:
        return Segments((), {})
    listed = read_list(files, runs[0].group, runs[0].asset).content
    segments = (*listed.segments, *listed.replaced_segments)
    if complete:
        segments = tuple(segment for segment in segments if not segment.dropped_rows)
    return Segments(tuple(runs), _segments_by_run(segments, runs, listed.segments))


def read_list(files: Files, group: str, asset: str) -> SegmentList:
    """Read the list of compacted segments. A missing or damaged list is treated as empty."""
    try:
        content, version = files.read_version(f"{group}/{asset}/{LIST_FILE}")
    except FileNotFoundError:
        return SegmentList(CompactedSegments(), ABSENT)
    return SegmentList(_parse(content) or CompactedSegments(), VersionedContent(content, version))


def compact(files: Files, runs: Sequence[PastRun], listed: SegmentList) -> CompactedSegment | None:
    """Merge the first long sequence of small segments, or otherwise the newest segments.

    Args:
        runs: All runs of the table.
        listed: Segment list, read before `runs`.

    Returns:
        The new segment, or None if too few segments are small or another process changed the list.

    Raises:
        StateError: If a copy is missing rows or a source segment is damaged.
        OSError: If a file cannot be read.
    """
    if not runs:
        return None
    base = f"{runs[0].group}/{runs[0].asset}"
    ordered = sorted(runs, key=lambda run: run.run_id)
    selected = _select_segments(ordered, listed.content.segments)
    if selected is None:
        return None
    selected_runs = [run for segment in selected for run in segment.runs]
    name = uuid.uuid4().hex
    names_runs = runs[0].asset == DeletionLogSummary.TABLE
    parts = [part for segment in selected for part in segment.sources()]
    copies = tuple(_copy_parts(files, segment_directory(base, name), parts, names_runs=names_runs))
    dropped = sum(segment.dropped_rows for segment in selected)
    new = CompactedSegment(name=name, runs=tuple(run.run_id for run in selected_runs), parts=copies, dropped_rows=dropped)
    expected = sum(part.rows for run in selected_runs for part in run.entry.parts)
    found = sum(part.rows for part in new.parts) + dropped
    if found != expected:
        files.delete_directory(segment_directory(base, name))
        raise StateError(
            f"{files.root}/{base}: the runs {new.runs[0]} to {new.runs[-1]} have {expected:,} rows in their receipts, "
            f"but {found:,} in their files; `gc-assets doctor` shows which receipts and indexes differ"
        )
    return new if _add_to_list(files, base, listed, [new], ordered) else None


def list_segments(runs: Sequence[PastRun], listed: SegmentList) -> list[Segment]:
    """Return the current segments of these runs: compacted segments and runs outside of them."""
    return list(_iterate_segments(sorted(runs, key=lambda run: run.run_id), listed.content.segments))


def add_reduced(files: Files, segments: Mapping[str, Reduction], runs: Sequence[PastRun], listed: SegmentList) -> bool:
    """Replace segments by copies without the rows that runs no longer need.

    Args:
        segments: New segments by name, whose parts are in `segment_directory`.
        runs: All runs of the table.
        listed: Segment list, read before `runs`.

    Returns:
        False if another process changed the list. The copies are then deleted.

    Raises:
        StateError: If the copies and the dropped rows are not all rows of a segment.
    """
    new: list[CompactedSegment] = []
    base = next(iter(segments.values())).segment.base
    for name, reduction in segments.items():
        source, parts = reduction.segment, reduction.parts
        expected, found = sum(part.rows for part, _ in source.sources()), sum(part.rows for part in parts) + reduction.dropped_rows
        if found != expected:
            raise StateError(f"{files.root}/{base}: a copy of {len(source.runs):,} segments accounts for {found:,} of {expected:,} rows")
        copies = map(CompactedPart.of, parts)
        run_ids = tuple(run.run_id for run in source.runs)
        dropped = source.dropped_rows + reduction.dropped_rows
        new.append(CompactedSegment(name=name, runs=run_ids, parts=tuple(copies), dropped_rows=dropped))
    return _add_to_list(files, base, listed, new, sorted(runs, key=lambda run: run.run_id))


def segment_directory(base: str, name: str) -> str:
    """Return the directory of a compacted segment, relative to the state."""
    return f"{base}/{DIRECTORY}/{name}"


def _add_to_list(files: Files, base: str, listed: SegmentList, new: Sequence[CompactedSegment], runs: Sequence[PastRun]) -> bool:
    """Add segments to the list if it is unchanged. Otherwise delete them and return False."""
    is_listed = was_listed = False

    def add_new(content: bytes | None) -> bytes:
        nonlocal is_listed, was_listed
        is_listed = content == listed.seen.content
        was_listed = content is not None and new[0].name.encode() in content  # by a put whose response was lost
        if not is_listed:
            return content or _format(CompactedSegments())
        changed = listed.content
        for segment in new:
            changed = _add_segment(changed, segment, runs)
        return _format(changed)

    files.change(f"{base}/{LIST_FILE}", add_new, listed.seen)
    if not is_listed and not was_listed:
        for segment in new:
            if segment.parts:
                files.delete_directory(segment_directory(base, segment.name))
    return is_listed


def _add_segment(previous: CompactedSegments, new: CompactedSegment, runs: Sequence[PastRun]) -> CompactedSegments:
    """Add a segment to the list, replacing all segments that it contains."""
    useful = {segment.name for segment in _segments_by_run(previous.segments, runs).values()}
    contained = [segment for segment in previous.segments if segment.name in useful and set(segment.runs) <= set(new.runs)]
    remaining = [segment for segment in previous.segments if segment.name in useful and segment not in contained]
    known = {run.run_id for run in runs}
    replaced = (*contained, *(segment for segment in previous.replaced_segments if known.issuperset(segment.runs)))[:MAX_REPLACED]
    names = {segment.name for segment in (*remaining, *replaced)}
    removed = {
        segment.name: datetime.now(UTC) for segment in (*previous.segments, *previous.replaced_segments) if segment.name not in names
    }
    return CompactedSegments(segments=(*remaining, new), replaced_segments=replaced, replaced_at={**previous.replaced_at, **removed})


def find_damage(files: Files, group: str, asset: str) -> list[str]:
    """Read all listed files and return a message for each missing or damaged one."""
    base = f"{group}/{asset}"
    found: list[str] = []
    listed = read_list(files, group, asset).content
    for segment in (*listed.segments, *listed.replaced_segments):
        for part in segment.parts:
            path = f"{segment_directory(base, segment.name)}/{part.name}"
            try:
                is_sound = hashlib.sha256(files.read(path)).hexdigest() == part.sha256
            except FileNotFoundError:
                is_sound = False
            if not is_sound:
                found.append(f"{files.root}/{path} is listed in {LIST_FILE} but is missing or damaged")
    return found


def clear_list(files: Files, group: str, asset: str) -> None:
    """Mark all segments as replaced, so that every run is read from its own files."""

    def clear(content: bytes | None) -> bytes:
        previous = _parse(content) or CompactedSegments()
        removed = {segment.name: datetime.now(UTC) for segment in (*previous.segments, *previous.replaced_segments)}
        return _format(CompactedSegments(replaced_at={**previous.replaced_at, **removed}))

    files.change(f"{group}/{asset}/{LIST_FILE}", clear)


def take_replaced(files: Files, group: str, asset: str, before: datetime) -> list[str]:
    """Remove segments replaced before a given time from the list, and return their directories.

    Unlisted directories are kept, because another process may be about to list them.
    """
    base = f"{group}/{asset}"
    old: set[str] = set()

    def remove_old(content: bytes | None) -> bytes:
        listed = _parse(content)
        if content is None or listed is None:
            return content or _format(CompactedSegments())
        old.clear()
        old.update(name for name, at in listed.replaced_at.items() if at < before)
        remaining = {name: at for name, at in listed.replaced_at.items() if name not in old}
        return _format(listed.model_copy(update={"replaced_at": remaining})) if old else content

    if existing := files.directories(f"{base}/{DIRECTORY}"):
        files.change(f"{base}/{LIST_FILE}", remove_old)
    return [segment_directory(base, name) for name in sorted(old.intersection(existing))]  # segments without rows have none


def _select_segments(runs: Sequence[PastRun], compacted_segments: Sequence[CompactedSegment]) -> list[Segment] | None:
    """Select the segments of the next compaction, or None.

    These are the first adjacent small segments among which at least `MIN_SEGMENTS` have rows,
    otherwise the newest segments with at most `MAX_NEWEST_BYTES` in total.
    """
    newest: list[Segment] = []
    for selected in _adjacent_segments(runs, compacted_segments):
        if sum(segment.has_rows for segment in selected) >= MIN_SEGMENTS:
            return selected
        newest = selected
    total = 0
    for start in range(len(newest) - 1, -1, -1):
        total += newest[start].size_bytes
        if total > MAX_NEWEST_BYTES:
            newest = newest[start + 1 :]
            break
    least = MIN_NEXT_SEGMENTS if compacted_segments else MIN_FIRST_SEGMENTS
    return newest if sum(segment.has_rows for segment in newest) >= least else None


def _adjacent_segments(runs: Sequence[PastRun], compacted_segments: Sequence[CompactedSegment]) -> Iterator[list[Segment]]:
    """Yield the longest sequences of adjacent small segments that fit into one segment, oldest
    first.

    The last one ends at the newest run, and is empty if that run is not small.
    """
    adjacent: list[Segment] = []
    size_bytes = segments_with_rows = 0
    for segment in _iterate_segments(runs, compacted_segments):
        size = segment.size_bytes
        has_room = segments_with_rows < MAX_SEGMENTS and size_bytes + size <= MAX_COMPACTED_BYTES
        if adjacent and not (size <= MAX_SMALL_BYTES and has_room and _are_compatible(adjacent[-1], segment)):
            yield adjacent
            adjacent, size_bytes, segments_with_rows = [], 0, 0
        if size <= MAX_SMALL_BYTES:
            adjacent.append(segment)
            size_bytes += size
            segments_with_rows += segment.has_rows
    yield adjacent


def _segments_by_run(
    compacted_segments: Sequence[CompactedSegment], runs: Sequence[PastRun], current: Sequence[CompactedSegment] | None = None
) -> dict[str, CompactedSegment]:
    """Map run ids to the largest usable segments, which never overlap.

    A segment is usable if all its runs are wanted and its row count matches the index. A run that
    was published again breaks the match. Reduced segments are used only together.

    Args:
        current: The segments that have not been replaced. None means all.
    """
    covered = _cover(compacted_segments, runs)
    used, wanted = {segment.name for segment in covered.values()}, {run.run_id for run in runs}
    reduced = [segment for segment in (compacted_segments if current is None else current) if segment.dropped_rows]
    if all(segment.name in used or wanted.isdisjoint(segment.runs) for segment in reduced):
        return covered
    return _cover([segment for segment in compacted_segments if not segment.dropped_rows], runs)


def _cover(compacted_segments: Sequence[CompactedSegment], runs: Sequence[PastRun]) -> dict[str, CompactedSegment]:
    wanted = {run.run_id: sum(part.rows for part in run.entry.parts) for run in runs}
    in_order = sorted(wanted) if runs and runs[0].asset in ORDERED_TABLES else None
    covered: dict[str, CompactedSegment] = {}
    for segment in sorted(compacted_segments, key=lambda segment: len(segment.runs), reverse=True):
        is_usable = wanted.keys() >= set(segment.runs) and covered.keys().isdisjoint(segment.runs)
        rows = sum(part.rows for part in segment.parts) + segment.dropped_rows
        is_usable = is_usable and rows == sum(wanted[run_id] for run_id in segment.runs)
        if is_usable and (in_order is None or _has_no_gap(segment, in_order)):
            covered.update(dict.fromkeys(segment.runs, segment))
    return covered


def _has_no_gap(segment: CompactedSegment, wanted: Sequence[str]) -> bool:
    """Check if the segment contains all wanted runs between its first and last run."""
    return bisect_right(wanted, segment.runs[-1]) - bisect_left(wanted, segment.runs[0]) == len(segment.runs)


def _iterate_segments(runs: Sequence[PastRun], compacted_segments: Sequence[CompactedSegment]) -> Iterator[Segment]:
    by_id = {run.run_id: run for run in runs}
    covered = _segments_by_run(compacted_segments, runs)
    for run in runs:
        if run.run_id not in covered:
            yield Segment((run,), None)
        elif covered[run.run_id].runs[0] == run.run_id:
            yield Segment(tuple(by_id[run_id] for run_id in covered[run.run_id].runs), covered[run.run_id])


def _are_compatible(one: Segment, other: Segment) -> bool:
    """Check if the segments have the same decoder settings and storages, by which readers select
    runs.
    """
    first, second = one.runs[0].entry.summary, other.runs[0].entry.summary
    return all(first.get(name) == second.get(name) for name in ("decoded_as", "resolved_as"))


def _copy_parts(files: Files, directory: str, parts: Sequence[tuple[Part, SegmentFile]], *, names_runs: bool) -> Iterator[CompactedPart]:
    """Copy all parts into one file per side table and schema.

    With `names_runs`, a run id is added to each row of the main table.
    """
    from gc_assets.state.parts import PartWriter, open_part

    writers: dict[str, list[PartWriter]] = defaultdict(list)
    for part, source in parts:
        side = part.name.rpartition("/")[0]
        rows = open_part(read_verified(files, part, source.path)).read()
        if names_runs and not side and source.run_id:
            rows = _add_run_id(rows, source.run_id)
        if not writers[side] or not writers[side][-1].schema.equals(rows.schema):
            writers[side].append(PartWriter(files, directory, rows.schema, side))
        for batch in rows.to_batches():
            writers[side][-1].write(batch)
    for writer in (writer for group in writers.values() for writer in group):
        yield from map(CompactedPart.of, writer.close())


def read_verified(files: Files, part: Part, path: str) -> bytes:
    """Read the file of a segment's part.

    Raises:
        StateError: If a compacted part is damaged.
    """
    content = files.read(path)
    if isinstance(part, CompactedPart) and hashlib.sha256(content).hexdigest() != part.sha256:
        raise StateError(f"{files.root}/{path} is damaged; `gc-assets doctor --repair` removes it from the list")
    return content


def _add_run_id(rows: pa.Table, run_id: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    if RUN_ID not in rows.schema.names:
        return rows.append_column(RUN_ID, pa.repeat(run_id, rows.num_rows))
    index = rows.schema.get_field_index(RUN_ID)
    return rows.set_column(index, rows.schema.field(RUN_ID), pc.fill_null(rows.column(RUN_ID), run_id))


def _parse(content: bytes | None) -> CompactedSegments | None:
    """Parse a segment list. None if it is missing, damaged or of another version."""
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


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
