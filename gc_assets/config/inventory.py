"""Reports that take the place of a storage's listing (`inventory:` of a storage in `lakes.yaml`)."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, Literal

from pydantic import Field

from gc_assets.config.values import Age, Model

# A daily report is up to two days old when it arrives, and one may fail to come.
MAX_INVENTORY_AGE: Final = timedelta(days=3)


class InventoryConfig(Model):
    """Where the reports about a storage are delivered, and how old one may be."""

    kind: Literal["s3", "plain", "azure", "gcs"] = Field(description="Whose layout the reports have.")
    location: str = Field(description="The folder that holds one folder for each report, named by the time of its scan.")
    max_inventory_age: Age = Field(default=MAX_INVENTORY_AGE, description="The newest report may be so old. An older one is refused.")
