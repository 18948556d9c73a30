"""What a release has to reach: one row a figure, all of them in `ROWS`.

Pure: no clock and no process. `benchmarks.measurings` knows how a row is measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

Unit = Literal["ratio", "s", "jobs", "files/s"]
MORE_IS_BETTER: Final[frozenset[Unit]] = frozenset({"files/s"})


class Model(BaseModel):
    """Values that do not change."""

    model_config = ConfigDict(frozen=True)


class Pick(Model):
    """Which figure of a lake's nights a row is.

    `peer` and `recorded` are our seconds as a share of the peer's, from the same call or from the
    record. `first night` is a share of our own first night, `seconds` and `jobs` are no share.
    """

    night: Literal["first", "second"]
    start: Literal["cold", "warm"]
    of: Literal["seconds", "jobs", "peer", "recorded", "first night"] = "seconds"


class Row(Model):
    """One figure with its target. `measuring` is the name of what measures it, together with others;
    a row without one is not built, and `not_built` says why. A row `on_request` is measured only
    where somebody names it.
    """

    name: str
    title: str
    unit: Unit
    target: float
    measuring: str | None = None
    pick: Pick | None = None
    on_request: bool = False
    not_built: str = ""

    @model_validator(mode="after")
    def _is_measured_or_says_why(self) -> Self:
        if (self.measuring is None) != bool(self.not_built):
            raise ValueError(f"row {self.name}: either something measures it, or it says why nothing does")
        return self

    def is_met(self, value: float) -> bool:
        return value >= self.target if self.unit in MORE_IS_BETTER else value <= self.target


def chosen(rows: Iterable[Row], patterns: Iterable[str]) -> list[Row]:
    """The rows that one of the patterns names: a part of a name, or a whole one with `*`, `?` or
    `[…]` in it. Without a pattern all rows but those on request.
    """
    patterns = list(patterns)
    if not patterns:
        return [row for row in rows if not row.on_request]
    return [row for row in rows if any(_matches(row.name, pattern) for pattern in patterns)]


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern if set(pattern) & set("*?[") else f"*{pattern}*")


def _night(lake: str, start: Literal["cold", "warm"], night: Literal["first", "second"], target: float) -> Row:
    kind, _, size = lake.partition("-")
    title = f"{kind.capitalize()} {size}, {start}, {night} night"
    return Row(name=f"{lake}-{start}-{night}", title=title, unit="s", target=target, measuring=lake, pick=Pick(night=night, start=start))


def _of_peer(lake: str, night: Literal["first", "second"], target: float) -> Row:
    row = _night(lake, "cold", night, target)
    return row.model_copy(
        update={"title": f"{row.title}, of the peer", "unit": "ratio", "pick": Pick(night=night, start="cold", of="peer")}
    )


def _jobs(lake: str, night: Literal["first", "second"], target: float) -> Row:
    row = _night(lake, "cold", night, target)
    return row.model_copy(
        update={
            "name": f"{lake}-jobs-{night}",
            "title": f"Spark jobs, {row.title}",
            "unit": "jobs",
            "pick": Pick(night=night, start="cold", of="jobs"),
        }
    )


def _nessie(size: str, target: float) -> tuple[Row, Row]:
    name, title = f"nessie-{size}", f"Nessie {size}, warm"
    first = Pick(night="first", start="warm", of="recorded")
    second = Pick(night="second", start="warm", of="first night")
    return (
        Row(
            name=f"{name}-warm-first",
            title=f"{title}, first night, of nessie-gc's recorded",
            unit="ratio",
            target=target,
            measuring=name,
            pick=first,
        ),
        Row(
            name=f"{name}-warm-second",
            title=f"{title}, second night, of the first",
            unit="ratio",
            target=0.5,
            measuring=name,
            pick=second,
        ),
    )


NO_SAIL: Final = 'pysail 0.7.2 answers "unsupported PySpark version: 4.3.0", and the stages need 4.3'


def _sail(name: str, title: str, target: float) -> Row:
    return Row(name=f"sail-{name}", title=f"with Sail: {title}", unit="s", target=target, not_built=NO_SAIL)


ROWS: Final[tuple[Row, ...]] = (
    _of_peer("iceberg-s", "first", 0.5),
    _of_peer("iceberg-s", "second", 0.4),
    _night("iceberg-s", "warm", "first", 1.5),
    _night("iceberg-s", "warm", "second", 0.8),
    _of_peer("iceberg-m", "first", 0.22),
    _of_peer("iceberg-m", "second", 0.15),
    _night("iceberg-m", "warm", "first", 5),
    _night("iceberg-m", "warm", "second", 2),
    _of_peer("iceberg-l", "first", 0.6),
    _of_peer("iceberg-l", "second", 0.35),
    _night("icechunk-l", "warm", "first", 6),
    _night("icechunk-l", "warm", "second", 2.5),
    _night("icechunk-s", "cold", "first", 6),
    _night("icechunk-s", "cold", "second", 6),
    *_nessie("s", 0.6),
    *_nessie("m", 0.8),
    *_nessie("l", 0.5),
    *_nessie("d", 0.15),
    *_nessie("r", 0.2),
    Row(name="lakefs-second", title="lakeFS, second night, all stages of the first", unit="ratio", target=0.1, measuring="lakefs"),
    _jobs("iceberg-s", "second", 6),
    _jobs("iceberg-l", "first", 14),
    Row(name="apply-cold", title="apply of the demo's plan, cold", unit="s", target=12, measuring="demo"),
    Row(name="apply-warm", title="apply of the demo's plan, warm", unit="s", target=3, measuring="demo-warm"),
    Row(name="apply-moves", title="moves of a plan of 100,000 files, local disk", unit="files/s", target=5_000, measuring="moves"),
    Row(name="restore-cold", title="restore of one key, cold", unit="s", target=2, measuring="demo"),
    Row(name="plans", title="`gc-assets plans`", unit="s", target=0.3, measuring="demo"),
    Row(name="make-test", title="`make test`", unit="s", target=480, measuring="make-test", on_request=True),
    _sail("iceberg-s-first", "Iceberg s, cold, first night", 4),
    _sail("iceberg-s-second", "Iceberg s, cold, second night", 3),
    _sail("icechunk-s-first", "Icechunk s, cold, first night", 3),
)
