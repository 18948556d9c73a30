"""The demo's directory: lakes that are built once, and the `lakes.yaml` that teaches how to collect
them.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from gc_assets.core.errors import UsageError
from gc_assets.resources.platform import clock_of

CONFIG_NAME: Final = "lakes.yaml"
_UNFINISHED: Final = "lakes.yaml.unfinished"
# What writes the lakes, by the extra that brings it.
_NEEDS: Final = {"iceberg": ("pyiceberg", "fastavro", "sqlalchemy"), "icechunk": ("icechunk", "zarr", "zstandard")}
_CONFIG: Final = """\
# The demo: two lakes on one storage. Every key is explained in the README; unknown keys are refused.
# Relative paths start at this file.

state: ./state                # all that gc-assets knows, as Parquet and JSON; delete it and the lakes are as before

storages:
  - name: lake                # one root that is listed and swept; several lakes may live on it
    location: ./lake/
    mode: apply               # plan: only ever plan. apply: execute plans that somebody approved by name
    quarantine: trash         # planned files are first renamed aside, into lake/.gc-assets/trash/<plan id>/
    quarantine_days: 1        # only a plan made this many days later may purge them (7 is a good value for real data)
    grace: 72h                # files younger than this are never touched: their writer may be about to commit them

lakes:
  - name: shop                # three Iceberg tables in a SQL catalog
    kind: iceberg
    catalog_name: {catalog_name}
    catalog:                  # pyiceberg's own properties
      type: sql
      uri: "sqlite:///{root}/catalog.db"
      warehouse: "file://{root}/lake"
    retention: {{source: table}}  # each table's own history.expire.* and ref settings; Iceberg's default is 5 days

  - name: weather             # an Icechunk repository with branches main, develop, test, qa and two tags
    kind: icechunk
    location: ./lake/weather/
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
    config, unfinished = root / CONFIG_NAME, root / _UNFINISHED
    if config.exists():
        return config
    missing = [name for names in _NEEDS.values() for name in names if find_spec(name) is None]
    if missing:
        raise UsageError(f"the demo writes real lakes, which needs {', '.join(missing)}: pip install 'gc-assets[{','.join(_NEEDS)}]'")
    from gc_assets.demo.lakes import CATALOG_NAME, build_shop, build_weather, write_note

    lake, catalog = root / "lake", root / "catalog.db"
    if unfinished.exists():  # an earlier attempt was interrupted: these are its halves
        shutil.rmtree(lake, ignore_errors=True)
        catalog.unlink(missing_ok=True)
    for path in (lake, catalog):
        if path.exists():
            raise UsageError(f"{path} is in the place of a demo lake, and no {config} beside it says it is one; choose another --dir")
    lake.mkdir(parents=True)
    unfinished.touch()
    now = clock_of(os.environ).now()
    build_shop(root, warehouse=lake, now=now)
    build_weather(lake / "weather", now)
    write_note(lake / "README.txt", now)
    # Last of all: a configuration stands for finished lakes.
    unfinished.write_text(_CONFIG.format(root=root, catalog_name=CATALOG_NAME), encoding="utf-8")
    return unfinished.rename(config)
