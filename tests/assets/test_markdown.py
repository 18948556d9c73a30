"""Names of tables, branches and files are other people's text: Markdown shows them and does nothing else with them.

Read back by markdown-it, a Markdown reader of its own.
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
    "![x](https://elsewhere/pixel.png)",
    "<img src=x onerror=alert(1)>",
    "a | b | c",
    "`code` **bold** _em_ ~~gone~~",
    "https://elsewhere/x www.elsewhere.org",
    "&lt;b&gt; &#60; \\",
    "# no heading",
]


def shown(markdown: str) -> tuple[set[str], list[str]]:
    """The tags of the page that a reader makes of it, and the texts of its cells."""
    page = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown)
    return set(re.findall(r"<(\w+)", page)), [unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", page, re.DOTALL)]


def in_a_table(text: str) -> str:
    return f"| name | files |\n|---|---|\n| x{escape_markdown(text)}x | 7 |\n"


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_name_is_shown_as_it_is(text: str) -> None:
    tags, cells = shown(in_a_table(text))
    assert tags == {"table", "thead", "tbody", "tr", "th", "td"}
    assert cells == [f"x{text}x", "7"]
    assert not re.search(r"(?i)\bhttps?:|www\.", escape_markdown(text)), "a reader with links by themselves makes one"


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Zl", "Zp", "Cs"])))
def test_any_name_is_one_cell_of_a_table(text: str) -> None:
    assert shown(in_a_table(text))[1] == [f"x{text}x", "7"]


def test_a_name_of_several_lines_stays_in_its_line() -> None:
    assert escape_markdown("a\n\n| b\r\u202e") == "a\\\\n\\\\n\\| b\\\\r\\\\u202e"
