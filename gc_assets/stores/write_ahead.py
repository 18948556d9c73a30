"""The write-ahead log of a plan's execution: intents, then outcomes.

`log.json` names the plan, and the quarantine mode in which it moves files. Each batch has two files
with one JSON object per line: `share-<n>/<batch>.intent.jsonl`, written before its first action, and
`<batch>.outcome.jsonl`, written after its last. The hash of a key determines its share, so the
records of a key are found whatever batches the plan is divided into. The files can be read without
this module.
"""

from __future__ import annotations

import json
import re
import socket
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, TypeVar, get_args

import xxhash

from gc_assets.core.errors import StateError
from gc_assets.core.hashing import SPARK_SEED
from gc_assets.core.phases import DENIED, DONE, FAILED, QUARANTINE, VERDICTS, Action
from gc_assets.core.untrusted_input import parse_json
from gc_assets.state.files import Files
from gc_assets.stores.protocol import Outcome, PlannedAction, QuarantineMode

# The history of a share is held in memory when a plan is resumed: about 50 MB.
KEYS_PER_SHARE = 50_000
_RowT = TypeVar("_RowT")
# Action, key and version.
ActionKey = tuple[Action, str, str | None]
_INTENT = ".intent.jsonl"
_OUTCOME = ".outcome.jsonl"
_ROW_COUNT = re.compile(r"-[0-9a-f]{32}-([0-9]+)\.outcome\.jsonl$")


def share_of(key: str, shares: int) -> int:
    """Return the share of a key. It equals Spark's `pmod(xxhash64(key), shares)`."""
    unsigned = xxhash.xxh64_intdigest(key.encode(), seed=SPARK_SEED)
    return (unsigned - (1 << 64) if unsigned >= 1 << 63 else unsigned) % shares


@dataclass(frozen=True, slots=True)
class ShareHistory:
    """Records of earlier runs for a share, by `PlannedAction.action_key`.

    Attributes:
        settled: Final outcomes. If two attempts settled an action, `done` wins.
        interrupted: Actions of batches without outcomes, and failed actions even if a later batch
            settled them: the store may have acted before the answer was lost.
        batches: The names of all batches.
    """

    settled: Mapping[ActionKey, Outcome]
    interrupted: frozenset[ActionKey]
    batches: frozenset[str]


@dataclass(frozen=True, slots=True)
class WriteAheadLog:
    """Log of one plan in `directory` of the state. Pickles. Files are only added.

    Attributes:
        quarantine: The mode in which the plan quarantines files. None in logs of restores and of
            releases before 0.4, which do not record it.
    """

    files: Files
    directory: str
    plan_id: str
    shares: int
    quarantine: str | None = None

    def require_visible(self) -> None:
        """Raise `StateError` if this process cannot read the log.

        A machine with another disk at the state's path would move files without a record of them.
        """
        path = f"{self.directory}/log.json"
        try:
            _require_plan(path, parse_json(self.files.read(path)), self.plan_id)
        except FileNotFoundError:
            raise StateError(
                f"{self.files.root}/{path} does not exist on {socket.gethostname()}, which executes plan {self.plan_id}. "
                "Nothing was changed. `state` must be a location that all machines share, such as s3://bucket/prefix (docs/clusters.md)"
            ) from None

    def read_history(self, share: int) -> ShareHistory:
        """Return the history of a share. Raises `StateError` for a file that cannot be parsed."""
        names = {stat.name for stat in self.files.list(self._share_path(share))}
        settled: dict[ActionKey, Outcome] = {}
        interrupted: set[ActionKey] = set()
        for name in sorted(names):
            if name.endswith(_OUTCOME):
                outcomes = self._read(share, name, _to_outcome)
                settled |= {
                    o.planned.action_key: o for o in outcomes if o.verdict != FAILED and not _is_done(settled.get(o.planned.action_key))
                }
                interrupted |= {o.planned.action_key for o in outcomes if o.verdict == FAILED}
            elif name.endswith(_INTENT) and name.removesuffix(_INTENT) + _OUTCOME not in names:
                interrupted |= {planned.action_key for planned in self._read(share, name, _to_planned)}
        return ShareHistory(settled, frozenset(interrupted), _batch_names(names))

    def refuse_concurrent_batches(self, share: int, known: Collection[str]) -> None:
        """Raise `StateError` if the share has a batch that is not `known`.

        Another attempt of the same work began since this one read the log. A later attempt sees
        both intents and compares the objects.
        """
        others = _batch_names(stat.name for stat in self.files.list(self._share_path(share))) - set(known)
        if others:
            raise StateError(
                f"{self._share_path(share)}: another attempt of this work began batch {min(others)}, for example in an executor that was "
                "given up and still runs. The work is retried; if it fails, apply the plan again"
            )

    def count_outcomes(self) -> int:
        """Return the number of recorded outcomes, from the names of their batches.

        Batches of releases before 0.4 have no number in their names and are not counted.
        """
        listed = self.files.list(self.directory, recursive=True)
        counts = [_ROW_COUNT.search(stat.name) for stat in listed if stat.name.endswith(_OUTCOME)]
        return sum(int(found[1]) for found in counts if found is not None)

    def read_quarantined(self, share: int) -> Iterator[tuple[PlannedAction, Outcome | None]]:
        """Yield the rows that this log moved to quarantine.

        Each row comes with the outcome of the move, or with None if it may have been moved.
        """
        names = [stat.name for stat in self.files.list(self._share_path(share)) if stat.name.endswith(_INTENT)]
        history = self.read_history(share)
        rows = [row for name in names for row in self._read(share, name, _to_planned) if row.action == QUARANTINE]
        for act, planned in {row.action_key: row for row in rows}.items():
            settled = history.settled.get(act)
            if settled is None or (settled.verdict == DENIED and act in history.interrupted):
                yield planned, None
            elif settled.verdict == DONE:
                yield planned, settled

    def write_intent(self, share: int, token: int, batch: Sequence[PlannedAction]) -> str:
        """Write the intent of a batch durably and return the batch's name.

        The name ends in the number of rows. `token` is the fencing token under which the batch
        acts.
        """
        name = f"{token:06d}-{uuid.uuid4().hex}-{len(batch)}"
        self._write(share, name + _INTENT, map(_to_row, batch))
        return name

    def write_outcomes(self, share: int, name: str, outcomes: Sequence[Outcome]) -> None:
        self._write(share, name + _OUTCOME, map(_from_outcome, outcomes))

    def _share_path(self, share: int) -> str:
        return f"{self.directory}/share-{share:05d}"

    def _write(self, share: int, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        self.files.replace(f"{self._share_path(share)}/{name}", "".join(json.dumps(row) + "\n" for row in rows).encode())

    def _read(self, share: int, name: str, parse: Callable[[dict[str, Any]], _RowT]) -> list[_RowT]:
        path = f"{self._share_path(share)}/{name}"
        try:
            return [parse(parse_json(line)) for line in self.files.read(path).splitlines()]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateError(f"cannot parse {path} in the state ({error!r}); restore it from a backup before applying the plan") from error


def _is_done(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.verdict == DONE


def open_log(files: Files, directory: str, plan_id: str, planned: int, quarantine: str | None = None) -> WriteAheadLog:
    """Return the log of a plan, and create it if it does not exist.

    Called under the lease of the storage, before executors use the log.

    Args:
        planned: Number of rows of the plan, for a new log.
        quarantine: The plan's quarantine mode, for a new log. A state that lacks the plan, such as a
            backup, still contains the log.

    Raises:
        StateError: If the directory contains the log of another plan.
    """
    path = f"{directory}/log.json"
    try:
        header: dict[str, Any] = parse_json(files.read(path))
    except FileNotFoundError:
        header = {"plan_id": plan_id, "shares": max(1, -(-planned // KEYS_PER_SHARE)), "quarantine": quarantine}
        files.replace(path, json.dumps(header).encode())
    except ValueError as error:
        raise StateError(f"cannot parse {path} in the state: {error}; restore it from a backup") from error
    _require_plan(path, header, plan_id)
    return WriteAheadLog(files, directory, plan_id, header["shares"], header.get("quarantine"))


def find_log(files: Files, directory: str, plan_id: str) -> WriteAheadLog | None:
    """Return the log of a plan in a directory, or None if no execution has created one.

    Raises:
        StateError: If the directory contains the log of another plan.
    """
    if not any(item.name == "log.json" for item in files.list(directory)):
        return None
    return open_log(files, directory, plan_id, 1)


def _require_plan(path: str, header: dict[str, Any], plan_id: str) -> None:
    is_mode = header.get("quarantine") in {None, *get_args(QuarantineMode)}
    if header.get("plan_id") != plan_id or not isinstance(header.get("shares"), int) or not is_mode:
        raise StateError(f"{path} in the state: expected the log of plan {plan_id}, found {header}")


def _batch_names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.removesuffix(_INTENT) for name in names if name.endswith(_INTENT))


_COLUMNS = tuple(field.name for field in fields(PlannedAction))


def _to_row(planned: PlannedAction) -> dict[str, Any]:
    return {name: getattr(planned, name) for name in _COLUMNS}


def _to_planned(row: dict[str, Any]) -> PlannedAction:
    return PlannedAction(**row)


def _from_outcome(outcome: Outcome) -> dict[str, Any]:
    row = {"outcome": outcome.verdict, "error": outcome.error, "at": outcome.at.isoformat(), "token": outcome.token}
    return _to_row(outcome.planned) | row | ({"replan": True} if outcome.replan else {})


def _to_outcome(row: dict[str, Any]) -> Outcome:
    verdict, error, at = row.pop("outcome"), row.pop("error"), datetime.fromisoformat(row.pop("at"))
    token = row.pop("token", None)  # releases before 0.4 wrote no token, in this log and in `deletion_log`
    replan = row.pop("replan", False)
    if verdict not in VERDICTS:
        raise ValueError(f"expected one of {', '.join(VERDICTS)}, found {verdict!r}")
    return Outcome(PlannedAction(**row), verdict, error, at, token, replan)


def read_newest_token(files: Files, directory: str) -> int:
    """Return the newest token under which a log recorded an intent, 0 without intents."""
    names = [item.name.rpartition("/")[2] for item in files.list(directory, recursive=True) if item.name.endswith(_INTENT)]
    return max((int(name.partition("-")[0]) for name in names), default=0)
