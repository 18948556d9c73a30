"""Checks of `gc-assets doctor` that are the same for all kinds of buckets.

They find out whether the bucket can be reached, listed and read, whether the quarantine mode is
suitable, whether the server respects conditions, and whether an apply holds the lease.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from gc_assets.buckets.protocol import ConditionalBucket
from gc_assets.config.models import StorageConfig
from gc_assets.core.causes import cause_of
from gc_assets.core.clock import MAX_SKEW
from gc_assets.core.findings import FAIL, OK, WARN, Finding, run_check
from gc_assets.core.phases import DENIED
from gc_assets.core.units import count_of, format_bytes, format_duration
from gc_assets.stores.conditional.lease import read_holder
from gc_assets.stores.conditional.probe import probe
from gc_assets.stores.conditional.undo_rights import check_undo
from gc_assets.stores.doctor_checks import check_axioms, check_lease
from gc_assets.stores.protocol import RESERVED_PREFIX

# With more attempts, it could take minutes to find out that a server does not exist.
_ATTEMPTS: Final = 2
# A policy may deny access to a single prefix. At most this many prefixes are tested one by one.
_PREFIXES: Final = 50
# A full page of a listing has this many keys, in every store.
_MANY_KEYS: Final = 1000
# To count soft-deleted objects, at most this many pages of a listing are read.
_SOFT_DELETED_PAGES: Final = 10

Check = Callable[[StorageConfig], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class StoreTerms:
    """Texts that differ between kinds of stores.

    Attributes:
        costs: The effect and the costs of each quarantine mode.
        changing_role: The name of the role that changes objects, with the settings that select it.
        find_wrong_server: Returns a finding if an error shows that the server has another API.
    """

    costs: Mapping[str, str]
    changing_role: str
    find_wrong_server: Callable[[StorageConfig, OSError], Finding | None] = lambda _, __: None


def examine_bucket(
    bucket: ConditionalBucket,
    storage: StorageConfig,
    now: datetime,
    terms: StoreTerms,
    settings_checks: Sequence[tuple[str, Check]] = (),
    further_checks: Sequence[tuple[str, Check]] = (),
) -> Iterator[Finding]:
    """Check a bucket as described in `Store.examine`.

    Canary objects are only written if the storage is in `apply` mode.

    Args:
        bucket: The storage.
        storage: The configuration of the storage.
        now: The current time, which determines whether a lease has expired.
        terms: Texts for the kind of store.
        settings_checks: Further checks of the bucket's settings, with the names of their findings.
        further_checks: Further checks that are made last, after the canaries.
    """
    for look in (lambda: _check_reachable(bucket, storage, terms), lambda: _check_listable(bucket, storage)):
        findings = list(run_check(storage.name, "listable", look))
        yield from findings
        if any(finding.verdict == FAIL for finding in findings):
            return
    yield from run_check(storage.name, "quarantine", lambda: _check_quarantine(bucket, storage, terms))
    for name, check in settings_checks:
        yield from run_check(storage.name, name, lambda check=check: check(storage))
    if storage.mode == "apply":
        yield from run_check(storage.name, "traits", lambda: _check_traits(bucket, storage, terms))
        yield from run_check(storage.name, "deletable", lambda: _check_deletable(bucket, storage, terms))
    for name, check in further_checks:
        yield from run_check(storage.name, name, lambda check=check: check(storage))
    yield from run_check(storage.name, "lease", lambda: check_lease(storage.name, lambda: read_holder(bucket), now))


def _check_reachable(bucket: ConditionalBucket, storage: StorageConfig, terms: StoreTerms) -> Iterator[Finding]:
    """Check that the server responds, and that its clock agrees with this machine's clock."""
    try:
        server_time = bucket.reach(_ATTEMPTS)
    except OSError as error:
        yield terms.find_wrong_server(storage, error) or refusal(storage, f"{storage.location} cannot be listed", error)
        return
    if server_time is None:
        found = f"the responses of the server for {storage.location} have no Date header, so its clock cannot be compared"
        yield Finding(storage.name, "clock", WARN, found, "Make sure that the server's clock is correct: the grace period uses its times.")
        return
    skew = server_time - datetime.now(UTC).replace(microsecond=0)
    found = f"the server's clock differs by {abs(skew.total_seconds()):.0f} s"
    if abs(skew) <= MAX_SKEW:
        yield Finding(storage.name, "clock", OK, found)
    else:
        found += f" ({'ahead of' if skew.total_seconds() > 0 else 'behind'} this machine's), expected at most {format_duration(MAX_SKEW)}"
        yield Finding(storage.name, "clock", WARN, found, "Set the clocks: the difference shortens the grace period.")


def refusal(storage: StorageConfig, problem: str, error: OSError, check: str = "listable") -> Finding:
    """Build the finding for a request that failed or was denied."""
    found = f"{problem}: {error.strerror or error}"
    return Finding(storage.name, check, FAIL, found, "Fix the reported cause, then run doctor again.", cause_of(error))


def _check_listable(bucket: ConditionalBucket, storage: StorageConfig) -> Iterator[Finding]:
    """Check that objects can be listed and read, separately for the first top-level prefixes.

    An access policy may deny access to only one of these prefixes.
    """
    try:
        page = next(bucket.list_pages())
    except OSError as error:
        yield refusal(storage, f"{storage.location} cannot be listed", error)
        return
    more = "at least " if len(page.keys) >= _MANY_KEYS else ""
    found = f"{storage.location} has {more}{count_of(len(page.keys), 'object')}"
    try:
        prefixes = next(bucket.list_pages(delimiter="/")).common
        first = [_find_first_key(bucket, prefix.decode()) for prefix in prefixes[:_PREFIXES]]
    except UnicodeDecodeError:  # the listing of a run reports such a key
        first = []
    except OSError as error:
        yield refusal(storage, f"{storage.location} can be listed, but {error.filename} cannot", error)
        return
    for key in [*(key for key in first if key is not None), *(_decode_keys(page.keys[:1]))]:
        relative = key.removeprefix(bucket.prefix)
        try:
            bucket.head(relative, role="read")
        except OSError as error:
            problem = f"{storage.location} can be listed, but {bucket.address(relative)} cannot be read"
            yield refusal(storage, problem, error, "readable")
            return
    yield Finding(storage.name, "listable", OK, found)


def _find_first_key(bucket: ConditionalBucket, prefix: str) -> str | None:
    keys = next(bucket.list_pages(prefix.removeprefix(bucket.prefix))).keys
    return next(_decode_keys(keys[:1]), None)


def _decode_keys(keys: list[bytes]) -> Iterator[str]:
    for key in keys:
        try:
            yield key.decode()
        except UnicodeDecodeError:
            return


def _check_quarantine(bucket: ConditionalBucket, storage: StorageConfig, terms: StoreTerms) -> Iterator[Finding]:
    """Check that the quarantine mode suits the bucket, and compare its costs with an alternative."""
    status, days, costs = bucket.versioning("read").status, count_of(storage.quarantine_days, "day"), terms.costs
    severity = FAIL if storage.mode == "apply" else WARN
    if storage.quarantine == "versioned" and status != "Enabled":
        reason = "has versioning suspended" if status else "keeps no versions"
        found = f"bucket {bucket.name} {reason}, so a delete is permanent; `versioned` needs versioning enabled"
        yield Finding(storage.name, "quarantine", severity, found, f"Enable versioning, or use `quarantine: trash`: {costs['trash']}.")
    elif storage.quarantine == "trash" and status == "Enabled":
        found = f"bucket {bucket.name} keeps versions, so a copy in the trash frees nothing"
        yield Finding(storage.name, "quarantine", severity, found, f"Use `quarantine: versioned`: {costs['versioned']}.")
    elif status == "Suspended":
        found = f"bucket {bucket.name} has versioning suspended: older versions still incur costs, and no purge deletes them"
        yield Finding(
            storage.name, "quarantine", WARN, found, "Enable it and use `versioned`, or delete the old versions with a lifecycle rule."
        )
    else:
        other = {"deferred": "versioned" if status else "trash"}.get(storage.quarantine, "deferred")
        found = f"{storage.quarantine}: {costs[storage.quarantine]}; purged after {days}; mode {storage.mode}. "
        found += f"It suits this bucket, which keeps {'' if status else 'no '}versions. The alternative is {other}: {costs[other]}"
        yield Finding(storage.name, "quarantine", OK, found)


def report_soft_delete(storage: StorageConfig, found: str, count: Callable[[int], tuple[int, int, bool]]) -> Finding:
    """Report the soft-deleted objects of a storage, which `count` counts in a number of pages."""
    if storage.quarantine == "trash":
        found += ". This applies to the original of each copy in the trash, and again to the copy after its purge"
    try:
        objects, size_bytes, is_complete = count(_SOFT_DELETED_PAGES)
    except OSError as error:
        return Finding(storage.name, "soft_delete", OK, f"{found}. They cannot be counted: {error.strerror or error}")
    more = "" if is_complete else "at least "
    return Finding(storage.name, "soft_delete", OK, f"{found}. The storage has {more}{objects:,} of them, {format_bytes(size_bytes)}")


def report_lifecycle_rules(bucket: ConditionalBucket, storage: StorageConfig, rules: Sequence[tuple[int, str]]) -> Iterator[Finding]:
    """Warn about lifecycle rules that may delete a quarantined object after a number of days.

    In `apply` mode, the check fails if this is before the object's purge is due.
    """
    for days, description in rules:
        verdict = FAIL if storage.mode == "apply" and days < storage.quarantine_days else WARN
        action = f"Extend it beyond {count_of(storage.quarantine_days, 'day')}, or exclude {bucket.prefix}{RESERVED_PREFIX} and the lakes."
        yield Finding(storage.name, "lifecycle", verdict, f"{description}, including quarantined objects", action)
    if not rules:
        yield Finding(storage.name, "lifecycle", OK, "no lifecycle rule of the bucket deletes objects of the storage")


def report_state_rules(bucket: ConditionalBucket, rules: Sequence[tuple[int, str]]) -> Iterator[Finding]:
    """Check that no lifecycle rule deletes plans, approvals and records (see `examine_state`)."""
    for _, description in rules:
        yield Finding("state", "lifecycle", FAIL, f"{description}, including the state", f"Exclude {bucket.prefix} from the rule.")
    if not rules:
        yield Finding("state", "lifecycle", OK, "no lifecycle rule of its bucket deletes objects of the state")


def _check_deletable(bucket: ConditionalBucket, storage: StorageConfig, terms: StoreTerms) -> Iterator[Finding]:
    """Check the permission to delete objects and, if they are moved, to restore them.

    In `deferred` mode, a key that does not exist is deleted. In a bucket with versions, this would
    create a delete marker, so the check is skipped.
    """
    if storage.quarantine != "deferred":
        yield from _check_undo(bucket, storage, terms)
        return
    if bucket.versioning("change").has_versions:
        return
    deleted = bucket.delete_if_match(f"gc-assets-canary-{secrets.token_hex(8)}", None)
    if deleted.error is not None and deleted.verdict != "absent":
        yield refusal(storage, f"{terms.changing_role} cannot delete under {storage.location}", deleted.error, "deletable")
        return
    yield Finding(storage.name, "deletable", OK, f"the changing role may delete under {storage.location}")


def _check_undo(bucket: ConditionalBucket, storage: StorageConfig, terms: StoreTerms) -> Iterator[Finding]:
    """Check that the changing role may restore quarantined objects, because an apply requires it."""
    refused = check_undo(bucket, storage.quarantine)
    if refused is None:
        yield Finding(storage.name, "deletable", OK, f"the changing role may undo a quarantine under {storage.location}")
        return
    verdict = FAIL if refused.verdict == DENIED else WARN
    yield Finding(storage.name, "deletable", verdict, refused.error or "", f"Correct the policy of {terms.changing_role}.")


def _check_traits(bucket: ConditionalBucket, storage: StorageConfig, terms: StoreTerms) -> Iterator[Finding]:
    """Check with canary objects whether the server respects conditions."""
    try:
        traits = probe(bucket)
    except OSError as error:
        problem = f"{terms.changing_role} cannot write and remove canaries under {bucket.address(RESERVED_PREFIX)}"
        yield refusal(storage, problem, error, "traits")
        return
    yield from check_axioms(storage.name, traits)
    compares = {"none": "ignores etags in deletes", "one": "compares the etag in single deletes", "batch": "compares etags in all deletes"}
    if not traits.create_if_absent and traits.versions:
        # The lease still works, because it uses versions to detect a second writer.
        found = f"this server ignores If-None-Match in bucket {bucket.name}; its versions show which of two plans was first"
        yield Finding(storage.name, "traits", WARN, found, "Plans can be applied, but Icechunk histories in this bucket cannot be edited.")
    elif not traits.create_if_absent:
        found = "two writers can create the same object: this server ignores If-None-Match"
        yield Finding(storage.name, "traits", FAIL, found, "Plans cannot be applied: without a lease, two plans could run concurrently.")
    elif not traits.create_after_delete and storage.quarantine != "versioned":  # that mode has failed already
        found = f"in bucket {bucket.name}, a delete marker prevents that an object is created at a deleted key"
        todo = "Enable versioning, because some restores and edits of Icechunk histories would be denied."
        yield Finding(storage.name, "traits", FAIL, found, todo)
    elif not traits.replace_if_match:
        found = "an object cannot be replaced conditionally: this server ignores If-Match"
        yield Finding(storage.name, "traits", WARN, found, "The history of Icechunk repositories in this bucket cannot be edited.")
    elif not traits.broken_axioms:
        found = f"canary objects were created once and replaced conditionally; the server {compares[traits.delete_if_match]}"
        yield Finding(storage.name, "traits", OK, found)
