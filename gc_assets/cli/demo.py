"""`gc-assets demo`: create sample lakes and run on them."""

from __future__ import annotations

from pathlib import Path

import click

from gc_assets.cli.context import Settings, common_options
from gc_assets.core.errors import UsageError


@click.command("demo", short_help="Create sample lakes and run on them.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="D",
    help="The directory for the lakes.  [default: demo, demo-s3 with --s3, or demo-azure with --azure]",
)
@click.option("--s3", "on_s3", is_flag=True, help="Create the lakes in a bucket, on a local S3 server that the demo starts (versitygw).")
@click.option(
    "--s3-endpoint", metavar="URL", help="Create the bucket on this server, with the credentials of the environment. Implies --s3."
)
@click.option(
    "--azure", "on_azure", is_flag=True, help="Create the lakes in a container, on a local emulator that the demo starts (Azurite)."
)
@common_options
def demo_command(_: Settings, directory: Path | None, on_s3: bool, s3_endpoint: str | None, on_azure: bool) -> None:
    """Create Iceberg and Icechunk lakes in a directory, run on them in `plan` mode, and print the
    results with the next commands.

    With --s3 or --azure the lakes are in a bucket, and the run is rehearsed three days ahead. The
    age of objects in a bucket cannot be changed, and files younger than the grace period are not
    garbage.

    \b
    Examples:
      gc-assets demo --dir /tmp/demo
      gc-assets demo --s3
      gc-assets demo --s3-endpoint http://127.0.0.1:9000
      gc-assets demo --azure
    """
    from gc_assets.cli.demo_story import run_demo

    on_s3 = on_s3 or s3_endpoint is not None
    if on_s3 and on_azure:
        raise UsageError("--azure cannot be combined with --s3 or --s3-endpoint; choose one object store")
    store = "s3" if on_s3 else "azure" if on_azure else None
    run_demo(directory or Path("demo" if store is None else f"demo-{store}"), click.echo, store=store, endpoint=s3_endpoint)
