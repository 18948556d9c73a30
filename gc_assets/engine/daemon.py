"""Starts the Python workers of the stages, forked from a process that has imported what they need.

Otherwise each worker would import it again, which costs a second, as much as a small stage. Only
modules that survive a fork are imported here. DataFusion starts threads, so it stays with the
workers that use it.
"""

import gc
from importlib import import_module

from pyspark.daemon import manager

PRELOADED = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "scipy.sparse.csgraph",
    "gc_assets.stages.mark.commit_graph",
    "gc_assets.stages.delete.apply",
    "gc_assets.stages.sweep.orphan_files",
    "gc_assets.stages.mark.reachable_snapshots",
    "gc_assets.stores.own_listing",
    "gc_assets.stores.inventories.lister",
    "gc_assets.stores.inventories.readers",
)

if __name__ == "__main__":
    for name in PRELOADED:
        import_module(name)
    from gc_assets.stores.store import SCHEMES  # a Python without our libraries has failed by now, and named one

    for name in (name for kind in SCHEMES.values() for name in kind.preloaded):
        import_module(name)
    # A worker collects garbage after every task, before it takes the next. The imported modules are
    # none, and looking at them took 50 ms a task.
    gc.freeze()
    manager()
