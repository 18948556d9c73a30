"""Snapshot files with another parent: only twelve bytes of the payload differ."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import icechunk
import pytest
import zarr
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gc_assets.core.errors import FormatError
from gc_assets.lakes.icechunk import envelope
from gc_assets.lakes.icechunk.envelope import HEADER_BYTES, SNAPSHOT, SPEC_V1, unwrap
from gc_assets.lakes.icechunk.ids import ID_BYTES, spell_one, unspell_one
from gc_assets.lakes.icechunk.snapshots import parse_snapshot, with_parent
from tests.depth import select_cases
from tests.lakes.icechunk.builder import RepositoryBuilder, document_tree, payload_of, with_payload

START = datetime(2026, 1, 1, tzinfo=UTC)
OTHER = "0123456789ABCDEFGHJ0"

ids = st.binary(min_size=ID_BYTES, max_size=ID_BYTES)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    tree = document_tree(tmp_path_factory.mktemp("rewrite") / "repo", START)
    return tree.builder.snapshot_file(tree.ids[12]).read_bytes()


def history(repo: icechunk.Repository, path: Path, change: Callable[[zarr.Group, int], None], commits: int = 4) -> list[str]:
    """Create snapshots of `main` at least a second apart, as the library requires. Return them newest first."""
    for number in range(commits):
        session = repo.writable_session("main")
        change(zarr.open_group(session.store, mode="a"), number)
        session.commit(f"number {number}")
    return [info.id for info in repo.ancestry(branch="main")]


def test_rewrite_matches_icechunk_on_document_tree(tmp_path: Path):
    tree = document_tree(tmp_path / "repo", START)
    snapshots = {path.name: path.read_bytes() for path in (tmp_path / "repo" / "snapshots").iterdir()}
    tree.builder.reopen().expire_snapshots(tree.cutoff)
    rewritten = {path.name: path.read_bytes() for path in (tmp_path / "repo" / "snapshots").iterdir()}
    edited = {name for name in snapshots if snapshots[name] != rewritten[name]}
    assert tree.numbers_of(edited) == {3, 5, 8, 9, 10, 12}
    for name in edited:
        assert with_parent(name, snapshots[name], tree.ids[0]) == rewritten[name]


@pytest.mark.parametrize("level", select_cases([3], [1, 9, 19]))
def test_rewrite_matches_icechunk_at_all_compression_levels(tmp_path: Path, level: int):
    config = icechunk.RepositoryConfig(compression=icechunk.CompressionConfig(level=level))
    path = tmp_path / "repo"
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)), config=config)
    repo.save_config()

    def many_arrays(group: zarr.Group, number: int) -> None:
        for index in range(150):
            group.create_array(f"temperature of station {number}-{index}", shape=(4,), chunks=(2,), dtype="i4")

    kept, *_, root = history(repo, path, many_arrays)
    file = path / "snapshots" / kept
    before = file.read_bytes()
    assert len(unwrap(kept, before, SNAPSHOT, SPEC_V1)) > 3 * 128 * 1024, "more than one zstd block"
    cutoff = next(iter(repo.ancestry(branch="main"))).written_at
    icechunk.Repository.open(icechunk.local_filesystem_storage(str(path))).expire_snapshots(cutoff)
    assert file.read_bytes() != before
    assert with_parent(kept, before, root) == file.read_bytes()


def test_rewrite_changes_only_the_parent(snapshot: bytes):
    rewritten = with_parent("snapshot", snapshot, OTHER)
    assert rewritten[:HEADER_BYTES] == snapshot[:HEADER_BYTES]
    before, after = payload_of(snapshot), payload_of(rewritten)
    different = [at for at in range(len(before)) if before[at] != after[at]]
    assert len(before) == len(after)
    assert max(different) - min(different) < ID_BYTES
    assert parse_snapshot("snapshot", rewritten).parent_id == OTHER


def test_rewrite_to_old_parent_restores_the_file(snapshot: bytes):
    parent = parse_snapshot("snapshot", snapshot).parent_id
    assert with_parent("snapshot", with_parent("snapshot", snapshot, OTHER), parent) == snapshot


def test_uncompressed_file_stays_uncompressed(snapshot: bytes):
    plain = snapshot[: HEADER_BYTES - 1] + b"\0" + bytes(payload_of(snapshot))
    rewritten = with_parent("snapshot", plain, OTHER)
    assert rewritten[:HEADER_BYTES] == plain[:HEADER_BYTES]
    assert len(rewritten) == len(plain)
    assert parse_snapshot("snapshot", rewritten).parent_id == OTHER


@pytest.mark.parametrize("settings", [{"level": 7}, {"level": 19}, {"write_checksum": True}, {"write_content_size": True}])
def test_rewrite_keeps_compression_frame_settings(snapshot: bytes, settings: dict):
    payload = bytes(payload_of(snapshot))
    stream = zstandard.ZstdCompressor(**{"level": 3, "write_content_size": False, **settings}).compressobj(
        size=len(payload) if "write_content_size" in settings else -1
    )
    file = snapshot[:HEADER_BYTES] + stream.compress(payload) + stream.flush()
    rewritten = with_parent("snapshot", file, OTHER)
    wanted, found = (zstandard.get_frame_parameters(raw[HEADER_BYTES:]) for raw in (file, rewritten))
    assert (wanted.has_checksum, wanted.content_size, wanted.window_size) == (found.has_checksum, found.content_size, found.window_size)
    assert with_parent("snapshot", rewritten, parse_snapshot("snapshot", file).parent_id) == file


def test_rewrite_of_unknown_compression_uses_default_level(snapshot: bytes):
    payload = bytes(payload_of(snapshot))
    stream = zstandard.ZstdCompressor(level=3, write_content_size=False).compressobj()
    halves = [payload[: len(payload) // 2], payload[len(payload) // 2 :]]
    body = b"".join(stream.compress(half) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for half in halves) + stream.flush()
    file = snapshot[:HEADER_BYTES] + body
    assert with_parent("snapshot", file, OTHER) == with_parent("snapshot", with_payload(snapshot, payload), OTHER)


def test_first_snapshot_cannot_get_a_parent(tmp_path: Path):
    builder = RepositoryBuilder.create(tmp_path / "repo", START)
    raw = builder.snapshot_file(builder.head("main")).read_bytes()
    with pytest.raises(FormatError, match="the first of a history"):
        with_parent("snapshots/first", raw, OTHER)


@pytest.mark.parametrize("parent", ["", "short", "0123456789abcdefghj0", "0123456789ABCDEFGHJ1"])
def test_parent_must_be_an_object_id(snapshot: bytes, parent: str):
    with pytest.raises(ValueError, match="object id"):
        with_parent("snapshot", snapshot, parent)


def test_rewrite_refuses_damaged_files_and_other_types(snapshot: bytes):
    for damaged in (snapshot[:-1], snapshot[:30], b"", snapshot + b"x", snapshot[:36] + b"\x02" + snapshot[37:]):
        with pytest.raises(FormatError, match="snapshots/X"):
            with_parent("snapshots/X", damaged, OTHER)


def test_rewrite_fails_if_the_result_is_wrong(snapshot: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(envelope, "rewrap", lambda raw, payload: with_payload(raw, payload_of(raw)))
    with pytest.raises(FormatError, match=f"expected the same snapshot with the parent {OTHER}"):
        with_parent("snapshot", snapshot, OTHER)


@given(ids)
def test_object_id_spelling_round_trips(object_id: bytes):
    assert unspell_one(spell_one(object_id)) == object_id
