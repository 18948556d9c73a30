"""Find the containers (metadata files) that commits reach, and the strongest commit for each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.arrow_rows import exclude_rows
from gc_assets.core.errors import LakeUnreadable
from gc_assets.core.units import count_of
from gc_assets.engine.tables import report_parts, write_parts
from gc_assets.lakes.file_kinds import INFORMATIONAL_KINDS, LEAF_CONTAINER_KINDS, ROOT_KINDS, Kind
from gc_assets.stages.mark.closure import closure
from gc_assets.stages.mark.container_states import build_states, digest_states
from gc_assets.stages.mark.content_index import ContentIndex
from gc_assets.stages.mark.content_roots import HELD, RELEASED, SPARED, RootTables, list_kept_containers, read_content_roots
from gc_assets.stages.mark.decoded_containers import DECODED_COLUMNS, DecodedContainers
from gc_assets.stages.mark.edges import EdgeIndex, read_edges
from gc_assets.stages.mark.former_metadata import read_live_roots
from gc_assets.stages.mark.last_known import (
    WHOLE_LAKE,
    LastKnown,
    as_optional_live,
    build_shields,
    shield_directories,
    unreadable_root_rows,
)
from gc_assets.stages.mark.live_contents import (
    build_claims,
    describe_losses,
    describe_missing_expired,
    describe_unread_expired,
    find_purged,
    find_unlisted_snapshots,
    mark_optional,
)
from gc_assets.stages.mark.recorded_lengths import add_accepted_lengths, describe_accepted_lengths, find_accepted_lengths
from gc_assets.state.journal import TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import (
    CLAIMS,
    CLAIMS_SIDE,
    CONTAINERS,
    LOCATIONS,
    METADATA,
    METADATA_SIDE,
    OPTIONAL_SIDE,
    ROOTS,
    STATES_SIDE,
    UNKNOWN_SIDE,
    UNREAD_LOCATIONS,
    UNREADABLE_CONTAINERS,
    UNREADABLE_ROOTS,
    UNREADABLE_ROOTS_SIDE,
)

# Ranks whose containers may be absent, because no ref reaches the snapshot or this run's policy
# expires it.
_MAY_LACK_METADATA = (SPARED, HELD)


@dataclass(frozen=True, slots=True)
class CachePaths:
    """Paths of the side tables of cached segments, relative to the state root.

    `unreadable` and `unread_locations` contain only parts that this run wrote.
    """

    edges: tuple[str, ...]
    containers: tuple[str, ...]
    unreadable: tuple[str, ...]
    locations: tuple[str, ...]
    unread_locations: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """The number of parts of all segments that a walk reads."""
        return len(self.edges) + len(self.containers) + len(self.locations)


@dataclass(frozen=True, slots=True)
class _Containers:
    """The containers that a walk found, and their decoded objects.

    Attributes:
        rows: All containers (`ROOTS` columns).
        decoded: The decoded objects of the containers.
        lengths: Arrow column with the decoded length of each container in bytes. The column is null
            for undecoded containers: missing optional ones, and unreadable ones that only expired
            commits need.
        lost: Undecoded containers that live contents need.
        unknown: Missing live containers that were never decoded (`METADATA` columns).
        required: Undecoded containers without which the live set is incomplete.
    """

    rows: pa.Table
    decoded: DecodedContainers
    lengths: pa.ChunkedArray
    lost: pa.Table
    unknown: pa.Table
    required: pa.Table


@dataclass(frozen=True, slots=True)
class _Roots:
    """The content roots at which a walk begins.

    Attributes:
        roots: All content roots (`ROOTS` columns), including those that unreadable tables need now
            or needed before.
        of_unreadable: Content roots of unreadable tables (`UNREADABLE_ROOTS` columns).
        purged: Addresses of containers that do not have to exist (`find_purged`).
        unreadable: Why tables are unreadable, keyed by table UUID, content id or `WHOLE_LAKE`.
        shields: Prefixes around undecoded containers, under which no file is collected (`CLAIMS`
            columns).
        containers: All containers that the roots reach, or None if unreadable tables make another
            walk necessary.
    """

    roots: pa.Table
    of_unreadable: pa.Table
    purged: pa.Array
    unreadable: dict[str, str]
    shields: pa.Table
    containers: _Containers | None = None


@dataclass(frozen=True)
class LiveWalk:
    """Walk a lake's containers, and write their states as side tables of `live_files`.

    `run_single_task` calls it in the driver process or on an executor.

    Attributes:
        logs: Parts of `deletion_log`, keyed by storage.
        claims: Parts with the claims that were read with the refs.
        unread: Why tables could not be read, keyed by table UUID or `WHOLE_LAKE`.
        is_last_known_read: False if `last_known` was not looked up yet. In this case, the first
            unreadable table stops the walk.
        former_roots: Parts with the content roots of former metadata and of lost commits.
    """

    lake_name: str
    roots: RootTables
    cache: CachePaths
    logs: dict[str, tuple[str, ...]]
    run: TableRun
    claims: tuple[str, ...]
    last_known: LastKnown | None
    unread: dict[str, str]
    is_last_known_read: bool = False
    former_roots: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = self.roots.files
        for _ in batches:
            rooted, containers, unlisted = self._find_containers()
            found = self._optional_if_absent(containers.rows)
            undecoded = self._list_undecoded_parents(found, containers.lengths, rooted.roots)
            leaves = rooted.roots.filter(pc.invert(rooted.roots.column("is_container")))
            rooted = replace(rooted, roots=leaves)  # frees the memory of all others
            kept = list_kept_containers(self.roots, found)
            states = build_states(found, containers.lengths, containers.decoded.count_files(), pa.concat_tables([leaves, kept]))
            sides = {
                STATES_SIDE: states,
                METADATA_SIDE: _required_metadata(found, containers, leaves),
                OPTIONAL_SIDE: _optional_files(leaves),
                CLAIMS_SIDE: pa.concat_tables([self._build_claims(unlisted, rooted), *self._shield_metadata(undecoded)]),
                UNKNOWN_SIDE: containers.unknown,
                UNREADABLE_ROOTS_SIDE: rooted.of_unreadable,
            }
            parts = [part for side, rows in sides.items() for part in write_parts(rows, self.run, files, side)]
            summary = {
                "metadata_by_storage": _count_by_storage(sides[METADATA_SIDE]),
                "optional_by_storage": _count_by_storage(sides[OPTIONAL_SIDE]),
                "notes": [
                    *describe_losses(self.lake_name, containers.lost, unlisted),
                    *describe_accepted_lengths(self.lake_name, found, containers.lengths),
                    *describe_missing_expired(self.lake_name, found, self._read_failures()),
                    *describe_unread_expired(self.lake_name, found, self._read_failures()),
                    *_describe_kept_metadata(self.lake_name, undecoded),
                ],
                "unreadable": rooted.unreadable,
            }
            yield report_parts(parts, digest_states(states), summary=summary)

    def _find_containers(self) -> tuple[_Roots, _Containers, pa.Table]:
        """Find all containers that the lake needs.

        Returns:
            The content roots, the containers, and the locations whose files cannot be listed
            (`ROOTS` columns).
        """
        roots = read_content_roots(self.roots)
        is_unlisted = pc.equal(roots.column("kind"), Kind.UNLISTED_LOCATION)
        unlisted, roots = roots.filter(is_unlisted), exclude_rows(roots, is_unlisted)
        rooted = self._add_former_roots(self._resolve_roots(roots))
        containers = rooted.containers if rooted.containers is not None else self._look_up(self._follow(rooted.roots, rooted.purged))
        return rooted, containers, unlisted

    def _follow(self, roots: pa.Table, purged: pa.Array) -> pa.Table:
        """Find all containers that content roots reach (`ROOTS` columns).

        Edges take most of the memory, so they are not kept, but read again for each walk.
        """
        _release_memory()
        found = closure(roots, self._read_edges(purged))
        _release_memory()
        return found

    def _read_edges(self, purged: pa.Array) -> EdgeIndex:
        edges = read_edges(self.roots.files, self.cache.edges)
        _release_memory()
        return edges.with_optional(purged) if len(purged) else edges

    def _resolve_roots(self, roots: pa.Table) -> _Roots:
        """Find unreadable tables, and add the content roots that they need now or needed before.

        If several tables share an undecoded container, only one of these tables is recorded as its
        witness. The walk is therefore repeated without that table until all required containers are
        decoded.
        """
        unreadable, shields, contents = dict(self.unread), [CLAIMS.empty_table()], ContentIndex.read(self.roots)
        purged = pa.array([], pa.string())
        while True:
            found = self._follow(exclude_rows(roots, _is_root_of(roots, unreadable, contents)), purged)
            missing = find_purged(self.roots, self.logs, found, self._read_failures())
            missing = missing.filter(pc.invert(pc.is_in(missing, purged)))
            if len(missing):
                roots, purged = mark_optional(roots, missing), pa.concat_arrays([purged, missing])
                found = self._follow(exclude_rows(roots, _is_root_of(roots, unreadable, contents)), purged)
            containers = self._look_up(found)
            required = containers.required
            if not required.num_rows:
                break
            errors = {row["address"]: row["error"] for row in self._read_failures().to_pylist()}
            if not self.is_last_known_read:
                raise LakeUnreadable(_unreadable_message(self.lake_name, required, errors))
            named = read_parts(self.roots.files, list(self.cache.unread_locations), UNREAD_LOCATIONS)
            shields.append(shield_directories(required, named))
            owners = self._find_contents(required, found, contents)
            for row in required.to_pylist():
                reason = errors.get(row["address"], f"{row['kind']} {row['address']} was never decoded")
                if self.roots.contents is not None:
                    reason += f" (needed by commit {row['commit_id']})"
                for key in [row["table_uuid"]] if row["table_uuid"] else owners.get(row["address"], [WHOLE_LAKE]):
                    unreadable.setdefault(key, reason)
        skipped = [*containers.lost.column("address").chunks, contents.addresses_of(unreadable)]
        shields.append(self._add_unlisted_snapshots(unreadable, roots, contents, pa.chunked_array(skipped, pa.string())))
        if WHOLE_LAKE in unreadable:
            unreadable = {WHOLE_LAKE: unreadable[WHOLE_LAKE]}
        if not unreadable:
            return _Roots(roots, UNREADABLE_ROOTS.empty_table(), purged, unreadable, shields[0], containers)
        last_known = UNREADABLE_ROOTS.empty_table() if self.last_known is None else self.last_known.roots_of(unreadable)
        is_own = pc.and_(_is_root_of(roots, unreadable, contents), pc.less_equal(roots.column("rank"), HELD))
        found = pa.concat_tables([last_known, unreadable_root_rows(roots.filter(is_own), in_full=False)])
        # Earlier runs have already published most of these rows.
        of_unreadable = found.group_by(found.column_names, use_threads=False).aggregate([])
        readable = roots.filter(pc.invert(is_own))
        live = pa.concat_tables([readable, as_optional_live(of_unreadable.select(ROOTS.names))])
        return _Roots(live, of_unreadable, purged, unreadable, pa.concat_tables(shields))

    def _add_former_roots(self, rooted: _Roots) -> _Roots:
        """Add the content roots of former metadata and of lost commits.

        If a container that they reach cannot be decoded, files around it are not collected, but no
        table becomes unreadable. In a lake without tables, no claimed file is collected then.
        """
        former = read_live_roots(self.roots.files, self.former_roots)
        if not former.num_rows:
            return rooted
        live = rooted.roots.filter(pc.less_equal(rooted.roots.column("rank"), SPARED))
        former = former.filter(pc.invert(pc.is_in(former.column("address"), live.column("address").combine_chunks())))
        if not former.num_rows:
            return rooted
        roots = pa.concat_tables([rooted.roots, former])
        undecoded = self._look_up(self._follow(former, rooted.purged)).required
        named = read_parts(self.roots.files, list(self.cache.unread_locations), UNREAD_LOCATIONS)
        shields = [rooted.shields, shield_directories(undecoded, named)]
        if pc.any(pc.and_(pc.is_valid(undecoded.column("commit_id")), pc.is_null(undecoded.column("table_uuid")))).as_py():
            shields.append(build_shields(read_parts(self.roots.files, list(self.claims), CLAIMS), [WHOLE_LAKE]))
        return replace(rooted, roots=roots, shields=pa.concat_tables(shields), containers=None)

    def _find_contents(self, required: pa.Table, found: pa.Table, contents: ContentIndex) -> dict[str, list[str]]:
        """Return the ids of contents that need undecoded containers, keyed by container address.

        If a container is needed by a content with unknown id, the container is omitted, which makes
        the whole lake unreadable. If the lake itself has claims, the result is empty, because any
        file under these claims may belong to the container.

        Args:
            required: The undecoded containers (`ROOTS` columns).
            found: All containers that the walk found (`ROOTS` columns).
        """
        if self.roots.contents is None or self._has_own_claims():
            return {}
        parents = dict(zip(*(found.column(name).to_pylist() for name in ("address", "parent")), strict=True))
        owners: dict[str, list[str]] = {}
        for address in required.column("address").to_pylist():
            root, visited = address, set[str]()
            while (parent := parents.get(root)) is not None and root not in visited:
                visited.add(root)
                root = parent
            if ids := contents.ids_of(root):
                owners[address] = sorted(ids)
        return owners

    def _add_unlisted_snapshots(
        self, unreadable: dict[str, str], roots: pa.Table, contents: ContentIndex, skipped: pa.ChunkedArray
    ) -> pa.Table:
        """Mark contents as unreadable if their metadata does not list a snapshot of a commit.

        The whole lake becomes unreadable if the snapshot's files may be anywhere. That is the case
        if the metadata contains no location in a storage, if some listed snapshots are not live, or
        if the lake itself has claims.

        Returns:
            Shields (prefixes without collection) around the metadata files, with the `CLAIMS`
            columns.
        """
        found = find_unlisted_snapshots(self.roots, self.cache.edges, skipped) if WHOLE_LAKE not in unreadable else {}
        if found and not self.is_last_known_read:
            raise LakeUnreadable(f"lake {self.lake_name}: {next(iter(found.values()))}")
        located = self._find_located(found)
        for address, reason in found.items():
            for key in sorted(contents.ids_of(address) if address in located else ()) or [WHOLE_LAKE]:
                unreadable.setdefault(key, reason)
        own = roots.filter(pc.is_in(roots.column("address"), pa.array(list(found), pa.string())))
        return shield_directories(own, UNREAD_LOCATIONS.empty_table())

    def _find_located(self, addresses: Collection[str]) -> Collection[str]:
        """Select those metadata files that contain a table location in a configured storage.

        The result is empty if the lake itself has claims. It is also empty if some listed snapshots
        are not live, because the missing snapshot may be one of them, and its files may be
        anywhere.
        """
        if not addresses or not self.roots.keeps_listed or self._has_own_claims():
            return ()
        locations = read_parts(self.roots.files, list(self.cache.locations), LOCATIONS)
        is_inside = pc.and_(pc.equal(locations.column("kind"), Kind.TABLE_LOCATION), pc.is_valid(locations.column("storage")))
        return set(locations.column("container").filter(is_inside).to_pylist()) & set(addresses)

    def _has_own_claims(self) -> bool:
        return read_parts(self.roots.files, list(self.claims), CLAIMS).num_rows > 0

    def _look_up(self, found: pa.Table) -> _Containers:
        """Look up the decoded object of each container that a walk found.

        If the parent recorded a length, only an object of that length or an accepted manifest
        (`recorded_lengths`) matches, because Icechunk's expiry rewrites snapshots in place. A
        container that this run could not read counts as undecoded, even if an earlier object of the
        same name was decoded.

        Missing metadata of an unreachable or expired snapshot does not stop plans, because no tool
        can read such a snapshot. The remaining files of an unreachable snapshot are kept while they
        are young.
        """
        index = read_parts(self.roots.files, list(self.cache.containers), CONTAINERS, list(DECODED_COLUMNS))
        _release_memory()
        decoded = DecodedContainers.match(index, found)
        lengths = decoded.find_lengths(found.column("size_bytes"))
        longest = pa.array(decoded.longest, mask=decoded.longest < 0)
        others = found.filter(pc.and_(pc.is_null(lengths), pc.is_valid(longest)))
        accepted = find_accepted_lengths(self.roots.files, self.cache.edges, index, others)
        lengths = add_accepted_lengths(lengths, found, accepted)
        failures = self._read_failures()
        is_undecoded = pc.or_(pc.is_null(lengths), pc.is_in(found.column("address"), failures.column("address")))
        is_lost = pc.and_(is_undecoded, pc.less(found.column("rank"), RELEASED))
        required = found.filter(pc.and_not(is_lost, _is_absent_and_optional(found, failures)))
        lost = found.filter(is_lost) if self.roots.contents is not None else found.slice(0, 0)
        unknown = found.append_column("container_size_bytes", longest).filter(pc.and_(is_lost, pc.is_null(longest)))
        lengths = pc.if_else(is_undecoded, pa.scalar(None, pa.int64()), lengths)
        return _Containers(found, decoded, lengths, lost, _as_metadata(unknown), required)

    def _optional_if_absent(self, found: pa.Table) -> pa.Table:
        """Set `must_exist` to false for missing containers of dangling and expired snapshots.

        The formats' own collectors leave such snapshots behind, although no tool can read them.
        """
        failures = self._read_failures()
        absent = pc.is_in(found.column("address"), _absent_addresses(failures))
        addresses = found.column("address").filter(pc.and_(absent, pc.is_in(found.column("rank"), pa.array(_MAY_LACK_METADATA, pa.int8()))))
        return mark_optional(found, addresses.combine_chunks())

    def _build_claims(self, unlisted: pa.Table, rooted: _Roots) -> pa.Table:
        """Build claims from locations in containers, and shields from claims of unreadable tables."""
        files = self.roots.files
        locations = read_parts(files, list(self.cache.locations), LOCATIONS)
        is_location = pc.equal(locations.column("kind"), Kind.TABLE_LOCATION)
        claims = build_claims(locations, unlisted)
        if not rooted.unreadable:
            return pa.concat_tables([claims, rooted.shields])
        earlier = [] if self.last_known is None else [self.last_known.read_claims()]
        own = pa.concat_tables([*earlier, read_parts(files, list(self.claims), CLAIMS), claims])
        shields = [build_shields(own, rooted.unreadable.keys()), rooted.shields]
        if self.roots.contents is not None:
            # All locations that the unreadable contents' metadata has ever contained.
            is_mine = pc.is_in(locations.column("container"), rooted.of_unreadable.column("address").combine_chunks())
            shields.append(build_claims(locations.slice(0, 0), locations.filter(pc.and_(is_location, is_mine))))
        return pa.concat_tables([claims, *shields])

    def _list_undecoded_parents(self, found: pa.Table, lengths: pa.ChunkedArray, roots: pa.Table) -> list[str]:
        """Return the addresses of undecoded containers that may reference other containers.

        The result is empty if the lake does not claim metadata. A container of
        `LEAF_CONTAINER_KINDS` references no other container, so it is only included if a commit
        references it directly.
        """
        if not self.roots.metadata_claims:
            return []
        undecoded = found.filter(pc.is_null(lengths))
        is_leaf = pc.is_in(undecoded.column("kind"), pa.array(LEAF_CONTAINER_KINDS))
        is_root = pc.is_in(undecoded.column("address"), roots.filter(roots.column("is_container")).column("address"))
        return undecoded.filter(pc.or_(pc.invert(is_leaf), is_root)).column("address").to_pylist()

    def _shield_metadata(self, undecoded: Sequence[str]) -> Iterator[pa.Table]:
        """Yield shields for claims on metadata if undecoded containers may reference files there."""
        if undecoded:
            frozen = read_parts(self.roots.files, list(self.claims), CLAIMS)
            of_metadata = pc.is_in(frozen.column("address"), pa.array(self.roots.metadata_claims, pa.string()))
            yield build_shields(frozen.filter(of_metadata), [WHOLE_LAKE])

    def _read_failures(self) -> pa.Table:
        return read_parts(self.roots.files, list(self.cache.unreadable), UNREADABLE_CONTAINERS, ["address", "error", "absent"])


def _release_memory() -> None:
    """Return memory that Arrow tables no longer use to the operating system."""
    pa.default_memory_pool().release_unused()


def _is_root_of(roots: pa.Table, unreadable: Collection[str], contents: ContentIndex) -> pa.ChunkedArray:
    """Return a mask of the content roots that unreadable tables or contents need."""
    if WHOLE_LAKE in unreadable:
        return pa.chunked_array([pa.array(np.ones(roots.num_rows, bool))])
    if contents.rows.num_rows:
        return pc.is_in(roots.column("address"), contents.addresses_of(unreadable))
    return pc.is_in(roots.column("table_uuid"), pa.array(sorted(unreadable), pa.string()))


def _absent_addresses(failures: pa.Table) -> pa.ChunkedArray:
    return failures.column("address").filter(failures.column("absent"))


def _is_absent_and_optional(containers: pa.Table, failures: pa.Table) -> pa.ChunkedArray:
    absent = pc.is_in(containers.column("address"), _absent_addresses(failures))
    optional = pc.or_(
        pc.is_in(containers.column("rank"), pa.array(_MAY_LACK_METADATA, pa.int8())), pc.invert(containers.column("must_exist"))
    )
    return pc.and_(absent, optional)


def _required_metadata(found: pa.Table, containers: _Containers, leaves: pa.Table) -> pa.Table:
    """Return the live metadata objects that must exist, with the ETags and digests of decoded ones.

    These objects are decoded containers, and files that belong to the lake's current state. The
    rows have the `METADATA` columns.
    """
    decoded = {"container_size_bytes": containers.lengths, **containers.decoded.join_identities(containers.lengths)}
    rows = pa.table({name: decoded[name] if name in decoded else found.column(name) for name in METADATA.names})
    is_required = pc.and_(_is_required(found), pc.is_valid(containers.lengths))
    current = leaves.filter(pc.and_(_is_required(leaves), pc.is_null(leaves.column("commit_id"))))
    return pa.concat_tables([_as_metadata(rows.filter(is_required)), _as_metadata(current)])


def _is_required(rows: pa.Table) -> pa.ChunkedArray:
    is_live = pc.and_(pc.less_equal(rows.column("rank"), SPARED), pc.is_valid(rows.column("storage")))
    return pc.and_(is_live, rows.column("must_exist"))


def _optional_files(leaves: pa.Table) -> pa.Table:
    """Return live entry-point and informational files that may be missing, as rows of `METADATA`."""
    kinds = pa.array([*ROOT_KINDS, *INFORMATIONAL_KINDS])
    optional = pc.and_(pc.is_in(leaves.column("kind"), kinds), pc.invert(leaves.column("must_exist")))
    live = pc.and_(pc.less_equal(leaves.column("rank"), SPARED), pc.is_valid(leaves.column("storage")))
    selected = leaves.filter(pc.and_(optional, live))
    rows = selected.group_by(["storage", "key"]).aggregate([("kind", "min")]).rename_columns(["storage", "key", "kind"])
    return _as_metadata(rows)


def _as_metadata(rows: pa.Table) -> pa.Table:
    """Convert rows of metadata objects to the `METADATA` columns. Missing columns become null."""
    existing = {name: rows.column(name) for name in rows.column_names}
    return pa.table({field.name: existing.get(field.name, pa.nulls(rows.num_rows, field.type)) for field in METADATA}).cast(METADATA)


def _count_by_storage(rows: pa.Table) -> dict[str, int]:
    counts = rows.group_by("storage").aggregate([([], "count_all")]).to_pylist()
    return {row["storage"]: row["count_all"] for row in counts}


def _describe_kept_metadata(lake_name: str, undecoded: Sequence[str]) -> Iterator[str]:
    if undecoded:
        yield (
            f"lake {lake_name}: unused ranges are kept, because {count_of(len(undecoded), 'metarange')} of its commits cannot be read "
            f"(for example {min(undecoded)}) and may reference any range. Restore the metadata from a backup"
        )


def _unreadable_message(lake_name: str, required: pa.Table, errors: Mapping[str, str]) -> str:
    examples = required.slice(0, 5).to_pylist()
    lines = [
        f"  {errors.get(row['address'], row['kind'] + ' ' + row['address'] + ' was never decoded')} (needed by commit {row['commit_id']})"
        for row in examples
    ]
    more = [f"  and {required.num_rows - len(examples):,} more"] if required.num_rows > len(examples) else []
    return "\n".join(
        [
            f"Cannot plan for lake {lake_name}: {required.num_rows:,} metadata objects of commits that must be kept are unreadable:",
            *lines,
            *more,
            "  Restore them (gc-assets restore --key KEY if they are in quarantine, otherwise from a backup), then run again.",
        ]
    )
