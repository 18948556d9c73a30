"""Messages of a job are read from a file while the job writes them."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread

from gc_assets.remote.message_file import read_lines


def read_all(path: Path) -> list[bytes]:
    return list(read_lines(path, lambda: True))


def test_line_is_read_once_it_is_complete(tmp_path: Path) -> None:
    """Dagster's reader fails at the first half of a line."""
    path, closed, lines = tmp_path / "messages", Event(), list[bytes]()
    path.touch()
    reader = Thread(target=lambda: lines.extend(read_lines(path, closed.is_set)))
    reader.start()
    with path.open("ab", buffering=0) as file:
        for piece in (b'{"a": "on', b'e"}\n{"b"', b": 2}\n"):
            file.write(piece)
            Event().wait(0.05)
    closed.set()
    reader.join()
    assert lines == [b'{"a": "one"}', b'{"b": 2}']


def test_lines_written_before_the_end_are_read(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    path.write_bytes(b"1\n2\n")
    assert read_all(path) == [b"1", b"2"]


def test_incomplete_last_line_of_a_killed_job_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    path.write_bytes(b'1\n{"half')
    assert read_all(path) == [b"1"]


def test_line_longer_than_a_block_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    path.write_bytes(b"x" * (3 << 20) + b"\n")
    assert read_all(path) == [b"x" * (3 << 20)]
