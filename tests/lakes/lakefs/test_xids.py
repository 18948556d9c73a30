"""The time in the name of an object is the second in which its upload began."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from gc_assets.lakes.lakefs.xids import times_of_names
from tests.lakes.lakefs.recordings import NAMES, Recording


def times(*keys: str) -> list[datetime | None]:
    return times_of_names(pa.array(keys, pa.string())).to_pylist()


@pytest.mark.parametrize("name", NAMES)
def test_creation_times_in_object_names_match_file_times(name: str) -> None:
    recording = Recording(name)
    files = [path for path in sorted((recording.namespace / "data").rglob("*")) if path.is_file()][:2000]
    times_of_keys = times(*(str(path.relative_to(recording.namespace)) for path in files))
    close = [
        abs(moment - datetime.fromtimestamp(path.stat().st_mtime, UTC)) <= timedelta(seconds=2)
        for moment, path in zip(times_of_keys, files, strict=True)
        if moment is not None and "unknown" not in path.name
    ]
    assert close
    assert all(close)


def test_xid_library_example_is_decoded() -> None:
    # github.com/rs/xid, id_test.go: 9m4e2mr0ui3e8a215n4g is 4d88e15b60f486e428412dc9
    assert times("data/p/9m4e2mr0ui3e8a215n4g") == [datetime.fromtimestamp(0x4D88E15B, UTC)]


def test_signature_after_comma_in_object_name_is_ignored() -> None:
    plain, signed = times("data/p/9m4e2mr0ui3e8a215n4g", "data/p/9m4e2mr0ui3e8a215n4g,PykyuE6Jv2-_")
    assert plain == signed


@pytest.mark.parametrize(
    "key",
    ["stray.bin", "data/loose.bin", "data/p/9m4e2mr0ui3e8a215n4", "data/p/9M4E2MR0UI3E8A215N4G", "data/p/wwwwwwwwwwwwwwwwwwww", ""],
)
def test_object_names_without_xid_have_no_time(key: str) -> None:
    assert times(key) == [None]


def test_empty_column_of_names_has_no_times() -> None:
    assert times() == []
