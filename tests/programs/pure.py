"""Programs over the pure functions: the random tests of each kind, with any number of examples and
a seed.

The tests generate histories and compare the results of `retain` (graph, retention, reachable
objects, edits) with a second implementation of the rules. The suite tries hundreds of histories,
this module thousands.
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
        (icechunk.test_snapshot_states_match_reachability_after_planned_edits, (icechunk.histories(), SEMANTICS)),
        (icechunk.test_next_plan_contains_exactly_remaining_edits, (icechunk.histories(), SEMANTICS, st.data())),
    ],
    "lakefs": [(lakefs.test_retention_of_random_repositories_matches_oracle, (lakefs.repositories(),))],
    "nessie": [
        (
            nessie.test_live_contents_of_random_logs_match_the_oracle,
            (nessie.forests(), nessie.CUTOFFS, nessie.CUTOFFS, nessie.CUTOFFS, st.booleans(), st.sampled_from([None, None, 2])),
        )
    ],
}


def play(kind: str, programs: int, number: int) -> int:
    """Try this number of histories of a kind with each of its tests.

    Returns:
        The number of histories.

    Raises:
        AssertionError: A rule is broken. The message has the smallest failing history.
    """
    for test, strategies in PROGRAMS[kind]:
        test_function = given(*strategies)(test.hypothesis.inner_test)  # pyright: ignore[reportFunctionMemberAccess]  (Hypothesis adds it)
        bounded = settings(
            max_examples=programs,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        seed(number)(bounded(test_function))()
    return programs * len(PROGRAMS[kind])
