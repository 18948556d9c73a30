"""The write-ahead log of a plan's execution: what was about to happen, then what happened, readable without our code.

`log.json` names the plan; each batch has `share-<n>/<batch>.intent.jsonl`, written before its first action, and `<batch>.outcome.jsonl`,
written after its last: one JSON object a line. A key belongs to a share by its hash, so that what is known of it is found again however the
plan is cut into batches. Knows no store and no clock.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, TypeVar

import xxhash

from gc_assets.core.errors import StateError
from gc_assets.core.files import Files
from gc_assets.core.hashing import SPARK_SEED
from gc_assets.stores.protocol import DENIED, DONE, FAILED, VERDICTS, Outcome, Planned

# A share's history is held in memory when a plan is resumed: about 50 MB.
KEYS_PER_SHARE = 50_000
_Row = TypeVar("_Row")
_INTENT = ".intent.jsonl"
_OUTCOME = ".outcome.jsonl"


def share_of(key: str, shares: int) -> int:
    """Equals Spark's `pmod(xxhash64(key), shares)`."""
    unsigned = xxhash.xxh64_intdigest(key.encode(), seed=SPARK_SEED)
    return (unsigned - (1 << 64) if unsigned >= 1 << 63 else unsigned) % shares


@dataclass(frozen=True, slots=True)
class History:
    """What earlier runs wrote of a share. `settled` are final outcomes; `interrupted` keys whose last known batch never got its outcome."""

    settled: Mapping[tuple[str, str], Outcome]
    interrupted: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class WriteAheadLog:
    """The log of one plan in `directory` of the state. Pickles; its files are only ever added."""

    files: Files
    directory: str
    plan_id: str
    shares: int

    def history(self, share: int) -> History:
        """Raises `StateError` naming a file that cannot be understood."""
        names = {stat.name for stat in self.files.list(self._share(share))}
        settled: dict[tuple[str, str], Outcome] = {}
        interrupted: set[tuple[str, str]] = set()
        for name in sorted(names):
            if name.endswith(_OUTCOME):
                outcomes = self._read(share, name, _outcome)
                settled |= {(o.planned.action, o.planned.key): o for o in outcomes if o.verdict != FAILED}
            elif name.endswith(_INTENT) and name.removesuffix(_INTENT) + _OUTCOME not in names:
                interrupted |= {(planned.action, planned.key) for planned in self._read(share, name, _planned)}
        return History(settled, frozenset(interrupted))

    def quarantined(self, share: int) -> Iterator[tuple[Planned, datetime | None]]:
        """What this log moved to quarantine, or may have: with the time of a known move, null where it is not known."""
        names = [stat.name for stat in self.files.list(self._share(share)) if stat.name.endswith(_INTENT)]
        history = self.history(share)
        for key, planned in {row.key: row for name in names for row in self._read(share, name, _planned)}.items():
            row = planned.action, key
            settled = history.settled.get(row)
            if planned.action != "quarantine":
                continue
            if settled is None or (settled.verdict == DENIED and row in history.interrupted):
                yield planned, None
            elif settled.verdict == DONE:
                yield planned, settled.at

    def intend(self, share: int, token: int, batch: Sequence[Planned]) -> str:
        """The batch's name, once its intent is on disk. `token` is the fencing token under which it will act."""
        name = f"{token:06d}-{uuid.uuid4().hex}"
        self._write(share, name + _INTENT, map(_row, batch))
        return name

    def conclude(self, share: int, name: str, outcomes: Sequence[Outcome]) -> None:
        rows = (_row(o.planned) | {"outcome": o.verdict, "error": o.error, "at": o.at.isoformat()} for o in outcomes)
        self._write(share, name + _OUTCOME, rows)

    def _share(self, share: int) -> str:
        return f"{self.directory}/share-{share:05d}"

    def _write(self, share: int, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        self.files.replace(f"{self._share(share)}/{name}", "".join(json.dumps(row) + "\n" for row in rows).encode())

    def _read(self, share: int, name: str, parse: Callable[[dict[str, Any]], _Row]) -> list[_Row]:
        path = f"{self._share(share)}/{name}"
        try:
            return [parse(json.loads(line)) for line in self.files.read(path).splitlines()]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"{path} in the state is no log of a batch ({error!r}); restore it from a backup before applying the plan"
            ) from error


def open_log(files: Files, directory: str, plan_id: str, planned: int) -> WriteAheadLog:
    """The plan's log, begun if there is none. Called under the storage's lease, before executors use it.

    Raises `StateError` where the directory holds the log of another plan.
    """
    path = f"{directory}/log.json"
    try:
        header: dict[str, Any] = json.loads(files.read(path))
    except FileNotFoundError:
        header = {"plan_id": plan_id, "shares": max(1, -(-planned // KEYS_PER_SHARE))}
        files.replace(path, json.dumps(header).encode())
    except ValueError as error:
        raise StateError(f"{path} in the state is no header of a log: {error}") from error
    if header.get("plan_id") != plan_id or not isinstance(header.get("shares"), int):
        raise StateError(f"{path} in the state: expected the log of plan {plan_id}, found {header}")
    return WriteAheadLog(files, directory, plan_id, header["shares"])


_COLUMNS = tuple(field.name for field in fields(Planned))


def _row(planned: Planned) -> dict[str, Any]:
    return {name: getattr(planned, name) for name in _COLUMNS}


def _planned(row: dict[str, Any]) -> Planned:
    return Planned(**row)


def _outcome(row: dict[str, Any]) -> Outcome:
    verdict, error, at = row.pop("outcome"), row.pop("error"), datetime.fromisoformat(row.pop("at"))
    if verdict not in VERDICTS:
        raise ValueError(f"expected one of {', '.join(VERDICTS)}, found {verdict!r}")
    return Outcome(Planned(**row), verdict, error, at)
