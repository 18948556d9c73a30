"""Mark and sweep one repository with the lake, without Spark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.icechunk.lake import IcechunkLake
from gc_assets.lakes.protocol import REMOVE_SNAPSHOT, Container, ContentRoot
from tests.lakes.icechunk.icechunk_lakes import FAR_FUTURE, commits_of, graph_of


@dataclass(frozen=True)
class Mark:
    """Result of a mark and sweep.

    Attributes:
        live: Addresses of live files by kind.
        garbage: Paths of the files in claims that are not live.
    """

    live: dict[str, set[str]]
    garbage: set[Path]


FOLDERS = ("snapshots", "manifests", "chunks", "transactions")


def mark(lake: IcechunkLake, as_of: datetime, grace_cutoff: datetime = FAR_FUTURE, *, keep_listed: bool = False) -> Mark:
    """Return the live files, and the others in the claims of the lake regardless of their age.

    Args:
        keep_listed: If True, the files of snapshots that are to be removed from `repo` are live, as in an apply.
    """
    refs = lake.freeze(as_of)
    if refs.named_prefixes is not None:
        lake = lake.with_prefixes(refs.named_prefixes)
    commits = commits_of(lake, refs)
    retention = lake.retain(refs, graph_of(commits), as_of, grace_cutoff)
    retained = {row["commit_id"] for row in retention.reachable.to_pylist() if row["state"] == "retained"}
    if keep_listed:
        retained |= {row["snapshot_id"] for row in retention.expiry.to_pylist() if row["action"] == REMOVE_SNAPSHOT}
    roots = [*refs.pinned, *(root for commit in commits if commit.commit_id in retained for root in commit.content_roots)]
    live = walk(lake, roots)
    addresses = set[str]().union(*live.values())
    claimed = [path for claim in refs.claims if claim.collect for path in Path(claim.address.removeprefix("file://")).glob("*")]
    return Mark(live, {path for path in claimed if f"file://{path}" not in addresses})


def walk(lake: IcechunkLake, roots: Iterable[ContentRoot]) -> dict[str, set[str]]:
    """Return the roots and all files under them by kind. A file that must exist does."""
    found: dict[str, set[str]] = {}
    seen: set[str] = set()
    pending: list[dict[str, Any]] = [
        {
            "address": root.address,
            "kind": root.kind,
            "is_container": root.is_container,
            "size_bytes": root.size_bytes,
            "must_exist": root.must_exist,
        }
        for root in roots
    ]
    while pending:
        row = pending.pop()
        address = row["address"]
        if address in seen:
            continue
        seen.add(address)
        found.setdefault(row["kind"], set()).add(address)
        if row["kind"] in {Kind.VIRTUAL_CHUNK, Kind.POSSIBLE_OBJECT, Kind.NAMED_PREFIX}:
            continue
        path = Path(address.removeprefix("file://"))
        assert path.exists() or not row["must_exist"], f"{address} is missing"
        if row["is_container"]:
            container = Container(address, row["kind"], row["size_bytes"], row.get("expected_entries"))
            pending += lake.decode(container, path.read_bytes()).to_pylist()
    return found
