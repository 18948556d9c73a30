"""Python workers of the stages: forked from a process that has imported what they need, so that no worker imports it again.

A worker costs a second of imports otherwise, as much as a small stage. Only modules that survive a fork are imported
here; DataFusion, which starts threads, stays with the workers that use it.
"""

import gc
from importlib import import_module

from pyspark.daemon import manager

PRELOADED = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "scipy.sparse.csgraph",
    "gc_assets.stages.commit_graph",
    "gc_assets.stages.deletion_log",
    "gc_assets.stages.orphan_files",
    "gc_assets.stages.reachable_snapshots",
)

if __name__ == "__main__":
    for name in PRELOADED:
        import_module(name)
    # A worker collects garbage after every task, before it takes the next. What was imported is none, and took 50 ms a task.
    gc.freeze()
    manager()
