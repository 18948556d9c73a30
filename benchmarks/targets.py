"""The targets of a release: one row per figure, all of them in `ROWS`.

Pure values. `benchmarks.groups` defines how a row is measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

Unit = Literal["ratio", "times", "s", "MiB", "bytes", "lines", "jobs", "files/s"]
MORE_IS_BETTER: Final[frozenset[Unit]] = frozenset({"times", "files/s"})
# 2.5 GB.
PEAK_MIB: Final = 2_384

# Names of fields in results of 0.3 that `--compare` still reads.
RENAMED: Final = {"night": "run", "measuring": "group", "beside": "details", "why": "reason"}


class Model(BaseModel):
    """Base class of frozen values."""

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _rename_fields(cls, data: Any) -> Any:
        return {RENAMED.get(name, name): value for name, value in data.items()} if isinstance(data, dict) else data


class Pick(Model):
    """The figure of a row within the runs of a lake.

    `peer` and `recorded` are our seconds divided by those of the peer, from the same call or from a
    record. `first run` is the ratio to our own first run. `one worker` are the seconds of one worker
    divided by those of two. `seconds`, `jobs` and `peak` (MiB) are absolute. `state` are the bytes
    that the run publishes for `live_files`, per live file. The run `unlisted` is a second run
    without a listing of the storage, and the peer's is its second run.
    """

    run: Literal["first", "second", "unlisted"]
    start: Literal["cold", "warm"]
    of: Literal["seconds", "jobs", "peak", "state", "peer", "recorded", "first run", "one worker"] = "seconds"

    @field_validator("of", mode="before")
    @classmethod
    def _rename_runs(cls, of: str) -> str:
        return of.replace("night", "run")


class Row(Model):
    """One figure with its target.

    `group` is the name of the group that measures the row, together with others. A row without a
    group is not built, and `not_built` states the reason. A row `on_request` is measured only if a
    pattern selects it.
    """

    name: str
    title: str
    unit: Unit
    target: float
    group: str | None = None
    pick: Pick | None = None
    on_request: bool = False
    not_built: str = ""

    @model_validator(mode="after")
    def _require_group_or_reason(self) -> Self:
        if (self.group is None) != bool(self.not_built):
            raise ValueError(f"row {self.name}: expected either a group that measures it or a reason why it is not built")
        return self

    def is_met(self, value: float) -> bool:
        return value >= self.target if self.unit in MORE_IS_BETTER else value <= self.target


def select_rows(rows: Iterable[Row], patterns: Iterable[str]) -> list[Row]:
    """Return the rows that match a pattern, or without patterns all rows that are not `on_request`.

    A pattern is a part of a name, or a whole name with `*`, `?` or `[…]`.
    """
    patterns = list(patterns)
    if not patterns:
        return [row for row in rows if not row.on_request]
    return [row for row in rows if any(_matches(row.name, pattern) for pattern in patterns)]


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern if set(pattern) & set("*?[") else f"*{pattern}*")


def _run_row(lake: str, start: Literal["cold", "warm"], run: Literal["first", "second"], target: float) -> Row:
    kind, _, size = lake.partition("-")
    title = f"{kind.capitalize()} {size}, {start}, {run} run"
    return Row(name=f"{lake}-{start}-{run}", title=title, unit="s", target=target, group=lake, pick=Pick(run=run, start=start))


def _peer_row(lake: str, run: Literal["first", "second"], target: float) -> Row:
    row = _run_row(lake, "cold", run, target)
    return row.model_copy(update={"title": f"{row.title}, of the peer", "unit": "ratio", "pick": Pick(run=run, start="cold", of="peer")})


def _jobs_row(lake: str, run: Literal["first", "second"], target: float) -> Row:
    row = _run_row(lake, "cold", run, target)
    return row.model_copy(
        update={
            "name": f"{lake}-jobs-{run}",
            "title": f"Spark jobs, {row.title}",
            "unit": "jobs",
            "pick": Pick(run=run, start="cold", of="jobs"),
        }
    )


def _nessie_rows(size: str, target: float, second: float = 0.5) -> tuple[Row, Row]:
    name, title = f"nessie-{size}", f"Nessie {size}, warm"
    of_recorded = Pick(run="first", start="warm", of="recorded")
    of_first = Pick(run="second", start="warm", of="first run")
    return (
        Row(
            name=f"{name}-warm-first",
            title=f"{title}, first run, of nessie-gc's recorded",
            unit="ratio",
            target=target,
            group=name,
            pick=of_recorded,
        ),
        Row(
            name=f"{name}-warm-second",
            title=f"{title}, second run, of the first",
            unit="ratio",
            target=second,
            group=name,
            pick=of_first,
        ),
    )


def _scale_rows(group: str, lake: str, run: Literal["first", "second"], target: float) -> tuple[Row, Row]:
    title = f"{lake}, `local[2]`, {run} run"
    peak = Pick(run=run, start="cold", of="peak")
    return (
        Row(name=f"{group}-{run}", title=title, unit="s", target=target, group=group, pick=Pick(run=run, start="cold")),
        Row(name=f"{group}-{run}-peak", title=f"{title}, peak memory", unit="MiB", target=PEAK_MIB, group=group, pick=peak),
    )


def _state_row(group: str, lake: str) -> Row:
    title = f"{lake}, second run, state of `live_files` per live file"
    return Row(name=f"{group}-state", title=title, unit="bytes", target=2, group=group, pick=Pick(run="second", start="cold", of="state"))


def _workers_row(run: Literal["first", "second"]) -> Row:
    return Row(
        name=f"scale-workers-{run}",
        title=f"1,000 tables of 200 commits, {run} run, speed of two workers of one core compared with `local[1]`",
        unit="times",
        target=1.6,
        group="scale-tables",
        pick=Pick(run=run, start="cold", of="one worker"),
    )


NO_SAIL: Final = 'pysail 0.7.2 answers "unsupported PySpark version: 4.3.0", and the stages need 4.3'


def _sail(name: str, title: str, target: float) -> Row:
    return Row(name=f"sail-{name}", title=f"with Sail: {title}", unit="s", target=target, not_built=NO_SAIL)


ROWS: Final[tuple[Row, ...]] = (
    _peer_row("iceberg-s", "first", 0.5),
    _peer_row("iceberg-s", "second", 0.4),
    _run_row("iceberg-s", "warm", "first", 1.5),
    _run_row("iceberg-s", "warm", "second", 0.6),
    _peer_row("iceberg-m", "first", 0.2),
    _peer_row("iceberg-m", "second", 0.12),
    _run_row("iceberg-m", "warm", "first", 5),
    _run_row("iceberg-m", "warm", "second", 2),
    _peer_row("iceberg-l", "first", 0.5),
    _peer_row("iceberg-l", "second", 0.3),
    Row(
        name="iceberg-l-cold-unlisted",
        title="Iceberg l, cold, second run without listing, of the peer",
        unit="ratio",
        target=0.1,
        group="iceberg-l",
        pick=Pick(run="unlisted", start="cold", of="peer"),
    ),
    _run_row("icechunk-l", "warm", "first", 4.5),
    _run_row("icechunk-l", "warm", "second", 2),
    _run_row("icechunk-s", "cold", "first", 5.5),
    _run_row("icechunk-s", "cold", "second", 6),
    *_nessie_rows("s", 0.6),
    *_nessie_rows("m", 0.8, 0.4),
    *_nessie_rows("l", 0.5),
    *_nessie_rows("d", 0.15),
    *_nessie_rows("r", 0.2),
    Row(name="lakefs-second", title="lakeFS, second run, of the first, all stages", unit="ratio", target=0.08, group="lakefs"),
    _jobs_row("iceberg-s", "second", 6),
    _jobs_row("iceberg-l", "first", 14),
    _state_row("iceberg-l", "Iceberg l"),
    *_scale_rows("scale-files", "10 million files in one table", "second", 25),
    *_scale_rows("scale-tables", "1,000 tables of 200 commits", "first", 120),
    *_scale_rows("scale-tables", "1,000 tables of 200 commits", "second", 40),
    _state_row("scale-tables", "1,000 tables of 200 commits"),
    _workers_row("first"),
    _workers_row("second"),
    Row(name="mark-lines", title="product lines of `stages/mark`", unit="lines", target=3_400, group="mark-lines"),
    Row(name="apply-cold", title="apply of the demo's plan, cold", unit="s", target=12, group="demo"),
    Row(name="apply-warm", title="apply of the demo's plan, warm", unit="s", target=3, group="demo-warm"),
    Row(name="apply-moves", title="moves of a plan of 100,000 files, local disk", unit="files/s", target=5_000, group="moves"),
    Row(name="restore-cold", title="restore of one key, cold", unit="s", target=2, group="demo"),
    Row(name="plans", title="`gc-assets plans`", unit="s", target=0.3, group="demo"),
    Row(name="make-test", title="`make test`", unit="s", target=480, group="make-test", on_request=True),
    _sail("iceberg-s-first", "Iceberg s, cold, first run", 4),
    _sail("iceberg-s-second", "Iceberg s, cold, second run", 3),
    _sail("icechunk-s-first", "Icechunk s, cold, first run", 3),
)
