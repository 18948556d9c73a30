"""Text of lakes is escaped before it becomes part of a message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gc_assets.core.errors import FormatError, LakeUnreadable, StoreError
from gc_assets.core.findings import OK, Finding
from gc_assets.core.gates import foreign_metadata
from gc_assets.core.printable import MAX_MESSAGE, MAX_VALUE, escape, show, show_list, to_message

HOSTILE = "a\x1b[2J\nNext: gc-assets approve 1\u202egpj.exe\x9b\u200b\udcff"


@pytest.mark.parametrize(
    "hostile, shown",
    [
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("a\nb", "a\\nb"),
        ("a\u202egpj.exe", "a\\u202egpj.exe"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u200bb\u2066", "a\\u200bb\\u2066"),
        ("\ud800", "\\ud800"),
        ("äß 木 👍", "äß 木 👍"),
    ],
)
def test_characters_that_do_not_print_are_escaped(hostile: str, shown: str) -> None:
    assert escape(hostile) == shown
    assert show(hostile) == shown


@given(st.text(st.characters()))
def test_escaped_text_is_printable(text: str) -> None:
    assert escape(text).isprintable()
    assert to_message(text).replace("\n  ", "").isprintable()


def test_long_value_is_cut_in_the_middle() -> None:
    shown = show("a" * 5_000 + "b" * 5_000)
    assert len(shown) < MAX_VALUE + 100
    assert shown.startswith("aaa")
    assert shown.endswith("bbb")
    assert "8,900 characters left out" in shown


def test_message_keeps_line_breaks_only_for_indented_lists() -> None:
    assert to_message("lost:\n  a\n  b\nNext: c") == "lost:\n  a\n  b\\nNext: c"


def test_sample_list_has_at_most_five_items() -> None:
    assert show_list(["a\nb", *"cdefgh"], separator="; ") == "a\\nb; c; d; e; f"


@pytest.mark.parametrize("error", [FormatError, LakeUnreadable, StoreError])
def test_lake_error_is_one_printable_line(error: type[Exception]) -> None:
    assert str(error(f"table {HOSTILE}: no")).isprintable()
    assert len(str(error("x" * 10**6))) < MAX_MESSAGE + 100


def test_gate_and_doctor_messages_are_printable() -> None:
    assert foreign_metadata(1, [HOSTILE], 1, [HOSTILE], [HOSTILE]).message.isprintable()
    found = Finding("sales", "note", OK, HOSTILE, HOSTILE)
    assert (found.found + found.todo).isprintable()
