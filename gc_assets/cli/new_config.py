"""Find the lakes at the paths and URLs given by the user, and draft a `lakes.yaml` for them.

The draft is returned as text. `gc-assets init` writes it, `gc-assets scan` only uses and prints it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gc_assets.cli.output import print_message
from gc_assets.core.errors import GcError, StoreError, UsageError
from gc_assets.core.paths import AZURE, FILE, Location, is_in_bucket, parse_address, scheme_of
from gc_assets.core.units import count_of

if TYPE_CHECKING:
    from gc_assets.core.objects import Objects
    from gc_assets.lakes.discovery import DiscoveredLake

_HEADER = """\
{first_line}
# Written by `gc-assets init`. docs/configuration.md explains every key. Unknown keys are refused.
# List EVERY catalog and repository that may refer to files of these storages. If one is missing,
# the files that only it needs look like garbage.

"""


def warn_missing_libraries() -> None:
    """Warn about kinds of lakes that are not searched because a library is not installed."""
    from gc_assets.lakes.kinds import KINDS, missing_modules

    missing = [kind for kind in KINDS.values() if missing_modules(kind)]
    if missing:
        names, extras = " and ".join(kind.title for kind in missing), ",".join(kind.name for kind in missing)
        print_message(f"Lakes of {names} are not searched, because their libraries are missing. Run pip install 'gc-assets[{extras}]'.")


def require_locations(locations: Sequence[str]) -> None:
    """Check that all local locations exist, so that a typo is reported before the search starts.

    Raises:
        UsageError: If a local file or directory does not exist.
    """
    for given in locations:
        address = _to_address(given)
        try:
            if scheme_of(address) == FILE:
                Path("/", Location.parse(address).root).stat()
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError(
                f"{given}: no such file or directory. A LOCATION is a folder, a catalog file or an address, see gc-assets init --help."
            ) from None
        except OSError:
            pass  # the search reports the reason


def search_locations(locations: Sequence[str]) -> tuple[list[str], list[DiscoveredLake]]:
    """Search all locations for lakes.

    Returns:
        The locations that are local folders or bucket locations, and the lakes found.

    Raises:
        UsageError: If a location does not exist, or if no lake is found there.
    """
    require_locations(locations)
    from gc_assets.lakes.discovery import DiscoveryTarget, list_folders
    from gc_assets.lakes.kinds import discover
    from gc_assets.stores.store import open_objects

    objects = open_objects()
    addresses: list[str] = []
    found: list[DiscoveredLake] = []
    for given in locations:
        address = _to_address(given)
        try:
            lakes = [lake for folder in list_folders(address) for lake in discover(DiscoveryTarget(folder, objects, os.environ))]
            lakes += _discover_next_to(address, objects)
        except OSError as error:
            raise StoreError(f"cannot search {given}: {error.strerror or error}: {error.filename or address}") from None
        if not lakes:
            raise UsageError(_describe_no_lake(given, address, objects))
        new = [lake for lake in lakes if lake.entry not in [other.entry for other in found]]
        for lake in new:
            if lake.file:
                print_message(f"Found the catalog {lake.file}.")
        found += new
        addresses += [address] if (scheme_of(address) == FILE or is_in_bucket(address)) and not Path(address).is_file() else []
    return addresses, found


def _to_address(location: str) -> str:
    """Make a local path absolute. URLs are returned unchanged.

    Raises:
        UsageError: If a URL contains credentials, which would end up in `lakes.yaml`.
    """
    is_container = scheme_of(location) == AZURE and parse_address(location) is not None
    if "@" in location.partition("://")[2].partition("/")[0] and not is_container:
        raise UsageError("credentials in an address are refused. Set the variables that gc-assets init --help lists.")
    is_path = scheme_of(location) == FILE and not location.startswith("file:")
    return str(Path(location).resolve()) if is_path else location


def _discover_next_to(address: str, objects: Objects) -> list[DiscoveredLake]:
    """Find lakes whose files are in a local folder and whose catalog is in its parent folder.

    Many tutorials create the SQLite catalog next to the warehouse directory, so that searching only
    the warehouse would miss it.
    """
    from gc_assets.lakes.discovery import DiscoveryTarget
    from gc_assets.lakes.kinds import discover

    path = DiscoveryTarget(address, objects, os.environ).path
    if path is None or not path.is_dir() or path.parent == Path("/"):
        return []
    folder = Location.parse(str(path))
    try:
        lakes = list(discover(DiscoveryTarget(str(path.parent), objects, os.environ)))
    except (GcError, OSError) as error:
        print_message(f"Catalogs in {path.parent} are not searched: {error}")
        return []
    return [lake for lake in lakes if any(folder.contains(Location.parse(location)) for location in lake.locations)]


def _describe_no_lake(given: str, address: str, objects: Objects) -> str:
    """Compose the error message for a location without a lake.

    If the location has metadata files but no catalog, the message contains an example.
    """
    from gc_assets.lakes.discovery import DiscoveryTarget, find_metadata
    from gc_assets.lakes.kinds import KINDS

    is_server = DiscoveryTarget(address, objects, {}).is_server
    searched = [kind.discovered_servers if is_server else kind.discovered_in_folders for kind in KINDS.values()]
    looked_for = "; ".join(filter(None, searched))
    for kind in KINDS.values():
        for pattern in kind.files.metadata_patterns if kind.catalogs else ():
            if found := find_metadata(address, objects, pattern.names):
                return (
                    f"{given}: found {count_of(len(found), 'file')} with {pattern.noun} of {kind.title}, but no catalog.\n"
                    f"  Example: {found[0]}\n"
                    f"  Looked for: {looked_for}.\n"
                    f"  Pass the catalog instead, because only the catalog knows which metadata is current: {kind.catalogs}."
                )
    return f"{given}: no lake found. Looked for: {looked_for}. See gc-assets init --help for the supported locations."


def require_storages(found: Sequence[DiscoveredLake], folders: Sequence[str]) -> list[Location]:
    """Choose the storages that contain the files of the lakes.

    Raises:
        UsageError: If none of the lakes reports the location of its files.
    """
    from gc_assets.lakes.discovery import choose_storages

    storages = choose_storages(found, folders)
    if not storages:
        reasons = "; ".join(f"lake {lake.name}: {lake.note or 'it has no table yet'}" for lake in found)
        raise UsageError(f"cannot determine a storage, because no lake reports the location of its files. {reasons}")
    return storages


def require_separate_state(state: str, storages: Sequence[Location]) -> None:
    """Check that the state is outside of all storages.

    Raises:
        UsageError: If a storage contains the state.
    """
    for storage in storages:
        if storage.contains(Location.parse(state)):
            raise UsageError(f"the state {state} would be in the storage {storage}. Set a location outside of it with --state.")


def build_document(state: str, storages: Sequence[Location], found: Sequence[DiscoveredLake]) -> dict[str, Any]:
    """Build the content of a `lakes.yaml`. All storages are in `plan` mode, which is safe."""
    from gc_assets.lakes.discovery import unique_name

    names: list[str] = []
    for lake in found:
        names.append(unique_name(lake.name, names))
    lakes = [{"name": name, **lake.entry} for name, lake in zip(names, found, strict=True)]
    listed: list[dict[str, Any]] = []
    for location in storages:
        names.append(unique_name(location.root.rstrip("/").rpartition("/")[2], names))
        listed.append({"name": names[-1], "location": str(location), "mode": "plan"})
    return {"state": state, "storages": listed, "lakes": lakes}


def to_text(document: dict[str, Any]) -> str:
    """Render the document as YAML, adding comments that explain the retention settings."""
    from textwrap import indent

    from gc_assets.lakes.kinds import KINDS
    from gc_assets.lakes.schema import FIRST_LINE

    text = _HEADER.format(first_line=FIRST_LINE) + _dump({key: value for key, value in document.items() if key != "lakes"}) + "lakes:\n"
    return text + "".join(_dump([lake]) + indent(KINDS[lake["kind"]].retention_yaml, "  ") for lake in document["lakes"])


def _dump(value: Any) -> str:
    import yaml

    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
