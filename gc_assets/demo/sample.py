"""The demo's directory: lakes that are built once, and the `lakes.yaml` that teaches how to collect
them.
"""

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
# What writes the lakes, by the extra that brings it.
_MODULES: Final = {"iceberg": ("pyiceberg", "fastavro", "sqlalchemy"), "icechunk": ("icechunk", "zarr", "zstandard")}
_CONFIG: Final = """\
# The demo: two lakes on one storage. Every key is explained in the README; unknown keys are refused.
# Relative paths start at this file.

state: ./state                # all that gc-assets knows, as Parquet and JSON; delete it and the lakes are as before
first_run_date: {first_run_date}       # with which run date Dagster's page begins; a real platform leaves this out
{connection}
storages:
  - name: lake                # one root that is listed and swept; several lakes may live on it
    location: {location}
    mode: apply               # plan: only ever plan. apply: execute plans that somebody approved by name
    rehearsals: allowed       # runs under a clock of your own (GC_ASSETS_UNSAFE_NOW) may change this storage; never for real data
    quarantine: trash         # planned files are first {aside}
    quarantine_days: 1        # only a plan made this many days later may purge them (7 is a good value for real data)
    grace: 72h                # files younger than this are never touched: their writer may be about to commit them

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
      default: {{max_age: 30d}} # older snapshots leave the history, unless a ref points at them
      tags: keep              # a tag protects what it points at, whatever its age
"""


def ensure_demo(directory: Path) -> Path:
    """The demo's `lakes.yaml` in `directory`, built with its lakes if it is not there; what is
    there is left as it is.

    Raises `UsageError` where something that the demo did not make is in their place, and where the
    libraries that write such lakes are not installed.
    """
    root = directory.resolve()
    config = root / CONFIG_NAME
    if config.exists():
        return config
    lake = begin_demo(root)
    write_lakes(root, lake, clock_of(os.environ).now())
    aside = "renamed aside, into lake/.gc-assets/trash/<plan id>/"
    return finish_demo(root, location="./lake/", warehouse=f"file://{lake}", aside=aside)


def begin_demo(root: Path) -> Path:
    """Makes the empty folder in which the lakes are written. Removes what an interrupted attempt
    left there. Raises `UsageError` as `ensure_demo` does.
    """
    missing = [name for names in _MODULES.values() for name in names if find_spec(name) is None]
    if missing:
        raise UsageError(f"the demo writes real lakes, which needs {', '.join(missing)}: pip install 'gc-assets[{','.join(_MODULES)}]'")
    lake, catalog, unfinished = root / "lake", root / "catalog.db", root / _UNFINISHED
    if unfinished.exists():  # an earlier attempt was interrupted: these are its halves
        shutil.rmtree(lake, ignore_errors=True)
        catalog.unlink(missing_ok=True)
    for path in (lake, catalog):
        if path.exists():
            raise UsageError(f"{path} is in the place of a demo lake, and no {root / CONFIG_NAME} says it is one; choose another --dir")
    lake.mkdir(parents=True)
    unfinished.touch()
    return lake


def write_lakes(root: Path, lake: Path, now: datetime, address: str | None = None) -> None:
    """Writes both lakes. `address` is what they call the folder, where they are put elsewhere."""
    from gc_assets.demo.lakes import build_shop, build_weather, write_note

    build_shop(root, warehouse=lake, now=now, address=address)
    build_weather(lake / "weather", now)
    write_note(lake / "README.txt", now)


def finish_demo(root: Path, location: str, warehouse: str, aside: str, connection: str = "", client: str = "") -> Path:
    """Writes `lakes.yaml` last of all: a configuration stands for finished lakes."""
    from gc_assets.demo.lakes import CATALOG_NAME

    unfinished = root / _UNFINISHED
    # There is nothing to see of these days but what a backfill works out.
    first_run_date = (clock_of(os.environ).today() - _BACKFILLED).isoformat()
    words = {
        "first_run_date": first_run_date,
        "location": location,
        "warehouse": warehouse,
        "aside": aside,
        "connection": connection,
        "client": client,
    }
    unfinished.write_text(_CONFIG.format(root=root, catalog_name=CATALOG_NAME, **words), encoding="utf-8")
    return unfinished.rename(root / CONFIG_NAME)
