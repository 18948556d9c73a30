"""The three ways a command can end badly, as exception types.

Every message names the object, what was found, what was expected and what to do next.
"""


class GcError(Exception):
    """The work failed (exit code 1): an unreadable object, a broken table, a store that refused."""

    exit_code = 1


class UsageError(GcError):
    """The request or the configuration is wrong (exit code 2). The user can correct it without
    touching data.
    """

    exit_code = 2


class GateRefused(GcError):
    """A safety gate refused (exit code 3). The message names the gate, its numbers and how to
    override it.
    """

    exit_code = 3


class LakeUnreadable(GcError):
    """A ref, page, snapshot, manifest or table of a lake could not be read. Without it there is no
    live set, and so no plan.
    """


class FormatError(GcError):
    """The bytes of a metadata object are not what their format promises (magic, version, counts,
    checksum).
    """


class StoreError(GcError):
    """A storage did not answer as a storage must (unreadable directory, a key that cannot be
    represented).
    """


class ObjectChanged(StoreError):
    """An object that was to be changed is no longer the one that was read. Nothing was changed."""


class StateError(GcError):
    """A published table or receipt in the state is missing, half written, unbalanced or of a newer
    schema.
    """
