"""Compare the live contents of random logs with the oracle, without a server.

The commits of a real server (`test_retention_random`) have increasing times. These have random
times, and some branches are deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from gc_assets.lakes.nessie.config import NessieLakeConfig
from gc_assets.lakes.nessie.models import Operation
from gc_assets.lakes.nessie.operations import OPERATIONS, operation_lines
from gc_assets.lakes.nessie.retention import retain
from gc_assets.lakes.protocol import FrozenRefs, Ref
from gc_assets.state.schemas import COMMIT_GRAPH
from tests.lakes.nessie.oracle import (
    NO_GRACE,
    apply_plain_rule,
    apply_readable_rule,
    contents,
    read_state,
    select_retained,
    states,
    walk_log,
)

AS_OF = datetime(2026, 2, 1, tzinfo=UTC)
DAY = timedelta(days=1)
AGES = st.integers(0, 10)
CUTOFFS = st.one_of(st.none(), st.integers(1, 4), AGES.map(lambda age: AS_OF - age * DAY), st.integers(1, 10).map(lambda days: days * DAY))


@dataclass
class FakeApi:
    """A fake of API v2 for the oracle, with the drawn commits."""

    commits: list[dict[str, Any]]
    refs: Mapping[str, int]

    def get(self, path: str, params: object = None) -> FakeApi:
        del params
        self.request = path.split("/")
        return self

    is_success, text = True, ""

    def json(self) -> dict[str, Any]:
        if self.request == ["trees"]:
            return {"references": [{"name": name, "hash": f"c{head}"} for name, head in self.refs.items()]}
        at: int | None = int(self.request[1].removeprefix("@c"))
        log = []
        while at is not None:
            log.append(self.commits[at])
            at = log[-1]["parent"]
        if self.request[2] == "history":
            entries = [
                {"commitMeta": {"hash": item["hash"], "commitTime": item["at"].isoformat()}, "operations": item["ops"]} for item in log
            ]
            return {"logEntries": entries, "hasMore": False}
        state: dict[str, Any] = {}
        for item in reversed(log):
            for operation in item["ops"]:
                state[operation["key"]["elements"][0]] = operation.get("content")
        return {"entries": [{"content": content} for content in state.values() if content is not None], "hasMore": False}


@st.composite
def forests(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, int]]:
    count = draw(st.integers(1, 12))
    commits: list[dict[str, Any]] = []
    for index in range(count):
        parent = draw(st.sampled_from([index - 1, index - 1, draw(st.integers(0, index - 1))])) if index else None
        ops: list[dict[str, Any]] = []
        for key in draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=2, unique=True)):
            content = {
                "type": "ICEBERG_TABLE",
                "id": f"id-{key}",
                "metadataLocation": f"file:///{key}/{index}.json",
                "snapshotId": index - 1,
            }
            put = {"type": "PUT", "key": {"elements": [key]}, "content": content}
            ops.append({"type": "DELETE", "key": {"elements": [key]}} if index and draw(st.integers(0, 3)) == 0 else put)
        commits.append({"hash": f"c{index}", "parent": parent, "at": AS_OF - draw(AGES) * DAY, "ops": ops})
    names = draw(st.lists(st.sampled_from(["main", "b1", "b2", "v1", "v2"]), unique=True, max_size=5))
    return commits, {name: draw(st.integers(0, count - 1)) for name in names}


@settings(max_examples=200, deadline=None)
@given(forests(), CUTOFFS, CUTOFFS, CUTOFFS, st.booleans(), st.sampled_from([None, None, 2]))
def test_live_contents_of_random_logs_match_the_oracle(
    drawn: tuple[list[dict[str, Any]], dict[str, int]], default: Any, of_branches: Any, of_tags: Any, at_cutoff: bool, grace: int | None
) -> None:
    commits, refs = drawn
    rules = {"b.*": of_branches, "v.*": of_tags}
    retention = {
        "default": _rule(default),
        "refs": [{"match": match, "cutoff": _rule(cutoff)} for match, cutoff in rules.items()],
        "state_at_cutoff": at_cutoff,
    }
    config = NessieLakeConfig.model_validate({"name": "shop", "kind": "nessie", "uri": "http://nowhere/api/v2", "retention": retention})
    rows = [
        {
            "commit_id": item["hash"],
            "parents": [] if item["parent"] is None else [f"c{item['parent']}"],
            "committed_at": item["at"],
            "content_roots": [],
            "summary": [(OPERATIONS, "\n".join(operation_lines(map(Operation.model_validate, item["ops"]))))],
        }
        for item in commits
    ]
    pointing = tuple(Ref(name, "tag" if name[0] == "v" else "branch", f"c{head}") for name, head in refs.items())
    frozen = FrozenRefs("shop", "nessie", pointing, (), (), ())
    grace_cutoff = NO_GRACE if grace is None else AS_OF - grace * DAY

    found = retain(frozen, pa.Table.from_pylist(rows, schema=COMMIT_GRAPH.schema), AS_OF, grace_cutoff, config)

    api: Any = FakeApi(commits, refs)

    def cutoff_of(name: str) -> Any:
        return rules.get(f"{name[0]}.*", default)

    reached = {entry.hash for head in refs.values() for entry in walk_log(api, f"c{head}")}
    moment = AS_OF - default if isinstance(default, timedelta) else default
    oldest = datetime(1, 1, 1, tzinfo=UTC) if default is None else moment if isinstance(moment, datetime) else NO_GRACE
    young = {item["hash"] for item in commits if item["hash"] not in reached and item["at"] >= min(oldest, grace_cutoff)}
    live = (apply_readable_rule if at_cutoff else apply_plain_rule)(api, cutoff_of, AS_OF)
    expected = live.union(*(read_state(api, commit) for commit in young))
    assert contents(found) >= expected
    # If times decrease, the state at the cut-off is ambiguous, and more contents are kept.
    if all(item["parent"] is None or commits[item["parent"]]["at"] <= item["at"] for item in commits):
        assert contents(found) == expected
    kept = {entry.hash for name, head in refs.items() for entry in select_retained(walk_log(api, f"c{head}"), cutoff_of(name), AS_OF)}
    for commit, state in states(found).items():
        if commit not in reached:
            assert state == ("retained" if commit in young else "dangling")
        elif commit in kept or not at_cutoff:
            assert state == ("retained" if commit in kept else "expired")


def _rule(cutoff: Any) -> Any:
    return "none" if cutoff is None else f"{cutoff // DAY}d" if isinstance(cutoff, timedelta) else cutoff
