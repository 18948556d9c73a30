"""One comparison: the nights of a lake by us, cold and warm, first and second, and the peer's passes over the same directory."""

from __future__ import annotations

import json
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
OURS: Final = [sys.executable, "-m", "benchmarks.night"]


@dataclass(frozen=True, slots=True)
class Measured:
    """One night or pass. `cold` counts from the start of the process, warm from the request. `requests` are those to the lake's store by
    kind, where they are known.
    """

    who: str
    night: str
    cold: bool
    wall: float
    cpu: float
    answer: dict[str, Any]
    requests: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class Passes:
    """Which passes are made beside our first night, cold, and our second one.

    `peer` asks the peer too, as often as us. Without `peer_warm` it is asked cold only, and without
    `cold_second` our second night is done warm only.
    """

    peer: bool = False
    warm: bool = True
    peer_warm: bool = True
    cold_second: bool = True


class Subject:
    """A lake of one kind and size, and how its peer is asked about it."""

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

    def changed(self) -> AbstractContextManager[datetime]:
        """The lake with one percent more, a day later."""
        lakes: Any = {"iceberg": iceberg_lake, "icechunk": icechunk_lake, "nessie": nessie_lake}[self.kind]
        return lakes.changed(self.lake, lakes.SIZES[self.size])

    def running(self) -> AbstractContextManager[None]:
        """What has to run while the lake is asked: the server of a Nessie lake."""
        return self.lake.running() if self.kind == "nessie" else nullcontext()

    def config(self, state: Path) -> dict[str, Any]:
        return self.lake.config(state)

    def requests(self) -> dict[str, int]:
        """Requests to the lake's store since the last call, by kind. Nobody counts them on a disk."""
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


def compare(kind: str, size: str, cache: Path, passes: Passes, launcher: Path | None = None) -> list[Measured]:
    """First and second night, cold, and where asked for once more in a session that has done a night before. `launcher` is nessie-gc's.

    Raises `RuntimeError` where the peer finds another number of unreferenced files than we do: then one of us is wrong. Ours may be
    smaller by what the live filter keeps by mistake until another night's seed, about one dead file in a million.
    """
    return nights_of(Subject(kind, size, cache, launcher), cache, passes)


def nights_of(subject: Subject, cache: Path, passes: Passes) -> list[Measured]:
    cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="run-") as directory, subject.running():
        found = _nights(subject, Path(directory), passes)
    for night in {item.night for item in found}:
        mine = [item for item in found if item.night == night]
        counts = {f"{item.who} {'cold' if item.cold else 'warm'}": item.answer["unreferenced"] for item in mine}
        ours = {item.answer["unreferenced"] for item in mine if item.who != "peer"}
        theirs = {item.answer["unreferenced"] for item in mine if item.who == "peer"} - {None}
        mistaken = 1 + max(item.answer.get("live_files", 0) for item in mine) // 1_000_000
        if len(ours) > 1 or any(not 0 <= number - min(ours) <= mistaken for number in theirs):
            raise RuntimeError(
                f"{subject.kind} {subject.size}, {night} night: unreferenced files found: {counts}; expected the same number"
            )
    return found


def _nights(subject: Subject, directory: Path, passes: Passes) -> list[Measured]:
    found: list[Measured] = []

    def ours(resident: Resident, state: str, night: str, now: datetime, *, cold: bool) -> None:
        config = directory / f"{state}.yaml"
        config.write_text(json.dumps(subject.config(directory / state)))
        answer = resident.ask({"config": str(config), "now": now.isoformat()})
        found.append(_measured("gc-assets", night, cold, answer, subject.requests()))

    def theirs(resident: Resident, night: str, now: datetime, *, cold: bool) -> None:
        answer = resident.ask(subject.peer_request(now))
        found.append(_measured("peer", night, cold, answer, subject.requests()))

    def peers(night: str, now: datetime) -> None:
        if passes.peer:
            with Resident(subject.peer_command(), directory / "peer.log") as resident:
                theirs(resident, night, now, cold=True)
                if passes.warm and passes.peer_warm:
                    theirs(resident, night, now, cold=False)

    with Resident(OURS, directory / "warm.log") if passes.warm else nullcontext() as session:
        if session is None:
            with Resident(OURS, directory / "first.log") as once:
                ours(once, "cold", "first", subject.now, cold=True)
        else:
            ours(session, "cold", "first", subject.now, cold=True)
            ours(session, "warm", "first", subject.now, cold=False)
        peers("first", subject.now)
        with subject.changed() as later:
            if session is not None:
                ours(session, "warm", "second", later, cold=False)
            if passes.cold_second:
                with Resident(OURS, directory / "second.log") as once:
                    ours(once, "cold", "second", later, cold=True)
            peers("second", later)
    return found


def _measured(who: str, night: str, cold: bool, answer: dict[str, Any], requests: dict[str, int]) -> Measured:
    wall = answer["since_start"] if cold else answer["total"]["wall"]
    cpu = answer["cpu_since_start"] if cold else answer["total"]["cpu"]
    return Measured(who, night, cold, wall, cpu, answer, requests)
