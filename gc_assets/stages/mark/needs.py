"""Compare the needs of commits and containers with those of a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gc_assets.core.errors import StateError
from gc_assets.stages.mark.incremental import BASELINE_DAMAGED, Baseline, NeedChanges
from gc_assets.state.files import Files
from gc_assets.state.parts import read_verified
from gc_assets.state.receipts import PartFile
from gc_assets.state.side_tables import (
    CHANGED_CONTAINERS,
    CHANGED_CONTAINERS_SIDE,
    CHANGED_KEYS,
    CHANGED_KEYS_SIDE,
    NEEDS,
    NEEDS_SIDE,
)

# Columns of an `expands` row that determine the rows of the container's entries.
_EXPANSION_COLUMNS: Final = ["address", "rank", "commit_id", "table_uuid", "must_exist"]


def build_needs(direct: pa.Table, expands: npt.NDArray[np.bool_], lengths: pa.ChunkedArray) -> pa.Table:
    """Build the needs of containers and files (columns `NEEDS`).

    Args:
        direct: Containers and files (columns `ROOTS`).
        expands: Mask of containers whose entries are needed.
        lengths: Column with the decoded length of each container in bytes, null for files.
    """
    columns = {"container": direct.column("parent"), "expands": pa.array(expands), "container_size_bytes": lengths}
    return pa.table({name: columns[name] if name in columns else direct.column(name) for name in NEEDS.names}).cast(NEEDS)


def compare_needs(previous: pa.Table, current: pa.Table) -> tuple[pa.Array, pa.Array]:
    """Return the containers with different needs, and the keys of rows in only one of the tables.

    Both tables have the columns `NEEDS`. The results are distinct.
    """
    tagged = [rows.append_column("side", pa.array(np.full(rows.num_rows, side, np.int8))) for side, rows in enumerate((previous, current))]
    differing = _one_sided_rows(pa.concat_tables(tagged), NEEDS.names)
    keys = pc.unique(pc.coalesce(differing.column("key"), differing.column("address")))
    containers = _one_sided_rows(differing.filter(differing.column("expands")), _EXPANSION_COLUMNS)
    return pc.unique(containers.column("address")), keys


def _one_sided_rows(tagged: pa.Table, names: list[str]) -> pa.Table:
    """Return the distinct rows that only one side has. Nulls compare equal."""
    grouped = tagged.group_by(names).aggregate([("side", "min"), ("side", "max")])
    one_sided = grouped.filter(pc.equal(grouped.column("side_min"), grouped.column("side_max")))
    return one_sided.select([*names, "side_min"]).rename_columns([*names, "side"])


@dataclass(frozen=True, slots=True)
class DecodedContainers:
    """Cached containers.

    Attributes:
        index: All containers (columns container, entries).
        known: Addresses of containers in segments used by the baseline.
        edges: Edges between containers (column container).
    """

    index: pa.Table
    known: pa.ChunkedArray
    edges: pa.Table


@dataclass(frozen=True)
class PreviousNeeds:
    """Needs of a baseline, for comparison in the task of the walk. Picklable.

    Attributes:
        path: Directory of the baseline, relative to the state.
        needs: Parts with its needs, and their digests.
        new_containers: Paths of the containers in segments not used by the baseline.
        can_reuse_all: True if only changed needs can make a key dirty in this run.
        writes_changes: False if no later step reads the changed containers and keys.
    """

    path: str
    needs: tuple[PartFile, ...]
    new_containers: frozenset[str]
    can_reuse_all: bool
    writes_changes: bool

    @classmethod
    def from_baseline(cls, baseline: Baseline, new_containers: Sequence[str], full_every: int, cached_entries: int) -> PreviousNeeds:
        return cls(
            baseline.published.path,
            tuple(baseline.published.parts(NEEDS_SIDE)),
            frozenset(new_containers),
            can_reuse_all=not baseline.new_rows and not baseline.is_comparison_due(full_every),
            writes_changes=baseline.needs_dirty_keys(full_every, cached_entries),
        )

    def reuses_all_rows(self, changes: NeedChanges) -> bool:
        """Check if all rows of the baseline can be reused."""
        return self.can_reuse_all and changes.damaged is None and changes.is_empty

    def compare(self, files: Files, needs: pa.Table, containers: DecodedContainers) -> tuple[dict[str, pa.Table], NeedChanges]:
        """Compare with the needs of this run.

        Only containers in segments used by the baseline are counted, because entries of new
        segments are dirty anyway. A container decoded twice may list files in one segment and
        containers in another, so its entries are counted over all segments.

        Returns:
            The side tables `CHANGED_CONTAINERS_SIDE` and `CHANGED_KEYS_SIDE`, and their counts.
        """
        try:
            previous = pa.concat_tables([NEEDS.empty_table(), *(_read_part(files, self.path, part) for part in self.needs)])
        except (StateError, OSError) as error:
            return {}, NeedChanges(damaged=f"{BASELINE_DAMAGED}: {error}")
        changed, keys = compare_needs(previous, needs)
        known = changed.filter(pc.is_in(changed, containers.known.unique()))
        total = (
            containers.index.filter(pc.is_in(containers.index.column("container"), known))
            .group_by("container")
            .aggregate([("entries", "sum")])
        )
        inner = pc.value_counts(containers.edges.column("container"))
        at = pc.index_in(total.column("container"), inner.field("values").cast(pa.string()))
        file_entries = pc.subtract(total.column("entries_sum"), pc.fill_null(pa.chunked_array([inner.field("counts")]).take(at), 0))
        with_files = total.filter(pc.not_equal(file_entries, 0))
        entries = pc.sum(pc.max_element_wise(file_entries, 0)).as_py() or 0
        sides = {
            CHANGED_CONTAINERS_SIDE: with_files.select(["container"]).cast(CHANGED_CONTAINERS),
            CHANGED_KEYS_SIDE: pa.table({"key": keys}).cast(CHANGED_KEYS),
        }
        return sides if self.writes_changes else {}, NeedChanges(entries, len(keys), with_files.num_rows)


def _read_part(files: Files, directory: str, part: PartFile) -> pa.Table:
    return pq.read_table(pa.BufferReader(read_verified(files, directory, part))).cast(NEEDS)
