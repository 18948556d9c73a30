"""Garbage collection of versioned data lakes: which files no retained version needs, why, and how
to remove them safely.

`open("lakes.yaml")` reads what the nights of a platform found, as Arrow tables.
`build_definitions("lakes.yaml")` returns its assets, jobs, schedule and sensors for a Dagster
project of one's own, and `LakeGarbageCollection` is the component that does so there.

The three are imported when somebody asks for them. Executors import this package too, and may have
no Dagster.
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
