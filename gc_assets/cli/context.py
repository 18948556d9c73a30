"""Code shared by all commands: configuration, common options, and starting Spark."""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click

from gc_assets.cli.interrupt import defer_interrupts
from gc_assets.cli.output import print_message
from gc_assets.core.errors import GcError
from gc_assets.core.moments import to_utc
from gc_assets.core.rehearsals import describe_rehearsal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gc_assets.resources.collector import Collector
    from gc_assets.resources.platform import Platform

Mode = Literal["plan", "apply"]
_CAUSE: Final = re.compile(r"improper|invalid|unrecognized|error|exception|could not|cannot|no such|not found|failed", re.IGNORECASE)
_WARNING: Final = re.compile(r"\bWARN|\bINFO\b")
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass
class Settings:
    """The options that users can write before or after the name of the command."""

    config: str | None = None
    verbose: bool = False

    def enable_logging(self, ctx: click.Context) -> None:
        """Print the log of gc-assets to standard error until the command ends."""
        if not self.verbose:
            self.verbose = True
            logger, handler = logging.getLogger("gc_assets"), _MessageHandler()
            level = logger.level
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
            ctx.find_root().call_on_close(lambda: (logger.removeHandler(handler), logger.setLevel(level)))

    def platform(self) -> Platform:
        """Load the configuration.

        Prints a note if a lake or storage is recorded under another name, and a warning if the
        clock is set for a rehearsal.

        Raises:
            UsageError: If the configuration is invalid.
        """
        from gc_assets.resources.platform import load_platform

        platform = load_platform(os.environ, self.config)
        for note in platform.config.name_notes:
            print_message(f"note: {note}")
        if platform.clock.is_rehearsal:
            print_message(describe_rehearsal(platform.clock.now()), "warn")
        return platform


class _MessageHandler(logging.Handler):
    """Prints log records to the current standard error, even if it was replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        print_message(self.format(record))


@contextmanager
def fast_imports() -> Generator[None]:
    """Speed up imports by disabling Python's cyclic garbage collector in the block.

    Imports create many objects and hardly any garbage, but Python's collector takes an eighth of a
    run's import time. After the first block, all existing objects are frozen, so that later
    collections skip them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():
                gc.freeze()
            gc.enable()


def open_spark(platform: Platform, *, verbose: bool = False) -> SparkSession:
    """Open the configured Spark session, which takes a few seconds on the first call."""
    from gc_assets.resources.collector import Collector

    return open_session(Collector.of(platform), verbose=verbose)


def open_session(collector: Collector, *, verbose: bool = False) -> SparkSession:
    """Open the Spark session of a `Collector`, hiding Spark's output unless `verbose` is set.

    Raises:
        GcError: If Spark cannot start. The message contains the reason found in its output.
    """
    with defer_interrupts(), nullcontext() if verbose else _quiet_children():
        return collector.spark()


def start_spark(settings: Settings, platform: Platform) -> SparkSession:
    """Open the Spark session while the progress display shows that Spark is starting."""
    from gc_assets.engine.progress import set_activity

    set_activity("starting Spark")
    spark = open_spark(platform, verbose=settings.verbose)
    set_activity("")
    return spark


@contextmanager
def _quiet_children() -> Generator[None]:
    """Capture the standard error of this process and its children while Spark starts.

    If Spark fails, the reason is extracted from the captured output and raised as a `GcError`. An
    error of gc-assets itself is raised unchanged, after the output has been printed. After an
    interrupt, the output is discarded.
    """
    sys.stderr.flush()
    ours = os.dup(2)
    with tempfile.TemporaryFile() as chatter:
        os.dup2(chatter.fileno(), 2)
        try:
            yield
        except BaseException as error:
            sys.stderr.flush()
            os.dup2(ours, 2)
            chatter.seek(0)
            output = chatter.read().decode(errors="replace")
            if isinstance(error, Exception) and not isinstance(error, GcError):
                raise GcError(f"Spark cannot start: {_find_reason(output, error)}. `gc-assets doctor -v` shows its output.") from error
            if not isinstance(error, KeyboardInterrupt):
                click.echo(output, err=True)
            raise
        finally:
            sys.stderr.flush()
            os.dup2(ours, 2)
            os.close(ours)


def _find_reason(output: str, error: Exception) -> str:
    """Find the line in Spark's output that states why it failed. If none does, describe the error."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    causes = [line for line in lines if _CAUSE.search(line) and not _WARNING.search(line)]
    message = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return next(iter(causes), message).rstrip(".")


def with_mode(platform: Platform, mode: Mode | None) -> Platform:
    """Return a copy of the platform in which all storages have `mode`, unless `mode` is None."""
    if mode is None:
        return platform
    storages = tuple(storage.model_copy(update={"mode": mode}) for storage in platform.config.storages)
    return replace(platform, config=platform.config.model_copy(update={"storages": storages}))


def with_listing(platform: Platform, listing: bool | None) -> Platform:
    """Return a copy of the platform in which all storages have the value of the `--listing` option."""
    storages = tuple(storage.with_listing(listing) for storage in platform.config.storages)
    return replace(platform, config=platform.config.model_copy(update={"storages": storages}))


class RunDate(click.ParamType):
    """A click parameter of the form `YYYY-MM-DD`."""

    name = "date"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> date:
        if isinstance(value, date):
            return value
        try:
            return date.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a date. Write it like 2026-11-21.", param, ctx)


class Timestamp(click.ParamType):
    """A click parameter with an ISO 8601 time, in UTC unless it has a time zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a time. Write it like 2026-11-21T03:00:00Z.", param, ctx)
        return to_utc(moment)


class WholeNumber(click.ParamType):
    """A click parameter for counts.

    Args:
        most: The largest allowed number, or None for no limit.
    """

    name = "number"

    def __init__(self, most: int | None = None) -> None:
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            number = -1
        if number < 0 or (self.most is not None and number > self.most):
            limit = "0 or more" if self.most is None else f"0 to {self.most:,}"
            self.fail(f"{str(value)!r} is not valid. Expected a whole number, {limit}.", param, ctx)
        return number


RUN_DATE: Final = RunDate()
TIMESTAMP: Final = Timestamp()


def run_date_option(command: _F) -> _F:
    return click.option("--run-date", type=RUN_DATE, metavar="D", help="The run date, YYYY-MM-DD. Default: today (UTC).")(command)


def format_option(*further: str) -> Callable[[_F], _F]:
    """Add the `--format` option with `table`, which is the default, `json` and further formats."""
    return click.option("--format", "format_", type=click.Choice(["table", "json", *further]), default="table", show_default=True)


class _Name(click.types.StringParamType):
    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        del param, ctx
        return "Your name is recorded with the decision, for example --by ada."


def by_option(command: _F) -> _F:
    """Add the `--by` option to a command that records a decision of the user."""
    return click.option("--by", type=_Name(), required=True, metavar="WHO", help="Your name, which is recorded. It is not authenticated.")(
        command
    )


def comment_option(command: _F) -> _F:
    return click.option("--comment", default="", metavar="TEXT", help="The reason, which is recorded.")(command)


def wide_option(command: _F) -> _F:
    """Add the `--wide` option to a command that prints tables."""
    return click.option("--wide", is_flag=True, help="Print whole lines, without shortened keys.")(command)


def common_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--config` and `-v` to a command whose first argument is `Settings`."""

    def config(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.ensure_object(Settings).config = value

    def verbose(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            ctx.ensure_object(Settings).enable_logging(ctx)

    wrapped = click.pass_obj(command)
    wrapped = click.option("-v", "--verbose", is_flag=True, expose_value=False, callback=verbose, help="Show log lines and tracebacks.")(
        wrapped
    )
    return click.option("--config", metavar="FILE", expose_value=False, callback=config, help="The configuration file.")(wrapped)
