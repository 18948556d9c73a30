"""Make the single changes of an expiry or restore in a repository with spec version 1.

Each change is atomic, affects one object, and is conditional on the content read before.
`execution` and `restore` decide which changes to make, and in which order.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from gc_assets.core.errors import FormatError, ObjectChanged, StoreError, is_permanent
from gc_assets.core.objects import EditableObjects
from gc_assets.lakes.icechunk.current_state import label, ref_of
from gc_assets.lakes.icechunk.entries import verify_id
from gc_assets.lakes.icechunk.refs import head_document, parse_head, ref_address, tombstone_address
from gc_assets.lakes.icechunk.snapshots import parse_snapshot, with_parent
from gc_assets.lakes.protocol import ExpiryAction, ExpiryOutcome, ExpiryVerdict

Change = Callable[[], ExpiryOutcome]


@dataclass(frozen=True, slots=True)
class Editor:
    """Makes changes to one repository. Store errors are converted to outcomes."""

    objects: EditableObjects
    repository: str

    def set_parent(self, action: ExpiryAction, expected: str | None, parent: str) -> ExpiryOutcome:
        """Replace the parent of a snapshot if the current parent is `expected`.

        Verify the written bytes.
        """
        address = f"{self.repository}/snapshots/{action.snapshot_id}"

        def change() -> ExpiryOutcome:
            raw, etag = self.objects.read_with_etag(address)
            snapshot = parse_snapshot(address, raw)
            verify_id(address, action.snapshot_id, snapshot.snapshot_id)
            if snapshot.parent_id == parent:
                return ExpiryOutcome(action, "absent", f"{address}: its parent is already {parent}")
            if snapshot.parent_id != expected:
                found = f"expected the parent {expected}, found {snapshot.parent_id}"
                return ExpiryOutcome(action, "changed", f"{address}: {found}; left unchanged")
            edited = with_parent(address, raw, parent)
            self.objects.replace(address, edited, etag)
            if self.objects.read(address) != edited:
                found = "the bytes read differ from the written ones, so another process is writing the object"
                return ExpiryOutcome(action, "failed", f"{address}: {found}; run one expiry at a time, then apply again")
            return ExpiryOutcome(action, "done")

        return _attempt(action, address, "changed", change)

    def delete_ref(self, action: ExpiryAction) -> ExpiryOutcome:
        """Delete a ref if it still has the planned head.

        As in the Icechunk library, a branch is deleted by removing its object, and a tag by
        creating a tombstone (an empty object that marks it as deleted).
        """
        ref_type, ref_name = ref_of(action)
        address = ref_address(self.repository, ref_type, ref_name)

        def change() -> ExpiryOutcome:
            raw, etag = self.objects.read_with_etag(address)
            if (head := parse_head(address, raw)) != action.snapshot_id:
                return _head_changed(action, head)
            if ref_type == "branch":
                self.objects.remove(address, etag)
                return ExpiryOutcome(action, "done")
            try:
                self.objects.create(tombstone_address(self.repository, ref_name), b"")
            except FileExistsError:
                return ExpiryOutcome(action, "absent", f"{label(action)} was deleted in the meantime")
            return ExpiryOutcome(action, "done")

        return _attempt(action, address, "absent", change)

    def create_branch(self, action: ExpiryAction) -> ExpiryOutcome:
        """Recreate a deleted branch at its old head, unless its name is in use."""
        ref_type, ref_name = ref_of(action)
        address = ref_address(self.repository, ref_type, ref_name)

        def change() -> ExpiryOutcome:
            try:
                self.objects.create(address, head_document(action.snapshot_id))
            except FileExistsError:
                return _head_changed(action, parse_head(address, self.objects.read(address)))
            return ExpiryOutcome(action, "done")

        return _attempt(action, address, "failed", change)


def _head_changed(action: ExpiryAction, head: str) -> ExpiryOutcome:
    return ExpiryOutcome(action, "changed", f"{label(action)}: expected the head {action.snapshot_id}, found {head}; left unchanged")


def _attempt(action: ExpiryAction, address: str, missing: ExpiryVerdict, change: Change) -> ExpiryOutcome:
    """Make a change to the object at `address`. The verdict is `missing` if it does not exist."""
    try:
        with suppress(ObjectChanged):
            return change()
        return change()  # Perhaps a concurrent expiry made the same change, so try once more.
    except ObjectChanged as error:
        return ExpiryOutcome(action, "changed", str(error))
    except FileNotFoundError as error:
        return ExpiryOutcome(action, missing, f"{address}: {error.strerror or error}")
    except OSError as error:
        found = f"{address} cannot be changed: {error.strerror or error}"
        if is_permanent(error):
            return ExpiryOutcome(action, "denied", f"{found}; correct this and make a new plan")
        return ExpiryOutcome(action, "failed", f"{found}; correct this and apply again")
    except FormatError as error:
        return ExpiryOutcome(action, "failed", str(error))
    except StoreError as error:
        return ExpiryOutcome(action, "failed", f"{address}: {error}")
