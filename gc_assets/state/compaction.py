"""Merge the rows of many small runs into a few files, so that reading them takes few requests.

In cumulative tables (`COMPACTED_TABLES`), each run adds a segment and never replaces another one. A
*compacted segment* contains copies of the rows of adjacent small runs. It is stored in
`<group>/<asset>/_folds/<name>/` and listed in `<group>/<asset>/_folds.json`. The original runs are
kept and remain authoritative. If the list is lost, every run is read from its own files.

Readers always read a compacted segment as a whole. If a reader needs only some of its runs, it uses
a segment that was replaced recently, or the original files of the runs.

In a *reduced segment*, rows that runs no longer need have been removed (`Reduction`). These rows
are determined for all segments together, so a reader uses either all reduced segments or none.

A table is compacted for the first time when this saves more requests than it costs. From then on,
whenever a run adds rows, the newest small segments are compacted, so that the number of requests
stays constant.
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

from pydantic import Field

from gc_assets.core.deferred_models import StrictModel
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
# Limits of one compaction: the minimum number of adjacent small segments, and the maximum number of
# bytes and segments. Large segments are not merged, because they are worth a request of their own.
MIN_SEGMENTS: Final = 8
MAX_SMALL_BYTES: Final = 4 * 2**20
MAX_COMPACTED_BYTES: Final = 64 * 2**20
MAX_SEGMENTS: Final = 256
# Even a few segments are merged if they are smaller than this, because a run writes larger files
# anyway. The first compaction requires three segments. With two, it would cost the second run more
# requests than it saves.
MAX_NEWEST_BYTES: Final = 2**20
MIN_FIRST_SEGMENTS: Final = 3
MIN_NEXT_SEGMENTS: Final = 2
# If there is a large backlog, it is compacted by several runs, so that none of them takes too long.
MAX_COMPACTIONS: Final = 8
# Number of replaced segments that stay on the list, for readers that started before the newest run.
MAX_REPLACED: Final = 2
# A run may start earlier than another one but publish later. In logs, the last entry decides, so a
# segment that lacks such a run cannot be used. In other tables, the order of runs does not matter.
ORDERED_TABLES: Final = frozenset({DeletionLogSummary.TABLE, ExpiryLogSummary.TABLE})
# Column of `deletion_log` that contains the run id. If a row was written by an older release,
# compaction fills it in.
RUN_ID: Final = "run_id"


class CompactedPart(Part):
    """A Parquet file of a compacted segment."""

    sha256: str

    @classmethod
    def of(cls, part: PartFile) -> Self:
        return cls(name=part.name, rows=part.rows, size_bytes=part.size_bytes, sha256=part.sha256)


class CompactedSegment(StrictModel):
    """Copy of the rows of several runs of a cumulative table.

    Attributes:
        runs: The runs, in the same order as their rows. In `ORDERED_TABLES`, this is the order of
            run ids.
        dropped_rows: Number of unneeded rows left out of the copy (`Reduction`).
    """

    name: str
    runs: tuple[str, ...]
    parts: tuple[CompactedPart, ...]
    dropped_rows: int = 0


class CompactedSegments(RenamedKeys, StrictModel):
    """The content of `_folds.json`.

    Attributes:
        segments: The current segments.
        replaced_segments: Segments that were replaced recently, newest first.
        replaced_at: When older segments were replaced. Readers may still be using them.
    """

    RENAMED: ClassVar = {"folds": "segments", "former": "replaced_segments", "replaced": "replaced_at"}

    segments: tuple[CompactedSegment, ...] = ()
    replaced_segments: tuple[CompactedSegment, ...] = ()
    replaced_at: Mapping[str, datetime] = Field(default_factory=dict[str, datetime])


class SegmentList(NamedTuple):
    """The compacted segments of a table, and the stored object that they were read from."""

    content: CompactedSegments
    seen: VersionedContent

    def has_other_runs(self, runs: Sequence[PastRun]) -> bool:
        """Return True if any segment contains a run that is not in `runs`."""
        known = {run.run_id for run in runs}
        return not all(known.issuperset(segment.runs) for segment in self.content.segments)


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A Parquet file, relative to the state. Rows without a run id belong to the given run."""

    path: str
    run_id: str


@dataclass(frozen=True, slots=True)
class Segment:
    """An input of a compaction, which is a run or an earlier compacted segment."""

    runs: tuple[PastRun, ...]
    compacted: CompactedSegment | None

    @property
    def base(self) -> str:
        """The directory of the table, relative to the state."""
        return f"{self.runs[0].group}/{self.runs[0].asset}"

    @property
    def dropped_rows(self) -> int:
        return self.compacted.dropped_rows if self.compacted is not None else 0

    def sources(self) -> Iterator[tuple[Part, SegmentFile]]:
        """Yield each part of the segment with the file that contains it."""
        if self.compacted is not None:
            for part in self.compacted.parts:
                yield part, SegmentFile(f"{segment_directory(self.base, self.compacted.name)}/{part.name}", "")
            return
        for run in self.runs:
            for part in run.entry.parts:
                yield part, SegmentFile(f"{run.path}/{part.name}", run.run_id)

    def paths(self, side: str | None = None) -> list[str]:
        """Return the paths of all files that belong to the table or to a side table."""
        return [source.path for part, source in self.sources() if part.belongs_to(side)]

    @property
    def size_bytes(self) -> int:
        """The size in bytes. If the size of a run is unknown, it counts as large."""
        parts = self.compacted.parts if self.compacted is not None else self.runs[0].entry.parts
        return sum(part.size_bytes if part.size_bytes is not None else MAX_COMPACTED_BYTES for part in parts)

    @property
    def has_rows(self) -> bool:
        return any(run.entry.parts for run in self.runs)


@dataclass(frozen=True, slots=True)
class Reduction:
    """A copy of a segment from which unneeded rows were removed."""

    segment: Segment
    parts: tuple[PartFile, ...]
    dropped_rows: int


@dataclass(frozen=True, slots=True)
class Segments:
    """Locates the files that contain the rows of several runs.

    Attributes:
        runs: The runs.
        compacted: Compacted segments, keyed by run id. All other runs are read from their own
            files.
    """

    runs: tuple[PastRun, ...]
    compacted: Mapping[str, CompactedSegment]

    def files(self, side: str | None = None) -> list[SegmentFile]:
        """Return the files of the table or of a side table, in the order of the runs."""
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
        """Return the paths of the files of the table or of a side table."""
        return [source.path for source in self.files(side)]


def find_segments(files: Files, runs: Sequence[PastRun], *, complete: bool = False) -> Segments:
    """Find the files that contain the rows of the given runs of a cumulative table.

    Args:
        complete: If True, do not use reduced segments, so that no rows are missing.
    """
    if not runs:
        return Segments((), {})
    listed = read_list(files, runs[0].group, runs[0].asset).content
    segments = (*listed.segments, *listed.replaced_segments)
    if complete:
        segments = tuple(segment for segment in segments if not segment.dropped_rows)
    return Segments(tuple(runs), _segments_by_run(segments, runs, listed.segments))


def read_list(files: Files, group: str, asset: str) -> SegmentList:
    """Read the list of compacted segments. If it is missing or damaged, it counts as empty."""
    try:
        content, version = files.read_version(f"{group}/{asset}/{LIST_FILE}")
    except FileNotFoundError:
        return SegmentList(CompactedSegments(), ABSENT)
    return SegmentList(_parse(content) or CompactedSegments(), VersionedContent(content, version))


def compact(files: Files, runs: Sequence[PastRun], listed: SegmentList) -> CompactedSegment | None:
    """Merge the first long sequence of small segments or, if there is no such sequence, the newest.

    Args:
        runs: All runs of the table.
        listed: The segment list. It must have been read before the runs.

    Returns:
        The new segment, or None if there are too few small segments, or another process has changed
        the list.

    Raises:
        StateError: If a copy lacks rows, or a source segment is damaged.
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
    """Return compacted segments, and runs that are not part of one, in the order of the runs."""
    return list(_iterate_segments(sorted(runs, key=lambda run: run.run_id), listed.content.segments))


def add_reduced(files: Files, segments: Mapping[str, Reduction], runs: Sequence[PastRun], listed: SegmentList) -> bool:
    """Replace segments by copies from which unneeded rows were removed.

    Args:
        segments: The copies by name. Their parts have been written to `segment_directory`.
        runs: All runs of the table.
        listed: The segment list. It must have been read before the runs.

    Returns:
        True if the segments were replaced. If another process has changed the list, the copies are
        deleted and the result is False.

    Raises:
        StateError: If the remaining and removed rows do not add up to the rows of a segment.
    """
    new: list[CompactedSegment] = []
    base = next(iter(segments.values())).segment.base
    for name, reduction in segments.items():
        source, parts = reduction.segment, reduction.parts
        expected, found = sum(part.rows for part, _ in source.sources()), sum(part.rows for part in parts) + reduction.dropped_rows
        if found != expected:
            raise StateError(
                f"Cannot reduce the rows of {len(source.runs):,} runs in {files.root}/{base}, because the copy accounts for {found:,} of "
                f"{expected:,} rows. The original segments stay in use."
            )
        copies = map(CompactedPart.of, parts)
        run_ids = tuple(run.run_id for run in source.runs)
        dropped = source.dropped_rows + reduction.dropped_rows
        new.append(CompactedSegment(name=name, runs=run_ids, parts=tuple(copies), dropped_rows=dropped))
    return _add_to_list(files, base, listed, new, sorted(runs, key=lambda run: run.run_id))


def segment_directory(base: str, name: str) -> str:
    """Return the directory of a compacted segment, relative to the state."""
    return f"{base}/{DIRECTORY}/{name}"


def _add_to_list(files: Files, base: str, listed: SegmentList, new: Sequence[CompactedSegment], runs: Sequence[PastRun]) -> bool:
    """Add segments to the list. If another process has changed it, delete them and return False."""
    is_listed = was_listed = False

    def add_new(content: bytes | None) -> bytes:
        nonlocal is_listed, was_listed
        is_listed = content == listed.seen.content
        was_listed = content is not None and new[0].name.encode() in content  # by an earlier put whose response was lost
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
    """Add a segment to the list, and mark all segments that it contains as replaced."""
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
    """Read all files of listed segments, and return a message for each missing or damaged one."""
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
    """Mark all compacted segments as replaced, so that readers use the files of the runs."""

    def clear(content: bytes | None) -> bytes:
        previous = _parse(content) or CompactedSegments()
        removed = {segment.name: datetime.now(UTC) for segment in (*previous.segments, *previous.replaced_segments)}
        return _format(CompactedSegments(replaced_at={**previous.replaced_at, **removed}))

    files.change(f"{group}/{asset}/{LIST_FILE}", clear)


def take_replaced(files: Files, group: str, asset: str, before: datetime) -> list[str]:
    """Remove compacted segments from the list that were replaced before a time.

    Directories that are not on the list are kept, because another process may be about to add them.

    Returns:
        The directories of the removed segments.
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
    return [segment_directory(base, name) for name in sorted(old.intersection(existing))]  # without rows, there is no directory


def _select_segments(runs: Sequence[PastRun], compacted_segments: Sequence[CompactedSegment]) -> list[Segment] | None:
    """Select the segments for the next compaction.

    Adjacent small segments are preferred if at least `MIN_SEGMENTS` of them have rows. The second
    choice is the newest segments, as far as they have at most `MAX_NEWEST_BYTES` together.

    Returns:
        The segments, or None if a compaction would not be worthwhile.
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
    """Yield sequences of adjacent small segments, each as long as one compaction may merge.

    The oldest sequence comes first. The last sequence ends with the newest run, and is empty if
    that run is not small.
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
    """Choose the largest usable segments, which never overlap.

    A segment is usable if all of its runs are requested and its number of rows matches the index.
    After a run was published again, the numbers differ. Reduced segments are used together or not
    at all.

    Args:
        current: The segments that have not been replaced. None means all.

    Returns:
        The segments, keyed by run id.
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
    """Return True if the segment contains every requested run between its first and last one."""
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
    """Return True if two segments have equal decoder settings and storages.

    Readers select segments by these values.
    """
    first, second = one.runs[0].entry.summary, other.runs[0].entry.summary
    return all(first.get(name) == second.get(name) for name in ("decoded_as", "resolved_as"))


def _copy_parts(files: Files, directory: str, parts: Sequence[tuple[Part, SegmentFile]], *, names_runs: bool) -> Iterator[CompactedPart]:
    """Copy parts, so that there is one file for each side table and schema.

    Args:
        names_runs: If True, add the run id to each row of the main table.
    """
    from gc_assets.state.parts import PartWriter, open_part, read_errors

    writers: dict[str, list[PartWriter]] = defaultdict(list)
    for part, source in parts:
        side = part.name.rpartition("/")[0]
        with read_errors(f"{files.root}/{source.path}"):
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
    """Read a part of a segment. The SHA-256 of compacted parts is verified.

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
    """Parse a segment list. Returns None if it is missing, damaged or of another version."""
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
