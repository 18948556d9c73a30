"""Maintain an index of all runs of an asset, so that reading them takes only one request.

The index is a single object for each asset, and can be rebuilt from the receipts. It is replaced
conditionally, so that concurrent publications are not lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from pydantic import Field, ValidationError

from gc_assets.core.deferred_models import StrictModel
from gc_assets.core.deprecation import RenamedAttribute
from gc_assets.core.errors import StateError, summarize
from gc_assets.core.renamed_keys import RenamedKeys
from gc_assets.core.untrusted_input import parse_json
from gc_assets.state.backend import VersionedContent
from gc_assets.state.content_cache import ContentCache
from gc_assets.state.files import Files
from gc_assets.state.receipts import PartFile, Receipt, invalid_keys
from gc_assets.state.summaries import CUMULATIVE_TABLES, INDEX_SUMMARIES, IndexSummary

INDEX: Final = "_index.json"
# In version 2, entries have the keys `summary` and `is_published`, which release 0.4 introduced.
# Version 1 can still be read. Earlier releases reject a newer version and ask the user to upgrade.
INDEX_VERSION: Final = 2
_READ_VERSIONS: Final = frozenset({1, INDEX_VERSION})

_H = TypeVar("_H", bound=IndexSummary)


class Part(StrictModel):
    """A Parquet file of a run. If it belongs to a side table, its name begins with `<side table>/`."""

    name: str
    rows: int
    size_bytes: int | None = None

    lies_in = RenamedAttribute("belongs_to")

    def belongs_to(self, side: str | None) -> bool:
        return self.name.rpartition("/")[0] == (side or "")


class IndexEntry(RenamedKeys, StrictModel):
    """The entry for a run in the index. Until the receipt is written, `is_published` is False."""

    RENAMED: ClassVar = {"facts": "summary", "is_there": "is_published"}

    run_date: date
    run_id: str
    created_at: datetime
    rows: int
    receipt_sha256: str
    is_published: bool
    summary: dict[str, Any] = Field(default_factory=dict[str, Any])
    parts: tuple[Part, ...] = ()
    sequence_number: int = 0

    facts = RenamedAttribute("summary")
    is_there = RenamedAttribute("is_published")


class _Runs(StrictModel):
    runs: tuple[IndexEntry, ...]


@dataclass(frozen=True, slots=True)
class PastRun:
    """A finished run as described by the index. It lists parts only for `CUMULATIVE_TABLES`."""

    group: str
    asset: str
    entry: IndexEntry

    headline = RenamedAttribute("summary")

    @property
    def run_date(self) -> date:
        return self.entry.run_date

    @property
    def run_id(self) -> str:
        return self.entry.run_id

    @property
    def rows(self) -> int:
        return self.entry.rows

    @property
    def path(self) -> str:
        return f"{partition_path(self.group, self.asset, self.run_date)}/{self.run_id}"

    def paths(self, side: str | None = None) -> list[str]:
        """Return the paths of Parquet files relative to the state, for runs of cumulative tables.

        Args:
            side: Name of a side table, or None for the main table.
        """
        if self.asset not in CUMULATIVE_TABLES:
            raise ValueError(f"the index of {self.asset} contains no parts; open the run")
        return [f"{self.path}/{part.name}" for part in self.entry.parts if part.belongs_to(side)]

    def summary(self, model: type[_H]) -> _H:
        """Return the summary that the index contains.

        Raises:
            StateError: If the receipt of the run lacks a value.
        """
        try:
            return model.model_validate(self.entry.summary)
        except ValidationError as error:
            raise StateError(
                f"the receipt in {self.path} is damaged (wrong or missing values: {invalid_keys(error)}); run its asset again"
            ) from error


def partition_path(group: str, asset: str, run_date: date) -> str:
    return f"{group}/{asset}/run_date={run_date.isoformat()}"


def make_entry(receipt: Receipt, sha256: str, *, is_there: bool) -> IndexEntry:
    """Build the index entry for a receipt.

    If the receipt lacks a value of the index summary, the entry is built without a summary, and
    `PastRun.summary` raises `StateError`.
    """
    parts: tuple[PartFile, ...] = receipt.parts if receipt.asset in CUMULATIVE_TABLES else ()
    return IndexEntry(
        run_date=receipt.run_date,
        run_id=receipt.run_id,
        created_at=receipt.created_at,
        rows=receipt.rows,
        receipt_sha256=sha256,
        is_published=is_there,
        summary=_index_summary(receipt),
        parts=tuple(Part(name=part.name, rows=part.rows, size_bytes=part.size_bytes) for part in parts if part.rows),
        sequence_number=receipt.sequence_number,
    )


def _index_summary(receipt: Receipt) -> dict[str, Any]:
    model = INDEX_SUMMARIES.get(receipt.asset)
    if model is None:
        return {}
    try:
        return model.of(receipt.summary).model_dump(mode="json")
    except ValidationError:
        return {}


Entries = dict[str, IndexEntry]
_PARSED: Final = ContentCache[Entries]()


class IndexContent(NamedTuple):
    """The entries of an index, and the stored object that they were read from."""

    entries: Entries
    at: VersionedContent


@dataclass(frozen=True, slots=True)
class Index:
    """The index at a path. Its entries are identified by run id."""

    files: Files
    path: str

    def read(self) -> Entries | None:
        """Read the entries. Returns None if the index does not exist.

        Raises:
            StateError: If the index is damaged or was written by a newer release.
        """
        try:
            return self._parse(self.files.read(self.path))
        except FileNotFoundError:
            return None

    def change(self, change: Callable[[Entries], Entries], make: Callable[[], Entries], seen: IndexContent | None = None) -> IndexContent:
        """Change the index atomically.

        Args:
            change: Computes the new entries. It is called again if another process was faster.
            make: Computes the entries if the index does not exist yet.
            seen: The index, if the caller has just read it. This saves a request.

        Returns:
            The new entries.

        Raises:
            StateError: If the index is damaged.
        """
        after: Entries = {}

        def update(content: bytes | None) -> bytes:
            nonlocal after
            if seen is not None and content is not None and content == seen.at.content:
                previous = seen.entries
            else:
                previous = make() if content is None else self._parse(content)
            after = change(previous)
            return content if content is not None and after == previous else _format(after)

        at = self.files.change(self.path, update, seen.at if seen is not None else None)
        return IndexContent(after, at)

    def replace(self, entries: Entries) -> None:
        """Overwrite the index with these entries, even if it cannot be read."""
        self.files.change(self.path, lambda _: _format(entries))

    def _parse(self, content: bytes) -> Entries:
        return dict(_PARSED.parse(f"{self.files.root}/{self.path}", content, self._parse_new))

    def _parse_new(self, content: bytes) -> Entries:
        address = f"{self.files.root}/{self.path}"
        try:
            document = parse_json(content)
            version, digest, runs = int(document["index_version"]), document["sha256"], document["runs"]
            entries = _Runs.model_validate({"runs": runs}).runs if version in _READ_VERSIONS else ()
            damage = None if version not in _READ_VERSIONS or digest == _digest(runs) else "its checksum does not match"
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            version, entries, damage = INDEX_VERSION, (), summarize(error)
        if version not in _READ_VERSIONS:
            raise StateError(f"{address} has version {version}, this release reads up to version {INDEX_VERSION}; upgrade gc-assets")
        if damage is not None:
            raise StateError(f"{address} is damaged ({damage}); `gc-assets doctor --repair` rebuilds it from the receipts")
        return {entry.run_id: entry for entry in entries}


def _format(entries: Entries) -> bytes:
    ordered = sorted(entries.values(), key=lambda entry: (entry.run_date, entry.run_id))
    runs = [entry.model_dump(mode="json", exclude_defaults=True) for entry in ordered]
    head = json.dumps({"index_version": INDEX_VERSION, "sha256": _digest(runs)})
    lines = ",\n".join(json.dumps(run, separators=(",", ":")) for run in runs)
    return f'{head[:-1]}, "runs": [\n{lines}\n]}}\n'.encode()


def _digest(runs: Any) -> str:
    return hashlib.sha256(json.dumps(runs, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
