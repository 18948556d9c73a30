"""What `doctor` finds of any store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from gc_assets.core.errors import StoreError
from gc_assets.core.findings import FAIL, OK, WARN, Finding
from gc_assets.stores.protocol import Holder


def check_lease(storage_name: str, read_holder: Callable[[], Holder | None], now: datetime) -> Iterator[Finding]:
    """Yields who holds the lease of a storage."""
    try:
        holder = read_holder()
    except StoreError as error:
        is_unread = isinstance(error.__cause__, OSError)
        todo = "Mend what it names." if is_unread else "Make sure that nothing changes the storage, then remove it."
        yield Finding(storage_name, "lease", FAIL, str(error), todo)
        return
    if holder is None:
        yield Finding(storage_name, "lease", OK, "nobody is changing the storage")
    elif holder.is_live(now):
        todo = "An apply is running, or one died within the last minutes: wait for it."
        yield Finding(storage_name, "lease", WARN, f"held by {holder}", todo)
    else:
        yield Finding(storage_name, "lease", WARN, f"left behind by {holder}", "The next apply takes it over.")
