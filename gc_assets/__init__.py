"""Garbage collection for versioned data lakes.

gc-assets finds files that no retained version of your data needs, and deletes them safely.

- `open("lakes.yaml")` gives you the results of all runs as Arrow tables.
- `build_definitions("lakes.yaml")` returns assets, jobs, a schedule and sensors that you can add to
  your own Dagster project.
- `LakeGarbageCollection` is a Dagster component that does the same.

Each of these names is only imported on first use, because Spark executors import this package too,
and they may not have Dagster installed.
"""

import importlib
from typing import TYPE_CHECKING, Any

from gc_assets._version import __version__ as __version__

if TYPE_CHECKING:
    from gc_assets.component import LakeGarbageCollection as LakeGarbageCollection
    from gc_assets.definitions import build_definitions as build_definitions
    from gc_assets.library import open as open

__all__ = ["LakeGarbageCollection", "__version__", "build_definitions", "open"]

_MODULES = {
    "LakeGarbageCollection": "gc_assets.component",
    "build_definitions": "gc_assets.definitions",
    "open": "gc_assets.library",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
