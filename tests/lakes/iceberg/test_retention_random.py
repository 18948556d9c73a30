"""Compare the retention of random histories with a second implementation by sets and recursion."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.depth import example_count
from tests.lakes.iceberg.snapshot_histories import AS_OF, DAY, DAY_MS, actions, branch, commit, run_retention, source, tag

AGES = st.integers(0, 12)  # days: few values, so that times and cut-offs are often equal
SOME_DAYS = st.integers(1, 12)  # an override of 0 is refused


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


@st.composite
def histories(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(1, 12))
    snapshots = {}
    for index in range(count):
        parents = [None, "gone", *(f"s{i}" for i in range(index))]
        # Mostly chains, with times in any order.
        parent = f"s{index - 1}" if index and draw(st.booleans()) else draw(st.sampled_from(parents))
        snapshots[f"s{index}"] = (parent, draw(AGES))
    names = draw(st.lists(st.sampled_from(["main", "dev", "rel", "v1", "v2", "v3"]), unique=True, max_size=6))
    refs = {
        name: {
            "tag": name.startswith("v"),
            "head": f"s{draw(st.integers(0, count - 1))}",
            "min": draw(maybe(st.integers(1, 4))),
            "age": draw(maybe(AGES)),
            "ref_age": draw(maybe(AGES)),
        }
        for name in names
    }
    rule = st.sampled_from(["forever", "2", "3d", "7d", "at", "both"])
    return {
        "snapshots": snapshots,
        "refs": refs,
        "table": {"min": draw(maybe(st.integers(1, 4))), "age": draw(maybe(AGES)), "ref_age": draw(maybe(AGES))},
        "override": {"min": draw(maybe(st.integers(1, 4))), "age": draw(maybe(SOME_DAYS)), "ref_age": draw(maybe(SOME_DAYS))},
        "rules": draw(st.lists(st.tuples(st.sampled_from(["main", "v.*", "dev|rel", "v1", "ma"]), rule), max_size=2)),
        "keep_tags": draw(st.booleans()),
        "grace": draw(st.sampled_from([None, None, None, 0, 3])),
    }


RULES: dict[str, dict[str, Any]] = {
    "forever": {"keep": "forever"},
    "2": {"keep": 2},
    "3d": {"keep": "3d"},
    "7d": {"keep": "7d"},
    "at": {"keep": (AS_OF - 6 * DAY).isoformat()},
    "both": {"max_age": "3d", "keep_last": 3},
}
MATCHES = {"main": {"main"}, "v.*": {"v1", "v2", "v3"}, "dev|rel": {"dev", "rel"}, "v1": {"v1"}, "ma": set[str]()}


def expected_result(history: dict[str, Any]) -> tuple[set[str], dict[str, set[str]], set[str]]:
    """Return the kept snapshots, the refs that reach each snapshot, and the lapsed refs. Ages are in days."""
    snapshots, refs = history["snapshots"], history["refs"]

    def ancestry(name: str | None) -> list[str]:
        return [name, *ancestry(snapshots[name][0])] if name in snapshots else []

    def setting(key: str, ref: dict[str, Any] | None, default: float) -> float:
        for setting_values in (ref or {}, history["override"], history["table"]):
            if setting_values.get(key) is not None:
                return setting_values[key]
        return default

    def limits(name: str, ref: dict[str, Any]) -> tuple[float, float, float]:
        """Return the maximum ages of the ref and of its snapshots, and the number of newest snapshots."""
        rule = next((rule for pattern, rule in history["rules"] if name in MATCHES[pattern]), None)
        if rule is None:
            return setting("ref_age", ref, 1e9), setting("age", ref, 5), setting("min", ref, 1)
        age, count = {"forever": (1e9, 1), "2": (-1e9, 2), "3d": (3, 1), "7d": (7, 1), "at": (6, 1), "both": (3, 3)}[rule]
        tag_lives = 1e9 if rule in {"2", "both"} else age
        return (tag_lives if ref["tag"] else 1e9), age, count

    kept_refs, kept, on_branch = set(), set(), set()
    for name, ref in refs.items():
        ref_age, age, count = limits(name, ref)
        if name != "main" and not (ref["tag"] and history["keep_tags"]) and snapshots[ref["head"]][1] > ref_age:
            continue
        kept_refs.add(name)
        kept.add(ref["head"])
        on_branch.add(ref["head"])
        if not ref["tag"]:
            on_branch.update(ancestry(ref["head"]))
            for nth, ancestor in enumerate(ancestry(ref["head"])):
                if nth >= count and snapshots[ancestor][1] > age:
                    break
                kept.add(ancestor)
    kept |= {name for name in snapshots if name not in on_branch and snapshots[name][1] <= setting("age", None, 5)}
    if history["grace"] is not None:
        kept |= {name for name in snapshots if snapshots[name][1] <= history["grace"]}
    reached = {name: {ref_name for ref_name, ref in refs.items() if name in ancestry(ref["head"])} for name in snapshots}
    return kept, reached, set(refs) - kept_refs


def milliseconds(names: dict[str, str], values: dict[str, Any]) -> dict[str, int]:
    return {full: values[short] * (1 if short == "min" else DAY_MS) for short, full in names.items() if values.get(short) is not None}


@settings(max_examples=example_count(200, 500), deadline=None)
@given(histories())
def test_retention_of_random_histories_matches_the_oracle(history: dict[str, Any]) -> None:
    names = {"min": "min_snapshots_to_keep", "age": "max_snapshot_age_ms", "ref_age": "max_ref_age_ms"}
    refs = [(tag if ref["tag"] else branch)(name, ref["head"], **milliseconds(names, ref)) for name, ref in history["refs"].items()]
    override = history["override"]
    policy: dict[str, Any] = {
        "refs": [{"match": pattern, **RULES[rule]} for pattern, rule in history["rules"]],
        "tags": "keep" if history["keep_tags"] else "policy",
        "min_snapshots_to_keep": override["min"],
        "max_snapshot_age": None if override["age"] is None else timedelta(days=override["age"]),
        "max_ref_age": None if override["ref_age"] is None else timedelta(days=override["ref_age"]),
    }
    commits = [commit(name, parent, age) for name, (parent, age) in history["snapshots"].items()]

    result = run_retention(commits, refs, source(**milliseconds(names, history["table"])), policy=policy, grace_days=history["grace"])

    kept, reached, lapsed = expected_result(history)
    for row in result.reachable.to_pylist():
        name = row["commit_id"]
        state = "retained" if name in kept else "expired" if reached[name] else "dangling"
        assert (row["state"], set(row["refs"]), row["refs_count"]) == (state, reached[name], len(reached[name])), name
        assert row["reason"].startswith({"retained": "kept: ", "expired": "expired: ", "dangling": "dangling: "}[state])
        assert row["keep_until"] is None or (state == "retained" and row["keep_until"] >= AS_OF)
    assert {name for name, _ in actions(result, "remove_snapshot")} == set(history["snapshots"]) - kept
    assert {name for _, name in actions(result, "delete_ref")} == lapsed


@settings(max_examples=100, deadline=None)
@given(histories())
def test_snapshot_is_kept_until_keep_until(history: dict[str, Any]) -> None:
    """Without new commits, the rule of a kept snapshot still keeps it at that time."""
    names = {"min": "min_snapshots_to_keep", "age": "max_snapshot_age_ms", "ref_age": "max_ref_age_ms"}
    refs = [(tag if ref["tag"] else branch)(name, ref["head"], **milliseconds(names, ref)) for name, ref in history["refs"].items()]
    own = source(**milliseconds(names, history["table"]))
    commits = [commit(name, parent, age) for name, (parent, age) in history["snapshots"].items()]
    for row in run_retention(commits, refs, own).reachable.to_pylist():
        if row["keep_until"] is not None:
            days = (row["keep_until"] - AS_OF) / DAY
            later = [commit(name, parent, age + days) for name, (parent, age) in history["snapshots"].items()]
            states = {item["commit_id"]: item["state"] for item in run_retention(later, refs, own).reachable.to_pylist()}
            assert states[row["commit_id"]] == "retained"
