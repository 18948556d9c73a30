"""Names the files of a lake from cached entries and from who needs them: all of them, or those that
a change touches beside what is carried over.

The rule is one query (`named_files`), whatever part of the files it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from gc_assets.core.errors import StateError
from gc_assets.core.plan import Amount
from gc_assets.lakes.file_kinds import FILE_KINDS, Kind
from gc_assets.lakes.lakefs.tables import LIFECYCLE_OBJECTS
from gc_assets.stages.few_rows import fitting
from gc_assets.stages.mark.carried import (
    CHANGED,
    CHANGED_SIDE,
    DAMAGED,
    KEYS,
    KEYS_SIDE,
    NAMED,
    TOUCHED,
    TOUCHED_SIDE,
    Base,
    Carried,
    Doubt,
    Full,
    amended,
    carry_over,
    differences,
    key_of,
    only_touched,
    routed,
    routes_of,
    sums,
    touched_by,
    untouched,
    written_routes,
)
from gc_assets.stages.mark.content_roots import RELEASED, SPARED
from gc_assets.stages.mark.manifest_entries import segments
from gc_assets.stages.mark.sides import DANGLING_SIDE, EXPIRED_SIDE, EXTERNAL_SIDE, LIFECYCLE_SIDE, ROUTED_SIDES
from gc_assets.stages.night import Night
from gc_assets.stages.progress import doing
from gc_assets.stages.tables import ROUTE, Totals, Written, paths_of, read_paths, read_table, write_frame
from gc_assets.state.facts import Segment
from gc_assets.state.folds import Pieces
from gc_assets.state.journal import Published, Run, State
from gc_assets.state.receipts import PartFile
from gc_assets.state.schemas import LIVE_FILES, MANIFEST_ENTRIES

WITNESSES_SIDE, DIRECT_SIDE = "_witnesses", "_direct"
# The fact of a walk that wrote neither, because all rows of the base stand.
NOTHING_TO_NAME: Final = "nothing_to_name"
# Who needs a file. The smallest number is the strongest witness. Where `expands` is true, the
# entries of `container` are needed too, and must exist only where the container must. The numbers
# are an order by content, so equal needs give equal rows, whatever the order of parts.
WITNESSES: Final = pa.schema(
    [
        ("witness", pa.int64()),
        ("rank", pa.int8()),
        ("commit_id", pa.string()),
        ("table_uuid", pa.string()),
        ("container", pa.string()),
        ("expands", pa.bool_()),
        ("container_must_exist", pa.bool_()),
    ]
)
# Expressions are text here: each function of a column object is some calls to the JVM.
_KINDS: Final = len(FILE_KINDS)
_KIND_NAMES: Final = f"array({', '.join(repr(str(kind)) for kind in FILE_KINDS)})"
# The kind's place in `FILE_KINDS`. A kind that is not there stops the run: its file must not fall
# out of the live set.
_UNKNOWN_KIND: Final = "raise_error(concat('live_files: unknown file kind ', coalesce(kind, 'null')))"
_KIND_PLACE: Final = f"array_position({_KIND_NAMES}, kind)"
_KIND_NUMBER: Final = f"case when {_KIND_PLACE} > 0 then {_KIND_PLACE} - 1 else cast({_UNKNOWN_KIND} as bigint) end"
# Files that commits or containers name themselves, in the shape in which entries are counted.
DIRECT: Final = pa.schema([("witness", pa.int64()), *NAMED])


@dataclass(frozen=True, slots=True)
class Made:
    """The table as it was written, with the amounts and facts that follow from how. `carried` is
    null where everything was computed.
    """

    written: Written
    by_kind: dict[str, Amount]
    by_storage: dict[str, Amount]
    possible_by_storage: dict[str, Amount]
    carried: Carried | None
    how: dict[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """What the rows of tonight are made of: cached entries, and what the walk wrote as scratch
    (`closed`).

    `lifecycle` is null where no rule releases anything. `known` is how many rows these are.
    """

    spark: SparkSession
    night: Night
    lake_name: str
    run: Run
    there: Pieces
    closed: Written
    lifecycle: Published | None
    known: int

    def made(self, base: Base | Full, full: Full | None) -> Made:
        """Writes the rows: those of touched keys beside what is carried over, or all of them.

        Raises `Doubt` where the base turns out to be none.
        """
        if full is not None and self.closed.facts.get(NOTHING_TO_NAME):
            raise Doubt(full.why)  # there is nothing here to compute from
        if isinstance(base, Full):
            return self._computed(None, base)
        return self._carried(base) if full is None else self._computed(base, full)

    def _computed(self, base: Base | None, full: Full) -> Made:
        doing(f"naming all files, because {full.in_short}")
        compared = base if full.compare else None
        if compared is not None:
            self._verify(compared)
        session = self._session(self.known)
        files = self._files(session, None)
        written = write_frame(files, LIVE_FILES, self.run, self._state, ["storage", "kind"], ROUTED_SIDES)
        differ, notes = (), tuple[str, ...]()
        if compared is not None and (differ := self._compared(compared, written)):
            self._verify(compared)  # what rotted meanwhile is no difference
            notes = (
                f"lake {self.lake_name}: rows carried over since {compared.facts.full_on} are not those that are computed, which stand "
                f"here: {'; '.join(differ)}. Plans since then rest on the former; please report it. This release carries nothing over "
                "here any more.",
            )
        how = {
            "full_for": full.why,
            "full_on": self.night.run_date,
            "nights_uncompared": 0
            if compared is not None
            else full.nights_uncompared
            if base is None
            else base.facts.nights_uncompared + 1,
            "differences": differ,
            "distrusted_on": self.night.run_date if differ else full.distrusted_on,
        }
        return Made(written, *_amounts(written.totals), None, how, notes)

    def _verify(self, base: Base) -> None:
        """Raises `Doubt` where the base is damaged."""
        try:
            self._state.verify(base.published)
        except (StateError, OSError) as error:
            raise Doubt(f"{DAMAGED}: {error}") from error

    def _carried(self, base: Base) -> Made:
        touched, written = (), Written((), 0)
        if self._touches(base):
            doing("finding the files that changes touch")
            touched = self._touched(base)
        hashes = [f"{self.run.path}/{part.name}" for part in touched]
        doing(f"carrying over {base.rows:,} rows without those of {sum(part.rows for part in touched):,} keys")
        carried = carry_over(self.spark, base, self.run, self._state.files, hashes)
        if touched:
            doing("naming the touched files")
            session = self._session(self.known)
            files = self._files(session, touched)
            written = write_frame(files, LIVE_FILES, self.run, self._state, ["storage", "kind"], ROUTED_SIDES)
            self._state.files.delete_directory(f"{self.run.path}/{TOUCHED_SIDE}")
        befores = (base.facts.by_kind, base.facts.by_storage, base.facts.possible_by_storage)
        gone, new = _amounts(carried.dropped), _amounts(written.totals)
        by_kind, by_storage, possible = map(amended, befores, gone, new)
        together = {
            side: (*carried.side.get(side, ()), *written.side.get(side, ()))
            for side in ROUTED_SIDES
            if side in carried.side or side in written.side
        }
        whole = Written((*carried.parts, *written.parts), (carried.digest + written.digest) % 2**64, together)
        for amounts in (by_kind, by_storage):
            if (counted := Amount.total(amounts.values()).files) != whole.rows:
                raise Doubt(f"the earlier night counts {counted:,} files as of tonight, and there are {whole.rows:,}")
        how = {
            "carried_files": carried.rows,
            "carried_from": base.published.receipt.run_id,
            "full_on": base.facts.full_on,
            "nights_carried": base.facts.nights_carried + 1,
            "nights_uncompared": base.facts.nights_uncompared + 1,
        }
        return Made(whole, by_kind, by_storage, possible, carried, how)

    def _touches(self, base: Base) -> bool:
        return bool(self.closed.facts["keys"] or self.closed.facts["changed"] or base.new_rows)

    def _touched(self, base: Base) -> tuple[PartFile, ...]:
        """Writes the hashes of the keys whose rows may differ from the base's, and returns the
        parts.
        """
        night, state, came = self.night, self._state, list(base.came)
        session = self._session(self.known)
        frames = [read_paths(session, state.files, KEYS, self._scratch(KEYS_SIDE))]
        if came:
            frames.append(entries_of(session, night, self.lake_name, state.pieces(came)))
        if changed := self._scratch(CHANGED_SIDE):
            new = {run.run_id for run in came}
            known = [run for run in self.there.runs if run.run_id not in new]
            earlier = entries_of(session, night, self.lake_name, state.pieces(known))
            frames.append(earlier.join(F.broadcast(read_paths(session, state.files, CHANGED, changed)), "container", "left_semi"))
        frames += [read_table(session, state, LIFECYCLE_OBJECTS, table, columns=["key"]) for table in base.released]
        return touched_by(frames, state.files, self.run).side.get(TOUCHED_SIDE, ())

    def _files(self, session: SparkSession, touched: Sequence[PartFile] | None) -> DataFrame:
        """Returns the rows with their routes: all, or those of touched keys."""
        state = self._state
        witnesses = read_paths(session, state.files, WITNESSES, self._scratch(WITNESSES_SIDE))
        direct = read_paths(session, state.files, DIRECT, self._scratch(DIRECT_SIDE))
        entries = entries_of(session, self.night, self.lake_name, self.there)
        if touched is not None:
            hashes, count = self._hashes(session, touched), sum(part.rows for part in touched)
            entries, direct = (only_touched(frame, hashes, count) for frame in (entries, direct))
        files = named_files(entries, direct, witnesses, self.lake_name)
        if self.lifecycle is not None:
            files = _without(files, read_table(session, state, LIFECYCLE_OBJECTS, self.lifecycle).filter("not deduplicated"))
        return files

    def _compared(self, base: Base, written: Written) -> tuple[str, ...]:
        """Returns in words where rows that would have been carried over are not those that were
        written.
        """
        doing("comparing with what would have been carried over")
        session, state = self._session(self.known + base.rows), self._state
        rows = routed(session, state.files, routes_of(base.published))
        if self._touches(base):
            touched = self._touched(base)
            hashes, count = self._hashes(session, touched), sum(part.rows for part in touched)
            rows = untouched(rows, hashes, count).unionByName(self._files(session, touched).select(rows.columns))
        return differences(sums(rows), sums(routed(session, state.files, written_routes(self.run, written))))

    def _hashes(self, session: SparkSession, touched: Sequence[PartFile]) -> DataFrame:
        return read_paths(session, self._state.files, TOUCHED, [f"{self.run.path}/{part.name}" for part in touched])

    def _scratch(self, side: str) -> list[str]:
        return paths_of(self.run, self.closed, side)

    def _session(self, rows: int) -> SparkSession:
        scratch = sum(len(parts) for parts in self.closed.side.values())
        return fitting(self.spark, rows, scratch + len(self.there.paths()))

    @property
    def _state(self) -> State:
        return self.night.state


def _amounts(totals: dict[tuple[str, ...], Totals]) -> tuple[dict[str, Amount], dict[str, Amount], dict[str, Amount]]:
    """Returns the amounts by kind and by storage, and by storage those of possible objects;
    `totals` are by storage and kind.
    """
    possible = {key: total for key, total in totals.items() if key[1] == Kind.POSSIBLE_OBJECT}
    return _by(totals, 1), _by(totals, 0), _by(possible, 0)


def _by(totals: dict[tuple[str, ...], Totals], position: int) -> dict[str, Amount]:
    grouped: dict[str, Totals] = {}
    for key, value in totals.items():
        grouped[key[position]] = grouped.get(key[position], Totals()) + value
    return {name: value.amount for name, value in sorted(grouped.items())}


def entries_of(spark: SparkSession, night: Night, lake_name: str, there: Pieces | None = None) -> DataFrame:
    """Returns the files that decoded containers name (columns of `manifest_entries`), without those
    that they say are deleted. `address` is left out where all of them lie in storages.

    `there` is where some segments lie; without it all count.
    """
    there = night.state.pieces(segments(night, lake_name)) if there is None else there
    # The addresses of all entries are as much to read as all other columns together.
    external = any(segment.headline(Segment).external for segment in there.runs)
    columns = [name for name in MANIFEST_ENTRIES.schema.names if external or name != "address"]
    paths = there.paths()
    rows = read_paths(spark, night.state.files, MANIFEST_ENTRIES.schema, paths, columns, only=("is_container", False))
    return rows.filter("not is_container and (entry_status is null or entry_status <> 'deleted')")


def named_files(entries: DataFrame, direct: DataFrame, witnesses: DataFrame, lake_name: str) -> DataFrame:
    """Returns all files once, columns of `live_files`, each with its strongest witness and its
    route.

    `entries` are those of `entries_of`.
    """
    expanding = witnesses.filter("expands").select("witness", "container", "container_must_exist")
    children = entries.join(expanding, "container").withColumns(
        {"must_exist": F.expr("must_exist and container_must_exist"), "container_size_bytes": F.expr("cast(null as bigint)")}
    )
    placed = _placed(direct).unionByName(_placed(children))
    # Witness and kind as one number: Spark aggregates numbers by hashing, but text only by sorting.
    grouped = (
        placed.withColumn("strongest", F.expr(f"witness * {_KINDS} + {_KIND_NUMBER}"))
        .groupBy("storage", "key")
        .agg(
            F.min("strongest").alias("strongest"),
            F.max("size_bytes").alias("size_bytes"),
            F.max("must_exist").alias("must_exist"),
            F.max("container_size_bytes").alias("container_size_bytes"),
        )
    )
    named_by = grouped.withColumn("witness", F.expr(f"strongest div {_KINDS}"))
    return named_by.join(witnesses, "witness").select(
        "storage",
        "key",
        F.expr("xxhash64(key)").alias("key_hash"),
        F.expr(f"{_KIND_NAMES}[int(strongest % {_KINDS})]").alias("kind"),
        F.expr("coalesce(size_bytes, container_size_bytes)").alias("size_bytes"),
        F.lit(lake_name).alias("lake"),
        "commit_id",
        "container",
        "table_uuid",
        "must_exist",
        "container_size_bytes",
        _route().alias(ROUTE),
    )


def _placed(named: DataFrame) -> DataFrame:
    """Returns files by storage and key.

    The address is the key of a file that lies in no storage. A frame without that column has no
    such file.
    """
    return named.select("witness", "storage", key_of(named).alias("key"), "kind", "size_bytes", "must_exist", "container_size_bytes")


def _without(files: DataFrame, released: DataFrame) -> DataFrame:
    """Routes the files that the owner's rules release to their side table."""
    flagged = files.join(released.select("storage", "key", F.lit(True).alias("is_released")), ["storage", "key"], "left")
    route = F.when((F.col(ROUTE) == "") & F.coalesce("is_released", F.lit(False)), LIFECYCLE_SIDE).otherwise(F.col(ROUTE))
    return flagged.withColumn(ROUTE, route).select(*files.columns)


def _route() -> Column:
    by_rank = f"case when rank <= {SPARED} then '' when rank <= {RELEASED} then '{EXPIRED_SIDE}' else '{DANGLING_SIDE}' end"
    return F.expr(f"if(storage is null, '{EXTERNAL_SIDE}', {by_rank})")
