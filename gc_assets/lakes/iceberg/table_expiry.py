"""Makes the approved edits of one table. They are committed on what the table is now, tried again
where it moved, and judged by what it lists afterwards.

Each commit is whole or nothing, so a killed call leaves a valid table, and the next call does the
rest.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.typedef import Identifier

from gc_assets.core.errors import GcError, LakeUnreadable
from gc_assets.lakes.iceberg.catalog import CatalogTable, CommitRejected, Tables
from gc_assets.lakes.iceberg.readable import Readable
from gc_assets.lakes.iceberg.registrations import Registration
from gc_assets.lakes.iceberg.revalidate import Decision, Removal, damage_after, decide, left_after
from gc_assets.lakes.protocol import DELETE_REF, REMOVE_SNAPSHOT, ExpiryAction, ExpiryOutcome, Retention

ATTEMPTS = 5
_FIRST_WAIT_SECONDS = 0.1

ReadRegistration = Callable[[str, str], Registration]
Policy = Callable[[Sequence[Registration]], Retention]


@dataclass(slots=True)
class TableExpiry:
    """The edits of the table `uuid` under all its names. `registered` maps each name to the
    metadata address that was seen first.

    `read` gives the registration behind a name and a metadata address. `policy` gives the retention
    of all registrations together. `unreadable` says by name why other tables of the catalog could
    not be read.

    Three fields are kept by name. `sent` holds the commits that the catalog accepted, or may have.
    `given_up` holds what went wrong and is not tried again, `rejected` the latest rejection.
    `spoilt` holds the edits that were made and took more along than was approved.
    """

    tables: Tables
    read: ReadRegistration
    policy: Policy
    uuid: str
    registered: Mapping[Identifier, str]
    unreadable: Mapping[str, str]
    actions: Sequence[ExpiryAction]
    readable: Readable
    sent: dict[str, Removal] = field(default_factory=dict[str, Removal])
    given_up: dict[str, str] = field(default_factory=dict[str, str])
    rejected: dict[str, str] = field(default_factory=dict[str, str])
    spoilt: dict[ExpiryAction, str] = field(default_factory=dict[ExpiryAction, str])

    def run(self) -> list[ExpiryOutcome]:
        """Makes the edits and returns one outcome per action. Raises nothing: what goes wrong is
        the outcome.
        """
        try:
            return self._run()
        except Exception as error:  # noqa: BLE001 - whatever a catalog or store raises fails this table only, by name
            why = str(error) if isinstance(error, GcError) else f"{type(error).__name__}: {error}"
            if self.sent:
                why = f"a commit was sent, and its outcome is not known: {why}; apply again"
            return [ExpiryOutcome(action, "failed", why) for action in self.actions]

    def _run(self) -> list[ExpiryOutcome]:
        self._check_ahead()
        attempt = 0
        while True:
            loaded = self._load()
            if not loaded:
                return self._gone()
            decision = self._decide([registration for _, registration in loaded.values()])
            pending = [removal for removal in decision.removals if removal.name not in {*self.given_up, *self.sent}]
            if not pending or attempt == ATTEMPTS:
                for _, registration in loaded.values():
                    self._look_for_loss(registration, decision)
                return [self._outcome(action, decision) for action in self.actions]
            for removal in pending:
                self._commit(loaded[removal.name][0], removal)
            if self.rejected:
                time.sleep(_FIRST_WAIT_SECONDS * 2**attempt * random.uniform(0.5, 1.5))  # noqa: S311 - spreads retries
            attempt += 1

    def _check_ahead(self) -> None:
        """Reads what the retained snapshots need before the table is loaded for the commit. A REST
        catalog lets refs that are made between loading and committing go with their snapshots, so
        that moment is to be short.
        """
        registrations = [self.read(".".join(identifier), address) for identifier, address in self.registered.items()]
        for removal in self._decide(registrations).removals:
            self._check(removal)

    def _load(self) -> dict[str, tuple[CatalogTable, Registration]]:
        """Returns the registrations that are still this table, by name."""
        tables = [self.tables.load(identifier) for identifier in self.registered]
        same = [table for table in tables if table is not None and table.table_uuid == self.uuid]
        return {table.name: (table, self.read(table.name, table.metadata_location)) for table in same}

    def _decide(self, registrations: Sequence[Registration]) -> Decision:
        return decide(self.actions, registrations, self.policy(registrations))

    def _check(self, removal: Removal) -> bool:
        try:
            self.readable.check(removal.name, removal.retained)
        except LakeUnreadable as error:
            self.given_up[removal.name] = str(error)
        return removal.name not in self.given_up

    def _commit(self, table: CatalogTable, removal: Removal) -> None:
        if not self._check(removal):
            return
        try:
            address = self.tables.commit(table, removal)
        except CommitRejected as error:
            self.rejected[removal.name] = str(error)
            return
        except GcError as error:  # it may have taken effect: what the table lists now will tell
            self.sent[removal.name] = removal
            self.given_up[removal.name] = str(error)
            return
        self.sent[removal.name] = removal
        after = self.read(removal.name, address).table
        if damage := damage_after(removal, after):
            self.spoilt.update(dict.fromkeys(removal.actions, f"the catalog accepted the commit, but {damage}"))
        elif left := left_after(removal, after):
            self.given_up[removal.name] = f"the catalog accepted the commit, but {left}; apply again"

    def _look_for_loss(self, registration: Registration, decision: Decision) -> None:
        """Marks all actions spoilt where a ref that nobody approved to delete went in the same
        commit as its snapshot.

        A REST server may do that to a ref made during the commit: the protocol has no requirement
        for refs that nobody knew. The metadata log tells, to a later call too.
        """
        absent = [action for action, outcome in decision.settled.items() if outcome.verdict == "absent"]
        gone = {action.snapshot_id for action in absent if action.action == REMOVE_SNAPSHOT}
        approved = {action.ref_name for action in self.actions if action.action == DELETE_REF}
        known = {removal.before.address: removal.before for removal in self.sent.values()}
        after = registration.table
        for address in reversed(registration.table.previous_metadata):
            if not gone:
                return
            try:
                before = known.get(address) or self.read(registration.name, address).table
            except LakeUnreadable:
                if self.sent:
                    raise
                return  # engines remove old metadata; the snapshots went before any commit of this call
            staying = approved.union(ref.name for ref in after.refs)
            for ref in before.refs:
                if ref.snapshot_id in gone and ref.name not in staying:
                    loss = (
                        f"the catalog dropped {ref.ref_type} {ref.name} with snapshot {ref.snapshot_id}, and this plan did not ask for "
                        f"that; {before.address} still has both: restore from it what is needed before anything is collected"
                    )
                    self.spoilt.update(dict.fromkeys(self.actions, loss))
            gone.difference_update(snapshot.snapshot_id for snapshot in before.snapshots)
            after = before

    def _outcome(self, action: ExpiryAction, decision: Decision) -> ExpiryOutcome:
        if action in self.spoilt:
            return ExpiryOutcome(action, "failed", self.spoilt[action], spoilt=True)
        settled = decision.settled.get(action)
        if settled is None:
            name = next(removal.name for removal in decision.removals if action in removal.actions)
            unconfirmed = "the catalog accepted the commit, but the table is as it was; apply again"
            return ExpiryOutcome(action, "failed", self.given_up.get(name) or self.rejected.get(name) or unconfirmed)
        if settled.verdict == "absent" and any(action in removal.actions for removal in self.sent.values()):
            return ExpiryOutcome(action, "done")
        return settled

    def _gone(self) -> list[ExpiryOutcome]:
        """Returns outcomes for a table of which no registration is left: it was dropped or
        re-created, unless a table that could not be read is it.
        """
        outcomes: list[ExpiryOutcome] = []
        for action in self.actions:
            if self.unreadable:
                why = self.unreadable.get(action.table_name or "") or next(iter(self.unreadable.values()))
                outcomes.append(ExpiryOutcome(action, "failed", why))
            else:
                why = f"the catalog has no table of uuid {self.uuid} any more ({action.table_name}): it was dropped or re-created"
                outcomes.append(ExpiryOutcome(action, "changed", why))
        return outcomes
