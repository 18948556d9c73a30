"""The write-ahead log, which makes it possible to resume an apply after a crash.

A log is a directory in the state. `log.json` contains the plan id and the quarantine mode. For each
batch there are two files with one JSON object per line: `share-<n>/<batch>.intent.jsonl` is written
before the first action, and `<batch>.outcome.jsonl` after the last one.

A share is a hash partition of the keys. When an apply is resumed, batches may be composed
differently, but the records of a key are always in the same share.
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
from gc_assets.core.phases import CHANGED, DENIED, DONE, FAILED, QUARANTINE, VERDICTS, Action
from gc_assets.core.untrusted_input import parse_json
from gc_assets.state.damage import RESTORE_BACKUP
from gc_assets.state.files import Files
from gc_assets.stores.protocol import Outcome, PlannedAction, QuarantineMode

# The history of a whole share is read into memory, which takes about 50 MB for this many keys.
KEYS_PER_SHARE = 50_000
_RowT = TypeVar("_RowT")
# Action, key and version.
ActionKey = tuple[Action, str, str | None]
_INTENT = ".intent.jsonl"
_OUTCOME = ".outcome.jsonl"
_ROW_COUNT = re.compile(r"-[0-9a-f]{32}-([0-9]+)\.(?:intent|outcome)\.jsonl$")


def share_of(key: str, shares: int) -> int:
    """Compute the share (hash partition) of a key, like Spark's `pmod(xxhash64(key), shares)`."""
    unsigned = xxhash.xxh64_intdigest(key.encode(), seed=SPARK_SEED)
    return (unsigned - (1 << 64) if unsigned >= 1 << 63 else unsigned) % shares


@dataclass(frozen=True, slots=True)
class ShareHistory:
    """The records of earlier attempts at a share. Actions are identified by their `action_key`.

    Attributes:
        settled: The final outcomes. If two attempts have recorded outcomes for the same action,
            `done` takes precedence.
        interrupted: Actions that the store may have executed although the log does not show it.
            They are in a batch without outcomes, or have failed at least once, because the store
            may have acted before its response was lost.
        batches: The names of all batches.
    """

    settled: Mapping[ActionKey, Outcome]
    interrupted: frozenset[ActionKey]
    batches: frozenset[str]


@dataclass(frozen=True, slots=True)
class WriteAheadLog:
    """The log of a plan's execution. Files in it are never changed or removed.

    Logs are pickled and sent to Spark executors.

    Attributes:
        files: The files of the state.
        directory: The directory of the log in the state.
        plan_id: The id of the plan.
        shares: The number of shares.
        quarantine: The quarantine mode of the plan. Logs of restores have none, and releases before
            0.4 did not record it.
    """

    files: Files
    directory: str
    plan_id: str
    shares: int
    quarantine: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no action of the plan has been logged yet, neither on a file nor on a history."""
        names = [stat.name for stat in self.files.list(self.directory)]
        return names == ["log.json"] and not self.files.directories(self.directory)

    def require_visible(self) -> None:
        """Check that this process sees the log, before it executes any action.

        An executor may have another disk at the path of the state. It would then move files, but
        record the moves in a log that no other process reads.

        Raises:
            StateError: If the log does not exist or belongs to another plan.
        """
        try:
            _read_header(self.files, self.directory, self.plan_id)
        except FileNotFoundError:
            raise StateError(
                f"{self.files.root}/{self.directory}/log.json does not exist on {socket.gethostname()}, which executes plan "
                f"{self.plan_id}. Nothing was changed. `state` must be a location that all machines share, such as s3://bucket/prefix "
                "(docs/clusters.md)"
            ) from None

    def read_history(self, share: int) -> ShareHistory:
        """Read what earlier attempts have recorded in a share.

        Raises:
            StateError: If a file cannot be parsed.
        """
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
        """Check that no other attempt at the same work has started since this one read the log.

        If another attempt has started, this attempt stops. The next attempt then finds the intents
        of both in the log, and compares the objects again.

        Raises:
            StateError: If the share contains a batch that is not `known`.
        """
        others = _batch_names(stat.name for stat in self.files.list(self._share_path(share))) - set(known)
        if others:
            raise StateError(
                f"{self._share_path(share)}: another attempt at this work began batch {min(others)}, for example in an executor that was "
                "given up and still runs. The work is retried; if it fails, apply the plan again"
            )

    def count_outcomes(self) -> int:
        """Count the recorded outcomes without reading the files.

        Since 0.4, the name of a batch contains the number of its rows. Batches of older releases
        are not counted.
        """
        listed = self.files.list(self.directory, recursive=True)
        counts = [_ROW_COUNT.search(stat.name) for stat in listed if stat.name.endswith(_OUTCOME)]
        return sum(int(found[1]) for found in counts if found is not None)

    def read_quarantined(self, share: int) -> Iterator[tuple[PlannedAction, Outcome | None]]:
        """Yield the rows whose objects this plan has quarantined, or may have quarantined.

        If it is unknown whether an object was quarantined, the outcome is None.
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
        """Record durably that a batch is about to be executed.

        Args:
            share: The share that contains all keys of the batch.
            token: The fencing token of the lease.
            batch: The rows of the batch.

        Returns:
            The name of the batch, which begins with the token and ends in the number of rows.
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
            rows = [parse(parse_json(line)) for line in self.files.read(path).splitlines()]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateError(self._describe_damage(path, repr(error))) from error
        expected = _ROW_COUNT.search(name)
        if expected is not None and int(expected[1]) != len(rows):
            raise StateError(self._describe_damage(path, f"expected {expected[1]} rows, found {len(rows)}"))
        return rows

    def _describe_damage(self, path: str, finding: str) -> str:
        # Without outcomes, the rows of the batch count as interrupted.
        remove = ". Without a backup, remove it: the same command then looks up the files of this batch in the storage"
        return f"{self.files.root}/{path} is damaged ({finding}); {RESTORE_BACKUP}{remove if path.endswith(_OUTCOME) else ''}"


def _is_done(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.verdict == DONE


def open_log(files: Files, directory: str, plan_id: str, planned: int, quarantine: str | None = None) -> WriteAheadLog:
    """Open the log of a plan, creating it if necessary.

    The caller must hold the lease of the storage. Executors can use the log afterwards.

    Args:
        files: The files of the state.
        directory: The directory of the log.
        plan_id: The id of the plan.
        planned: The number of rows in the plan. It determines the number of shares of a new log.
        quarantine: The quarantine mode to record in a new log. The mode is then known even if the
            state no longer contains the plan, as can happen with a restored backup.

    Raises:
        StateError: If the directory contains the log of another plan, or one that cannot be parsed.
    """
    header: dict[str, Any]
    try:
        header = _read_header(files, directory, plan_id)
    except FileNotFoundError:
        header = {"plan_id": plan_id, "shares": max(1, -(-planned // KEYS_PER_SHARE)), "quarantine": quarantine}
        files.replace(f"{directory}/log.json", json.dumps(header).encode())
    return WriteAheadLog(files, directory, plan_id, header["shares"], header.get("quarantine"))


def find_log(files: Files, directory: str, plan_id: str) -> WriteAheadLog | None:
    """Open the log of a plan if its execution has begun. Otherwise, return None.

    Raises:
        StateError: If the directory contains the log of another plan, or one that cannot be parsed.
    """
    if not any(item.name == "log.json" for item in files.list(directory)):
        return None
    return open_log(files, directory, plan_id, 1)


def _read_header(files: Files, directory: str, plan_id: str) -> dict[str, Any]:
    path = f"{directory}/log.json"
    content = files.read(path)
    try:
        header = parse_json(content)
        is_mode = header.get("quarantine") in (None, *get_args(QuarantineMode))
        is_valid = header["plan_id"] == plan_id and isinstance(header["shares"], int) and header["shares"] > 0 and is_mode
        finding = None if is_valid else f"found {header}"
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        header, finding = {}, repr(error)
    if finding is not None:
        raise StateError(f"{files.root}/{path} is damaged: expected the log of plan {plan_id}, {finding}; {RESTORE_BACKUP}")
    return header


def _batch_names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.removesuffix(_INTENT) for name in names if name.endswith(_INTENT))


_COLUMNS = tuple(field.name for field in fields(PlannedAction))


def _to_row(planned: PlannedAction) -> dict[str, Any]:
    return {name: getattr(planned, name) for name in _COLUMNS}


def _to_planned(row: dict[str, Any]) -> PlannedAction:
    return PlannedAction(**row)


def _from_outcome(outcome: Outcome) -> dict[str, Any]:
    row = {"outcome": outcome.verdict, "error": outcome.error, "at": outcome.at.isoformat(), "token": outcome.token}
    return _to_row(outcome.planned) | row | ({"replan": outcome.replan} if outcome.verdict in {CHANGED, DENIED} else {})


def _to_outcome(row: dict[str, Any]) -> Outcome:
    verdict, error, at = row.pop("outcome"), row.pop("error"), datetime.fromisoformat(row.pop("at"))
    token = row.pop("token", None)  # releases before 0.4 did not record it
    replan = row.pop("replan", verdict == CHANGED)  # earlier releases did not record it for `changed`
    if verdict not in VERDICTS:
        raise ValueError(f"expected one of {', '.join(VERDICTS)}, found {verdict!r}")
    return Outcome(PlannedAction(**row), verdict, error, at, token, replan)


def read_newest_token(files: Files, directory: str) -> int:
    """Return the highest fencing token of a log's batches, or 0 if the log has no batches."""
    names = [item.name.rpartition("/")[2] for item in files.list(directory, recursive=True) if item.name.endswith(_INTENT)]
    return max((int(name.partition("-")[0]) for name in names), default=0)
