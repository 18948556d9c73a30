"""A retention of more days than the calendar has, which people write for "never", ended every run.

Source: `lakectl gc set-config` accepts up to 2,147,483,647 days (lakeFS 1.84, lakeFS #3218). 739,999 days reach before the year 1:
`OverflowError: date value out of range` in `reachable_snapshots`. Such a rule keeps everything.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gc_assets.core.units import Cutoff, parse_cutoff
from tests.lakes.lakefs.builder import RepositoryBuilder
from tests.lakes.lakefs.lakefs_lakes import FAR_FUTURE, commits_of, graph_of, serve, states

NOW = datetime.now(UTC).replace(microsecond=0)
NEVER = [739_999, 999_999, 2**31 - 1, 2**63 - 1]


@pytest.mark.parametrize("days", NEVER)
@pytest.mark.parametrize("on_branch", [False, True])
def test_retention_longer_than_the_calendar_keeps_every_commit(tmp_path: Path, days: int, *, on_branch: bool) -> None:
    """A commit dated in the year 1 is kept too, because users set the dates of commits."""
    builder = RepositoryBuilder(tmp_path, NOW - timedelta(days=4000))
    builder.commit("main", a=b"old")
    builder.now = NOW - timedelta(days=3)
    builder.commit("main", b=b"new")
    builder.repository.commits["main-1"].created = -62_135_596_800
    builder.rules(1 if on_branch else days, **({"main": days} if on_branch else {}))
    with serve(builder.repository) as (lake, _):
        refs = lake.freeze(NOW)
        retention = lake.retain(refs, graph_of(commits_of(lake, refs)), NOW, FAR_FUTURE)
    assert set(states(retention).values()) == {"retained"}
    assert any("within its retention (forever)" in reason for reason in retention.reachable["reason"].to_pylist())


def test_presigned_link_expiry_longer_than_the_calendar_keeps_every_file(tmp_path: Path) -> None:
    builder = RepositoryBuilder(tmp_path, NOW)
    with serve(builder.repository) as (lake, server):
        server.grace_period = 2**62
        assert lake.freeze(NOW).min_age_seconds >= 365_000 * 86_400


def test_cutoff_before_the_calendar_is_the_first_date() -> None:
    assert Cutoff(max_age=timedelta(days=999_999)).moment(NOW) == datetime(1, 1, 1, tzinfo=UTC)


def test_error_for_a_too_long_age_recommends_forever() -> None:
    with pytest.raises(ValueError, match="'999999d' is longer than 365000 days; write forever for no limit"):
        parse_cutoff("999999d")
