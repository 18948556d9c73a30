"""The kinds of report that a store of this release can use. What reads them is imported when it is
asked for, not before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gc_assets.core.paths import S3

if TYPE_CHECKING:
    from gc_assets.stores.inventories.readers import Reading


@dataclass(frozen=True, slots=True)
class ReportKind:
    """A kind of report. `about` is the scheme of the storages that such reports are about, and
    `reading` tells how they are read.
    """

    about: str
    reading: Callable[[], Reading]


def _of_s3() -> Reading:
    from gc_assets.stores.inventories.readers import OF_S3

    return OF_S3


def _of_ones_own() -> Reading:
    from gc_assets.stores.inventories.readers import OF_ONES_OWN

    return OF_ONES_OWN


# By the names that they have in lakes.yaml.
KINDS: Final[dict[str, ReportKind]] = {"s3": ReportKind(S3, _of_s3), "plain": ReportKind(S3, _of_ones_own)}
