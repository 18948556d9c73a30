"""Format numbers for Dagster's asset metadata, for example as `1.23 GB`.

The raw numbers are part of the metadata as well, since Dagster can plot them over the partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import dagster as dg

from gc_assets.core.units import format_bytes

# Maps names to numbers. The names are stable because users plot them, and most end in their unit.
Figures = Mapping[str, int | float]

# Units for the names that do not end in one.
_UNITS: Final = {"gates_failed": "gates", "not_files": "objects", "uploads_to_abort": "uploads", "bits_per_key": "bits per key"}
_SHARES: Final = frozenset({"false_positive_rate_measured"})


def format_figure(name: str, value: float) -> str:
    """Format a number by its name, for example as `12 files`, `1.23 GB`, `0.012 %` or `0.0045 USD`."""
    parts = name.split("_")
    if "bytes" in parts:
        return format_bytes(int(value))
    if parts[-1] == "usd":
        return f"{value:,.2g} USD" if abs(value) < 1 else f"{value:,.2f} USD"
    if name in _SHARES:
        return f"{100 * value:.2g} %"
    unit = _UNITS.get(name, parts[-1])
    return f"{value:,} {unit.removesuffix('s') if value == 1 else unit}"


def figures_table(figures: Figures) -> dg.TableMetadataValue:
    """Format named numbers as a Dagster table."""
    records = [dg.TableRecord({"figure": name.replace("_", " "), "amount": format_figure(name, value)}) for name, value in figures.items()]
    return dg.MetadataValue.table(records, dg.TableSchema(columns=[dg.TableColumn("figure"), dg.TableColumn("amount")]))
