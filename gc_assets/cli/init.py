"""`gc-assets init` creates a `lakes.yaml`, and `gc-assets schema` prints its schema for editors."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gc_assets.cli.context import Settings, common_options
from gc_assets.cli.new_config import (
    build_document,
    require_separate_state,
    require_storages,
    search_locations,
    to_text,
    warn_missing_libraries,
)
from gc_assets.cli.output import print_command, print_data, print_message
from gc_assets.core.commands import command
from gc_assets.core.errors import UsageError

if TYPE_CHECKING:
    from gc_assets.config.models import Config
    from gc_assets.core.paths import Location

_NO_LOCATION = (
    "pass at least one location with lakes: a folder, a SQLite catalog, a bucket location, or the address of a server. Examples:\n"
    "  gc-assets init /data/warehouse\n"
    "  gc-assets init s3://lake/weather/\n"
    "  gc-assets init http://localhost:19120/api/v2\n"
    "  gc-assets init catalog:NAME\n"
    "gc-assets init --help describes each of them."
)
_FILE_EXISTS = "{path} already exists and is not replaced. Write another file with -o."


@click.command("init", short_help="Find lakes and write lakes.yaml.")
@click.argument("locations", nargs=-1, metavar="LOCATION...")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="F",
    help="The file to write. Default: --config, then lakes.yaml.",
)
@click.option("--state", default="./state", show_default=True, metavar="S", help="The location of the collector's tables and logs.")
@common_options
def init_command(settings: Settings, locations: tuple[str, ...], output: Path | None, state: str) -> None:
    """Find the lakes of each LOCATION, and write lakes.yaml with them and their storages in mode
    `plan`. Changes nothing else, and never replaces a lakes.yaml.

    \b
    A LOCATION is one of:
      a folder with Icechunk repositories or SQLite catalogs, up to three levels
        deep (and a SQLite catalog next to the folder, if it has tables in it)
      s3://bucket/prefix/, abfss:// or gs:// with Icechunk repositories, up to
        three levels deep
      a SQLite file that is an Iceberg catalog
      http://host of a Nessie, lakeFS or Iceberg REST server, with or without the
        API path
      catalog:NAME, an Iceberg catalog in pyiceberg's .pyiceberg.yaml

    The credentials are LAKECTL_CREDENTIALS_ACCESS_KEY_ID and LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY
    for lakeFS, NESSIE_TOKEN (optional) for Nessie, and those of the environment for S3, Azure and
    Google Cloud.

    \b
    Examples:
      gc-assets init /data/warehouse
      gc-assets init http://localhost:19120/api/v2 --state s3://gc/state
      gc-assets init /data/warehouse s3://lake/weather/
    """
    from gc_assets.lakes.kinds import KINDS
    from gc_assets.lakes.schema import SCHEMA_NAME, json_schema
    from gc_assets.resources.platform import DEFAULT_CONFIG

    if not locations:
        raise UsageError(_NO_LOCATION)
    path = output or Path(settings.config or DEFAULT_CONFIG)
    if path.exists():
        raise UsageError(_FILE_EXISTS.format(path=path))
    warn_missing_libraries()
    folders, found = search_locations(locations)
    storages = require_storages(found, folders)
    document = build_document(state, storages, found)
    config = _write_config(path, document, storages)
    schema = path.with_name(SCHEMA_NAME)
    schema.write_text(json.dumps(json_schema(), indent=1) + "\n", encoding="utf-8")
    for storage in document["storages"]:
        print_data(f"storage {storage['name']}: {storage['location']}")
    for lake, entry in zip(found, document["lakes"], strict=True):
        kept = KINDS[entry["kind"]].describe_retention(config.lake_of_user(entry["name"]), {})
        print_data(f"lake {entry['name']}: {entry['kind']}, keeps {kept}")
        if lake.note:
            print_message(f"Lake {entry['name']}: {lake.note}.")
    print_message(f"Wrote {path}, and {schema.name} for editors. All storages are in plan mode, which deletes nothing.")
    print_message(f"Check `retention` in {path}: it decides which history expires.")
    print_command("Next", command("doctor", config=str(path)))


def _write_config(path: Path, document: dict[str, Any], storages: Sequence[Location]) -> Config:
    """Write a new configuration file and load it.

    If the state is in a storage, remove the file again.
    """
    from gc_assets.resources.platform import load_platform

    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(to_text(document))
    except FileExistsError:
        raise UsageError(_FILE_EXISTS.format(path=path)) from None
    try:
        config = load_platform(os.environ, str(path), require_names=False).config
        require_separate_state(config.state, storages)
    except UsageError:
        path.unlink()
        raise
    return config


@click.command("schema", short_help="Print the JSON Schema of lakes.yaml.")
@common_options
def schema_command(_: Settings) -> None:
    """Print the JSON Schema of lakes.yaml (draft 7), so that editors can complete and check keys.

    The first line of lakes.yaml refers to it:
    `# yaml-language-server: $schema=lakes.schema.json`.

    \b
    Example:
      gc-assets schema > lakes.schema.json
    """
    from gc_assets.lakes.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=1))
