"""Results of a run of all benchmarks: samples, medians, verdicts, and changes between two runs.

Pure functions and values.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Literal

from pydantic import Field, computed_field

from benchmarks.targets import MORE_IS_BETTER, Model, Row

Outcome = Literal["measured", "failed", "skipped", "not built"]
Verdict = Literal["met", "missed", "failed", "skipped", "not built"]
Trend = Literal["worse", "better", "same", "one run each"]


class Sample(Model):
    """One measurement of a row.

    `details` are the figures that it was computed from or that explain it, by name. `steps` are the
    seconds of the steps, if they are known.
    """

    value: float
    details: dict[str, float] = Field(default_factory=dict[str, float])
    steps: dict[str, float] = Field(default_factory=dict[str, float])


class Result(Model):
    """A row and its samples, in the order of the repeats. `reason` states why a row failed or was
    not measured.
    """

    row: Row
    outcome: Outcome = "measured"
    samples: tuple[Sample, ...] = ()
    reason: str = ""

    @computed_field
    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.samples else None

    @computed_field
    @property
    def verdict(self) -> Verdict:
        if self.outcome != "measured":
            return self.outcome
        return "met" if self.median is not None and self.row.is_met(self.median) else "missed"

    @property
    def values(self) -> list[float]:
        return [sample.value for sample in self.samples]

    @property
    def value_range(self) -> float | None:
        """The difference between the largest and the smallest value, or None for less than two
        values.
        """
        return max(self.values) - min(self.values) if len(self.samples) > 1 else None

    def details(self) -> dict[str, float]:
        """Return the medians of the details of the samples."""
        return _medians([sample.details for sample in self.samples])

    def steps(self) -> dict[str, float]:
        """Return the median seconds of each step, the longest first."""
        found = _medians([sample.steps for sample in self.samples])
        return dict(sorted(found.items(), key=lambda item: -item[1]))


class Machine(Model):
    """The machine of a run. The load is the one-minute average before the run and at its end."""

    cores: int
    memory_bytes: int
    python: str
    java: str
    class_archive: bool
    load_before: float
    load_after: float


class Report(Model):
    """One run. `commit` ends with `+` if the checkout had uncommitted changes."""

    at: datetime
    commit: str
    repeat: int
    machine: Machine
    results: tuple[Result, ...]

    def of(self, name: str) -> Result | None:
        return next((result for result in self.results if result.row.name == name), None)


class Change(Model):
    """A row in two runs.

    `ratio` is the new median divided by the earlier one. `value_range` is the larger one of both
    runs; a difference is significant if it exceeds it. None if each run measured the row once.
    """

    row: Row
    earlier: float
    now: float
    value_range: float | None

    @property
    def ratio(self) -> float:
        return self.now / self.earlier if self.earlier else 1.0 if self.now == self.earlier else float("inf")

    @property
    def trend(self) -> Trend:
        if self.value_range is None and self.row.unit != "jobs":
            return "one run each"
        if abs(self.now - self.earlier) <= (self.value_range or 0.0):
            return "same"
        return "worse" if (self.now > self.earlier) != (self.row.unit in MORE_IS_BETTER) else "better"


def changes(earlier: Report, now: Report) -> dict[str, Change]:
    """Return the changes of the rows that both runs measured, by name."""
    return {change.row.name: change for change in _changes(earlier, now)}


def _changes(earlier: Report, now: Report) -> Iterator[Change]:
    for result in now.results:
        before = earlier.of(result.row.name)
        if before is None or before.median is None or result.median is None or "failed" in {before.outcome, result.outcome}:
            continue
        spreads = [value_range for value_range in (before.value_range, result.value_range) if value_range is not None]
        yield Change(row=result.row, earlier=before.median, now=result.median, value_range=max(spreads, default=None))


def _medians(several: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = list(dict.fromkeys(name for one in several for name in one))
    return {name: statistics.median(one[name] for one in several if name in one) for name in names}
