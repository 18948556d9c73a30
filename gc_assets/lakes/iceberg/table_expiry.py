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
from gc_assets.lakes.iceberg.catalog import CatalogClient, CatalogTable, CommitRejected
from gc_assets.lakes.iceberg.readable import ReadabilityChecker
from gc_assets.lakes.iceberg.registrations import Registration
from gc_assets.lakes.iceberg.revalidate import Removal, Revalidation, find_damage, find_leftovers, revalidate
from gc_assets.lakes.protocol import DELETE_REF, REMOVE_SNAPSHOT, ExpiryAction, ExpiryOutcome, Retention

MAX_ATTEMPTS = 5
_FIRST_WAIT_SECONDS = 0.1

ReadRegistration = Callable[[str, str], Registration]
Policy = Callable[[Sequence[Registration]], Retention]


@dataclass(slots=True)
class TableExpiry:
    """The edits of the table `uuid` under all its names. `locations` maps each name to the
    metadata address that was seen first.

    `read_registration` gives the registration behind a name and a metadata address. `policy` gives the retention
    of all registrations together. `unreadable` says by name why other tables of the catalog could
    not be read.

    Three fields are kept by name. `commits` holds the commits that the catalog accepted, or may have.
    `failures` holds what went wrong and is not tried again, `rejections` the latest rejection.
    `damaged` holds the edits that were made and took more along than was approved.
    """

    catalog: CatalogClient
    read_registration: ReadRegistration
    policy: Policy
    uuid: str
    locations: Mapping[Identifier, str]
    unreadable: Mapping[str, str]
    actions: Sequence[ExpiryAction]
    checker: ReadabilityChecker
    commits: dict[str, Removal] = field(default_factory=dict[str, Removal])
    failures: dict[str, str] = field(default_factory=dict[str, str])
    rejections: dict[str, str] = field(default_factory=dict[str, str])
    damaged: dict[ExpiryAction, str] = field(default_factory=dict[ExpiryAction, str])

    def run(self) -> list[ExpiryOutcome]:
        """Makes the edits and returns one outcome per action. Raises nothing: what goes wrong is
        the outcome.
        """
        try:
            return self._run()
        except Exception as error:  # noqa: BLE001 - whatever a catalog or store raises fails this table only, by name
            reason = str(error) if isinstance(error, GcError) else f"{type(error).__name__}: {error}"
            if self.commits:
                reason = f"a commit was sent, and its outcome is not known: {reason}; apply again"
            return [ExpiryOutcome(action, "failed", reason) for action in self.actions]

    def _run(self) -> list[ExpiryOutcome]:
        self._precheck()
        attempt = 0
        while True:
            loaded = self._load()
            if not loaded:
                return self._report_missing()
            revalidation = self._decide([registration for _, registration in loaded.values()])
            pending = [removal for removal in revalidation.removals if removal.name not in {*self.failures, *self.commits}]
            if not pending or attempt == MAX_ATTEMPTS:
                for _, registration in loaded.values():
                    self._find_lost_refs(registration, revalidation)
                return [self._outcome(action, revalidation) for action in self.actions]
            for removal in pending:
                self._commit(loaded[removal.name][0], removal)
            if self.rejections:
                time.sleep(_FIRST_WAIT_SECONDS * 2**attempt * random.uniform(0.5, 1.5))  # noqa: S311 - spreads retries
            attempt += 1

    def _precheck(self) -> None:
        """Reads what the retained snapshots need before the table is loaded for the commit. A REST
        catalog lets refs that are made between loading and committing go with their snapshots, so
        that moment is to be short.
        """
        registrations = [self.read_registration(".".join(identifier), address) for identifier, address in self.locations.items()]
        for removal in self._decide(registrations).removals:
            self._check(removal)

    def _load(self) -> dict[str, tuple[CatalogTable, Registration]]:
        """Returns the registrations that are still this table, by name."""
        tables = [self.catalog.load(identifier) for identifier in self.locations]
        same = [table for table in tables if table is not None and table.table_uuid == self.uuid]
        return {table.name: (table, self.read_registration(table.name, table.metadata_location)) for table in same}

    def _decide(self, registrations: Sequence[Registration]) -> Revalidation:
        return revalidate(self.actions, registrations, self.policy(registrations))

    def _check(self, removal: Removal) -> bool:
        try:
            self.checker.check(removal.name, removal.retained)
        except LakeUnreadable as error:
            self.failures[removal.name] = str(error)
        return removal.name not in self.failures

    def _commit(self, table: CatalogTable, removal: Removal) -> None:
        if not self._check(removal):
            return
        try:
            address = self.catalog.commit(table, removal)
        except CommitRejected as error:
            self.rejections[removal.name] = str(error)
            return
        except GcError as error:  # it may have taken effect: what the table lists now will tell
            self.commits[removal.name] = removal
            self.failures[removal.name] = str(error)
            return
        self.commits[removal.name] = removal
        after = self.read_registration(removal.name, address).table
        if damage := find_damage(removal, after):
            self.damaged.update(dict.fromkeys(removal.actions, f"the catalog accepted the commit, but {damage}"))
        elif leftovers := find_leftovers(removal, after):
            self.failures[removal.name] = f"the catalog accepted the commit, but {leftovers}; apply again"

    def _find_lost_refs(self, registration: Registration, revalidation: Revalidation) -> None:
        """Marks all actions spoilt where a ref that nobody approved to delete went in the same
        commit as its snapshot.

        A REST server may do that to a ref made during the commit: the protocol has no requirement
        for refs that nobody knew. The metadata log tells, to a later call too.
        """
        absent = [action for action, outcome in revalidation.settled.items() if outcome.verdict == "absent"]
        removed_ids = {action.snapshot_id for action in absent if action.action == REMOVE_SNAPSHOT}
        approved = {action.ref_name for action in self.actions if action.action == DELETE_REF}
        known = {removal.base.address: removal.base for removal in self.commits.values()}
        after = registration.table
        for address in reversed(registration.table.previous_metadata):
            if not removed_ids:
                return
            try:
                previous = known.get(address) or self.read_registration(registration.name, address).table
            except LakeUnreadable:
                if self.commits:
                    raise
                return  # engines remove old metadata; the snapshots went before any commit of this call
            expected_refs = approved.union(ref.name for ref in after.refs)
            for ref in previous.refs:
                if ref.snapshot_id in removed_ids and ref.name not in expected_refs:
                    loss = (
                        f"the catalog dropped {ref.ref_type} {ref.name} with snapshot {ref.snapshot_id}, and this plan did not ask for "
                        f"that; {previous.address} still has both: restore from it what is needed before anything is collected"
                    )
                    self.damaged.update(dict.fromkeys(self.actions, loss))
            removed_ids.difference_update(snapshot.snapshot_id for snapshot in previous.snapshots)
            after = previous

    def _outcome(self, action: ExpiryAction, revalidation: Revalidation) -> ExpiryOutcome:
        if action in self.damaged:
            return ExpiryOutcome(action, "failed", self.damaged[action], damaged=True)
        settled = revalidation.settled.get(action)
        if settled is None:
            name = next(removal.name for removal in revalidation.removals if action in removal.actions)
            unconfirmed = "the catalog accepted the commit, but the table is as it was; apply again"
            return ExpiryOutcome(action, "failed", self.failures.get(name) or self.rejections.get(name) or unconfirmed)
        if settled.verdict == "absent" and any(action in removal.actions for removal in self.commits.values()):
            return ExpiryOutcome(action, "done")
        return settled

    def _report_missing(self) -> list[ExpiryOutcome]:
        """Returns outcomes for a table of which no registration is left: it was dropped or
        re-created, unless a table that could not be read is it.
        """
        outcomes: list[ExpiryOutcome] = []
        for action in self.actions:
            if self.unreadable:
                reason = self.unreadable.get(action.table_name or "") or next(iter(self.unreadable.values()))
                outcomes.append(ExpiryOutcome(action, "failed", reason))
            else:
                reason = f"the catalog has no table of uuid {self.uuid} any more ({action.table_name}): it was dropped or re-created"
                outcomes.append(ExpiryOutcome(action, "changed", reason))
        return outcomes
