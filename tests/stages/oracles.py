"""Find live files and garbage by brute force, with json, fastavro, struct and the library of Icechunk.

Shares no code with the project on purpose: implements the rules a second time, lists files with `os.walk` and caches nothing.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fastavro
import icechunk
import zstandard

DAY_MS = 24 * 3600 * 1000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HEADER_BYTES = 39
CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
FOLDERS = ("snapshots", "manifests", "transactions", "chunks")


@dataclass(frozen=True)
class Verdict:
    """Paths of live files (optional files included), orphans with their reasons, and ids of retained snapshots."""

    live: set[str]
    orphans: dict[str, str]
    retained: set[str]


def old_files(folder: str | Path, grace_cutoff: datetime) -> Iterator[str]:
    for directory, _, names in os.walk(folder):
        for path in (Path(directory, name) for name in names):
            if datetime.fromtimestamp(path.stat().st_mtime, UTC) < grace_cutoff:
                yield str(path)


# The directory that contains a copy of the files of an address.
LOCAL_FOLDERS: dict[str, str] = {"file://": ""}


def local_path(address: str) -> str:
    """Return the local path of an address."""
    place, folder = next(item for item in LOCAL_FOLDERS.items() if address.startswith(item[0]))
    return f"{folder}{address.removeprefix(place)}"


def iceberg_tables(catalog: Path) -> dict[str, str]:
    """Map each table to the path of its current metadata.json, from the database of the catalog."""
    with closing(sqlite3.connect(catalog)) as database:
        rows = database.execute("select table_namespace, table_name, metadata_location from iceberg_tables").fetchall()
    return {f"{namespace}.{name}": local_path(address) for namespace, name, address in rows}


def iceberg_verdict(metadata: str, as_of: datetime, grace_cutoff: datetime) -> Verdict:
    table = json.loads(Path(metadata).read_bytes())
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in table.get("snapshots", [])}
    collected = table["properties"].get("gc.enabled", "true") == "true"
    retained = iceberg_retained(table, as_of, grace_cutoff) if collected else set(snapshots)
    live = {metadata, str(Path(metadata).with_name("version-hint.text"))}
    live |= {local_path(entry["metadata-file"]) for entry in table.get("metadata-log", [])}
    gone: set[str] = set()
    for snapshot_id, snapshot in snapshots.items():
        (live if snapshot_id in retained else gone).update(iceberg_files(snapshot))
    for statistics in [*table.get("statistics", []), *table.get("partition-statistics", [])]:
        dead = statistics["snapshot-id"] in set(snapshots) - retained
        (gone if dead else live).add(local_path(statistics["statistics-path"]))
    swept = old_files(local_path(table["location"]), grace_cutoff) if collected else ()
    orphans = {path: "expired" if path in gone else "unreferenced" for path in swept if path not in live}
    return Verdict(live, orphans, {str(snapshot_id) for snapshot_id in retained})


def iceberg_retained(table: Mapping[str, Any], as_of: datetime, grace_cutoff: datetime) -> set[int]:
    """The six steps of Iceberg's `RemoveSnapshots`, then the grace period."""
    now = (as_of - EPOCH) // timedelta(milliseconds=1)
    stamps = {snapshot["snapshot-id"]: snapshot["timestamp-ms"] for snapshot in table.get("snapshots", [])}
    parents = {snapshot["snapshot-id"]: snapshot.get("parent-snapshot-id") for snapshot in table.get("snapshots", [])}

    def setting(ref: Mapping[str, Any], name: str, default: int) -> int:
        return int(ref.get(name, table["properties"].get(f"history.expire.{name}", default)))

    refs = {
        name: ref
        for name, ref in table.get("refs", {}).items()
        if name == "main" or now - stamps[ref["snapshot-id"]] <= setting(ref, "max-ref-age-ms", 2**63 - 1)
    }
    retained = {ref["snapshot-id"] for ref in refs.values()}
    referenced = set(retained)
    for ref in refs.values():
        if ref["type"] == "tag":
            continue
        oldest = now - setting(ref, "max-snapshot-age-ms", 5 * DAY_MS)
        walk = list(ancestry(parents, ref["snapshot-id"]))
        referenced.update(walk)
        for nth, ancestor in enumerate(walk):
            if nth >= setting(ref, "min-snapshots-to-keep", 1) and stamps[ancestor] < oldest:
                break
            retained.add(ancestor)
    oldest = now - setting({}, "max-snapshot-age-ms", 5 * DAY_MS)
    retained |= {name for name, stamp in stamps.items() if name not in referenced and stamp >= oldest}
    grace_ms = (grace_cutoff - EPOCH) // timedelta(milliseconds=1)
    return retained | {name for name, stamp in stamps.items() if stamp >= grace_ms}


def iceberg_files(snapshot: Mapping[str, Any]) -> Iterator[str]:
    """Yield the manifest list, its manifests, and the files of their entries that are not deleted."""
    yield local_path(snapshot["manifest-list"])
    for manifest in avro(local_path(snapshot["manifest-list"])):
        yield local_path(manifest["manifest_path"])
        yield from (
            local_path(entry["data_file"]["file_path"]) for entry in avro(local_path(manifest["manifest_path"])) if entry["status"] != 2
        )


def avro(path: str) -> list[Any]:
    with Path(path).open("rb") as source:
        return list(fastavro.reader(source))


def ancestry(parents: Mapping[Any, Any], head: Any) -> Iterator[Any]:
    """Yield the head and its listed ancestors."""
    while head in parents:
        yield head
        head = parents[head]


def reachable_from(parents: Mapping[str, str | None], heads: Iterable[str]) -> set[str]:
    return {snapshot for head in heads for snapshot in ancestry(parents, head)}


def icechunk_verdict(path: Path, max_age: timedelta | None, as_of: datetime, grace_cutoff: datetime) -> Verdict:
    """Apply one cut-off to all refs (None: keep all), and keep files in the grace period with their edited ancestry."""
    repo = icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))
    infos = {file.name: next(iter(repo.ancestry(snapshot_id=file.name))) for file in (path / "snapshots").iterdir()}
    parents = {name: info.parent_id for name, info in infos.items()}
    times = {name: info.written_at for name, info in infos.items()}
    heads = [*map(repo.lookup_branch, repo.list_branches()), *map(repo.lookup_tag, repo.list_tags())]
    cutoff = EPOCH if max_age is None else as_of - max_age
    now = reachable_from(parents, heads)
    edited = expired_by_the_document(parents, times, heads, cutoff)
    kept = reachable_from(edited, heads)
    young = [name for name in infos if name not in kept and (times[name] >= grace_cutoff or (name not in now and times[name] >= cutoff))]
    retained = kept | reachable_from(edited, young)

    def files(snapshots: set[str]) -> set[str]:
        names = {f"{folder}/{name}" for name in snapshots for folder in ("snapshots", "transactions")}
        manifests = {manifest.id for name in snapshots for manifest in infos[name].manifests}
        names |= {f"manifests/{manifest}" for manifest in manifests}
        names |= {f"chunks/{chunk}" for manifest in manifests for chunk in chunk_ids((path / "manifests" / manifest).read_bytes())}
        return {str(path / name) for name in names}

    refs = {str(Path(directory, name)) for directory, _, names in os.walk(path / "refs") for name in names}
    live = files(retained) | refs | {str(path / "config.yaml")}
    gone = files(now - retained)
    swept = (item for folder in FOLDERS for item in old_files(path / folder, grace_cutoff))
    return Verdict(live, {item: "expired" if item in gone else "unreferenced" for item in swept if item not in live}, retained)


def expired_by_the_document(
    parents: Mapping[str, str | None], times: Mapping[str, datetime], heads: Iterable[str], cutoff: datetime
) -> Mapping[str, str | None]:
    """The history after the four steps of icechunk's `007-basic-expiration.md`, ref by ref, in the order of the document."""
    edited = dict(parents)
    for head in heads:
        if times[head] < cutoff:
            continue
        walk = list(ancestry(edited, head))
        editable = [snapshot for snapshot in walk if times[snapshot] >= cutoff][-1]
        if editable != walk[-1]:
            edited[editable] = walk[-1]
    return edited


def chunk_ids(raw: bytes) -> set[str]:
    """The native chunks of a manifest, table by table and field by field (flatbuffers' own words: root, vtable, vector)."""
    data = zstandard.ZstdDecompressor().decompressobj().decompress(raw[HEADER_BYTES:])

    def number(form: str, at: int) -> int:
        return struct.unpack_from(form, data, at)[0]

    def field(table: int, index: int) -> int | None:
        vtable = table - number("<i", table)
        if 4 + 2 * index >= number("<H", vtable):
            return None
        offset = number("<H", vtable + 4 + 2 * index)
        return table + offset if offset else None

    def tables(at: int) -> list[int]:
        vector = at + number("<I", at)
        places = range(vector + 4, vector + 4 + 4 * number("<I", vector), 4)
        return [place + number("<I", place) for place in places]

    ids = set()
    for array in tables(field(number("<I", 0), 1)):
        for reference in tables(field(array, 1)):
            chunk = field(reference, 4)
            if chunk is not None:
                bits = int.from_bytes(data[chunk : chunk + 12], "big") << 4
                ids.add("".join(CROCKFORD[bits >> shift & 31] for shift in range(95, -1, -5)))
    return ids
