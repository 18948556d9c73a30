"""Resolve relative paths in `lakes.yaml` against the directory of the file."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from gc_assets.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class BaseFolder:
    """The base directory of relative paths.

    Attributes:
        folder: The directory of `lakes.yaml`.
        key: Path of the part of the file whose paths are resolved, such as `lakes[2]`, for error
            messages.
    """

    folder: Path
    key: str = ""

    def for_key(self, key: str) -> BaseFolder:
        """Return the same directory for another part of the file."""
        return BaseFolder(self.folder, key)

    def absolute(self, location: str, key: str) -> str:
        """Resolve a relative path. Absolute paths and URLs are returned unchanged.

        Raises:
            UsageError: If the location is a `file:` address without an absolute path.
        """
        where = f"{self.key}.{key}" if self.key else key
        if re.match(r"^file:(?!/)", location):
            raise UsageError(f"{where}: {location!r} is relative; write a path relative to {self.folder} without file:, or file:///…")
        if location.startswith("/") or re.match(r"^[A-Za-z][A-Za-z0-9+.-]*:", location):
            return location
        return os.path.normpath(self.folder / location)
