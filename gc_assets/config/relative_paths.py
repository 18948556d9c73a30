"""Resolve relative paths in `lakes.yaml` against its directory."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from gc_assets.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class BaseFolder:
    """Directory of the file, and the key to resolve, e.g. `lakes[2]`. Error messages contain both."""

    folder: Path
    key: str = ""

    def for_key(self, key: str) -> BaseFolder:
        """Return the same directory for another key."""
        return BaseFolder(self.folder, key)

    def absolute(self, location: str, key: str) -> str:
        """Make a relative path absolute. Absolute paths and addresses are returned unchanged.

        Raises:
            UsageError: For a relative `file:` address.
        """
        where = f"{self.key}.{key}" if self.key else key
        if re.match(r"^file:(?!/)", location):
            raise UsageError(f"{where}: {location!r} is relative; write a bare path, which counts from {self.folder}, or file:///…")
        if location.startswith("/") or re.match(r"^[A-Za-z][A-Za-z0-9+.-]*:", location):
            return location
        return os.path.normpath(self.folder / location)
