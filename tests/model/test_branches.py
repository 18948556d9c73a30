"""The report of the branches that traces execute."""

from __future__ import annotations

from tests.model.branches import count_branches, describe_module


def test_report_names_lines_with_branches_that_no_trace_took() -> None:
    exits = {12: (2, 2), 40: (3, 1), 20: (2, 0)}
    assert count_branches(exits) == (3, 7)
    assert describe_module("plan", exits) == "plan: 3 of 7 branches, not all from lines 20, 40"
    assert describe_module("plan", {12: (2, 2)}) == "plan: 2 of 2 branches"
