"""Check for problems that may stop a plan.

The checks look for live files that are missing from the inventory, for live keys that are reached
through links, and for foreign metadata. Each function returns counts and samples, based on which
the gates decide whether to stop the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.claims import Owner, find_table_prefix
from gc_assets.core.hashing import xxhash64
from gc_assets.core.objects import Objects
from gc_assets.core.plan import LiveCount, lacks_too_many
from gc_assets.core.printable import MAX_LISTED, show
from gc_assets.core.sorted_hashes import sort_distinct
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import choose_session
from gc_assets.engine.tables import (
    MAX_SAMPLES,
    collect,
    collect_arrow,
    frame_from_arrow,
    map_arrow,
    read_paths,
    read_table,
    run_over_frame,
    spark_schema,
    write_parts,
)
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.kind import LakeKind, Spellings
from gc_assets.lakes.kinds import KINDS
from gc_assets.stages.mark.decoding import content_digest
from gc_assets.stages.records.dead_tables import dead_tables
from gc_assets.stages.sweep.claims import list_claimed_prefixes
from gc_assets.stages.sweep.dropped_tables import NO_DROPPED_TABLES, SPLIT_SUSPECTS, DroppedTables, SuspectSplit, add_dropped
from gc_assets.stages.sweep.exact_comparison import find_twins
from gc_assets.stages.sweep.foreign_files import protected_keys
from gc_assets.stages.sweep.foreign_metadata import (
    FOREIGN,
    MetadataClassifier,
    StoragePrefix,
    directory_of,
    foreign_metadata,
    metadata_patterns,
)
from gc_assets.stages.sweep.former_views import NO_FORMER_VIEWS, FormerViews
from gc_assets.stages.sweep.known_tables import NEVER_NEWER, known_tables
from gc_assets.stages.sweep.metadata_lineage import find_foreign_lineages, find_settled_time, remove_former
from gc_assets.state.arrow_types import BOOL, STRING
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.parts import PartFile, PartWriter, read_parts
from gc_assets.state.schemas import COMMIT_GRAPH, LAKE_REFS, LIVE_FILES
from gc_assets.state.side_tables import (
    CANDIDATES,
    FOREIGN_PREFIXES,
    FOREIGN_PREFIXES_SIDE,
    IDENTITY_SEPARATOR,
    METADATA,
    METADATA_SIDE,
    MISSING_LIVE,
    MISSING_LIVE_SIDE,
    PINNED,
    PINNED_SIDE,
    PROBLEMS,
    PROBLEMS_SIDE,
)
from gc_assets.state.summaries import StorageInventorySummary
from gc_assets.stores.protocol import LookUp

# Largest number of objects that a check returns. A gate shows their number and the first few.
MAX_NAMED: Final = 1_000
# Largest number of missing live files that are published, counted once for each lake. Later runs
# compare their hashes with those of another sweep in one process, which takes 8 bytes each.
MAX_ACCEPTED: Final = 20_000_000
# This process reads at most this many suspects, one after the other.
MAX_IN_PROCESS_SUSPECTS: Final = 8
REREAD: Final = pa.schema([("address", STRING), ("key", STRING), ("kind", STRING), ("etag", STRING), ("same", BOOL)])
MISSING_DDL: Final = "key string, kind string, lake string, table_uuid string, is_replaced boolean"
_NAMES: Final = pa.schema([("key", STRING), ("lake", STRING)])
# A name of a file, and the possible name by which it was found.
_POSSIBLE: Final = _NAMES.append(pa.field("possible", STRING))
_OWNER: Final = ["lake", "table_uuid"]
_NO_LOST: Final = pa.table({name: pa.nulls(0, STRING) for name in ("key", *_OWNER)})
_LOST: Final = pa.schema(
    [
        ("files", pa.int64()),
        ("keys", pa.list_(STRING)),
        ("owners", pa.list_(pa.struct([*((name, STRING) for name in _OWNER), ("files", pa.int64())]))),
        ("parts", pa.list_(STRING)),
    ]
)


@dataclass(frozen=True, slots=True)
class Missing:
    """A live metadata object that is missing, and the table or lake that needs it.

    `is_replaced` is True if there is an object of the same name, but of another length.
    """

    name: str
    lake: str
    table_uuid: str | None
    is_replaced: bool


def missing_metadata(keys: DataFrame, listed: DataFrame, lister: LookUp) -> list[Missing]:
    """Return up to `MAX_NAMED` live metadata objects that are missing from the inventory.

    An object is skipped if a lookup in the store finds it with the length that it had when it was
    decoded. `rewritten_metadata` checks the objects in the inventory.

    Args:
        keys: Live files of all lakes.
        listed: The inventory.
        lister: Looks up the objects.
    """
    needed = keys.filter("must_exist and (container_size_bytes is not null or commit_id is null)").select(
        "key", "kind", F.col("container_size_bytes").alias("decoded_bytes"), "lake", "table_uuid"
    )
    present = listed.select("key").join(F.broadcast(needed.select("key").distinct()), "key")
    lacking = needed.join(present, "key", "left_anti").select("key", "kind", "decoded_bytes", "lake", "table_uuid")
    rows = collect(lacking.mapInArrow(_LookUpMetadata(lister), MISSING_DDL).limit(MAX_NAMED))
    found = (Missing(f"{row['kind']} {row['key']}", row["lake"], row["table_uuid"], row["is_replaced"]) for row in rows)
    return sorted(found, key=lambda item: item.name)


@dataclass(frozen=True)
class _LookUpMetadata:
    """Look up metadata objects, and yield those that are missing or do not have the decoded length.

    It is pickled and sent to Spark executors.
    """

    lister: LookUp

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            sizes = pa.array(self.lister.look_up(batch.column("key").to_pylist()), pa.int64())
            decoded = pc.fill_null(batch.column("decoded_bytes"), sizes)
            rows = batch.select(["key", "kind", "lake", "table_uuid"]).append_column("is_replaced", pc.is_valid(sizes))
            yield rows.filter(pc.invert(pc.fill_null(pc.equal(sizes, decoded), False)))


def rewritten_metadata(spark: SparkSession, context: RunContext, storage_name: str, metadata: Sequence[str], listed: DataFrame) -> pa.Table:
    """Read live metadata objects again if the listing shows another ETag than was decoded.

    For objects without a recorded ETag, the lengths are compared.

    Args:
        metadata: Paths of parts with the `METADATA` columns.
        listed: The inventory.

    Returns:
        The objects that were read again (`REREAD` columns). `same` is true if the object's content
        was decoded before, or if its format rewrites objects in place and the length is unchanged.
    """
    needed = read_paths(spark, context.state.files, METADATA, list(metadata)).filter(F.col("storage") == storage_name)
    present = listed.select("key", F.col("etag").alias("listed_etag"), F.col("size_bytes").alias("listed_bytes"))
    is_as_long = F.col("listed_bytes") == F.col("container_size_bytes")
    # Releases before 0.4 only recorded the length of a decoded object. An object that was never
    # decoded has neither a length nor an ETag.
    is_known = F.coalesce(F.array_contains(F.split("etag", IDENTITY_SEPARATOR), F.col("listed_etag")), is_as_long, F.lit(True))
    objects = present.join(F.broadcast(needed.distinct()), "key").groupBy("address", "key", "kind", "listed_etag")
    digests = F.concat_ws(IDENTITY_SEPARATOR, F.collect_set("digest")).alias("digest")
    others = objects.agg(F.max(is_known).alias("is_known"), F.max(is_as_long).alias("as_long"), digests).filter("not is_known")
    others = others.select("address", "key", "kind", F.col("listed_etag").alias("etag"), "digest", "as_long")
    in_place = frozenset[str]().union(*(kind.files.rewritten_in_place for kind in KINDS.values()))
    rows = collect(others.mapInArrow(_RereadContainers(context.objects(), in_place), spark_schema(REREAD)))
    return pa.Table.from_pylist([row.asDict() for row in rows], schema=REREAD)


@dataclass(frozen=True)
class _RereadContainers:
    """Read containers again, and check whether their content was decoded before.

    It is pickled and sent to Spark executors.
    """

    objects: Objects
    in_place: frozenset[str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = zip(*(batch.column(name).to_pylist() for name in ("address", "kind", "digest", "as_long")), strict=True)
            same = [(as_long and kind in self.in_place) or self._holds(address, digest) for address, kind, digest, as_long in rows]
            yield batch.select(["address", "key", "kind", "etag"]).append_column("same", pa.array(same, pa.bool_()))

    def _holds(self, address: str, digest: str) -> bool:
        try:
            return content_digest(self.objects.read(address)) in digest.split(IDENTITY_SEPARATOR)
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class MissingLiveFiles:
    """Live files that are missing from a storage.

    Attributes:
        files: Upper bound for the number of missing files.
        samples: Keys of some missing files.
        owners: Tables that need a missing file, with the number of such files. A lake without
            tables is listed itself.
        parts: The missing files by lake (columns `MISSING_LIVE`).
    """

    files: int
    samples: tuple[str, ...] = ()
    owners: Mapping[Owner, int] = field(default_factory=dict[Owner, int])
    parts: tuple[PartFile, ...] = field(default=(), compare=False)

    @property
    def published_parts(self) -> tuple[PartFile, ...]:
        """The parts to publish. Empty if there are too many missing files to accept."""
        return self.parts if sum(part.rows for part in self.parts) <= MAX_ACCEPTED else ()

    def select_owners(self, live: LiveCount) -> frozenset[Owner]:
        """Select the tables that need a missing file.

        A lake is returned as a whole if too many of its files are missing (see `lacks_too_many`),
        or too many files of the whole storage.

        Args:
            live: The live files of the storage.
        """
        by_lake = Counter[str]()
        for owner, files in self.owners.items():
            by_lake[owner.lake] += files
        refused = lacks_too_many(self.files, live.files)
        lakes = {lake for lake, files in by_lake.items() if refused or lacks_too_many(files, live.by_lake.get(lake, 0))}
        return frozenset(Owner(owner.lake, None) if owner.lake in lakes else owner for owner in self.owners)


def find_unlisted(
    keys: DataFrame, listed: DataFrame, quarantined: DataFrame, purged: DataFrame, lister: LookUp, files: Files, run: TableRun
) -> MissingLiveFiles:
    """Find live files that must exist, but are neither listed nor in quarantine.

    Files that are missing from the inventory are looked up. Files in quarantine are not reported,
    because the plan restores them.

    Args:
        keys: Live files of all lakes.
        listed: The inventory.
        quarantined: The quarantine ledger.
        purged: Keys purged because a rule of their lake allowed it (columns key, lake). They do not
            have to exist for that lake.
        files: The files of the state.
        run: The run to which the missing files are written.
    """
    needed = keys.filter("must_exist").select("key", "lake", "table_uuid").join(purged, ["key", "lake"], "left_anti")
    # All lakes that need a file are in one partition, so that it is counted once.
    lost = _select_lost(needed, listed, quarantined).repartition("key")
    found = run_over_frame(lost, _RecordLost(lister, files, run), spark_schema(_LOST))
    return MissingLiveFiles(
        sum(row["files"] for row in found),
        tuple(sorted(key for row in found for key in row["keys"])[:MAX_SAMPLES]),
        _sum_owners(row["owners"] for row in found),
        tuple(PartFile.model_validate_json(part) for row in found for part in row["parts"]),
    )


def _sum_owners(groups: Iterable[Sequence[Mapping[str, Any]]]) -> dict[Owner, int]:
    found = Counter[Owner]()
    for row in (row for rows in groups for row in rows):
        found[Owner(row["lake"], row["table_uuid"])] += row["files"]
    return found


def find_other_names(keys: DataFrame, kinds: Mapping[str, LakeKind], listed: DataFrame, quarantined: DataFrame, lister: LookUp) -> pa.Table:
    """Return unlisted live files that exist under another name possible in the lake.

    Args:
        keys: Live keys of all lakes.
        kinds: The kinds of the lakes.
        listed: The inventory.
        quarantined: The quarantine ledger.
        lister: Looks up the possible names that are in neither the inventory nor the ledger.

    Returns:
        Rows with the columns key and lake.
    """
    spellings = {lake: kind.files.spellings for lake, kind in kinds.items() if kind.files.spellings is not None}
    if not spellings:
        return _NAMES.empty_table()
    possible = keys.filter((F.col("kind") == Kind.POSSIBLE_OBJECT) & F.col("lake").isin(*spellings)).select("key", "lake")
    lost = _select_lost(keys.filter("must_exist"), listed, quarantined).select("key", "lake")
    names = map_arrow(possible, _AddNames(spellings), _POSSIBLE).join(lost, ["key", "lake"], "left_semi")
    existing = listed.select("key").unionByName(quarantined.select("key"))
    wanted = names.select(F.col("possible").alias("key"), "lake").distinct()
    found = wanted.join(existing, "key", "left_semi")
    others = wanted.join(existing, "key", "left_anti").mapInArrow(_SelectExisting(lister), "key string, lake string")
    present = found.unionByName(others).withColumnRenamed("key", "possible")
    return collect_arrow(names.join(present, ["possible", "lake"], "left_semi").select(*_NAMES.names).distinct(), _NAMES)


def _select_lost(keys: DataFrame, listed: DataFrame, quarantined: DataFrame) -> DataFrame:
    """Return the rows of `keys` whose files are neither listed nor in quarantine."""
    return keys.join(listed.select("key"), "key", "left_anti").join(quarantined.select("key"), "key", "left_anti")


@dataclass(frozen=True)
class _SelectExisting:
    """Look up keys, and yield the rows whose object exists, on Spark executors."""

    lister: LookUp

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.filter(pc.is_valid(pa.array(self.lister.look_up(batch.column("key").to_pylist()), pa.int64())))


@dataclass(frozen=True)
class _AddNames:
    """Yield all possible names of each file as rows of `_POSSIBLE`, on Spark executors."""

    spellings: Mapping[str, Spellings]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [
                {"key": name, "lake": row["lake"], "possible": row["key"]}
                for row in batch.to_pylist()
                for name in self.spellings[row["lake"]](row["key"])
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=_POSSIBLE)


def find_misspelled(
    near_misses: DataFrame, keys: DataFrame, listed: DataFrame, quarantined: DataFrame, lister: LookUp, *, ignore_case: bool
) -> tuple[str, ...]:
    """Return up to `MAX_NAMED` near misses whose live key must exist but is missing.

    Near misses are candidates that differ from a live key only in spelling. If the live key exists,
    the near miss is another object and is skipped.

    Args:
        keys: Live files of all lakes.
        listed: The inventory.
        quarantined: The quarantine ledger.
        lister: Looks up live keys that are in neither of them.
        ignore_case: True if keys that differ only in case may refer to the same file.
    """
    twins = find_twins(near_misses, keys.filter("must_exist"), ignore_case=ignore_case).distinct()
    absent = twins.join(listed.select(F.col("key").alias("live_key")), "live_key", "left_anti")
    absent = absent.join(quarantined.select(F.col("key").alias("live_key")), "live_key", "left_anti")
    rows = collect(absent.limit(MAX_NAMED))
    sizes = lister.look_up([row["live_key"] for row in rows])
    return tuple(sorted({row["key"] for row, size in zip(rows, sizes, strict=True) if size is None}))


@dataclass(frozen=True)
class _RecordLost:
    """Look up live files, and write the missing ones to the side table of a run.

    Yields one row with the `_LOST` columns: their number, first keys, owners and parts. It is pickled
    and sent to Spark executors.
    """

    lister: LookUp
    files: Files
    run: TableRun

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        hashes, first, owners = [np.empty(0, np.int64)], _NO_LOST.select(["key"]), Counter[Owner]()
        writer = PartWriter(self.files, self.run.path, MISSING_LIVE, MISSING_LIVE_SIDE)
        for batch in batches:
            sizes = pa.array(self.lister.look_up(batch.column("key").to_pylist()), pa.int64())
            lost = pa.Table.from_batches([batch.filter(pc.is_null(sizes))])
            key_hash = xxhash64(lost.column("key"))
            for rows in lost.select(["lake"]).append_column("key_hash", pa.array(key_hash)).to_batches():
                writer.write(rows)
            hashes.append(sort_distinct(key_hash))
            first = pa.concat_tables([first, lost.select(["key"])]).group_by("key").aggregate([])
            first = first.take(pc.select_k_unstable(first, MAX_SAMPLES, [("key", "ascending")]))
            for row in lost.group_by(_OWNER).aggregate([([], "count_all")]).to_pylist():
                owners[Owner(row["lake"], row["table_uuid"])] += row["count_all"]
        row = {
            "files": len(sort_distinct(np.concatenate(hashes))),
            "keys": first.column("key").to_pylist(),
            "owners": [{"lake": owner.lake, "table_uuid": owner.table_uuid, "files": files} for owner, files in owners.items()],
            "parts": [part.model_dump_json() for part in writer.close()],
        }
        yield pa.RecordBatch.from_pylist([row], schema=_LOST)


@dataclass(frozen=True, slots=True)
class ForeignMetadata:
    """Metadata of unconfigured tables and repositories.

    Attributes:
        messages: One message per metadata file.
        junk: Keys of files that are not valid metadata, with reasons.
        junk_owners: Tables whose claims contain such files, with the key of one file each.
        prefixes: Prefixes in all storages under which the tables of the metadata may have files.
            This includes metadata under the claims of dropped tables.
        notes: Why files under such prefixes are kept.
        dropped: Why dropped tables wait, keyed by their claimed prefix. The metadata under these
            claims belongs to other tables, or is newer than the last known metadata of the dropped
            table.
        lakes: Lakes whose claims contain the metadata.
        other_storages: Other storages to which locations and manifest lists in the metadata refer.
        views: Views that catalogs list or listed, with the metadata of views no longer listed.
    """

    messages: list[str]
    junk: dict[str, str]
    dropped: dict[str, str] = field(default_factory=dict[str, str])
    lakes: frozenset[str] = frozenset()
    other_storages: frozenset[str] = frozenset()
    views: FormerViews = NO_FORMER_VIEWS
    junk_owners: Mapping[Owner, str] = field(default_factory=dict[Owner, str])
    prefixes: frozenset[StoragePrefix] = frozenset()
    notes: tuple[str, ...] = ()

    def protected_prefixes(self, storage_name: str) -> tuple[str, ...]:
        """Return prefixes in which no file is deleted: those of foreign tables and around junk.

        Junk are files named like metadata that cannot be read as metadata. They may belong to a
        table.
        """
        foreign = {item.prefix for item in self.prefixes if item.storage == storage_name}
        return tuple(sorted(foreign.union(map(find_table_prefix, self.junk))))

    def write(self, context: RunContext, run: TableRun) -> dict[str, tuple[PartFile, ...]]:
        """Write the prefixes to a side table of the run.

        Plans and applies of all storages read it.
        """
        around_junk = {StoragePrefix(run.group, find_table_prefix(key)) for key in self.junk} - self.prefixes
        if not (self.prefixes or around_junk):
            return {}
        rows = [{**item._asdict(), "is_junk": item in around_junk} for item in sorted(self.prefixes | around_junk)]
        table = pa.Table.from_pylist(rows, schema=FOREIGN_PREFIXES)
        return {FOREIGN_PREFIXES_SIDE: tuple(write_parts(table, run, context.state.files, FOREIGN_PREFIXES_SIDE))}


def find_foreign_metadata(
    spark: SparkSession,
    context: RunContext,
    storage_name: str,
    suspects: list[str],
    count: int,
    cutoff: datetime,
    dropped: DroppedTables = NO_DROPPED_TABLES,
    views: FormerViews = NO_FORMER_VIEWS,
) -> ForeignMetadata:
    """Find metadata of unconfigured tables and repositories.

    If there are `MAX_NAMED` or more such files, none of them is treated as junk.

    Args:
        suspects: Paths of parts with the suspects, which are claimed objects with names of metadata
            (`CANDIDATES` columns).
        count: Number of rows in `suspects`.
        cutoff: Objects modified before this time are old.
        dropped: The dropped tables. Their own metadata is not foreign. Foreign metadata under their
            claims does not refuse plans. Instead, the dropped tables wait, and the files that this
            metadata references are kept.
        views: The views that catalogs list or listed. Their metadata is not foreign.
    """
    if not suspects:
        return ForeignMetadata([], {}, views=views)
    if count <= MAX_IN_PROCESS_SUSPECTS:
        graphs = context.lake_tables(COMMIT_GRAPH)
        spark = choose_session(spark, sum(graph.rows for graph in graphs), sum(len(graph.paths()) for graph in graphs))
    frame = read_paths(spark, context.state.files, CANDIDATES, suspects).withColumn("is_old", F.col("last_modified") < F.lit(cutoff))
    frame = frame.join(_named_by_commits(spark, context, storage_name), "key", "left_anti")
    settings = {lake.name: lake.collects_failed_creations for lake in context.config.lakes}
    own = [(directory, settings[lake]) for lake in settings for directory in _metadata_directories(context, storage_name, lake)]
    search = _SuspectSearch.of(context, storage_name, dropped, views)
    waiting, notes = dict[str, str](), tuple[str, ...]()
    if dropped.claims:
        split = map_arrow(frame, SuspectSplit(dropped.prefixes), SPLIT_SUSPECTS)
        inside, frame = split.filter("dropped_prefix is not null"), split.filter("dropped_prefix is null")
        of_dropped = [(directory, settings.get(lake)) for lake, directory in dropped.metadata_directories(context, storage_name)]
        waiting, notes = search.find_under_dropped(inside, dropped, _merge_settings([*own, *of_dropped]))
    found = _describe_foreign(search, search.find(frame, _merge_settings(own)))
    return replace(found, dropped=waiting, views=replace(views, files=search.of_views), notes=notes)


def _describe_foreign(search: _SuspectSearch, rows: Sequence[Mapping[str, Any]]) -> ForeignMetadata:
    """Separate junk from foreign metadata, and collect what the metadata refers to."""
    junk = {row["key"]: row["reason"] for row in rows if row["is_junk"]} if len(rows) < MAX_NAMED else {}
    foreign = [row for row in rows if row["key"] not in junk]
    messages = [f"{row['key']}: {row['reason']}" for row in foreign]
    lakes = frozenset(row["lake"] for row in foreign)
    prefixes = search.kept.union(StoragePrefix(**item) for row in foreign for item in row["prefixes"])
    storages = frozenset(item["storage"] for row in foreign for item in row["prefixes"]) - {search.storage}
    owners = {Owner(row["lake"], row["claimed_by"]): row["key"] for row in reversed(rows) if row["key"] in junk and row["claimed_by"]}
    prefixes |= _find_other_claims(
        search.context, search.storage, {Owner(row["lake"], row["claimed_by"]) for row in foreign if row["claimed_by"]}
    )
    return ForeignMetadata(messages, junk, {}, lakes, storages, junk_owners=owners, prefixes=frozenset(prefixes))


@dataclass(frozen=True, slots=True)
class _SuspectSearch:
    """Finds foreign metadata among suspects (claimed objects with names of metadata).

    Attributes:
        dropped_metadata: Addresses of dropped tables' newest known metadata, by UUID.
        unreadable: UUIDs of unreadable tables.
        of_views: Collects the metadata of former views, with their UUIDs.
        kept: Collects the prefixes of removed former metadata that must be kept.
    """

    context: RunContext
    storage: str
    classifier: MetadataClassifier
    dropped_metadata: Mapping[str, Sequence[str]]
    unreadable: Collection[str]
    of_views: dict[str, str] = field(default_factory=dict[str, str])
    kept: set[StoragePrefix] = field(default_factory=set[StoragePrefix])

    @classmethod
    def of(cls, context: RunContext, storage_name: str, dropped: DroppedTables, views: FormerViews) -> Self:
        known = add_dropped(known_tables(context), dropped)
        classifier = MetadataClassifier(
            storage_name,
            context.resolver(),
            context.objects(),
            known,
            metadata_patterns(),
            tuple(dead_tables(context, storage_name)),
            protected=protected_keys(context, storage_name),
            settled=find_settled_time(context),
            former_views=views.list_times(),
        )
        tables = [item.table for item in dropped.tables]
        former = {table.table_uuid: [table.metadata_location] for table in tables if table.metadata_location is not None}
        return cls(context, storage_name, classifier, former, {uuid for uuid, item in known.items() if item == NEVER_NEWER})

    def find(self, suspects: DataFrame, directories: Mapping[str, bool | None]) -> list[Mapping[str, Any]]:
        """Return the foreign metadata among suspects, sorted by key (`FOREIGN` columns).

        Args:
            directories: See `MetadataClassifier.own_directories`.
        """
        classified = foreign_metadata(suspects, replace(self.classifier, own_directories=directories))
        rows, of_former = remove_former(self.context, self.storage, collect_arrow(classified, FOREIGN).to_pylist())
        self.kept.update(of_former)
        self.of_views.update((row["key"], row["table_uuid"]) for row in rows if row["is_former_view"])
        of_tables = (row for row in rows if row["reason"] is None and not row["is_former_view"])
        reasons = find_foreign_lineages(self.context, self.storage, of_tables, self.dropped_metadata, self.unreadable)
        found: list[Mapping[str, Any]] = [{**row, "reason": row["reason"] or reasons.get(row["key"])} for row in rows]
        return sorted((row for row in found if row["reason"] is not None), key=lambda row: str(row["key"]))

    def find_under_dropped(
        self, suspects: DataFrame, dropped: DroppedTables, directories: Mapping[str, bool | None]
    ) -> tuple[dict[str, str], tuple[str, ...]]:
        """Find foreign metadata under claims of dropped tables. Files that it references are kept.

        Args:
            suspects: The suspects under these claims.
            directories: See `MetadataClassifier.own_directories`.

        Returns:
            Why dropped tables wait, and descriptions of kept files under other prefixes.
        """
        rows = self.find(suspects, directories)
        named = {StoragePrefix(**item): row for row in reversed(rows) for item in row["prefixes"]}
        self.kept.update(named)
        notes = _describe_named(self.context, {place: row for place, row in named.items() if not dropped.contains(self.storage, place)})
        return dropped.explain_foreign([(row["key"], row["reason"]) for row in rows]), notes


def _describe_named(context: RunContext, named: Mapping[StoragePrefix, Mapping[str, Any]]) -> tuple[str, ...]:
    """Explain why files under prefixes to which foreign metadata refers are kept.

    Args:
        named: For each prefix, foreign metadata that refers to it under claims of a dropped table.
    """
    resolver, places = context.resolver(), sorted(named.items())
    notes = [
        f"files in {resolver.address(*place)} are kept, because they may belong to a foreign table in the location of a dropped one: "
        f"{show(row['key'])} is {row['reason']}"
        for place, row in places[:MAX_LISTED]
    ]
    rest = len(places) - MAX_LISTED
    return (*notes, f"files in {rest:,} more locations are kept for the same reason") if rest > 0 else tuple(notes)


def _find_other_claims(context: RunContext, storage_name: str, owners: Collection[Owner]) -> set[StoragePrefix]:
    """Return the prefixes that the given tables claim in other storages.

    The manifests of a foreign table may reference files there, although its metadata does not
    contain the location.
    """
    if not owners:
        return set()
    tables = [*context.lake_tables(LAKE_REFS), *context.lake_tables(LIVE_FILES)]
    return {StoragePrefix(*item) for item in list_claimed_prefixes(context, tables, owners) if item[0] != storage_name}


def _merge_settings(found: Iterable[tuple[str, bool | None]]) -> dict[str, bool | None]:
    """Return one setting per directory, or False if lakes with different settings share it."""
    merged: dict[str, bool | None] = {}
    for directory, setting in found:
        merged[directory] = setting if merged.get(directory, setting) == setting else False
    return merged


def _metadata_directories(context: RunContext, storage_name: str, lake_name: str) -> set[str]:
    """Return the directories with current metadata of those tables of a lake that this run read.

    Directories of earlier metadata that the current metadata references are included.
    """
    files = context.state.files
    live, refs = (context.table(table, lake_name) for table in (LIVE_FILES, LAKE_REFS))
    kinds = pa.array(sorted(frozenset[str]().union(*(pattern.file_kinds for pattern in metadata_patterns()))), pa.string())
    columns = ["storage", "key", "kind"]
    current = read_parts(files, live.paths(METADATA_SIDE), METADATA, columns)
    pinned = read_parts(files, refs.paths(PINNED_SIDE), PINNED, columns)
    rows = pa.concat_tables([current, pinned.cast(current.schema)])
    mine = rows.filter(pc.and_(pc.equal(rows.column("storage"), storage_name), pc.is_in(rows.column("kind"), kinds)))
    return set(map(directory_of, mine.column("key").to_pylist()))


def _named_by_commits(spark: SparkSession, context: RunContext, storage_name: str) -> DataFrame:
    """Return the keys of all metadata files ever referenced by commits on configured servers.

    These files are not foreign, even if their commit is not retained.
    """
    named = frame_from_arrow(spark, pa.schema([("key", STRING)]).empty_table())
    for lake in context.config.lakes:
        if context.kind(lake.name).has_live_contents:
            graph = context.table(COMMIT_GRAPH, lake.name)
            roots = read_table(spark, context.state, COMMIT_GRAPH, graph).select(F.explode("content_roots").alias("root"))
            named = named.unionByName(roots.filter(F.col("root.storage") == storage_name).select("root.key"))
    return named.distinct()


def behind_links(spark: SparkSession, context: RunContext, keys: DataFrame, inventory: PublishedTable) -> list[str]:
    """Return the live keys at or under the storage's symbolic links, at most `MAX_NAMED`."""
    found = keys_at_links(spark, context, keys, inventory)
    return sorted(row["key"] for row in collect(found.limit(MAX_NAMED))) if found is not None else []


def has_links(inventory: PublishedTable) -> bool:
    """Check whether a listing found any symbolic link."""
    return bool(inventory.summary(StorageInventorySummary).problems.get("symlink"))


def keys_at_links(spark: SparkSession, context: RunContext, keys: DataFrame, inventory: PublishedTable) -> DataFrame | None:
    """Return the keys that are at or under a listed symbolic link, in the column key.

    Returns None if the listing did not find any link.
    """
    if not has_links(inventory):
        return None
    problems = read_paths(spark, context.state.files, PROBLEMS, inventory.paths(PROBLEMS_SIDE))
    at = problems.filter("kind = 'symlink'").select(F.col("key").alias("link"))
    below = F.col("key").startswith(F.concat("link", F.lit("/"))) | (F.col("key") == F.col("link"))
    return keys.join(F.broadcast(at), below).select("key")
