"""Checks of `gc-assets doctor` that are the same for all kinds of stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from gc_assets.core.errors import StoreError
from gc_assets.core.findings import FAIL, OK, WARN, Finding
from gc_assets.stores.protocol import AXIOMS, Holder, Traits


def check_axioms(storage_name: str, traits: Traits) -> Iterator[Finding]:
    """Report the guarantees that a store breaks according to its canary objects."""
    for name in sorted(traits.broken_axioms):
        found = f"canary objects show that this store breaks a guarantee ({name}): {AXIOMS[name]}"
        todo = "Set `mode: plan`, because plans of this storage may be wrong. See docs/architecture.md, What a store must provide."
        yield Finding(storage_name, "traits", FAIL, found, todo)


def check_lease(storage_name: str, read_holder: Callable[[], Holder | None], now: datetime) -> Iterator[Finding]:
    """Check if an apply holds the lease of a storage."""
    try:
        holder = read_holder()
    except StoreError as error:
        is_unreadable = isinstance(error.__cause__, OSError)
        action = "Fix the reported cause." if is_unreadable else "Make sure that nothing changes the storage, then remove it."
        yield Finding(storage_name, "lease", FAIL, str(error), action)
        return
    if holder is None:
        yield Finding(storage_name, "lease", OK, "no apply is changing the storage")
    elif holder.is_live(now):
        action = "An apply is running, or one crashed within the last minutes. Wait for it."
        yield Finding(storage_name, "lease", WARN, f"held by {holder}", action)
    else:
        yield Finding(storage_name, "lease", WARN, f"expired, held by {holder}", "The next apply takes it over.")
