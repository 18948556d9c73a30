"""Read a plan's history edits and the branch paths that they delete."""

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
    """Read the plan's history edits (`EXPIRY_ACTIONS` columns)."""
    return read_parts(state.files, plan.paths(EXPIRY_SIDE), EXPIRY_ACTIONS)


@dataclass(frozen=True, slots=True)
class PlannedPaths:
    """Reads which paths a plan deletes on a lake's branches.

    The paths are in a table of the plan's run date. Each action records the digest of that table,
    and the plan records the digest of its actions, so the paths cannot change after approval.
    """

    context: RunContext
    lake: str
    run_date: date
    _read: dict[str, pa.Table] = field(default_factory=dict[str, pa.Table])

    def read(self, action: ExpiryAction) -> list[str]:
        """Return the paths deleted by an action, in alphabetical order.

        Raises:
            StateError: If the table with the paths is missing or was changed.
        """
        return sorted(self._read_rows(action, "Make a new plan with `gc-assets run`").column("path").to_pylist())

    def read_objects(self, action: ExpiryAction) -> pa.Table:
        """Return the objects at the paths of an action.

        Returns:
            Rows with the columns storage and key, which are null for external objects.

        Raises:
            StateError: If the table with the paths is missing or was changed.
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
        """Find the table whose digest an action records, and return its rows."""
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
        return StateError(f"{found}. That table lists the deleted paths. {advice}.")
