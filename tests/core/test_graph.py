"""Reachability, levels and refs equal a brute-force walk, for consistent and contradictory
histories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gc_assets.core.errors import FormatError, LakeUnreadable
from gc_assets.core.graph import CHILD_OLDER, CYCLE, MAX_SAMPLES, MISSING_PARENT, CommitGraph

BIRTH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class History:
    """Commits by id with their parents; `minutes` is when each was made, by default in the order they are written."""

    parents: dict[str, Sequence[str]]
    minutes: dict[str, int] | None = None

    def graph(self) -> CommitGraph:
        ids = list(self.parents)
        minutes = self.minutes or {commit: minute for minute, commit in enumerate(ids)}
        return CommitGraph.build(
            pa.array(ids, pa.string()),
            pa.array([list(self.parents[commit]) for commit in ids], pa.list_(pa.string())),
            pa.array([BIRTH + timedelta(minutes=minutes[commit]) for commit in ids], pa.timestamp("us", "UTC")),
        )

    def ancestors(self, head: str) -> set[str]:
        seen: set[str] = set()
        open_ = [head]
        while open_:
            commit = open_.pop()
            if commit in self.parents and commit not in seen:
                seen.add(commit)
                open_ += self.parents[commit]
        return seen

    def is_on_cycle(self, commit: str) -> bool:
        return any(commit in self.ancestors(parent) for parent in self.parents[commit])

    def generation(self, commit: str) -> int:
        if any(self.is_on_cycle(ancestor) for ancestor in self.ancestors(commit)):
            return -1
        known = [parent for parent in self.parents[commit] if parent in self.parents]
        return 1 + max(map(self.generation, known)) if known else 0


def problems_of(graph: CommitGraph) -> dict[str, tuple[int, tuple[tuple[str, ...], ...]]]:
    return {problem.what: (problem.count, problem.samples) for problem in graph.problems}


@st.composite
def histories(draw: st.DrawFn, sound: bool = False) -> History:
    """Forests and merges; unless `sound`, also missing parents and edges that close cycles. Long chains are likely."""
    count = draw(st.integers(0, 24))
    parents: dict[str, Sequence[str]] = {}
    for number in range(count):
        anything = st.integers(-2, count - 1)
        older = st.integers(max(-2, number - 3), number - 1)
        one = st.just(number - 1) if number else st.nothing()
        choice = st.one_of(one, older) if sound else st.one_of(one, one, older, anything)
        chosen = draw(st.lists(choice, max_size=3)) if draw(st.integers(0, 3)) == 0 or not number else [draw(choice)]
        parents[f"c{number}"] = [f"c{parent}" if parent >= 0 else f"lost{-parent}" for parent in chosen if parent >= 0 or not sound]
    order = draw(st.permutations(list(parents)))
    return History({commit: parents[commit] for commit in order}, {f"c{number}": number for number in range(count)})


@st.composite
def histories_with_heads(draw: st.DrawFn) -> tuple[History, dict[str, str]]:
    history = draw(histories())
    if not history.parents:
        return history, {}
    heads = draw(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.sampled_from(sorted(history.parents)), max_size=6))
    return history, heads


# ---- against the oracle


@given(histories_with_heads())
def test_reachable_commits_are_ancestors_of_heads(drawn: tuple[History, dict[str, str]]) -> None:
    history, heads = drawn
    graph = history.graph()
    expected = set().union(*(history.ancestors(head) for head in heads.values()))
    assert [commit in expected for commit in history.parents] == graph.reachable(heads.values()).tolist()


@given(histories())
def test_generation_is_one_more_than_highest_parent_generation(history: History) -> None:
    assert history.graph().generation.tolist() == [history.generation(commit) for commit in history.parents]


@given(histories_with_heads())
def test_reaching_refs_match_plain_search(drawn: tuple[History, dict[str, str]]) -> None:
    history, heads = drawn
    refs, counts = history.graph().reaching_refs(heads)
    reach = {name: history.ancestors(head) for name, head in heads.items()}
    expected = [sorted(name for name in heads if commit in reach[name]) for commit in history.parents]
    assert refs.to_pylist() == expected
    assert counts.to_pylist() == list(map(len, expected))


@given(histories())
def test_history_problems_are_all_counted(history: History) -> None:
    found = {kind: count for kind, (count, _) in problems_of(history.graph()).items()}
    edges = [(child, parent) for child, parents in history.parents.items() for parent in parents]
    assert history.minutes is not None
    at = history.minutes
    missing = sum(parent not in history.parents for _, parent in edges)
    younger = sum(parent in at and at[child] < at[parent] for child, parent in edges)
    looping = [commit for commit in history.parents if history.is_on_cycle(commit)]
    cycles = {frozenset(other for other in history.ancestors(commit) if commit in history.ancestors(other)) for commit in looping}
    expected = {MISSING_PARENT: missing, CHILD_OLDER: younger, CYCLE: len(cycles)}
    assert found == {kind: count for kind, count in expected.items() if count}


@given(histories(sound=True))
def test_consistent_history_has_no_problems(history: History) -> None:
    assert history.graph().problems == ()


# ---- by example


def test_missing_parent_is_reported_with_child() -> None:
    graph = History({"a": [], "b": ["gone", "a"]}).graph()
    assert problems_of(graph) == {MISSING_PARENT: (1, (("b", "gone"),))}
    assert "b to its parent gone" in str(graph.problems[0])
    assert graph.generation.tolist() == [0, 1]


def test_missing_first_parent_is_not_used_as_first_parent() -> None:
    graph = History({"a": [], "b": ["gone", "a"]}).graph()
    assert graph.first_parent.tolist() == [-1, -1]
    assert graph.reachable(["b"]).tolist() == [True, True]


def test_child_older_than_parent_is_reported() -> None:
    graph = History({"a": [], "b": ["a"], "c": ["b"]}, {"a": 5, "b": 5, "c": 4}).graph()
    assert problems_of(graph) == {CHILD_OLDER: (1, (("c", "b"),))}


def test_commit_without_time_is_not_reported_as_older() -> None:
    graph = CommitGraph.build(pa.array(["a", "b"]), pa.array([[], ["a"]], pa.list_(pa.string())), pa.array([BIRTH, None]))
    assert graph.problems == ()


def test_cycle_is_reported_and_has_no_generation() -> None:
    graph = History(
        {"root": [], "x": ["y", "root"], "y": ["x"], "after": ["y"], "ring1": ["ring2"], "ring2": ["ring1"], "self": ["self"]}
    ).graph()
    count, samples = problems_of(graph)[CYCLE]
    assert count == 3
    assert {frozenset(sample) for sample in samples} == {frozenset({"x", "y"}), frozenset({"ring1", "ring2"}), frozenset({"self"})}
    assert graph.generation.tolist() == [0, -1, -1, -1, -1, -1, -1]
    assert graph.reachable(["x"]).tolist() == [True, True, True, False, False, False, False]
    refs, _ = graph.reaching_refs({"main": "y", "ring": "ring1"})
    assert refs.to_pylist() == [["main"], ["main"], ["main"], [], ["ring"], ["ring"], []]


def test_repeated_parent_on_cycle_terminates() -> None:
    graph = History({"a": ["b", "b", "c"], "b": ["a", "a"], "c": ["a", "c", "c"]}).graph()
    assert problems_of(graph)[CYCLE][0] == 1
    assert graph.reaching_refs({"main": "c"})[1].to_pylist() == [1, 1, 1]


def test_history_problem_samples_are_limited_but_all_are_counted() -> None:
    count, samples = problems_of(History({f"c{number}": ["gone"] for number in range(50)}).graph())[MISSING_PARENT]
    assert (count, len(samples)) == (50, MAX_SAMPLES)


def test_repeated_and_missing_commit_ids_are_rejected() -> None:
    parents = pa.array([[], [], []], pa.list_(pa.string()))
    times = pa.array([BIRTH] * 3)
    with pytest.raises(FormatError, match=r"1 commit id.* more than once: twice"):
        CommitGraph.build(pa.array(["once", "twice", "twice"]), parents, times)
    with pytest.raises(FormatError, match="1 of 3 commits have no id"):
        CommitGraph.build(pa.array(["once", None, "twice"]), parents, times)


def test_unknown_head_is_rejected() -> None:
    graph = History({"a": []}).graph()
    with pytest.raises(LakeUnreadable, match="for example nowhere"):
        graph.reachable(["a", "nowhere"])
    with pytest.raises(LakeUnreadable, match="for example nowhere"):
        graph.reaching_refs({"main": "nowhere"})


def test_ref_names_per_commit_are_limited_but_all_are_counted() -> None:
    history = History({"a": [], "b": ["a"]})
    heads = {f"ref{number:03d}": "b" if number % 2 else "a" for number in reversed(range(300))}
    refs, counts = history.graph().reaching_refs(heads)
    assert counts.to_pylist() == [300, 150]
    assert refs.to_pylist() == [[f"ref{number:03d}" for number in range(100)], [f"ref{number:03d}" for number in range(1, 200, 2)]]


def test_chunked_and_sliced_columns_give_same_graph() -> None:
    ids = pa.chunked_array([["zero", "a"], ["b", "c"]])
    parents = pa.chunked_array([[["x"], None], [["a"], ["b", "a"]]], pa.list_(pa.string()))
    times = pa.chunked_array([[BIRTH] * 4])
    expected = CommitGraph.build(ids.slice(1), parents.slice(1), times.slice(1))
    assert expected.generation.tolist() == [0, 1, 2]
    assert expected.first_parent.tolist() == [-1, 0, 1]
    sliced = CommitGraph.build(ids.combine_chunks().slice(1), parents.combine_chunks().slice(1), times.combine_chunks().slice(1))
    assert (sliced.problems, sliced.generation.tolist()) == ((), [0, 1, 2])


def test_long_chain_and_empty_graph_are_supported() -> None:
    count = 100_000
    chain = History({f"c{number}": [f"c{number - 1}"] if number else [] for number in range(count)}).graph()
    assert chain.generation.tolist() == list(range(count))
    _, counts = chain.reaching_refs({"main": f"c{count - 1}", "tag": "c500"})
    assert counts.to_pylist() == [2] * 501 + [1] * (count - 501)
    empty = History({}).graph()
    assert (len(empty), empty.problems, empty.reachable([]).tolist(), empty.reaching_refs({})[1].to_pylist()) == (0, (), [], [])
