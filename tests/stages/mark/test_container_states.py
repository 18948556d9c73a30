"""Container states do not depend on the order of content roots, contents and states."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from gc_assets.lakes.file_kinds import Kind
from gc_assets.stages.mark.closure import closure
from gc_assets.stages.mark.container_states import build_states, digest_states, number_states
from gc_assets.stages.mark.content_roots import rank_by_contents
from gc_assets.stages.mark.edges import EdgeIndex
from gc_assets.state.schemas import LIVE_CONTENTS
from gc_assets.state.side_tables import ROOTS

ORDERS = ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1])
NO_VALUES = pa.chunked_array([], pa.int64())


def equal_roots() -> pa.Table:
    """Return roots of a container that two tables need by equal commit ids and two parents."""
    root = {"address": "m", "kind": "manifest", "is_container": True, "must_exist": True, "storage": "s", "key": "m", "rank": 0}
    return pa.Table.from_pylist(
        [{**root, "commit_id": "1", "table_uuid": uuid, "parent": parent} for uuid in "ab" for parent in "xy"], ROOTS
    )


def states_of(leaves: pa.Table) -> pa.Table:
    return build_states(ROOTS.empty_table(), NO_VALUES, NO_VALUES, leaves)


def test_container_witness_does_not_depend_on_input_order() -> None:
    roots = equal_roots()
    found = [closure(roots.take(order), EdgeIndex([], 0)).to_pylist() for order in ORDERS]
    assert found[0] == found[1] == found[2]


def test_content_commit_does_not_depend_on_input_order() -> None:
    rows = [{"metadata_location": "m", "ref_name": "main", "at_head": True, "commit_id": commit} for commit in "213"]
    contents = pa.Table.from_pylist(rows, LIVE_CONTENTS.schema)
    found = [
        rank_by_contents(equal_roots(), contents.take(order), tolerant=False).column("commit_id")
        for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2])
    ]
    assert found[0].to_pylist() == ["1"] * 4
    assert found[0] == found[1] == found[2]


def test_file_kind_does_not_depend_on_witness_order() -> None:
    """A commit references a file twice, as two kinds."""
    twice = [{**equal_roots().slice(0, 1).to_pylist()[0], "kind": kind} for kind in (Kind.DATA, Kind.POSSIBLE_OBJECT)]
    found = [number_states(states_of(pa.Table.from_pylist(rows, ROOTS))).direct.sort_by("kind") for rows in (twice, twice[::-1])]
    assert found[0] == found[1]


def test_witness_numbers_do_not_depend_on_input_order() -> None:
    def number_witnesses(order: list[int]) -> dict[int, tuple[Any, ...]]:
        witnesses = number_states(states_of(equal_roots().take(order))).witnesses
        return {row.pop("witness"): tuple(row.values()) for row in witnesses.to_pylist()}

    found = [number_witnesses(order) for order in ORDERS]
    assert found[0] == found[1] == found[2]


def test_container_state_digest_does_not_depend_on_input_order() -> None:
    states = states_of(equal_roots())
    found = {digest_states(states.take(order)) for order in ORDERS}
    assert len(found) == 1
    assert digest_states(states.slice(1)) not in found
