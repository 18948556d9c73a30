"""`gc-assets doctor`: checks that everything is as a night and an apply need it."""

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
    from gc_assets.stages.read.doctor import Finding


@click.command("doctor", short_help="Check lakes, storages and state.")
@click.option(
    "--repair", is_flag=True, help="First make the state's indexes again from the receipts, where they differ, and forget harmed folds."
)
@format_option()
@common_options
def doctor_command(settings: Settings, repair: bool, format_: str) -> None:
    """Checks that every lake is readable and every storage safe: overlaps, clocks, quarantine,
    leases, interrupted applies.

    Changes nothing but probe files in the state, which it removes. The exit code is 1 if a check
    fails. With --repair it first makes the indexes of the state again from the receipts, where one
    is damaged or lacks a run.

    \b
    Examples:
      gc-assets doctor
      gc-assets doctor --format json
      gc-assets doctor --repair
    """
    from gc_assets.stages.read.doctor import FAIL, WARN, doctor

    platform = settings.platform()
    if repair:
        for path in platform.night(platform.clock.today()).state.repair():
            say(f"repaired: {platform.config.state}/{path}")
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
    from gc_assets.resources.java import ensure_java_home
    from gc_assets.stages.read.doctor import FAIL, OK, Finding

    try:
        home = ensure_java_home()
    except UsageError as error:
        yield Finding("spark", "java", FAIL, str(error), "Install Java 17 or newer.")
    else:
        yield Finding("spark", "java", OK, f"mode {mode}, Java at {home or 'PATH'}")
