"""What a run of all benchmarks found: samples, medians, verdicts, and how two runs differ. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Literal

from pydantic import Field, computed_field

from benchmarks.targets import MORE_IS_BETTER, Model, Row

Outcome = Literal["measured", "failed", "skipped", "not built"]
Verdict = Literal["met", "missed", "failed", "skipped", "not built"]
ApprovalEvent = Literal["slower", "faster", "same", "one run each"]


class Sample(Model):
    """One measurement of a row. `beside` are the figures that it was reckoned from or that explain
    it, by name; `steps` are seconds by the step of the work, where they are known.
    """

    value: float
    beside: dict[str, float] = Field(default_factory=dict[str, float])
    steps: dict[str, float] = Field(default_factory=dict[str, float])


class Result(Model):
    """A row and what was measured of it, in the order of the repeats. `why` says what stopped it, or
    why nobody measured it.
    """

    row: Row
    outcome: Outcome = "measured"
    samples: tuple[Sample, ...] = ()
    why: str = ""

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
    def spread(self) -> float | None:
        """From the least value to the greatest; null where there are not two."""
        return max(self.values) - min(self.values) if len(self.samples) > 1 else None

    def beside(self) -> dict[str, float]:
        """The medians of the figures beside the values."""
        return _medians([sample.beside for sample in self.samples])

    def steps(self) -> dict[str, float]:
        """The medians of the steps' seconds, the longest first."""
        found = _medians([sample.steps for sample in self.samples])
        return dict(sorted(found.items(), key=lambda item: -item[1]))


class Machine(Model):
    """Where a run was made. The load is that of one minute, before the run and at its end."""

    cores: int
    memory_bytes: int
    python: str
    java: str
    class_archive: bool
    load_before: float
    load_after: float


class Report(Model):
    """One run: `commit` is what was measured, with a `+` where the checkout has changes of its own."""

    at: datetime
    commit: str
    repeat: int
    machine: Machine
    results: tuple[Result, ...]

    def of(self, name: str) -> Result | None:
        return next((result for result in self.results if result.row.name == name), None)


class Change(Model):
    """A row in two runs. `ratio` is the median of now as a share of the earlier one. `spread` is the
    greater one of both runs, which a difference has to exceed to mean something; null where each of
    them measured once.
    """

    row: Row
    earlier: float
    now: float
    spread: float | None

    @property
    def ratio(self) -> float:
        return self.now / self.earlier if self.earlier else 1.0 if self.now == self.earlier else float("inf")

    @property
    def word(self) -> ApprovalEvent:
        if self.spread is None and self.row.unit != "jobs":
            return "one run each"
        if abs(self.now - self.earlier) <= (self.spread or 0.0):
            return "same"
        return "slower" if (self.now > self.earlier) != (self.row.unit in MORE_IS_BETTER) else "faster"


def changes(earlier: Report, now: Report) -> dict[str, Change]:
    """The rows that both runs measured, by name."""
    return {change.row.name: change for change in _changes(earlier, now)}


def _changes(earlier: Report, now: Report) -> Iterator[Change]:
    for result in now.results:
        before = earlier.of(result.row.name)
        if before is None or before.median is None or result.median is None or "failed" in {before.outcome, result.outcome}:
            continue
        spreads = [spread for spread in (before.spread, result.spread) if spread is not None]
        yield Change(row=result.row, earlier=before.median, now=result.median, spread=max(spreads, default=None))


def _medians(several: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = list(dict.fromkeys(name for one in several for name in one))
    return {name: statistics.median(one[name] for one in several if name in one) for name in names}
