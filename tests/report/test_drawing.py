"""Drawings of histories before and after expiry."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from gc_assets.report.drawing import Drawing, Node, history_svg

SVG = "{http://www.w3.org/2000/svg}"


def node(
    commit: str, parent: str | None, generation: int, *, state: str = "retained", after: str | None = None, labels: tuple[str, ...] = ()
) -> Node:
    leaves = state != "retained"
    return Node(commit, parent, parent if after is None else after, generation, state, leaves, f"{commit} is {state}", labels)


def circles(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)  # noqa: S314  (our own output)
    return [circle.find(f"{SVG}title").text for circle in root.iter(f"{SVG}circle")]


TREE = Drawing(
    "t",
    (
        node("a", None, 0),
        node("b", "a", 1, state="expired"),
        node("c", "b", 2, state="expired"),
        node("d", "c", 3, after="a", labels=("main",)),
        node("e", "b", 2, state="dangling"),
    ),
)


def parse_drawing(svg: str) -> str:
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)


def test_only_retained_commits_remain_after_expiry() -> None:
    assert circles(parse_drawing(history_svg(TREE, after=False))) == [f"{n.commit_id} is {n.state}" for n in TREE.nodes]
    assert circles(parse_drawing(history_svg(TREE, after=True))) == ["a is retained", "d is retained"]


def test_title_counts_commits() -> None:
    assert "<title>t: 1 commit now</title>" in history_svg(Drawing("t", (node("a", None, 0),)), after=False)
    assert "2 commits after expiry</title>" in history_svg(TREE, after=True)


def test_edited_parent_is_drawn_as_one_marked_edge() -> None:
    assert history_svg(TREE, after=False).count("<path") == 4
    after = history_svg(TREE, after=True)
    assert re.findall(r'<path class="([^"]*)"', after) == ["edge edited"]


def test_history_without_expired_commits_does_not_change() -> None:
    assert TREE.changes
    assert not Drawing("t", (node("a", None, 0), node("b", "a", 1))).changes


@pytest.mark.parametrize("hostile", ['<script>alert("x")</script>', "a\x1b[2J\x00\u202eb\ud800"])
def test_ref_name_is_escaped(hostile: str) -> None:
    svg = history_svg(Drawing(hostile, (node("a", None, 0, labels=(hostile,)),)), after=False)
    assert "<script" not in svg
    ElementTree.fromstring(parse_drawing(svg))  # noqa: S314  (well formed, or this raises)


def test_fork_is_drawn_in_a_separate_lane() -> None:
    svg = history_svg(TREE, after=False)
    heights = re.findall(r'cy="(\d+)"', svg)
    assert len(set(heights[:4])) == 1
    assert heights[4] != heights[0]


def test_neighbouring_labels_do_not_overlap() -> None:
    near = Drawing("t", (node("a", None, 0, labels=("a-long-tag-name",)), node("b", "a", 1, labels=("main",))))
    above, below = (float(y) for y in re.findall(r'<text x="[\d.]+" y="([\d.]+)"', history_svg(near, after=False)))
    assert below - above > 12
