"""Exception types by exit code.

Each message contains the object, the actual and expected values, and the next step.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final

from gc_assets.core.printable import to_message

# Store errors that a retry would meet again: a missing permission, a read-only mount, a name that
# the store cannot represent, or a different file system. Full disks, time-outs and I/O errors may
# be temporary.
_PERMANENT: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.EINVAL, errno.EXDEV})


def is_permanent(error: Exception) -> bool:
    """Return True if a store refused a request permanently, so that a retry cannot succeed."""
    return isinstance(error, OSError) and error.errno in _PERMANENT


class GcError(Exception):
    """Operation failed (exit code 1), e.g. an unreadable object, damaged table or store error."""

    exit_code = 1


class UsageError(GcError):
    """Invalid request or configuration (exit code 2). The user can correct it, and no data is lost."""

    exit_code = 2


class GateRefused(GcError):
    """Failed safety gate (exit code 3). The message contains the gate, numbers and override."""

    exit_code = 3


class _ForeignTextError(GcError):
    """Error with a message that may contain names and content of lakes. These are escaped."""

    def __init__(self, message: object = "") -> None:
        super().__init__(to_message(str(message)))


class LakeUnreadable(_ForeignTextError):
    """Unreadable ref, page, snapshot, manifest or table, so the live set cannot be computed."""


class ClockSkewed(LakeUnreadable):
    """The clock of a lake's server differs from the clock of this machine, on which all lakes rely."""


class RepositoryMissing(LakeUnreadable):
    """The server of a lake answers that it has no repository of this name."""


class FormatError(_ForeignTextError):
    """Metadata object that violates its format, e.g. by a wrong magic, version, count or checksum."""


class UnresolvedAddresses(FormatError):
    """Metadata object with addresses that use an unknown prefix name."""

    def __init__(self, message: object = "", addresses: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.addresses = tuple(addresses)


class UnresolvedContainer(FormatError):
    """Metadata object in no storage, because its address is relative, or contains `..` or a host."""


class UndecodedTable(FormatError):
    """Table metadata that cannot be decoded, with the locations that could still be read from it."""

    def __init__(self, message: object = "", locations: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.locations = tuple(locations)


class DecodingAborted(FormatError):
    """Metadata object whose decoder exceeded its limit of time or memory."""


class StoreError(_ForeignTextError):
    """Store failure, e.g. an unreadable directory or a key that cannot be represented."""


class ObjectChanged(StoreError):
    """Object was modified since it was read. Nothing was changed."""


class StateError(GcError):
    """State table or receipt that is missing, incomplete, inconsistent or has a newer schema."""
