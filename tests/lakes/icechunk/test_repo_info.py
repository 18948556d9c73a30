"""Parsing of `repo`: recordings against the library's report, and content that the library never writes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from gc_assets.core.errors import FormatError
from gc_assets.lakes.icechunk.envelope import SpecVersionError
from gc_assets.lakes.icechunk.ids import spell_one
from gc_assets.lakes.icechunk.repo_info import FEATURE_FLAGS, parse_repo
from gc_assets.lakes.icechunk.repo_updates import Availability, RepoStatus, UpdateKind
from tests.lakes.icechunk.builder import payload_of, with_payload
from tests.lakes.icechunk.v2.builder import EPOCH, entry_positions, position_in_table
from tests.lakes.icechunk.v2.recordings import NAMES, Recording, unpack_recordings
from tests.lakes.icechunk.v2.repo_tables import Values, read_repo, with_change, write_repo

METADATA_OF_ENTRY = 4
NAME = "lake x: s3://bucket/r/repo"
Change = Callable[[Values], object]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recording]:
    return unpack_recordings(tmp_path_factory.mktemp("recordings"))


@pytest.fixture(scope="module")
def raw(recordings: dict[str, Recording]) -> bytes:
    """A repository with a branch, a tag, a deleted tag and logs of expired ancestors."""
    return (recordings["expired-twice"].path / "repo").read_bytes()


def every_object(recordings: dict[str, Recording]) -> Iterator[bytes]:
    for recording in recordings.values():
        for path in (recording.path / "repo", *sorted((recording.path / "overwritten").glob("*"))):
            yield path.read_bytes()


def refusal(raw: bytes, change: Change) -> str:
    with pytest.raises(FormatError) as caught:
        parse_repo(NAME, with_change(raw, change))
    assert NAME in str(caught.value)
    return str(caught.value)


def microseconds(text: str) -> int:
    at = datetime.fromisoformat(text)
    return int(at.timestamp()) * 1_000_000 + at.microsecond


@pytest.mark.parametrize("name", NAMES)
def test_parsed_repo_object_matches_icechunk_report(recordings: dict[str, Recording], name: str):
    info = parse_repo(NAME, (recordings[name].path / "repo").read_bytes())
    expected = recordings[name].verdict["repo"]
    assert dict(info.branches) == expected["branches"]
    assert dict(info.tags) == expected["tags"]
    assert list(info.deleted_tags) == expected["deleted_tags"]
    assert info.repo_before_updates == expected.get("repo_before_updates")
    assert [
        (item.snapshot_id, item.parent_id, item.flushed_us, item.message, [key for key, _ in item.metadata])
        for item in info.snapshots.values()
    ] == [(s["id"], s.get("parent_id"), microseconds(s["flushed_at"]), s["message"], list(s["metadata"])) for s in expected["snapshots"]]
    assert [report_of(update.kind, update.value or {}) for update in info.updates] == [
        {key: value for key, value in update["update_type"].items() if key != "type"} for update in expected["latest_updates"]
    ]
    assert [(update.updated_us, update.backup_path) for update in info.updates] == [
        (microseconds(update["updated_at"]), update.get("backup_path")) for update in expected["latest_updates"]
    ]
    statuses = [update["update_type"]["status"] for update in expected["latest_updates"] if "status" in update["update_type"]]
    assert status_report(info.status)["availability"] == ([status["availability"] for status in statuses] or ["Online"])[0]


def report_of(kind: int, value: Any) -> dict[str, Any]:
    """Return the value of an operation in the words of the library's report."""
    match kind:
        case UpdateKind.REPO_MIGRATED:
            return {name: f"{version}.0" for name, version in value.items()}
        case UpdateKind.FEATURE_FLAG_CHANGED:
            return {"id": value["id"]} | ({"new_value": value["new_value"]} if value["is_set"] else {})
        case UpdateKind.REPO_STATUS_CHANGED:
            return {"status": status_report(value["status"])}
        case _:
            return dict(value)


def status_report(status: RepoStatus) -> dict[str, Any]:
    at = (EPOCH + timedelta(microseconds=status.set_us)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    reason = {} if status.reason is None else {"limited_availability_reason": status.reason}
    return {"availability": status.availability.name.title().replace("_", ""), "set_at": at} | reason


def test_parsed_repo_object_matches_flatbuffer_tables(recordings: dict[str, Recording]):
    for content in every_object(recordings):
        info, tables = parse_repo(NAME, content), read_repo(content)
        ids = [spell_one(snapshot["id"]) for snapshot in tables["snapshots"]]
        assert list(info.snapshots) == ids
        for snapshot, item in zip(tables["snapshots"], info.snapshots.values(), strict=True):
            offset = snapshot["parent_offset"] or 0
            assert item.parent_id == (None if offset == -1 else ids[offset])
            assert list(item.pruned_logs) == [spell_one(log) for log in snapshot["pruned"] or []]
            assert item.metadata == tuple((entry["name"], entry["value"]) for entry in snapshot["metadata"])
        for name, refs in (("branches", info.branches), ("tags", info.tags)):
            assert dict(refs) == {ref["name"]: ids[ref["snapshot_index"] or 0] for ref in tables[name]}
        assert info.config == tables["config"]
        assert [update.kind for update in info.updates] == [update["kind"] for update in tables["updates"]]


def test_missing_parent_offset_means_first_snapshot(raw: bytes):
    tables, info = read_repo(raw), parse_repo(NAME, raw)
    first, *others = tables["snapshots"]
    assert first["parent_offset"] == -1, "a root always has the field"
    children = [spell_one(snapshot["id"]) for snapshot in others if snapshot["parent_offset"] is None]
    assert children, "the library wrote no parent with index 0"
    assert {info.snapshots[child].parent_id for child in children} == {spell_one(first["id"])}


def test_missing_snapshot_index_means_first_snapshot(recordings: dict[str, Recording]):
    initial = next(content for content in every_object(recordings) if len(read_repo(content)["snapshots"]) == 1)
    (branch,) = read_repo(initial)["branches"]
    assert branch["snapshot_index"] is None
    info = parse_repo(NAME, initial)
    assert list(info.branches.values()) == list(info.snapshots)


@pytest.mark.parametrize("stored,expected", [(None, "ONLINE"), (0, "ONLINE"), (1, "READ_ONLY"), (2, "OFFLINE")])
def test_availability_is_read_as_stored(raw: bytes, stored: int | None, expected: str):
    info = parse_repo(NAME, with_change(raw, lambda tables: tables["status"].update(availability=stored, reason="maintenance")))
    assert (info.status.availability, info.status.reason) == (Availability[expected], "maintenance")


def test_unknown_availability_is_refused(raw: bytes):
    assert "found 3; upgrade gc-assets" in refusal(raw, lambda tables: tables["status"].update(availability=3))


def ring(tables: Values) -> None:
    number = {spell_one(snapshot["id"]): index for index, snapshot in enumerate(tables["snapshots"])}
    tip = next(ref["snapshot_index"] for ref in tables["branches"] if ref["name"] == "main")
    parent = tables["snapshots"][tip]["parent_offset"]
    tables["snapshots"][parent]["parent_offset"] = tip
    assert len(number) > 2


def reverse(name: str) -> Change:
    def change(tables: Values) -> None:
        assert len(tables[name]) > 1
        tables[name].reverse()

    return change


def swap_snapshots(tables: Values) -> None:
    """Exchange the first two ids, so that all indexes stay valid."""
    first, second = tables["snapshots"][:2]
    first["id"], second["id"] = second["id"], first["id"]


REFUSALS: dict[str, tuple[Change, str]] = {
    "snapshots in another order": (swap_snapshots, "expected distinct sorted snapshots"),
    "snapshot listed twice": (lambda t: t["snapshots"].insert(0, t["snapshots"][0]), "expected distinct sorted snapshots"),
    "branches in another order": (reverse("branches"), "expected distinct sorted branches"),
    "tags in another order": (lambda t: t["tags"].append({"name": "a", "snapshot_index": 1}), "expected distinct sorted tags"),
    "deleted tags in another order": (lambda t: t["deleted_tags"].append("a"), "expected distinct sorted deleted_tags"),
    "parent past the end": (lambda t: t["snapshots"][1].update(parent_offset=len(t["snapshots"])), "expected a parent of -1 to 6, found 7"),
    "parent below -1": (lambda t: t["snapshots"][1].update(parent_offset=-2), "expected a parent of -1 to 6, found -2"),
    "own parent": (lambda t: t["snapshots"][1].update(parent_offset=1), "is its own ancestor"),
    "ring of parents": (ring, "is its own ancestor"),
    "branch past the end": (lambda t: t["branches"][0].update(snapshot_index=7), "its snapshot index must be less than 7, got 7"),
    "tag past the end": (lambda t: t["tags"][0].update(snapshot_index=2**32 - 1), "must be less than 7, got 4,294,967,295"),
    "no branch main": (lambda t: t["branches"][-1].update(name="other"), "expected a branch 'main'"),
    "tag that is also deleted": (lambda t: t.update(deleted_tags=["dead", "t"]), "'t' are both live and deleted"),
    "unknown feature flags": (lambda t: t.update(enabled=[3, 77], disabled=[4, 78]), "unknown feature flags 77, 78"),
    "feature flag on and off": (lambda t: t.update(enabled=[3], disabled=[3]), "[3] are both enabled and disabled"),
    "feature flags in another order": (lambda t: t.update(disabled=[5, 4]), "expected sorted disabled_feature_flags"),
    "later field of repo": (lambda t: t.update(later=1), "a newer library"),
    "later field of a snapshot": (lambda t: t["snapshots"][2].update(later=1), "a newer library"),
    "time after 9999": (lambda t: t["snapshots"][2].update(flushed_at=2**63), "expected flushed_at"),
    "status after 9999": (lambda t: t["status"].update(set_at=2**63), "expected set_at"),
    "operation after 9999": (lambda t: t["updates"][2].update(updated_at=2**58), "expected updated_at"),
    "copy outside of overwritten": (lambda t: t.update(before="../refs/x"), "expected the name of an object in overwritten/"),
    "spec version 3": (lambda t: t.update(spec_version=3), "the repository has spec version 3; expected 2"),
    "no snapshots": (lambda t: t.update(snapshots=None), "the field 'snapshots' is missing"),
    "no status": (lambda t: t.update(status=None), "the field 'status' is missing"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_content_that_icechunk_never_writes_is_refused(raw: bytes, case: str):
    change, expected = REFUSALS[case]
    assert expected in refusal(raw, change)


def test_feature_flags_have_known_names(raw: bytes):
    assert parse_repo(NAME, raw).disabled_features == frozenset()
    info = parse_repo(NAME, with_change(raw, lambda tables: tables.update(enabled=[4], disabled=[3, 5])))
    assert info.disabled_features == {"move_node", "delete_tag"}
    assert set(info.enabled_flags or ()) | set(info.disabled_flags or ()) == set(FEATURE_FLAGS)


@pytest.mark.parametrize("extra", [None, b"", b"later"])
def test_extra_field_is_kept(raw: bytes, extra: bytes | None):
    assert parse_repo(NAME, with_change(raw, lambda tables: tables.update(extra=extra))).extra == extra


def test_child_older_than_its_parent_is_read(raw: bytes):
    """An upgrade copies the times of spec version 1, which the library did not always compare."""

    def change(tables: Values) -> None:
        tables["snapshots"][0]["flushed_at"] = 2**51

    info = parse_repo(NAME, with_change(raw, change))
    assert any(item.parent_id and item.flushed_us < info.snapshots[item.parent_id].flushed_us for item in info.snapshots.values())


def test_unknown_operation_in_log_has_no_value(raw: bytes):
    info = parse_repo(NAME, with_change(raw, lambda tables: tables["updates"][1].update(kind=40, value={})))
    assert (info.updates[1].kind, info.updates[1].value) == (40, None)
    assert info.snapshots == parse_repo(NAME, raw).snapshots


def test_backup_names_include_next_part_of_log(raw: bytes):
    info = parse_repo(NAME, with_change(raw, lambda tables: tables.update(before="repo.continued")))
    copies = [update["backup_path"] for update in read_repo(raw)["updates"] if update["backup_path"]]
    assert info.backups == (*copies, "repo.continued")


def test_names_are_sorted_by_utf_8_bytes(raw: bytes):
    names = ["main", "z", "\ue000", "\U0001f9ca"]  # UTF-16 has another order
    assert names == sorted(names, key=str.encode)
    info = parse_repo(NAME, with_change(raw, lambda tables: tables.update(branches=[{"name": name} for name in names])))
    assert list(info.branches) == names


def test_other_file_types_and_versions_are_refused(raw: bytes, recordings: dict[str, Recording]):
    snapshot = next((recordings["upgraded"].path / "snapshots").iterdir()).read_bytes()
    for content, expected, error in (
        (snapshot[:36] + b"\2" + snapshot[37:], "expected a repository info, found a snapshot", FormatError),
        (raw[:36] + b"\3" + raw[37:], "spec version 3; expected 2", SpecVersionError),
        (raw[:36] + b"\1" + raw[37:], "spec version 1; expected 2", SpecVersionError),
        (raw[:37] + b"\x09" + raw[38:], "found a file type 9", FormatError),
        (write_repo(raw, read_repo(raw), b"Zarr"), "the file identifier b'Zarr'", FormatError),
        (b"", "expected an Icechunk header", FormatError),
    ):
        with pytest.raises(error, match=expected) as caught:
            parse_repo(NAME, content)
        assert NAME in str(caught.value)


def test_vector_that_is_referenced_too_often_is_refused(raw: bytes):
    """Each of 2,000 entries references the same 2,000 items: 70 kB would become four million
    objects.
    """
    count = 2000

    def change(tables: Values) -> None:
        entry = {"parent_offset": -1, "message": "", "metadata": []}
        tables["snapshots"] = [{**entry, "id": number.to_bytes(12, "big")} for number in range(count)]
        tables["snapshots"][0]["metadata"] = [{"name": "", "value": b""}] * count

    payload = payload_of(with_change(raw, change))
    assert len(parse_repo(NAME, with_payload(raw, payload)).snapshots) == count
    fields = [position_in_table(payload, table, METADATA_OF_ENTRY) for table in entry_positions(payload).values()]
    items = fields[0] + struct.unpack_from("<I", payload, fields[0])[0]
    for position in fields[1:]:
        struct.pack_into("<I", payload, position, items - position)
    with pytest.raises(FormatError, match="vectors that are larger than the file in total"):
        parse_repo(NAME, with_payload(raw, payload))


def test_metadata_name_may_be_referenced_by_many_entries(raw: bytes):
    """The library stores a name once for all snapshots."""
    long = "x" * 10_000

    def change(tables: Values) -> None:
        for number, entry in enumerate(tables["snapshots"]):
            entry["metadata"] = [{"name": "short" if number else long, "value": b"\1"}]

    payload = payload_of(with_change(raw, change))
    entries = list(entry_positions(payload).values())
    names = [name_position(payload, entry) for entry in entries]
    first = names[0] + struct.unpack_from("<I", payload, names[0])[0]
    for position in names[1:]:
        struct.pack_into("<I", payload, position, first - position)
    info = parse_repo(NAME, with_payload(raw, payload))
    assert [item.metadata for item in info.snapshots.values()] == [((long, b"\1"),)] * len(entries)


def name_position(payload: bytearray, entry: int) -> int:
    """Return the position of the name of the only metadata item of a snapshot."""
    field = position_in_table(payload, entry, METADATA_OF_ENTRY)
    slot = field + struct.unpack_from("<I", payload, field)[0] + 4
    return position_in_table(payload, slot + struct.unpack_from("<I", payload, slot)[0], 0)
