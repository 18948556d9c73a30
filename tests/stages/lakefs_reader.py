"""Read the objects of a repository from the disk by the addresses in its SSTables, like a client."""

from __future__ import annotations

from pathlib import Path

from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.protocol import Container
from gc_assets.stores.local.objects import LocalObjects
from tests.stages.lakehouse import Lakehouse


def unreadable_paths(house: Lakehouse, lake: str = "ml") -> set[str]:
    """Return paths of retained commits of the last mark whose objects are unreadable. At least one is readable."""
    reader = house.run_context().lake(lake)
    kept = house.commits("retained", lake)
    roots = {root["address"] for row in house.rows("commit_graph", lake) if row["commit_id"] in kept for root in row["content_roots"]}
    pending = [Container(address, Kind.METARANGE) for address in roots]
    lost: set[str] = set()
    read = 0
    while pending:
        container = pending.pop()
        for row in reader.decode(container, LocalObjects().read(container.address)).to_pylist():
            if row["is_container"]:
                pending.append(Container(row["address"], row["kind"], None, row["expected_entries"]))
            elif row["must_exist"]:
                found = _bytes(row["address"])
                read += found
                lost |= set() if found else {row["path"]}
    assert read, "no retained object exists"
    return lost


def _bytes(address: str) -> int:
    path = Path(address.removeprefix("file://"))
    return len(path.read_bytes()) if path.is_file() else 0
