"""Decide whether a report lacks objects that it must contain.

An S3 inventory can have a prefix filter, which its manifest does not contain. Such a report lacks
the metadata of foreign tables, so their files could look like garbage. Therefore, a report is
refused if it lacks a single object that is much older than its scan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from gc_assets.buckets.protocol import ConditionalBucket, Page
from gc_assets.core.urls import is_addressable
from gc_assets.stores.protocol import RESERVED_PREFIX

# A report may lack younger objects, because inventories of S3 are eventually consistent. The clock
# of a program that writes its own reports may also be wrong. Two days are our choice.
MAX_LAG: Final = timedelta(days=2)
# How many directories are sampled, with one request each, and how many objects of each.
_DIRECTORIES: Final = 24
_OBJECTS: Final = 3
# This many of the first and last subdirectories of a directory are sampled.
_SUBDIRECTORIES: Final = 2


def must_list(as_of: datetime, modified: datetime) -> bool:
    """Check whether a report must contain an object.

    Args:
        as_of: When the scan for the report started.
        modified: When the object was modified.
    """
    return modified < as_of - MAX_LAG


def describe_partial(name: str, as_of: datetime, address: str, modified: datetime) -> str:
    """Explain why a report that lacks an object is refused."""
    return (
        f"report {name} is partial: its scan started at {as_of.isoformat()}, but it lacks {address}, which has existed since "
        f"{modified.isoformat()}. Remove the prefix filter of the inventory configuration and wait for the next report, or remove "
        "`inventory` to list the storage. Then run `gc-assets run --listing`. If the object was replicated or undeleted after the scan, "
        "the next report contains it"
    )


def sample_old_objects(bucket: ConditionalBucket, as_of: datetime) -> dict[str, datetime]:
    """Find a few objects in different directories that a report must contain.

    Args:
        bucket: The storage.
        as_of: When the scan for the report started.

    Returns:
        The modification times by key.
    """
    found, directories, prefix = dict[str, datetime](), deque([""]), bucket.prefix.encode()
    for _ in range(_DIRECTORIES):
        if not directories:
            break
        page = next(iter(bucket.list_pages(directories.popleft(), delimiter="/")), None)
        if page is not None:
            found.update(islice(_select_old(page, prefix, as_of), _OBJECTS))
            names = [name for name in (_decode(name, prefix) for name in page.common) if name not in {"", RESERVED_PREFIX}]
            directories += dict.fromkeys((*names[:_SUBDIRECTORIES], *names[-_SUBDIRECTORIES:]))
    return found


def _select_old(page: Page, prefix: bytes, as_of: datetime) -> Iterator[tuple[str, datetime]]:
    for name, text in zip(page.keys, page.modified, strict=True):
        key, modified = _decode(name, prefix), datetime.fromisoformat(text)
        if key and is_addressable(key) and must_list(as_of, modified):
            yield key, modified


def _decode(name: bytes, prefix: bytes) -> str:
    """Return a name without the prefix of the storage, or an empty string if it is not UTF-8."""
    try:
        return name.removeprefix(prefix).decode()
    except UnicodeDecodeError:
        return ""
