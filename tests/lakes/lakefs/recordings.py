"""The recorded repositories of a real lakeFS server (tests/data/lakefs/README.md)."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.lakefs.containers import decode
from gc_assets.lakes.protocol import Container

DATA = Path(__file__).parents[2] / "data" / "lakefs"
NAMES = ("basic", "lifecycle", "many")
SERVER_ROOT = "/lakefs-blockstore"


@dataclass(frozen=True)
class Recording:
    """A recorded repository. `namespace` is unpacked once for all tests, which must not change it."""

    name: str

    @cached_property
    def expected(self) -> dict[str, Any]:
        return json.loads((DATA / self.name / "expected.json").read_text())

    @cached_property
    def namespace(self) -> Path:
        return _unpack_namespace(self.name)

    @property
    def location(self) -> str:
        return f"file://{self.namespace}/"

    def unpack(self, folder: Path) -> Path:
        """Unpack a writable copy of the namespace with its file times to `<folder>/<name>`."""
        target = folder / self.name
        archive = next((DATA / self.name).glob("namespace.tar.*"))
        opened = lzma.open if archive.suffix == ".xz" else gzip.open
        target.mkdir(parents=True)
        with opened(archive) as content:
            # Python's tarfile takes ten seconds for the 22,000 files of the largest recording.
            subprocess.run(["tar", "--extract", "--no-same-owner", "--directory", target], input=content.read(), check=True)
        return target

    def files(self) -> list[dict[str, Any]]:
        """Return the recorded files: key, path, size, last_modified, staged_on and more."""
        if "objects" in self.expected:
            return self.expected["objects"]
        with gzip.open(DATA / self.name / "objects.csv.gz", "rt", newline="") as lines:
            return [{**row, "staged_on": row["staged_on"].split()} for row in csv.DictReader(lines)]

    def exchanges(self, subject: str) -> list[dict[str, Any]]:
        """Return recorded requests with their responses."""
        path = DATA / self.name / "rest" / f"{subject}.json"
        return json.loads(path.read_text() if path.exists() else gzip.decompress(path.with_suffix(".json.gz").read_bytes()))

    def metadata(self, object_id: str) -> bytes:
        return (self.namespace / "_lakefs" / object_id).read_bytes()

    def tables(self) -> Iterator[tuple[str, bytes]]:
        """Return all ranges and metaranges, including those of refs dumps."""
        for path in sorted((self.namespace / "_lakefs").iterdir()):
            if len(path.name) == 64:
                yield path.name, path.read_bytes()

    def container(self, object_id: str, kind: str, expected_entries: int | None = None) -> Container:
        return Container(f"{self.location}_lakefs/{object_id}", kind, None, expected_entries)

    def objects(self, metarange_id: str) -> pa.Table:
        """Return all decoded rows of a metarange."""
        ranges = decode(self.container(metarange_id, Kind.METARANGE), self.metadata(metarange_id)).to_pylist()
        return pa.Table.from_batches([_decode_range(self, row["address"].rpartition("/")[2], row["expected_entries"]) for row in ranges])

    def address(self, key: str) -> str:
        """Return the address of an expected key in the unpacked namespace."""
        return f"file://{key.removeprefix('local://')}" if key.startswith("local://") else self.location + key


@cache
def _decode_range(recording: Recording, range_id: str, expected_entries: int) -> pa.RecordBatch:
    """Decode a range, which is cached because commits share ranges."""
    return decode(recording.container(range_id, Kind.RANGE, expected_entries), recording.metadata(range_id))


@lru_cache
def _unpack_namespace(name: str) -> Path:
    return Recording(name).unpack(Path(_temporary_directory().name))


@cache
def _temporary_directory() -> tempfile.TemporaryDirectory[str]:
    """Make a directory that is removed when this process ends."""
    return tempfile.TemporaryDirectory(prefix="lakefs-")
