"""Recorded repositories of spec version 2, with what the library reported about each (tests/data/icechunk/README.md)."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.archives import unpack

DATA = Path(__file__).parents[3] / "data" / "icechunk"
BY_SCRIPT = ("document", "document-upgraded", "random-1", "random-8", "random-11", "settings", "virtual-chunks")
ARCHIVES = {
    "v2-by-2.0.tar.xz": ("expire-repo-v2-by-2.0.5", "test-repo-v2", *(f"{name}-by-2.0.5" for name in BY_SCRIPT)),
    "v2-by-2.3.tar.xz": (
        "branch-tag-and-open-session",
        "expired-and-collected",
        "expired-twice",
        "split-manifests-and-amend",
        "upgraded",
        "upgraded-v1-files-kept",
        *BY_SCRIPT,
    ),
}
ARCHIVE_OF = {name: archive for archive, names in ARCHIVES.items() for name in names}
NAMES = tuple(ARCHIVE_OF)


@dataclass(frozen=True)
class Recording:
    """An unpacked repository.

    Attributes:
        path: The root of the repository.
        verdict: The report of library 2.3.0: `repo` (inspect_repo_info), `ancestry` of each ref, `snapshots` (manifests, virtual
            locations), `manifests` (number of refs by type), `garbage` (a dry run of garbage_collect with a cut-off in the future).
    """

    path: Path
    verdict: dict[str, Any]


def unpack_recording(name: str, folder: Path, at: datetime | None = None) -> Recording:
    """Unpack a repository of `NAMES` into a new directory of `folder`. All its files get the modification time `at`."""
    unpack(DATA / ARCHIVE_OF[name], folder)
    recording = _read(name, folder)
    if at is not None:
        for file in recording.path.rglob("*"):
            os.utime(file, (at.timestamp(), at.timestamp()))
    return recording


def unpack_recordings(folder: Path) -> dict[str, Recording]:
    """Unpack all repositories of `NAMES`, each archive once."""
    for archive in ARCHIVES:
        unpack(DATA / archive, folder)
    return {name: _read(name, folder) for name in NAMES}


def _read(name: str, folder: Path) -> Recording:
    return Recording(folder / name / "repo", json.loads((folder / name / "verdict.json").read_text()))
