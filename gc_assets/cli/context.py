"""What every command is given: the configuration it names, opened on first use, and the options
that all commands share.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click

from gc_assets.cli.interrupt import defer_interrupts
from gc_assets.cli.output import print_message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gc_assets.resources.collector import Collector
    from gc_assets.resources.platform import Platform

Mode = Literal["plan", "apply"]
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass
class Settings:
    """The options in front of the command or behind it. Both places mean the same."""

    config: str | None = None
    verbose: bool = False

    def enable_logging(self, ctx: click.Context) -> None:
        """Sends log lines of gc-assets to standard error until the command ends."""
        if not self.verbose:
            self.verbose = True
            logger, handler = logging.getLogger("gc_assets"), _MessageHandler()
            level = logger.level
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
            ctx.find_root().call_on_close(lambda: (logger.removeHandler(handler), logger.setLevel(level)))

    def platform(self) -> Platform:
        """Opens the configuration. Raises `UsageError` for whatever is wrong with it."""
        from gc_assets.resources.platform import load_platform

        return load_platform(os.environ, self.config)


class _MessageHandler(logging.Handler):
    """Writes to standard error, whatever that is when the line comes."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        print_message(self.format(record))


@contextmanager
def fast_imports() -> Generator[None]:
    """Collects no garbage in the block, whose imports make only what stays; of a night's imports the
    collecting is an eighth. What stands after the first such block is never looked through again.
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
    """Returns the session of the configuration. The first call takes a few seconds."""
    from gc_assets.resources.collector import Collector

    return open_session(Collector.of(platform), verbose=verbose)


def open_session(collector: Collector, *, verbose: bool = False) -> SparkSession:
    """Returns the collector's session, opened without Spark's chatter unless `verbose`."""
    with defer_interrupts(), nullcontext() if verbose else _quiet_children():
        return collector.spark()


@contextmanager
def _quiet_children() -> Generator[None]:
    """Sends what we and new processes write to standard error to a file. The file is shown if the
    start fails.
    """
    sys.stderr.flush()
    ours = os.dup(2)
    with tempfile.TemporaryFile() as chatter:
        os.dup2(chatter.fileno(), 2)
        try:
            yield
        except BaseException:
            sys.stderr.flush()
            os.dup2(ours, 2)
            chatter.seek(0)
            click.echo(chatter.read().decode(errors="replace"), err=True)
            raise
        finally:
            sys.stderr.flush()
            os.dup2(ours, 2)
            os.close(ours)


def with_mode(platform: Platform, mode: Mode | None) -> Platform:
    """Returns the platform with every storage in `mode`, or as configured where none is given."""
    if mode is None:
        return platform
    storages = tuple(storage.model_copy(update={"mode": mode}) for storage in platform.config.storages)
    return replace(platform, config=platform.config.model_copy(update={"storages": storages}))


def with_full(platform: Platform, full: bool) -> Platform:
    """Returns the platform that carries no rows of `live_files` over, and compares, if `full`."""
    return replace(platform, config=platform.config.model_copy(update={"full_every": 1})) if full else platform


class RunDate(click.ParamType):
    """A date written as `YYYY-MM-DD`."""

    name = "date"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> date:
        if isinstance(value, date):
            return value
        try:
            return date.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a date; write for example 2026-11-21", param, ctx)


class Timestamp(click.ParamType):
    """An ISO 8601 time; UTC where it names no zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a time; write for example 2026-11-21T03:00:00Z", param, ctx)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


RUN_DATE: Final = RunDate()
TIMESTAMP: Final = Timestamp()


def run_date_option(command: _F) -> _F:
    return click.option("--run-date", type=RUN_DATE, metavar="D", help="The run date, YYYY-MM-DD; default today (UTC).")(command)


def format_option(*further: str) -> Callable[[_F], _F]:
    """The option `--format`. The first choice is the default."""
    return click.option("--format", "format_", type=click.Choice(["table", "json", *further]), default="table", show_default=True)


def wide_option(command: _F) -> _F:
    """The option `--wide` of commands that print tables."""
    return click.option("--wide", is_flag=True, help="Whole lines, however wide: no key is shortened.")(command)


def common_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds `--config` and `-v` behind the command. The command's first argument is `Settings`."""

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
