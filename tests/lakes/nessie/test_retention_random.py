"""Build random histories on a real server, and compare the live contents with two independent rules."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.depth import example_count
from tests.lakes.nessie.builder import NessieBuilder, delete, iceberg_table, parse_time, put
from tests.lakes.nessie.oracle import (
    apply_plain_rule,
    apply_readable_rule,
    contents,
    contents_since_cutoff,
    run_retention,
    select_retained,
    states,
    walk_log,
)
from tests.lakes.nessie.server import Server

KEYS = [("t",), ("a.b",), ("ä/ö",), ("v",)]
# The action (mostly puts), and the indices of the ref, the key and another object that it uses.
ACTS = ("put", "put", "put", "put two", "delete", "rename", "branch", "tag", "assign", "drop", "merge")
PICK = st.integers(0, 11)
STEPS = st.lists(st.tuples(st.sampled_from(ACTS), PICK, PICK, PICK), min_size=2, max_size=24)
# No cut-off, a number of commits, the time of a commit, a microsecond after it, or its age.
CUTOFFS = st.one_of(st.none(), st.integers(1, 6), st.tuples(st.sampled_from(["at", "after", "ago"]), PICK))


class RandomHistory:
    """The refs of a server during the steps of one example. A step without an object is a put."""

    def __init__(self, builder: NessieBuilder) -> None:
        self._builder = builder
        self._number = 0

    def step(self, act: str, ref: int, key: int, other: int) -> None:
        self._number += 1
        references = self._builder.api.get("trees").json()["references"]
        branches = [item["name"] for item in references if item["type"] == "BRANCH"]
        branch, name = branches[ref % len(branches)], KEYS[key % len(KEYS)]
        head = next(item["hash"] for item in references if item["name"] == branch)
        log = walk_log(self._builder.api, head)
        others = [item["name"] for item in references if item["name"] != "main"]
        known = self._builder.content(name, f"@{head}")
        second = KEYS[(key + 1 + other % (len(KEYS) - 1)) % len(KEYS)]
        if act == "delete" and known is not None:
            self._builder.commit([delete(name)], branch)
        elif act == "rename" and known is not None and self._builder.content(second, f"@{head}") is None:
            self._builder.commit([delete(name), put(second, known)], branch)
        elif act == "branch" and log:
            self._builder.branch(f"b{self._number}", branch)
        elif act == "tag" and log:
            self._builder.tag(f"v{self._number}", branch)
        elif act == "assign" and log:
            self._builder.assign(branch, log[other % len(log)].hash)
        elif act == "drop" and others:
            self._builder.drop(others[other % len(others)])
        elif act == "merge" and log:
            # The server refuses conflicts, and the step then has no effect.
            source = branches[other % len(branches)]
            body = {"fromRefName": source, "fromHash": self._builder.head(source)}
            self._builder.api.post(f"trees/{branch}@{head}/history/merge", json=body)
        else:
            operations = [put(name, self._content(known))]
            if act == "put two":
                operations.append(put(second, self._content(self._builder.content(second, f"@{head}"))))
            self._builder.commit(operations, branch)

    def _content(self, known: dict[str, Any] | None) -> dict[str, Any]:
        self._number += 1
        location = f"file:///lake/t/metadata/{self._number:05}.metadata.json"
        return iceberg_table(location, self._number if self._number % 3 else -1, None if known is None else known["id"])


@settings(
    max_examples=example_count(12, 60),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(STEPS, CUTOFFS, CUTOFFS, CUTOFFS)
def test_live_contents_match_the_oracle(
    nessie_server: Server, tmp_path: Path, steps: list[tuple[str, int, int, int]], default: Any, of_branches: Any, of_tags: Any
) -> None:
    nessie_server.reset()
    builder = NessieBuilder(nessie_server.uri, tmp_path)
    history = RandomHistory(builder)
    for step in steps:
        history.step(*step)
    now = datetime.now(UTC)
    times = sorted({commit.at for item in builder.api.get("trees").json()["references"] for commit in walk_log(builder.api, item["hash"])})

    def cutoff(drawn: Any) -> Any:
        if not isinstance(drawn, tuple):
            return drawn
        how, pick = drawn
        moment = times[pick % len(times)] if times else now
        return now - moment if how == "ago" else moment + timedelta(microseconds=how == "after")

    rules = {"b.*": cutoff(of_branches), "v.*": cutoff(of_tags), ".*": cutoff(default)}

    def cutoff_of(name: str) -> Any:
        return rules[f"{name[0]}.*" if name[0] in "bv" else ".*"]

    for state_at_cutoff, oracle in ((False, apply_plain_rule), (True, apply_readable_rule)):
        refs = [{"match": match, "cutoff": _rule(value, now)} for match, value in rules.items()]
        found = run_retention(builder.config(retention={"refs": refs, "state_at_cutoff": state_at_cutoff}), now)
        assert contents(found) == oracle(builder.api, cutoff_of, now)
        if state_at_cutoff:
            assert contents(found) >= contents_since_cutoff(builder.api, cutoff_of, now)
        else:
            assert {commit for commit, state in states(found).items() if state == "retained"} == _select_retained(builder, cutoff_of, now)


def _select_retained(builder: NessieBuilder, cutoff_of: Callable[[str], Any], now: datetime) -> set[str]:
    references = builder.api.get("trees").json()["references"]
    return {
        commit.hash for item in references for commit in select_retained(walk_log(builder.api, item["hash"]), cutoff_of(item["name"]), now)
    }


def _rule(value: Any, now: datetime) -> Any:
    """Return the value for `lakes.yaml`. Durations become timestamps, because they may be below a second."""
    if isinstance(value, timedelta):
        return now - value
    return "none" if value is None else value


def test_contents_before_commit_in_microsecond_of_cutoff_are_kept(nessie: Server, tmp_path: Path) -> None:
    """The server compares nanoseconds. The cut-off is the commit's time without them, so the commit is after it."""
    builder = NessieBuilder(nessie.uri, tmp_path)
    for number in (1, 2):
        known = builder.content(["t"]) if number > 1 else None
        location = f"file:///lake/t/metadata/{number:05}.metadata.json"
        builder.commit([put(["t"], iceberg_table(location, number, known and known["id"]))])
    (text, *_) = (entry["commitMeta"]["commitTime"] for entry in builder.api.get("trees/main/history").json()["logEntries"])
    cutoff = datetime.fromisoformat(text)
    refs = [{"match": ".*", "cutoff": cutoff.isoformat()}]
    found = run_retention(builder.config(retention={"refs": refs, "state_at_cutoff": True}), datetime.now(UTC))
    assert contents(found) == contents_since_cutoff(builder.api, lambda _: cutoff, datetime.now(UTC))
    assert len(contents(found)) == (2 if cutoff < parse_time(text) else 1)
