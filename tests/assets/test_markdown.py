"""Names of tables, branches and files are escaped in Markdown. A real Markdown parser (markdown-it)
reads them back.
"""

from __future__ import annotations

import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from gc_assets.assets.markdown import escape_markdown

HOSTILE = [
    "[click](javascript:alert(1))",
    "![x](https://another/pixel.png)",
    "<img src=x onerror=alert(1)>",
    "a | b | c",
    "`code` **bold** _em_ ~~gone~~",
    "https://another/x www.another.org",
    "&lt;b&gt; &#60; \\",
    "# no heading",
]


def render(markdown: str) -> tuple[set[str], list[str]]:
    """Return the HTML tags and the cell texts of rendered Markdown."""
    page = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown)
    return set(re.findall(r"<(\w+)", page)), [unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", page, re.DOTALL)]


def in_table(text: str) -> str:
    return f"| name | files |\n|---|---|\n| x{escape_markdown(text)}x | 7 |\n"


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_and_html_in_names_are_escaped(text: str) -> None:
    tags, cells = render(in_table(text))
    assert tags == {"table", "thead", "tbody", "tr", "th", "td"}
    assert cells == [f"x{text}x", "7"]
    assert not re.search(r"(?i)\bhttps?:|www\.", escape_markdown(text)), "a reader with links by themselves makes one"


@given(st.text(st.characters(exclude_categories=["C", "Z"])))
def test_any_name_fits_in_one_table_cell(text: str) -> None:
    assert render(in_table(text))[1] == [f"x{text}x", "7"]


def test_name_with_newlines_stays_on_one_line() -> None:
    assert escape_markdown("a\n\n| b\r\u202e") == "a\\\\n\\\\n\\| b\\\\r\\\\u202e"
