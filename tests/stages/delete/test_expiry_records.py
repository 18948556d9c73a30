"""Recorded history edits under a lease, also repeated, outdated and damaged ones. Without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, StateError, StoreError, UsageError
from gc_assets.core.plan import Unreadable
from gc_assets.engine import run_context as runs
from gc_assets.engine.run_context import RunContext
from gc_assets.engine.tables import read_rows
from gc_assets.lakes.iceberg.lake import IcebergLake
from gc_assets.lakes.icechunk.lake import IcechunkLake
from gc_assets.lakes.kinds import config_of
from gc_assets.lakes.protocol import DELETE_IDLE_BRANCH, ExpiryAction, ExpiryOutcome
from gc_assets.stages.delete import expire
from gc_assets.stages.delete.expire import ExpiryRecord, announce_deletions, end_edits, make_edits, undo_expiry
from gc_assets.stages.mark.idle_branches import BranchLog, find_deleted_branches
from gc_assets.stages.records.plans import StoredPlan, list_damage, load_plan
from gc_assets.state.schemas import COMMIT_GRAPH, EXPIRY_LOG
from gc_assets.stores.local.lease import LocalLease, acquire
from gc_assets.stores.protocol import LEASE_DURATION
from tests.assets.platforms import NOW, platform, stored_plan
from tests.lakes.icechunk.builder import RepositoryBuilder, document_tree
from tests.lakes.icechunk.icechunk_lakes import FAR_FUTURE, commits_of, lake_at, parents_now, plan_actions, verdicts
from tests.lakes.icechunk.v2.recordings import unpack_recording

START = datetime(2026, 1, 1, tzinfo=UTC)
AS_OF = datetime(2026, 3, 14, tzinfo=UTC)
EDITS = [ExpiryAction("remove_snapshot", str(number), "old", table_uuid="u", table_name="db.t") for number in range(4)]


class ScriptedLake(IcebergLake):
    """A lake with the answers of the test. `between` is called before each answer."""

    def __init__(self, answers: Sequence[tuple[Any, ...]], between: Callable[[], None] = lambda: None) -> None:
        self.name = "sales"
        self.answers = answers
        self.between = between

    def expire(self, actions: Sequence[ExpiryAction], as_of: datetime, grace_cutoff: datetime) -> Iterator[ExpiryOutcome]:
        for action, answer in zip(actions, self.answers, strict=False):
            self.between()
            yield ExpiryOutcome(action, *answer)


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    (tmp_path / "warehouse").mkdir()
    at = platform(tmp_path, mode="apply")
    return at.run_context(NOW.date())


@pytest.fixture
def plan(context: RunContext, tmp_path: Path) -> StoredPlan:
    return load_plan(context.config, stored_plan(platform(tmp_path, mode="apply")))


def take_lease(plan: StoredPlan, clock: Clock) -> LocalLease:
    return acquire(plan.header.location, plan.header.plan_id, "tester", clock)


def run_edits(monkeypatch: pytest.MonkeyPatch, record: ExpiryRecord, lease: LocalLease, lake: ScriptedLake) -> dict[str, str]:
    """Return the newest verdict of each edit after a run."""
    monkeypatch.setattr(runs, "open_lake", lambda *_: lake)
    make_edits(record, EDITS, lease)
    return {action.snapshot_id: item.verdict for action, item in record.outcomes().items()}


def end(monkeypatch: pytest.MonkeyPatch, record: ExpiryRecord, plan: StoredPlan, actions: list[ExpiryAction], lease: LocalLease) -> None:
    monkeypatch.setattr(expire, "read_actions", lambda *_: {record.lake: actions})
    end_edits(record.context, plan, lease)


def test_each_apply_writes_its_own_outcome_file_per_lease(monkeypatch: pytest.MonkeyPatch, context: RunContext, plan: StoredPlan) -> None:
    record, first = ExpiryRecord(context, plan.header, "sales"), take_lease(plan, context.clock)
    assert run_edits(monkeypatch, record, first, ScriptedLake([("failed", "locked")] * 4)) == dict.fromkeys("0123", "failed")
    first.release()
    second = take_lease(plan, context.clock)
    assert run_edits(monkeypatch, record, second, ScriptedLake([("done",)] * 4)) == dict.fromkeys("0123", "done")
    names = [item.name for item in context.state.files.list(f"warehouse/apply/{plan.header.plan_id}/expiry/sales")]
    assert sorted(names) == ["000001-00000.outcome.json", "000002-00001.outcome.json", "intent.json"]


def test_lease_is_renewed_during_edits(monkeypatch: pytest.MonkeyPatch, context: RunContext, plan: StoredPlan) -> None:
    """Each edit takes longer than half the duration of a lease."""
    times = [context.clock.now()]

    class Passing(Clock):
        def now(self) -> datetime:
            return times[0]

    clock = Passing()
    lease = take_lease(plan, clock)

    def slowly() -> None:
        times[0] += LEASE_DURATION * 0.6
        with pytest.raises(GateRefused, match="is being changed by"):
            take_lease(plan, clock)

    record = ExpiryRecord(replace(context, clock=clock), plan.header, "sales")
    assert run_edits(monkeypatch, record, lease, ScriptedLake([("done",)] * 4, slowly)) == dict.fromkeys("0123", "done")


def test_interrupted_edits_are_recorded(monkeypatch: pytest.MonkeyPatch, context: RunContext, plan: StoredPlan) -> None:
    record, left = ExpiryRecord(context, plan.header, "sales"), [None, None]

    def interrupt_after_two() -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()

    lease = take_lease(plan, context.clock)
    with pytest.raises(KeyboardInterrupt):
        run_edits(monkeypatch, record, lease, ScriptedLake([("done",)] * 4, interrupt_after_two))
    assert {action.snapshot_id: item.verdict for action, item in record.outcomes().items()} == dict.fromkeys("01", "done")
    assert run_edits(monkeypatch, record, lease, ScriptedLake([("absent",), ("done",)])) == dict.fromkeys("0123", "done")


def test_interrupted_edits_are_not_recorded_if_lease_was_lost(
    monkeypatch: pytest.MonkeyPatch, context: RunContext, plan: StoredPlan
) -> None:
    record, lease = ExpiryRecord(context, plan.header, "sales"), take_lease(plan, context.clock)

    left = [None]

    def lose_after_one() -> None:
        if not left:
            lease.release()
            raise KeyboardInterrupt
        left.pop()

    with pytest.raises(KeyboardInterrupt):
        run_edits(monkeypatch, record, lease, ScriptedLake([("done",)] * 4, lose_after_one))
    assert record.outcomes() == {}


def test_apply_that_lost_its_lease_stops_and_next_apply_finds_edits(
    monkeypatch: pytest.MonkeyPatch, context: RunContext, plan: StoredPlan
) -> None:
    record, lease = ExpiryRecord(context, plan.header, "sales"), take_lease(plan, context.clock)
    with pytest.raises(GateRefused, match="lost"):
        run_edits(monkeypatch, record, lease, ScriptedLake([("done",)] * 4, lambda: lease.release()))
    assert record.outcomes() == {}
    again = ScriptedLake([("absent",), *[("done",)] * 3])
    assert run_edits(monkeypatch, record, take_lease(plan, context.clock), again) == dict.fromkeys("0123", "done")


def test_damaged_history_blocks_planning_until_its_record_is_removed(
    monkeypatch: pytest.MonkeyPatch, context: RunContext, plan: StoredPlan
) -> None:
    record, lease = ExpiryRecord(context, plan.header, "sales"), take_lease(plan, context.clock)
    lost = ("failed", "the catalog dropped tag audit", True)
    assert list_damage(context.state, ["sales"]) == []
    assert set(run_edits(monkeypatch, record, lease, ScriptedLake([lost] * 4)).values()) == {"failed"}
    # The second run finds the snapshots removed, which does not tell whether the tag was lost.
    assert set(run_edits(monkeypatch, record, lease, ScriptedLake([("absent",)] * 4)).values()) == {"failed"}
    assert not record.settled_actions()
    end(monkeypatch, record, plan, EDITS, lease)
    assert {item.verdict for item in record.outcomes().values()} == {"changed"}
    assert "dropped tag audit" in str(record.outcomes()[EDITS[0]].error)
    (messages,) = list_damage(context.state, ["weather", "sales"])
    assert "Lake sales" in messages
    assert "the catalog dropped tag audit" in messages
    path = Path(messages.rpartition("then remove ")[2].rstrip(".").removeprefix("file://"))
    path.write_text("{")
    with pytest.raises(StateError, match="damaged"):
        list_damage(context.state, ["sales"])
    path.unlink()
    assert list_damage(context.state, ["sales"]) == []


def test_outdated_plan_starts_no_edit_and_gives_up_failed_ones(
    monkeypatch: pytest.MonkeyPatch, context: RunContext, plan: StoredPlan
) -> None:
    record, lease = ExpiryRecord(context, plan.header, "sales"), take_lease(plan, context.clock)
    run_edits(monkeypatch, record, lease, ScriptedLake([("done",), ("failed", "locked"), ("changed", "kept")]))
    end(monkeypatch, record, plan, EDITS, lease)
    assert {action.snapshot_id: item.verdict for action, item in record.outcomes().items()} == {
        "0": "done",
        "1": "changed",
        "2": "changed",
        "3": "changed",  # the lake gave no answer, which is a failure
    }
    assert list_damage(context.state, ["sales"]) == []


def test_undo_skips_lakes_that_are_no_longer_configured(context: RunContext, plan: StoredPlan, tmp_path: Path) -> None:
    trees = {name: document_tree(tmp_path / "warehouse" / name, START) for name in ("weather", "climate")}
    retention = {"default": {"keep": trees["weather"].cutoff.isoformat()}}

    def with_lakes(*names: str) -> RunContext:
        lakes = [
            {"name": name, "kind": "icechunk", "location": f"file://{tmp_path}/warehouse/{name}/", "retention": retention} for name in names
        ]
        document = {**context.config.model_dump(mode="json"), "lakes": lakes}
        return replace(context, config=config_of(document), as_of=AS_OF)

    both, header = with_lakes("weather", "climate"), plan.header.model_copy(update={"expiry_actions": {"weather": 3, "climate": 3}})
    before = {name: parents_now(lake_at(tree.builder.path), AS_OF) for name, tree in trees.items()}
    lease = take_lease(plan, context.clock)
    for name, tree in trees.items():
        make_edits(ExpiryRecord(both, header, name), plan_actions(lake_at(tree.builder.path, retention), AS_OF), lease)
    lease.release()
    after = {name: parents_now(lake_at(tree.builder.path), AS_OF) for name, tree in trees.items()}
    assert all(after[name] != before[name] for name in trees)

    assert set(undo_expiry(with_lakes("weather"), replace(plan, header=header))) == {"undone"}
    assert parents_now(lake_at(trees["weather"].builder.path), AS_OF) == before["weather"]
    assert parents_now(lake_at(trees["climate"].builder.path), AS_OF) == after["climate"]
    with pytest.raises(UsageError, match="made no history edit that can be undone"):
        undo_expiry(context, replace(plan, header=header.model_copy(update={"expiry_actions": {"gone": 1}})))


def test_edit_outcomes_before_error_are_recorded(monkeypatch: pytest.MonkeyPatch, context: RunContext, plan: StoredPlan) -> None:
    record, left = ExpiryRecord(context, plan.header, "sales"), [None, None]

    def fail_after_two() -> None:
        if not left:
            raise StoreError("the store does not answer")
        left.pop()

    with pytest.raises(StoreError):
        run_edits(monkeypatch, record, take_lease(plan, context.clock), ScriptedLake([("done",)] * 4, fail_after_two))
    assert {action.snapshot_id: item.verdict for action, item in record.outcomes().items()} == dict.fromkeys("01", "done")


@dataclass(frozen=True)
class Deletions:
    """Planned deletions of the branches `tmp-a` and `tmp-b` of the lake `weather`."""

    context: RunContext
    plan: StoredPlan
    builder: RepositoryBuilder
    actions: list[ExpiryAction]
    lease: LocalLease

    @property
    def record(self) -> ExpiryRecord:
        return ExpiryRecord(self.context, self.plan.header, "weather")

    def make(self) -> dict[str | None, str]:
        make_edits(self.record, self.actions, self.lease)
        return self.verdicts()

    def verdicts(self) -> dict[str | None, str]:
        return {action.ref_name: item.verdict for action, item in self.record.outcomes().items()}

    def interrupt_after_one(self) -> None:
        """Delete one branch, and record its intent only, as a killed apply does."""
        self.record.record_intent(self.actions)
        self.builder.reopen().delete_branch("tmp-a")

    def undo(self) -> dict[str, int]:
        self.lease.release()
        return undo_expiry(self.context, self.plan)

    def branches(self) -> set[str]:
        return set(self.builder.reopen().list_branches())

    def with_rules(self, *patterns: str) -> Deletions:
        retention = {"delete_idle": [{"match": pattern, "after": "30d"} for pattern in patterns]}
        lake = {"name": "weather", "kind": "icechunk", "location": f"file://{self.builder.path}/", "retention": retention}
        document = {**self.context.config.model_dump(mode="json"), "lakes": [lake]}
        return replace(self, context=replace(self.context, config=config_of(document)))


@pytest.fixture
def deletions(context: RunContext, plan: StoredPlan, tmp_path: Path) -> Deletions:
    builder = RepositoryBuilder.create(tmp_path / "warehouse" / "weather", START)
    head, names = builder.reopen().lookup_branch("main"), ["tmp-a", "tmp-b"]
    for name in names:
        builder.branch(name, head)
    actions = [ExpiryAction(DELETE_IDLE_BRANCH, head, "idle", "branch", name) for name in names]
    header = plan.header.model_copy(update={"expiry_actions": {"weather": 2}})
    found = Deletions(context, replace(plan, header=header), builder, actions, take_lease(plan, context.clock))
    return found.with_rules("tmp-.*")


def test_branch_without_matching_idle_rule_is_not_deleted(deletions: Deletions) -> None:
    changed = deletions.with_rules("tmp-b")
    assert changed.make() == {"tmp-a": "changed", "tmp-b": "done"}
    assert deletions.branches() == {"main", "tmp-a"}
    assert {item.error for item in changed.record.outcomes().values()} == {
        None,
        "no rule of `retention.delete_idle` matches the branch now",
    }
    assert changed.undo() == {"undone": 1}


@pytest.mark.parametrize("stale", [True, False], ids=["plan out of date", "rule removed"])
def test_outdated_branch_deletions_are_not_continued_and_can_be_undone(
    monkeypatch: pytest.MonkeyPatch, deletions: Deletions, *, stale: bool
) -> None:
    deletions.interrupt_after_one()
    changed = deletions if stale else deletions.with_rules()
    if stale:
        end(monkeypatch, deletions.record, deletions.plan, deletions.actions, deletions.lease)
    else:
        changed.make()
    monkeypatch.undo()
    assert changed.verdicts() == {"tmp-a": "changed", "tmp-b": "changed"}
    assert deletions.branches() == {"main", "tmp-b"}
    errors = {item.error or "" for item in deletions.record.outcomes().values()}
    assert all(error.endswith("; it may have been made, because an apply was interrupted") for error in errors)
    assert changed.undo() == {"undone": 2}
    assert deletions.branches() == {"main", "tmp-a", "tmp-b"}


def test_branch_deletions_of_killed_apply_are_in_log(deletions: Deletions) -> None:
    announce_deletions(deletions.plan, deletions.actions, deletions.record)
    deletions.interrupt_after_one()
    state = deletions.context.state
    rows = [row for run in state.runs("weather", EXPIRY_LOG.name) for row in read_rows(state, EXPIRY_LOG, run).to_pylist()]
    assert all(row["error"].startswith("about to delete the branch. A later row has the outcome;") for row in rows)
    refs = deletions.context.lake("weather").freeze(NOW)
    commits = pa.Table.from_pylist([{"table_uuid": None, "commit_id": deletions.actions[0].snapshot_id}], COMMIT_GRAPH.schema)
    (found,) = find_deleted_branches(BranchLog.of(rows), NOW - timedelta(days=3), refs, commits)
    assert (found.ref_name, found.head_commit_id) == ("tmp-a", deletions.actions[0].snapshot_id)


def test_interrupted_branch_deletions_are_continued_by_plan(deletions: Deletions) -> None:
    deletions.interrupt_after_one()
    assert deletions.make() == {"tmp-a": "done", "tmp-b": "done"}
    assert deletions.branches() == {"main"}
    assert deletions.undo() == {"undone": 2}


def test_undo_takes_the_lease_of_a_moved_storage_at_its_new_location(deletions: Deletions, tmp_path: Path) -> None:
    """No storage is at the location of the plan any more."""
    deletions.make()
    deletions.lease.release()
    (tmp_path / "warehouse").rename(tmp_path / "moved")
    document = deletions.context.config.model_dump(mode="json")
    document["storages"][0]["location"] = f"file://{tmp_path}/moved/"
    document["lakes"][0]["location"] = f"file://{tmp_path}/moved/weather/"
    context = replace(deletions.context, config=config_of(document))
    other = acquire(f"file://{tmp_path}/moved/", "other", "eve", Clock())
    with pytest.raises(GateRefused, match="eve"):
        undo_expiry(context, deletions.plan)
    other.release()
    assert undo_expiry(context, deletions.plan) == {"undone": 2}


@dataclass(frozen=True)
class KilledExpiry:
    """History edits of the lake `weather` whose apply was killed before it recorded an outcome."""

    context: RunContext
    plan: StoredPlan
    lake: IcechunkLake
    actions: list[ExpiryAction]
    history: dict[str, str | None]

    @property
    def record(self) -> ExpiryRecord:
        return ExpiryRecord(self.context, self.plan.header, "weather")

    def undo(self) -> dict[str, int]:
        return undo_expiry(self.context, self.plan)


@pytest.fixture(params=[1, 2])
def killed_expiry(request: pytest.FixtureRequest, context: RunContext, plan: StoredPlan, tmp_path: Path) -> KilledExpiry:
    if request.param == 1:
        path = document_tree(tmp_path / "warehouse" / "weather", START).builder.path
    else:
        path = unpack_recording("document", tmp_path / "warehouse").path
    times = sorted(commit.committed_at for commit in commits_of(lake_at(path), lake_at(path).freeze(AS_OF)))
    retention = {"default": {"keep": times[8].isoformat()}, "dangling": "2099-01-01"}
    lake, settings = lake_at(path, retention, semantics="icechunk"), {"retention": retention, "expiry": {"semantics": "icechunk"}}
    document = context.config.model_dump(mode="json")
    document["lakes"] = [{"name": "weather", "kind": "icechunk", "location": f"file://{path}/", **settings}]
    actions = plan_actions(lake, FAR_FUTURE)
    header = plan.header.model_copy(update={"expiry_actions": {"weather": len(actions)}})
    found = KilledExpiry(
        replace(context, config=config_of(document)), replace(plan, header=header), lake, actions, parents_now(lake, AS_OF)
    )
    found.record.record_intent(actions)
    assert verdicts(lake.expire(actions, FAR_FUTURE, FAR_FUTURE)) == {"done"}
    assert parents_now(lake, AS_OF) != found.history
    return found


@pytest.mark.parametrize("closing", ["ended", "lake became unreadable"])
def test_unrecorded_history_edits_of_closed_plan_can_be_undone(
    monkeypatch: pytest.MonkeyPatch, killed_expiry: KilledExpiry, closing: str
) -> None:
    lease = take_lease(killed_expiry.plan, killed_expiry.context.clock)
    if closing == "ended":
        end(monkeypatch, killed_expiry.record, killed_expiry.plan, killed_expiry.actions, lease)
        monkeypatch.undo()
    else:
        make_edits(killed_expiry.record, killed_expiry.actions, lease, [Unreadable(lake="weather", why="damaged", since=NOW)])
    lease.release()
    outcomes = killed_expiry.record.outcomes().values()
    assert {item.verdict for item in outcomes} == {"changed"}
    assert all("it may have been made, because an apply was interrupted" in str(item.error) for item in outcomes)
    assert killed_expiry.undo() == {"undone": len(killed_expiry.actions)}
    assert parents_now(killed_expiry.lake, AS_OF) == killed_expiry.history


def test_undo_of_uncertain_history_edit_keeps_parent_that_another_tool_changed(
    monkeypatch: pytest.MonkeyPatch, killed_expiry: KilledExpiry
) -> None:
    edit = next(action for action in killed_expiry.actions if action.action == "edit_parent")
    actions = [replace(edit, new_parent_id=edit.snapshot_id)]
    lease = take_lease(killed_expiry.plan, killed_expiry.context.clock)
    end(monkeypatch, killed_expiry.record, killed_expiry.plan, actions, lease)
    monkeypatch.undo()
    lease.release()
    before = parents_now(killed_expiry.lake, AS_OF)
    assert killed_expiry.undo() == {"changed": 1}
    assert parents_now(killed_expiry.lake, AS_OF) == before


def test_plan_that_never_started_has_no_history_edit_to_undo(monkeypatch: pytest.MonkeyPatch, killed_expiry: KilledExpiry) -> None:
    header = killed_expiry.plan.header.model_copy(update={"plan_id": "b" * 64})
    other = replace(killed_expiry, plan=replace(killed_expiry.plan, header=header))
    lease = take_lease(other.plan, other.context.clock)
    end(monkeypatch, other.record, other.plan, other.actions, lease)
    monkeypatch.undo()
    lease.release()
    with pytest.raises(UsageError, match="made no history edit that can be undone"):
        other.undo()
