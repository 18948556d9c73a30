"""Log and report the progress of stages.

Stages decorated with `log_progress` log at level INFO to their module's logger: the run, each
activity (`log_activity`), and finally rows and seconds. After ten seconds without a line, a
progress line shows the activity, the units done (`count_progress`), the rate and the remaining
time. `current_work` returns the same data for displays.

This module never runs a Spark job. If a stage counts no units, progress is based on the tasks of
the running Spark job, as known to the driver.

Log lines contain no addresses, because an address may contain a secret.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from gc_assets.core.progress_rate import ProgressRate, format_seconds
from gc_assets.core.requests import Requests, Tally, count_requests
from gc_assets.core.units import count_of
from gc_assets.engine.recorded_names import record_names
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import is_remote
from gc_assets.engine.telemetry import stage_span
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.schemas import Table
from gc_assets.state.summaries import LiveFilesSummary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SILENCE_SECONDS: Final = 10.0
# Counting may send a request to the state, so it runs at most once a second and uses at most 5% of
# the time.
_MEASURE_EVERY_SECONDS: Final = 1.0
_MEASURE_SHARE: Final = 20
_P = ParamSpec("_P")
_R = TypeVar("_R")
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class StageProgress:
    """Progress of a running stage.

    Attributes:
        name: Table, owner and run date.
        seconds: Seconds since the stage started.
        rate: Progress and rate, or None without a counter.
        outer_activity: Activity of the enclosing stage, or empty.
    """

    name: str
    activity: str
    seconds: float
    rate: ProgressRate | None
    outer_activity: str = ""

    def __str__(self) -> str:
        return ", ".join(part for part in (format_seconds(self.seconds), self.activity, str(self.rate or "")) if part)


class _RateMeter:
    """Thread-safe meter that derives a rate from a counting function."""

    def __init__(self, count: Callable[[], tuple[str, int, int | None] | None]) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._basis: tuple[str, int | None] | None = None
        self._rate: ProgressRate | None = None
        self._began = self._next_measurement = 0.0

    def rate(self) -> ProgressRate | None:
        """Return the rate, cached for a moment, or None without a counter."""
        with self._lock:
            start = time.monotonic()
            if start >= self._next_measurement:
                self._rate = self._measure()
                now = time.monotonic()
                self._next_measurement = now + max(_MEASURE_EVERY_SECONDS, _MEASURE_SHARE * (now - start))
            return self._rate

    def _measure(self) -> ProgressRate | None:
        try:
            found = self._count()
        except Exception:  # noqa: BLE001  (a progress display must not stop the work)
            return None
        if found is None:
            return None
        unit, done, total = found
        now, previous = time.monotonic(), self._rate
        is_new = previous is None or self._basis != (unit, total) or done < previous.done
        first = done if previous is None or is_new else previous.first
        self._began, self._basis = (now if is_new else self._began), (unit, total)
        return ProgressRate(unit, done if total is None else min(done, total), total, now - self._began, first)


@dataclass(eq=False)
class _Step:
    logger: logging.Logger
    name: str
    spark: SparkSession | None
    outer: _Step | None
    tally: Tally
    jobs_before: int | None
    inner: _Step | None = None
    activity: str = ""
    published: list[str] = field(default_factory=list[str])
    rows: dict[str, int] = field(default_factory=dict[str, int])
    began: float = field(default_factory=time.monotonic)
    logged_at: float = field(default_factory=time.monotonic)
    # Serialised, because a log handler may not be thread-safe.
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: threading.Event = field(default_factory=threading.Event)
    tasks: _RateMeter = field(init=False)
    meter: _RateMeter = field(init=False)

    def __post_init__(self) -> None:
        self.tasks = self.meter = _RateMeter(lambda: _spark_tasks(self.spark))

    def log_line(self, text: str) -> None:
        with self.lock:
            self.logged_at = time.monotonic()
            self.logger.info("%s: %s", self.name, text)

    def progress(self) -> StageProgress:
        rate = self.meter.rate() or self.tasks.rate()
        return StageProgress(self.name, self.activity, time.monotonic() - self.began, rate, self._outer_activity())

    def jobs_started(self) -> int | None:
        now = count_jobs(self.spark)
        return now - self.jobs_before if now is not None and self.jobs_before is not None else None

    def _outer_activity(self) -> str:
        if self.outer is None:
            return ""
        own_rate = self.outer.meter.rate() if self.outer.meter is not self.outer.tasks else None
        return ", ".join(part for part in (self.outer.activity, str(own_rate or "")) if part)

    def log_regularly(self) -> None:
        """Log a progress line after each period of silence until the step ends.

        An inner step logs its own lines.
        """
        while not self.ended.wait(max(0.01, self.logged_at + SILENCE_SECONDS - time.monotonic())):
            if self.inner is not None:
                self.logged_at = time.monotonic()
            elif time.monotonic() - self.logged_at >= SILENCE_SECONDS:
                self.log_line(str(self.progress()))


# Running steps of this process, for `current_work`. A context variable would show only the steps of
# its own context.
_STEPS: Final[list[_Step]] = []
_CURRENT: ContextVar[_Step | None] = ContextVar("step", default=None)
# The Java object that counts the jobs of an application. A small run counts them 20 times, and
# finding the object takes five requests to Java.
_SCHEDULERS: Final = WeakKeyDictionary[Any, Any]()


def log_progress(table: Table, owner: Callable[[Any], str] = str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate a stage to log its progress under its table name.

    The stage takes an optional Spark session (or a function that opens one), the run context, and a
    value that `owner` converts to the name of a lake or storage.
    """

    def decorate(stage: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(stage)
        def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            index, run_context = next((number, value) for number, value in enumerate(args) if isinstance(value, RunContext))
            spark = args[0] if index and not callable(args[0]) else None
            group = owner(args[index + 1])
            attributes = {"gc_assets.owner": group, "gc_assets.run_date": run_context.run_date.isoformat()}
            log = logging.getLogger(stage.__module__)
            with _step(log, _name(group, table, run_context.run_date), spark, table.name, attributes):
                return stage(*args, **kwargs)

        return wrapper

    return decorate


def start_run(run_context: RunContext, group: str, table: Table, run_date: date | None = None) -> TableRun:
    """Start a run of a table and log its id.

    The first one records the locations of the configuration.
    """
    record_names(run_context.config, run_context.state, run_context.clock)
    run = run_context.state.start(group, table.name, run_date or run_context.run_date, run_context.clock)
    current = _CURRENT.get()
    if current is not None:
        name = _name(group, table, run.run_date)
        current.log_line(f"begins run {run.run_id}" if name == current.name else f"begins run {run.run_id} of {name}")
    return run


def log_activity(text: str) -> None:
    """Set the current activity and log it."""
    set_activity(text)
    current = _CURRENT.get()
    if current is not None:
        current.log_line(text)


def set_activity(text: str) -> None:
    """Set the current activity without logging a line."""
    current = _CURRENT.get()
    if current is not None:
        current.activity = text


@contextmanager
def count_progress(unit: str, done: Callable[[], int], total: int | None = None) -> Generator[None]:
    """Track the progress of the current activity within the context.

    Args:
        done: Returns the number of completed units. Called from another thread, at most once a
            second. If it raises, no progress is shown.
        total: Number of units, if known.
    """
    current = _CURRENT.get()
    if current is None:
        yield
        return
    previous, current.meter = current.meter, _RateMeter(lambda: (unit, done(), total))
    try:
        yield
    finally:
        current.meter = previous


def track(items: Iterable[_Item], unit: str, total: int | None = None) -> Iterator[_Item]:
    """Yield the items and count the processed ones."""
    done = 0
    with count_progress(unit, lambda: done, total):
        for item in items:
            yield item
            done += 1


def current_work() -> StageProgress | None:
    """Return the progress of the most recently started stage, or None if no stage is running."""
    inner = [step for step in list(_STEPS) if step.inner is None]
    return inner[-1].progress() if inner else None


def requests_sent() -> Requests:
    """Return the object store requests sent by the current stage, including inner stages."""
    current = _CURRENT.get()
    return current.tally.sent if current is not None else Requests()


def jobs_started() -> int | None:
    """Return the number of Spark jobs since the current stage started, or None if unknown.

    Inner stages are included. Concurrent stages in one process count each other's jobs.
    """
    current = _CURRENT.get()
    return current.jobs_started() if current is not None else None


def count_jobs(spark: SparkSession | None) -> int | None:
    """Return the number of jobs started by this Spark application, or None if unknown.

    It is unknown with Spark Connect and on platforms that restrict access to the JVM.
    """
    if spark is None or is_remote(spark):
        return None
    try:
        context = spark.sparkContext
        if (scheduler := _SCHEDULERS.get(context)) is None:
            jvm: Any = getattr(context, "_jsc")  # noqa: B009  (PySpark itself counts no jobs, only its JVM does)
            scheduler = _SCHEDULERS[context] = jvm.sc().dagScheduler()
        return int(scheduler.numTotalJobs())
    except Exception:  # noqa: BLE001  (a progress display must not stop the work)
        return None


def record_publication(published: PublishedTable) -> None:
    """Record a published table for the final log line of the stage."""
    current = _CURRENT.get()
    if current is not None:
        receipt = published.receipt
        is_view = receipt.asset == LiveFilesSummary.TABLE
        rows = published.summary(LiveFilesSummary).files if is_view else receipt.rows
        count = count_of(rows, "file" if is_view else "row")
        current.rows[receipt.asset] = current.rows.get(receipt.asset, 0) + rows
        current.published.append(f"{receipt.asset} {count}")


@contextmanager
def measure_work(name: str) -> Generator[None]:
    """Log progress of work that publishes no table, as a stage with this name."""
    with _step(logging.getLogger(__name__), name, None, name, {}):
        yield


@contextmanager
def _step(log: logging.Logger, name: str, spark: Any, stage: str, attributes: dict[str, str]) -> Generator[None]:
    with count_requests() as tally, stage_span(stage, {"gc_assets.stage": stage, **attributes}) as record:
        current = _Step(log, name, spark, _CURRENT.get(), tally, count_jobs(spark))
        try:
            with _run_step(current):
                yield
        finally:
            record.rows, record.requests = current.rows, tally.sent.counts


@contextmanager
def _run_step(current: _Step) -> Generator[None]:
    outer = current.outer
    if outer is not None:
        outer.inner = current
    token = _CURRENT.set(current)
    _STEPS.append(current)
    beat = threading.Thread(target=current.log_regularly, name=f"progress of {current.name}", daemon=True)
    beat.start()
    outcome = "ended"
    try:
        yield
    except BaseException as error:
        outcome = f"stopped by {type(error).__name__}"
        raise
    finally:
        current.ended.set()
        beat.join()
        _CURRENT.reset(token)
        _STEPS.remove(current)
        if outer is not None:
            outer.inner = None
        rows = f": {', '.join(current.published)}" if current.published else ""
        requests = f"; requests: {current.tally.sent}" if current.tally.sent else ""
        current.log_line(f"{outcome} after {time.monotonic() - current.began:,.1f} s{rows}{requests}")


def _name(owner: str, table: Table, run_date: date) -> str:
    return f"{owner}/{table.name} of {run_date}"


def _spark_tasks(spark: SparkSession | None) -> tuple[str, int, int | None] | None:
    """Return finished and total tasks of the running Spark stages, or None if no stage runs.

    Raises with Spark Connect, which does not report tasks.
    """
    if spark is None:
        return None
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    active = [stage for stage in stages if stage is not None]
    return ("Spark tasks", sum(stage.numCompletedTasks for stage in active), sum(stage.numTasks for stage in active)) if active else None
