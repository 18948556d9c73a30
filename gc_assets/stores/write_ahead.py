"""The write-ahead log of a plan's execution: what was about to happen, then what happened. It can
be read without our code.

`log.json` names the plan. Each batch has two files with one JSON object a line:
`share-<n>/<batch>.intent.jsonl`, written before its first action, and `<batch>.outcome.jsonl`,
written after its last. A key belongs to a share by its hash, so its records can be looked up
however the plan is cut into batches. Knows no store and no clock.
"""

from __future__ import annotations

import json
import re
import socket
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, TypeVar

import xxhash

from gc_assets.core.documents import parse_json
from gc_assets.core.errors import StateError
from gc_assets.core.hashing import SPARK_SEED
from gc_assets.core.phases import DENIED, DONE, FAILED, QUARANTINE, VERDICTS, Action
from gc_assets.state.files import Files
from gc_assets.stores.protocol import Outcome, PlannedAction

# A share's history is held in memory when a plan is resumed: about 50 MB.
KEYS_PER_SHARE = 50_000
_Row = TypeVar("_Row")
# Action, key and version.
Act = tuple[Action, str, str | None]
_INTENT = ".intent.jsonl"
_OUTCOME = ".outcome.jsonl"
_ROWS = re.compile(r"-[0-9a-f]{32}-([0-9]+)\.outcome\.jsonl$")


def share_of(key: str, shares: int) -> int:
    """Returns the share of a key, which equals Spark's `pmod(xxhash64(key), shares)`."""
    unsigned = xxhash.xxh64_intdigest(key.encode(), seed=SPARK_SEED)
    return (unsigned - (1 << 64) if unsigned >= 1 << 63 else unsigned) % shares


@dataclass(frozen=True, slots=True)
class ShareHistory:
    """What earlier runs wrote of a share, by `PlannedAction.act`.

    `settled` are final outcomes. `interrupted` are the acts of every batch that never got its
    outcome, and those that failed, even if a later batch settled them: an answer may have been lost
    after the store had acted. Where two attempts settled an act, what was done counts. `begun` names
    all batches.
    """

    settled: Mapping[Act, Outcome]
    interrupted: frozenset[Act]
    batches: frozenset[str]


@dataclass(frozen=True, slots=True)
class WriteAheadLog:
    """The log of one plan in `directory` of the state. Pickles. Files are only ever added to it."""

    files: Files
    directory: str
    plan_id: str
    shares: int

    def require_visible(self) -> None:
        """Raises `StateError` where this process does not see the log: on a machine that has another
        disk at the state's path, what is moved there would stand in no book.
        """
        path = f"{self.directory}/log.json"
        try:
            _require_of(path, parse_json(self.files.read(path)), self.plan_id)
        except FileNotFoundError:
            raise StateError(
                f"{self.files.root}/{path} is not to be seen on {socket.gethostname()}, where files of plan {self.plan_id} are to be acted "
                "on: nothing was touched there. `state` must be one place for all machines, such as s3://bucket/prefix (docs/clusters.md)"
            ) from None

    def read_history(self, share: int) -> ShareHistory:
        """Returns the record of a share. Raises `StateError` naming a file that cannot be
        understood.
        """
        names = {stat.name for stat in self.files.list(self._share(share))}
        settled: dict[Act, Outcome] = {}
        interrupted: set[Act] = set()
        for name in sorted(names):
            if name.endswith(_OUTCOME):
                outcomes = self._read(share, name, _outcome)
                settled |= {
                    o.planned.action_key: o for o in outcomes if o.verdict != FAILED and not _is_done(settled.get(o.planned.action_key))
                }
                interrupted |= {o.planned.action_key for o in outcomes if o.verdict == FAILED}
            elif name.endswith(_INTENT) and name.removesuffix(_INTENT) + _OUTCOME not in names:
                interrupted |= {planned.action_key for planned in self._read(share, name, _planned)}
        return ShareHistory(settled, frozenset(interrupted), _batches(names))

    def refuse_concurrent_batches(self, share: int, known: Collection[str]) -> None:
        """Raises `StateError` where a batch of the share was begun that is not `known`: another
        attempt of the same work began since this one read the log. What came of either is for a later
        attempt to find out, which sees both intents.
        """
        others = _batches(stat.name for stat in self.files.list(self._share(share))) - set(known)
        if others:
            raise StateError(
                f"{self._share(share)}: another attempt of this work began {min(others)} meanwhile, as where an executor was given up "
                "that still runs; the work is tried again, or apply the plan again"
            )

    def count_outcomes(self) -> int:
        """Returns how many outcomes are on record, by the names of their batches. Those of releases
        before 0.4 do not tell, and count as none.
        """
        listed = self.files.list(self.directory, recursive=True)
        counts = [_ROWS.search(stat.name) for stat in listed if stat.name.endswith(_OUTCOME)]
        return sum(int(found[1]) for found in counts if found is not None)

    def read_quarantined(self, share: int) -> Iterator[tuple[PlannedAction, Outcome | None]]:
        """Returns what this log moved to quarantine, with the outcome of the move, and what it may
        have moved, with null.
        """
        names = [stat.name for stat in self.files.list(self._share(share)) if stat.name.endswith(_INTENT)]
        history = self.read_history(share)
        rows = [row for name in names for row in self._read(share, name, _planned) if row.action == QUARANTINE]
        for act, planned in {row.action_key: row for row in rows}.items():
            settled = history.settled.get(act)
            if settled is None or (settled.verdict == DENIED and act in history.interrupted):
                yield planned, None
            elif settled.verdict == DONE:
                yield planned, settled

    def write_intent(self, share: int, token: int, batch: Sequence[PlannedAction]) -> str:
        """Writes the intent of a batch to disk and returns the batch's name, which ends in the
        number of its rows. `token` is the fencing token under which the batch will act.
        """
        name = f"{token:06d}-{uuid.uuid4().hex}-{len(batch)}"
        self._write(share, name + _INTENT, map(_row, batch))
        return name

    def write_outcomes(self, share: int, name: str, outcomes: Sequence[Outcome]) -> None:
        rows = (_row(o.planned) | {"outcome": o.verdict, "error": o.error, "at": o.at.isoformat(), "token": o.token} for o in outcomes)
        self._write(share, name + _OUTCOME, rows)

    def _share(self, share: int) -> str:
        return f"{self.directory}/share-{share:05d}"

    def _write(self, share: int, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        self.files.replace(f"{self._share(share)}/{name}", "".join(json.dumps(row) + "\n" for row in rows).encode())

    def _read(self, share: int, name: str, parse: Callable[[dict[str, Any]], _Row]) -> list[_Row]:
        path = f"{self._share(share)}/{name}"
        try:
            return [parse(parse_json(line)) for line in self.files.read(path).splitlines()]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"{path} in the state is no log of a batch ({error!r}); restore it from a backup before applying the plan"
            ) from error


def _is_done(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.verdict == DONE


def open_log(files: Files, directory: str, plan_id: str, planned: int) -> WriteAheadLog:
    """Returns the plan's log, and begins one if there is none. Called under the storage's lease,
    before executors use it.

    Raises `StateError` where the directory holds the log of another plan.
    """
    path = f"{directory}/log.json"
    try:
        header: dict[str, Any] = parse_json(files.read(path))
    except FileNotFoundError:
        header = {"plan_id": plan_id, "shares": max(1, -(-planned // KEYS_PER_SHARE))}
        files.replace(path, json.dumps(header).encode())
    except ValueError as error:
        raise StateError(f"{path} in the state is no header of a log: {error}") from error
    _require_of(path, header, plan_id)
    return WriteAheadLog(files, directory, plan_id, header["shares"])


def _require_of(path: str, header: dict[str, Any], plan_id: str) -> None:
    if header.get("plan_id") != plan_id or not isinstance(header.get("shares"), int):
        raise StateError(f"{path} in the state: expected the log of plan {plan_id}, found {header}")


def _batches(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.removesuffix(_INTENT) for name in names if name.endswith(_INTENT))


_COLUMNS = tuple(field.name for field in fields(PlannedAction))


def _row(planned: PlannedAction) -> dict[str, Any]:
    return {name: getattr(planned, name) for name in _COLUMNS}


def _planned(row: dict[str, Any]) -> PlannedAction:
    return PlannedAction(**row)


def _outcome(row: dict[str, Any]) -> Outcome:
    verdict, error, at = row.pop("outcome"), row.pop("error"), datetime.fromisoformat(row.pop("at"))
    token = row.pop("token", None)  # releases before 0.4 wrote none, here and in their logs alike
    if verdict not in VERDICTS:
        raise ValueError(f"expected one of {', '.join(VERDICTS)}, found {verdict!r}")
    return Outcome(PlannedAction(**row), verdict, error, at, token)


def read_newest_token(files: Files, directory: str) -> int:
    """Returns the newest token under which a log meant to act, 0 where it meant nothing yet."""
    names = [item.name.rpartition("/")[2] for item in files.list(directory, recursive=True) if item.name.endswith(_INTENT)]
    return max((int(name.partition("-")[0]) for name in names), default=0)
