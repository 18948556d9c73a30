"""Find the containers (metadata files) that still have to be decoded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gc_assets.core.arrow_rows import aggregate_rows, replace_columns
from gc_assets.core.errors import StateError
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.objects import Objects
from gc_assets.core.untrusted_input import MAX_OBJECT_BYTES
from gc_assets.engine.tables import report_parts, write_parts
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.protocol import NamedPrefixes, name_in_reference
from gc_assets.stages.mark.content_roots import HELD, RELEASED, RootTables, read_content_roots
from gc_assets.stages.mark.decoding import CONCURRENT_READS
from gc_assets.stages.mark.object_sizes import read_identities, read_sizes
from gc_assets.state.files import Files
from gc_assets.state.journal import TableRun
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import CONTAINERS, EDGES, LOCATIONS, REWRITTEN, STATES, TASKS, TASKS_SIDE, UNREADABLE_CONTAINERS

# Cost of reading a container regardless of its length, in bytes that are decoded in the same time.
COST_OF_REQUEST: Final = 16_384

_ROOT_COLUMNS: Final = [name for name in TASKS.names if name not in {"expected_entries", "snapshot_id"}]


@dataclass(frozen=True)
class FindPending:
    """Find undecoded containers, and write one part with the `TASKS` columns per decoding task.

    If the parent did not record a container's length, the length is read from the store. A missing
    container gets the length -1, so that a decoded object of the same name is not used instead.
    Content roots of expired commits are skipped if an earlier run decoded or did not find them.
    Otherwise, every run would request the objects of all collected history again.

    `run_single_task` calls it in the driver process or on an executor.

    Attributes:
        known: Parts that list decoded containers.
        parents: Parts that reference the containers. They contain either edges of the previous
            level, or containers that earlier runs could not read.
        edges: Parts with cached edges, which are only read if `roots` is given.
        rewritten: Parts in which the last sweeps list containers whose objects have changed.
        roots: The tables with content roots, for the first level only.
        width: Maximum number of decoding tasks (`split_by_cost`).
        resolver: Finds the containers that are in no storage.
        named_prefixes: Recorded prefixes that containers refer to by name, if any.
        locations: Parts with the prefix names that decoded containers refer to.
        may_list: False in a run that must not send LIST requests.
        examined: Parts with the containers that refs or the history need (`STATES` columns). These
            are compared with their current objects, or all decoded ones if there are no parts. It
            is None in a run, in which the sweep compares containers with the listing.
    """

    files: Files
    objects: Objects
    known: tuple[str, ...]
    parents: tuple[str, ...]
    edges: tuple[str, ...]
    rewritten: tuple[str, ...]
    roots: RootTables | None
    run: TableRun
    width: int
    resolver: KeyResolver
    named_prefixes: NamedPrefixes | None = None
    locations: tuple[str, ...] = ()
    may_list: bool = True
    examined: tuple[str, ...] | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            # A container has about a hundred parents, so they are merged part by part to save
            # memory.
            named = (_merge_tasks(read_parts(self.files, [path], TASKS)) for path in self.parents)
            wanted = pa.concat_tables([TASKS.empty_table(), *named])
            columns = ["container", "container_size_bytes", "recorded_size_bytes", "etag"]
            known = read_parts(self.files, list(self.known), CONTAINERS, columns)
            unchanged = known.slice(0, 0)
            if self.roots is not None:
                stale, unchanged = self._compare_identities(known)
                wanted, known = self._add_roots(self.roots, wanted, known, stale)
            tasks = self._add_sizes(_merge_tasks(wanted), unchanged)
            wanted_ids = length_identity(tasks, "address", "size_bytes")
            is_decoded = pc.is_in(wanted_ids, length_identity(known, "container", "container_size_bytes"))
            # A decoder may accept a length other than the one recorded by the parent.
            is_accepted = pc.is_in(wanted_ids, length_identity(known, "container", "recorded_size_bytes").drop_null())
            tasks = tasks.filter(pc.invert(pc.or_(is_decoded, is_accepted)))
            shares = split_by_cost(tasks, min(self.width, -(-tasks.num_rows // CONCURRENT_READS)))
            parts = [part for share in shares for part in write_parts(share, self.run, self.files, TASKS_SIDE)]
            found = sum(part.rows for part in parts)
            if found != tasks.num_rows:  # no later run would look for a lost container
                raise StateError(
                    f"Cannot publish {self.run.path}: the decoding tasks have {found:,} containers instead of {tasks.num_rows:,}, and "
                    "files of missing containers would look like garbage. Run again, and report this as a bug"
                )
            yield report_parts(parts, summary={"size_bytes": int(_bounded_sizes(tasks).sum())})

    def _add_roots(self, tables: RootTables, wanted: pa.Table, known: pa.Table, stale: pa.Array) -> tuple[pa.Table, pa.Table]:
        """Move outdated containers from `known` to `wanted`, and add the content roots to `wanted`."""
        stale = pa.concat_arrays([stale, self._find_outdated_names()]).unique()
        if len(stale):
            known = known.filter(pc.invert(pc.is_in(known.column("container"), stale)))
            edges = read_parts(self.files, list(self.edges), EDGES)
            rewritten = edges.filter(pc.is_in(edges.column("address"), stale)).select(TASKS.names)
            wanted = pa.concat_tables([wanted, rewritten], promote_options="default")
        roots = read_content_roots(tables)
        containers = roots.filter(roots.column("is_container"))
        # Only a root's current length is valid, because an earlier one may have been wrong.
        inner = wanted.filter(pc.invert(pc.is_in(wanted.column("address"), containers.column("address"))))
        pending = containers.filter(pc.invert(self._is_settled(tables, containers, known)))
        pending = pending.select([*_ROOT_COLUMNS, "commit_id"]).rename_columns([*_ROOT_COLUMNS, "snapshot_id"])
        return pa.concat_tables([inner, pending], promote_options="default"), known

    def _compare_identities(self, known: pa.Table) -> tuple[pa.Array, pa.Table]:
        """Compare the ETags of decoded containers with those of their current objects.

        Returns:
            The addresses of containers whose current object was not decoded, and the rows of
            `known` whose object certainly exists and is unchanged.
        """
        rewritten = read_parts(self.files, list(self.rewritten), REWRITTEN)
        listed = dict(zip(rewritten.column("address").to_pylist(), rewritten.column("etag").to_pylist(), strict=True))
        containers = known.column("container").unique()
        addresses = containers.to_pylist()
        identities = self._read_identities(addresses)
        exists = pa.array([identity is not None for identity in identities], pa.bool_())
        current = pa.array(
            [identity or listed.get(address) for address, identity in zip(addresses, identities, strict=True)],
            pa.string(),
        )
        at = pc.index_in(_join(current, containers), _join(known.column("etag"), known.column("container")), skip_nulls=True)
        stale = containers.filter(pc.and_(pc.is_valid(current), pc.is_null(at)))
        return stale, known.take(at.filter(pc.and_(exists, pc.is_valid(at))))

    def _read_identities(self, addresses: Sequence[str]) -> list[str | None]:
        """Return the identities of the current objects.

        The identity of an object in a bucket is only requested if the object is in no storage, or
        if it has to be examined. Otherwise, it is None, and the sweep of the storage compares the
        object. It is also None if there is no object.
        """
        cached = list(map(self.objects.cached_identity, addresses))
        unknown = pa.array([address for address, identity in zip(addresses, cached, strict=True) if identity is None], pa.string())
        is_requested = pc.or_(pc.is_null(self.resolver.locate(unknown)[0]), self._is_examined(unknown))
        wanted = unknown.filter(is_requested).to_pylist()
        requested = dict(zip(wanted, read_identities(self.objects, wanted, may_list=self.may_list), strict=True))
        return [identity or requested.get(address) for address, identity in zip(addresses, cached, strict=True)]

    def _is_examined(self, addresses: pa.Array) -> pa.Array:
        if not self.examined:
            return pa.array([self.examined is not None] * len(addresses), pa.bool_())
        states = read_parts(self.files, list(self.examined), STATES, ["address", "rank"])
        return pc.is_in(addresses, states.column("address").filter(pc.less_equal(states.column("rank"), HELD)))

    def _find_outdated_names(self) -> pa.Array:
        """Return the addresses of decoded containers that use a name with a changed prefix."""
        if self.named_prefixes is None:
            return pa.array([], pa.string())
        rows = read_parts(self.files, list(self.locations), LOCATIONS, ["container", "address", "kind"])
        rows = rows.filter(pc.equal(rows.column("kind"), Kind.NAMED_PREFIX))
        current = set(map(self.named_prefixes.reference, self.named_prefixes.prefixes))
        # A container that was decoded with several prefixes has one row per prefix.
        used = defaultdict[tuple[str, str], set[str]](set)
        for row in rows.to_pylist():
            used[row["container"], name_in_reference(row["address"])].add(row["address"])
        return pa.array([container for (container, _), references in used.items() if not references & current], pa.string())

    def _is_settled(self, tables: RootTables, roots: pa.Table, known: pa.Table) -> pa.ChunkedArray:
        """Return a mask of roots of expired commits that an earlier run decoded or did not find.

        Only lakes with live contents have such roots.
        """
        if tables.contents is None:
            return pa.chunked_array([pa.array([False] * roots.num_rows, pa.bool_())])
        failures = read_parts(self.files, list(self.parents), UNREADABLE_CONTAINERS, ["address", "absent"])
        absent = pc.is_in(roots.column("address"), failures.column("address").filter(failures.column("absent")))
        decoded = pc.is_in(roots.column("address"), known.column("container"))
        return pc.and_(pc.greater_equal(roots.column("rank"), RELEASED), pc.or_(absent, decoded))

    def _add_sizes(self, tasks: pa.Table, unchanged: pa.Table) -> pa.Table:
        """Fill in missing lengths from decoded containers that are unchanged, or from the store."""
        at = pc.index_in(tasks.column("address"), unchanged.column("container"))
        sizes = pc.coalesce(tasks.column("size_bytes"), unchanged.column("container_size_bytes").take(at))
        missing = pc.is_null(sizes)
        addresses = tasks.column("address").filter(missing).to_pylist()
        found = pa.array(read_sizes(self.objects, addresses, may_list=self.may_list), pa.int64())
        filled = pc.replace_with_mask(sizes.combine_chunks(), missing.combine_chunks(), found)
        return replace_columns(tasks, {"size_bytes": filled})


def split_by_cost(tasks: pa.Table, width: int) -> Iterator[pa.Table]:
    """Split containers (`TASKS` columns) into at most `width` groups of similar cost.

    Containers with neighboring addresses stay together, because they usually belong to one table
    and reference the same children. In any other order, every group would reference the children of
    all tables.
    """
    ordered = tasks.sort_by("address")
    costs = _bounded_sizes(ordered) + COST_OF_REQUEST
    share = np.minimum((np.cumsum(costs) - costs) * (width / max(1.0, costs.sum())), width - 1).astype(np.int64)
    for start, end in pairwise(np.searchsorted(share, np.arange(width + 1)).tolist()):
        if end > start:
            yield ordered.slice(start, end - start)


def _bounded_sizes(tasks: pa.Table) -> NDArray[np.float64]:
    """Return container lengths in bytes. They are limited, because a table can record any value."""
    return np.clip(tasks.column("size_bytes").to_numpy(), 0, MAX_OBJECT_BYTES).astype(np.float64)


def _merge_tasks(wanted: pa.Table) -> pa.Table:
    """Merge the rows of each container, and combine the values that different parents recorded."""
    how = {name: "max" for name in TASKS.names if name not in {"address", "snapshot_id"}} | {"snapshot_id": "min"}
    return aggregate_rows(wanted, "address", how).select(TASKS.names).cast(TASKS)


def length_identity(rows: pa.Table, address: str, length: str) -> pa.ChunkedArray:
    """Combine the columns of an object's address and length into one column that identifies it."""
    return _join(rows.column(address), rows.column(length).cast(pa.string()))


def _join(first: pa.ChunkedArray | pa.Array, second: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray:
    """Join two string columns. The value of a row is null if either input is null."""
    return pc.binary_join_element_wise(first, second, "\x1f")
