"""Read the history edits of a plan, and the paths that they delete on branches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.errors import StateError
from gc_assets.core.hashing import digest
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.kind import TableRole
from gc_assets.lakes.kinds import table_with
from gc_assets.lakes.protocol import ExpiryAction
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.parts import read_parts
from gc_assets.state.side_tables import EXPIRY_ACTIONS, EXPIRY_SIDE


def planned_actions(state: State, plan: PublishedTable) -> pa.Table:
    """Return the plan's history edits (columns `EXPIRY_ACTIONS`)."""
    return read_parts(state.files, plan.paths(EXPIRY_SIDE), EXPIRY_ACTIONS)


@dataclass(frozen=True, slots=True)
class PlannedPaths:
    """The paths that the plans of a run date delete on a lake's branches.

    Each action contains the digest of the table of its paths, and the plan contains the digest of
    its actions.
    """

    context: RunContext
    lake: str
    run_date: date
    _read: dict[str, pa.Table] = field(default_factory=dict[str, pa.Table])

    def read(self, action: ExpiryAction) -> list[str]:
        """Return the paths deleted by an action in alphabetical order.

        Raises:
            StateError: If their table is missing or was changed.
        """
        return sorted(self._read_rows(action, "Make a new plan with `gc-assets run`").column("path").to_pylist())

    def read_objects(self, action: ExpiryAction) -> pa.Table:
        """Return the objects at an action's paths (columns storage, key), with null rows for
        external objects.

        Raises:
            StateError: If their table is missing or was changed.
        """
        return self._read_rows(action, "Restore the table from a backup of the state").select(["storage", "key"])

    def _read_rows(self, action: ExpiryAction, advice: str) -> pa.Table:
        details = json.loads(action.details or "{}")
        wanted = str(details.get("digest"))
        if wanted not in self._read:
            self._read[wanted] = self._find(wanted, advice)
        rows = self._read[wanted]
        found = rows.filter(pc.equal(rows.column("branch"), action.ref_name))
        if found.num_rows != details["paths"]:
            raise self._missing(wanted, advice)
        return found

    def _find(self, wanted: str, advice: str) -> pa.Table:
        """Return the rows of the table with this digest."""
        for published in self._tables():
            if published.receipt.digest == wanted:
                rows = read_parts(self.context.state.files, published.paths(), table_with(TableRole.PATH_EDITS).schema)
                if f"{digest(rows):016x}" == wanted:
                    return rows.select(["branch", "path", "storage", "key"])
        raise self._missing(wanted, advice)

    def _tables(self) -> Iterator[PublishedTable]:
        name, state = table_with(TableRole.PATH_EDITS).name, self.context.state
        yield from (state.open(run) for run in state.history(self.lake, name) if run.run_date == self.run_date)

    def _missing(self, wanted: str, advice: str) -> StateError:
        name = table_with(TableRole.PATH_EDITS).name
        found = f"lake {self.lake}: {name} of {self.run_date} with the digest {wanted} is missing or was changed"
        return StateError(f"{found}. It has the deleted paths. {advice}.")
