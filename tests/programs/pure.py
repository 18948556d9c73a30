"""Programs over the pure functions: the random tests of each kind, as many examples as asked for, from a seed.

The tests draw histories and hold the verdicts of `retain` (graph, retention, what refs reach, edits) against rules that are written down a
second time. In the suite they try hundreds of histories, here thousands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.lakes.iceberg import test_retention_random as iceberg
from tests.lakes.icechunk import test_retention_trees as icechunk
from tests.lakes.lakefs import test_retention_random as lakefs
from tests.lakes.nessie import test_retention_forests as nessie

SEMANTICS: Final = st.sampled_from(["seed", "icechunk-v1"])
Strategies = tuple[st.SearchStrategy[Any], ...]
PROGRAMS: Final[dict[str, list[tuple[Callable[..., None], Strategies]]]] = {
    "iceberg": [
        (iceberg.test_retention_of_random_histories_matches_the_oracle, (iceberg.histories(),)),
        (iceberg.test_snapshot_is_kept_until_keep_until, (iceberg.histories(),)),
    ],
    "icechunk": [
        (icechunk.test_kept_snapshots_stay_in_the_history_of_their_ref, (icechunk.histories(), SEMANTICS)),
        (icechunk.test_states_equal_reachability_after_planned_edits, (icechunk.histories(), SEMANTICS)),
        (icechunk.test_partial_edits_leave_exactly_the_rest, (icechunk.histories(), SEMANTICS, st.data())),
    ],
    "lakefs": [(lakefs.test_random_repositories_keep_the_active_commits, (lakefs.repositories(),))],
    "nessie": [
        (
            nessie.test_live_contents_of_random_logs_match_the_oracle,
            (nessie.forests(), nessie.CUTOFFS, nessie.CUTOFFS, nessie.CUTOFFS, st.booleans(), st.sampled_from([None, None, 2])),
        )
    ],
}


def play(kind: str, programs: int, number: int) -> int:
    """Tries so many histories of a kind, and returns how many were tried. Raises `AssertionError` with the smallest that breaks a rule."""
    for test, strategies in PROGRAMS[kind]:
        drawn = given(*strategies)(test.hypothesis.inner_test)  # pyright: ignore[reportFunctionMemberAccess]  (Hypothesis adds it)
        bounded = settings(
            max_examples=programs,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        seed(number)(bounded(drawn))()
    return programs * len(PROGRAMS[kind])
