"""Steps of a `Lakehouse` in a process with a Spark of its own: `python -m tests.stages.process MODE ROOT VERB [PLAN]`.

One process cannot hold a classic and a Connect session, and a process that is killed must take nobody else's Spark along.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gc_assets.stages.approvals import find_plan
from gc_assets.stages.restore import restore
from resources.spark import SparkRuntime
from tests.conftest import TEST_CONF
from tests.stages.lakehouse import STORAGE, Lakehouse

CHECKOUT = Path(__file__).parents[2]


def start(house: Lakehouse, mode: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A process in a session of its own that does the steps; what it prints last is JSON."""
    (house.root / "lakes.pickle").write_bytes(pickle.dumps(house.lakes))  # as JSON their secrets would be masked
    return subprocess.Popen(
        [sys.executable, "-m", "tests.stages.process", mode, str(house.root), *arguments],
        cwd=CHECKOUT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL to everything in the process's session at once, its JVM and Python workers too, until nothing of it is left."""
    while members := [pid for pid in _processes() if _session(pid) == process.pid]:
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it went with its parent
        process.poll()
        time.sleep(0.01)
    process.communicate()


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _session(pid: int) -> int | None:
    """The session of a running process; null for one that is gone or waits for its parent to take notice."""
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else int(session)


def story(house: Lakehouse) -> dict[str, Any]:
    """Plan, approve, apply, restore, with the files that are there after each."""
    header = house.plan()
    house.approved(header)
    applied = house.apply(header)
    after_apply = house.files()
    _, restored = restore(house.spark, house.tonight(), STORAGE, plan_id=header.plan_id)
    return {
        "plan_id": header.plan_id,
        "rows_digest": header.rows_digest,
        "live": sorted(house.live()),
        "applied": {"/".join(key): total.rows for key, total in applied.books.items()},
        "after_apply": after_apply,
        "restored": {outcome: total.rows for outcome, total in restored.items()},
        "after_restore": house.files(),
        "status": find_plan(house.config, header.plan_id).status_at(house.now),
    }


def main(mode: str, root: str, verb: str, *arguments: str) -> None:
    lakes = pickle.loads((Path(root) / "lakes.pickle").read_bytes())  # noqa: S301  (written by `start`)
    runtime = SparkRuntime.model_validate({"mode": mode, "master": "local[2]", "remote": "local[2]", "conf": TEST_CONF})
    house = Lakehouse(runtime.session(), Path(root), lakes)
    if verb == "story":
        sys.stdout.write(json.dumps(story(house)) + "\n")
    elif verb == "apply":
        house.apply(find_plan(house.config, *arguments).header)
    else:
        raise SystemExit(f"no such verb: {verb}")


if __name__ == "__main__":
    main(*sys.argv[1:])
