"""Tables fit the width, and no id, key or word is broken. Other columns are printed under their
row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gc_assets.cli.tables import ELLIPSIS, TextColumn, lines, shorten, wrap

KEY = "shop/orders/data/00000-0-6f1d2a55-5a0b-4f40-bd01-ffa25f8f7a2b-00001.parquet"


def text_of(columns: list[TextColumn], width: int | None) -> str:
    return "\n".join(lines(columns, width))


def test_numeric_columns_are_right_aligned() -> None:
    columns = [TextColumn("key", ["a/b", "a"]), TextColumn("files", ["1,234", "7"], rigid=True, right=True)]
    assert text_of(columns, 80).split("\n") == ["key  files", "───  ─────", "a/b  1,234", "a        7"]


def test_long_key_is_shortened_in_the_middle() -> None:
    line = text_of([TextColumn("key", [KEY]), TextColumn("kind", ["data"])], 50).split("\n")[-1]
    assert re.fullmatch(rf"shop/orders/data/\d+{ELLIPSIS}\S+-00001\.parquet  data", line), line


def test_cell_text_wraps_between_words() -> None:
    found = "a lease is held by ada since this morning, for an unknown reason"
    cells = [line[6:].strip() for line in text_of([TextColumn("what", ["warn"]), TextColumn("found", [found])], 50).split("\n")[2:]]
    assert " ".join(cells) == found
    assert len(cells) == 2


def test_columns_that_do_not_fit_are_printed_under_the_row() -> None:
    columns = [TextColumn("key", [KEY, "a"]), TextColumn("reason", ["x" * 40, "y" * 40]), TextColumn("at", ["2026-11-21", ""], rigid=True)]
    found = text_of(columns, 60).split("\n")
    assert found[0].split() == ["key"]
    assert [line.strip() for line in found[2:]] == [
        KEY[:30] + ELLIPSIS + KEY[-29:],
        "reason: " + "x" * 40,
        "at: 2026-11-21",
        "a",
        "reason: " + "y" * 40,
    ]


def test_column_with_a_single_value_is_printed_once() -> None:
    columns = [
        TextColumn("key", [KEY, "a"]),
        TextColumn("reason", ["x" * 40, "y" * 40]),
        TextColumn("action", ["quarantine"] * 2),
        TextColumn("x", ["", ""]),
    ]
    assert [line.strip() for line in text_of(columns, 60).split("\n")[3:]] == [
        "reason: " + "x" * 40,
        "a",
        "reason: " + "y" * 40,
        "In all rows:",
        "action: quarantine",
    ]
    assert "In all rows" not in text_of([TextColumn("key", [KEY]), TextColumn("reason", ["x" * 40])], 60), "a single row"


def test_row_stays_on_one_line_if_width_is_unknown() -> None:
    columns = [TextColumn("key", [KEY * 5]), TextColumn("found", ["many words " * 50])]
    assert len(text_of(columns, None).split("\n")) == 3
    assert KEY * 5 in text_of(columns, None)


def test_wide_characters_count_as_two_columns() -> None:
    assert shorten("木" * 10, 20) == "木" * 10
    assert cell_len(shorten("木" * 11, 20)) <= 20


def read_log_entries(columns: list[TextColumn]) -> Iterator[str]:
    for column in columns:
        for cell in column.cells:
            yield from cell.split()


CELLS = st.one_of(
    st.text("abc/äß木", min_size=0, max_size=90),
    st.lists(st.text("abc-.木", min_size=1, max_size=40), max_size=12).map(" ".join),
)


@st.composite
def tables(draw: st.DrawFn) -> list[TextColumn]:
    rows = draw(st.integers(1, 3))
    texts = st.lists(CELLS, min_size=rows, max_size=rows)
    numbers = st.lists(st.integers(-(10**9), 10**9).map("{:,}".format), min_size=rows, max_size=rows)
    one = st.one_of(
        texts.map(lambda cells: ("text", cells)),
        numbers.map(lambda cells: ("number", cells)),
    )
    drawn = draw(st.lists(one, min_size=1, max_size=6))
    return [TextColumn(f"{kind}{at}", cells, rigid=kind == "number", right=kind == "number") for at, (kind, cells) in enumerate(drawn)]


@given(tables(), st.integers(60, 120))
def test_table_lines_fit_the_width_without_breaking_words(columns: list[TextColumn], width: int) -> None:
    printed = text_of(columns, width)
    assert max(map(cell_len, printed.split("\n"))) <= width
    shown = set(printed.split())
    for word in read_log_entries(columns):
        short = [token for token in shown if ELLIPSIS in token and _is_shortened(token, word)]
        assert word in shown or short, word


def _is_shortened(token: str, word: str) -> bool:
    head, _, tail = token.partition(ELLIPSIS)
    return word.startswith(head) and word.endswith(tail) and cell_len(token) < cell_len(word)


@pytest.mark.parametrize("width", [20, 40])
def test_wrapped_message_keeps_indentation(width: int) -> None:
    found = wrap("  storages[0].grase: unknown key; did you mean grace?", width)
    assert all(line.startswith("  ") and len(line) <= width for line in found)
    assert " ".join(line.strip() for line in found) == "storages[0].grase: unknown key; did you mean grace?"


def test_empty_table_has_a_header_row() -> None:
    assert text_of([TextColumn("key", []), TextColumn("files", [])], 80).split("\n") == ["key  files", "───  ─────"]
