"""Find branches on which recent applies could not delete paths.

This happens if the branch moves between the run and the apply, or if the server refuses the
requests.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.phases import CHANGED, DONE
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.protocol import DELETE_PATHS
from gc_assets.state.parts import read_parts
from gc_assets.state.schemas import EXPIRY_LOG

# A branch is reported after this number of unsuccessful applies in a row.
MIN_APPLIES: Final = 2
# A refused request. The error message already contains the next step.
_REFUSAL: Final = re.compile(r": HTTP [45]\d\d: ")
_NEXT_STEP: Final = ". Apply a plan immediately after the first run of a date, while nothing writes to the branch"
_COLUMNS: Final = ["action", "ref_name", "outcome", "error", "at", "plan_id"]


def describe_unedited_branches(context: RunContext, lake: str, branches: Collection[str]) -> Iterator[str]:
    """Yield a message about each branch on which the last applies did not delete any path.

    The message contains a next step. Outcomes later than this run are ignored, because they belong
    to rehearsals.
    """
    newest: dict[str, dict[str, tuple[str, str]]] = {}
    logs = sorted(context.state.history(lake, EXPIRY_LOG.name), key=lambda run: run.run_id) if branches else ()
    names = pa.array(sorted(branches), pa.string())
    for run in logs:
        rows = read_parts(context.state.files, context.state.open(run).paths(), EXPIRY_LOG.schema, _COLUMNS)
        rows = rows.filter(pc.and_(pc.equal(rows.column("action"), DELETE_PATHS), pc.is_in(rows.column("ref_name"), names)))
        for row in rows.filter(pc.less_equal(rows.column("at"), context.clock.now())).to_pylist():
            of_branch = newest.setdefault(row["ref_name"], {})
            # Only a plan's last outcome counts, except that a refused undo does not replace `done`.
            if of_branch.get(row["plan_id"], ("", ""))[0] != DONE:
                of_branch.pop(row["plan_id"], None)
                of_branch[row["plan_id"]] = row["outcome"], row["error"]
    for branch in sorted(newest):
        outcomes = list(newest[branch].values())
        applies = next((count for count, (outcome, _) in enumerate(reversed(outcomes)) if outcome != CHANGED), len(outcomes))
        if applies >= MIN_APPLIES:
            reason = outcomes[-1][1]
            advice = "" if _REFUSAL.search(reason) else _NEXT_STEP
            yield f"lake {lake}: the last {applies:,} applies did not delete any path on branch {branch} (last reason: {reason}){advice}"
