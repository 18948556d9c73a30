"""The quarantines that a directory can have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gc_assets.stores.protocol import QuarantineMode

QUARANTINES: Final[tuple[QuarantineMode, ...]] = ("trash", "deferred")
