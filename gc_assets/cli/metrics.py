"""`gc-assets metrics`: write Prometheus metrics of the last run of each storage and lake."""

from __future__ import annotations

import click

from gc_assets.cli.context import Settings, common_options
from gc_assets.core.errors import UsageError


@click.command("metrics", short_help="Write Prometheus metrics.")
@click.option("--out", type=click.Path(dir_okay=False), metavar="FILE", help="Replace this file atomically. Default: standard output.")
@common_options
def metrics_command(settings: Settings, out: str | None) -> None:
    """Write the metrics of the last run of each storage and lake in Prometheus' text format, for the
    textfile collector of node_exporter. Only the state is read.

    \b
    Examples:
      gc-assets metrics
      gc-assets metrics --out /var/lib/node_exporter/gc_assets.prom
    """
    from prometheus_client import write_to_textfile

    from gc_assets.report.metrics import RunMetrics

    platform = settings.platform()
    found = RunMetrics(platform.config, platform.clock)
    if out is None:
        click.echo(found.text(), nl=False)
        return
    try:
        write_to_textfile(out, found)
    except OSError as error:
        raise UsageError(f"Cannot write --out {out}: {error.strerror}") from None
