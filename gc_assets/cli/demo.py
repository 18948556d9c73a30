"""`gc-assets demo`: real sample lakes and one night on them."""

from __future__ import annotations

from pathlib import Path

import click

from gc_assets.cli.context import Settings, common_options


@click.command("demo", short_help="Build real sample lakes and run one night on them.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="D",
    help="Where to build them.  [default: demo, or demo-s3 with --s3]",
)
@click.option("--s3", "on_s3", is_flag=True, help="Put the lakes into a bucket, on an S3 server that the demo starts (versitygw).")
@click.option("--s3-endpoint", metavar="URL", help="Make the bucket on this server, as whom the environment names. Means --s3.")
@common_options
def demo_command(_: Settings, directory: Path | None, on_s3: bool, s3_endpoint: str | None) -> None:
    """Builds real Iceberg and Icechunk lakes below a directory, runs today's night on them in mode
    `plan`, and prints what it found with the next commands to type.

    With --s3 the lakes lie in a bucket, and a night three days ahead is run on them: objects in a
    bucket are as old as they are, and nothing younger than the grace period is garbage.

    \b
    Examples:
      gc-assets demo --dir /tmp/demo
      gc-assets demo --s3
      gc-assets demo --s3-endpoint http://127.0.0.1:9000
    """
    from gc_assets.cli.demo_story import run_demo

    on_s3 = on_s3 or s3_endpoint is not None
    run_demo(directory or Path("demo-s3" if on_s3 else "demo"), click.echo, on_s3=on_s3, endpoint=s3_endpoint)
