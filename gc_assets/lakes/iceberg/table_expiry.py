"""Execute the approved history edits of a table: revalidate, commit, retry and verify.

Edits are applied to the current metadata, retried if another program changed the table, and
verified in the new metadata. Every commit is atomic. If the process is killed, the table stays
valid, and the next apply continues.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.typedef import Identifier

from gc_assets.core.errors import GcError, LakeUnreadable
from gc_assets.lakes.iceberg.catalog import CatalogClient, CatalogTable, CommitDenied, CommitRejected, NotLoadable
from gc_assets.lakes.iceberg.readable import ReadabilityChecker
from gc_assets.lakes.iceberg.registrations import Registration
from gc_assets.lakes.iceberg.revalidate import PendingRemovals, Removal, find_damage, find_leftovers, revalidate
from gc_assets.lakes.protocol import DELETE_REF, REMOVE_SNAPSHOT, ExpiryAction, ExpiryOutcome, Retention

MAX_ATTEMPTS = 5
FIRST_WAIT_SECONDS = 0.1

ReadRegistration = Callable[[str, str], Registration]
Policy = Callable[[Sequence[Registration]], Retention]


def wait_for_retry(attempt: int) -> None:
    """Wait longer after each attempt. Random times keep several writers apart."""
    time.sleep(FIRST_WAIT_SECONDS * 2**attempt * random.uniform(0.5, 1.5))  # noqa: S311


def report_error(error: Exception, actions: Sequence[ExpiryAction], *, is_committed: bool) -> list[ExpiryOutcome]:
    """Return one outcome for each history edit interrupted by an error.

    Args:
        error: Error of the catalog or store.
        actions: Approved edits of one table, in the order of the result.
        is_committed: True if a commit was sent before the error occurred.
    """
    reason = str(error) if isinstance(error, GcError) else f"{type(error).__name__}: {error}"
    if is_committed:
        reason = f"a commit was sent, but its outcome is unknown: {reason}; apply again"
    verdict = "denied" if isinstance(error, CommitDenied | NotLoadable) and not is_committed else "failed"
    return [ExpiryOutcome(action, verdict, reason) for action in actions]


@dataclass(slots=True)
class TableExpiry:
    """History edits of one table, in all of its registrations (names in the catalog).

    Attributes:
        catalog: Client of the catalog.
        read_registration: Reads the table with the given name and metadata address.
        policy: Computes the retention of all registrations together.
        uuid: UUID of the table.
        locations: Metadata address for each identifier of the table, as listed before the first
            edit.
        unreadable: The reasons why tables of the catalog are unreadable, keyed by table name.
        actions: Approved edits.
        checker: Checks that the metadata of retained snapshots is readable.
        commits: Removals that the catalog accepted or may have accepted, keyed by the table's name.
        failures: Errors that are not retried, keyed by the table's name.
        denied: Names among `failures` for which a later apply would fail as well.
        rejections: Latest rejection of a commit by the catalog, keyed by the table's name.
        damaged: Message for each edit whose commit removed more than was approved.
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
    denied: set[str] = field(default_factory=set[str])
    rejections: dict[str, str] = field(default_factory=dict[str, str])
    damaged: dict[ExpiryAction, str] = field(default_factory=dict[ExpiryAction, str])

    def run(self) -> list[ExpiryOutcome]:
        """Execute the edits. Returns one outcome per action, even if an error occurs."""
        try:
            return self._run()
        except Exception as error:  # noqa: BLE001 - an error of the catalog or store must only fail this table
            return report_error(error, self.actions, is_committed=bool(self.commits))

    def _run(self) -> list[ExpiryOutcome]:
        self._precheck()
        attempt = 0
        while True:
            loaded = self._load()
            if not loaded:
                return self._report_missing()
            revalidation = self._revalidate([registration for _, registration in loaded.values()])
            pending = [removal for removal in revalidation.removals if removal.name not in {*self.failures, *self.commits}]
            if not pending or attempt == MAX_ATTEMPTS:
                for _, registration in loaded.values():
                    self._mark_lost_refs(registration, revalidation)
                return [self._outcome(action, revalidation) for action in self.actions]
            for removal in pending:
                self._commit(loaded[removal.name][0], removal)
            if self.rejections:
                wait_for_retry(attempt)
            attempt += 1

    def _precheck(self) -> None:
        """Check the metadata of retained snapshots before the table is loaded for the commit.

        If a ref is created between load and commit, a REST catalog drops it together with its
        snapshots. The time between them must therefore be short.
        """
        registrations = [self.read_registration(".".join(identifier), address) for identifier, address in self.locations.items()]
        for removal in self._revalidate(registrations).removals:
            self._check(removal)

    def _load(self) -> dict[str, tuple[CatalogTable, Registration]]:
        """Load the registrations that still have the table's UUID, keyed by name."""
        tables = [self.catalog.load(identifier) for identifier in self.locations]
        same = [table for table in tables if table is not None and table.table_uuid in {self.uuid, None}]
        found = {table.name: (table, self.read_registration(table.name, table.metadata_location)) for table in same}
        return {name: item for name, item in found.items() if item[1].table.table_uuid == self.uuid}

    def _revalidate(self, registrations: Sequence[Registration]) -> PendingRemovals:
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
        except CommitDenied as error:
            self.failures[removal.name] = str(error)
            self.denied.add(removal.name)
            return
        except GcError as error:  # The commit may have taken effect. Loading the table again will show it.
            self.commits[removal.name] = removal
            self.failures[removal.name] = str(error)
            return
        self.commits[removal.name] = removal
        after = self.read_registration(removal.name, address).table
        if damage := find_damage(removal, after):
            self.damaged.update(dict.fromkeys(removal.actions, f"the catalog accepted the commit, but {damage}"))
        elif leftovers := find_leftovers(removal, after):
            self.failures[removal.name] = f"the catalog accepted the commit, but {leftovers}; apply again"

    def _mark_lost_refs(self, registration: Registration, revalidation: PendingRemovals) -> None:
        """Mark all actions as damaged if a commit has removed a ref without approval.

        The REST protocol has no requirement that prevents this: a ref that is created during the
        commit may be dropped together with its snapshot. The metadata log reveals it, even in a
        later call.
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
                return  # Engines delete old metadata. The snapshots were already gone before this call.
            expected_refs = approved.union(ref.name for ref in after.refs)
            for ref in previous.refs:
                if ref.snapshot_id in removed_ids and ref.name not in expected_refs:
                    loss = (
                        f"the catalog dropped {ref.ref_type} {ref.name} with snapshot {ref.snapshot_id}, which this plan does not "
                        f"request; {previous.address} still has both: restore them from it before files are collected"
                    )
                    self.damaged.update(dict.fromkeys(self.actions, loss))
            removed_ids.difference_update(snapshot.snapshot_id for snapshot in previous.snapshots)
            after = previous

    def _outcome(self, action: ExpiryAction, revalidation: PendingRemovals) -> ExpiryOutcome:
        if action in self.damaged:
            return ExpiryOutcome(action, "failed", self.damaged[action], damaged=True)
        settled = revalidation.settled.get(action)
        if settled is None:
            name = next(removal.name for removal in revalidation.removals if action in removal.actions)
            if name in self.denied:
                return ExpiryOutcome(action, "denied", self.failures[name])
            unconfirmed = "the catalog accepted the commit, but the table did not change; apply again"
            return ExpiryOutcome(action, "failed", self.failures.get(name) or self.rejections.get(name) or unconfirmed)
        if settled.verdict == "absent" and any(action in removal.actions for removal in self.commits.values()):
            return ExpiryOutcome(action, "done")
        return settled

    def _report_missing(self) -> list[ExpiryOutcome]:
        """Return the outcomes if the catalog does not list the table any more.

        The table was dropped or created again, unless it is one of the unreadable tables.
        """
        outcomes: list[ExpiryOutcome] = []
        for action in self.actions:
            if self.unreadable:
                reason = self.unreadable.get(action.table_name or "") or next(iter(self.unreadable.values()))
                outcomes.append(ExpiryOutcome(action, "failed", reason))
            else:
                reason = f"the catalog no longer has a table with uuid {self.uuid} ({action.table_name}): it was dropped or re-created"
                outcomes.append(ExpiryOutcome(action, "changed", reason))
        return outcomes
