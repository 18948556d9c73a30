"""Exceptions, with the exit codes that the command line derives from them.

A message should identify the object, state what was found and what was expected, and suggest the
next step.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final

from gc_assets.core.printable import to_message

# Retrying after these errors is pointless, because they indicate a missing permission, a read-only
# mount, a name that the store cannot represent, or a different file system. Full disks, time-outs
# and I/O errors are not included, because they may be temporary.
_PERMANENT: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.EINVAL, errno.EXDEV})


def is_permanent(error: Exception) -> bool:
    """Return True if a store refused a request for a reason that a retry will not change."""
    return isinstance(error, OSError) and error.errno in _PERMANENT


def reason_of(error: Exception) -> str:
    """Return the message of an error, without the path that is part of the text of an `OSError`."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def summarize(error: Exception) -> str:
    """Return the first two lines of a validation error, which describe the first invalid value."""
    return "; ".join(str(error).splitlines()[:2])


class GcError(Exception):
    """Raised when an operation fails, for example because of a store error (exit code 1)."""

    exit_code = 1


class UsageError(GcError):
    """Raised for an invalid request or configuration, which the user can correct (exit code 2)."""

    exit_code = 2


class GateRefused(GcError):
    """Raised when a safety check refuses an action (exit code 3).

    For gates of a plan, the message contains the gate, its numbers and how to override it.
    """

    exit_code = 3


class LeaseLost(GateRefused):
    """Raised when another process has taken over or removed the lease of this process."""


class _ForeignTextError(GcError):
    """Base class for errors whose messages may contain text from lakes, which is escaped."""

    def __init__(self, message: object = "") -> None:
        super().__init__(to_message(str(message)))


class LakeUnreadable(_ForeignTextError):
    """Raised when part of a lake cannot be read, so that its live set is unknown."""


class ClockSkewed(LakeUnreadable):
    """Raised when the clock of a lake's server differs too much from the clock of this machine."""


class RepositoryMissing(LakeUnreadable):
    """Raised when the server of a lake responds that the repository does not exist."""


class FormatError(_ForeignTextError):
    """Raised for invalid metadata, such as a wrong magic number, version, count or checksum."""


class UnresolvedAddresses(FormatError):
    """Raised for metadata with addresses that use an unknown prefix name."""

    def __init__(self, message: object = "", addresses: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.addresses = tuple(addresses)


class UnresolvedContainer(FormatError):
    """Raised for a metadata object at an unreadable address that belongs to no storage.

    For example, the address is relative, contains `..` or a host, has a scheme that no store
    supports, or is in a bucket that is not configured.
    """


class UndecodedTable(FormatError):
    """Raised for table metadata that cannot be decoded.

    `locations` contains the table locations that could still be read from it.
    """

    def __init__(self, message: object = "", locations: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.locations = tuple(locations)


class DecodingAborted(FormatError):
    """Raised when decoding a metadata object takes too much time or memory."""


class StoreError(_ForeignTextError):
    """Raised for store failures, such as an unreadable directory or an invalid key."""


class ObjectChanged(StoreError):
    """Raised instead of a write if another process has modified the object since it was read."""


class StateError(GcError):
    """Raised if part of the state is missing, incomplete, inconsistent or of a newer release."""
