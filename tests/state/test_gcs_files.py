"""State files on Google Cloud Storage: conditional puts, listings, deletes, and several writers."""

from __future__ import annotations

import pickle
import secrets
from concurrent.futures import ThreadPoolExecutor

import pytest

from gc_assets.state.files import Files
from tests.gcs.servers import own_server


@pytest.fixture
def files() -> Files:
    server = own_server()
    return Files(f"gs://{server.bucket()}/state/{secrets.token_hex(4)}", server.settings)


def test_put_needs_the_expected_version(files: Files) -> None:
    first = files.replace_if("a", b"1", None)
    assert first is not None
    assert files.replace_if("a", b"2", None) is None
    second = files.replace_if("a", b"2", first)
    assert second is not None
    assert files.replace_if("a", b"3", first) is None
    assert files.read_version("a") == (b"2", second)


def test_only_one_of_several_concurrent_writers_succeeds(files: Files) -> None:
    with ThreadPoolExecutor(8) as pool:
        versions = list(pool.map(lambda number: files.replace_if("a", str(number).encode(), None), range(8)))
    (winner,) = [number for number, version in enumerate(versions) if version is not None]
    assert files.read("a") == str(winner).encode()


def test_files_are_listed_and_deleted(files: Files) -> None:
    names = [f"t/{number}" for number in range(5)] + ["t/deep/x", "u"]
    for name in names:
        files.replace(name, name.encode())
    reopened = pickle.loads(pickle.dumps(files))  # noqa: S301  (bytes made on this line)
    assert [item.name for item in reopened.list("", recursive=True)] == sorted(names)
    assert [item.name for item in reopened.list("t", recursive=False)] == ["0", "1", "2", "3", "4"]
    assert list(reopened.directories("")) == ["t"]
    reopened.delete_directory("t")
    assert [item.name for item in reopened.list("", recursive=True)] == ["u"]
    with pytest.raises(FileNotFoundError):
        reopened.read("t/0")
