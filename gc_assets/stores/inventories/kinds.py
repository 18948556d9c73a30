"""The kinds of inventory reports that are supported. Their readers are imported lazily."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gc_assets.core.paths import AZURE, GCS, S3

if TYPE_CHECKING:
    from gc_assets.stores.inventories.readers import ReportReader


@dataclass(frozen=True, slots=True)
class ReportKind:
    """A kind of inventory report.

    Attributes:
        about: The URL scheme of the storages that such a report can describe.
        open_reader: Imports and returns a reader for such reports.
    """

    about: str
    open_reader: Callable[[], ReportReader]


def _s3_reader() -> ReportReader:
    from gc_assets.stores.inventories.readers import S3_REPORTS

    return S3_REPORTS


def _plain_reader() -> ReportReader:
    from gc_assets.stores.inventories.readers import PLAIN_REPORTS

    return PLAIN_REPORTS


def _azure_reader() -> ReportReader:
    from gc_assets.stores.inventories.readers import AZURE_REPORTS

    return AZURE_REPORTS


def _gcs_reader() -> ReportReader:
    from gc_assets.stores.inventories.readers import GCS_REPORTS

    return GCS_REPORTS


# By their names in lakes.yaml.
KINDS: Final[dict[str, ReportKind]] = {
    "s3": ReportKind(S3, _s3_reader),
    "plain": ReportKind(S3, _plain_reader),
    "azure": ReportKind(AZURE, _azure_reader),
    "gcs": ReportKind(GCS, _gcs_reader),
}
