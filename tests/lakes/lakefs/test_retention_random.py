"""Active commits of random repositories, compared with a second implementation of lakeFS's rule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gc_assets.lakes.lakefs.retention import DEFAULT_RETENTION_DAYS, RETENTION_DAYS, retain
from gc_assets.lakes.protocol import Commit, CommitSource, FrozenRefs, Ref
from tests.lakes.lakefs.lakefs_lakes import config_of, graph_of

AS_OF = datetime(2026, 2, 1, tzinfo=UTC)
DAY = timedelta(days=1)
RULES: dict[str, dict[str, Any]] = {
    "forever": {"keep": "forever"},
    "2": {"keep": 2},
    "3d": {"keep": "3d"},
    "at": {"keep": (AS_OF - 6 * DAY).isoformat()},
    "both": {"max_age": "3d", "keep_last": 3},
}
# By rule: the age in days at which the parent of a commit is no longer active, and the number of commits to keep.
MEANS: dict[str, tuple[float | None, int]] = {"forever": (1e9, 0), "2": (None, 2), "3d": (3, 0), "at": (6, 0), "both": (3, 3)}


@st.composite
def repositories(draw: st.DrawFn) -> dict[str, Any]:
    """Draw commits as (parents, age in days), refs as (type, head, rule), and the default rule. Users set commit dates."""
    count = draw(st.integers(1, 12))
    commits: list[tuple[list[int], int]] = []
    for index in range(count):
        parents = draw(st.lists(st.integers(0, index - 1), max_size=2, unique=True)) if index else []
        if index and draw(st.booleans()):
            parents = [index - 1]
        commits.append((parents, draw(st.integers(0, 12))))
    is_server = draw(st.booleans())
    rule = st.none() | st.sampled_from([2, 3, 5, 7]) if is_server else st.sampled_from(list(RULES))
    names = draw(st.lists(st.sampled_from(["main", "dev", "rel", "v1", "v2"]), unique=True, max_size=5))
    refs = {name: ("tag" if name[0] == "v" else "branch", draw(st.integers(0, count - 1)), draw(rule)) for name in names}
    return {
        "commits": commits,
        "server": is_server,
        "refs": refs,
        "default": draw(rule),
        "tags": draw(st.sampled_from(["keep", "policy", "ignore"])),
        "grace": draw(st.sampled_from([None, None, 0, 2])),
    }


def expected_commits(drawn: dict[str, Any]) -> tuple[set[int], list[set[str]]]:
    """Return the kept commits, and the refs that reach each commit."""
    commits, default = drawn["commits"], drawn["default"]

    def means(rule: Any) -> tuple[float | None, int]:
        rule = default if drawn["server"] and rule is None else rule
        return MEANS[rule] if isinstance(rule, str) else (1e9 if rule is None else rule, 0)

    def first_parents(commit: int) -> list[int]:
        parents = commits[commit][0]
        return [commit, *(first_parents(parents[0]) if parents else [])]

    def ancestors(commit: int) -> set[int]:
        return {commit}.union(*map(ancestors, commits[commit][0]))

    walked = {name: ref for name, ref in drawn["refs"].items() if ref[0] == "branch" or drawn["tags"] == "policy"}
    kept = {ref[1] for ref in drawn["refs"].values() if ref[0] == "branch" or drawn["tags"] == "keep"}
    starts = [(head, means(rule), False) for _, head, rule in walked.values()]
    named = {head for _, head, _ in walked.values()} | {parents[0] for parents, _ in commits if parents}
    starts += [(commit, means(default), True) for commit in range(len(commits)) if commit not in named]
    for start, (age, count), is_loose in starts:
        chain = first_parents(start)
        kept.update(chain[: count or (0 if is_loose else 1)])
        if age is None or (is_loose and commits[start][1] >= age):
            continue
        for nth, commit in enumerate(chain):
            if nth and commits[chain[nth - 1]][1] >= age:
                break
            kept.add(commit)
    if drawn["grace"] is not None:
        kept.update(commit for commit, (_, age) in enumerate(commits) if age <= drawn["grace"])
    return kept, [{name for name, ref in drawn["refs"].items() if commit in ancestors(ref[1])} for commit in range(len(commits))]


@settings(max_examples=200, deadline=None)
@given(repositories())
def test_retention_of_random_repositories_matches_oracle(drawn: dict[str, Any]) -> None:
    is_server = drawn["server"]
    refs = [
        Ref(name, kind, f"c{head}", properties={RETENTION_DAYS: str(rule)} if is_server and rule is not None else {})
        for name, (kind, head, rule) in drawn["refs"].items()
    ]
    days = {DEFAULT_RETENTION_DAYS: str(drawn["default"])} if is_server and drawn["default"] is not None else {}
    rules = [{"match": name, **RULES[rule]} for name, (_, _, rule) in drawn["refs"].items()] if not is_server else []
    policy = {"source": "configured", "default": RULES[drawn["default"]], "refs": rules} if not is_server else {}
    commits = [
        Commit(f"c{number}", tuple(f"c{parent}" for parent in parents), AS_OF - age * DAY, ())
        for number, (parents, age) in enumerate(drawn["commits"])
    ]
    frozen = FrozenRefs("ml", "lakefs", tuple(refs), (CommitSource("dump", properties=days),), (), ())
    grace_cutoff = AS_OF + 1000 * DAY if drawn["grace"] is None else AS_OF - drawn["grace"] * DAY

    found = retain(frozen, graph_of(commits), AS_OF, grace_cutoff, config_of("http://nowhere", "ml", {**policy, "tags": drawn["tags"]}))

    kept, reaching = expected_commits(drawn)
    assert found.expiry.num_rows == 0
    for number, row in enumerate(found.reachable.to_pylist()):
        state = "retained" if number in kept else "expired" if reaching[number] else "dangling"
        assert (row["state"], set(row["refs"])) == (state, reaching[number]), number
