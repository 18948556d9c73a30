"""Expiries of a plan that are killed at random moments: `python -m tests.stages.killed_expiries ROOT KILLS`.

What `apply` does in its phase `expire` between two Spark jobs, in children forked from a process that has everything imported, so that
the moment of the kill falls into the work and not into the start.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import sys
import time
from pathlib import Path

from gc_assets.lakes.iceberg import catalog, expire, table_expiry  # noqa: F401 - imported before the fork, the lake imports them late
from gc_assets.stages.expiry import ExpiryRecord, make_edits
from gc_assets.stores.lease import LocalLease

Work = tuple[ExpiryRecord, list, LocalLease]


def killed(work: list[Work], after_seconds: float) -> bool:
    """Whether the kill came before the edits were all made and on record."""
    child = os.fork()
    if child == 0:
        try:
            for record, actions, lease in work:
                make_edits(record, actions, lease, only_interrupted=False)
        finally:
            os._exit(0)
    time.sleep(after_seconds)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def main(root: Path, kills: int) -> None:
    work: list[Work] = pickle.loads((root / "work.pickle").read_bytes())  # noqa: S301 - written by the test
    luck = random.Random(11)
    caught = [killed(work, luck.uniform(0.3, 0.8)) for _ in range(kills)]
    settled = [len(record.settled()) for record, _, _ in work]
    sys.stdout.write(json.dumps({"killed": sum(caught), "settled": settled}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
