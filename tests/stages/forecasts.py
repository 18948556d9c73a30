"""What `what_if` says of a night, beside the night that really comes under another policy."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from gc_assets.config.models import LakeConfig
from gc_assets.core.plan import Amount
from gc_assets.stages.read.scenarios import Scenario
from gc_assets.stages.read.what_if import Comparison
from gc_assets.stages.sweep.live_filter import live_filter
from gc_assets.stages.sweep.orphan_files import orphan_files
from gc_assets.stages.sweep.storage_inventory import storage_inventory
from tests.stages.lakehouse import Lakehouse


@dataclass(frozen=True)
class Forecast:
    """The orphans of a night under a scenario, key to size, and the amounts that `what_if` tells."""

    orphans: dict[str, int]
    freed: Amount
    kept: Amount


def orphan_sizes(house: Lakehouse) -> dict[str, int]:
    """The orphans of tonight, key to size."""
    return {row["key"]: row["size_bytes"] for row in house.rows("orphan_files")}


def forecast_orphans(house: Lakehouse, scenarios: Sequence[Scenario]) -> list[Forecast]:
    tonight = orphan_sizes(house)
    with ExitStack() as scratch:
        judgement = Comparison.of(house.spark, house.run_context(), scenarios, scratch)
        effects, rows = judgement.effects(), judgement.files(house.storage).collect()
    assert len({row["key"] for row in rows}) == len(rows)
    found: list[Forecast] = []
    for bit, effect in enumerate(effects, 1):
        freed = {row["key"]: row["size_bytes"] for row in rows if row["live"] & 1 and not row["live"] >> bit & 1}
        kept = {row["key"] for row in rows if row["live"] >> bit & 1 and not row["live"] & 1}
        orphans = {key: size for key, size in tonight.items() if key not in kept} | freed
        found.append(Forecast(orphans, effect.freed, effect.kept))
    return found


def orphans_under_policy(house: Lakehouse, lakes: Sequence[LakeConfig]) -> dict[str, int]:
    """The orphans of the same night as it really comes under these policies, of the refs and the listing that it froze."""
    with _copied_state(house) as state:
        return _sweep_inventory(replace(house, lakes=list(lakes), state=str(state)))


def orphans_with_new_refs(house: Lakehouse, lakes: Sequence[LakeConfig]) -> dict[str, int]:
    """The orphans of the same night under these policies, as it really comes when refs and storage are read afresh."""
    with _copied_state(house) as state:
        for lake in house.lakes:
            shutil.rmtree(state / lake.name / "lake_refs")
        return sweep_orphans(replace(house, lakes=list(lakes), state=str(state)))


def sweep_orphans(house: Lakehouse) -> dict[str, int]:
    """The orphans of a whole night up to its sweep."""
    storage_inventory(house.spark, house.run_context(), house.storage)
    return _sweep_inventory(house)


@contextmanager
def _copied_state(house: Lakehouse) -> Generator[Path]:
    """A copy of the state, with all that was decoded, for a night that leaves the house's own alone."""
    with TemporaryDirectory(dir=house.root) as folder:
        yield Path(shutil.copytree(house.root / "state", Path(folder) / "state"))


def _sweep_inventory(house: Lakehouse) -> dict[str, int]:
    house.mark()
    live_filter(house.spark, house.run_context(), house.storage)
    orphan_files(house.spark, house.run_context(), house.storage)
    return orphan_sizes(house)


def difference(before: dict[str, int], after: dict[str, int]) -> tuple[Amount, Amount]:
    """What came to the orphans and what left them."""
    freed, kept = after.keys() - before.keys(), before.keys() - after.keys()
    return (
        Amount(files=len(freed), bytes=sum(after[key] for key in freed)),
        Amount(files=len(kept), bytes=sum(before[key] for key in kept)),
    )
