"""The exception types of gc-assets, by exit code.

Each message names the object, what was found, what was expected, and the next step.
"""


class GcError(Exception):
    """Work failed (exit code 1): an unreadable object, a damaged table, an error of a store."""

    exit_code = 1


class UsageError(GcError):
    """Request or the configuration is wrong (exit code 2). The user can correct it without data
    loss.
    """

    exit_code = 2


class GateRefused(GcError):
    """A safety gate failed (exit code 3). The message names the gate, its numbers and the override."""

    exit_code = 3


class LakeUnreadable(GcError):
    """A ref, page, snapshot, manifest or table of a lake is unreadable, so there is no live set."""


class FormatError(GcError):
    """A metadata object violates its format: magic, version, counts or checksum."""


class StoreError(GcError):
    """A store failed: an unreadable directory, or a key that cannot be represented."""


class ObjectChanged(StoreError):
    """Object to change is no longer the one that was read. Nothing was changed."""


class StateError(GcError):
    """A table or receipt in the state is missing, incomplete, inconsistent or of a newer schema."""
