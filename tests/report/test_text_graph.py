"""Histories as lines of text: what stands above what, and what the expiry plan changes."""

from __future__ import annotations

from gc_assets.report.drawing import Drawing, Node
from gc_assets.report.text_graph import text_graph


def node(name: str, parent: str | None, after: str | None = "same", *, leaves: bool = False, labels: tuple[str, ...] = ()) -> Node:
    state = "expired" if leaves else "retained"
    return Node(name, parent, parent if after == "same" else after, 0, state, leaves, f"{name}\nwhen\n{state}: why", labels)


def drawn(*nodes: Node, after: bool = False, hidden: int = 0) -> list[str]:
    return list(text_graph(Drawing("t", nodes, hidden), after=after))


def test_a_line_of_commits_stands_newest_first_with_its_refs() -> None:
    assert drawn(node("a", None), node("b", "a"), node("c", "b", labels=("main", "v1 (tag)"))) == [
        "* c (main, v1 (tag))  retained: why",
        "* b  retained: why",
        "* a  retained: why",
    ]


def test_a_fork_has_a_lane_of_its_own_until_it_meets_its_parent() -> None:
    assert drawn(node("a", None), node("b", "a"), node("x", "a"), node("c", "b")) == [
        "* c  retained: why",
        "| * x  retained: why",
        "* | b  retained: why",
        "|/",
        "* a  retained: why",
    ]


def test_lanes_between_are_crossed_by_the_line_that_goes_home() -> None:
    lines = drawn(node("a", None), node("b", "a"), node("c", "b"), node("x", "c"), node("y", "a"), node("z", "c"))
    assert lines[:4] == ["* z  retained: why", "| * y  retained: why", "| | * x  retained: why", "|_|/"]
    assert lines[-2:] == ["|/", "* a  retained: why"]


def test_after_expiry_what_leaves_is_gone_and_an_edit_names_the_parent_that_was() -> None:
    nodes = (node("a", None), node("b", "a", leaves=True), node("c", "b", "a", labels=("main",)))
    assert drawn(*nodes, after=True) == ["* c (main)  retained: why  parent was b", "* a  retained: why"]
    assert len(drawn(*nodes)) == 3


def test_commits_that_are_not_shown_are_counted() -> None:
    assert drawn(node("b", "a"), hidden=1_200)[-1] == "and 1,200 older commits"
