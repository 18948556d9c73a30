"""Random histories on a real server: what is live by our arrays and by two plain rules that share no code with them."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.lakes.nessie.builder import NessieBuilder, delete, iceberg_table, put
from tests.lakes.nessie.server import Server
from tests.lakes.nessie.support import contents, kept_commits, log_of, plain_rule, readable_rule, retention_of, states

KEYS = [("t",), ("a.b",), ("ä/ö",), ("v",)]


def grow(builder: NessieBuilder, rnd: random.Random, steps: int) -> None:
    """Puts, deletes, renames, branches, tags, merges, transplants, drops and resets, in an order that the seed decides."""
    for number in range(steps):
        references = builder.api.get("trees").json()["references"]
        branches = [item["name"] for item in references if item["type"] == "BRANCH"]
        branch, key = rnd.choice(branches), rnd.choice(KEYS)
        act = rnd.random()
        known = builder.content(key, branch)
        if act < 0.5 or len(builder.api.get(f"trees/@{builder.head(branch)}/history").json()["logEntries"]) == 0:
            operations = [put(key, _content(number, known))]
            if rnd.random() < 0.3 and (other := rnd.choice(KEYS)) != key:
                operations.append(put(other, _content(1000 + number, builder.content(other, branch))))
            builder.commit(operations, branch)
        elif act < 0.6 and known is not None:
            builder.commit([delete(key)], branch)
        elif act < 0.68 and known is not None:
            free = [other for other in KEYS if builder.content(other, branch) is None]
            if free:
                builder.commit([delete(key), put(free[0], known)], branch)
        elif act < 0.76:
            builder.branch(f"b{number}", branch)
        elif act < 0.82:
            builder.tag(f"v{number}", branch)
        elif act < 0.88:
            builder.assign(branch, rnd.choice(log_of(builder.api, builder.head(branch))).hash)
        elif act < 0.94:
            others = [item["name"] for item in references if item["name"] != "main"]
            if others:
                builder.drop(rnd.choice(others))
        else:
            source = rnd.choice(branches)
            # Conflicts are the server's to refuse; then nothing has happened, which is a step too.
            body = {"fromRefName": source, "fromHash": builder.head(source)}
            builder.api.post(f"trees/{branch}@{builder.head(branch)}/history/merge", json=body)


def _content(number: int, known: dict[str, Any] | None) -> dict[str, Any]:
    content_id = None if known is None else known["id"]
    return iceberg_table(f"file:///lake/t/metadata/{number:05}.metadata.json", number if number % 3 else -1, content_id)


@pytest.mark.parametrize("seed", range(100))
def test_live_contents_are_those_of_the_plain_rules(nessie: Server, tmp_path: Path, seed: int) -> None:
    rnd = random.Random(seed)
    builder = NessieBuilder(nessie.uri, tmp_path)
    grow(builder, rnd, rnd.randint(2, 25))
    now = datetime.now(UTC)
    times = sorted({commit.at for item in builder.api.get("trees").json()["references"] for commit in log_of(builder.api, item["hash"])})
    moments = [now + timedelta(seconds=1), *times, *(at + timedelta(microseconds=1) for at in times)]

    def drawn() -> Any:
        return rnd.choice([None, rnd.randint(1, 6), rnd.choice(moments), now - rnd.choice(moments)])

    rules = {"b.*": drawn(), "v.*": drawn()}
    default = drawn()

    def cutoff_of(name: str) -> Any:
        return rules["b.*"] if name[0] == "b" else rules["v.*"] if name[0] == "v" else default

    for state_at_cutoff, oracle in ((False, plain_rule), (True, readable_rule)):
        config = builder.config(
            retention={
                "default": _rule(default, now),
                "refs": [{"match": match, "cutoff": _rule(value, now)} for match, value in rules.items()],
                "state_at_cutoff": state_at_cutoff,
            }
        )
        found = retention_of(config, now)
        assert contents(found) == oracle(builder.api, cutoff_of, now)
        if not state_at_cutoff:
            assert {commit for commit, state in states(found).items() if state == "retained"} == _kept(builder, cutoff_of, now)


def _kept(builder: NessieBuilder, cutoff_of: Callable[[str], Any], now: datetime) -> set[str]:
    references = builder.api.get("trees").json()["references"]
    return {commit.hash for item in references for commit in kept_commits(log_of(builder.api, item["hash"]), cutoff_of(item["name"]), now)}


def _rule(value: Any, now: datetime) -> Any:
    """As `lakes.yaml` says it; a duration of less than a second it cannot say, so that is said as a moment."""
    if isinstance(value, timedelta):
        return now - value
    return "none" if value is None else value
