"""Find foreign files: unneeded files in a lake's claim that may belong to other applications.

The rules are in `core/foreign.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from gc_assets.core.claims import Claims, PrefixClaim
from gc_assets.core.commands import command
from gc_assets.core.dropped_tables import RememberedTable
from gc_assets.core.foreign import (
    HAS_UNKNOWN_PATH,
    HIDDEN_PATH,
    NEW_CLAIM,
    OTHER_FORMAT,
    RULES,
    UNKNOWN_PATH,
    ClaimAges,
    ForeignRules,
    KnownFiles,
)
from gc_assets.core.globs import glob_regex
from gc_assets.engine.parquet_scan import ParquetScan
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import WrittenParts, write_parts
from gc_assets.lakes.other_formats import OTHER_FORMATS, OtherFormat
from gc_assets.stages.mark.manifest_entries import find_segments
from gc_assets.stages.records.accepted_prefixes import accepted_prefixes
from gc_assets.stages.records.accepted_runs import newest_accepted_run
from gc_assets.stages.records.newest_sweeps import find_sweep
from gc_assets.stages.sweep.claims import effective_claims
from gc_assets.stages.sweep.older_than_claim import read_older_files, update_older_files
from gc_assets.stages.sweep.storage_column import StorageColumn
from gc_assets.stages.sweep.table_memory import find_accepted_sweep
from gc_assets.state.arrow_types import STRING
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.receipts import PartFile
from gc_assets.state.schemas import LAKE_REFS, LIVE_FILES, ORPHAN_FILES
from gc_assets.state.side_tables import (
    CLAIMED,
    CLAIMED_SIDE,
    FOREIGN_DATASETS,
    FOREIGN_DATASETS_SIDE,
    FOUND_DATASETS_SIDE,
    OLDER_THAN_CLAIM_SIDE,
    STATES_SIDE,
    TARGETS,
    TARGETS_SIDE,
)
from gc_assets.state.summaries import DeletionPlanSummary, ForeignFiles, LakeRefsSummary

FOREIGN: Final = "foreign"
_LOCATED: Final = pa.schema([("storage", pa.string()), ("key", pa.string())])
_FOUND_DDL: Final = "target string"
_SUM_DDL: Final = "sum string"
_SUMMED: Final = pa.schema(
    [ORPHAN_FILES.schema.field(name) for name in ("key", "size_bytes", "last_modified", "reason", "lake", "foreign_rule")]
)
# Number of samples in a summary.
MAX_LISTED: Final = 5


@dataclass(frozen=True)
class ForeignFinder:
    """Add the column `foreign_rule`: the rule that makes a claimed file foreign, or null.

    It is pickled and sent to Spark executors.

    Attributes:
        known: Search targets that match a file which a commit ever referenced.
        datasets: Directories of datasets in other formats.
    """

    rules: ForeignRules
    known: frozenset[str]
    datasets: frozenset[str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.append_column("foreign_rule", self.find_rules(batch))

    def find_rules(self, batch: pa.RecordBatch) -> pa.Array:
        return self.rules.find_foreign(batch, self.known, self.datasets)


@dataclass(frozen=True)
class ForeignSearch:
    """A sweep's search for files that may not belong to the lake (foreign files).

    Attributes:
        finder: Finds foreign files among the candidates, or None if no candidate can be foreign.
        datasets: Directories of datasets in other formats (`FOREIGN_DATASETS` columns).
    """

    spark: SparkSession
    context: RunContext
    storage: str
    rules: ForeignRules
    run: TableRun
    finder: ForeignFinder | None
    datasets: pa.Table

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        context: RunContext,
        storage_name: str,
        live: Sequence[PublishedTable],
        rules: ForeignRules,
        probed: WrittenParts,
        run: TableRun,
    ) -> Self:
        """Prepare the search from the side tables that the probe of the inventory wrote.

        Args:
            live: `live_files` of all lakes.
            probed: The parts that the probe wrote for `run`.
        """
        files = context.state.files
        found = read_parts(files, probed.paths(run, FOUND_DATASETS_SIDE), FOREIGN_DATASETS)
        datasets = outermost(found, rules.claims)
        targets = read_parts(files, probed.paths(run, TARGETS_SIDE), TARGETS).column("target").unique().to_pylist()
        finder = None
        if targets or datasets.num_rows or rules.ages.has_new_claims:
            known = find_known(spark, context, storage_name, live, targets)
            finder = ForeignFinder(rules, known, frozenset(datasets.column("key").to_pylist()))
        return cls(spark, context, storage_name, rules, run, finder, datasets)

    def write(self, written: WrittenParts) -> dict[str, tuple[PartFile, ...]]:
        """Write the side tables that later runs and applies read.

        Args:
            written: The parts of `orphan_files` written by the sweep.
        """
        files, rules = self.context.state.files, self.rules
        tables = {
            CLAIMED_SIDE: age_rows(rules.ages.merge(rules.dropped_ages), rules.seen.merge(rules.dropped_seen)),
            FOREIGN_DATASETS_SIDE: self.datasets,
            OLDER_THAN_CLAIM_SIDE: update_older_files(self.spark, rules.remembered, written, self.run, files),
        }
        return {side: tuple(write_parts(rows, self.run, files, side)) for side, rows in tables.items() if rows.num_rows}

    def sum_files(self, written: WrittenParts) -> tuple[ForeignFiles, ...]:
        """Count the foreign files in `orphan_files` for each rule and claim, most files first."""
        if not any(reason == FOREIGN for reason, *_ in written.totals):
            return ()
        scan = ParquetScan.of(self.context.state.files, _SUMMED, self.run.path, written.parts)
        found: dict[tuple[str, str, str], ForeignFiles] = {}
        for row in scan.run_task(self.spark, _SumForeign(self.rules.claims), _SUM_DDL, written.rows):
            _add(found, ForeignFiles.model_validate_json(row["sum"]))
        return tuple(sorted(map(self._describe, found.values()), key=lambda item: (-item.files, item.address, item.rule)))

    def _describe(self, item: ForeignFiles) -> ForeignFiles:
        since = self.rules.ages.of_directory(item.address) if item.rule == NEW_CLAIM else None
        address = self.context.resolver().address(self.storage, item.address)
        return item.model_copy(update={"address": address, "since": since})


def foreign_rules(
    context: RunContext,
    storage_name: str,
    claims: Claims,
    tables: Sequence[PublishedTable],
    dropped: Sequence[RememberedTable] = (),
) -> ForeignRules:
    """Build the rules that decide which files of a storage are foreign.

    Args:
        tables: `lake_refs` and `live_files` of all lakes.
        dropped: The dropped tables. Their claims keep the ages that earlier runs recorded.
    """
    paths = {lake.name: found for lake in context.config.lakes if (found := context.kind(lake.name).files.own_paths) is not None}
    own_names = {lake.name: names for lake in context.config.lakes if (names := context.kind(lake.name).files.own_names) is not None}
    listed, _ = effective_claims(context, storage_name, tables)
    former = {(prefix, item.claim_table) for item in dropped for prefix in item.prefixes}
    ages, seen = claim_ages(context, storage_name, tables, former)
    (ages, dropped_ages), (seen, dropped_seen) = ages.split(former), seen.split(former)
    own_claims = {prefix for item in dropped for prefix in item.prefixes if item.lake in own_names and prefix in claims.owners}
    locations = _find_locations(listed, own_names) | (own_claims - {claim.prefix for claim in listed})
    accepted = accepted_prefixes(context, storage_name)
    tables_listed = frozenset(claim.prefix for claim in listed if claim.table is not None and claim.collect)
    return ForeignRules(
        claims,
        own_names,
        frozenset(locations),
        ages,
        seen,
        accepted,
        dropped_ages,
        dropped_seen,
        paths,
        tables_listed,
        read_older_files(context, storage_name),
    )


def _find_locations(claims: Collection[PrefixClaim], lakes: Collection[str]) -> set[str]:
    """Return the table locations in the given lakes, except prefixes that a whole lake claims."""
    of_lakes = {claim.prefix for claim in claims if claim.table is None and claim.collect}
    return {claim.prefix for claim in claims if claim.table is not None and claim.owner.lake in lakes} - of_lakes


def claim_ages(
    context: RunContext, storage_name: str, tables: Sequence[PublishedTable], dropped: Collection[tuple[str, str]] = ()
) -> tuple[ClaimAges, ClaimAges]:
    """Return since when the current claims have existed, according to two definitions.

    The first result has the time of the last run without the claim, and the second that of the
    first run with it. A claim is new if the storage's newest accepted run did not have it, and it
    keeps its age in all later runs. The claims (prefix, table) of `dropped` tables keep their ages
    too.
    """
    listed, _ = effective_claims(context, storage_name, tables)
    current = [*_owners(listed), *sorted(dropped)]
    shields = {claim.prefix for claim in listed if not claim.collect and claim.table is None}
    run = newest_accepted_run(context, storage_name)
    if run is None:
        ages = ClaimAges().continue_with(current, None)
        return ages, ages
    accepted = run.summary(DeletionPlanSummary).header
    now = max(table.summary(LakeRefsSummary).frozen_at for table in tables if table.receipt.asset == LAKE_REFS.name)
    swept = find_accepted_sweep(context, storage_name)
    if swept is not None and swept.paths(CLAIMED_SIDE):
        rows = read_parts(context.state.files, swept.paths(CLAIMED_SIDE), CLAIMED)
        ages, seen = _read_ages(rows, "since"), _read_ages(rows, "seen")
        return ages.continue_with(current, accepted.frozen_at, shields), seen.continue_with(current, now, shields)
    # Releases before 0.4 did not record ages.
    names = accepted.refs_digests
    found = [context.state.current(name, table.name, accepted.run_date) for name in names for table in (LAKE_REFS, LIVE_FILES)]
    earlier, _ = effective_claims(context, storage_name, [table for table in found if table is not None])
    if any(table is None for table in found):
        earlier += [claim for claim in listed if claim.owner.lake in names]
    known = ClaimAges().continue_with(_owners(earlier), None)
    return known.continue_with(current, accepted.frozen_at, shields), known.continue_with(current, now, shields)


def _owners(claims: Iterable[PrefixClaim]) -> list[tuple[str, str]]:
    """Return each claimed prefix with its table, or with "" if a whole lake claims it.

    Prefixes that a lake only protects are skipped, and so are claims on metadata, because they are
    as old as the lake.
    """
    own = (claim for claim in claims if claim.names is None and (claim.collect or claim.table is not None))
    return sorted({(claim.prefix, claim.table or "") for claim in own})


def foreign_notes(context: RunContext, storage_name: str, found: Sequence[ForeignFiles]) -> list[str]:
    """Return report messages about the foreign files in each claim."""
    notes: list[str] = []
    for item in found[:MAX_LISTED]:
        # A hidden directory or a dataset in another format must be accepted separately, because a
        # repository's claim may contain directories of several teams.
        directory = item.samples[0].rpartition("/")[0]
        is_inner = item.rule in {OTHER_FORMAT, HIDDEN_PATH, UNKNOWN_PATH} and directory
        location = context.resolver().address(storage_name, f"{directory}/") if is_inner else item.address
        notes.append(
            f"lake {item.lake}: {item} may belong to others and are not planned: {RULES[item.rule]}. "
            f"If they are garbage: {command('accept-prefix', location, by='WHO', comment='WHY')}"
        )
    return notes


def age_rows(ages: ClaimAges, seen: ClaimAges) -> pa.Table:
    """Convert the results of `claim_ages` to rows of `CLAIMED`."""
    rows = [
        {"key": prefix, "table": table, "since": since, "seen": seen.since.get(prefix, {}).get(table)}
        for prefix, times in sorted(ages.since.items())
        for table, since in sorted(times.items())
    ]
    return pa.Table.from_pylist(rows, schema=CLAIMED)


def _read_ages(rows: pa.Table, column: str) -> ClaimAges:
    found: dict[str, dict[str, datetime | None]] = {}
    for row in rows.to_pylist():
        found.setdefault(row["key"], {})[row["table"]] = row[column]
    return ClaimAges(found)


def find_known(
    spark: SparkSession,
    context: RunContext,
    storage_name: str,
    live: Sequence[PublishedTable],
    targets: Collection[str],
) -> frozenset[str]:
    """Return the search targets that match any file ever referenced by a commit.

    Files that commits reference directly are read first, then the entries of all decoded
    containers. The search stops as soon as all targets are found.
    """
    found: set[str] = set()
    targets = frozenset(targets) - {HAS_UNKNOWN_PATH}
    kinds = (context.kind(lake.name).files for lake in context.config.lakes)
    data_names = tuple({names for files in kinds if (names := files.data_names) is not None})
    for column in _known_columns(spark, context, storage_name, live):
        left = targets - found
        if not left:
            break
        search = _FindTargets(left, data_names)
        found |= {row["target"] for row in column.run_task(search, _FOUND_DDL)}
    return frozenset(found)


def _known_columns(spark: SparkSession, context: RunContext, storage_name: str, live: Sequence[PublishedTable]) -> Iterator[StorageColumn]:
    files = context.state.files
    states = [(f"{table.path}/{part.name}", part) for table in live for part in table.parts(STATES_SIDE)]
    if states:
        scan = ParquetScan(files, _LOCATED, tuple(path for path, _ in states), tuple(part.size_bytes for _, part in states))
        yield StorageColumn(spark, scan, sum(part.rows for _, part in states), storage_name, "key")
    for lake in context.config.lakes:
        runs = find_segments(context, lake.name)
        paths = context.state.segments(runs).paths()
        if paths:
            rows = sum(run.rows for run in runs)
            yield StorageColumn(spark, ParquetScan(files, _LOCATED, tuple(paths), tuple(map(files.size, paths))), rows, storage_name, "key")


@dataclass(frozen=True)
class _FindTargets:
    """Yield the search targets that match keys referenced by commits, on Spark executors."""

    targets: frozenset[str]
    data_names: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        known, found = KnownFiles(self.targets, self.data_names), set[str]()
        for batch in batches:
            found |= known.find(batch.column("key"))
        yield pa.RecordBatch.from_arrays([pa.array(sorted(found), pa.string())], schema=TARGETS)


@dataclass(frozen=True)
class _SumForeign:
    """Count foreign files for each rule, lake and claim, on Spark executors."""

    claims: Claims

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found: dict[tuple[str, str, str], ForeignFiles] = {}
        for batch in batches:
            for row in batch.filter(pc.equal(batch.column("reason"), FOREIGN)).to_pylist():
                prefix = self.claims.deepest(row["key"][: row["key"].rfind("/") + 1])
                new = ForeignFiles(
                    rule=row["foreign_rule"],
                    lake=row["lake"],
                    address=prefix,
                    files=1,
                    bytes=row["size_bytes"],
                    oldest=row["last_modified"],
                    samples=(row["key"],),
                )
                _add(found, new)
        yield pa.RecordBatch.from_pydict({"sum": [item.model_dump_json() for item in found.values()]})


def _add(found: dict[tuple[str, str, str], ForeignFiles], new: ForeignFiles) -> None:
    group = new.rule, new.lake, new.address
    old = found.get(group)
    if old is None:
        found[group] = new
        return
    oldest = min((time for time in (old.oldest, new.oldest) if time is not None), default=None)
    samples = (*old.samples, *new.samples)[:MAX_LISTED]
    amounts = {"files": old.files + new.files, "bytes": old.bytes + new.bytes, "oldest": oldest, "samples": samples}
    found[group] = old.model_copy(update=amounts)


def find_datasets(keys: pa.Array) -> pa.RecordBatch:
    """Find the directories of datasets in other formats, based on typical file names.

    Returns:
        The distinct directories (`FOREIGN_DATASETS` columns).
    """
    signs = keys.filter(pc.match_substring_regex(keys, _any_sign()))
    found: set[tuple[str, str]] = set()
    for item in OTHER_FORMATS if len(signs) else ():
        roots = pc.struct_field(pc.extract_regex(signs, item.sign), "root")
        found |= {(root, item.name) for root in pc.unique(roots).to_pylist() if root is not None}
    return pa.RecordBatch.from_pylist([{"key": root, "format": name} for root, name in sorted(found)], schema=FOREIGN_DATASETS)


def outermost(datasets: pa.Table, claims: Claims) -> pa.Table:
    """Return the claimed datasets that are not nested in another dataset of the same claim.

    A dataset that spans a whole claim does not hide nested ones, because such a dataset is ignored
    if a lake claims the prefix for itself (`core/foreign.py`).
    """
    names: Mapping[str, str] = {row["key"]: row["format"] for row in datasets.to_pylist()}
    kept: dict[str, list[str]] = {}
    for root in sorted(names):
        claim = claims.deepest(root)
        roots = kept.setdefault(claim, [])
        if not roots or roots[-1] == claim or not root.startswith(roots[-1]):
            roots.append(root)
    found = sorted(root for claim, roots in kept.items() if claim in claims.owners for root in roots)
    return pa.table({"key": pa.array(found, STRING), "format": pa.array([names[root] for root in found], STRING)}).cast(FOREIGN_DATASETS)


def protected_keys(context: RunContext, storage_name: str) -> str | None:
    """Return a regular expression for keys that `protect` in lakes.yaml matches, or None."""
    return glob_regex(context.storage(storage_name).protect)


@lru_cache(maxsize=1)
def _any_sign() -> str:
    return "|".join(f"(?:{_without_name(item)})" for item in OTHER_FORMATS)


def _without_name(item: OtherFormat) -> str:
    return item.sign.replace("?P<root>", "?:")


def read_datasets(context: RunContext, storage_name: str) -> frozenset[str]:
    """Return the directories of datasets in other formats that the sweep found (see `find_sweep`)."""
    swept = find_sweep(context, storage_name)
    if swept is None:
        return frozenset()
    rows = read_parts(context.state.files, swept.paths(FOREIGN_DATASETS_SIDE), FOREIGN_DATASETS, ["key"])
    return frozenset(rows.column("key").to_pylist())
