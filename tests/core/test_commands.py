"""Suggested commands are quoted, so that a value of a lake stays one word."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gc_assets.core.commands import command, quote

HOSTILE = [
    "1; touch PWNED #",
    "$(id)",
    "`id`",
    "a'b",
    'a"b',
    "a b",
    "",
    "*",
    "~",
    "a\nb",
    "a\x1b[2Jb",
    "a\u202eb",
    "é",
    "日本",
    "\\",
    "a\\\n'",
]


@pytest.mark.parametrize("value", [*HOSTILE, "\udcff"])
def test_shell_reads_the_quoted_value(value: str) -> None:
    shown = subprocess.run(["/bin/bash", "-c", f"printf %s {quote(value)}"], capture_output=True, check=True).stdout
    assert shown == value.encode("utf-8", "surrogateescape")


@settings(max_examples=200)
@given(st.text())
def test_quoted_value_is_printable(value: str) -> None:
    assert quote(value).isprintable()


@given(st.text(st.characters(exclude_categories=["C", "Zl", "Zp", "Zs"])))
def test_printable_value_is_one_word(value: str) -> None:
    assert shlex.split(quote(value)) == [value]


def test_command_has_arguments_and_options() -> None:
    assert command("restore", storage="lake", key="a b", history=True) == "gc-assets restore --storage lake --key 'a b' --history"
    assert command("apply", "PLAN_ID", mode=False, run_date="2026-01-01") == "gc-assets apply PLAN_ID --run-date 2026-01-01"


def test_value_that_looks_like_option_is_not_parsed_as_option() -> None:
    assert command("accept", "--by", "file:///a/", by="WHO") == "gc-assets accept --by WHO -- --by file:///a/"
    assert command("restore", key="-x") == "gc-assets restore --key=-x"


def test_too_long_value_is_replaced_by_placeholder() -> None:
    assert command("accept", "1" * 10_000, by="WHO") == "gc-assets accept TOO_LONG --by WHO"
