"""Fork Spark's Python workers from a process with preloaded modules.

Otherwise each worker would spend a second on imports, as long as a small stage takes. Only
fork-safe modules are preloaded. DataFusion starts threads, so workers import it on demand.
"""

import gc
from importlib import import_module

from pyspark.daemon import manager

PRELOADED = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
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
    # Workers run Python's garbage collector after every task. Scanning the imported modules takes
    # 50 ms, so they are frozen.
    gc.freeze()
    manager()
