"""Tables with unchanged metadata files are not read again, and the commit graph stays correct."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gc_assets.config.models import Config
from gc_assets.core.clock import Clock
from gc_assets.demo.iceberg_builder import LakeBuilder, TableBuilder
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.lakes.iceberg.config import IcebergLakeConfig
from gc_assets.lakes.iceberg.lake import IcebergLake
from gc_assets.lakes.protocol import FrozenRefs
from gc_assets.stages.mark import commit_rows
from gc_assets.stages.mark.commit_graph import commit_graph
from gc_assets.stages.mark.lake_refs import lake_refs, read_frozen_refs
from gc_assets.state.journal import PublishedTable
from gc_assets.state.schemas import COMMIT_GRAPH, LAKE_REFS
from tests.depth import example_count
from tests.stages.lakehouse import NOW, Lakehouse

LAKE = "shop"


class House:
    """An Iceberg lake and its commit graphs. The histories are short, so Spark is not needed."""

    def __init__(self, root: Path, **lake: Any) -> None:
        self.builder = LakeBuilder(root)
        catalog = {name: value for name, value in self.builder.properties.items() if name != "warehouse"}
        config = {"name": LAKE, "kind": "iceberg", "catalog_name": "default", "catalog": catalog, "tables": ["db.*"], **lake}
        self._house = Lakehouse(None, root, [IcebergLakeConfig.model_validate(config)])  # type: ignore[arg-type]
        self.now = NOW
        self.new_tables = count()

    def config(self, state: str | None = None) -> Config:
        return replace(self._house, state=state).config

    def graph(self, state: str | None = None) -> tuple[PublishedTable, RunContext]:
        """Publish the graph of the current day."""
        clock = Clock(self.now)
        context = RunContext.of(self.config(state), clock, clock.today())
        lake_refs(context, LAKE)
        return commit_graph(None, context, LAKE), context  # type: ignore[arg-type]

    def refs(self) -> FrozenRefs:
        """Return the current freeze of the day."""
        context = RunContext.of(self.config(), Clock(self.now), Clock(self.now).today())
        return read_frozen_refs(context, LAKE, context.table(LAKE_REFS, LAKE))

    def rows(self, state: str | None = None) -> list[dict[str, Any]]:
        published, context = self.graph(state)
        rows = read_rows(context.state, COMMIT_GRAPH, published).to_pylist(maps_as_pydicts="strict")
        return sorted(rows, key=lambda row: (row["table_uuid"], row["commit_id"]))

    def table(self, name: str, commits: int = 2) -> TableBuilder:
        table = self.builder.table(f"db.{name}", NOW - timedelta(days=9))
        for number in range(commits):
            table.append(NOW - timedelta(days=8) + timedelta(hours=number))
        return table


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def run_next_day(house: House) -> tuple[list[str], PublishedTable]:
    """Return the tables that the next run reads, and its graph."""
    read: list[str] = []
    commits = IcebergLake.commits

    def record(lake: IcebergLake, source: Any) -> Any:
        read.append(source.table_name)
        return commits(lake, source)

    house.now += timedelta(days=1)
    with patch.object(IcebergLake, "commits", record):
        graph, _ = house.graph()
    return sorted(read), graph


def test_only_tables_with_new_commits_are_read_again(house: House) -> None:
    quiet, busy = house.table("quiet", 3), house.table("busy")
    assert run_next_day(house)[0] == ["db.busy", "db.quiet"]
    busy.append(NOW)
    read, graph = run_next_day(house)
    assert read == ["db.busy"]
    assert graph.receipt.rows == 6
    assert graph.receipt.summary["known"] == 3
    assert quiet.name in {row["table_name"] for row in house.rows()}


def test_run_without_new_commits_reads_no_table(house: House) -> None:
    house.table("quiet")
    run_next_day(house)
    assert run_next_day(house)[0] == []


def test_dropped_table_is_removed_from_commit_graph(house: House) -> None:
    house.table("stays")
    house.table("goes")
    run_next_day(house)
    house.builder.catalog.drop_table("db.goes")
    read, graph = run_next_day(house)
    assert (read, graph.receipt.rows) == ([], 2)


def test_rewritten_metadata_file_of_equal_length_is_read_again(house: House) -> None:
    table = house.table("rewritten")
    run_next_day(house)
    path = TableBuilder.path(table.table.metadata_location)
    content = path.read_text()
    path.write_text(content.replace('"operation":"append"', '"operation":"delete"'))
    assert content != path.read_text()
    assert len(content) == len(path.read_text())
    assert run_next_day(house)[0] == ["db.rewritten"]
    assert {row["message"] for row in house.rows()} == {"delete"}


def test_table_is_read_from_cache_after_its_metadata_is_damaged(house: House) -> None:
    """A verification mark (the check at the start of an apply) reads the refs again, but not the
    file.
    """
    table = house.table("one")
    first = house.rows()
    path = TableBuilder.path(table.table.metadata_location)
    path.write_bytes(path.read_bytes()[:100])
    assert house.rows() == first
    house.now += timedelta(days=1)
    assert house.rows() == []


def test_renamed_table_is_read_again(house: House) -> None:
    house.table("old")
    run_next_day(house)
    house.builder.catalog.rename_table("db.old", "db.new")
    assert run_next_day(house)[0] == ["db.new"]
    assert {row["table_name"] for row in house.rows()} == {"db.new"}


def test_all_registered_names_of_table_are_read_if_one_changes(house: House) -> None:
    table = house.table("one")
    house.builder.catalog.register_table("db.two", table.table.metadata_location)
    run_next_day(house)
    assert run_next_day(house)[0] == []
    table.append(NOW)
    assert run_next_day(house)[0] == ["db.one", "db.two"]
    house.builder.catalog.drop_table("db.two")
    assert run_next_day(house)[0] == ["db.one"]


def test_reused_commits_use_changed_storage_names(house: House) -> None:
    house.table("one")
    run_next_day(house)
    with patch.object(House, "config", lambda self, state=None: replace(self._house, state=state, storage="other").config):
        assert run_next_day(house)[0] == []
        assert {root["storage"] for row in house.rows() for root in row["content_roots"]} == {"other"}


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-1], lambda content: content[:60] + bytes([content[60] ^ 1]) + content[61:], lambda content: b""]
)
@pytest.mark.parametrize("side", ["", "_read_from"])
def test_tables_are_read_again_if_previous_graph_is_damaged(house: House, damage: Any, side: str) -> None:
    house.table("one")
    _, graph = run_next_day(house)
    expected = house.rows()
    house.now += timedelta(days=1)
    _, graph = run_next_day(house)
    for path in graph.paths(side or None):
        file = house.builder.root / "state" / path
        file.write_bytes(damage(file.read_bytes()))
    assert run_next_day(house)[0] == ["db.one"]
    assert house.rows() == expected


def test_tables_are_read_again_if_part_of_previous_graph_is_missing(house: House) -> None:
    house.table("one")
    _, graph = run_next_day(house)
    (house.builder.root / "state" / graph.paths()[0]).unlink()
    assert run_next_day(house)[0] == ["db.one"]


def test_table_is_unreadable_if_metadata_changed_after_freeze(house: House) -> None:
    """Later runs would reuse its commits after the frozen file is restored."""
    table = house.table("swapped")
    house.table("other")
    path = TableBuilder.path(table.table.metadata_location)
    frozen = path.read_bytes()
    commits = IcebergLake.commits

    def replace_file(lake: IcebergLake, source: Any) -> Any:
        path.write_bytes(frozen.replace(b'"operation":"append"', b'"operation":"delete"'))
        yield from commits(lake, source)

    with patch.object(IcebergLake, "commits", replace_file):
        assert {row["table_name"] for row in house.rows()} == {"db.other"}
    refs = house.refs()
    [item] = refs.unreadable
    assert re.search(r"of table db\.swapped on .* differs from the file read first", item.reason)
    assert {ref.table_name for ref in refs.refs} == {source.table_name for source in refs.sources} == {"db.other"}
    assert {claim.table_name for claim in refs.claims if claim.is_unread} == {"db.swapped"}
    path.write_bytes(frozen)
    assert {(row["table_name"], row["message"]) for row in house.rows()} == {("db.other", "append"), ("db.swapped", "append")}


def test_table_is_read_by_its_other_name_if_one_registration_vanishes(house: House) -> None:
    table = house.table("one")
    path = TableBuilder.path(table.table.metadata_location)
    copy = path.with_name(f"copy-{path.name}")
    copy.write_bytes(path.read_bytes())
    house.builder.catalog.register_table("db.copy", f"file://{copy}")
    commits = IcebergLake.commits

    def remove_copy(lake: IcebergLake, source: Any) -> Any:
        copy.unlink(missing_ok=True)
        yield from commits(lake, source)

    with patch.object(IcebergLake, "commits", remove_copy):
        rows = house.rows()
    refs = house.refs()
    assert rows
    assert {ref.table_name for ref in refs.refs} == {"db.one"}
    assert [claim.table_uuid for claim in refs.claims if claim.collect] == [str(table.table.metadata.table_uuid)]
    assert {claim.table_name for claim in refs.claims if claim.is_unread} == {"db.copy"}


@pytest.mark.parametrize("share", [1, 3, 4, 100])
def test_commits_are_numbered_per_table_for_any_chunk_size(monkeypatch: pytest.MonkeyPatch, share: int) -> None:
    """The whole graph may contain more text than one Arrow array can hold, so it is never one array."""
    monkeypatch.setattr(commit_rows, "SHARE_COMMITS", share)
    names = [*"abcabcacaa", None, "a", None]
    seen = dict.fromkeys(names, 0)
    rows = []
    for name in names:
        number = seen[name]
        parents = [str(number - 1)] if number else []
        rows.append({"table_uuid": name, "commit_id": str(number), "parents": parents, "content_roots": [], "summary": []})
        seen[name] += 1
    batches = [pa.RecordBatch.from_pylist(rows[start : start + 4], schema=COMMIT_GRAPH.schema) for start in range(0, len(rows), 4)]
    found = [row for batch in commit_rows.add_generations(iter(batches)) for row in batch.to_pylist()]
    assert sorted((row["table_uuid"] or "", row["generation"]) for row in found) == sorted(
        (name or "", number) for name, count in seen.items() for number in range(count)
    )
    assert all(row["generation"] == int(row["commit_id"]) for row in found)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "tag", "create", "drop", "rename", "register", "expire", "replace", "nothing"]), st.integers(0, 3)
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=example_count(5, 25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEPS, min_size=2, max_size=5))
def test_incremental_commit_graph_equals_full_recompute(tmp_path_factory: pytest.TempPathFactory, runs: list[Any]) -> None:
    house = House(tmp_path_factory.mktemp("lake"))
    house.table("t0")
    house.table("t1", 1)
    for number, steps in enumerate(runs):
        for step, pick in steps:
            take(house, step, pick)
        house.now += timedelta(days=1)
        assert house.rows() == house.rows(str(house.builder.root / f"fresh-{number}"))


def take(house: House, step: str, pick: int) -> None:
    catalog = house.builder.catalog
    names = sorted(".".join(name) for name in catalog.list_tables("db"))
    table = TableBuilder(house.builder, names[pick % len(names)]) if names else None
    at = house.now - timedelta(hours=1)
    if step == "create" or table is None:
        house.table(f"new{next(house.new_tables)}", pick)
    elif step == "append":
        table.append(at)
    elif step == "tag" and table.table.metadata.snapshots:
        table.tag(at, f"v{pick}", str(table.table.metadata.snapshots[-1].snapshot_id))
    elif step == "drop":
        catalog.drop_table(table.name)
    elif step == "rename":
        catalog.rename_table(table.name, f"{table.name}r")
    elif step == "register":
        catalog.register_table(f"{table.name}again{next(house.new_tables)}", table.table.metadata_location)
    elif step == "expire":
        metadata = table.table.metadata
        held = {ref.snapshot_id for ref in metadata.refs.values()}
        for snapshot in [item for item in metadata.snapshots if item.snapshot_id not in held][:1]:
            with house.builder.at(at):
                table.table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    elif step == "replace" and len(names) > 1:
        path, other = (TableBuilder.path(catalog.load_table(name).metadata_location) for name in names[:2])
        if path != other:
            path.write_bytes(path.read_bytes().replace(b'"operation":"append"', b'"operation":"delete"'))
