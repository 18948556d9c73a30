"""A plan's actions through the write-ahead log: nothing happens twice, and all outcomes are
recorded.
"""

from __future__ import annotations

import json
import os
import pickle
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, GcError, StateError
from gc_assets.core.hashing import xxhash64
from gc_assets.state.files import Files
from gc_assets.state.schemas import DELETION_LOG
from gc_assets.stores.execution import current_user, execute, require_balance, to_deletion_log, to_planned_actions
from gc_assets.stores.local.lease import acquire
from gc_assets.stores.local.quarantine import open_quarantine
from gc_assets.stores.protocol import LEASE_DURATION, Outcome, PlannedAction, Result
from gc_assets.stores.write_ahead import open_log, share_of
from tests.stores.builders import CLOCK, NOW, PLAN, contents, memory_directory, plan, write


@pytest.fixture
def root(tmp_path):
    (tmp_path / "storage").mkdir()
    return tmp_path / "storage"


@pytest.fixture
def lease(root):
    return acquire(str(root), PLAN, "test", CLOCK)


@pytest.fixture
def log(tmp_path):
    return open_log(Files(str(tmp_path / "state")), "wal", PLAN, 10)


class Counting:
    """A quarantine that records its calls. `answers` are returned first, then the results of the
    disk.
    """

    def __init__(self, root, mode="trash", answers=()):
        self.inner, self.calls, self.answers = open_quarantine(mode, str(root), PLAN), [], list(answers)

    def act(self, batch, resumed=()):
        self.calls.append([planned.key for planned in batch])
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return [answer] * len(batch)
        return self.inner.act(batch, resumed)


def verdicts(outcomes) -> dict[str, str]:
    return {outcome.planned.key: outcome.verdict for outcome in outcomes}


def test_every_row_has_one_outcome(root, lease, log):
    rows = [plan(root, write(root, f"t/{n}").relative_to(root).as_posix()) for n in range(7)]
    (root / "t/3").unlink()
    write(root, "t/5", b"replaced since")
    found = list(execute(rows, open_quarantine("trash", str(root), PLAN), log, lease, CLOCK, batch_size=3))
    assert [outcome.planned for outcome in found] == rows
    assert Counter(outcome.verdict for outcome in found) == {"done": 5, "absent": 1, "changed": 1}
    assert {outcome.at for outcome in found} == {NOW}
    assert set(contents(root)) == {"t/5"} | {f".gc-assets/trash/{PLAN}/t/{n}" for n in (0, 1, 2, 4, 6)}


def test_second_run_returns_the_same_outcomes_without_changes(root, lease, log):
    rows = [plan(root, write(root, f"{n}").name) for n in range(5)]
    (root / "1").unlink()
    first = list(execute(rows, Counting(root), log, lease, CLOCK, batch_size=2))
    write(root, "0", b"a new file of the same name")
    second = Counting(root)
    assert list(execute(rows, second, log, lease, Clock(NOW + timedelta(hours=1)), batch_size=2)) == first
    assert second.calls == []
    assert (root / "0").read_bytes() == b"a new file of the same name"


def test_second_run_can_use_different_batches_and_order(root, lease, log):
    rows = [plan(root, write(root, f"{n}").name) for n in range(9)]
    first = verdicts(execute(rows[:6], Counting(root), log, lease, CLOCK, batch_size=4))
    second = Counting(root)
    assert verdicts(execute(rows[::-1], second, log, lease, CLOCK, batch_size=5)) == first | {"6": "done", "7": "done", "8": "done"}
    assert sorted(key for batch in second.calls for key in batch) == ["6", "7", "8"]


def test_outcomes_of_an_abandoned_attempt_are_ignored(root, lease, log):
    """An engine abandons a silent executor and repeats its task on another one, while the first
    still runs.
    """
    rows = [plan(root, write(root, f"{n}").name) for n in range(4)]
    everything = dict.fromkeys("0123", "done")

    class AbandonedAttempt(Counting):
        def act(self, batch, resumed=()):
            half = super().act(batch[:2], resumed)
            assert verdicts(execute(rows, Counting(root), log, lease, CLOCK)) == everything
            return half + super().act(batch[2:], resumed)

    with pytest.raises(StateError, match="another attempt at this work began"):
        list(execute(rows, AbandonedAttempt(root), log, lease, CLOCK))
    assert verdicts(execute(rows, Counting(root), log, lease, CLOCK)) == everything


@pytest.mark.parametrize("pair", [("done", "absent"), ("absent", "done"), ("changed", "done")])
def test_done_takes_precedence_over_other_outcomes_of_two_attempts(root, lease, log, pair):
    row = plan(root, write(root, "a").name)
    for verdict in pair:
        name = log.write_intent(0, lease.token, [row])
        log.write_outcomes(0, name, [Outcome(row, verdict, None, NOW, lease.token)])
    assert log.read_history(0).settled[row.action_key].verdict == "done"
    assert [outcome.verdict for _, outcome in log.read_quarantined(0)] == ["done"]


@pytest.mark.parametrize("verdict", ["done", "absent", "changed", "denied"])
def test_settled_outcome_is_final(root, lease, log, verdict):
    rows = [plan(root, write(root, "a").name)]
    list(execute(rows, Counting(root, answers=[Result(verdict, "why")]), log, lease, CLOCK))
    again = Counting(root)
    found = list(execute(rows, again, log, lease, CLOCK))
    assert [(outcome.verdict, outcome.error) for outcome in found] == [(verdict, "why")]
    assert again.calls == []


def test_failed_row_is_retried(root, lease, log):
    rows = [plan(root, write(root, "a").name)]
    first = list(execute(rows, Counting(root, answers=[Result("failed", "disk full")]), log, lease, CLOCK))
    assert [(o.verdict, o.error) for o in first] == [("failed", "disk full")]
    assert verdicts(execute(rows, Counting(root), log, lease, CLOCK)) == {"a": "done"}
    assert verdicts(execute(rows, Counting(root), log, lease, CLOCK)) == {"a": "done"}


def test_intent_precedes_the_action_and_outcome_follows(root, lease, log, tmp_path):
    rows = [plan(root, write(root, "a").name)]
    seen = {}

    class Recording(Counting):
        def act(self, batch, resumed=()):
            seen["before"] = sorted(path.name.split(".", 1)[1] for path in (tmp_path / "state/wal/share-00000").iterdir())
            return super().act(batch, resumed)

    list(execute(rows, Recording(root), log, lease, CLOCK))
    files = sorted((tmp_path / "state/wal/share-00000").iterdir())
    assert seen["before"] == ["intent.jsonl"]
    assert [path.name.split(".", 1)[1] for path in files] == ["intent.jsonl", "outcome.jsonl"]
    intent, outcome = (json.loads(path.read_text()) for path in files)
    assert intent == {"key": "a", "action": "quarantine", "size_bytes": 7, "etag": rows[0].etag} | dict.fromkeys(
        ("version_id", "source_plan_id", "kind")
    )
    assert outcome == intent | {"outcome": "done", "error": None, "at": "2026-11-21T12:00:00+00:00", "token": 1}


def test_log_returns_certain_and_possible_quarantines_with_times(root, lease, log, tmp_path):
    rows = [plan(root, write(root, name).name) for name in ("done", "gone", "failed", "interrupted")]
    (root / "gone").unlink()
    list(execute(rows[:2], Counting(root), log, lease, CLOCK))
    list(execute(rows[2:3], Counting(root, answers=[Result("failed", "a broken disk")]), log, lease, CLOCK))
    log.write_intent(0, lease.token, rows[3:])
    known = {row: outcome and (outcome.at, outcome.token) for row, outcome in log.read_quarantined(0)}
    assert known == {rows[0]: (NOW, lease.token), rows[2]: None, rows[3]: None}


def test_interrupted_row_that_is_later_denied_may_be_quarantined(root, lease, log):
    rows = [plan(root, write(root, name).name) for name in ("interrupted", "never begun")]
    log.write_intent(0, lease.token, rows[:1])
    list(execute(rows, Counting(root, answers=[Result("denied", "permanently")]), log, lease, CLOCK))
    assert dict(log.read_quarantined(0)) == {rows[0]: None}


def test_purge_killed_before_the_outcome_was_logged_is_done(root, lease, log):
    rows = [plan(root, write(root, key).name, "purge") for key in ("a", "b")]

    class Dying(Counting):
        def act(self, batch, resumed=()):
            super().act(batch, resumed)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(execute(rows[:1], Dying(root, "deferred"), log, lease, CLOCK))
    (root / "b").unlink()
    assert verdicts(execute(rows, Counting(root, "deferred"), log, lease, CLOCK)) == {"a": "done", "b": "absent"}


def test_lease_is_checked_before_each_batch(root, log):
    mine = acquire(str(root), PLAN, "slow", CLOCK)
    rows = [plan(root, write(root, f"{n}").name) for n in range(4)]
    outcomes = execute(rows, Counting(root), log, mine, CLOCK, batch_size=2)
    done = [next(outcomes), next(outcomes)]
    acquire(str(root), PLAN, "fast", Clock(NOW + LEASE_DURATION))
    with pytest.raises(GateRefused, match="lost"):
        next(outcomes)
    assert [o.verdict for o in done] == ["done", "done"]
    assert (root / "2").exists()
    assert (root / "3").exists()


def test_suspended_lease_holder_does_not_undo_a_later_restore(root, tmp_path, log):
    """The lease expired while its holder was suspended. The next holder has restored the file and ended."""

    class SuspendedLog:
        shares = log.shares
        read_history, write_outcomes = log.read_history, log.write_outcomes

        def write_intent(self, share, token, batch):
            name = log.write_intent(share, token, batch)
            acquire(str(root), "restore", "fast", Clock(NOW + LEASE_DURATION)).release()
            return name

    rows = [plan(root, write(root, f"{n}").name) for n in range(2)]
    with pytest.raises(GateRefused, match="lost: expected token 1, found no lease"):
        list(execute(rows, Counting(root), SuspendedLog(), acquire(str(root), PLAN, "slow", CLOCK), CLOCK))
    assert contents(root).keys() >= {"0", "1"}
    assert not (root / ".gc-assets/trash").exists()


def test_batch_under_a_lost_lease_has_no_outcome(root, log):
    class SuspendedAttempt(Counting):
        def act(self, batch, resumed=()):
            results = super().act(batch, resumed)
            acquire(str(root), "restore", "fast", Clock(NOW + LEASE_DURATION)).release()
            return results

    rows = [plan(root, write(root, "a").name)]
    with pytest.raises(GateRefused, match="lost"):
        list(execute(rows, SuspendedAttempt(root), log, acquire(str(root), PLAN, "slow", CLOCK), CLOCK))
    assert log.read_history(0).settled == {}
    assert dict(log.read_quarantined(0)) == {rows[0]: None}
    (outcome,) = execute(rows, Counting(root), log, acquire(str(root), PLAN, "next", CLOCK), CLOCK)
    assert (outcome.verdict, outcome.token) == ("done", 3)


def test_actions_on_one_key_have_separate_outcomes(root, lease, log):
    quarantine = plan(root, write(root, "a").name)
    restore = plan(root, "a", "restore")
    for row in (quarantine, restore):
        assert verdicts(execute([row], Counting(root), log, lease, CLOCK)) == {"a": "done"}
    assert (root / "a").exists()


@pytest.mark.parametrize("verdict", ["denied", "changed"])
def test_restore_that_was_not_done_is_tried_again(root, lease, log, verdict):
    """A user has granted the missing permission, or moved the other object out of the way."""
    quarantine = plan(root, write(root, "a").name)
    restore = replace(quarantine, action="restore", source_plan_id=PLAN)
    list(execute([quarantine], Counting(root), log, lease, CLOCK))
    assert verdicts(execute([restore], Counting(root, answers=[Result(verdict, "why")]), log, lease, CLOCK)) == {"a": verdict}
    assert verdicts(execute([restore], Counting(root), log, lease, CLOCK)) == {"a": "done"}
    assert (root / "a").exists()
    settled = Counting(root)
    assert verdicts(execute([restore], settled, log, lease, CLOCK)) == {"a": "done"}
    assert settled.calls == []


def test_denied_quarantine_is_not_tried_again(root, lease, log):
    row = plan(root, write(root, "a").name)
    store = Counting(root, answers=[Result("denied", "why")])
    for _ in range(2):
        assert verdicts(execute([row], store, log, lease, CLOCK)) == {"a": "denied"}
    assert store.calls == [["a"]]


def test_denied_restore_of_a_closed_plan_keeps_its_outcome(root, lease, log):
    row = plan(root, write(root, "a").name, "restore")
    store = Counting(root, answers=[Result("denied", "why")])
    first = list(execute([row], store, log, lease, CLOCK))
    assert list(execute([row], store, log, lease, CLOCK, repeats_restores=False)) == first
    assert store.calls == [["a"]]


def test_versions_of_one_key_have_separate_outcomes(root, lease, log):
    rows = [PlannedAction("a", "purge", 1, "e", version, "plan") for version in ("v1", "v2", None)]
    store = Counting(root, answers=[Result("done"), Result("absent", "gone"), Result("denied", "held")])
    for row in rows:
        list(execute([row], store, log, lease, CLOCK))
    again = list(execute(rows, store, log, lease, CLOCK))
    assert store.calls == [["a"]] * 3
    table = to_deletion_log(again, PLAN, "versioned", "run").to_pylist()
    assert [(row["version_id"], row["outcome"], row["run_id"]) for row in table] == [
        ("v1", "done", "run"),
        ("v2", "absent", "run"),
        (None, "denied", "run"),
    ]


def test_only_the_object_version_in_the_intent_is_resumed(root, lease, log):
    rows = [PlannedAction("a", "purge", 1, "e", version, "plan") for version in ("v1", "v2")]
    log.write_intent(0, lease.token, rows[:1])
    resumed_versions = []

    class RecordingResumed(Counting):
        def act(self, batch, resumed=()):
            resumed_versions.extend(row.version_id for row in batch if row in resumed)
            return [Result("done")] * len(batch)

    list(execute(rows, RecordingResumed(root), log, lease, CLOCK))
    assert resumed_versions == ["v1"]


def test_log_of_an_older_release_is_read(root, lease, log, tmp_path):
    row = plan(root, write(root, "a").name)
    list(execute([row], Counting(root), log, lease, CLOCK))
    for path in (tmp_path / "state").rglob("*.jsonl"):
        old = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps({k: v for k, v in item.items() if k not in {"version_id", "kind"}}) + "\n" for item in old))
    again = Counting(root)
    assert [(outcome.planned, outcome.verdict) for outcome in execute([row], again, log, lease, CLOCK)] == [(row, "done")]
    assert again.calls == []


def test_log_of_another_plan_is_refused(log):
    with pytest.raises(StateError, match=r"wal/log\.json.*plan-b.*plan-a"):
        open_log(log.files, "wal", "plan-b", 10)


@pytest.mark.parametrize(
    "header", ["{", "[]", "3", "null", "{}", '{"plan_id": "%s", "shares": []}', '{"plan_id": "%s", "shares": 1, "quarantine": []}']
)
def test_damaged_header_of_log_is_refused(log, tmp_path, header):
    (tmp_path / "state/wal/log.json").write_text(header.replace("%s", PLAN))
    with pytest.raises(StateError, match=rf"state/wal/log\.json is damaged: .*{PLAN}.*restore it from a backup"):
        open_log(log.files, "wal", PLAN, 10)
    with pytest.raises(StateError, match=r"log\.json is damaged"):
        log.require_visible()


def test_log_keeps_the_number_of_shares_after_reopening(tmp_path):
    files = Files(str(tmp_path))
    assert open_log(files, "wal", PLAN, 120_000).shares == 3
    assert open_log(files, "wal", PLAN, 1).shares == 3
    assert open_log(files, "empty", PLAN, 0).shares == 1


@pytest.mark.parametrize("kind", ["intent", "outcome"])
@pytest.mark.parametrize("content", [b"{", b'{"key": "a"}', b"[]", b"\xff", b"null"])
def test_unreadable_log_raises_state_error(root, lease, log, tmp_path, kind, content):
    rows = [plan(root, write(root, "a").name)]
    list(execute(rows, Counting(root), log, lease, CLOCK))
    share = tmp_path / "state/wal/share-00000"
    (share / f"000001-damaged.{kind}.jsonl").write_bytes(content)
    again = Counting(root)
    with pytest.raises(StateError, match=rf"damaged\.{kind}\.jsonl"):
        list(execute(rows, again, log, lease, CLOCK))
    assert again.calls == []


@pytest.mark.parametrize("kind", ["intent", "outcome"])
@pytest.mark.parametrize("lines", [0, 1])
def test_log_file_without_some_of_its_rows_raises_state_error(root, lease, log, tmp_path, kind, lines):
    """Otherwise, the missing rows would look as if the store had never acted on them."""
    rows = [plan(root, write(root, name).name) for name in "ab"]
    list(execute(rows, Counting(root), log, lease, CLOCK))
    (path,) = (tmp_path / "state/wal").rglob(f"*.{kind}.jsonl")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))
    if kind == "intent":
        path.with_name(path.name.replace("intent", "outcome")).unlink()
    with pytest.raises(StateError, match=f"{path.name} is damaged .*expected 2 rows, found {lines}"):
        log.read_history(0)


def test_apply_continues_after_damaged_outcomes_were_removed(root, lease, log, tmp_path):
    rows = [plan(root, write(root, name).name) for name in "ab"]
    list(execute(rows, Counting(root), log, lease, CLOCK))
    (path,) = (tmp_path / "state/wal").rglob("*.outcome.jsonl")
    path.write_text("")
    with pytest.raises(StateError, match="Without a backup, remove it: the same command then looks up the files of this batch"):
        log.read_history(0)
    path.unlink()
    assert verdicts(execute(rows, Counting(root), log, lease, CLOCK)) == {"a": "done", "b": "done"}


def test_unknown_verdict_raises_state_error(root, lease, log, tmp_path):
    rows = [plan(root, write(root, "a").name)]
    list(execute(rows, Counting(root), log, lease, CLOCK))
    written = next((tmp_path / "state/wal/share-00000").glob("*.outcome.jsonl"))
    written.write_text(written.read_text().replace('"done"', '"probably"'))
    with pytest.raises(StateError, match="probably"):
        list(execute(rows, Counting(root), log, lease, CLOCK))


def test_write_ahead_log_can_be_pickled(log):
    assert pickle.loads(pickle.dumps(log)) == log  # noqa: S301  (bytes made on this line)


KEYS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=20)


@settings(deadline=None)
@given(keys=KEYS, shares=st.integers(1, 1000))
def test_share_equals_sparks_pmod_of_xxhash64(keys, shares):
    expected = [int(value) % shares for value in xxhash64(pa.array(keys))]
    assert [share_of(key, shares) for key in keys] == expected


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_partial_runs_settle_every_key_once(data):
    with memory_directory() as base:
        settles_every_key_once(base, data)


def settles_every_key_once(base, data):
    root = base / "storage"
    rows = [plan(root, write(root, f"t{n % 3}/{n}", str(n).encode()).relative_to(root).as_posix()) for n in range(12)]
    mine = acquire(str(root), PLAN, "test", CLOCK)
    log = open_log(Files(str(base / "state")), "wal", PLAN, 120_000)
    calls: Counter[str] = Counter()
    for _ in range(data.draw(st.integers(0, 3))):
        counting = Counting(root)
        part = data.draw(st.lists(st.sampled_from(rows), unique=True))
        list(execute(part, counting, log, mine, CLOCK, batch_size=data.draw(st.integers(1, 5))))
        calls.update(key for batch in counting.calls for key in batch)
    last = Counting(root)
    found = list(execute(rows, last, log, mine, CLOCK))
    calls.update(key for batch in last.calls for key in batch)
    assert verdicts(found) == {row.key: "done" for row in rows}
    assert set(calls.values()) == {1}
    assert {key: content for key, (content, _) in contents(root).items()} == {
        f".gc-assets/trash/{PLAN}/t{n % 3}/{n}": str(n).encode() for n in range(12)
    }


def test_outcome_counts_that_match_the_plan_pass():
    require_balance(0, {})
    require_balance(6, {"done": 2, "absent": 1, "changed": 1, "denied": 1, "failed": 1})


@pytest.mark.parametrize("outcomes", [{}, {"done": 2}, {"done": 4}, {"done": 2, "skipped": 1}])
def test_outcome_counts_that_differ_from_the_plan_raise(outcomes):
    with pytest.raises(GcError, match="3 planned"):
        require_balance(3, outcomes)


def test_plan_rows_are_converted_to_log_rows():
    batch = pa.RecordBatch.from_pylist(
        [{"key": "a", "action": "purge", "size_bytes": 5, "etag": "e", "version_id": None, "source_plan_id": "p", "kind": "data"}]
    )
    rows = list(to_planned_actions(batch))
    assert rows == [PlannedAction("a", "purge", 5, "e", None, "p", "data")]


def test_log_rows_have_the_published_columns(root, lease, log):
    rows = [plan(root, write(root, "a").name)]
    table = to_deletion_log(execute(rows, Counting(root), log, lease, CLOCK), PLAN, "trash", "run-1")
    assert table.schema == DELETION_LOG.schema
    assert table.to_pylist() == [
        {
            "key": "a",
            "version_id": None,
            "run_id": "run-1",
            "phase": "quarantine",
            "outcome": "done",
            "error": None,
            "at": NOW,
            "plan_id": PLAN,
            "size_bytes": 7,
            "etag": rows[0].etag,
            "source_plan_id": None,
            "quarantine": "trash",
            "kind": None,
            "token": lease.token,
            "rehearsal": False,
            "permanent": False,
            "ends_record": False,
        }
    ]
    assert to_deletion_log([], PLAN, "trash").num_rows == 0


def test_user_without_a_login_name_is_recorded_by_uid(monkeypatch):
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54_321)
    assert current_user() == "uid 54321"


@pytest.mark.parametrize(
    "mode, action, replan, ends_record",
    [
        ("deferred", "purge", False, True),
        ("deferred", "restore", False, True),
        ("deferred", "purge", True, False),
        ("deferred", "quarantine", False, False),
        ("trash", "purge", False, False),
        ("versioned", "restore", False, False),
    ],
)
def test_changed_object_ends_deferred_record_unless_action_waits(root, lease, log, mode, action, replan, ends_record):
    row = PlannedAction("a", action, 1, "e", None, "plan")
    store = Counting(root, answers=[Result("changed", "found", replan=replan)])
    for _ in range(2):  # the second time from the log
        outcomes = execute([row], store, log, lease, CLOCK, repeats_restores=False)
        assert to_deletion_log(outcomes, PLAN, mode).column("ends_record").to_pylist() == [ends_record]
    assert store.calls == [["a"]]


def test_change_logged_by_an_earlier_release_does_not_end_deferred_record(root, lease, log, tmp_path):
    """That release did not record whether the action only has to wait."""
    row = PlannedAction("a", "purge", 1, "e", None, "plan")
    list(execute([row], Counting(root, answers=[Result("changed", "found")]), log, lease, CLOCK))
    (recorded,) = (path for path in (tmp_path / "state").rglob("*") if path.is_file() and ', "replan": false' in path.read_text())
    recorded.write_text(recorded.read_text().replace(', "replan": false', ""))
    (outcome,) = execute([row], Counting(root), log, lease, CLOCK)
    assert (outcome.verdict, outcome.ends_record) == ("changed", False)
