"""Measurements of a bucket as tables in Markdown, ready for docs/performance.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from benchmarks.comparison import Measured
from benchmarks.s3.run import Results
from benchmarks.tables import MIB


def lines(results: Results) -> Iterator[str]:
    """CPU is the client's alone. A ratio is that of a round, so that both sides met the same load."""
    if results.listings:
        yield f"Listing {results.listings[0].keys:,} keys:\n"
        yield from _rates(results.listings, requests=False)
    for title, runs in zip(
        ("Requests alone", "Acts in a bucket without versions", "Acts in one with versions"), results.deletions, strict=False
    ):
        yield f"\n{title}, {runs[0].keys:,} keys, one in a hundred refused:\n"
        yield from _rates(runs, requests=True)
    if results.nights:
        yield f"\nNights, the second after {results.changed:,} new objects; containers that it asked for again: {len(results.again):,}\n"
        yield from _nights(results.nights, results.keys)


def _rates(runs: Sequence[Any], *, requests: bool) -> Iterator[str]:
    """One line a side: medians, and of the ratios to the first side also the least and the greatest."""
    yield "| who | keys/s | keys a CPU s | CPU ms a 1,000 keys | ratio, CPU | ratio, wall |" + (" requests |" if requests else "")
    yield "|---|---:|---:|---:|---:|---:|" + ("---|" if requests else "")
    base = [run for run in runs if run.who == runs[0].who]
    for who in dict.fromkeys(run.who for run in runs):
        mine = [run for run in runs if run.who == who]
        cells = [
            who,
            f"{median(run.keys / run.wall for run in mine):,.0f}",
            f"{median(run.keys / run.cpu for run in mine):,.0f}",
            f"{median(1e6 * run.cpu / run.keys for run in mine):,.1f}",
            _spread([other.cpu / run.cpu for run, other in zip(mine, base, strict=True)]),
            _spread([other.wall / run.wall for run, other in zip(mine, base, strict=True)]),
        ]
        cells += [_counts(mine[-1].requests)] if requests else []
        yield "| " + " | ".join(cells) + " |"


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _counts(requests: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {kind}" for kind, number in requests.items())


def _nights(nights: Sequence[Measured], keys: int) -> Iterator[str]:
    yield "| night | who | keys / 1,000 | requests | wall s | CPU s | peak MiB | driver | workers | JVM | live | unreferenced |"
    yield "|---|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for item in nights:
        total = item.answer["total"]
        driver, jvm = total["peak_driver_bytes"], total["peak_jvm_bytes"]
        cells = [
            item.night,
            item.who,
            f"{keys / 1000:,.1f}",
            _counts(item.requests),
            f"{item.wall:.1f}",
            f"{item.cpu:.1f}",
            *[f"{size / MIB:,.0f}" for size in (total["peak_bytes"], driver, max(0, total["peak_bytes"] - driver - jvm), jvm)],
            f"{item.answer['live_files']:,}" if "live_files" in item.answer else "",
            f"{item.answer['unreferenced']:,}",
        ]
        yield "| " + " | ".join(cells) + " |"
