"""Support old names of public Python attributes."""

from __future__ import annotations

import warnings
from typing import Any, Final

# The first release without the names that were replaced in 0.4.
REMOVED_IN: Final = "0.5.0"


# This is a property because pydantic rejects other attributes without a type.
class RenamedAttribute(property):
    """A deprecated, read-only alias of an attribute or method. Its use causes a warning."""

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
    """Issue a deprecation warning that points to the caller's caller."""
    message = f"`{old}` was renamed to `{new}`; the old name is removed in gc-assets {REMOVED_IN}"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
