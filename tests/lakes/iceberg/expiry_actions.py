"""Plan and run the expiry of an Iceberg lake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from gc_assets.lakes.iceberg.lake import IcebergLake
from gc_assets.lakes.protocol import ExpiryAction, ExpiryOutcome
from gc_assets.stores.local.objects import LocalObjects
from tests.lakes.iceberg.builder import LakeBuilder
from tests.lakes.iceberg.snapshot_histories import graph

START = datetime(2026, 1, 1, tzinfo=UTC)
AS_OF = datetime(2026, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)
GRACE_CUTOFF = AS_OF - 3 * DAY


def lake(builder: LakeBuilder, **settings: Any) -> IcebergLake:
    return IcebergLake(builder.config(**settings), LocalObjects())


def plan_expiry(read: IcebergLake, as_of: datetime = AS_OF, grace_cutoff: datetime = GRACE_CUTOFF) -> list[ExpiryAction]:
    """Freeze the lake and return the rows of `expiry_plan`."""
    refs = read.freeze(as_of)
    commits = [
        {
            "table_uuid": commit.table_uuid,
            "commit_id": commit.commit_id,
            "parents": list(commit.parents),
            "committed_at": commit.committed_at,
            "table_name": commit.table_name,
        }
        for source in refs.sources
        for commit in read.commits(source)
    ]
    distinct = {(row["table_uuid"], row["commit_id"]): row for row in commits}
    return [ExpiryAction(**row) for row in read.retain(refs, graph(list(distinct.values())), as_of, grace_cutoff).expiry.to_pylist()]


def run_expiry(
    read: IcebergLake, actions: Sequence[ExpiryAction], as_of: datetime = AS_OF, grace_cutoff: datetime = GRACE_CUTOFF
) -> dict[ExpiryAction, ExpiryOutcome]:
    outcomes = list(read.expire(actions, as_of, grace_cutoff))
    assert Counter(outcome.action for outcome in outcomes) == Counter(actions)
    return {outcome.action: outcome for outcome in outcomes}


def verdicts(outcomes: dict[ExpiryAction, ExpiryOutcome]) -> Counter[str]:
    return Counter(outcome.verdict for outcome in outcomes.values())
