"""Measurements as tables in Markdown, ready for docs/performance.md, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any, Final

from benchmarks.comparison import Measured
from benchmarks.results import Change, Report, Result
from benchmarks.targets import Row, Unit

MIB = 1024 * 1024
# From so many seconds on a figure is told in minutes.
MINUTES_FROM: Final = 120.0
LONGEST_STEPS: Final = 6
PAGE_COLUMNS: Final = 100


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


def listed(rows: Iterable[Row], seconds: Mapping[str, float]) -> Iterator[str]:
    """The rows with their targets, and about how long a repeat of each takes with what is measured along."""
    yield "| name | row | to reach | measured with | about s |"
    yield "|---|---|---:|---|---:|"
    for row in rows:
        by = row.measuring or ""
        known = f"{seconds[by]:,.0f}" if by in seconds else ""
        with_ = f"{by}, on request" if row.on_request else by or f"not built: {row.not_built}"
        yield f"| `{row.name}` | {row.title} | {_value(row.unit, row.target)} | {with_} | {known} |"


def verdicts(report: Report, compared: Mapping[str, Change] | None = None) -> Iterator[str]:
    """One line a row, behind a line about the machine. With an earlier run also each row's ratio to it."""
    machine = report.machine
    archive = "with" if machine.class_archive else "without"
    yield from wrap(
        f"Commit {report.commit or 'unknown'}, {report.at:%Y-%m-%d %H:%M} UTC, median of {report.repeat}: {machine.cores} cores, "
        f"{machine.memory_bytes / 2**30:.0f} GiB, Python {machine.python}, Java {machine.java or 'unknown'} {archive} class archive, "
        f"load {machine.load_before:.1f} before and {machine.load_after:.1f} at the end.",
        PAGE_COLUMNS,
    )
    yield ""
    further = ["now / earlier"] if compared is not None else []
    yield "| " + " | ".join(["", "to reach", "measured", "least to greatest", "verdict", *further, "beside it"]) + " |"
    yield "|" + "|".join(["---", "---:", "---:", "---:", "---", *["---"] * len(further), "---"]) + "|"
    for result in report.results:
        row, measured = result.row, result.outcome == "measured"
        cells = [
            row.title,
            _value(row.unit, row.target),
            _value(row.unit, result.median) if result.median is not None and measured else "",
            f"{_value(row.unit, min(result.values))} to {_value(row.unit, max(result.values))}" if result.spread is not None else "",
            f"**{result.verdict}**" if result.verdict == "missed" else result.verdict,
        ]
        if compared is not None:
            change = compared.get(row.name)
            cells.append(f"{change.ratio:.2f}, {change.word}" if change is not None else "")
        yield "| " + " | ".join([*cells, _beside(result) if measured else _of_one_line(result.why)]) + " |"


def where_time_goes(report: Report) -> Iterator[str]:
    """The longest steps of each row that misses its target, where its steps are known."""
    missed = [result for result in report.results if result.verdict == "missed" and result.steps()]
    if not missed:
        return
    yield "| missed | where the time goes, in seconds; a step may lie within another |"
    yield "|---|---|"
    for result in missed:
        longest = list(result.steps().items())[:LONGEST_STEPS]
        yield f"| {result.row.title} | " + ", ".join(f"`{name}` {seconds:.2f}" for name, seconds in longest) + " |"


def slower(earlier: Report, compared: Mapping[str, Change]) -> Iterator[str]:
    """What got slower, or faster, by more than its spread."""
    yield f"Compared with commit {earlier.commit or 'unknown'} of {earlier.at:%Y-%m-%d %H:%M} UTC ({len(compared)} rows in both):"
    yield ""
    for word in ("slower", "faster"):
        found = [f"{change.row.title} ({change.ratio:.2f})" for change in compared.values() if change.word == word]
        yield from wrap(f"- {word} by more than its spread: {', '.join(found) or 'nothing'}", PAGE_COLUMNS, subsequent_indent="  ")
    once = sum(change.word == "one run each" for change in compared.values())
    if once:
        yield f"- {once} rows were measured once in each run, so nobody knows their spread"


def _value(unit: Unit, value: float) -> str:
    if unit == "ratio":
        return f"{value:.2f}"
    if unit == "jobs":
        return f"{value:.0f}"
    if unit == "files/s":
        return f"{value:,.0f} files/s"
    return f"{value / 60:.1f} min" if value >= MINUTES_FROM else f"{value:.1f} s" if value >= 1 else f"{value:.2f} s"


def _beside(result: Result) -> str:
    """`ours 12.1 s, peer 24.0 s`: a figure's name carries its unit behind a comma."""
    return ", ".join(_named(name, value) for name, value in result.beside().items())


def _named(name: str, value: float) -> str:
    what, _, unit = name.partition(", ")
    figure = f"{value:,.0f}" if value >= 100 or not unit else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
    return f"{what} {figure} {unit}".rstrip()


def _of_one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
