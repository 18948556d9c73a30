"""Many small runs of one table in few files, so that the requests of a reader grow with the bytes
of a table and not with its nights.

Some tables are the rows of many runs together (`FOLDED`): each night adds a run and none replaces
another. A *fold* holds copies of the rows of small runs that follow each other. It lies in
`<group>/<asset>/_folds/<name>/`, and `<group>/<asset>/_folds.json` lists the folds. The runs stay
where they are and remain the truth: without the list every run is read by itself.

A fold answers for its runs together or not at all. A reader that wants only some of them reads
those runs' own files.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from gc_assets.core.documents import parsed_json
from gc_assets.core.errors import StateError
from gc_assets.state.facts import DeletionLogFacts, ExpiryLogFacts, ManifestEntriesFacts
from gc_assets.state.files import Files
from gc_assets.state.index import Part, PastRun
from gc_assets.state.parts import PartWriter

FOLDED: Final = frozenset({ManifestEntriesFacts.TABLE, DeletionLogFacts.TABLE, ExpiryLogFacts.TABLE})
LIST: Final = "_folds.json"
VERSION: Final = 1
DIRECTORY: Final = "_folds"
# So many small pieces in a row become one, up to this many bytes and pieces at a time. A piece that
# is not small is worth its request.
FOLD_PIECES: Final = 8
SMALL_BYTES: Final = 4 * 2**20
FOLD_BYTES: Final = 64 * 2**20
MOST_PIECES: Final = 256
# A state of many nights without folds is folded in a few runs, so that none of them takes long.
MOST_FOLDS: Final = 8
# The newest runs stay apart. A run that began before one of them may still publish, and a fold must
# hold runs without a gap.
NEWEST_APART: Final = 2
# The column of `deletion_log` that names a row's run. Rows of releases without it get the run's id
# in a fold.
RUN_ID: Final = "run_id"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FoldPart(Part):
    """A Parquet file of a fold."""

    sha256: str


class Fold(_Model):
    """Copies of the rows of `runs`, which are in the order of their ids."""

    name: str
    runs: tuple[str, ...]
    parts: tuple[FoldPart, ...]


class Folds(_Model):
    """What `_folds.json` lists. `replaced` tells when a larger fold took the place of one: readers
    that began before may still read it.
    """

    folds: tuple[Fold, ...] = ()
    replaced: Mapping[str, datetime] = Field(default_factory=dict[str, datetime])


@dataclass(frozen=True, slots=True)
class Source:
    """A Parquet file, relative to the state. `run_id` is the run of its rows that do not name
    theirs.
    """

    path: str
    run_id: str


@dataclass(frozen=True, slots=True)
class _Piece:
    """What is folded next: a run, or a fold of earlier nights."""

    runs: tuple[PastRun, ...]
    fold: Fold | None

    @property
    def size_bytes(self) -> int:
        """Its size. A run of unknown size counts as a large one."""
        parts = self.fold.parts if self.fold is not None else self.runs[0].entry.parts
        return sum(part.size_bytes if part.size_bytes is not None else FOLD_BYTES for part in parts)

    @property
    def is_small(self) -> bool:
        return self.size_bytes <= SMALL_BYTES

    @property
    def has_rows(self) -> bool:
        return any(run.entry.parts for run in self.runs)


def sources(files: Files, runs: Sequence[PastRun], side: str | None = None) -> list[Source]:
    """Returns the files that hold the rows of these runs, or of their side table, in the order of
    the runs. All are runs of one table.
    """
    if not runs:
        return []
    base = f"{runs[0].group}/{runs[0].asset}"
    wanted = {run.run_id for run in runs}
    held = _by_run(_read(files, base).folds, wanted)
    found: list[Source] = []
    told: set[str] = set()
    for run in runs:
        fold = held.get(run.run_id)
        if fold is None:
            found += [Source(path, run.run_id) for path in run.paths(side)]
        elif fold.name not in told:
            told.add(fold.name)
            found += [Source(f"{base}/{DIRECTORY}/{fold.name}/{part.name}", "") for part in fold.parts if part.lies_in(side)]
    return found


def fold(files: Files, runs: Sequence[PastRun]) -> Fold | None:
    """Folds the first long row of small pieces among all runs of a table. Returns null where there
    is none, or where another process folded some of these runs meanwhile.

    Raises `StateError` where a copy does not hold as many rows as its runs, or where a fold that is
    to be copied holds other bytes than were written, and `OSError` where a file cannot be read.
    """
    if not runs:
        return None
    base = f"{runs[0].group}/{runs[0].asset}"
    known = {run.run_id for run in runs}
    pieces = next(_rows_of_pieces(sorted(runs, key=lambda run: run.run_id), _read(files, base).folds), None)
    if pieces is None:
        return None
    of = [run for piece in pieces for run in piece.runs]
    name = uuid.uuid4().hex
    names_runs = runs[0].asset == DeletionLogFacts.TABLE
    parts = [part for piece in pieces for part in _parts(piece, base)]
    copies = tuple(_copied(files, f"{base}/{DIRECTORY}/{name}", parts, names_runs=names_runs))
    made = Fold(name=name, runs=tuple(run.run_id for run in of), parts=copies)
    expected, found = sum(part.rows for run in of for part in run.entry.parts), sum(part.rows for part in made.parts)
    if found != expected:
        files.delete_directory(f"{base}/{DIRECTORY}/{name}")
        raise StateError(
            f"{files.root}/{base}: the runs {of[0].run_id} to {of[-1].run_id} have {expected:,} rows by their receipts, "
            f"their files hold {found:,}; `gc-assets doctor` says which receipts and indexes differ"
        )

    is_listed = False

    def with_made(content: bytes | None) -> bytes:
        nonlocal is_listed
        before = _parsed(content) or Folds()
        # A fold that names a run which the table has no more serves nobody.
        useful = [other for other in before.folds if known.issuperset(other.runs)]
        kept = [other for other in useful if not set(other.runs) <= set(made.runs)]
        is_listed = not any(set(other.runs) & set(made.runs) for other in kept)
        listed = (*kept, made) if is_listed else tuple(useful)
        names = {other.name for other in listed}
        gone = {other.name: datetime.now(UTC) for other in before.folds if other.name not in names}
        return _content(Folds(folds=listed, replaced={**before.replaced, **gone}))

    files.change(f"{base}/{LIST}", with_made)
    if not is_listed:
        files.delete_directory(f"{base}/{DIRECTORY}/{name}")
        return None
    return made


def damaged(files: Files, group: str, asset: str) -> list[str]:
    """Returns one sentence for each file that the list of folds names and that does not hold what
    was written. Reads all of them.
    """
    base = f"{group}/{asset}"
    found: list[str] = []
    for held in _read(files, base).folds:
        for part in held.parts:
            path = f"{base}/{DIRECTORY}/{held.name}/{part.name}"
            try:
                is_sound = hashlib.sha256(files.read(path)).hexdigest() == part.sha256
            except FileNotFoundError:
                is_sound = False
            if not is_sound:
                found.append(f"{files.root}/{path} is named by {LIST} and is not there as it was written")
    return found


def forget(files: Files, group: str, asset: str) -> None:
    """Empties the list of folds, so that every run is read by itself. Their files count as
    replaced.
    """

    def emptied(content: bytes | None) -> bytes:
        before = _parsed(content) or Folds()
        gone = {held.name: datetime.now(UTC) for held in before.folds}
        return _content(Folds(replaced={**before.replaced, **gone}))

    files.change(f"{group}/{asset}/{LIST}", emptied)


def unused(files: Files, group: str, asset: str, before: datetime) -> list[str]:
    """Returns the directories of folds that were replaced before a moment. They are taken off the
    list.

    What the list never named stays: a process may be about to list it.
    """
    base = f"{group}/{asset}"
    old: set[str] = set()

    def without_old(content: bytes | None) -> bytes:
        listed = _parsed(content)
        if content is None or listed is None:
            return content or _content(Folds())
        old.clear()
        old.update(name for name, at in listed.replaced.items() if at < before)
        kept = {name: at for name, at in listed.replaced.items() if name not in old}
        return _content(Folds(folds=listed.folds, replaced=kept)) if old else content

    if files.directories(f"{base}/{DIRECTORY}"):
        files.change(f"{base}/{LIST}", without_old)
    return [f"{base}/{DIRECTORY}/{name}" for name in sorted(old)]


def _rows_of_pieces(runs: Sequence[PastRun], folds: Sequence[Fold]) -> Iterator[list[_Piece]]:
    """Yields rows of adjacent small pieces of which at least `FOLD_PIECES` have rows."""
    row: list[_Piece] = []
    for piece in _pieces(runs[: max(0, len(runs) - NEWEST_APART)], folds):
        if row and not (piece.is_small and _alike(row[-1], piece) and _has_room(row, piece)):
            if _is_long(row):
                yield row
            row = []
        if piece.is_small:
            row.append(piece)
    if _is_long(row):
        yield row


def _has_room(row: Sequence[_Piece], piece: _Piece) -> bool:
    return len(row) < MOST_PIECES and sum(item.size_bytes for item in row) + piece.size_bytes <= FOLD_BYTES


def _is_long(row: Sequence[_Piece]) -> bool:
    return sum(item.has_rows for item in row) >= FOLD_PIECES


def _by_run(folds: Sequence[Fold], wanted: Collection[str]) -> dict[str, Fold]:
    """Returns the folds of which all runs are wanted, by the id of each run."""
    wanted = set(wanted)
    return {run_id: held for held in folds if wanted.issuperset(held.runs) for run_id in held.runs}


def _pieces(runs: Sequence[PastRun], folds: Sequence[Fold]) -> Iterator[_Piece]:
    by_id = {run.run_id: run for run in runs}
    held = _by_run(folds, by_id)
    for run in runs:
        if run.run_id not in held:
            yield _Piece((run,), None)
        elif held[run.run_id].runs[0] == run.run_id:
            yield _Piece(tuple(by_id[run_id] for run_id in held[run.run_id].runs), held[run.run_id])


def _alike(one: _Piece, other: _Piece) -> bool:
    """Runs that readers tell apart by their facts are wanted apart, so no fold holds both."""
    return one.runs[0].entry.facts.get("decoded_as") == other.runs[0].entry.facts.get("decoded_as")


def _parts(piece: _Piece, base: str) -> Iterator[tuple[Part, Source]]:
    """Yields every file of a piece and where it lies."""
    if piece.fold is not None:
        for part in piece.fold.parts:
            yield part, Source(f"{base}/{DIRECTORY}/{piece.fold.name}/{part.name}", "")
        return
    for run in piece.runs:
        for part in run.entry.parts:
            yield part, Source(f"{run.path}/{part.name}", run.run_id)


def _copied(files: Files, directory: str, parts: Sequence[tuple[Part, Source]], *, names_runs: bool) -> Iterator[FoldPart]:
    """Writes the rows of all parts into few, those of each side table and schema together. With
    `names_runs` each row of the table itself names its run.
    """
    writers: dict[str, list[PartWriter]] = defaultdict(list)
    for part, source in parts:
        side = part.name.rpartition("/")[0]
        rows = pq.read_table(pa.BufferReader(_verified(files, part, source)))
        if names_runs and not side and source.run_id:
            rows = _naming_their_run(rows, source.run_id)
        if not writers[side] or not writers[side][-1].schema.equals(rows.schema):
            writers[side].append(PartWriter(files, directory, rows.schema, side))
        for batch in rows.to_batches():
            writers[side][-1].write(batch)
    for writer in (writer for group in writers.values() for writer in group):
        for made in writer.close():
            yield FoldPart(name=made.name, rows=made.rows, size_bytes=made.size_bytes, sha256=made.sha256)


def _verified(files: Files, part: Part, source: Source) -> bytes:
    content = files.read(source.path)
    if isinstance(part, FoldPart) and hashlib.sha256(content).hexdigest() != part.sha256:
        raise StateError(f"{files.root}/{source.path} holds other bytes than were written; `gc-assets doctor --repair` forgets it")
    return content


def _naming_their_run(rows: pa.Table, run_id: str) -> pa.Table:
    if RUN_ID not in rows.schema.names:
        return rows.append_column(RUN_ID, pa.repeat(run_id, rows.num_rows))
    index = rows.schema.get_field_index(RUN_ID)
    return rows.set_column(index, rows.schema.field(RUN_ID), pc.fill_null(rows.column(RUN_ID), run_id))


def _read(files: Files, base: str) -> Folds:
    """Returns the list, an empty one where it is missing or damaged: then every run is read by
    itself.
    """
    try:
        return _parsed(files.read(f"{base}/{LIST}")) or Folds()
    except FileNotFoundError:
        return Folds()


def _parsed(content: bytes | None) -> Folds | None:
    """Returns a list, or null where it is missing, damaged or of another version."""
    try:
        document: Any = parsed_json(content or b"")
        listed = document["list"]
        return Folds.model_validate(listed) if document["sha256"] == _digest(listed) and document["version"] == VERSION else None
    except (ValueError, KeyError, TypeError):
        return None


def _content(listed: Folds) -> bytes:
    document = listed.model_dump(mode="json")
    return json.dumps({"version": VERSION, "sha256": _digest(document), "list": document}, indent=1).encode()


def _digest(held: Any) -> str:
    return hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()
