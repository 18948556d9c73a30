"""Writes the log lines of the stages: what began, how far it is, what ended.

A stage is `logged`. Its lines go to the logger of its own module, at level INFO. They name the run
that it begins and each part of the work (`doing`), and at its end the rows and seconds. After ten
seconds of silence a line says what the stage is doing and for how long it has run.

A line holds names, counts and times, and no address: an address may carry a secret.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final, ParamSpec, TypeVar

from pyspark.sql import SparkSession

from gc_assets.core.requests import Requests, Tally, counted
from gc_assets.stages.night import Night
from gc_assets.state.journal import Published, Run
from gc_assets.state.schemas import Table

SILENCE_SECONDS: Final = 10.0
_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass
class _Step:
    log: logging.Logger
    name: str
    spark: SparkSession | None
    outer: _Step | None
    tally: Tally
    inner: _Step | None = None
    now_doing: str | Callable[[], str] = ""
    published: list[str] = field(default_factory=list[str])
    began: float = field(default_factory=time.monotonic)
    said: float = field(default_factory=time.monotonic)
    # One line at a time: a store of log lines may not stand two threads.
    turn: threading.Lock = field(default_factory=threading.Lock)
    over: threading.Event = field(default_factory=threading.Event)

    def say(self, text: str) -> None:
        with self.turn:
            self.said = time.monotonic()
            self.log.info("%s: %s", self.name, text)

    def beat(self) -> None:
        """Breaks every silence until the step is over.

        An inner step breaks its own silences.
        """
        while not self.over.wait(max(0.01, self.said + SILENCE_SECONDS - time.monotonic())):
            if self.inner is not None:
                self.said = time.monotonic()
            elif time.monotonic() - self.said >= SILENCE_SECONDS:
                told = [f"{time.monotonic() - self.began:,.0f} s", _told(self.now_doing), _told(lambda: _spark_tasks(self.spark))]
                self.say(", ".join(part for part in told if part))


_CURRENT: ContextVar[_Step | None] = ContextVar("step", default=None)


def logged(table: Table, owner: Callable[[Any], str] = str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorates a stage so that it writes log lines under the name of the table that it publishes.

    The stage's arguments are Spark where it needs Spark, the night, and then a value that `owner`
    turns into the name of a lake or storage.
    """

    def decorate(stage: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(stage)
        def heard(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            at, night = next((place, value) for place, value in enumerate(args) if isinstance(value, Night))
            spark = args[0] if at else None
            with _step(logging.getLogger(stage.__module__), _name(owner(args[at + 1]), table, night.run_date), spark):
                return stage(*args, **kwargs)

        return heard

    return decorate


def begin(night: Night, group: str, table: Table, run_date: date | None = None) -> Run:
    """Starts a new run of a table, and announces it by a line."""
    run = night.state.start(group, table.name, run_date or night.run_date, night.clock)
    current = _CURRENT.get()
    if current is not None:
        name = _name(group, table, run.run_date)
        current.say(f"begins run {run.run_id}" if name == current.name else f"begins run {run.run_id} of {name}")
    return run


def doing(text: str) -> None:
    """Names the part of the work that begins now, and how much it is."""
    reached(text)
    current = _CURRENT.get()
    if current is not None:
        current.say(text)


def reached(text: str | Callable[[], str]) -> None:
    """Says how far the work is, for the next line that breaks a silence.

    A callable is asked each time.
    """
    current = _CURRENT.get()
    if current is not None:
        current.now_doing = text


def asked() -> Requests:
    """Returns what the stage has sent to object stores so far, the stages within it included."""
    current = _CURRENT.get()
    return current.tally.sent if current is not None else Requests()


def made(published: Published) -> None:
    """Notes that a table was published, for the stage's last line."""
    current = _CURRENT.get()
    if current is not None:
        receipt = published.receipt
        current.published.append(f"{receipt.asset} {receipt.rows:,} rows")


@contextmanager
def _step(log: logging.Logger, name: str, spark: Any) -> Generator[None]:
    with counted() as tally, _heard(_Step(log, name, spark, _CURRENT.get(), tally)):
        yield


@contextmanager
def _heard(current: _Step) -> Generator[None]:
    outer = current.outer
    if outer is not None:
        outer.inner = current
    token = _CURRENT.set(current)
    beat = threading.Thread(target=current.beat, name=f"progress of {current.name}", daemon=True)
    beat.start()
    how = "ended"
    try:
        yield
    except BaseException as error:
        how = f"stopped by {type(error).__name__}"
        raise
    finally:
        current.over.set()
        beat.join()
        _CURRENT.reset(token)
        if outer is not None:
            outer.inner = None
        rows = f": {', '.join(current.published)}" if current.published else ""
        requests = f"; requests: {current.tally.sent}" if current.tally.sent else ""
        current.say(f"{how} after {time.monotonic() - current.began:,.1f} s{rows}{requests}")


def _name(owner: str, table: Table, run_date: date) -> str:
    return f"{owner}/{table.name} of {run_date}"


def _told(text: str | Callable[[], str]) -> str:
    try:
        return text if isinstance(text, str) else text()
    except Exception:  # noqa: BLE001  (a line about the work must never end the work)
        return ""


def _spark_tasks(spark: SparkSession | None) -> str:
    """Says how many tasks of the running Spark stages are done; empty where none runs.

    Raises over Spark Connect, which cannot say.
    """
    if spark is None:
        return ""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    there = [stage for stage in stages if stage is not None]
    return f"{sum(stage.numCompletedTasks for stage in there):,} of {sum(stage.numTasks for stage in there):,} Spark tasks" if there else ""
