"""Says what the stages do: what began, how far it is, what ended.

A stage is `logged`. Its lines go to the logger of its own module, at level INFO. They name the run
that it begins and each part of the work (`doing`), and at its end the rows and seconds. After ten
seconds of silence a line says what the stage is doing, how much of how much is done (`counting`),
at what rate, and how long the rest takes. `at_work` tells a display the same at any time.

Nothing here runs a Spark job: where no stage counts by itself, the tasks of the running job are
counted, which the driver knows.

A line holds names, counts and times, and no address: an address may carry a secret.
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

from gc_assets.core.progress_rate import ProgressRate, format_seconds
from gc_assets.core.requests import Requests, Tally, counted
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import is_remote
from gc_assets.state.journal import PublishedTable, TableRun
from gc_assets.state.schemas import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SILENCE_SECONDS: Final = 10.0
# Counting may cost a request to the state. It is done once a second at most, and takes at most a
# twentieth of the time.
_COUNTED_EVERY_SECONDS: Final = 1.0
_COUNTED_SHARE: Final = 20
_P = ParamSpec("_P")
_R = TypeVar("_R")
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class StageProgress:
    """A stage at work: what it does since how many seconds, and how far that is.

    `within` is what the stage around it is doing; empty where there is none.
    """

    name: str
    activity: str
    seconds: float
    rate: ProgressRate | None
    outer_activity: str = ""

    def __str__(self) -> str:
        return ", ".join(part for part in (format_seconds(self.seconds), self.activity, str(self.rate or "")) if part)


class _RateMeter:
    """Turns what a callable counts into a pace. Two threads may ask."""

    def __init__(self, count: Callable[[], tuple[str, int, int | None] | None]) -> None:
        self._count = count
        self._turn = threading.Lock()
        self._basis: tuple[str, int | None] | None = None
        self._rate: ProgressRate | None = None
        self._began = self._next_measurement = 0.0

    def rate(self) -> ProgressRate | None:
        """Returns the pace, counted now or a moment ago; null where there is nothing to count."""
        with self._turn:
            asked = time.monotonic()
            if asked >= self._next_measurement:
                self._rate = self._measure()
                now = time.monotonic()
                self._next_measurement = now + max(_COUNTED_EVERY_SECONDS, _COUNTED_SHARE * (now - asked))
            return self._rate

    def _measure(self) -> ProgressRate | None:
        try:
            found = self._count()
        except Exception:  # noqa: BLE001  (what is said about the work must never end the work)
            return None
        if found is None:
            return None
        unit, done, total = found
        now, before = time.monotonic(), self._rate
        is_new = before is None or self._basis != (unit, total) or done < before.done
        first = done if before is None or is_new else before.first
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
    began: float = field(default_factory=time.monotonic)
    logged_at: float = field(default_factory=time.monotonic)
    # One line at a time: a store of log lines may not stand two threads.
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
        pace = self.meter.rate() or self.tasks.rate()
        return StageProgress(self.name, self.activity, time.monotonic() - self.began, pace, self._outer_activity())

    def jobs_started(self) -> int | None:
        now = count_jobs(self.spark)
        return now - self.jobs_before if now is not None and self.jobs_before is not None else None

    def _outer_activity(self) -> str:
        if self.outer is None:
            return ""
        counted_by_itself = self.outer.meter.rate() if self.outer.meter is not self.outer.tasks else None
        return ", ".join(part for part in (self.outer.activity, str(counted_by_itself or "")) if part)

    def log_regularly(self) -> None:
        """Breaks every silence until the step is over.

        An inner step breaks its own silences.
        """
        while not self.ended.wait(max(0.01, self.logged_at + SILENCE_SECONDS - time.monotonic())):
            if self.inner is not None:
                self.logged_at = time.monotonic()
            elif time.monotonic() - self.logged_at >= SILENCE_SECONDS:
                self.log_line(str(self.progress()))


# The steps at work in this process, for `at_work`: a context of its own sees only its own steps.
_STEPS: Final[list[_Step]] = []
_CURRENT: ContextVar[_Step | None] = ContextVar("step", default=None)


def log_progress(table: Table, owner: Callable[[Any], str] = str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorates a stage so that it writes log lines under the name of the table that it publishes.

    The stage's arguments are the night and then a value that `owner` turns into the name of a lake
    or storage. Before the night comes the Spark session of a stage that always needs one, or a
    callable that opens it.
    """

    def decorate(stage: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(stage)
        def heard(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            at, run_context = next((place, value) for place, value in enumerate(args) if isinstance(value, RunContext))
            spark = args[0] if at and not callable(args[0]) else None
            with _step(logging.getLogger(stage.__module__), _name(owner(args[at + 1]), table, run_context.run_date), spark):
                return stage(*args, **kwargs)

        return heard

    return decorate


def start_run(run_context: RunContext, group: str, table: Table, run_date: date | None = None) -> TableRun:
    """Starts a new run of a table, and announces it by a line."""
    run = run_context.state.start(group, table.name, run_date or run_context.run_date, run_context.clock)
    current = _CURRENT.get()
    if current is not None:
        name = _name(group, table, run.run_date)
        current.log_line(f"begins run {run.run_id}" if name == current.name else f"begins run {run.run_id} of {name}")
    return run


def log_activity(text: str) -> None:
    """Names the part of the work that begins now, and how much it is."""
    set_activity(text)
    current = _CURRENT.get()
    if current is not None:
        current.log_line(text)


def set_activity(text: str) -> None:
    """Names what the work has come to, without a line of its own."""
    current = _CURRENT.get()
    if current is not None:
        current.activity = text


@contextmanager
def count_progress(unit: str, done: Callable[[], int], total: int | None = None) -> Generator[None]:
    """Says how to count what is done of this part of the work, and how much it is where that is
    known.

    `done` is called from another thread, once a second at most. It may fail: then nothing is told.
    """
    current = _CURRENT.get()
    if current is None:
        yield
        return
    before, current.meter = current.meter, _RateMeter(lambda: (unit, done(), total))
    try:
        yield
    finally:
        current.meter = before


def track(items: Iterable[_Item], unit: str, total: int | None = None) -> Iterator[_Item]:
    """Yields the items, and counts those that the caller is done with."""
    past = 0
    with count_progress(unit, lambda: past, total):
        for item in items:
            yield item
            past += 1


def current_work() -> StageProgress | None:
    """Returns the innermost stage at work in this process, the last begun where there are several;
    null where there is none.
    """
    inner = [step for step in list(_STEPS) if step.inner is None]
    return inner[-1].progress() if inner else None


def requests_sent() -> Requests:
    """Returns what the stage has sent to object stores so far, the stages within it included."""
    current = _CURRENT.get()
    return current.tally.sent if current is not None else Requests()


def jobs_started() -> int | None:
    """Returns how many Spark jobs began since the stage did, those of the stages within it included;
    null where nobody counts them. Stages that are at work at the same time in one process each
    count those of both.
    """
    current = _CURRENT.get()
    return current.jobs_started() if current is not None else None


def count_jobs(spark: SparkSession | None) -> int | None:
    """Returns how many jobs ever began in this session's Spark; null where it does not tell: over
    Spark Connect, and on platforms that let Python ask the JVM for less than this.
    """
    if spark is None or is_remote(spark):
        return None
    try:
        jvm: Any = getattr(spark.sparkContext, "_jsc")  # noqa: B009  (PySpark itself counts no jobs, only its JVM does)
        return int(jvm.sc().dagScheduler().numTotalJobs())
    except Exception:  # noqa: BLE001  (what is said about the work must never end the work)
        return None


def record_publication(published: PublishedTable) -> None:
    """Notes that a table was published, for the stage's last line."""
    current = _CURRENT.get()
    if current is not None:
        receipt = published.receipt
        current.published.append(f"{receipt.asset} {receipt.rows:,} rows")


@contextmanager
def measure_work(name: str) -> Generator[None]:
    """Counts what is done meanwhile as a stage of that name, for work that publishes no table."""
    with _step(logging.getLogger(__name__), name, None):
        yield


@contextmanager
def _step(log: logging.Logger, name: str, spark: Any) -> Generator[None]:
    with counted() as tally, _run_step(_Step(log, name, spark, _CURRENT.get(), tally, count_jobs(spark))):
        yield


@contextmanager
def _run_step(current: _Step) -> Generator[None]:
    outer = current.outer
    if outer is not None:
        outer.inner = current
    token = _CURRENT.set(current)
    _STEPS.append(current)
    beat = threading.Thread(target=current.log_regularly, name=f"progress of {current.name}", daemon=True)
    beat.start()
    how = "ended"
    try:
        yield
    except BaseException as error:
        how = f"stopped by {type(error).__name__}"
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
        current.log_line(f"{how} after {time.monotonic() - current.began:,.1f} s{rows}{requests}")


def _name(owner: str, table: Table, run_date: date) -> str:
    return f"{owner}/{table.name} of {run_date}"


def _spark_tasks(spark: SparkSession | None) -> tuple[str, int, int | None] | None:
    """Returns how many tasks of the running Spark stages are done, and of how many; null where none
    runs.

    Raises over Spark Connect, which cannot say.
    """
    if spark is None:
        return None
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    there = [stage for stage in stages if stage is not None]
    return ("Spark tasks", sum(stage.numCompletedTasks for stage in there), sum(stage.numTasks for stage in there)) if there else None
