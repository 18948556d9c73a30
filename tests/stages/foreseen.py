"""What `what_if` says of a night, beside the night that really comes under another policy."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from gc_assets.config.models import LakeConfig
from gc_assets.core.plan import Amount
from gc_assets.stages.read.scenarios import Scenario
from gc_assets.stages.read.what_if import Judgement, what_if
from tests.stages.lakehouse import Lakehouse


@dataclass(frozen=True)
class Foreseen:
    """The orphans of a night under a scenario, key to size, and the amounts that `what_if` tells."""

    orphans: dict[str, int]
    freed: Amount
    kept: Amount


def sizes(house: Lakehouse) -> dict[str, int]:
    """The orphans of tonight, key to size."""
    return {row["key"]: row["size_bytes"] for row in house.rows("orphan_files")}


def foreseen(house: Lakehouse, scenarios: Sequence[Scenario]) -> list[Foreseen]:
    tonight, night = sizes(house), house.tonight()
    effects = what_if(house.spark, night, scenarios)
    with ExitStack() as scratch:
        rows = Judgement.of(house.spark, night, scenarios, scratch).files(house.storage).collect()
    assert len({row["key"] for row in rows}) == len(rows)
    found: list[Foreseen] = []
    for bit, effect in enumerate(effects, 1):
        freed = {row["key"]: row["size_bytes"] for row in rows if row["live"] & 1 and not row["live"] >> bit & 1}
        kept = {row["key"] for row in rows if row["live"] >> bit & 1 and not row["live"] & 1}
        orphans = {key: size for key, size in tonight.items() if key not in kept} | freed
        found.append(Foreseen(orphans, effect.freed, effect.kept))
    return found


def under_policy(house: Lakehouse, name: str, lakes: Sequence[LakeConfig]) -> dict[str, int]:
    """The orphans of the same night as it really comes under these policies, of the refs that it froze."""
    return _planned(replace(house, lakes=list(lakes), state=str(_copied(house, name))))


def with_refs_of_now(house: Lakehouse, name: str) -> dict[str, int]:
    """The orphans of the same night as it really comes when the refs are read afresh."""
    state = _copied(house, name)
    for lake in house.lakes:
        shutil.rmtree(state / lake.name / "lake_refs")
    return _planned(replace(house, state=str(state)))


def _copied(house: Lakehouse, name: str) -> Path:
    """The state with all that was decoded, for a night that leaves the house's own alone."""
    return Path(shutil.copytree(house.root / "state", house.root / f"state-{name}"))


def _planned(house: Lakehouse) -> dict[str, int]:
    house.plan()
    return sizes(house)


def difference(before: dict[str, int], after: dict[str, int]) -> tuple[Amount, Amount]:
    """What came to the orphans and what left them."""
    freed, kept = after.keys() - before.keys(), before.keys() - after.keys()
    return (
        Amount(files=len(freed), bytes=sum(after[key] for key in freed)),
        Amount(files=len(kept), bytes=sum(before[key] for key in kept)),
    )
