"""Many small runs of one table in few files, so that a table of a thousand nights is read with a
bounded number of requests.

Some tables are the rows of many runs together (`FOLDED`): each night adds a run and none replaces
another. A *fold* holds copies of the rows of runs that follow each other. It lies in
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from gc_assets.core.clock import Clock
from gc_assets.core.errors import StateError
from gc_assets.state.facts import DeletionLogFacts, ExpiryLogFacts, ManifestEntriesFacts
from gc_assets.state.files import Files
from gc_assets.state.index import Part, PastRun
from gc_assets.state.parts import PartWriter

FOLDED: Final = frozenset({ManifestEntriesFacts.TABLE, DeletionLogFacts.TABLE, ExpiryLogFacts.TABLE})
LIST: Final = "_folds.json"
DIRECTORY: Final = "_folds"
# So many small pieces in a row become one. A piece of more bytes is worth its request.
FOLD_PIECES: Final = 8
SMALL_BYTES: Final = 4 * 2**20
# The newest runs stay apart. A run that began before one of them may still publish, and a fold must
# hold runs without a gap.
NEWEST_APART: Final = 2
# The column of `deletion_log` that names a row's run. Rows of releases without it get the run's id
# in a fold.
RUN_ID: Final = "run_id"


class Fold(BaseModel):
    """Copies of the rows of `runs`, which are in the order of their ids."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    runs: tuple[str, ...]
    parts: tuple[Part, ...]


class _Folds(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    folds: tuple[Fold, ...] = ()


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
        parts = self.fold.parts if self.fold is not None else self.runs[0].entry.parts
        return sum(part.size_bytes for part in parts)

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
    held = {run_id: fold for fold in _read(files, base) if wanted.issuperset(fold.runs) for run_id in fold.runs}
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


def fold(files: Files, runs: Sequence[PastRun], clock: Clock) -> Fold | None:
    """Folds the first long row of small pieces among all runs of a table. Returns null where there
    is none.

    Raises `StateError` where a copy does not hold as many rows as its runs.
    """
    if not runs:
        return None
    base = f"{runs[0].group}/{runs[0].asset}"
    pieces = next(_rows_of_pieces(sorted(runs, key=lambda run: run.run_id), _read(files, base)), None)
    if pieces is None:
        return None
    of = [run for piece in pieces for run in piece.runs]
    name = f"{clock.now():%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:12]}"
    names_runs = runs[0].asset == DeletionLogFacts.TABLE
    parts = [part for piece in pieces for part in _parts(piece, base)]
    copies = tuple(_copied(files, f"{base}/{DIRECTORY}/{name}", parts, names_runs=names_runs))
    made = Fold(name=name, runs=tuple(run.run_id for run in of), parts=copies)
    if sum(part.rows for part in made.parts) != sum(part.rows for run in of for part in run.entry.parts):
        raise StateError(f"{files.root}/{base}/{DIRECTORY}/{name} does not hold the rows of its runs; run `gc-assets doctor`")

    def with_made(content: bytes | None) -> bytes:
        before = _parsed(content)
        if any(set(made.runs) & set(other.runs) and not set(other.runs) <= set(made.runs) for other in before):
            return _content(before)  # another process folded some of these runs meanwhile
        return _content((*(other for other in before if not set(other.runs) <= set(made.runs)), made))

    files.change(f"{base}/{LIST}", with_made)
    return made


def damaged(files: Files, group: str, asset: str) -> list[str]:
    """Returns one sentence for each file that the list of folds names and that is not there."""
    base = f"{group}/{asset}"
    found: list[str] = []
    for held in _read(files, base):
        there = {stat.name: stat.size_bytes for stat in files.list(f"{base}/{DIRECTORY}/{held.name}", recursive=True)}
        lost = [part.name for part in held.parts if there.get(part.name) != part.size_bytes]
        found += [f"{files.root}/{base}/{LIST} names {held.name}/{name}, which is not there as it was written" for name in lost]
    return found


def forget(files: Files, group: str, asset: str) -> None:
    """Removes the list of folds, so that every run is read by itself."""
    files.replace(f"{group}/{asset}/{LIST}", _content(()))


def unlisted(files: Files, group: str, asset: str) -> list[str]:
    """Returns the directories of folds that the list does not name: replaced ones, and those whose
    writer died.
    """
    base = f"{group}/{asset}"
    listed = {held.name for held in _read(files, base)}
    return [f"{base}/{DIRECTORY}/{name}" for name in files.directories(f"{base}/{DIRECTORY}") if name not in listed]


def _rows_of_pieces(runs: Sequence[PastRun], folds: Sequence[Fold]) -> Iterator[list[_Piece]]:
    """Yields rows of adjacent small pieces of which at least `FOLD_PIECES` have rows."""
    row: list[_Piece] = []
    for piece in [*_pieces(runs[: len(runs) - NEWEST_APART], folds), None]:
        if piece is not None and piece.size_bytes <= SMALL_BYTES and (not row or _alike(row[-1], piece)):
            row.append(piece)
            continue
        if sum(item.has_rows for item in row) >= FOLD_PIECES:
            yield row
        row = [] if piece is None or piece.size_bytes > SMALL_BYTES else [piece]


def _pieces(runs: Sequence[PastRun], folds: Sequence[Fold]) -> list[_Piece]:
    by_id = {run.run_id: run for run in runs}
    held = {run_id: fold for fold in folds if by_id.keys() >= set(fold.runs) for run_id in fold.runs}
    pieces: list[_Piece] = []
    for run in runs:
        fold = held.get(run.run_id)
        if fold is None:
            pieces.append(_Piece((run,), None))
        elif fold.runs[0] == run.run_id:
            pieces.append(_Piece(tuple(by_id[run_id] for run_id in fold.runs), fold))
    return pieces


def _alike(one: _Piece, other: _Piece) -> bool:
    """Runs that readers tell apart by their facts are wanted apart, so no fold holds both."""
    return one.runs[0].entry.facts.get("decoded_as") == other.runs[0].entry.facts.get("decoded_as")


def _parts(piece: _Piece, base: str) -> Iterator[tuple[str, Source]]:
    """Yields the name and place of every file of a piece."""
    if piece.fold is not None:
        for part in piece.fold.parts:
            yield part.name, Source(f"{base}/{DIRECTORY}/{piece.fold.name}/{part.name}", "")
        return
    for run in piece.runs:
        for part in run.entry.parts:
            yield part.name, Source(f"{run.path}/{part.name}", run.run_id)


def _copied(files: Files, directory: str, parts: Sequence[tuple[str, Source]], *, names_runs: bool) -> Iterator[Part]:
    """Writes the rows of all parts into few, those of each side table and schema together. With
    `names_runs` each row of the table itself names its run.
    """
    writers: dict[str, list[PartWriter]] = defaultdict(list)
    for name, source in parts:
        side = name.rpartition("/")[0]
        rows = pq.read_table(pa.BufferReader(files.read(source.path)))
        if names_runs and not side and source.run_id:
            rows = _naming_their_run(rows, source.run_id)
        writer = next((writer for writer in writers[side] if writer.schema.equals(rows.schema)), None)
        if writer is None:
            writer = PartWriter(files, directory, rows.schema, side)
            writers[side].append(writer)
        for batch in rows.to_batches():
            writer.write(batch)
    for writer in (writer for group in writers.values() for writer in group):
        for part in writer.close():
            yield Part(name=part.name, rows=part.rows, size_bytes=part.size_bytes)


def _naming_their_run(rows: pa.Table, run_id: str) -> pa.Table:
    if RUN_ID not in rows.schema.names:
        return rows.append_column(RUN_ID, pa.repeat(run_id, rows.num_rows))
    index = rows.schema.get_field_index(RUN_ID)
    return rows.set_column(index, rows.schema.field(RUN_ID), pc.fill_null(rows.column(RUN_ID), run_id))


def _read(files: Files, base: str) -> tuple[Fold, ...]:
    try:
        return _parsed(files.read(f"{base}/{LIST}"))
    except FileNotFoundError:
        return ()


def _parsed(content: bytes | None) -> tuple[Fold, ...]:
    """Returns the folds of a list, none where it is damaged: then every run is read by itself."""
    try:
        document: Any = json.loads(content or b"")
        held = document["folds"]
        return _Folds.model_validate({"folds": held}).folds if document["sha256"] == _digest(held) else ()
    except (ValueError, KeyError, TypeError, ValidationError):
        return ()


def _content(folds: Sequence[Fold]) -> bytes:
    held = [item.model_dump(mode="json") for item in folds]
    return json.dumps({"sha256": _digest(held), "folds": held}, indent=1).encode()


def _digest(held: Any) -> str:
    return hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()
