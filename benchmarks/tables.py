"""Format measurements as Markdown tables for docs/performance.md, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any, Final

from benchmarks.comparison import Measurement
from benchmarks.results import Change, Report, Result
from benchmarks.targets import Row, Unit

MIB = 1024 * 1024
# Longer values are printed in minutes.
MINUTES_FROM: Final = 120.0
LONGEST_STEPS: Final = 6
_FORMATS: Final[Mapping[Unit, str]] = {
    "ratio": "{:.2f}",
    "times": "{:.2f} times",
    "MiB": "{:,.0f} MiB",
    "bytes": "{:.2f} bytes",
    "lines": "{:,.0f} lines",
    "jobs": "{:.0f}",
    "files/s": "{:,.0f} files/s",
}
PAGE_COLUMNS: Final = 100


def format_summary(measured: Sequence[Measurement]) -> Iterator[str]:
    """Yield one line per run. If the peer was measured, include the ratio of our wall time to that
    of the peer.
    """
    yield "| run | start | tool | wall s | CPU s | peak MiB | of it driver | of it JVM | Spark jobs | live | unreferenced | ours / peer |"
    yield "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    peers = {(item.run, item.cold): item.wall for item in measured if item.tool == "peer"}
    for item in sorted(measured, key=lambda item: (item.run, not item.cold, item.tool)):
        total = item.answer["total"]
        stages = item.answer.get("stages", [])
        peer = peers.get((item.run, item.cold)) if item.tool != "peer" else None
        cells = [
            item.run,
            "cold" if item.cold else "warm",
            item.tool,
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


def format_stages(item: Measurement) -> Iterator[str]:
    """Yield one line per stage of one of our runs."""
    yield "| stage | wall s | CPU s | peak MiB | rows | rows/s | Spark jobs |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for stage in item.answer["stages"]:
        rate = f"{stage['rows'] / stage['wall']:,.0f}" if stage["rows"] else ""
        rows = f"{stage['rows']:,}" if stage["rows"] else ""
        peak = f"{stage['peak_bytes'] / MIB:,.0f}" if stage["peak_bytes"] else ""
        yield f"| {stage['stage']} | {stage['wall']:.2f} | {stage['cpu']:.2f} | {peak} | {rows} | {rate} | {stage['jobs'] or ''} |"


def as_objects(measured: Sequence[Measurement]) -> list[dict[str, Any]]:
    return [asdict(item) for item in measured]


def format_rows(rows: Iterable[Row], seconds: Mapping[str, float]) -> Iterator[str]:
    """Yield the rows with their targets and the expected seconds of one repeat of their group."""
    yield "| name | row | target | group | seconds |"
    yield "|---|---|---:|---|---:|"
    for row in rows:
        by = row.group or ""
        known = f"{seconds[by]:,.0f}" if by in seconds else ""
        with_ = f"{by}, on request" if row.on_request else by or f"not built: {row.not_built}"
        yield f"| `{row.name}` | {row.title} | {_format_value(row.unit, row.target)} | {with_} | {known} |"


def format_verdicts(report: Report, compared: Mapping[str, Change] | None = None) -> Iterator[str]:
    """Yield a line about the machine and one line per row. With an earlier run, include the ratio
    to it.
    """
    machine = report.machine
    archive = "with" if machine.class_archive else "without"
    yield from wrap(
        f"Commit {report.commit or 'unknown'}, {report.at:%Y-%m-%d %H:%M} UTC, median of {report.repeat}: {machine.cores} cores, "
        f"{machine.memory_bytes / 2**30:.0f} GiB, Python {machine.python}, Java {machine.java or 'unknown'} {archive} class archive, "
        f"load {machine.load_before:.1f} before and {machine.load_after:.1f} after.",
        PAGE_COLUMNS,
    )
    yield ""
    further = ["now / earlier"] if compared is not None else []
    yield "| " + " | ".join(["", "target", "measured", "range", "verdict", *further, "details"]) + " |"
    yield "|" + "|".join(["---", "---:", "---:", "---:", "---", *["---"] * len(further), "---"]) + "|"
    for result in report.results:
        row, measured = result.row, result.outcome == "measured"
        cells = [
            row.title,
            _format_value(row.unit, row.target),
            _format_value(row.unit, result.median) if result.median is not None and measured else "",
            _format_range(result),
            f"**{result.verdict}**" if result.verdict == "missed" else result.verdict,
        ]
        if compared is not None:
            change = compared.get(row.name)
            cells.append(f"{change.ratio:.2f}, {change.trend}" if change is not None else "")
        yield "| " + " | ".join([*cells, _format_details(result) if measured else _one_line(result.reason)]) + " |"


def format_longest_steps(report: Report) -> Iterator[str]:
    """Yield the longest steps of each row that misses its target, if its steps are known."""
    missed = [result for result in report.results if result.verdict == "missed" and result.steps()]
    if not missed:
        return
    yield "| missed | seconds of the longest steps; steps can be nested |"
    yield "|---|---|"
    for result in missed:
        longest = list(result.steps().items())[:LONGEST_STEPS]
        yield f"| {result.row.title} | " + ", ".join(f"`{name}` {seconds:.2f}" for name, seconds in longest) + " |"


def format_changes(earlier: Report, compared: Mapping[str, Change]) -> Iterator[str]:
    """Yield the rows that became worse or better by more than their range."""
    yield f"Compared with commit {earlier.commit or 'unknown'} of {earlier.at:%Y-%m-%d %H:%M} UTC ({len(compared)} rows in both):"
    yield ""
    for trend in ("worse", "better"):
        found = [f"{change.row.title} ({change.ratio:.2f})" for change in compared.values() if change.trend == trend]
        yield from wrap(f"- {trend} by more than its range: {', '.join(found) or 'nothing'}", PAGE_COLUMNS, subsequent_indent="  ")
    single = sum(change.trend == "one run each" for change in compared.values())
    if single:
        yield f"- {single} rows were measured once in each run, so their range is unknown"


def _format_range(result: Result) -> str:
    if result.value_range is None:
        return ""
    return f"{_format_value(result.row.unit, min(result.values))} to {_format_value(result.row.unit, max(result.values))}"


def _format_value(unit: Unit, value: float) -> str:
    if unit != "s":
        return _FORMATS[unit].format(value)
    return f"{value / 60:.1f} min" if value >= MINUTES_FROM else f"{value:.1f} s" if value >= 1 else f"{value:.2f} s"


def _format_details(result: Result) -> str:
    """Format details such as `ours 12.1 s, peer 24.0 s`. The name of a figure ends with a comma and
    its unit.
    """
    return ", ".join(_format_detail(name, value) for name, value in result.details().items())


def _format_detail(name: str, value: float) -> str:
    what, _, unit = name.partition(", ")
    figure = f"{value:,.0f}" if value >= 100 or not unit else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
    return f"{what} {figure} {unit}".rstrip()


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
