"""Where the bytes of a storage go, as the steps of its waterfall. Pure: facts of `orphan_files` in, amounts out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gc_assets.report.waterfall import Step

Amounts = Mapping[str, Mapping[str, int]]


def steps_of(orphans: Mapping[str, Any]) -> list[Step]:
    """The waterfall of a storage, from the facts of its `orphan_files`."""
    shares: Amounts = orphans["waterfall"]
    held = _sum({name: amount for name, amount in orphans["by_reason"].items() if name.startswith("expired/")})
    garbage = _sum({name: amount for name, amount in orphans["by_reason"].items() if not name.startswith("expired/")})
    nothing = {"files": 0, "bytes": 0}
    total, live, unowned, young = _sum(shares), *(shares.get(name, nothing) for name in ("live", "unowned", "young"))
    return [
        Step("stored", total["bytes"], total["files"], "total"),
        Step("live", live["bytes"], live["files"], "kept"),
        Step("unowned", unowned["bytes"], unowned["files"], "kept"),
        Step("within the grace period", young["bytes"], young["files"], "kept"),
        Step("expired history", held["bytes"], held["files"], "held"),
        Step("garbage", garbage["bytes"], garbage["files"], "garbage"),
    ]


def _sum(amounts: Amounts) -> dict[str, int]:
    return {unit: sum(amount[unit] for amount in amounts.values()) for unit in ("files", "bytes")}
