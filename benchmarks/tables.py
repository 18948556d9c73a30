"""Measurements as tables in Markdown, ready for docs/performance.md, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.comparison import Measured

MIB = 1024 * 1024


def summary(measured: Sequence[Measured]) -> Iterator[str]:
    """One line a night or pass; where the peer did the same, with our wall time as a share of the peer's."""
    yield "| night | start | who | wall s | CPU s | peak MiB | of it driver | of it JVM | Spark jobs | live | unreferenced | ours / peer |"
    yield "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    peers = {(item.night, item.cold): item.wall for item in measured if item.who == "peer"}
    for item in sorted(measured, key=lambda item: (item.night, not item.cold, item.who)):
        total = item.answer["total"]
        stages = item.answer.get("stages", [])
        peer = peers.get((item.night, item.cold)) if item.who != "peer" else None
        cells = [
            item.night,
            "cold" if item.cold else "warm",
            item.who,
            f"{item.wall:.1f}" if item.wall >= 1 else f"{item.wall:.2f}",
            f"{item.cpu:.1f}" if item.cpu >= 1 else f"{item.cpu:.2f}",
            f"{total['peak_bytes'] / MIB:,.0f}",
            f"{total['peak_driver_bytes'] / MIB:,.0f}",
            f"{total['peak_jvm_bytes'] / MIB:,.0f}",
            str(sum(stage["jobs"] for stage in stages)) if stages else "",
            f"{item.answer['live_files']:,}" if "live_files" in item.answer else "",
            f"{item.answer['unreferenced']:,}" if item.answer["unreferenced"] is not None else "",
            f"{item.wall / peer:.2f}" if peer else "",
        ]
        yield "| " + " | ".join(cells) + " |"


def stages(item: Measured) -> Iterator[str]:
    """One line a stage of one of our nights."""
    yield "| stage | wall s | CPU s | peak MiB | rows | rows/s | Spark jobs |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for stage in item.answer["stages"]:
        rate = f"{stage['rows'] / stage['wall']:,.0f}" if stage["rows"] else ""
        rows = f"{stage['rows']:,}" if stage["rows"] else ""
        peak = f"{stage['peak_bytes'] / MIB:,.0f}" if stage["peak_bytes"] else ""
        yield f"| {stage['stage']} | {stage['wall']:.2f} | {stage['cpu']:.2f} | {peak} | {rows} | {rate} | {stage['jobs'] or ''} |"


def as_objects(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    return [asdict(item) for item in measured]
