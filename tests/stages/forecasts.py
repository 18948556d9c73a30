"""Compare the result of `what_if` with a real run under another policy."""

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
    """The orphans under a scenario (key to size), and the amounts that `what_if` returns."""

    orphans: dict[str, int]
    freed: Amount
    kept: Amount


def orphan_sizes(house: Lakehouse) -> dict[str, int]:
    """Map each orphan of this run to its size."""
    return {row["key"]: row["size_bytes"] for row in house.rows("orphan_files")}


def forecast_orphans(house: Lakehouse, scenarios: Sequence[Scenario]) -> list[Forecast]:
    current = orphan_sizes(house)
    with ExitStack() as scratch:
        comparison = Comparison.of(house.spark, house.run_context(), scenarios, scratch)
        effects, rows = comparison.effects(), comparison.files(house.storage).collect()
    assert len({row["key"] for row in rows}) == len(rows)
    found: list[Forecast] = []
    for bit, effect in enumerate(effects, 1):
        freed = {row["key"]: row["size_bytes"] for row in rows if row["live"] & 1 and not row["live"] >> bit & 1}
        kept = {row["key"] for row in rows if row["live"] >> bit & 1 and not row["live"] & 1}
        orphans = {key: size for key, size in current.items() if key not in kept} | freed
        found.append(Forecast(orphans, effect.freed, effect.kept))
    return found


def orphans_under_policy(house: Lakehouse, lakes: Sequence[LakeConfig]) -> dict[str, int]:
    """Return the orphans of a run under these policies, with the same frozen refs and listing."""
    with _copied_state(house) as state:
        return _sweep_inventory(replace(house, lakes=list(lakes), state=str(state)))


def orphans_with_new_refs(house: Lakehouse, lakes: Sequence[LakeConfig]) -> dict[str, int]:
    """Return the orphans of a run under these policies that reads refs and storage again."""
    with _copied_state(house) as state:
        for lake in house.lakes:
            shutil.rmtree(state / lake.name / "lake_refs")
        return sweep_orphans(replace(house, lakes=list(lakes), state=str(state)))


def sweep_orphans(house: Lakehouse) -> dict[str, int]:
    """Run all stages up to the sweep and return its orphans."""
    storage_inventory(house.spark, house.run_context(), house.storage)
    return _sweep_inventory(house)


@contextmanager
def _copied_state(house: Lakehouse) -> Generator[Path]:
    """Yield a copy of the state, including the cache of decoded containers."""
    with TemporaryDirectory(dir=house.root) as folder:
        yield Path(shutil.copytree(house.root / "state", Path(folder) / "state"))


def _sweep_inventory(house: Lakehouse) -> dict[str, int]:
    house.mark()
    live_filter(house.spark, house.run_context(), house.storage)
    orphan_files(house.spark, house.run_context(), house.storage)
    return orphan_sizes(house)


def difference(before: dict[str, int], after: dict[str, int]) -> tuple[Amount, Amount]:
    """Return the amounts of added and of removed orphans."""
    freed, kept = after.keys() - before.keys(), before.keys() - after.keys()
    return (
        Amount(files=len(freed), bytes=sum(after[key] for key in freed)),
        Amount(files=len(kept), bytes=sum(before[key] for key in kept)),
    )
