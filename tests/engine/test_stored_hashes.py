"""Hashes in the state are looked up with the same result, in memory and in a temporary file."""

from __future__ import annotations

import pickle
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gc_assets.core.errors import GcError
from gc_assets.engine import stored_hashes
from gc_assets.engine.parquet_scan import ParquetScan
from gc_assets.engine.stored_hashes import StoredHashes
from gc_assets.engine.tables import write_parts
from gc_assets.state.files import Files
from gc_assets.state.journal import TableRun

SCHEMA = pa.schema([("name", pa.string()), ("key_hash", pa.int64())])


@dataclass(frozen=True)
class NameSelection:
    name: str

    def find_rows(self, rows: pa.RecordBatch) -> pa.Array:
        return pc.equal(rows.column("name"), self.name)


def store(root: Path, *parts: dict[str, list[int]], **options: Any) -> StoredHashes:
    """Store one part for each mapping of a name to hashes."""
    files, run = Files(str(root)), TableRun("lake", "orphan_files", date(2026, 1, 1), "run")
    written = list[Any]()
    for part in parts:
        rows = [{"name": name, "key_hash": key_hash} for name, hashes in part.items() for key_hash in hashes]
        written += write_parts(pa.Table.from_pylist(rows, SCHEMA), run, files, "_side")
    return StoredHashes(ParquetScan.of(files, SCHEMA, run.path, written), sum(part.rows for part in written), **options)


@pytest.fixture(params=[0, 10**6], ids=["in a file", "in memory"])
def _kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_hashes, "MAX_KEPT_HASHES", request.param)


@pytest.mark.usefixtures("_kept")
def test_stored_hashes_of_all_parts_are_found(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    known, others = random.integers(-(2**63), 2**63 - 1, (2, 2000))
    hashes = store(tmp_path, {"a": known[:1500].tolist()}, {"a": known[1000:].tolist()})
    wanted = random.permutation(np.concatenate([known, others, known[:10]]))
    found = pickle.loads(pickle.dumps(hashes)).contains(wanted)  # noqa: S301  (bytes made on this line)
    assert found.tolist() == np.isin(wanted, known).tolist()
    assert hashes.contains(np.empty(0, np.int64)).tolist() == []
    assert hashes.read_sorted().tolist() == sorted(known.tolist())


@pytest.mark.usefixtures("_kept")
def test_only_hashes_of_selected_rows_are_found(tmp_path: Path) -> None:
    hashes = store(tmp_path, {"a": [1, 2], "b": [2, 3]}, {"b": [4]}, selection=NameSelection("b"))
    assert hashes.contains(np.array([1, 2, 3, 4, 5])).tolist() == [False, True, True, True, False]
    assert hashes.read_sorted().tolist() == [2, 3, 4]
    assert store(tmp_path, {"a": [1]}, selection=NameSelection("b")).contains(np.array([1])).tolist() == [False]


@pytest.mark.usefixtures("_kept")
def test_process_reads_a_hash_set_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes, read, found = store(tmp_path, {"a": [1, 2, 3]}), ParquetScan.read_batches, list[ParquetScan]()
    monkeypatch.setattr(ParquetScan, "read_batches", lambda self: (found.append(self), read(self))[1])
    assert [hashes.contains(np.array([wanted])).tolist() for wanted in (1, 4, 3)] == [[True], [False], [True]]
    assert len(found) == 1


def test_only_small_hash_set_is_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_hashes, "MAX_KEPT_HASHES", 2)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert store(tmp_path, {"a": [1, 2]}).contains(np.array([2])).tolist() == [True]
    with pytest.raises(FileNotFoundError, match="missing"):
        store(tmp_path, {"a": [1, 2, 3]}).contains(np.array([2]))


def test_full_disk_is_reported_with_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_hashes, "MAX_KEPT_HASHES", 2)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Path("/dev/full").open("wb"))  # noqa: SIM115  (the caller closes it)
    expected = f"Cannot write 3 hashes of keys to a temporary file in {tempfile.gettempdir()} .*No space left on device.*TMPDIR"
    with pytest.raises(GcError, match=expected):
        store(tmp_path, {"a": [1, 2, 3]}).contains(np.array([2]))
