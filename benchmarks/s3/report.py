"""Format measurements of a bucket as Markdown tables for docs/performance.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from benchmarks.comparison import Measurement
from benchmarks.s3.run import Results
from benchmarks.tables import MIB


def lines(results: Results) -> Iterator[str]:
    """Yield the tables. CPU seconds are those of the client. Ratios compare sides of one round,
    which have the same load.
    """
    if results.listings:
        yield f"Listing {results.listings[0].keys:,} keys:\n"
        yield from _format_rates(results.listings, requests=False)
    for title, runs in zip(
        ("Requests only", "Apply in a bucket without versions", "Apply in a bucket with versions"), results.deletions, strict=False
    ):
        yield f"\n{title}, {runs[0].keys:,} keys, one in a hundred refused:\n"
        yield from _format_rates(runs, requests=True)
    if results.runs:
        yield f"\nRuns, the second after {results.added:,} new objects; containers read in both: {len(results.repeated):,}\n"
        yield from _format_runs(results.runs, results.keys)


def _format_rates(runs: Sequence[Any], *, requests: bool) -> Iterator[str]:
    """Yield one line per side: medians, and the range of the ratios to the first side."""
    yield "| tool | keys/s | keys per CPU s | CPU ms per 1,000 keys | ratio, CPU | ratio, wall |" + (" requests |" if requests else "")
    yield "|---|---:|---:|---:|---:|---:|" + ("---|" if requests else "")
    base = [run for run in runs if run.tool == runs[0].tool]
    for tool in dict.fromkeys(run.tool for run in runs):
        own = [run for run in runs if run.tool == tool]
        cells = [
            tool,
            f"{median(run.keys / run.wall for run in own):,.0f}",
            f"{median(run.keys / run.cpu for run in own):,.0f}",
            f"{median(1e6 * run.cpu / run.keys for run in own):,.1f}",
            _format_ratios([other.cpu / run.cpu for run, other in zip(own, base, strict=True)]),
            _format_ratios([other.wall / run.wall for run, other in zip(own, base, strict=True)]),
        ]
        cells += [_format_counts(own[-1].requests)] if requests else []
        yield "| " + " | ".join(cells) + " |"


def _format_ratios(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _format_counts(requests: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {kind}" for kind, number in requests.items())


def _format_runs(runs: Sequence[Measurement], keys: int) -> Iterator[str]:
    yield "| run | tool | keys / 1,000 | requests | wall s | CPU s | peak MiB | driver | workers | JVM | live | unreferenced |"
    yield "|---|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for item in runs:
        total = item.answer["total"]
        driver, jvm = total["peak_driver_bytes"], total["peak_jvm_bytes"]
        cells = [
            item.run,
            item.tool,
            f"{keys / 1000:,.1f}",
            _format_counts(item.requests),
            f"{item.wall:.1f}",
            f"{item.cpu:.1f}",
            *[f"{size / MIB:,.0f}" for size in (total["peak_bytes"], driver, max(0, total["peak_bytes"] - driver - jvm), jvm)],
            f"{item.answer['live_files']:,}" if "live_files" in item.answer else "",
            f"{item.answer['unreferenced']:,}",
        ]
        yield "| " + " | ".join(cells) + " |"
