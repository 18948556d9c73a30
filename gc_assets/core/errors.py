"""Exception types by exit code.

Each message names the object, the actual and expected values, and the next step.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final

from gc_assets.core.printable import to_message

# Errors of a store that the same request meets again: no right, a read-only mount, a name that the
# store cannot represent, or another file system. Full disks, time-outs and I/O errors may end.
_PERMANENT: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.EINVAL, errno.EXDEV})


def is_permanent(error: Exception) -> bool:
    """Check if a store refused a request in a way that a retry cannot help."""
    return isinstance(error, OSError) and error.errno in _PERMANENT


class GcError(Exception):
    """Operation failed (exit code 1), e.g. an unreadable object, damaged table or store error."""

    exit_code = 1


class UsageError(GcError):
    """Invalid request or configuration (exit code 2). The user can correct it without data loss."""

    exit_code = 2


class GateRefused(GcError):
    """Failed safety gate (exit code 3). The message contains the gate, numbers and override."""

    exit_code = 3


class _ForeignTextError(GcError):
    """Error whose message can contain names and content of lakes, which are escaped."""

    def __init__(self, message: object = "") -> None:
        super().__init__(to_message(str(message)))


class LakeUnreadable(_ForeignTextError):
    """Unreadable ref, page, snapshot, manifest or table, so the live set cannot be computed."""


class ClockSkewed(LakeUnreadable):
    """The clock of a lake's server differs from that of this machine, which all lakes use."""


class FormatError(_ForeignTextError):
    """Metadata object that violates its format, e.g. its magic, version, counts or checksum."""


class UnresolvedAddresses(FormatError):
    """Metadata object with addresses that refer to an unknown prefix by name."""

    def __init__(self, message: object = "", addresses: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.addresses = tuple(addresses)


class UnresolvedContainer(FormatError):
    """Metadata object in no storage, because its address is relative, or has `..` or a host."""


class UndecodedTable(FormatError):
    """Table metadata that cannot be decoded, with the locations that it names nevertheless."""

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
