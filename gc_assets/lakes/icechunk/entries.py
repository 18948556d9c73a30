"""Decode snapshots and chunk manifests into rows of `ENTRY_SCHEMA`.

All functions are pure. They verify every count, size and id that the format records. Children are
the objects that a container references. Their addresses are derived from the address of the
container, which is `<repository>/<folder>/<id>`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import FormatError
from gc_assets.lakes.entries import ENTRY_SCHEMA
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.icechunk import envelope
from gc_assets.lakes.icechunk.chunk_manifests import ChunkManifest, parse_chunk_manifest
from gc_assets.lakes.icechunk.ids import ID_CHARS, Ids, is_object_id, spell
from gc_assets.lakes.icechunk.snapshots import Snapshot, parse_snapshot
from gc_assets.lakes.icechunk.virtual_locations import virtual_addresses
from gc_assets.lakes.protocol import Container, NamedPrefixes

FOLDERS = {Kind.SNAPSHOT: "snapshots", Kind.CHUNK_MANIFEST: "manifests"}


def decode(container: Container, raw: bytes, chunk_containers: NamedPrefixes | None = None) -> pa.RecordBatch:
    """Decode a snapshot or chunk manifest into the distinct objects that it references.

    Args:
        container: The snapshot or manifest.
        raw: Its content.
        chunk_containers: The repository's virtual chunk containers, if known.

    Raises:
        FormatError: If the container is damaged, its size or count is not the expected one, or a
            location refers to an unknown virtual chunk container.
    """
    source = f"{container.kind} {container.address}"
    if container.kind not in FOLDERS:
        raise FormatError(f"{source}: expected a container of kind {' or '.join(FOLDERS)}; Icechunk has no others")
    repository, object_id = _parts(source, container)
    if container.size_bytes is not None and container.size_bytes != len(raw):
        raise FormatError(f"{source}: expected {container.size_bytes:,} bytes, read {len(raw):,}; run again, or restore the file")
    if container.kind == Kind.SNAPSHOT:
        snapshot = parse_snapshot(source, raw, envelope.SPEC_V1_AND_V2)
        verify_id(source, object_id, snapshot.snapshot_id)
        return _snapshot_rows(repository, snapshot)
    manifest = parse_chunk_manifest(source, raw)
    verify_id(source, object_id, manifest.manifest_id)
    if container.expected_entries is not None and container.expected_entries != manifest.chunk_refs:
        raise FormatError(
            f"{source}: its snapshot records {container.expected_entries:,} chunk references, found {manifest.chunk_refs:,}; "
            "restore the file from a backup"
        )
    return _manifest_rows(source, repository, manifest, chunk_containers)


def verify_id(source: str, expected: str, found: str) -> None:
    """Raise `FormatError` if the id in a file (`found`) differs from that in its name (`expected`)."""
    if expected != found:
        raise FormatError(f"{source}: expected the object {expected}, found the content of {found}; restore the file from a backup")


def _parts(source: str, container: Container) -> tuple[str, str]:
    folder, _, object_id = container.address.rpartition("/")
    repository, _, name = folder.rpartition("/")
    if name != FOLDERS[container.kind] or not is_object_id(object_id):
        raise FormatError(f"{source}: expected an address like <repository>/{FOLDERS[container.kind]}/<object id>")
    return repository, object_id


def _snapshot_rows(repository: str, snapshot: Snapshot) -> pa.RecordBatch:
    manifests = [
        {
            "address": f"{repository}/manifests/{item.manifest_id}",
            "kind": Kind.CHUNK_MANIFEST,
            "is_container": True,
            "size_bytes": item.size_bytes,
            "expected_entries": item.chunk_refs,
            "must_exist": True,
        }
        for item in snapshot.manifest_files
    ]
    # In spec version 1, the first snapshot of a repository has no transaction log. Any log with the
    # snapshot's name would belong to it, however.
    log = {
        "address": f"{repository}/transactions/{snapshot.snapshot_id}",
        "kind": Kind.TRANSACTION_LOG,
        "is_container": False,
        "must_exist": False,
    }
    return pa.RecordBatch.from_pylist([*manifests, log], schema=ENTRY_SCHEMA)


def _manifest_rows(source: str, repository: str, manifest: ChunkManifest, chunk_containers: NamedPrefixes | None) -> pa.RecordBatch:
    chunks = chunk_addresses(f"{repository}/chunks/", manifest.chunk_ids)
    if not len(manifest.locations):  # Most manifests have no locations, and there may be many small manifests.
        addresses, kinds = chunks, pa.repeat(Kind.CHUNK, len(chunks))
    else:
        found = virtual_addresses(source, manifest.locations, chunk_containers)
        used = pa.array([] if chunk_containers is None else list(map(chunk_containers.reference, found.names.to_pylist())), pa.string())
        groups = (
            (Kind.CHUNK, chunks),
            (Kind.VIRTUAL_CHUNK, found.files),
            (Kind.POSSIBLE_OBJECT, found.possible),
            (Kind.NAMED_PREFIX, used),
        )
        addresses = pa.concat_arrays([group for _, group in groups])
        kinds = pa.concat_arrays([pa.repeat(kind, len(group)) for kind, group in groups])
    count = len(addresses)
    # The sizes of virtual files are unknown, because a reference may read only a part of one.
    size_bytes = np.concatenate((manifest.chunk_bytes, np.zeros(count - len(chunks), np.int64)))
    columns = {
        "address": addresses,
        "kind": kinds,
        "is_container": pa.repeat(pa.scalar(False), count),
        "size_bytes": pa.array(size_bytes, mask=size_bytes == 0),
        "must_exist": pc.not_equal(kinds, Kind.POSSIBLE_OBJECT),
    }
    arrays = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in ENTRY_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)


def chunk_addresses(prefix: str, ids: Ids) -> pa.StringArray:
    """Build the address `<prefix><id>` of every chunk."""
    start = np.frombuffer(prefix.encode(), np.uint8)
    characters = np.empty((len(ids), len(start) + ID_CHARS), np.uint8)
    characters[:, : len(start)] = start
    characters[:, len(start) :] = spell(ids)
    offsets = np.arange(len(ids) + 1, dtype=np.int64) * (len(start) + ID_CHARS)
    if offsets[-1] > np.iinfo(np.int32).max:
        raise FormatError(f"{prefix}: one manifest references {len(ids):,} chunks, but a batch holds at most 2 GiB of addresses")
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(characters))
