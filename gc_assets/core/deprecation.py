"""Old names of public Python attributes."""

from __future__ import annotations

import warnings
from typing import Any, Final

# First release without the names that 0.4 replaced.
REMOVED_IN: Final = "0.5.0"


# A property, because pydantic rejects other attributes without a type.
class RenamedAttribute(property):
    """Read-only deprecated name of an attribute or method, which warns and is not part of dumps."""

    def __init__(self, new: str) -> None:
        super().__init__(doc=f"Deprecated: use `{new}`.")
        self._new = new

    def __set_name__(self, owner: type, name: str) -> None:
        self._old = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        warn_renamed_attribute(f"{type(instance).__name__}.{self._old}", self._new)
        return getattr(instance, self._new)


def warn_renamed_attribute(old: str, new: str) -> None:
    """Warn the caller's caller that it uses a deprecated name."""
    message = f"`{old}` was renamed to `{new}`; the old name is removed in gc-assets {REMOVED_IN}"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
