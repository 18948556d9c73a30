"""`gc-assets demo`: real sample lakes and one night on them."""

from __future__ import annotations

from pathlib import Path

import click

from gc_assets.cli.context import Settings, common_options


@click.command("demo", short_help="Build real sample lakes and run one night on them.")
@click.option(
    "--dir", "directory", type=click.Path(file_okay=False), default="demo", show_default=True, metavar="D", help="Where to build them."
)
@common_options
def demo_command(_: Settings, directory: str) -> None:
    """Builds real Iceberg and Icechunk lakes below a directory, runs today's night on them in mode
    `plan`, and prints what it found with the next commands to type.

    \b
    Example:
      gc-assets demo --dir /tmp/demo
    """
    from gc_assets.cli.demo_story import run_demo

    run_demo(Path(directory), click.echo)
