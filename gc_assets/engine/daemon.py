"""Start the Python workers of Spark by forking a process that has already imported their modules.

Otherwise each worker would import the modules itself, which takes a second: as long as a small
stage. Only modules that survive a fork are imported here. DataFusion starts threads, so the workers
that use it import it themselves.
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
    "gc_assets.stores.listing",
    "gc_assets.stores.inventories.lister",
    "gc_assets.stores.inventories.readers",
)

if __name__ == "__main__":
    for name in PRELOADED:
        import_module(name)
    from gc_assets.stores.store import SCHEMES  # fails here if the Python lacks one of our libraries

    for name in (name for kind in SCHEMES.values() for name in kind.preloaded):
        import_module(name)
    # A worker runs the garbage collector after every task. Scanning the imported modules takes 50
    # ms, so they are frozen.
    gc.freeze()
    manager()
