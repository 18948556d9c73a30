"""What every command is given: the configuration it names, opened on first use, and options that all commands share."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from resources.platform import Platform
    from resources.spark import SparkRuntime

Mode = Literal["plan", "apply"]
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass
class Settings:
    """The options in front of the command, or behind it: both places mean the same."""

    config: str | None = None
    verbose: bool = False

    def platform(self) -> Platform:
        """Raises `UsageError` for whatever is wrong with the configuration."""
        from resources.platform import load_platform

        return load_platform(os.environ, self.config)


def spark_of(platform: Platform, *, verbose: bool = False) -> SparkSession:
    """The session of the configuration; a few seconds the first time."""
    from resources.spark import SparkRuntime

    return opened(SparkRuntime.from_config(platform.config.spark), verbose=verbose)


def opened(runtime: SparkRuntime, *, verbose: bool = False) -> SparkSession:
    """The runtime's session, opened without Spark's chatter unless `verbose`."""
    with nullcontext() if verbose else _quiet_children():
        return runtime.session()


@contextmanager
def _quiet_children() -> Generator[None]:
    """What we and processes started meanwhile write to standard error goes to a file, which is shown if the start fails."""
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
    """The platform with every storage in `mode`; as configured where none is given."""
    if mode is None:
        return platform
    storages = tuple(storage.model_copy(update={"mode": mode}) for storage in platform.config.storages)
    return replace(platform, config=platform.config.model_copy(update={"storages": storages}))


class RunDate(click.ParamType):
    """`YYYY-MM-DD`."""

    name = "date"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> date:
        if isinstance(value, date):
            return value
        try:
            return date.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a date; write for example 2026-11-21", param, ctx)


class Moment(click.ParamType):
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
MOMENT: Final = Moment()


def run_date_option(command: _F) -> _F:
    return click.option("--run-date", type=RUN_DATE, metavar="D", help="The run date, YYYY-MM-DD; default today (UTC).")(command)


def format_option(*further: str) -> Callable[[_F], _F]:
    """`--format`; the first is the default."""
    return click.option("--format", "format_", type=click.Choice(["table", "json", *further]), default="table", show_default=True)


def common_options(command: Callable[..., None]) -> Callable[..., None]:
    """`--config` and `-v` behind the command; `Settings` is the command's first argument."""

    def config(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.ensure_object(Settings).config = value

    def verbose(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            ctx.ensure_object(Settings).verbose = True

    wrapped = click.pass_obj(command)
    wrapped = click.option("-v", "--verbose", is_flag=True, expose_value=False, callback=verbose, help="Show details of an error.")(wrapped)
    return click.option("--config", metavar="FILE", expose_value=False, callback=config, help="The configuration file.")(wrapped)
