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

from gc_assets.core.progress_rate import Pace, format_seconds
from gc_assets.core.requests import Requests, Tally, counted
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.sessions import is_remote
from gc_assets.state.journal import Published, Run
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
class Work:
    """A stage at work: what it does since how many seconds, and how far that is.

    `within` is what the stage around it is doing; empty where there is none.
    """

    name: str
    doing: str
    seconds: float
    pace: Pace | None
    within: str = ""

    def __str__(self) -> str:
        return ", ".join(part for part in (format_seconds(self.seconds), self.doing, str(self.pace or "")) if part)


class _Meter:
    """Turns what a callable counts into a pace. Two threads may ask."""

    def __init__(self, count: Callable[[], tuple[str, int, int | None] | None]) -> None:
        self._count = count
        self._turn = threading.Lock()
        self._of: tuple[str, int | None] | None = None
        self._pace: Pace | None = None
        self._began = self._again = 0.0

    def pace(self) -> Pace | None:
        """Returns the pace, counted now or a moment ago; null where there is nothing to count."""
        with self._turn:
            asked = time.monotonic()
            if asked >= self._again:
                self._pace = self._counted()
                now = time.monotonic()
                self._again = now + max(_COUNTED_EVERY_SECONDS, _COUNTED_SHARE * (now - asked))
            return self._pace

    def _counted(self) -> Pace | None:
        try:
            found = self._count()
        except Exception:  # noqa: BLE001  (what is said about the work must never end the work)
            return None
        if found is None:
            return None
        unit, done, total = found
        now, before = time.monotonic(), self._pace
        is_new = before is None or self._of != (unit, total) or done < before.done
        first = done if before is None or is_new else before.first
        self._began, self._of = (now if is_new else self._began), (unit, total)
        return Pace(unit, done if total is None else min(done, total), total, now - self._began, first)


@dataclass(eq=False)
class _Step:
    log: logging.Logger
    name: str
    spark: SparkSession | None
    outer: _Step | None
    tally: Tally
    jobs_before: int | None
    inner: _Step | None = None
    now_doing: str = ""
    published: list[str] = field(default_factory=list[str])
    began: float = field(default_factory=time.monotonic)
    said: float = field(default_factory=time.monotonic)
    # One line at a time: a store of log lines may not stand two threads.
    turn: threading.Lock = field(default_factory=threading.Lock)
    over: threading.Event = field(default_factory=threading.Event)
    tasks: _Meter = field(init=False)
    meter: _Meter = field(init=False)

    def __post_init__(self) -> None:
        self.tasks = self.meter = _Meter(lambda: _spark_tasks(self.spark))

    def say(self, text: str) -> None:
        with self.turn:
            self.said = time.monotonic()
            self.log.info("%s: %s", self.name, text)

    def work(self) -> Work:
        pace = self.meter.pace() or self.tasks.pace()
        return Work(self.name, self.now_doing, time.monotonic() - self.began, pace, self._within())

    def jobs(self) -> int | None:
        now = jobs_of(self.spark)
        return now - self.jobs_before if now is not None and self.jobs_before is not None else None

    def _within(self) -> str:
        if self.outer is None:
            return ""
        counted_by_itself = self.outer.meter.pace() if self.outer.meter is not self.outer.tasks else None
        return ", ".join(part for part in (self.outer.now_doing, str(counted_by_itself or "")) if part)

    def beat(self) -> None:
        """Breaks every silence until the step is over.

        An inner step breaks its own silences.
        """
        while not self.over.wait(max(0.01, self.said + SILENCE_SECONDS - time.monotonic())):
            if self.inner is not None:
                self.said = time.monotonic()
            elif time.monotonic() - self.said >= SILENCE_SECONDS:
                self.say(str(self.work()))


# The steps at work in this process, for `at_work`: a context of its own sees only its own steps.
_STEPS: Final[list[_Step]] = []
_CURRENT: ContextVar[_Step | None] = ContextVar("step", default=None)


def logged(table: Table, owner: Callable[[Any], str] = str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
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


def begin(run_context: RunContext, group: str, table: Table, run_date: date | None = None) -> Run:
    """Starts a new run of a table, and announces it by a line."""
    run = run_context.state.start(group, table.name, run_date or run_context.run_date, run_context.clock)
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


def reached(text: str) -> None:
    """Names what the work has come to, without a line of its own."""
    current = _CURRENT.get()
    if current is not None:
        current.now_doing = text


@contextmanager
def counting(unit: str, done: Callable[[], int], total: int | None = None) -> Generator[None]:
    """Says how to count what is done of this part of the work, and how much it is where that is
    known.

    `done` is called from another thread, once a second at most. It may fail: then nothing is told.
    """
    current = _CURRENT.get()
    if current is None:
        yield
        return
    before, current.meter = current.meter, _Meter(lambda: (unit, done(), total))
    try:
        yield
    finally:
        current.meter = before


def each(items: Iterable[_Item], unit: str, total: int | None = None) -> Iterator[_Item]:
    """Yields the items, and counts those that the caller is done with."""
    past = 0
    with counting(unit, lambda: past, total):
        for item in items:
            yield item
            past += 1


def at_work() -> Work | None:
    """Returns the innermost stage at work in this process, the last begun where there are several;
    null where there is none.
    """
    inner = [step for step in list(_STEPS) if step.inner is None]
    return inner[-1].work() if inner else None


def asked() -> Requests:
    """Returns what the stage has sent to object stores so far, the stages within it included."""
    current = _CURRENT.get()
    return current.tally.sent if current is not None else Requests()


def jobs_asked() -> int | None:
    """Returns how many Spark jobs began since the stage did, those of the stages within it included;
    null where nobody counts them. Stages that are at work at the same time in one process each
    count those of both.
    """
    current = _CURRENT.get()
    return current.jobs() if current is not None else None


def jobs_of(spark: SparkSession | None) -> int | None:
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


def made(published: Published) -> None:
    """Notes that a table was published, for the stage's last line."""
    current = _CURRENT.get()
    if current is not None:
        receipt = published.receipt
        current.published.append(f"{receipt.asset} {receipt.rows:,} rows")


@contextmanager
def working(name: str) -> Generator[None]:
    """Counts what is done meanwhile as a stage of that name, for work that publishes no table."""
    with _step(logging.getLogger(__name__), name, None):
        yield


@contextmanager
def _step(log: logging.Logger, name: str, spark: Any) -> Generator[None]:
    with counted() as tally, _heard(_Step(log, name, spark, _CURRENT.get(), tally, jobs_of(spark))):
        yield


@contextmanager
def _heard(current: _Step) -> Generator[None]:
    outer = current.outer
    if outer is not None:
        outer.inner = current
    token = _CURRENT.set(current)
    _STEPS.append(current)
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
        _STEPS.remove(current)
        if outer is not None:
            outer.inner = None
        rows = f": {', '.join(current.published)}" if current.published else ""
        requests = f"; requests: {current.tally.sent}" if current.tally.sent else ""
        current.say(f"{how} after {time.monotonic() - current.began:,.1f} s{rows}{requests}")


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
