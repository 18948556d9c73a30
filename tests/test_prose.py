"""Public texts keep within 100 columns: docstrings, comments and pages."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COLUMNS = 100
# A quote that closes behind the last word may stand beyond.
QUOTES = 3
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# What cannot be broken: a row of a table, a heading, a picture, a link of its own line.
WHOLE = re.compile(r"\s*(\||#|!\[|\[[^\]]+\]:|<)")


def sources() -> list[Path]:
    return sorted((ROOT / "gc_assets").rglob("*.py"))


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Line number and text of every comment of its own line and every line of a docstring."""
    lines, before = source.split("\n"), tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_docstring = token.type == tokenize.STRING and before in {tokenize.NEWLINE, tokenize.INDENT, tokenize.ENCODING}
        if is_docstring and token.string.endswith('"""'):
            yield from ((number, lines[number - 1]) for number in range(token.start[0], token.end[0] + 1))
        if token.type == tokenize.COMMENT and lines[token.start[0] - 1].strip().startswith("#"):
            yield token.start[0], lines[token.start[0] - 1]
        if token.type not in {tokenize.NL, tokenize.COMMENT}:
            before = token.type


def test_docstrings_and_comments_keep_within_the_columns() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources()
        for number, line in texts(path.read_text())
        if len(line) > COLUMNS + QUOTES and " " in line.strip()
    ]
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_keep_within_the_columns(page: Path) -> None:
    found, in_code = list[int](), False
    for number, line in enumerate(page.read_text().split("\n"), 1):
        in_code ^= line.strip().startswith("```")
        if not in_code and len(line) > COLUMNS and not WHOLE.match(line) and " " in line.strip():
            found.append(number)
    assert found == []
