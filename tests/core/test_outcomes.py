"""Counts and descriptions of outcomes with remaining work."""

from __future__ import annotations

from gc_assets.core.outcomes import describe_not_done, select_not_done


def test_done_and_absent_outcomes_count_as_completed() -> None:
    counts = {"quarantine/done": 3, "purge/absent": 2, "purge/changed": 1, "expire/denied": 4, "abort/failed": 5, "restore/failed": 0}
    assert select_not_done(counts) == {"purge/changed": 1, "expire/denied": 4, "abort/failed": 5}


def test_outcome_description_contains_subjects_phases_and_outcomes() -> None:
    text = describe_not_done({"expire/denied": 4, "abort/failed": 5, "quarantine/changed": 1_000})
    assert text == "5 uploads of phase abort (failed), 4 history edits of phase expire (denied), 1,000 files of phase quarantine (changed)"
