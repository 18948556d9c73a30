"""Stored rows get the current storage and key of their address."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.engine.tables import publish, write_rows
from gc_assets.lakes.protocol import Commit, ContentRoot
from gc_assets.stages.mark.commit_rows import build_commit_rows
from gc_assets.stages.mark.file_entries import build_hashes
from gc_assets.stages.mark.resolution import are_links_unchanged, build_links, resolve_content_roots, resolve_rows, resolve_segments
from gc_assets.state.journal import State
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import MANIFEST_ENTRIES
from gc_assets.state.side_tables import CLAIMS, HASHES, HASHES_SIDE

DAY, NOW = date(2026, 3, 14), datetime(2026, 3, 14, tzinfo=UTC)
OLD, NEW = KeyResolver([("old", "s3://bucket/lake/")]), KeyResolver([("new", "s3://bucket/")])


def commit(number: int) -> Commit:
    roots = [ContentRoot(f"s3://bucket/lake/{number}/{root}", "manifest_list", is_container=True) for root in range(number)]
    return Commit(str(number), (), datetime(2026, 11, 1, tzinfo=UTC), tuple(roots), table_uuid="uuid")


def test_content_root_keys_of_reused_commits_are_recomputed() -> None:
    commits = [commit(number) for number in (2, 0, 1, 3)]
    (resolved,) = resolve_content_roots(iter([build_commit_rows(commits, OLD)]), NEW)
    assert resolved.equals(build_commit_rows(commits, NEW))


def test_content_root_keys_of_batch_slice_are_recomputed() -> None:
    commits = [commit(number) for number in (2, 0, 1, 3)]
    (resolved,) = resolve_content_roots(iter([build_commit_rows(commits, OLD).slice(1, 2)]), NEW)
    assert resolved.to_pylist() == build_commit_rows(commits[1:3], NEW).to_pylist()


@pytest.mark.parametrize("address", ["db/t/1", "s3://bucket/lake/../1", "s3://bucket:9000/1"])
def test_unresolvable_address_has_no_key(address: str) -> None:
    roots = tuple(ContentRoot(item, "metadata_json", is_container=True) for item in (address, "s3://bucket/lake/1"))
    rows = build_commit_rows([Commit("c", (), NOW, roots)], OLD)
    for found, storage in ((rows, "old"), (next(resolve_content_roots(iter([rows]), NEW)), "new")):
        assert [root["storage"] for root in found.column("content_roots")[0].as_py()] == [None, storage]


def test_content_root_behind_broken_link_keeps_its_recorded_key(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "link").symlink_to("lake")
    storages = [("lake", f"file://{tmp_path}/lake/")]
    roots = tuple(ContentRoot(f"file://{tmp_path}/{name}/1", "metadata_json", is_container=True) for name in ("link", "lake"))
    rows = build_commit_rows([Commit("c", (), NOW, roots)], KeyResolver(storages))
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("link")
    assert next(resolve_content_roots(iter([rows]), KeyResolver(storages))).equals(rows)


def test_address_outside_all_storages_has_no_key() -> None:
    rows = pa.Table.from_pylist([{"address": "s3://other/t/", "storage": "old", "key": "t/"}], CLAIMS)
    assert resolve_rows(rows, NEW).select(["storage", "key"]).to_pylist() == [{"storage": None, "key": None}]


def test_directories_that_keys_depend_on_are_recorded(tmp_path: Path) -> None:
    for name in ("disk1/t", "disk2/t", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to("disk1")
    storages = [(name, f"file://{tmp_path / name}/") for name in ("disk1", "disk2")]
    resolver = KeyResolver(storages)
    addresses = [f"file://{tmp_path}/{path}" for path in ("link/t/a", "elsewhere/b", "disk1/t/c")]
    resolver.resolve(pa.array(addresses))
    links = build_links(resolver)
    outside = {f"{tmp_path}/link/t/", f"{tmp_path}/elsewhere/", f"{tmp_path}/disk1/", f"{tmp_path}/disk2/"}
    assert set(links.column("directory").to_pylist()) == outside
    assert are_links_unchanged(KeyResolver(storages), links)
    (tmp_path / "elsewhere").rmdir()
    assert are_links_unchanged(KeyResolver(storages), links)
    (tmp_path / "elsewhere").symlink_to("disk2")
    assert not are_links_unchanged(KeyResolver(storages), links)


def test_keys_on_s3_depend_on_no_directory() -> None:
    resolver = KeyResolver([("new", "s3://bucket/"), ("disk", "file:///data/")])
    resolver.resolve(pa.array(["s3://bucket/a", "s3://other/b", "file:///data/c"]))
    assert not build_links(resolver).num_rows


@pytest.mark.parametrize("before, after", [(OLD, NEW), (NEW, OLD), (KeyResolver([("other", "s3://other/")]), NEW)])
def test_hashes_in_copied_segments_match_current_keys(tmp_path: Path, before: KeyResolver, after: KeyResolver) -> None:
    state = State.at(str(tmp_path))
    rows = [
        {
            "container": container,
            "address": f"s3://bucket/{key}",
            "kind": "data",
            "is_container": False,
            "must_exist": True,
            "entry_status": status,
        }
        for container in ("m1", "m2")
        for key, status in ((f"lake/{container}/a%20b", "added"), ("outside/b", None), ("lake/c", "deleted"))
    ]
    entries = pa.Table.from_pylist(rows, MANIFEST_ENTRIES.schema)
    run = state.start("sales", MANIFEST_ENTRIES.name, DAY, Clock(NOW))
    published = write_rows(resolve_rows(entries, before), MANIFEST_ENTRIES, run, state.files, {HASHES_SIDE: hashes(entries, before)})
    publish(state, run, published, Clock(NOW))
    copy = state.start("sales", MANIFEST_ENTRIES.name, DAY, Clock(NOW))
    segments = state.segments(state.history("sales", MANIFEST_ENTRIES.name))
    written = resolve_segments(None, segments, after, state.files, copy)  # type: ignore[arg-type]  # small: without Spark
    found = read_parts(state.files, written.paths(copy, HASHES_SIDE), HASHES)
    assert found.to_pylist() == hashes(entries, after).to_pylist()
    assert found.to_pylist() != hashes(entries, before).to_pylist()


def hashes(entries: pa.Table, resolver: KeyResolver) -> pa.Table:
    return pa.Table.from_batches([build_hashes(batch) for batch in resolve_rows(entries, resolver).to_batches()], HASHES)
