"""Track the progress of stages, and log it.

A stage that is decorated with `log_progress` logs at level INFO when its run begins and when an
activity begins (`log_activity`). At the end, it logs how many rows it has published. If nothing was
logged for ten seconds, another line shows the activity, what has been done (`count_progress`), the
rate and the remaining time. Progress displays get the same data from `current_work`.

Stages do not have to count anything. Without a counter, the tasks of the running Spark job are the
progress, because the driver counts them anyway. No Spark job is started only to measure progress.

Addresses are never logged, because they may contain secrets.
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
# Counting may send a request to the state. It happens at most once a second, and takes at most 5%
# of the time.
_MEASURE_EVERY_SECONDS: Final = 1.0
_MEASURE_SHARE: Final = 20
_P = ParamSpec("_P")
_R = TypeVar("_R")
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class StageProgress:
    """The progress of a running stage.

    Attributes:
        name: The table, its owner and the run date.
        activity: The current activity of the stage.
        seconds: How long the stage has been running.
        rate: How much has been done, and how fast, or None if nothing is counted.
        outer_activity: The current activity of the enclosing stage, if there is one.
    """

    name: str
    activity: str
    seconds: float
    rate: ProgressRate | None
    outer_activity: str = ""

    def __str__(self) -> str:
        return ", ".join(part for part in (format_seconds(self.seconds), self.activity, str(self.rate or "")) if part)


class _RateMeter:
    """Measures a rate by calling a function that counts. It can be used by several threads."""

    def __init__(self, count: Callable[[], tuple[str, int, int | None] | None]) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._basis: tuple[str, int | None] | None = None
        self._rate: ProgressRate | None = None
        self._began = self._next_measurement = 0.0

    def rate(self) -> ProgressRate | None:
        """Measure the rate, or return the last measurement if it is recent."""
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
    # Log handlers may not be thread-safe.
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
        """Log a progress line whenever the step has been silent for too long, until it ends.

        While an inner step is running, only that step logs.
        """
        while not self.ended.wait(max(0.01, self.logged_at + SILENCE_SECONDS - time.monotonic())):
            if self.inner is not None:
                self.logged_at = time.monotonic()
            elif time.monotonic() - self.logged_at >= SILENCE_SECONDS:
                self.log_line(str(self.progress()))


# All running steps of this process, for `current_work`. In contrast, a context variable is only
# visible in its own context.
_STEPS: Final[list[_Step]] = []
_CURRENT: ContextVar[_Step | None] = ContextVar("step", default=None)
# Caches the Java object that counts the jobs of an application. Looking it up takes five requests
# to Java, and a small run needs it 20 times.
_SCHEDULERS: Final = WeakKeyDictionary[Any, Any]()


def log_progress(table: Table, owner: Callable[[Any], str] = str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate a stage so that its progress is logged.

    The arguments of the stage must be, in this order: optionally a Spark session or a function that
    opens one, the run context, and the lake or storage.

    Args:
        table: The table that the stage publishes.
        owner: Converts the last of the stage's arguments to the name of the lake or storage.
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
    """Start a run of a table, and log its id.

    Before that, the locations of new or moved lakes and storages are recorded in the state.
    """
    record_names(run_context.config, run_context.state, run_context.clock)
    run = run_context.state.start(group, table.name, run_date or run_context.run_date, run_context.clock)
    current = _CURRENT.get()
    if current is not None:
        name = _name(group, table, run.run_date)
        current.log_line(f"begins run {run.run_id}" if name == current.name else f"begins run {run.run_id} of {name}")
    return run


def log_activity(text: str) -> None:
    """Set the current activity of the stage, and log it."""
    set_activity(text)
    current = _CURRENT.get()
    if current is not None:
        current.log_line(text)


def set_activity(text: str) -> None:
    """Set the current activity of the stage, without logging it."""
    current = _CURRENT.get()
    if current is not None:
        current.activity = text


@contextmanager
def count_progress(unit: str, done: Callable[[], int], total: int | None = None) -> Generator[None]:
    """Show the progress of the current activity during the block.

    Args:
        unit: The unit that is counted, for example `files`.
        done: Returns how many units are done. It is called from another thread, at most once a
            second. If it raises an error, no progress is shown.
        total: The total number of units, if it is known.
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
    """Iterate over items, and show the number of processed items as progress."""
    done = 0
    with count_progress(unit, lambda: done, total):
        for item in items:
            yield item
            done += 1


def current_work() -> StageProgress | None:
    """Return the progress of the stage that started last, if any stage is running."""
    inner = [step for step in list(_STEPS) if step.inner is None]
    return inner[-1].progress() if inner else None


def requests_sent() -> Requests:
    """Return the object store requests sent by the current stage and its inner stages."""
    current = _CURRENT.get()
    return current.tally.sent if current is not None else Requests()


def jobs_started() -> int | None:
    """Return the number of Spark jobs started since the current stage began, if known.

    Jobs of inner stages are included, and so are jobs of other stages that run in this process at
    the same time.
    """
    current = _CURRENT.get()
    return current.jobs_started() if current is not None else None


def count_jobs(spark: SparkSession | None) -> int | None:
    """Return the number of jobs started by the Spark application.

    The result is None with Spark Connect, and on platforms that restrict access to the JVM.
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
    """Record that a table was published, so that the stage can log it at the end."""
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
    """Log the progress of a block that publishes no table, as if it were a stage."""
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
    """Count the finished tasks and all tasks of the Spark stages that are running, if any.

    This raises an error with Spark Connect, which does not report tasks.
    """
    if spark is None:
        return None
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    active = [stage for stage in stages if stage is not None]
    return ("Spark tasks", sum(stage.numCompletedTasks for stage in active), sum(stage.numTasks for stage in active)) if active else None
