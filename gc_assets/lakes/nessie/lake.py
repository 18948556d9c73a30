"""The Nessie lake, which contains the Iceberg tables and views in all refs of one server.

The content roots of a commit are the metadata files that its put operations record. Retained
commits and the complete states at some of them determine the live contents (module `retention`).
Metadata files are read as in Iceberg lakes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from gc_assets.core.errors import FormatError, LakeUnreadable, UndecodedTable
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.iceberg import manifests
from gc_assets.lakes.iceberg.unread_locations import absolute_locations, read_locations
from gc_assets.lakes.nessie import branches
from gc_assets.lakes.nessie.client import NessieClient
from gc_assets.lakes.nessie.commits import CONCURRENT_REQUESTS, read_commits
from gc_assets.lakes.nessie.config import NessieLakeConfig
from gc_assets.lakes.nessie.metadata_rows import table_rows, view_rows
from gc_assets.lakes.nessie.models import Reference
from gc_assets.lakes.nessie.retention import TOTAL_COMMITS, retain
from gc_assets.lakes.protocol import (
    PROTECTED,
    Claim,
    Commit,
    CommitSource,
    Container,
    ExpiryAction,
    ExpiryOutcome,
    FrozenRefs,
    Ref,
    RefType,
    Retention,
    decode_or_error,
)

# Keys in the properties of the lake's only source.
_HEADS = "heads"
_NO_ANCESTOR = "no_ancestor"
# A user waits for access checks, so pauses between attempts are limited to this.
_ACCESS_WAIT_SECONDS = 1.0
_TYPES: dict[str, RefType] = {"BRANCH": "branch", "TAG": "tag"}


class NessieLake:
    """A lake on one Nessie server.

    Each call opens and closes connections of its own, so the lake is picklable. The token is not
    pickled, because only the driver connects to the server.
    """

    kind = "nessie"

    def __init__(self, config: NessieLakeConfig) -> None:
        self.name = config.name
        self._config = config

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_config": self._config.model_copy(update={"token": None})}

    def check_access(self) -> None:
        """Read the server's settings. Raises `LakeUnreadable` if that fails."""
        with NessieClient(
            self.name, self._config.uri, self._config.token, max_wait=_ACCESS_WAIT_SECONDS, read_seconds=self._config.read_seconds
        ) as client:
            client.get_config()

    def freeze(self, as_of: datetime) -> FrozenRefs:  # noqa: ARG002 - part of the protocol; refs are pinned now
        """Read every branch and tag, with the hash of its head.

        Raises:
            LakeUnreadable: If a call fails. The message contains the call.
        """
        with self._client() as client:
            server = client.get_config()
            references = sorted(client.list_references(), key=lambda reference: (reference.name != server.default_branch, reference.name))
        refs = tuple(_protect(_ref(reference, server.no_ancestor), server.default_branch) for reference in references)
        heads = list(dict.fromkeys(ref.head_commit_id for ref in refs if ref.head_commit_id is not None))
        source = CommitSource(self._config.uri, properties={_HEADS: json.dumps(heads), _NO_ANCESTOR: server.no_ancestor})
        return FrozenRefs(
            lake=self.name,
            kind=self.kind,
            refs=refs,
            sources=(source,) if heads else (),
            claims=tuple(Claim(prefix.rstrip("/") + "/") for prefix in self._config.claims),
            pinned=(),
            notes=() if heads else (f"lake {self.name}: no ref has any commits, so the lake has no live files",),
        )

    def verify_deleted(self, names: Collection[str]) -> None:
        """Verify that refs no longer listed by the server do not exist.

        Raises:
            LakeUnreadable: If the server still has one of the refs or denies access to it.
        """
        with self._client() as client, ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
            ordered = sorted(names)
            for name, exists in zip(ordered, pool.map(client.has_ref, ordered), strict=True):
                if exists:
                    raise LakeUnreadable(
                        f"lake {self.name}: the server has a ref {name}, which an earlier run listed, but does not list it now. The "
                        "files of that ref would be planned for deletion. Run again, or grant VIEW_REFERENCE on every ref"
                    )

    def commits(self, source: CommitSource) -> Iterator[Commit]:
        """Yield every commit in the logs of the heads in `source`.

        Raises:
            LakeUnreadable: If a call fails, or a log is inconsistent.
        """
        yield from self.new_commits(source, frozenset())

    def new_commits(self, source: CommitSource, known: Collection[str], previous_heads: Collection[str] = ()) -> Iterator[Commit]:
        """Yield the commits in the logs of the heads in `source` that are not in `known`.

        If a commit in `previous_heads` still exists, its log is read as well. Only first parents
        are followed. The number of requests depends on the number of new commits and of
        `previous_heads`.
        """
        heads, no_ancestor = json.loads(source.properties[_HEADS]), source.properties[_NO_ANCESTOR]
        with self._client() as client:
            yield from read_commits(self.name, client, heads, no_ancestor, known, previous_heads)

    def decode(self, container: Container, raw: bytes) -> pa.RecordBatch:
        """Decode a metadata file, manifest list or manifest into the files that it references.

        Raises:
            UndecodedTable: If a metadata file is damaged or has an unknown version.
            FormatError: If another container is damaged. The message contains its address.
        """
        if container.kind in manifests.KINDS:
            return manifests.decode(container, raw)
        rows = decode_or_error(self._decode_metadata, container, raw)
        if isinstance(rows, FormatError):
            raise UndecodedTable(rows, absolute_locations(read_locations(raw))) from rows
        return rows

    def _decode_metadata(self, container: Container, raw: bytes) -> pa.RecordBatch:
        if container.kind == Kind.VIEW_METADATA:
            return view_rows(container, raw)
        return table_rows(container, raw, self._config.keep_listed_snapshots)

    def decode_many(self, containers: Sequence[tuple[Container, bytes]]) -> list[pa.RecordBatch | FormatError]:
        of_iceberg = [number for number, (container, _) in enumerate(containers) if container.kind in manifests.KINDS]
        found = dict(zip(of_iceberg, manifests.decode_many([containers[number] for number in of_iceberg]), strict=True))
        return [found[number] if number in found else decode_or_error(self.decode, *item) for number, item in enumerate(containers)]

    def retain(self, refs: FrozenRefs, commits: pa.Table, as_of: datetime, grace_cutoff: datetime) -> Retention:
        """Apply the configured cut-offs at `as_of`, and find the live contents."""
        return retain(refs, commits, as_of, grace_cutoff, self._config)

    def delete_branches(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Delete idle branches. The server checks that they still have the planned heads."""
        with self._client() as client:
            yield from branches.delete_branches(client, actions)

    def recreate_branches(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Recreate deleted branches at their old heads."""
        with self._client() as client:
            yield from branches.create_branches(client, actions)

    def _client(self) -> NessieClient:
        return NessieClient(self.name, self._config.uri, self._config.token, read_seconds=self._config.read_seconds)


def _protect(ref: Ref, default_branch: str) -> Ref:
    reason = branches.find_protection(ref.ref_name, default_branch) if ref.ref_type == "branch" else None
    return ref if reason is None else replace(ref, properties={**ref.properties, PROTECTED: reason})


def _ref(reference: Reference, no_ancestor: str) -> Ref:
    total = reference.metadata.total_commits if reference.metadata is not None else None
    return Ref(
        reference.name,
        _TYPES[reference.type],
        None if reference.hash == no_ancestor else reference.hash,
        properties={} if total is None else {TOTAL_COMMITS: str(total)},
    )
