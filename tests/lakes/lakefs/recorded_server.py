"""The fake server in the state of a recording: refs, listings, rules and dump."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from gc_assets.lakes.lakefs.metaranges import read_metarange
from gc_assets.lakes.lakefs.ranges import read_range
from tests.lakes.lakefs.fake_server import Branch, Commit, FakeObject, FakeRepository
from tests.lakes.lakefs.recordings import SERVER_ROOT, Recording


def answers(recording: Recording, subject: str) -> list[Any]:
    return [exchange["response"]["body"] for exchange in recording.exchanges(subject) if exchange["response"]["status"] < 300]


def recorded_repository(recording: Recording, namespace: Path) -> FakeRepository:
    """Return the repository at the time of the recording, over a copy of its namespace."""
    summary = next(body for body in answers(recording, "repository") if "storage_namespace" in body)
    repository = FakeRepository(summary["id"], namespace, SERVER_ROOT, summary["read_only"], summary["creation_date"])
    repository.rules = answers(recording, "gc_rules")[0]
    repository.dumped = next(body["refs"] for body in answers(recording, "dump") if body.get("done"))
    for body in answers(recording, "commits"):
        repository.commits[body["id"]] = Commit(
            body["id"], body["parents"], body["creation_date"], body["meta_range_id"], body["version"], body["generation"], body["message"]
        )
        repository.trees[body["id"]] = _tree(recording, body["meta_range_id"])
    repository.tags = {item["id"]: item["commit_id"] for body in answers(recording, "tags") for item in body["results"]}
    listings = _listings(recording)
    hidden = {item["id"] for item in _branches(recording, hidden=True)} - {item["id"] for item in _branches(recording, hidden=False)}
    changed = _changed_paths(recording)
    for item in _branches(recording, hidden=True):
        branch = Branch(item["commit_id"], hidden=item["id"] in hidden)
        repository.branches[item["id"]] = branch
        if item["id"] not in listings:
            continue
        seen, head = listings[item["id"]], repository.trees[branch.head]
        for path, listed in seen.items():
            if path not in head or head[path].address != listed.address:
                listed.is_change = (item["id"], path) in changed
                branch.staged[path] = listed
            else:
                head[path].checksum = listed.checksum
        branch.staged |= dict.fromkeys(head.keys() - seen.keys())
    _fill_unlisted(recording, repository, listings)
    return repository


def _branches(recording: Recording, *, hidden: bool) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for exchange in recording.exchanges("branches"):
        query_of = exchange["request"]["query"].get("show_hidden") == "true"
        if exchange["request"]["path"].endswith("/branches") and query_of == hidden:
            found |= {item["id"]: item for item in exchange["response"]["body"]["results"]}
    return list(found.values())


def _listings(recording: Recording) -> dict[str, dict[str, FakeObject]]:
    found: dict[str, dict[str, FakeObject]] = {}
    for exchange in recording.exchanges("objects"):
        ref = exchange["request"]["path"].split("/refs/")[1].split("/")[0]
        for row in exchange["response"]["body"]["results"]:
            address = _entry_address(recording.name, row["physical_address"])
            found.setdefault(ref, {})[row["path"]] = FakeObject(row["path"], address, row["size_bytes"], row["mtime"], row["checksum"])
    return found


def _entry_address(name: str, listed: str) -> str:
    """Return the address in the entry for an address in the listing."""
    own, full = f"local://{SERVER_ROOT}/{name}/", f"local://{SERVER_ROOT}"
    return listed.removeprefix(own) if listed.startswith(own) else f"local://{listed.removeprefix(full)}"


def _changed_paths(recording: Recording) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for exchange in recording.exchanges("staging_diff"):
        branch = exchange["request"]["path"].split("/branches/")[1].split("/")[0]
        found |= {(branch, row["path"]) for row in exchange["response"]["body"]["results"]}
    return found


def _tree(recording: Recording, metarange_id: str) -> dict[str, FakeObject]:
    tree: dict[str, FakeObject] = {}
    for item in read_metarange("recorded", metarange_id, recording.metadata(metarange_id)) if metarange_id else ():
        tree |= _objects(recording, item.range_id)
    return tree


@cache
def _objects(recording: Recording, range_id: str) -> dict[str, FakeObject]:
    """Return the objects of a range, which is cached for all commits and tests."""
    rows = read_range("recorded", range_id, recording.metadata(range_id))
    columns = [rows.column(name) for name in ("path", "address", "size_bytes")]
    seconds = rows.column("written_at").cast(pa.int64()).to_numpy() // 1_000_000
    values = zip(*(column.to_pylist() for column in columns), seconds.tolist(), strict=True)
    return {path: FakeObject(path, address, size, written) for path, address, size, written in values}


def _fill_unlisted(recording: Recording, repository: FakeRepository, listings: dict[str, dict[str, FakeObject]]) -> None:
    """Add the staged objects of branches without a recorded listing, from the recorded list of files."""
    for row in recording.files():
        for name in filter(None, row["staged_on"]):
            if name not in listings:
                listed = FakeObject(row["path"], row["key"], int(row["size"]), int(row["last_modified"]))
                repository.branches[name].staged[row["path"]] = listed
