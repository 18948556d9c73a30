"""Edit a table in one atomic commit: compare it with the plan, commit, retry, and verify."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyiceberg.typedef import Identifier

from gc_assets.core.errors import GcError
from gc_assets.lakes.iceberg.catalog import CatalogClient, CatalogTable, CommitDenied, CommitRejected
from gc_assets.lakes.iceberg.metadata import TableMetadata
from gc_assets.lakes.iceberg.registrations import Registration
from gc_assets.lakes.iceberg.removal import BranchCreation, Pruning
from gc_assets.lakes.iceberg.revalidate import Removal
from gc_assets.lakes.iceberg.table_expiry import MAX_ATTEMPTS, ReadRegistration, report_error, wait_for_retry
from gc_assets.lakes.protocol import ExpiryAction, ExpiryOutcome, ExpiryVerdict

TableChange = Removal | Pruning | BranchCreation


@dataclass(slots=True)
class TableCommit(ABC):
    """One commit to a table that executes several actions.

    Attributes:
        catalog: Client of the catalog.
        read_registration: Reads the table with the given name and metadata address.
        uuid: UUID of the table.
        locations: Identifiers of the table in the catalog.
        actions: Actions to execute.
        is_committed: True once a commit was sent.
        damage: Description of changes made by the commit although no action requires them, or None.
    """

    catalog: CatalogClient
    read_registration: ReadRegistration
    uuid: str
    locations: Sequence[Identifier]
    actions: Sequence[ExpiryAction]
    is_committed: bool = field(default=False, init=False)
    damage: str | None = field(default=None, init=False)

    @abstractmethod
    def settle(self, registration: Registration) -> tuple[list[ExpiryOutcome], list[ExpiryAction]]:
        """Determine which actions need a commit to the table.

        Returns:
            The outcomes of actions that do not need a commit, and the actions that do.
        """

    @abstractmethod
    def build_change(self, name: str, table: TableMetadata, pending: Sequence[ExpiryAction]) -> TableChange:
        """Build the commit that executes the pending actions."""

    def find_damage(self, change: TableChange, name: str, address: str) -> str | None:
        """Describe a change made by a commit although no action requires it, or return None.

        Args:
            change: The commit.
            name: Name of the table.
            address: Address of the table's metadata after the commit.
        """
        del change, name, address
        return None

    def run(self) -> list[ExpiryOutcome]:
        """Execute the actions. Returns one outcome per action, even if an error occurs."""
        try:
            return self._run()
        except Exception as error:  # noqa: BLE001 - an error of the catalog or store must only fail this table
            return report_error(error, self.actions, is_committed=self.is_committed)

    def _run(self) -> list[ExpiryOutcome]:
        if len(self.locations) != 1:
            return self.report("changed", f"the catalog has {len(self.locations)} tables with uuid {self.uuid} now, expected 1")
        attempt = 0
        while True:
            loaded = self.catalog.load(self.locations[0])
            if loaded is None or loaded.table_uuid not in {self.uuid, None}:
                return self.report("changed", f"the catalog no longer has a table with uuid {self.uuid}: it was dropped or re-created")
            registration = self.read_registration(loaded.name, loaded.metadata_location)
            if registration.table.table_uuid != self.uuid:
                found = f"table {loaded.name} has the uuid {registration.table.table_uuid} now, expected {self.uuid}"
                return self.report("changed", found)
            settled, pending = self.settle(registration)
            if not pending:
                return settled
            if self.is_committed:
                ignored = self.damage or "the catalog accepted the commit, but the table did not change; apply again"
                return [*settled, *(ExpiryOutcome(action, "failed", ignored, damaged=self.damage is not None) for action in pending)]
            try:
                self._commit(loaded, registration.table, pending)
            except CommitRejected as error:
                attempt += 1
                if attempt == MAX_ATTEMPTS:
                    return [*settled, *(ExpiryOutcome(action, "failed", str(error)) for action in pending)]
                wait_for_retry(attempt)

    def _commit(self, loaded: CatalogTable, table: TableMetadata, pending: Sequence[ExpiryAction]) -> None:
        change = self.build_change(loaded.name, table, pending)
        try:
            address = self.catalog.commit(loaded, change)
        except (CommitRejected, CommitDenied):
            raise
        except GcError:  # The commit may have taken effect. Loading the table again will show it.
            self.is_committed = True
            raise
        self.is_committed = True
        if damage := self.find_damage(change, loaded.name, address):
            self.damage = f"the catalog accepted the commit, but {damage}"

    def report(self, verdict: ExpiryVerdict, reason: str) -> list[ExpiryOutcome]:
        """Return one outcome per action of the commit, all with the given verdict and reason."""
        return [ExpiryOutcome(action, verdict, reason) for action in self.actions]
