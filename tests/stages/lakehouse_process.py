"""Run steps of a `Lakehouse` in a process with its own Spark: `python -m tests.stages.lakehouse_process MODE ROOT VERB [PLAN]`.

One process cannot have both a classic and a Connect session, and killing a process must not stop the Spark of other tests.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

from gc_assets.resources.spark import SparkRuntime
from gc_assets.stages.records.plans import find_plan
from tests.conftest import TEST_CONF
from tests.process_kills import CHECKOUT
from tests.stages.lakehouse import Lakehouse, counts

# The address and token of a Spark Connect server, instead of the local one.
REMOTE, TOKEN = "GC_ASSETS_TEST_REMOTE", "GC_ASSETS_TEST_TOKEN"


def start_process(house: Lakehouse, mode: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start a process in its own session. The last line of its output is JSON."""
    (house.root / "lakes.pickle").write_bytes(pickle.dumps(house.lakes))  # as JSON their secrets would be masked
    return subprocess.Popen(
        [sys.executable, "-m", "tests.stages.lakehouse_process", mode, str(house.root), *arguments],
        cwd=CHECKOUT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run_protocol(house: Lakehouse) -> dict[str, Any]:
    """Plan, approve, apply and restore. Return the files after each step."""
    header = house.plan()
    applied = house.approve_and_apply(header)
    after_apply = house.files()
    _, restored = house.restore(header.plan_id)
    return {
        "plan_id": header.plan_id,
        "rows_digest": header.rows_digest,
        "live": sorted(house.live()),
        "applied": {"/".join(key): rows for key, rows in counts(applied.by_outcome).items()},
        "after_apply": after_apply,
        "restored": restored,
        "after_restore": house.files(),
        "status": find_plan(house.config, header.plan_id).status_at(house.now),
    }


def main(mode: str, root: str, verb: str, *arguments: str) -> None:
    lakes = pickle.loads((Path(root) / "lakes.pickle").read_bytes())  # noqa: S301  (written by `start_process`)
    server = {"remote": os.environ.get(REMOTE, "local[2]"), "token": os.environ.get(TOKEN)}
    runtime = SparkRuntime.model_validate({"mode": mode, "master": "local[2]", **server, "conf": TEST_CONF})
    house = Lakehouse(runtime.session(), Path(root), lakes)
    if verb == "protocol":
        sys.stdout.write(json.dumps(run_protocol(house)) + "\n")
    elif verb == "apply":
        house.apply(find_plan(house.config, *arguments).header)
    else:
        raise SystemExit(f"no such verb: {verb}")


if __name__ == "__main__":
    main(*sys.argv[1:])
