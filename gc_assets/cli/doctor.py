"""`gc-assets doctor`: is everything as a night and an apply need it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from gc_assets.cli.context import Settings, common_options, format_option
from gc_assets.cli.output import say, write_json, write_table
from gc_assets.core.errors import UsageError

if TYPE_CHECKING:
    from gc_assets.stages.doctor import Finding


@click.command("doctor", short_help="Check lakes, storages and state.")
@format_option()
@common_options
def doctor_command(settings: Settings, format_: str) -> None:
    """Checks that every lake is readable and every storage safe: overlaps, clocks, quarantine, leases, interrupted applies.

    Changes nothing but a probe file in the state, which it removes. The exit code is 1 if a check fails.

    \b
    Examples:
      gc-assets doctor
      gc-assets doctor --format json
    """
    from gc_assets.stages.doctor import FAIL, WARN, doctor

    platform = settings.platform()
    found = [*_java(platform.config.spark.mode), *doctor(platform.night(platform.clock.today()))]
    rows = [asdict(finding) for finding in found]
    if format_ == "json":
        write_json(rows)
    else:
        write_table(rows, ("verdict", "subject", "check", "found", "todo"), sys.stdout)
    failed, warned = (sum(finding.verdict == verdict for finding in found) for verdict in (FAIL, WARN))
    say(f"{len(found):,} checks: {failed:,} failed, {warned:,} to look at")
    if failed:
        raise click.exceptions.Exit(1)


def _java(mode: str) -> Iterator[Finding]:
    from gc_assets.stages.doctor import FAIL, OK, Finding
    from resources.java import ensure_java_home

    try:
        home = ensure_java_home()
    except UsageError as error:
        yield Finding("spark", "java", FAIL, str(error), "Install Java 17 or newer.")
    else:
        yield Finding("spark", "java", OK, f"mode {mode}, Java at {home or 'PATH'}")
