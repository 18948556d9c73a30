"""Commit histories as text."""

from __future__ import annotations

from gc_assets.report.drawing import Drawing, Node
from gc_assets.report.text_graph import text_graph


def node(name: str, parent: str | None, after: str | None = "same", *, leaves: bool = False, labels: tuple[str, ...] = ()) -> Node:
    state = "expired" if leaves else "retained"
    return Node(name, parent, parent if after == "same" else after, 0, state, leaves, f"{name}\nwhen\n{state}: why", labels)


def draw_lines(*nodes: Node, after: bool = False, hidden: int = 0) -> list[str]:
    return list(map(str, text_graph(Drawing("t", nodes, hidden), after=after)))


def test_linear_history_is_newest_first_with_refs() -> None:
    assert draw_lines(node("a", None), node("b", "a"), node("c", "b", labels=("main", "v1 (tag)"))) == [
        "* c (main, v1 (tag))  retained: why",
        "* b  retained: why",
        "* a  retained: why",
    ]


def test_fork_is_drawn_in_a_separate_lane() -> None:
    assert draw_lines(node("a", None), node("b", "a"), node("x", "a"), node("c", "b")) == [
        "* c  retained: why",
        "| * x  retained: why",
        "* | b  retained: why",
        "|/",
        "* a  retained: why",
    ]


def test_merge_line_crosses_other_lanes() -> None:
    lines = draw_lines(node("a", None), node("b", "a"), node("c", "b"), node("x", "c"), node("y", "a"), node("z", "c"))
    assert lines[:4] == ["* z  retained: why", "| * y  retained: why", "| | * x  retained: why", "|_|/"]
    assert lines[-2:] == ["|/", "* a  retained: why"]


def test_edited_commit_shows_the_previous_parent() -> None:
    nodes = (node("a", None), node("b", "a", leaves=True), node("c", "b", "a", labels=("main",)))
    assert draw_lines(*nodes, after=True) == ["* c (main)  retained: why  parent was b", "* a  retained: why"]
    assert len(draw_lines(*nodes)) == 3


def test_hidden_commits_are_counted() -> None:
    assert draw_lines(node("b", "a"), hidden=1_200)[-1] == "and 1,200 older commits"
