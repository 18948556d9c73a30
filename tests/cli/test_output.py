"""Rows on standard output: external names cannot control a terminal, and JSON is valid."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from gc_assets.cli.blame import merge_notes
from gc_assets.cli.output import format_cell, write_json, write_table


def test_json_is_one_array_with_utc_times() -> None:
    out = io.StringIO()
    moment = datetime(2026, 11, 21, 3, tzinfo=timezone(timedelta(hours=2)))
    write_json([{"at": moment, "day": date(2026, 11, 21), "raw": b"\x00\xff"}, {"at": None}], out)
    assert json.loads(out.getvalue()) == [{"at": "2026-11-21T01:00:00+00:00", "day": "2026-11-21", "raw": "AP8="}, {"at": None}]


def test_json_output_without_rows_is_an_empty_array() -> None:
    out = io.StringIO()
    write_json([], out)
    assert json.loads(out.getvalue()) == []


def test_long_key_stays_on_one_line_without_a_terminal() -> None:
    out = io.StringIO()
    write_table([{"key": "k" * 5000, "[bold]": 1234567}], ["key", "[bold]"], out)
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].split() == ["key", "[bold]"]
    assert lines[2].split() == ["k" * 5000, "1,234,567"]


@pytest.mark.parametrize(
    "value, shown",
    [
        (None, ""),
        (True, "yes"),
        (1234567, "1,234,567"),
        (b"1234", "<4 bytes>"),
        (["a", "b"], '["a", "b"]'),
        (datetime(2026, 11, 21, 3, 4, 5, tzinfo=UTC), "2026-11-21 03:04:05Z"),
    ],
)
def test_cell_values_are_formatted(value: object, shown: str) -> None:
    assert format_cell(value) == shown


def test_notes_that_differ_only_in_age_are_merged() -> None:
    def notes(age: str) -> tuple[str, ...]:
        return (f"lake prod would keep the last {age} (lakes.yaml with --retention {age})", "lake prod: 3 files are unknown")

    assert list(merge_notes((age, notes(age)) for age in ("1d", "30d"))) == [
        "lake prod would keep the last AGE (lakes.yaml with --retention AGE)",
        "lake prod: 3 files are unknown",
    ]
    assert list(merge_notes([("7d", notes("7d"))])) == list(notes("7d"))
    assert list(merge_notes([(None, ("a",)), (None, ("b", "a"))])) == ["a", "b"]
