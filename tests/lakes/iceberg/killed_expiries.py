"""Expiries that are killed at random moments: `python -m tests.lakes.iceberg.killed_expiries ROOT KILLS`.

The lake and its actions come pickled. Children are forked from a process that has everything imported and no threads, so that the
moment of the kill falls into the work and not into the start.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from gc_assets.lakes.iceberg import catalog, expire  # noqa: F401 - imported before the fork, the lake imports them late
from tests.lakes.iceberg.expiries import AS_OF, GRACE_CUTOFF
from tests.stages.oracles import iceberg_tables


def started(lake: Any, actions: Any) -> int:
    child = os.fork()
    if child == 0:
        try:
            list(lake.expire(actions, AS_OF, GRACE_CUTOFF))
        finally:
            os._exit(0)
    return child


def seconds_to_find_the_tables(lake: Any, actions: Any) -> float:
    """How long an expiry takes that has nothing to commit: a kill before that falls into no commit."""
    begun = time.perf_counter()
    os.waitpid(started(lake, [replace(actions[0], table_uuid="no table's")]), 0)
    return time.perf_counter() - begun


def killed(lake: Any, actions: Any, after_seconds: float) -> bool:
    """Whether the kill came before the expiry was through."""
    child = started(lake, actions)
    time.sleep(after_seconds)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def snapshots(root: Path) -> dict[str, int]:
    """How many each table lists, by its own JSON: raises where a pointer leads to a half-written file."""
    tables = iceberg_tables(root / "catalog.db")
    return {name: len(json.loads(Path(metadata).read_bytes())["snapshots"]) for name, metadata in tables.items()}


def main(root: Path, kills: int) -> None:
    lake, actions = pickle.loads((root / "expiry.pickle").read_bytes())  # noqa: S301 - written by the test
    luck = random.Random(7)
    rounds, unit = [], seconds_to_find_the_tables(lake, actions)
    for _ in range(kills):
        in_time = killed(lake, actions, unit * luck.uniform(0.5, 2))
        rounds.append({"killed": in_time, "snapshots": snapshots(root)})
    sys.stdout.write(json.dumps(rounds))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
