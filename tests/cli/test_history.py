"""Histories on a narrow terminal."""

from __future__ import annotations

from rich.cells import cell_len

from gc_assets.cli.history import fit_graph
from gc_assets.report.text_graph import GraphLine

LINES = (
    GraphLine("*", "c (main)  kept: head of branch main", "|"),
    GraphLine("| *", "x  expired: older than max-snapshot-age 5d on branch audit and not among its newest 1", "| |"),
    GraphLine("|/"),
    GraphLine("*", "a  expired: older than max-snapshot-age 5d on branch main"),
    GraphLine("", "and 1,200 older commits"),
)


def test_wrapped_text_stays_to_the_right_of_the_graph() -> None:
    assert list(fit_graph(LINES, 60))[1:] == [
        "  | * x  expired: older than max-snapshot-age 5d on branch",
        "  | |   audit and not among its newest 1",
        "  |/",
        "  * a  expired: older than max-snapshot-age 5d on branch",
        "      main",
        "  and 1,200 older commits",
    ]


def test_graph_lines_fit_the_terminal_width() -> None:
    assert [line for width in (40, 60, 80) for line in fit_graph(LINES, width) if cell_len(line) > width] == []


def test_graph_is_not_wrapped_in_a_pipe_or_with_many_lanes() -> None:
    many = [GraphLine("| " * 30 + "*", "x  expired: older than max-snapshot-age 5d", "| " * 31)]
    assert len(list(fit_graph(LINES, None))) == len(LINES)
    assert len(list(fit_graph(many, 80))) == 1
