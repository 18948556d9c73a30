"""Makes the relative paths of `lakes.yaml` count from the folder in which the file lies."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from gc_assets.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Anchor:
    """The folder of the file, and the place in it (`lakes[2]`) whose paths are read. Errors name
    both.
    """

    folder: Path
    place: str = ""

    def at(self, place: str) -> Anchor:
        """Returns the same folder, for the keys of one place of the file."""
        return Anchor(self.folder, place)

    def absolute(self, location: str, key: str) -> str:
        """Returns an absolute path or an address as it is, and a relative path below the folder.
        Raises `UsageError` naming the key for a `file:` address that is relative.
        """
        where = f"{self.place}.{key}" if self.place else key
        if re.match(r"^file:(?!/)", location):
            raise UsageError(f"{where}: {location!r} is relative; write a bare path, which counts from {self.folder}, or file:///…")
        if location.startswith("/") or re.match(r"^[A-Za-z][A-Za-z0-9+.-]*:", location):
            return location
        return os.path.normpath(self.folder / location)
