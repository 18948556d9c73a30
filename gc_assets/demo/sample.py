"""Create the directory of the demo, with the lakes and a `lakes.yaml` with comments."""

from __future__ import annotations

import os
import shutil
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from gc_assets.core.errors import UsageError
from gc_assets.resources.platform import clock_of

CONFIG_NAME: Final = "lakes.yaml"
_BACKFILLED: Final = timedelta(days=14)
_UNFINISHED: Final = "lakes.yaml.unfinished"
# Modules that are needed to write the lakes. The `demo` extra installs them.
_MODULES: Final = ("pyiceberg", "fastavro", "sqlalchemy", "icechunk", "zarr", "zstandard")
_CONFIG: Final = """\
# The demo: two lakes in one storage. docs/configuration.md explains every key. Unknown keys are refused.
# Relative paths are relative to this file.

state: ./state                # the tables and logs of gc-assets, as Parquet and JSON
first_run_date: {first_run_date}    # the first partition in Dagster; usually omitted
{connection}
storages:
  - name: lake                # one root that is listed and swept; several lakes can share it
    location: {location}
    mode: apply               # plan: only create plans. apply: execute approved plans
    rehearsals: allowed       # runs with another clock (GC_ASSETS_UNSAFE_NOW) may change this storage; never use it for real data
    quarantine: trash         # planned files are {quarantine}
    quarantine_days: 1        # later plans can purge them after this number of days (for real data: 7)
    grace: 72h                # younger files are never deleted, because a writer may still commit them

lakes:
  - name: shop                # three Iceberg tables in a SQL catalog
    kind: iceberg
    catalog_name: {catalog_name}
    catalog:                  # pyiceberg's own properties
      type: sql
      uri: "sqlite:///{root}/catalog.db"
      warehouse: "{warehouse}"
{client}    retention: {{source: table}}  # each table's own history.expire.* and ref settings; Iceberg's default is 5 days

  - name: weather             # an Icechunk repository with branches main, develop, test, qa and two tags
    kind: icechunk
    location: {location}weather/
    retention:
      default: {{max_age: 30d}} # older snapshots are removed from the history, unless a ref points to them
      tags: keep              # a tag protects its snapshot at any age
"""


def ensure_demo(directory: Path) -> Path:
    """Return the `lakes.yaml` in `directory`. If it does not exist, create it and the lakes.

    Raises:
        UsageError: If the directory or catalog of the lakes exists without a `lakes.yaml`, or if
            libraries of the demo are missing.
    """
    root = directory.resolve()
    config = root / CONFIG_NAME
    if config.exists():
        return config
    lake = begin_demo(root)
    write_lakes(root, lake, clock_of(os.environ).now())
    quarantine = "moved to lake/.gc-assets/trash/<plan id>/"
    return finish_demo(root, location="./lake/", warehouse=f"file://{lake}", quarantine=quarantine)


def begin_demo(root: Path) -> Path:
    """Create an empty directory for the lakes. Files of an interrupted attempt are removed first.

    Raises:
        UsageError: In the cases that `ensure_demo` lists.
    """
    missing = [name for name in _MODULES if find_spec(name) is None]
    if missing:
        raise UsageError(f"the demo needs {', '.join(missing)} to write its lakes. Run pip install 'gc-assets[demo]'.")
    lake, catalog, unfinished = root / "lake", root / "catalog.db", root / _UNFINISHED
    if unfinished.exists():  # an earlier attempt was interrupted
        shutil.rmtree(lake, ignore_errors=True)
        catalog.unlink(missing_ok=True)
    for path in (lake, catalog):
        if path.exists():
            raise UsageError(f"{path} exists, but {root / CONFIG_NAME} of a demo does not. Choose another --dir.")
    lake.mkdir(parents=True)
    unfinished.touch()
    return lake


def write_lakes(root: Path, lake: Path, now: datetime, address: str | None = None) -> None:
    """Write both lakes and a file that belongs to no lake.

    If the files are copied to another location later, `address` is the address in the metadata.
    """
    from gc_assets.demo.lakes import build_shop, build_weather, write_note

    build_shop(root, warehouse=lake, now=now, address=address)
    build_weather(lake / "weather", now)
    write_note(lake / "README.txt", now)


def finish_demo(root: Path, location: str, warehouse: str, quarantine: str, connection: str = "", client: str = "") -> Path:
    """Write `lakes.yaml`. This is the last step, because the file marks the demo as complete."""
    from gc_assets.demo.lakes import CATALOG_NAME

    unfinished = root / _UNFINISHED
    # With earlier partitions, users can try a backfill.
    first_run_date = (clock_of(os.environ).today() - _BACKFILLED).isoformat()
    values = {
        "first_run_date": first_run_date,
        "location": location,
        "warehouse": warehouse,
        "quarantine": quarantine,
        "connection": connection,
        "client": client,
    }
    unfinished.write_text(_CONFIG.format(root=root, catalog_name=CATALOG_NAME, **values), encoding="utf-8")
    return unfinished.rename(root / CONFIG_NAME)
