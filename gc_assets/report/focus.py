"""Export storage costs in the format FOCUS 1.2 (FinOps Open Cost and Usage Specification).

Each run date is a charge period of one day. Usage rows contain what a table cost on that day at the
price in `lakes.yaml`, split into categories such as `live` and `garbage`. Credit rows contain the
monthly price of the files that were purged on that day.
"""

from __future__ import annotations

import calendar
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.config.models import BYTES_PER_GB, Config, LakeConfig, StorageConfig
from gc_assets.core.paths import FILE, scheme_of
from gc_assets.core.phases import DONE, PURGE
from gc_assets.engine.run_context import RunContext
from gc_assets.report.shares import breakdown_steps
from gc_assets.stages.read.browse import batches
from gc_assets.stages.read.usage import usage_by_table
from gc_assets.stages.records.ledger import read_log_entries
from gc_assets.stages.records.plans import list_plans, load_plan
from gc_assets.state.journal import State
from gc_assets.state.schemas import DELETION_LOG, DELETION_PLAN, ORPHAN_FILES
from gc_assets.state.summaries import OrphanFilesSummary

VERSION: Final = "1.2"
# In the order of the specification, followed by custom columns.
COLUMNS: Final = (
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingAccountType", "BillingCurrency"),
    *("BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency"),
    *("ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "ContractedUnitPrice"),
    *("EffectiveCost", "InvoiceIssuerName", "ListCost", "ListUnitPrice", "PricingCategory", "PricingQuantity", "PricingUnit"),
    *("ProviderName", "PublisherName", "ResourceId", "ResourceName", "ResourceType", "ServiceCategory", "ServiceName"),
    *("ServiceSubcategory", "SkuId", "SkuPriceId", "SubAccountId", "SubAccountName", "SubAccountType", "Tags"),
    *("x_Files", "x_Owners", "x_Share"),
)
_GENERATOR: Final = "gc-assets"
_DAY: Final = timedelta(days=1)
# Decimal places of quantities. A byte-day is 3e-11 GB-months.
_PRECISION: Final = Decimal("1e-15")
# These categories of the storage breakdown are reported for each table instead.
_BY_TABLE: Final = frozenset({"stored", "live", "expired history", "garbage"})
_EXPIRED: Final = "expired"
_UNSIZED: Final = "live, of no recorded size"
_NO_ROWS: Final = pa.schema([("key", pa.string()), ("plan_id", pa.string()), ("size_bytes", pa.int64())])
Row = dict[str, str | None]


@dataclass(frozen=True, slots=True)
class Charge:
    """A number of bytes whose storage is charged for one day, or credited.

    Attributes:
        storage: The storage that contains the files.
        lake: The lake to which the files belong, or None if they do not belong to any.
        table: The table to which the files belong. None if they belong to no table, or to a single
            repository.
        share: The category of the bytes, such as `live`, `expired history`, `garbage` or `purged`.
            Other files have a category of the storage breakdown.
        files: The number of files.
        size_bytes: The number of bytes.
    """

    storage: StorageConfig
    lake: LakeConfig | None
    table: str | None
    share: str
    files: int
    size_bytes: int


def usage_rows(context: RunContext) -> Iterator[Row]:
    """Yield usage rows for the run date, for all storages with a price."""
    for charge in _usage(context):
        yield _usage_row(context.config, charge, context.run_date)


def credit_rows(context: RunContext) -> Iterator[Row]:
    """Yield a credit row for each lake whose files were purged on the run date."""
    for storage in _storages_with_price(context.config):
        for charge in _find_purged(context, storage):
            yield _credit_row(context.config, charge, context.run_date)


def _storages_with_price(config: Config) -> list[StorageConfig]:
    return [storage for storage in config.storages if storage.money is not None]


def _usage(context: RunContext) -> Iterator[Charge]:
    config, storages = context.config, {storage.name: storage for storage in _storages_with_price(context.config)}
    live = dict.fromkeys(storages, 0)
    for item in usage_by_table(context, storages):
        live[item.storage] += item.live.bytes
        of_table = storages[item.storage], config.lake(item.lake), item.table
        expired = item.garbage.get(_EXPIRED)
        garbage = [amount for reason, amount in item.garbage.items() if reason != _EXPIRED]
        yield Charge(*of_table, "live", item.live.files, item.live.bytes)
        if expired is not None:
            yield Charge(*of_table, "expired history", expired.files, expired.bytes)
        if garbage:
            yield Charge(*of_table, "garbage", sum(each.files for each in garbage), sum(each.bytes for each in garbage))
    for name, storage in storages.items():
        for step in breakdown_steps(context.table(ORPHAN_FILES, name).summary(OrphanFilesSummary)):
            if step.label not in _BY_TABLE and step.files:
                yield Charge(storage, None, None, step.label, step.files, step.size_bytes)
            elif step.label == "live" and step.size_bytes > live[name]:
                # Metadata does not record the size of every file. metadata.json is an example.
                yield Charge(storage, None, None, _UNSIZED, 0, step.size_bytes - live[name])
        plan = context.find(DELETION_PLAN, name)
        waiting = load_plan(config, plan).header.quarantined if plan is not None else None
        if waiting is not None and waiting.files and storage.quarantine != "deferred":
            yield Charge(storage, None, None, "quarantine", waiting.files, waiting.bytes)


def _find_purged(context: RunContext, storage: StorageConfig) -> Iterator[Charge]:
    """Sum the files that were purged on the run date, for each lake in the plans of the files."""
    config, state = context.config, State.of(context.config)
    start = datetime.combine(context.run_date, time(), UTC)
    entries = read_log_entries(state, state.history(storage.name, DELETION_LOG.name))
    done = pc.and_(pc.equal(entries.column("phase"), PURGE), pc.equal(entries.column("outcome"), DONE))
    of_day = pc.and_(pc.greater_equal(entries.column("at"), start), pc.less(entries.column("at"), start + _DAY))
    rehearsed = pc.fill_null(entries.column("rehearsal"), False)
    mine = entries.filter(pc.and_(pc.and_(done, of_day), pc.equal(rehearsed, context.clock.is_rehearsal))).select(_NO_ROWS.names)
    plans = {plan.header.plan_id: plan.run for plan in list_plans(config, storage.name, empty=True)}
    found: dict[str | None, tuple[int, int]] = {}
    for plan_id in pc.unique(mine.column("plan_id")).to_pylist():
        rows = mine.filter(pc.equal(mine.column("plan_id"), plan_id))
        paths = state.open(plans[plan_id]).paths() if plan_id in plans else []  # a plan may be pruned
        lakes = [pa.Table.from_batches([batch]) for batch in batches(state, DELETION_PLAN.schema, paths, ["key", "lake"])]
        known = pa.concat_tables(lakes) if lakes else pa.table({"key": pa.array([], pa.string()), "lake": pa.array([], pa.string())})
        summed = rows.join(known, "key").group_by("lake").aggregate([([], "count_all"), ("size_bytes", "sum")])
        for row in summed.to_pylist():
            files, size = found.get(row["lake"], (0, 0))
            found[row["lake"]] = files + row["count_all"], size + (row["size_bytes_sum"] or 0)
    lake_configs = {lake.name: lake for lake in config.lakes}
    for lake, (files, size) in sorted(found.items(), key=lambda item: item[0] or ""):
        yield Charge(storage, lake_configs.get(lake or ""), None, "purged", files, size)


def _usage_row(config: Config, charge: Charge, day: date) -> Row:
    price = _price(charge.storage)
    consumed = (Decimal(charge.size_bytes) / BYTES_PER_GB).quantize(_PRECISION)
    quantity = (consumed / calendar.monthrange(day.year, day.month)[1]).quantize(_PRECISION)
    what = f"table {charge.table}" if charge.table else f"lake {charge.lake.label}" if charge.lake else f"storage {charge.storage.label}"
    sku = f"{charge.storage.label}/storage"
    return {
        **_common(config, charge, day, quantity * price),
        "ChargeCategory": "Usage",
        "ChargeDescription": f"One day of storage: {charge.share} of {what}",
        "ChargeFrequency": "Usage-Based",
        "ConsumedQuantity": _decimal(consumed),
        "ConsumedUnit": "GB-Days",
        "ContractedUnitPrice": _decimal(price),
        "ListUnitPrice": _decimal(price),
        "PricingCategory": "Standard",
        "PricingQuantity": _decimal(quantity),
        "PricingUnit": "GB-Months",
        "SkuId": sku,
        "SkuPriceId": sku,
    }


def _credit_row(config: Config, charge: Charge, day: date) -> Row:
    cost = -(Decimal(charge.size_bytes) / BYTES_PER_GB * _price(charge.storage)).quantize(_PRECISION)
    return {
        **_common(config, charge, day, cost),
        "ChargeCategory": "Credit",
        "ChargeDescription": "Monthly price of the files that gc-assets purged. Not part of an invoice",
        "ChargeFrequency": "One-Time",
    }


def _common(config: Config, charge: Charge, day: date, cost: Decimal) -> Row:
    storage, lake = charge.storage, charge.lake
    start, month = datetime.combine(day, time(), UTC), datetime(day.year, day.month, 1, tzinfo=UTC)
    days = calendar.monthrange(day.year, day.month)[1]
    owners = ", ".join((lake.owners if lake else storage.owners) or config.owners)
    resource = "/".join(part for part in (storage.label, lake.label if lake else None, charge.table) if part)
    return {
        **dict.fromkeys(COLUMNS),
        **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), _decimal(cost)),
        "BillingAccountId": storage.location,
        "BillingAccountName": storage.label,
        "BillingAccountType": "storage",
        "BillingCurrency": "USD",
        "BillingPeriodStart": _time(month),
        "BillingPeriodEnd": _time(month + timedelta(days=days)),
        "ChargePeriodStart": _time(start),
        "ChargePeriodEnd": _time(start + _DAY),
        **dict.fromkeys(("InvoiceIssuerName", "ProviderName", "PublisherName"), _GENERATOR),
        "ResourceId": resource,
        "ResourceName": charge.table or (lake.label if lake else storage.label),
        "ResourceType": "table" if charge.table else "lake" if lake else "storage",
        "ServiceCategory": "Storage",
        "ServiceName": "Data lake storage",
        "ServiceSubcategory": "File Storage" if scheme_of(storage.location) == FILE else "Object Storage",
        **({"SubAccountId": lake.label, "SubAccountName": lake.label, "SubAccountType": "lake"} if lake else {}),
        "Tags": json.dumps(_tags(config, charge, owners), sort_keys=True),
        "x_Files": str(charge.files),
        "x_Owners": owners or None,
        "x_Share": charge.share,
    }


def _tags(config: Config, charge: Charge, owners: str) -> Mapping[str, str]:
    """Combine the tags of `lakes.yaml` with those of gc-assets, which have a prefix."""
    own = {"gc-assets/share": charge.share, "gc-assets/storage": charge.storage.label}
    own |= {"gc-assets/lake": charge.lake.label} if charge.lake else {}
    own |= {"gc-assets/owners": owners} if owners else {}
    return {**config.tags, **(charge.lake.tags if charge.lake else charge.storage.tags), **own}


def _price(storage: StorageConfig) -> Decimal:
    assert storage.money is not None, storage.name  # noqa: S101  (only priced storages have charges)
    return Decimal(str(storage.money.usd_per_gb_month))


def _decimal(value: Decimal) -> str:
    """Format a number without exponent and trailing zeros."""
    text = f"{value:f}"
    return (text.rstrip("0").rstrip(".") or "0") if "." in text else text


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def write_csv(rows: Iterable[Row], out: object) -> int:
    """Write usage and credit rows as CSV with a header. None becomes an empty field.

    Returns:
        The number of rows, without the header.
    """
    import csv

    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")  # pyright: ignore[reportArgumentType]
    writer.writeheader()
    count = 0
    for row in rows:
        writer.writerow({name: "" if value is None else value for name, value in row.items()})
        count += 1
    return count
