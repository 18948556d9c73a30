"""What `doctor` asks of a bucket: can it be listed, does the quarantine fit it, does somebody hold
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from botocore.exceptions import ClientError

from gc_assets.config.models import StorageConfig
from gc_assets.core.findings import FAIL, OK, WARN, Finding, looked
from gc_assets.s3 import pages
from gc_assets.s3.client import code_of, told
from gc_assets.stores.examination import lease_findings
from gc_assets.stores.s3.bucket import Bucket
from gc_assets.stores.s3.lease import holder_of
from gc_assets.stores.s3.probe import probe


def examine(bucket: Bucket, storage: StorageConfig, now: datetime) -> Iterator[Finding]:
    """As `Store.examine` says. Canaries are written in a storage of mode `apply` only."""
    listable = list(looked(storage.name, "listable", lambda: _listable(bucket, storage)))
    yield from listable
    if any(finding.verdict == FAIL for finding in listable):
        return
    yield from looked(storage.name, "quarantine", lambda: _quarantine(bucket, storage))
    yield from looked(storage.name, "lifecycle", lambda: _lifecycle(bucket, storage))
    if storage.mode == "apply":
        yield from looked(storage.name, "traits", lambda: _traits(bucket, storage))
    yield from looked(storage.name, "lease", lambda: lease_findings(storage.name, lambda: holder_of(bucket), now))


def _listable(bucket: Bucket, storage: StorageConfig) -> Iterator[Finding]:
    try:
        page = next(pages.objects(bucket.settings, bucket.name, bucket.prefix))
    except OSError as error:
        yield Finding(
            storage.name, "listable", FAIL, f"{storage.location} cannot be listed: {error.strerror or error}", "Mend what it names."
        )
        return
    more = "at least " if len(page.keys) == pages.PAGE_KEYS else ""
    yield Finding(storage.name, "listable", OK, f"{storage.location} has {more}{len(page.keys):,} objects")


def _quarantine(bucket: Bucket, storage: StorageConfig) -> Iterator[Finding]:
    keeps, days = bucket.versioning("read").is_on, f"{storage.quarantine_days} days"
    refusal = FAIL if storage.mode == "apply" else WARN
    if storage.quarantine == "versioned" and not keeps:
        found = f"bucket {bucket.name} keeps no versions, so a delete there is for good"
        yield Finding(storage.name, "quarantine", refusal, found, "Enable versioning, or use `quarantine: trash`.")
    elif storage.quarantine == "trash" and keeps:
        found = f"bucket {bucket.name} keeps versions, so a copy in the trash frees nothing"
        yield Finding(storage.name, "quarantine", refusal, found, "Use `quarantine: versioned`.")
    else:
        how = {
            "versioned": "a delete marker hides each object; its version bills until it is purged",
            "trash": "each object is copied below .gc-assets/ and deleted; one COPY a file, and early-delete minimums apply",
            "deferred": "nothing moves",
        }[storage.quarantine]
        yield Finding(storage.name, "quarantine", OK, f"{storage.quarantine}: {how}; purged after {days}; mode {storage.mode}")


def _lifecycle(bucket: Bucket, storage: StorageConfig) -> Iterator[Finding]:
    """Warns of the bucket's own rules that may delete what lies in quarantine."""
    try:
        with told(f"s3://{bucket.name}"):
            rules = bucket.client("read").get_bucket_lifecycle_configuration(Bucket=bucket.name).get("Rules", [])
    except OSError as error:
        code = code_of(error.__cause__) if isinstance(error.__cause__, ClientError) else ""
        missing = code in {"NoSuchLifecycleConfiguration", "NotImplemented"}
        found = "the bucket has no lifecycle rules" if missing else f"its lifecycle rules cannot be read: {error.strerror or error}"
        yield Finding(storage.name, "lifecycle", OK if missing else WARN, found, "" if missing else "Look at them by hand.")
        return
    for rule in rules:
        ends = [name for name in ("Expiration", "NoncurrentVersionExpiration") if name in rule]
        if rule.get("Status") == "Enabled" and ends:
            found = f"the rule {rule.get('ID', '')!r} deletes by {' and '.join(ends)}, quarantined objects too"
            yield Finding(
                storage.name, "lifecycle", WARN, found, f"Keep it longer than {storage.quarantine_days} days, or leave this prefix out."
            )


def _traits(bucket: Bucket, storage: StorageConfig) -> Iterator[Finding]:
    """Says by canaries what the server can do."""
    traits = probe(bucket)
    compares = {"none": "does not compare as it deletes", "one": "compares as it deletes one object", "batch": "compares as it deletes"}
    if not traits.create_if_absent and traits.versions:
        # `lease` keeps a lease single by its versions.
        found = f"this server ignores If-None-Match in bucket {bucket.name}; its versions tell which of two plans was first"
        yield Finding(storage.name, "traits", WARN, found, "Plans can be applied. Histories of Icechunk here cannot be edited.")
    elif not traits.create_if_absent:
        found = "two writers can create the same object: this server ignores If-None-Match"
        yield Finding(storage.name, "traits", FAIL, found, "Nothing can be applied here: no lease keeps two plans apart.")
    elif not traits.replace_if_match:
        found = "an object cannot be replaced on a condition: this server does not honour If-Match"
        yield Finding(storage.name, "traits", WARN, found, "Histories of Icechunk repositories here cannot be edited.")
    else:
        found = f"canary objects were created once and replaced on a condition; the server {compares[traits.delete_if_match]}"
        yield Finding(storage.name, "traits", OK, found)
