"""`gc-assets init` and `gc-assets schema`: create a `lakes.yaml`, and the schema for editors."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gc_assets.cli.context import Settings, common_options
from gc_assets.cli.output import print_command, print_data, print_message
from gc_assets.core.commands import command
from gc_assets.core.errors import StoreError, UsageError
from gc_assets.core.units import count_of

if TYPE_CHECKING:
    from gc_assets.core.objects import Objects
    from gc_assets.core.paths import Location
    from gc_assets.lakes.discovery import DiscoveredLake

_HEADER = """\
{first_line}
# Written by `gc-assets init`. docs/configuration.md explains every key. Unknown keys are refused.
# List EVERY catalog and repository that may refer to files of these storages. Files that only a
# missing one needs look like garbage.

"""
_FILE_EXISTS = "{path} already exists and is not replaced. Name another file with -o."


@click.command("init", short_help="Find lakes and write lakes.yaml.")
@click.argument("places", nargs=-1, required=True, metavar="PLACE...")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="F",
    help="The file to write. Default: --config, then lakes.yaml.",
)
@click.option("--state", default="./state", show_default=True, metavar="S", help="The location of the collector's tables and logs.")
@common_options
def init_command(settings: Settings, places: tuple[str, ...], output: Path | None, state: str) -> None:
    """Find the lakes of each PLACE, and write lakes.yaml with them and their storages in mode
    `plan`. Changes nothing else, and never replaces a lakes.yaml.

    \b
    A PLACE is one of:
      a folder with Icechunk repositories or SQLite catalogs, up to three levels deep
      s3://bucket/prefix/ of an Icechunk repository
      a SQLite file that is an Iceberg catalog
      http://host of a Nessie, lakeFS or Iceberg REST server, with or without the API path
      catalog:NAME, an Iceberg catalog in pyiceberg's configuration (.pyiceberg.yaml)

    The credentials are LAKECTL_CREDENTIALS_ACCESS_KEY_ID and LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY
    for lakeFS, NESSIE_TOKEN (optional) for Nessie, and those of the environment for S3.

    \b
    Examples:
      gc-assets init /data/warehouse
      gc-assets init http://localhost:19120/api/v2 s3://lake/weather/ --state s3://gc/state
    """
    from gc_assets.lakes.discovery import choose_storages
    from gc_assets.lakes.kinds import KINDS
    from gc_assets.lakes.schema import FIRST_LINE, SCHEMA_NAME, json_schema
    from gc_assets.resources.platform import DEFAULT_CONFIG, load_platform

    path = output or Path(settings.config or DEFAULT_CONFIG)
    if path.exists():
        raise UsageError(_FILE_EXISTS.format(path=path))
    _warn_missing_libraries()
    folders, found = _discover(places)
    storages = choose_storages(found, folders)
    if not storages:
        reasons = "; ".join(f"lake {lake.name}: {lake.note or 'it has no table yet'}" for lake in found)
        raise UsageError(f"cannot determine a storage, because no lake reports the location of its files. {reasons}")
    document = _document(state, storages, found)
    schema = path.with_name(SCHEMA_NAME)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(_HEADER.format(first_line=FIRST_LINE) + _yaml(document))
    except FileExistsError:
        raise UsageError(_FILE_EXISTS.format(path=path)) from None
    try:
        _require_separate_state(load_platform(os.environ, str(path), require_names=False).config.state, storages)
    except UsageError:
        path.unlink()
        raise
    schema.write_text(json.dumps(json_schema(), indent=1) + "\n", encoding="utf-8")
    for storage in document["storages"]:
        print_data(f"storage {storage['name']}: {storage['location']}")
    config = load_platform(os.environ, str(path), require_names=False).config
    for lake, entry in zip(found, document["lakes"], strict=True):
        kept = KINDS[entry["kind"]].describe_retention(config.lake_of_user(entry["name"]), {})
        print_data(f"lake {entry['name']}: {entry['kind']}, keeps {kept}")
        if lake.note:
            print_message(f"Lake {entry['name']}: {lake.note}.")
    print_message(f"Wrote {path}, and {schema.name} for editors. All storages are in mode plan, which deletes nothing.")
    print_message(f"Check `retention` in {path}: it decides which history expires.")
    print_command("Next", command("doctor", config=str(path)))


@click.command("schema", short_help="Print the JSON Schema of lakes.yaml.")
@common_options
def schema_command(_: Settings) -> None:
    """Print the JSON Schema of lakes.yaml (draft 7), with which editors complete and check keys.

    The first line of lakes.yaml refers to it:
    `# yaml-language-server: $schema=lakes.schema.json`.

    \b
    Example:
      gc-assets schema > lakes.schema.json
    """
    from gc_assets.lakes.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=1))


def _warn_missing_libraries() -> None:
    from gc_assets.lakes.kinds import KINDS, missing_modules

    missing = [kind for kind in KINDS.values() if missing_modules(kind)]
    if missing:
        names, extras = " and ".join(kind.title for kind in missing), ",".join(kind.name for kind in missing)
        print_message(f"Lakes of {names} are not searched, because their libraries are missing. Run pip install 'gc-assets[{extras}]'.")


def _discover(places: Sequence[str]) -> tuple[list[str], list[DiscoveredLake]]:
    """Return the folders among the places, and the lakes of all places.

    Raises:
        UsageError: If a place has no lake.
    """
    from gc_assets.core.paths import FILE, S3, scheme_of
    from gc_assets.lakes.discovery import DiscoveryTarget, list_folders
    from gc_assets.lakes.kinds import discover
    from gc_assets.stores.store import open_objects

    objects = open_objects()
    addresses: list[str] = []
    found: list[DiscoveredLake] = []
    for given in places:
        if "@" in given.partition("://")[2].partition("/")[0]:
            raise UsageError("credentials in an address are refused. Set the variables of gc-assets init --help.")
        is_path = scheme_of(given) == FILE and not given.startswith("file:")
        address = str(Path(given).resolve()) if is_path else given
        try:
            lakes = [lake for folder in list_folders(address) for lake in discover(DiscoveryTarget(folder, objects, os.environ))]
        except OSError as error:
            raise StoreError(f"{given}: {error.strerror or error}: {error.filename or address}") from None
        if not lakes:
            raise UsageError(_describe_no_lake(given, address, objects))
        found += [lake for lake in lakes if lake.entry not in [other.entry for other in found]]
        addresses += [address] if scheme_of(address) in {FILE, S3} and not Path(address).is_file() else []
    return addresses, found


def _describe_no_lake(given: str, address: str, objects: Objects) -> str:
    """Return why a place has no lake: what was found there, what was looked for, and what to name."""
    from gc_assets.lakes.discovery import find_metadata
    from gc_assets.lakes.kinds import KINDS

    if address.startswith("/") and not Path(address).exists():
        return f"{given}: no such file or directory. A place is a folder, a catalog file or an address, see gc-assets init --help."
    looked_for = "; ".join(kind.discovered_in_folders for kind in KINDS.values() if kind.discovered_in_folders)
    for kind in KINDS.values():
        for pattern in kind.files.metadata_patterns if kind.catalogs else ():
            if found := find_metadata(address, objects, pattern.names):
                return (
                    f"{given}: found {count_of(len(found), 'file')} with {pattern.noun} of {kind.title}, but no catalog.\n"
                    f"  Example: {found[0]}\n"
                    f"  Looked for: {looked_for}.\n"
                    f"  Name the catalog instead, because only the catalog knows which metadata is current: {kind.catalogs}."
                )
    return f"{given}: no lake found. Looked for: {looked_for}. See gc-assets init --help for the supported places."


def _require_separate_state(state: str, storages: Sequence[Location]) -> None:
    from gc_assets.core.paths import Location

    for storage in storages:
        if storage.contains(Location.parse(state)):
            raise UsageError(f"the state {state} would be in the storage {storage}. Name a location outside of it with --state.")


def _document(state: str, storages: Sequence[Location], found: Sequence[DiscoveredLake]) -> dict[str, Any]:
    from gc_assets.lakes.discovery import unique_name

    names: list[str] = []
    for lake in found:
        names.append(unique_name(lake.name, names))
    lakes = [{"name": name, **lake.entry} for name, lake in zip(names, found, strict=True)]
    listed: list[dict[str, Any]] = []
    for place in storages:
        names.append(unique_name(place.root.rstrip("/").rpartition("/")[2], names))
        listed.append({"name": names[-1], "location": str(place), "mode": "plan"})
    return {"state": state, "storages": listed, "lakes": lakes}


def _yaml(document: dict[str, Any]) -> str:
    """Return the document as YAML. Each lake has its retention, with comments."""
    from textwrap import indent

    from gc_assets.lakes.kinds import KINDS

    text = _dump({key: value for key, value in document.items() if key != "lakes"}) + "lakes:\n"
    return text + "".join(_dump([lake]) + indent(KINDS[lake["kind"]].retention_yaml, "  ") for lake in document["lakes"])


def _dump(value: Any) -> str:
    import yaml

    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
