"""Define the receipts of published tables, which list their parts, counts and inputs."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, ClassVar

from pydantic import Field, ValidationError

from gc_assets.core.deferred_models import StrictModel
from gc_assets.core.deprecation import RenamedAttribute
from gc_assets.core.renamed_keys import RenamedKeys
from gc_assets.state.schemas import SCHEMA_VERSION


class PartFile(StrictModel):
    """A Parquet file of a table. Its name is relative to the directory of the run."""

    name: str
    rows: int
    size_bytes: int
    sha256: str


class Balance(StrictModel):
    """A check for completeness, which compares an expected with an actual count."""

    name: str
    expected: int
    found: int


class Receipt(RenamedKeys, StrictModel):
    """The receipt of a published table.

    Attributes:
        digest: Sum of the row hashes modulo 2^64, which does not depend on the order of rows.
        side: Side tables of the run by directory name. Readers of the main table ignore these
            directories.
        inputs: References to the receipts of input tables, by path.
        balances: Checks for completeness.
        summary: Statistics of the stage, see `summaries.py`.
        unsafe: Safety limits lowered by the environment.
        sequence_number: The position among all publications of the table in their actual order,
            regardless of the clocks of hosts. 0 before release 0.4.
    """

    RENAMED: ClassVar = {"facts": "summary"}

    schema_version: int = SCHEMA_VERSION
    group: str
    asset: str
    run_date: date
    run_id: str
    created_at: datetime
    rows: int
    size_bytes: int
    digest: str
    files: tuple[PartFile, ...]
    side: dict[str, tuple[PartFile, ...]] = Field(default_factory=dict[str, tuple[PartFile, ...]])
    inputs: dict[str, str] = Field(default_factory=dict[str, str])
    balances: tuple[Balance, ...] = ()
    summary: dict[str, Any] = Field(default_factory=dict[str, Any])
    unsafe: tuple[str, ...] = ()
    sequence_number: int = 0

    facts = RenamedAttribute("summary")

    @property
    def owner(self) -> str:
        """The lake or storage that owns the table, even if an apply published it (`_recheck/`)."""
        return self.group.rpartition("/")[2]

    @property
    def order(self) -> tuple[int, datetime]:
        """Sort key for the publications of one table. Before release 0.4, only times are known."""
        return self.sequence_number, self.created_at

    @property
    def parts(self) -> tuple[PartFile, ...]:
        """All Parquet files, including files of side tables."""
        return (*self.files, *(part for parts in self.side.values() for part in parts))

    @property
    def reference(self) -> str:
        """The reference to this receipt in the receipts of later tables."""
        return f"{self.run_id}:{self.digest}"


def invalid_keys(error: ValidationError) -> str:
    """List the invalid or missing keys of a document, for messages."""
    return ", ".join(".".join(map(str, item["loc"])) for item in error.errors())
