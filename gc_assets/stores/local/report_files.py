"""Inventory reports that are stored on a disk."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gc_assets.core.regular_files import open_regular
from gc_assets.stores.local.objects import LocalObjects, local_path


@dataclass(frozen=True, slots=True)
class LocalReportFiles:
    """Implements `ReportFiles` for a disk.

    In a Spark cluster, executors on all machines read the reports, so the machines must share the
    disk.
    """

    def folders(self, location: str) -> list[str]:
        with os.scandir(local_path(location)) as entries:
            return [f"{entry.name}/" for entry in entries if entry.is_dir()]

    def files(self, location: str) -> dict[str, int]:
        root = Path(local_path(location))
        return {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file()}

    def read(self, address: str) -> bytes:
        return LocalObjects().read(address)

    def copy(self, address: str, into: IO[bytes]) -> None:
        with open_regular(local_path(address)) as source:
            shutil.copyfileobj(source, into)
