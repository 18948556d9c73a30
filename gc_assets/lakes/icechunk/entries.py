"""The objects that snapshots and chunk manifests name, as rows of `ENTRY_SCHEMA`, with all that the
format lets one verify.

Pure. Addresses are made from the container's own, which is `<repository>/<folder>/<id>`.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import FormatError
from gc_assets.lakes.entries import ENTRY_SCHEMA
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.icechunk.chunk_manifests import ChunkManifest, parse_chunk_manifest
from gc_assets.lakes.icechunk.ids import ID_CHARS, Ids, is_object_id, spell
from gc_assets.lakes.icechunk.snapshots import Snapshot, parse_snapshot
from gc_assets.lakes.protocol import Container

FOLDERS = {Kind.SNAPSHOT: "snapshots", Kind.CHUNK_MANIFEST: "manifests"}


def decode(container: Container, raw: bytes) -> pa.RecordBatch:
    """Returns the children of a snapshot or a chunk manifest, each once. Raises `FormatError`
    naming the container.
    """
    where = f"{container.kind} {container.address}"
    if container.kind not in FOLDERS:
        raise FormatError(f"{where}: expected a container of kind {' or '.join(FOLDERS)}; an Icechunk repository has no other")
    repository, object_id = _parts(where, container)
    if container.size_bytes is not None and container.size_bytes != len(raw):
        raise FormatError(f"{where}: expected {container.size_bytes:,} bytes, read {len(raw):,}; run again, or restore the file")
    if container.kind == Kind.SNAPSHOT:
        snapshot = parse_snapshot(where, raw)
        verify_id(where, object_id, snapshot.snapshot_id)
        return _snapshot_rows(repository, snapshot)
    manifest = parse_chunk_manifest(where, raw)
    verify_id(where, object_id, manifest.manifest_id)
    if container.expected_entries is not None and container.expected_entries != manifest.chunk_refs:
        raise FormatError(
            f"{where}: its snapshot promises {container.expected_entries:,} chunk references, found {manifest.chunk_refs:,}; "
            "restore the file from a backup"
        )
    return _manifest_rows(repository, manifest)


def verify_id(where: str, expected: str, found: str) -> None:
    """Raises `FormatError` where a file's bytes are those of another object."""
    if expected != found:
        raise FormatError(f"{where}: expected the object {expected}, found the bytes of {found}; restore the file from a backup")


def spellings(location: str) -> set[str]:
    """Returns every name that a virtual location may mean, so that each is protected.

    The library stores a URL. In it blanks and letters beyond ASCII are encoded, but a percent sign
    stays as it is. The library reads the percent-decoded path without query and fragment (observed
    with 1.1.21: `a b%20c.nc` is stored as `a%20b%20c.nc` and read as `a b c.nc`). Older writers
    stored what they were given.
    """
    path = location.split("?")[0].split("#")[0]
    names = {location, path}
    for name in (location, path):
        try:
            decoded = unquote_to_bytes(name).decode()
        except UnicodeDecodeError:
            continue  # a file with such a name has no key, and is kept for that
        if "\0" not in decoded:
            names.add(decoded)
    return names


def _parts(where: str, container: Container) -> tuple[str, str]:
    folder, _, object_id = container.address.rpartition("/")
    repository, _, name = folder.rpartition("/")
    if name != FOLDERS[container.kind] or not is_object_id(object_id):
        raise FormatError(f"{where}: expected an address like <repository>/{FOLDERS[container.kind]}/<object id>")
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
    # The first snapshot of a repository has none in spec v1; a log of that name would belong to it
    # all the same.
    log = {
        "address": f"{repository}/transactions/{snapshot.snapshot_id}",
        "kind": Kind.TRANSACTION_LOG,
        "is_container": False,
        "must_exist": False,
    }
    return pa.RecordBatch.from_pylist([*manifests, log], schema=ENTRY_SCHEMA)


def _manifest_rows(repository: str, manifest: ChunkManifest) -> pa.RecordBatch:
    chunks = chunk_addresses(f"{repository}/chunks/", manifest.chunk_ids)
    if not len(manifest.locations):  # most manifests, of which there may be very many small ones
        addresses, kinds = chunks, pa.repeat(Kind.CHUNK, len(chunks))
    else:
        virtual = _virtual_addresses(manifest.locations)
        addresses = pa.concat_arrays([chunks, virtual])
        kinds = pa.concat_arrays([pa.repeat(Kind.CHUNK, len(chunks)), pa.repeat(Kind.VIRTUAL_CHUNK, len(virtual))])
    count = len(addresses)
    columns = {
        "address": addresses,
        "kind": kinds,
        "is_container": pa.repeat(pa.scalar(False), count),
        "must_exist": pa.repeat(pa.scalar(True), count),
    }
    arrays = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in ENTRY_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=ENTRY_SCHEMA)


def chunk_addresses(prefix: str, ids: Ids) -> pa.StringArray:
    """Returns `<prefix><id>` for every id, built in one block of characters."""
    start = np.frombuffer(prefix.encode(), np.uint8)
    characters = np.empty((len(ids), len(start) + ID_CHARS), np.uint8)
    characters[:, : len(start)] = start
    characters[:, len(start) :] = spell(ids)
    offsets = np.arange(len(ids) + 1, dtype=np.int64) * (len(start) + ID_CHARS)
    if offsets[-1] > np.iinfo(np.int32).max:
        raise FormatError(f"{prefix}: one manifest names {len(ids):,} chunks here; a batch holds 2 GiB of addresses at most")
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(characters))


def _virtual_addresses(locations: pa.StringArray) -> pa.StringArray:
    """Returns the locations, and every spelling of those that could be read in more than one way."""
    doubtful = pc.match_substring_regex(locations, "[%?#]")
    plain = locations.filter(pc.invert(doubtful))
    spelled = sorted({name for location in locations.filter(doubtful).to_pylist() for name in spellings(location)})
    return pc.unique(pa.concat_arrays([plain, pa.array(spelled, pa.string())]))
