"""Writing of `repo`: nothing is lost, lists are sorted, and content that the library could not read is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gc_assets.core.errors import FormatError
from gc_assets.lakes.icechunk.ids import spell_one
from gc_assets.lakes.icechunk.repo_info import RepoInfo, SnapshotInfo, parse_repo
from gc_assets.lakes.icechunk.repo_updates import UPDATE_VALUES, Availability, FieldType, RepoStatus, Update, UpdateKind
from gc_assets.lakes.icechunk.repo_writer import write_repo
from tests.lakes.icechunk.v2.builder import document_tree, set_value
from tests.lakes.icechunk.v2.library import Library
from tests.lakes.icechunk.v2.recordings import unpack_recordings
from tests.lakes.icechunk.v2.repo_tables import read_repo, with_change

START = datetime(2026, 1, 1, tzinfo=UTC)
COPY = "repo.30722570273471.F20Q7TNMEJQR7GWEXQQ0"
NAME = "lake x: s3://bucket/r/repo"
HEADER_BYTES = 39


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Every recorded `repo` and every copy of one."""
    found: list[bytes] = []
    for recording in unpack_recordings(tmp_path_factory.mktemp("recordings")).values():
        path = recording.path
        found += [file.read_bytes() for file in (path / "repo", *sorted((path / "overwritten").glob("*")))]
    return found


@pytest.fixture(scope="module")
def raw(objects: list[bytes]) -> bytes:
    return max(objects, key=lambda content: len(read_repo(content)["snapshots"]))


def test_rewritten_repo_objects_keep_every_table(objects: list[bytes]):
    for content in objects:
        rewritten = write_repo(NAME, content, parse_repo(NAME, content))
        assert read_repo(rewritten) == read_repo(content)
        assert rewritten[:HEADER_BYTES] == content[:HEADER_BYTES]


def random_value(rnd: random.Random, type_: FieldType) -> Any:
    values: dict[FieldType, Callable[[], Any]] = {
        "u8": lambda: rnd.randrange(256),
        "u16": lambda: rnd.randrange(2**16),
        "bool": lambda: rnd.random() < 0.5,
        "string": lambda: rnd.choice(["", "main", "é\0🧊", "x" * 300]),
        "id": lambda: spell_one(rnd.randbytes(12)),
        "status": lambda: random_status(rnd),
    }
    return values[type_]()


def random_status(rnd: random.Random) -> RepoStatus:
    return RepoStatus(rnd.choice(list(Availability)), rnd.randrange(2**57), rnd.choice([None, "", "maintenance"]))


def random_items(rnd: random.Random) -> tuple[tuple[str, bytes], ...]:
    return tuple((rnd.choice(["author", "", "ü"]), rnd.randbytes(rnd.randrange(9))) for _ in range(rnd.randrange(4)))


def random_info(rnd: random.Random) -> RepoInfo:
    ids = [spell_one(rnd.randbytes(12)) for _ in range(rnd.randint(1, 12))]
    names = rnd.sample(["a", "b", "é", "z/y", "\U0001f9ca", "\ue000", "with space"], 7)
    kinds = [rnd.choice(list(UPDATE_VALUES)) for _ in range(rnd.randint(0, 20))]
    updates = [
        Update(
            int(kind),
            {name: random_value(rnd, type_) for name, type_ in UPDATE_VALUES[kind]},
            10**15 - number,
            rnd.choice([None, f"repo.{number}"]) if number else None,
        )
        for number, kind in enumerate(kinds)
    ]
    return RepoInfo(
        header_spec=2,
        spec_version=2,
        branches={"main": rnd.choice(ids)} | {name: rnd.choice(ids) for name in names[:2]},
        tags={name: rnd.choice(ids) for name in names[2:4]},
        deleted_tags=tuple(sorted(names[4:])),
        snapshots={
            item: SnapshotInfo(
                snapshot_id=item,
                parent_id=ids[number - 1 - rnd.randrange(number)] if number and rnd.random() < 0.9 else None,
                flushed_us=rnd.randrange(2**47),
                message=rnd.choice(["", "commit", "ü\n"]),
                metadata=random_items(rnd),
                pruned_logs=tuple(spell_one(rnd.randbytes(12)) for _ in range(rnd.randrange(3))),
            )
            for number, item in enumerate(ids)
        },
        status=random_status(rnd),
        metadata=random_items(rnd),
        updates=tuple(updates),
        repo_before_updates=rnd.choice([None, "repo.before"]),
        config=rnd.choice([None, b"", b"\x01\x02\x03"]),
        enabled_flags=rnd.choice([None, (), (3,)]),
        disabled_flags=rnd.choice([None, (), (4, 5)]),
        extra=rnd.choice([None, b"", b"later"]),
    )


def test_random_repo_content_round_trips(raw: bytes):
    rnd = random.Random(30)
    for _ in range(300):
        info = random_info(rnd)
        assert parse_repo(NAME, write_repo(NAME, raw, info)) == info


def test_ref_change_keeps_extra_field_and_configuration(raw: bytes):
    before = with_change(
        raw, lambda tables: tables.update(extra=b"later", config=b"\x00\x01\x02", metadata=[{"name": "k", "value": b"\1"}])
    )
    info = parse_repo(NAME, before)
    after = read_repo(write_repo(NAME, before, replace(info, tags={})))
    assert after == {**read_repo(before), "tags": []}


def test_refs_and_parents_get_new_indexes_after_removal(raw: bytes):
    """Without the first snapshot every stored index differs."""
    info = parse_repo(NAME, raw)
    first = next(iter(info.snapshots))
    kept = {key: replace(item, parent_id=None if item.parent_id == first else item.parent_id) for key, item in info.snapshots.items()}
    del kept[first]
    edited = replace(info, snapshots=kept)
    assert first not in {*info.branches.values(), *info.tags.values()}
    assert parse_repo(NAME, write_repo(NAME, raw, edited)) == edited


def test_invalid_content_is_refused(raw: bytes):
    info = parse_repo(NAME, raw)
    newest, *others = info.updates
    for edited, expected in (
        (replace(info, updates=(replace(newest, kind=40, value=None), *others)), "unknown kind 40"),
        (replace(info, updates=(replace(newest, backup_path="repo.x"), *others)), "the newest operation of its log has a copy"),
        (replace(info, updates=(replace(newest, updated_us=others[0].updated_us), *others)), "is not later than the one before"),
        (replace(info, branches={"other": info.branches["main"]}), "expected a branch 'main'"),
        (replace(info, tags={**info.tags, "lost": "0123456789ABCDEFGHJ0"}), "0123456789ABCDEFGHJ0"),
        (replace(info, deleted_tags=(*info.deleted_tags, *info.tags)), "live and deleted"),
        (replace(info, header_spec=1), "differs in header_spec"),
    ):
        with pytest.raises(FormatError) as caught:
            write_repo(NAME, raw, edited)
        assert NAME in str(caught.value)
        assert expected in str(caught.value)


def with_expiration(info: RepoInfo) -> RepoInfo:
    """Return the content after an operation that changes nothing else."""
    newest, *others = info.updates
    update = Update(UpdateKind.EXPIRATION_RAN, {}, newest.updated_us + 1)
    return replace(info, updates=(update, replace(newest, backup_path=COPY), *others))


def test_icechunk_reads_and_writes_rewritten_repository(icechunk2: Library, tmp_path: Path):
    tree = document_tree(icechunk2, tmp_path / "repo", START)
    builder, file = tree.builder, tree.builder.path / "repo"
    before, content = builder.call("report"), file.read_bytes()
    (builder.path / "overwritten" / COPY).write_bytes(content)
    file.write_bytes(write_repo(NAME, content, with_expiration(parse_repo(NAME, content))))
    builder.call("open")
    after = builder.call("report")
    operations = after["repo"].pop("latest_updates")
    newest, *others = before["repo"].pop("latest_updates")
    assert after == before
    assert operations[0]["update_type"] == {"type": "ExpirationRanUpdate"}
    assert operations[1:] == [{**newest, "backup_path": COPY}, *others]
    snapshot = builder.commit("main", START + timedelta(days=99), set_value("values", 1, 99))
    assert [entry[0] for entry in builder.call("ancestry", snapshot=snapshot)][1:] == [
        entry[0] for entry in before["ancestry"]["branch main"]
    ]
