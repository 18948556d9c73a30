"""A lake kind that only tests use: a directory of JSON manifests, with branches.

`branches/<name>.json` contains `{"head": id}`. `manifests/<id>.json` is a commit: a line with the SHA-256 of the rest, and then
`{"parent": id or null, "at": time, "files": {name: bytes}}`. Names without an address are files in `data/`. History is never edited.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from gc_assets.config.models import LakeConfig
from gc_assets.config.rules import policy_row
from gc_assets.config.values import Duration
from gc_assets.core.errors import FormatError, LakeUnreadable
from gc_assets.core.graph import CommitGraph
from gc_assets.core.objects import Objects
from gc_assets.core.units import Cutoff
from gc_assets.lakes.entries import ENTRY_SCHEMA
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.kind import KindTable, LakeKind
from gc_assets.lakes.protocol import Claim, Commit, CommitSource, CommitState, Container, ContentRoot, FrozenRefs, Ref, Retention
from gc_assets.state.columns import LONG, STRING, column
from gc_assets.state.schemas import EXPIRY_PLAN, LAKE_REFS, REACHABLE_SNAPSHOTS, table

BRANCHES = table(
    "toy_branches",
    "lake",
    "All branches with the number of retained commits that they reach.",
    ("ref_name",),
    column("ref_name", STRING, "Branch."),
    column("commits", LONG, "Number of retained commits that it reaches."),
)


class ToyConfig(LakeConfig):
    kind: Literal["toy"]
    location: str
    keep: Duration = timedelta(days=30)

    def policy_rows(self, as_of: datetime) -> list[dict[str, Any]]:
        return [policy_row("keep", None, Cutoff(max_age=self.keep), as_of)]


def parse_manifest(where: str, raw: bytes) -> dict[str, Any]:
    """Parse a manifest. Raises `FormatError` if its digest differs."""
    digest, _, rest = raw.partition(b"\n")
    if digest.decode("ascii", "replace") != (found := hashlib.sha256(rest).hexdigest()):
        raise FormatError(f"{where}: expected bytes of SHA-256 {digest[:64]!r}, read {found}")
    return json.loads(rest)


class ToyLake:
    kind = "toy"

    def __init__(self, config: ToyConfig, objects: Objects) -> None:
        self.name, self._config, self._objects = config.name, config, objects
        self._at = config.location.rstrip("/")

    def freeze(self, as_of: datetime) -> FrozenRefs:
        refs, pinned = list[Ref](), list[ContentRoot]()
        for address, size, _ in sorted(self._objects.list(f"{self._at}/branches/")):
            try:
                head = json.loads(self._objects.read(address))["head"]
            except (OSError, ValueError, KeyError) as error:
                raise LakeUnreadable(f"lake {self.name}: branch {address} cannot be read: {error}") from error
            refs.append(Ref(address.rpartition("/")[2].removesuffix(".json"), "branch", head))
            pinned.append(ContentRoot(address, Kind.REF, is_container=False, size_bytes=size))
        claims = tuple(Claim(f"{self._at}/{folder}/") for folder in ("data", "manifests"))
        return FrozenRefs(self.name, self.kind, tuple(refs), (CommitSource(f"{self._at}/manifests/"),), claims, tuple(pinned))

    def commits(self, source: CommitSource) -> Iterator[Commit]:
        for address, size, _ in self._objects.list(source.address):
            try:
                document = parse_manifest(address, self._objects.read(address))
            except (OSError, FormatError) as error:
                raise LakeUnreadable(f"lake {self.name}: manifest {address} cannot be read: {error}") from error
            root = ContentRoot(address, Kind.MANIFEST, is_container=True, size_bytes=size)
            name, parents = address.rpartition("/")[2].removesuffix(".json"), (document["parent"],) if document["parent"] else ()
            yield Commit(name, parents, datetime.fromisoformat(document["at"]), (root,))

    def decode(self, container: Container, raw: bytes) -> pa.RecordBatch:
        files = parse_manifest(container.address, raw)["files"]
        row = {"kind": Kind.DATA, "is_container": False, "must_exist": True}
        rows = [
            {**row, "address": name if "://" in name else f"{self._at}/data/{name}", "size_bytes": size} for name, size in files.items()
        ]
        return pa.RecordBatch.from_pylist(rows, schema=ENTRY_SCHEMA)

    def retain(self, refs: FrozenRefs, commits: pa.Table, as_of: datetime, grace_cutoff: datetime) -> Retention:
        graph = CommitGraph.build(commits["commit_id"], commits["parents"], commits["committed_at"])
        names, counts = graph.reaching_refs({ref.ref_name: ref.head_commit_id or "" for ref in refs.refs})
        heads, rows = {ref.head_commit_id for ref in refs.refs}, list[dict[str, Any]]()
        for row, reaching, count in zip(commits.to_pylist(maps_as_pydicts="lossy"), names.to_pylist(), counts.to_pylist(), strict=True):
            young = row["committed_at"] >= (as_of - self._config.keep if count else grace_cutoff)
            state: CommitState = "retained" if young or row["commit_id"] in heads else "expired" if count else "dangling"
            rows.append({"commit_id": row["commit_id"], "state": state, "refs": reaching, "refs_count": count, "reason": f"{state} by age"})
        return Retention(pa.Table.from_pylist(rows, schema=REACHABLE_SNAPSHOTS.schema), EXPIRY_PLAN.schema.empty_table())


def branch_rows(tables: Mapping[str, pa.Table]) -> pa.Table:
    kept = [row["refs"] for row in tables[REACHABLE_SNAPSHOTS.name].to_pylist() if row["state"] == "retained"]
    commits = Counter(name for names in kept for name in names)
    names = tables[LAKE_REFS.name].column("ref_name").to_pylist()
    return pa.Table.from_pylist([{"ref_name": name, "commits": commits[name]} for name in names], schema=BRANCHES.schema)


def _open(config: ToyConfig, objects: Objects, storages: Sequence[str]) -> ToyLake:
    return ToyLake(config, objects)


BRANCH_TABLE = KindTable(BRANCHES, (LAKE_REFS, REACHABLE_SNAPSHOTS), branch_rows)
KIND = LakeKind("toy", "Toy", ToyConfig, _open, kind_tables=(BRANCH_TABLE,))


def write(root: Path, commit: str, parent: str | None, at: datetime, files: Mapping[str, bytes], branch: str | None = None) -> None:
    """Write a commit and its files at `at`, and move the branch to it."""
    for name, content in files.items():
        put(root / "data" / name, content, at)
    write_manifest(root, commit, parent, at, {name: len(content) for name, content in files.items()}, branch)


def write_manifest(root: Path, commit: str, parent: str | None, at: datetime, sizes: Mapping[str, int], branch: str | None = None) -> None:
    """Write a commit of existing files or of other addresses."""
    rest = json.dumps({"parent": parent, "at": at.isoformat(), "files": dict(sizes)}).encode()
    put(root / "manifests" / f"{commit}.json", hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest, at)
    if branch is not None:
        put(root / "branches" / f"{branch}.json", json.dumps({"head": commit}).encode(), at)


def put(path: Path, content: bytes, at: datetime) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (at.timestamp(), at.timestamp()))
