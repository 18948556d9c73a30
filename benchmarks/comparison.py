"""Compare the runs of one lake by gc-assets with those of its peer on the same directory.

Runs are cold or warm, first or second.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from benchmarks import iceberg_lake, icechunk_lake, nessie_lake, peer_iceberg, peer_nessie
from benchmarks.resident import Resident

GRACE: Final = timedelta(hours=72)
RUN_PROGRAM: Final = [sys.executable, "-m", "benchmarks.run_stages"]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A run of gc-assets or its peer.

    A cold run counts from the start of the process, a warm one from the request. `requests` counts
    the requests to the store of the lake by kind, if they are known.
    """

    tool: str
    run: str
    cold: bool
    wall: float
    cpu: float
    answer: dict[str, Any]
    requests: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes to make in addition to our first run (cold) and our second run.

    `peer` also measures the peer, as often as gc-assets. Without `peer_warm` the peer is measured
    only cold. Without `cold_second` our second run is measured only warm. `unlisted` also measures
    a cold second run of ours without a listing of the storage.
    """

    peer: bool = False
    warm: bool = True
    peer_warm: bool = True
    cold_second: bool = True
    unlisted: bool = False


class Subject:
    """A lake of one kind and size, and the requests to its peer."""

    def __init__(self, kind: str, size: str, cache: Path, launcher: Path | None = None) -> None:
        self.kind, self.size, self._cache, self._launcher = kind, size, cache, launcher
        if kind == "iceberg":
            self.lake: Any = iceberg_lake.ensure_lake(cache, size)
            self.now = iceberg_lake.NOW
        elif kind == "nessie":
            self.lake = nessie_lake.ensure_lake(cache, size)
            self.now = nessie_lake.NOW
        else:
            self.lake = icechunk_lake.ensure_lake(cache, size)
            self.now = self.lake.now()

    def add_one_percent(self) -> AbstractContextManager[datetime]:
        """Add one percent to the lake, one day later."""
        lakes: Any = {"iceberg": iceberg_lake, "icechunk": icechunk_lake, "nessie": nessie_lake}[self.kind]
        return lakes.add_one_percent(self.lake, lakes.SIZES[self.size])

    def running(self) -> AbstractContextManager[None]:
        """Run the server if the lake needs one, as Nessie lakes do."""
        return self.lake.running() if self.kind == "nessie" else nullcontext()

    def config(self, state: Path) -> dict[str, Any]:
        return self.lake.config(state)

    def requests(self) -> dict[str, int]:
        """Return the requests to the store of the lake since the last call, by kind. Empty on a
        local disk.
        """
        return {}

    def peer_command(self) -> Sequence[str]:
        if self._launcher is not None:
            return peer_nessie.command(self._launcher)
        if self.kind == "iceberg":
            return [str(peer_iceberg.ensure_environment(self._cache)), "-m", "benchmarks.peer_iceberg"]
        return [sys.executable, "-m", "benchmarks.peer_icechunk"]

    def peer_request(self, now: datetime) -> dict[str, Any]:
        older_than = now - GRACE
        if self.kind == "nessie":
            return {"uri": self.lake.server.uri, "older_than": older_than.isoformat().replace("+00:00", "Z")}
        if self.kind == "icechunk":
            return {"repository": str(self.lake.repository), "older_than": older_than.isoformat()}
        return {
            "catalog_file": str(self.lake.catalog_file),
            "catalog_name": iceberg_lake.CATALOG_NAME,
            "warehouse": f"file://{self.lake.warehouse}",
            "tables": self.lake.table_names(),
            "older_than": f"{older_than:%Y-%m-%d %H:%M:%S}",
        }


def compare(kind: str, size: str, cache: Path, required_passes: Passes, launcher: Path | None = None) -> list[Measurement]:
    """Measure the first and the second run, cold, and warm if requested.

    Args:
        launcher: The launcher of nessie-gc.

    Raises:
        RuntimeError: If gc-assets and the peer find different numbers of unreferenced files. Ours
            may be smaller by the false positives of the live filter, about one dead file in a
            million.
    """
    return measure_subject(Subject(kind, size, cache, launcher), cache, required_passes)


def measure_subject(subject: Subject, cache: Path, required_passes: Passes) -> list[Measurement]:
    """Measure the passes of a subject, and compare the numbers of unreferenced files.

    Raises:
        RuntimeError: As in `compare`.
    """
    cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="run-") as directory, subject.running():
        found = _measure_runs(subject, Path(directory), required_passes)
    for run in {item.run for item in found}:
        mine = [item for item in found if item.run == run]
        counts = {f"{item.tool} {'cold' if item.cold else 'warm'}": item.answer["unreferenced"] for item in mine}
        ours = {item.answer["unreferenced"] for item in mine if item.tool != "peer"}
        theirs = {item.answer["unreferenced"] for item in mine if item.tool == "peer"} - {None}
        mistaken = 1 + max(item.answer.get("live_files", 0) for item in mine) // 1_000_000
        if len(ours) > 1 or any(not 0 <= number - min(ours) <= mistaken for number in theirs):
            raise RuntimeError(f"{subject.kind} {subject.size}, {run} run: unreferenced files found: {counts}; expected the same number")
    return found


def _measure_runs(subject: Subject, directory: Path, required_passes: Passes) -> list[Measurement]:
    found: list[Measurement] = []

    def ours(resident: Resident, state: str, run: str, now: datetime, *, cold: bool, listing: dict[str, str] | None = None) -> None:
        config, document = directory / f"{state}.yaml", subject.config(directory / state)
        if listing is not None:
            document["storages"][0]["listing"] = listing
        config.write_text(json.dumps(document))
        answer = resident.ask({"config": str(config), "now": now.isoformat()})
        found.append(_build_measurement("gc-assets", run, cold, answer, subject.requests()))

    def theirs(resident: Resident, run: str, now: datetime, *, cold: bool) -> None:
        answer = resident.ask(subject.peer_request(now))
        found.append(_build_measurement("peer", run, cold, answer, subject.requests()))

    def peers(run: str, now: datetime) -> None:
        if required_passes.peer:
            with Resident(subject.peer_command(), directory / "peer.log") as resident:
                theirs(resident, run, now, cold=True)
                if required_passes.warm and required_passes.peer_warm:
                    theirs(resident, run, now, cold=False)

    with Resident(RUN_PROGRAM, directory / "warm.log") if required_passes.warm else nullcontext() as session:
        if session is None:
            with Resident(RUN_PROGRAM, directory / "first.log") as resident:
                ours(resident, "cold", "first", subject.now, cold=True)
        else:
            ours(session, "cold", "first", subject.now, cold=True)
            ours(session, "warm", "first", subject.now, cold=False)
        peers("first", subject.now)
        if required_passes.unlisted:
            shutil.copytree(directory / "cold", directory / "unlisted")
        with subject.add_one_percent() as later:
            if session is not None:
                ours(session, "warm", "second", later, cold=False)
            if required_passes.cold_second:
                with Resident(RUN_PROGRAM, directory / "second.log") as resident:
                    ours(resident, "cold", "second", later, cold=True)
            if required_passes.unlisted:
                with Resident(RUN_PROGRAM, directory / "unlisted.log") as resident:
                    ours(resident, "unlisted", "unlisted", later, cold=True, listing={"every": "7d"})
            peers("second", later)
    return found


def _build_measurement(tool: str, run: str, cold: bool, answer: dict[str, Any], requests: dict[str, int]) -> Measurement:
    wall = answer["since_start"] if cold else answer["total"]["wall"]
    cpu = answer["cpu_since_start"] if cold else answer["total"]["cpu"]
    return Measurement(tool, run, cold, wall, cpu, answer, requests)
