"""Parsed contents are kept for one content of a file each, within a limit."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from gc_assets.core.errors import StateError
from gc_assets.state.content_cache import ContentCache
from gc_assets.state.files import Files
from gc_assets.state.index import INDEX, Index
from gc_assets.state.journal import State
from tests.state.publisher import publish_empty


class Parser:
    def __init__(self) -> None:
        self.parsed: list[bytes] = []

    def __call__(self, content: bytes) -> str:
        self.parsed.append(content)
        return content.decode()


def test_equal_content_is_parsed_once() -> None:
    cache, parser = ContentCache[str](), Parser()
    assert [cache.parse("a", b"1", parser) for _ in range(3)] == ["1", "1", "1"]
    assert parser.parsed == [b"1"]


def test_changed_content_is_parsed_again_even_if_its_size_is_equal() -> None:
    cache, parser = ContentCache[str](), Parser()
    assert [cache.parse("a", content, parser) for content in (b"1", b"2", b"1")] == ["1", "2", "1"]


def test_oldest_contents_are_dropped_over_size_limit() -> None:
    cache, parser = ContentCache[str](max_bytes=4), Parser()
    for address, content in (("a", b"11"), ("b", b"22"), ("c", b"33"), ("b", b"22"), ("a", b"11"), ("d", b"55555"), ("d", b"55555")):
        cache.parse(address, content, parser)
    assert parser.parsed == [b"11", b"22", b"33", b"11", b"55555", b"55555"]


def test_callers_do_not_share_mutable_index_entries(tmp_path: Path) -> None:
    run_id = publish_empty(State.at(str(tmp_path)))
    index = Index(Files(str(tmp_path)), f"sales/live_files/{INDEX}")
    first = index.read()
    assert first is not None
    first.clear()
    assert (index.read() or {}).keys() == {run_id}


def test_index_that_is_damaged_after_it_was_read_is_refused(tmp_path: Path) -> None:
    state = State.at(str(tmp_path))
    publish_empty(state)
    assert len(state.history("sales", "live_files")) == 1
    path = tmp_path / "sales/live_files" / INDEX
    path.write_bytes(path.read_bytes().replace(b"live_files", b"live_file5").replace(date(2026, 3, 14).isoformat().encode(), b"2026-03-15"))
    for _ in range(2):
        with pytest.raises(StateError, match="checksum"):
            state.history("sales", "live_files")
