"""Create objects at keys that are hidden by delete markers.

If versioning is suspended, a delete leaves a marker with the version id `null`. Ceph 20 counts a
marker as an object when it evaluates If-None-Match in such a bucket, so nothing could be restored.
Other servers, and buckets with versioning enabled, do not need this module.

If a writer replaces a `null` marker between the last comparison and its delete, which is the next
request, the new object is lost. Ceph 20 compares a condition of this delete with the old marker.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Final

from gc_assets.buckets.protocol import Change, ConditionalBucket, Deletion, Version

# At most this many delete markers of a key are removed.
_MAX_MARKERS: Final = 100


def create_despite_markers(bucket: ConditionalBucket, key: str, create: Callable[[], Change], hidden: str | None = None) -> Change:
    """Create an object, and remove delete markers that prevent it.

    Removing the markers makes the version under them current. They are therefore only removed if
    they hide no version, or if the version has the identity `hidden`. It then is the object at the
    key, and nothing is created (`changed`).

    Args:
        bucket: The storage.
        key: The key of the object.
        create: Sends the request, whose condition is that there is no object.
        hidden: The identity of a version that may become current.
    """
    change = create()
    if change.verdict != "changed":
        return change
    try:
        versions = [] if bucket.head(key) is not None else bucket.newest_versions(key, _MAX_MARKERS + 1)
        markers = list(takewhile(lambda version: version.is_marker, versions))
        if not markers:
            return change
        if len(markers) > _MAX_MARKERS or _would_expose_other(bucket, key, versions[len(markers) :], hidden):
            return _refuse(bucket, key, "an older version is under it")
    except OSError:  # whether there is a marker is unknown
        return change
    for removed in bucket.delete([Deletion(key, marker.version_id) for marker in markers]):
        if removed.verdict == "unknown":
            return removed
        if removed.verdict not in {"done", "absent"}:
            return _refuse(bucket, key, f"it cannot be removed ({removed.reason})")
    return create()


def _would_expose_other(bucket: ConditionalBucket, key: str, older: Sequence[Version], hidden: str | None) -> bool:
    found = bucket.head(key, version_id=older[0].version_id) if older else None
    return bool(older) and (found is None or found.identity != hidden)


def _refuse(bucket: ConditionalBucket, key: str, reason: str) -> Change:
    found = f"a delete marker hides the key, the server creates no object over it, and {reason}"
    way_out = f"enable versioning for bucket {bucket.name}, then try again"
    return Change("denied", PermissionError(errno.EACCES, f"{found}; {way_out}", bucket.address(key)))
