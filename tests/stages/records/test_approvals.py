"""A plan is approved by its id, complete and intact, in time, and with overrides of specific gates."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from gc_assets.core.approvals import ApprovalEvent
from gc_assets.core.clock import Clock
from gc_assets.core.errors import GateRefused, StateError, UsageError
from gc_assets.core.gates import delete_bytes, live_set
from gc_assets.core.plan import Amount, PlanHeader, seal
from gc_assets.engine.recorded_names import record_names, record_storage_id, with_recorded_names
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.kinds import config_of
from gc_assets.resources.platform import Platform
from gc_assets.stages.delete import apply, close
from gc_assets.stages.delete.apply import apply_plan, refuse_apply
from gc_assets.stages.delete.close import close_plan
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.records import plans
from gc_assets.stages.records.plans import (
    approve,
    execution_directory,
    find_plan,
    list_plans,
    record_finished,
    record_restored,
    refuse_unapproved,
    reject,
    unfinished_plans,
)
from gc_assets.state.files import Files
from gc_assets.state.journal import PublishedTable, State
from gc_assets.state.schemas import DELETION_PLAN
from gc_assets.stores.write_ahead import WriteAheadLog, open_log
from tests.assets.platforms import NOW, platform, stored_plan


@pytest.fixture
def at(tmp_path: Path) -> Platform:
    return platform(tmp_path)


def store_plan(at: Platform, **how: Any) -> PlanHeader:
    return header_of(stored_plan(at, **how))


def change_plan(at: Platform, header: PlanHeader, **changes: Any) -> PlanHeader:
    """Seal and publish another plan over the same rows, next to the first."""
    published = find_plan(at.config, header.plan_id).published
    kept = {name: getattr(header, name) for name in PlanHeader.model_fields if name not in {"plan_id", "approve_before", "apply_before"}}
    other = seal(at.config.plan_secret(), **{**kept, **changes})
    state = State.at(at.config.state)
    run = state.start("warehouse", DELETION_PLAN.name, header.run_date, at.clock)
    for path in published.paths():
        state.files.replace(f"{run.path}/{Path(path).name}", state.files.read(path))
    receipt = published.receipt.model_copy(
        update={"run_id": run.run_id, "summary": {"plan_id": other.plan_id, "header": other.model_dump(mode="json")}}
    )
    state.publish(run, receipt)
    return other


def event_path(header: PlanHeader, number: int = 1) -> str:
    """Return the path of an approval event. The first is that of the only approval in 0.2.0."""
    return f"warehouse/approvals/{header.plan_id}{'' if number == 1 else f'-{number}'}.json"


def file_of(at: Platform, path: str) -> Path:
    return Path(at.config.state) / path


def edit_receipt(at: Platform, published: PublishedTable, edit: Any) -> None:
    path = file_of(at, f"{published.path}/_receipt.json")
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))
    file_of(at, "warehouse/deletion_plan/_index.json").unlink()


def test_approval_records_user_time_and_overrides(at: Platform) -> None:
    header = store_plan(at, max_delete_bytes=1)
    given = approve(at.config, at.clock, header.plan_id, "  ada ", ("delete_bytes", "delete_bytes"))
    assert (given.plan_id, given.by, given.at, given.overrides) == (header.plan_id, "ada", NOW, ("delete_bytes",))
    found = find_plan(at.config, header.plan_id)
    assert found.verdict.events == (given,)
    assert found.status_at(NOW) == "approved"


@pytest.mark.parametrize("length", [8, 12, 64])
def test_plan_is_found_by_a_prefix_of_its_id(at: Platform, length: int) -> None:
    header = store_plan(at)
    assert find_plan(at.config, header.plan_id[:length]).header == header


@pytest.mark.parametrize("length", [0, 1, 7])
def test_prefix_below_eight_characters_is_refused(at: Platform, length: int) -> None:
    header = store_plan(at)
    with pytest.raises(UsageError, match=r"too short for a plan id; give at least its first 8 characters \(see `gc-assets plans`\)"):
        find_plan(at.config, header.plan_id[:length])


def test_unknown_plan_id_is_refused(at: Platform) -> None:
    store_plan(at)
    with pytest.raises(UsageError, match="no plan with the id 0000000000; `gc-assets plans` lists"):
        find_plan(at.config, "0" * 10)


def collision(header: PlanHeader) -> tuple[int, int]:
    """Find two live counts whose plan ids share their first eight characters."""
    marked = header.model_copy(update={"live_files": 314159265358979})
    not_in_id = {"plan_id", "times_seal", "created_at", "approve_before", "apply_before", "left_out", "edits_by_action", "listed_at"}
    not_in_id |= {"missing_digest", "idle_branches", "path_edits", "deleted_paths", "warnings", "aliases"}
    substance = marked.model_dump(mode="json", exclude=not_in_id)
    substance["sick"] = substance.pop("unreadable")  # the key that ids have used since 0.3
    before, after = json.dumps(substance, sort_keys=True).encode().split(b"314159265358979")
    start, seen = hashlib.sha256(before), dict[bytes, int]()
    for count in range(10**6):
        tried = start.copy()
        tried.update(b"%d" % count + after)
        first = seen.setdefault(tried.digest()[:4], count)
        if first != count:
            return first, count
    raise AssertionError("no two ids share eight characters")


def test_ambiguous_prefix_approves_no_plan(at: Platform) -> None:
    header = store_plan(at)
    one, two = (change_plan(at, header, live_files=count) for count in collision(header))
    assert one.plan_id[:8] == two.plan_id[:8]
    with pytest.raises(UsageError, match=f"plan id {one.plan_id[:8]} is ambiguous: 2 plans"):
        approve(at.config, at.clock, one.plan_id[:8], "ada")
    assert find_plan(at.config, one.plan_id).verdict.events == ()
    assert approve(at.config, at.clock, two.plan_id, "ada").plan_id == two.plan_id


@pytest.mark.parametrize("refusal", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_read_only_state_lists_its_approvals(at: Platform, monkeypatch: pytest.MonkeyPatch, refusal: int) -> None:
    approval = approve(at.config, at.clock, store_plan(at).plan_id, "ada")
    file_of(at, "warehouse/apply/_records.json").unlink()

    def refuse(*_: object) -> bool:
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(Files, "replace_if", refuse)
    assert [plan.verdict.events for plan in list_plans(at.config)] == [(approval,)]
    assert not file_of(at, "warehouse/apply/_records.json").exists()


@pytest.mark.parametrize("by", ["", "  ", "\u200b"])
def test_approval_needs_a_user_name(at: Platform, by: str) -> None:
    with pytest.raises(UsageError, match="requires --by WHO"):
        approve(at.config, at.clock, store_plan(at).plan_id, by)


@pytest.mark.parametrize("decide", [approve, reject])
@pytest.mark.parametrize("by, comment", [("a\ud800", ""), ("ada", "a\ud800")])
def test_text_of_a_decision_must_be_utf8(at: Platform, decide: Callable[..., ApprovalEvent], by: str, comment: str) -> None:
    plan_id = store_plan(at).plan_id
    with pytest.raises(UsageError, match=r"cannot be recorded: --(by|comment) a\\ud800 is not UTF-8"):
        decide(at.config, at.clock, plan_id, by, comment=comment)
    assert find_plan(at.config, plan_id).verdict.events == ()


def test_plan_can_be_approved_until_its_deadline(at: Platform) -> None:
    header = store_plan(at)
    with pytest.raises(GateRefused, match=r"had to be approved before 2026-03-15 09:30Z, and it is now 2026-03-15 09:30Z"):
        approve(at.config, Clock(header.approve_before), header.plan_id, "ada")
    assert find_plan(at.config, header.plan_id).status_at(header.approve_before) == "expired"
    assert approve(at.config, Clock(header.approve_before - timedelta(microseconds=1)), header.plan_id, "ada")
    assert find_plan(at.config, header.plan_id).status_at(header.approve_before) == "approved"
    assert find_plan(at.config, header.plan_id).status_at(header.apply_before) == "expired"


def test_historical_plan_is_never_approved(at: Platform) -> None:
    header = store_plan(at, run_date="2026-03-10", historical=True)
    with pytest.raises(GateRefused, match="it is historical, because no run read the lakes on 2026-03-10"):
        approve(at.config, at.clock, header.plan_id, "ada")


def test_plan_cannot_be_approved_with_another_clock(at: Platform) -> None:
    """Under a clock that is set back, an outdated plan could be approved."""
    real = change_plan(at, store_plan(at), rehearsal=False)
    with pytest.raises(GateRefused, match="was made with the real clock, and GC_ASSETS_UNSAFE_NOW replaces the clock now"):
        approve(at.config, at.clock, real.plan_id, "ada")
    with pytest.raises(GateRefused, match="with the real clock: it was made in a rehearsal"):
        approve(at.config, Clock(), store_plan(at).plan_id, "ada")


KEY = "correct horse battery staple"


def with_key(at: Platform, key: str | None = KEY) -> Platform:
    return replace(at, config=at.config.model_copy(update={"plan_key": SecretStr(key) if key else None}))


def test_plan_cannot_be_forged_without_plan_key(at: Platform) -> None:
    """A user who can write the state can change a plan and its digest, but cannot make its HMAC."""
    owner = with_key(at)
    header = store_plan(owner)
    assert header.keyed
    assert approve(owner.config, at.clock, header.plan_id, "ada").plan_id == header.plan_id
    forger = change_plan(with_key(at, "a key of the forger's own"), header, live_files=8)
    with pytest.raises(GateRefused, match="changed after it was made, or it was made with another plan_key"):
        approve(owner.config, at.clock, forger.plan_id, "ada")


def test_plan_without_key_is_refused_if_plan_key_is_configured(at: Platform) -> None:
    header = store_plan(at)
    assert not header.keyed
    approve(at.config, at.clock, header.plan_id, "ada")
    with pytest.raises(GateRefused, match=r"made without a plan_key.*has one now.*`gc-assets run`"):
        approve(with_key(at).config, at.clock, header.plan_id, "ada")
    run_context = with_key(platform(Path(at.config.state).parent, mode="apply")).run_context(NOW.date())
    with pytest.raises(GateRefused, match="made without a plan_key"):
        refuse_apply(run_context, find_plan(run_context.config, header.plan_id))


def test_plan_with_lost_plan_key_can_be_restored_but_not_approved(at: Platform) -> None:
    header = store_plan(with_key(at))
    for later in (at, with_key(at, "the key of the year after")):
        assert find_plan(later.config, header.plan_id).header == header
    with pytest.raises(GateRefused, match=r"made with a plan_key.*has none now"):
        approve(at.config, at.clock, header.plan_id, "ada")


def test_plan_key_is_neither_in_policy_nor_in_state(at: Platform) -> None:
    owner = with_key(at)
    assert owner.config.policy_digest() == at.config.policy_digest()
    approve(owner.config, at.clock, store_plan(owner).plan_id, "ada")
    assert not any(KEY.encode() in path.read_bytes() for path in Path(at.config.state).rglob("*") if path.is_file())
    assert KEY not in repr(owner.config) + owner.config.model_dump_json()


def test_failed_gate_needs_matching_override(at: Platform) -> None:
    header = store_plan(at, max_delete_bytes=1)
    with pytest.raises(
        GateRefused, match=r"storage warehouse is refused by its gates:\n  delete_bytes: 200 B planned.*--override delete_bytes"
    ):
        approve(at.config, at.clock, header.plan_id, "ada")
    assert find_plan(at.config, header.plan_id).status_at(NOW) == "refused"
    assert approve(at.config, at.clock, header.plan_id, "ada", ("delete_bytes",)).overrides == ("delete_bytes",)


def test_gate_that_proves_wrong_live_set_has_no_override(at: Platform) -> None:
    header = change_plan(at, store_plan(at), gates=(live_set(0, 3, planned=1), delete_bytes(Amount(bytes=2), 1)))
    with pytest.raises(GateRefused, match=r"(?s)live_set: 0 live files.*This gate cannot be overridden") as refusal:
        approve(at.config, at.clock, header.plan_id, "ada", ("live_set", "delete_bytes"))
    assert "delete_bytes" not in str(refusal.value)


def test_unknown_override_error_lists_known_ones(at: Platform) -> None:
    header = change_plan(at, store_plan(at), gates=(live_set(1, 3, planned=1), delete_bytes(Amount(), 1)))
    with pytest.raises(UsageError, match=r"--override delete_byte: no such gate. Gates that can be overridden: delete_bytes$"):
        approve(at.config, at.clock, header.plan_id, "ada", ("delete_byte",))
    assert find_plan(at.config, header.plan_id).verdict.events == ()


@pytest.mark.parametrize("name, status", [("finished", "applied"), ("restored", "restored")])
def test_plan_can_be_applied_only_once(at: Platform, name: str, status: str) -> None:
    header = store_plan(at)
    State.at(at.config.state).files.replace(f"{execution_directory(header)}/{name}.json", json.dumps({"at": NOW.isoformat()}).encode())
    with pytest.raises(GateRefused, match=f"it is {status}, and each plan can be used only once"):
        approve(at.config, at.clock, header.plan_id, "ada")


def test_changed_plan_header_is_refused(at: Platform) -> None:
    published = stored_plan(at, max_delete_bytes=1)

    def pass_the_gate(document: dict[str, Any]) -> None:
        document["summary"]["header"]["gates"][0]["passed"] = True

    edit_receipt(at, published, pass_the_gate)
    with pytest.raises(StateError, match=r"was changed after the plan was made\. Make a new plan with `gc-assets run`"):
        find_plan(at.config, header_of(published).plan_id)


def test_changed_plan_receipt_is_refused(at: Platform) -> None:
    published = stored_plan(at)
    path = file_of(at, f"{published.path}/_receipt.json")
    path.write_text(path.read_text().replace('"historical": false', '"historical": true'))
    with pytest.raises(StateError, match="was changed after publication"):
        find_plan(at.config, header_of(published).plan_id)


@pytest.mark.parametrize("damage", ["header", "plan_id", "rows_digest"])
def test_incomplete_plan_header_is_refused(at: Platform, damage: str) -> None:
    def cut(document: dict[str, Any]) -> None:
        summary = document["summary"]
        del (summary["header"] if damage == "rows_digest" else summary)[damage]

    edit_receipt(at, stored_plan(at), cut)
    with pytest.raises(StateError, match=r"warehouse/deletion_plan/.* is damaged.*run its asset again"):
        list(list_plans(at.config))


def test_plan_rows_that_do_not_match_header_are_refused(at: Platform) -> None:
    published = stored_plan(at)
    edit_receipt(at, published, lambda document: document.update(digest="f" * 16))
    with pytest.raises(StateError, match="was changed after the plan was made"):
        find_plan(at.config, header_of(published).plan_id)


def test_changed_plan_rows_are_neither_approved_nor_applied(at: Platform) -> None:
    """The length and the receipt are intact: without the checksum another key would be deleted."""
    published = stored_plan(at)
    header, path = header_of(published), file_of(at, published.paths()[0])
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    with pytest.raises(StateError, match=r"part-.*is damaged \("):
        find_plan(at.config, header.plan_id)
    with pytest.raises(StateError, match="is damaged"):
        approve(at.config, at.clock, header.plan_id, "ada")


def test_plan_copied_to_another_storage_is_refused(at: Platform) -> None:
    header = store_plan(at)
    state = Path(at.config.state)
    storage = at.config.storage("warehouse")
    other = at.config.model_copy(
        update={"storages": (storage, storage.model_copy(update={"name": "archive", "location": "file:///archive/"}))}
    )
    shutil.copytree(state / "warehouse", state / "archive")
    with pytest.raises(StateError, match=f"plan {header.plan_id[:12]} of storage warehouse: .* is a copy of it among the plans of archive"):
        find_plan(other, header.plan_id)


def test_approval_of_another_plan_is_ignored(at: Platform) -> None:
    approved, other = store_plan(at), store_plan(at, files=3)
    given = approve(at.config, at.clock, approved.plan_id, "ada")
    State.at(at.config.state).files.replace(event_path(other), given.model_dump_json().encode())
    with pytest.raises(StateError, match=f"contains an event of plan {approved.plan_id[:12]}, not of the plan in its name"):
        find_plan(at.config, other.plan_id)


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]", b'{"plan_id": "x", "by": "ada"}'])
def test_damaged_approval_raises_error(at: Platform, content: bytes) -> None:
    header = store_plan(at)
    State.at(at.config.state).files.replace(event_path(header), content)
    with pytest.raises(StateError, match=rf"approvals/{header.plan_id}\.json"):
        find_plan(at.config, header.plan_id)


@pytest.mark.parametrize("content", [b"{", b"{}", b"[]", b'{"at": "soon"}'])
def test_damaged_restore_record_raises_error(at: Platform, content: bytes) -> None:
    header = store_plan(at)
    State.at(at.config.state).files.replace(f"{execution_directory(header)}/restored.json", content)
    with pytest.raises(StateError, match=r"restored\.json.*damaged"):
        find_plan(at.config, header.plan_id)


def test_listing_many_plans_needs_few_requests(at: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [store_plan(at, files=number).plan_id for number in range(1, 13)]
    for plan_id in made:
        approve(at.config, at.clock, plan_id, "ada")
    state, requests = State.at(at.config.state), list[str]()
    record_finished(state, find_plan(at.config, made[0]).header, {"at": NOW.isoformat()})
    record_restored(state, "warehouse", made[1], NOW, "restore-1")
    for name in ("read", "list", "directories"):
        inner = getattr(Files, name)

        def count_requests(files: Files, path: str, inner: Any = inner) -> Any:
            requests.append(path)
            return inner(files, path)

        monkeypatch.setattr(Files, name, count_requests)
    found = {plan.header.plan_id: plan.status_at(NOW) for plan in list_plans(at.config)}
    assert [found[plan_id] for plan_id in made] == ["applied", "restored", *["approved"] * 10]
    assert len(requests) == 4


def test_plan_records_of_older_release_are_read_only_once(at: Platform) -> None:
    made = [store_plan(at, files=number) for number in (1, 2, 3)]
    state = State.at(at.config.state)
    for header in made:
        approve(at.config, at.clock, header.plan_id, "ada")
    record_finished(state, made[0], {"at": NOW.isoformat()})
    record_restored(state, "warehouse", made[1].plan_id, NOW, "restore-1")
    before = list(list_plans(at.config))
    records_file = file_of(at, "warehouse/apply/_records.json")
    noted = records_file.read_text()
    records_file.unlink()
    assert list(list_plans(at.config)) == before
    assert records_file.read_text() == noted
    file_of(at, event_path(made[2])).unlink()
    assert {plan.header.plan_id: plan.verdict.events for plan in list_plans(at.config)}[made[2].plan_id] == ()


def test_approval_does_not_revoke_rejection_by_another_user(at: Platform) -> None:
    header = store_plan(at, max_delete_bytes=1)
    mine = approve(at.config, at.clock, header.plan_id, "ada", ("delete_bytes",), "the owners agreed")
    other = approve(at.config, at.clock, header.plan_id, "grace", ("delete_bytes",))
    (plan,) = list_plans(at.config)
    assert plan.verdict == find_plan(at.config, header.plan_id).verdict
    assert plan.verdict.events == (mine, other)
    assert (plan.verdict.approved_by, plan.verdict.overrides) == ("ada, grace", ("delete_bytes",))
    assert str(mine) == "approved by ada at 2026-03-14 09:30:00Z, overriding delete_bytes: the owners agreed"


def test_override_needs_as_many_users_as_approval(at: Platform) -> None:
    """If two approvals are needed, a gate must be overridden by two users."""
    both = platform(Path(at.config.state).parent, approvals_needed=2)
    header = store_plan(both)
    approve(both.config, both.clock, header.plan_id, "ada", ("delete_bytes",))
    assert find_plan(both.config, header.plan_id).status_at(NOW) == "ready"
    approve(both.config, both.clock, header.plan_id, "grace")
    verdict = find_plan(both.config, header.plan_id).verdict
    assert (verdict.is_approved, verdict.overrides) == (True, ())
    approve(both.config, both.clock, header.plan_id, "grace", ("delete_bytes",))
    assert find_plan(both.config, header.plan_id).verdict.overrides == ("delete_bytes",)


def test_repeated_approval_is_recorded_once(at: Platform) -> None:
    header = store_plan(at, max_delete_bytes=1)
    first = approve(at.config, at.clock, header.plan_id, "ada", ("delete_bytes",), "the owners agreed")
    later = Clock(NOW + timedelta(hours=1))
    for comment in ("", "the owners agreed"):
        assert approve(at.config, later, header.plan_id, " ada", ("delete_bytes",), comment) == first
    assert find_plan(at.config, header.plan_id).verdict.events == (first,)
    other = approve(at.config, later, header.plan_id, "ada", ("delete_bytes",), "also the auditor")
    reject(at.config, later, header.plan_id, "ada")
    last = approve(at.config, later, header.plan_id, "ada", ("delete_bytes",), "also the auditor")
    events = find_plan(at.config, header.plan_id).verdict.events
    assert [event.decision for event in events] == ["approved", "approved", "rejected", "approved"]
    assert (events[1], events[3]) == (other, last)


@pytest.mark.parametrize("again", ["ada", " Ada ", "ADA", "\uff41da", "a\u200bda", "ada\ufe0f", "\u202eada\u202c", "a\u00adda\u3164"])
def test_two_spellings_of_user_name_count_as_one_approval(at: Platform, again: str) -> None:
    both = platform(Path(at.config.state).parent, approvals_needed=2)
    header = store_plan(both)
    approve(both.config, both.clock, header.plan_id, "ada")
    approve(both.config, both.clock, header.plan_id, again)
    plan = find_plan(both.config, header.plan_id)
    assert plan.verdict.missing == "approved by 1 of 2 people that its storage requires"
    with pytest.raises(GateRefused, match=r"approved by 1 of 2 people.*gc-assets approve [0-9a-f]{12} --by ANOTHER_NAME"):
        refuse_unapproved(plan)
    approve(both.config, both.clock, header.plan_id, "grace")
    refuse_unapproved(find_plan(both.config, header.plan_id))


def test_rejection_applies_until_rejecting_user_approves(at: Platform) -> None:
    header = store_plan(at)
    approve(at.config, at.clock, header.plan_id, "ada")
    reject(at.config, at.clock, header.plan_id, "grace", "orders is being migrated")
    approve(at.config, at.clock, header.plan_id, "kim")
    (listed,), plan = list_plans(at.config), find_plan(at.config, header.plan_id)
    assert listed.status_at(NOW) == plan.status_at(NOW) == "rejected"
    with pytest.raises(
        GateRefused,
        match=r"was rejected by grace at .*: orders is being migrated\. Only the same name can approve it: `gc-assets approve ",
    ):
        refuse_unapproved(plan)
    approve(at.config, at.clock, header.plan_id, "grace")
    (listed,) = list_plans(at.config)
    assert listed.status_at(NOW) == "approved"
    assert [word.decision for word in listed.verdict.events] == ["approved", "rejected", "approved", "approved"]


def test_rejection_while_apply_marks_lakes_stops_the_apply(at: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark can take hours, and no file has been moved until it ends."""
    at = platform(tmp_path, mode="apply")
    header = store_plan(at)
    approve(at.config, at.clock, header.plan_id, "ada")
    (tmp_path / "warehouse").mkdir()
    monkeypatch.setattr(apply, "make_verification_mark", lambda *_, **__: reject(at.config, at.clock, header.plan_id, "bob"))
    with pytest.raises(GateRefused, match="was rejected by bob at"):
        apply_plan(None, at.run_context(header.run_date), find_plan(at.config, header.plan_id))  # type: ignore[arg-type]
    assert unfinished_plans(State.of(at.config), "warehouse") == []
    assert at.run_context(header.run_date).store("warehouse").holder() is None


@pytest.fixture
def applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Platform, PlanHeader]:
    """An approved plan, whose apply stops before its first action with the error `first action`."""
    at = platform(tmp_path, mode="apply")
    header = store_plan(at)
    approve(at.config, at.clock, header.plan_id, "ada")
    (tmp_path / "warehouse").mkdir()
    monkeypatch.setattr(apply, "make_verification_mark", lambda *_, **__: None)
    monkeypatch.setattr(apply, "PlanExecution", raise_first_action)
    return at, header


def raise_first_action(*_: Any, **__: Any) -> None:
    raise InterruptedError("first action")


def apply_again(at: Platform, header: PlanHeader) -> None:
    apply_plan(None, at.run_context(header.run_date), find_plan(at.config, header.plan_id))  # type: ignore[arg-type]


def reject_then_open(at: Platform, header: PlanHeader) -> Any:
    """Return an `open_log` that runs just after `reject` has returned."""

    def open_later(*arguments: Any) -> WriteAheadLog:
        reject(at.config, at.clock, header.plan_id, "bob")
        return open_log(*arguments)

    return open_later


def open_then_die(at: Platform, header: PlanHeader) -> Any:
    """Return the same, but the process dies after it has created the log."""

    def open_later(*arguments: Any) -> None:
        reject_then_open(at, header)(*arguments)
        raise InterruptedError("killed")

    return open_later


def test_rejection_just_before_the_log_exists_stops_the_apply(
    applied: tuple[Platform, PlanHeader], monkeypatch: pytest.MonkeyPatch
) -> None:
    at, header = applied
    monkeypatch.setattr(apply, "open_log", reject_then_open(at, header))
    with pytest.raises(GateRefused, match="was rejected by bob at"):
        apply_again(at, header)
    assert unfinished_plans(State.of(at.config), "warehouse") == []
    assert [plan.status_at(NOW) for plan in list_plans(at.config)] == ["rejected"]
    monkeypatch.setattr(apply, "open_log", open_log)
    approve(at.config, at.clock, header.plan_id, "bob")
    with pytest.raises(InterruptedError, match="first action"):
        apply_again(at, header)


def test_apply_killed_before_it_read_the_rejection_does_not_continue(
    applied: tuple[Platform, PlanHeader], monkeypatch: pytest.MonkeyPatch
) -> None:
    at, header = applied
    monkeypatch.setattr(apply, "open_log", open_then_die(at, header))
    with pytest.raises(InterruptedError, match="killed"):
        apply_again(at, header)
    monkeypatch.setattr(apply, "open_log", open_log)
    with pytest.raises(GateRefused, match="was rejected by bob at"):
        apply_again(at, header)
    assert [plan.status_at(NOW) for plan in list_plans(at.config)] == ["rejected"]


@pytest.mark.parametrize("leftover", [[], [".log.json.0.tmp"]], ids=["after mkdir", "before the rename"])
def test_apply_killed_before_its_log_exists_has_not_begun(
    applied: tuple[Platform, PlanHeader], monkeypatch: pytest.MonkeyPatch, leftover: list[str]
) -> None:
    at, header = applied
    directory = file_of(at, execution_directory(header))

    def die(*_: Any) -> None:
        directory.mkdir(parents=True)
        for name in leftover:
            (directory / name).touch()
        raise InterruptedError("killed")

    monkeypatch.setattr(apply, "open_log", die)
    with pytest.raises(InterruptedError, match="killed"):
        apply_again(at, header)
    monkeypatch.setattr(apply, "open_log", open_log)
    assert unfinished_plans(State.of(at.config), "warehouse") == []
    for plan in (*list_plans(at.config), find_plan(at.config, header.plan_id)):
        assert [plan.status_at(time) for time in (NOW, header.apply_before)] == ["approved", "expired"]
    with pytest.raises(UsageError, match="no apply has begun it"):
        close_plan(None, at.run_context(header.run_date), find_plan(at.config, header.plan_id))  # type: ignore[arg-type]
    reject(at.config, at.clock, header.plan_id, "bob")
    assert [plan.status_at(NOW) for plan in list_plans(at.config)] == ["rejected"]
    approve(at.config, at.clock, header.plan_id, "bob")
    with pytest.raises(InterruptedError, match="first action"):
        apply_again(at, header)
    assert unfinished_plans(State.of(at.config), "warehouse") == [header.plan_id]


def test_unfinished_plan_of_a_moved_storage_can_be_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = platform(tmp_path, mode="apply")
    header, state = store_plan(at), State.of(at.config)
    approve(at.config, at.clock, header.plan_id, "ada")
    (tmp_path / "warehouse").mkdir()
    named = with_recorded_names(at.config)
    record_names(named, state, at.clock)
    record_storage_id(named, state, "warehouse", at.clock)
    open_log(state.files, execution_directory(header), header.plan_id, 1)
    (tmp_path / "warehouse").rename(tmp_path / "moved")
    document = at.config.model_dump(mode="json")
    document["storages"][0]["location"] = f"file://{tmp_path}/moved/"
    config = with_recorded_names(config_of(document))
    context, plan = RunContext.of(config, at.clock, header.run_date), find_plan(config, header.plan_id)
    with pytest.raises(GateRefused, match=r"but lakes\.yaml now has .*/moved/.*gc-assets apply [0-9a-f]{12} --end`"):
        refuse_apply(context, plan)
    monkeypatch.setattr(close, "choose_session", lambda *_: None)
    monkeypatch.setattr(close, "PlanExecution", raise_first_action)
    with pytest.raises(InterruptedError, match="first action"):
        close_plan(None, context, plan)  # type: ignore[arg-type]
    (tmp_path / "moved/.gc-assets/storage_id.json").unlink()
    with pytest.raises(GateRefused, match="it was made for"):
        close_plan(None, context, plan)  # type: ignore[arg-type]


def test_late_rejection_does_not_stop_an_apply_that_has_logged_an_action(
    applied: tuple[Platform, PlanHeader], monkeypatch: pytest.MonkeyPatch
) -> None:
    at, header = applied
    monkeypatch.setattr(plans, "has_started", lambda *_: False)
    reject(at.config, at.clock, header.plan_id, "bob")
    open_log(State.of(at.config).files, execution_directory(header), header.plan_id, 1).write_intent(0, 1, [])
    with pytest.raises(InterruptedError, match="first action"):
        apply_again(at, header)


def test_user_learns_that_apply_began_during_the_rejection(at: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    header, answers = store_plan(at), iter([False, True])
    monkeypatch.setattr(plans, "has_started", lambda *_: next(answers))
    with pytest.raises(GateRefused, match=r"Cannot reject plan .* has begun, so it is too late"):
        reject(at.config, at.clock, header.plan_id, "bob")


def test_rejection_after_apply_began_has_no_effect(at: Platform) -> None:
    header, state = store_plan(at), State.at(at.config.state)
    reject(at.config, at.clock, header.plan_id, "ada")
    approve(at.config, at.clock, header.plan_id, "ada")
    reject(at.config, at.clock, header.plan_id, "grace")
    state.files.replace(f"{execution_directory(header)}/log.json", b"{}")
    plan, (listed,) = find_plan(at.config, header.plan_id), list_plans(at.config)
    refuse_unapproved(plan)
    assert listed.verdict.is_approved, "the sensor continues an interrupted apply"
    assert listed.verdict == plan.verdict
    assert [event.decision for event in plan.verdict.events] == ["rejected", "approved", "rejected"], "each decision stays visible"
    with pytest.raises(GateRefused, match=r"Cannot reject plan .* has begun, so it is too late.*gc-assets restore --plan"):
        reject(at.config, at.clock, header.plan_id, "kim")


def test_concurrent_approvals_and_rejections_are_all_recorded(at: Platform) -> None:
    header = store_plan(at)
    names = [f"person {number}" for number in range(16)]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: approve(at.config, at.clock, header.plan_id, name), names))
    events = find_plan(at.config, header.plan_id).verdict.events
    assert sorted(word.by for word in events) == sorted(names)
    assert [plan.verdict.events for plan in list_plans(at.config)] == [events]


def test_number_of_removed_approval_event_is_not_reused(at: Platform) -> None:
    header = store_plan(at)
    approve(at.config, at.clock, header.plan_id, "ada")
    approve(at.config, at.clock, header.plan_id, "grace")
    file_of(at, event_path(header, 2)).unlink()
    approve(at.config, at.clock, header.plan_id, "kim")
    assert [plan.verdict.approved_by for plan in list_plans(at.config)] == ["ada, kim"]
    assert file_of(at, event_path(header, 3)).exists()


def test_approval_of_an_older_release_is_kept(at: Platform) -> None:
    """0.2.0 wrote one file per plan, and its approval into the list of plans."""
    header, state = store_plan(at), State.at(at.config.state)
    written = {"plan_id": header.plan_id, "by": "ada", "at": NOW.isoformat(), "overrides": ["delete_bytes"]}
    state.files.replace(event_path(header), json.dumps(written).encode())
    state.files.replace("warehouse/apply/_records.json", json.dumps({header.plan_id: {"approval": written}}).encode())
    assert [(plan.status_at(NOW), plan.verdict.approved_by) for plan in list_plans(at.config)] == [("approved", "ada")]
    reject(at.config, at.clock, header.plan_id, "grace")
    assert [plan.status_at(NOW) for plan in list_plans(at.config)] == ["rejected"]
    assert json.loads(file_of(at, event_path(header)).read_text()) == written


def test_repeated_plan_is_listed_once_and_empty_plan_is_not_listed(at: Platform) -> None:
    first, again, empty = store_plan(at), store_plan(at), store_plan(at, files=0)
    assert first.plan_id == again.plan_id != empty.plan_id
    assert [plan.header.plan_id for plan in list_plans(at.config)] == [first.plan_id]


def test_plans_are_listed_newest_first(at: Platform) -> None:
    made = [store_plan(at, files=number).plan_id for number in (1, 2, 3)]
    assert [plan.header.plan_id for plan in list_plans(at.config)] == made[::-1]
    assert list(list_plans(at.config, "another")) == []


def test_plan_is_unfinished_until_its_apply_ends_or_is_restored(at: Platform) -> None:
    state, header = State.at(at.config.state), store_plan(at)
    assert unfinished_plans(state, "warehouse") == []
    state.files.replace(f"{execution_directory(header)}/log.json", b"{}")
    assert unfinished_plans(state, "warehouse") == [header.plan_id]
    for name in ("finished", "restored"):
        state.files.replace(f"{execution_directory(header)}/{name}.json", b'{"at": "2026-11-20T03:00:00+00:00"}')
        assert unfinished_plans(state, "warehouse") == []
        state.files.delete(f"{execution_directory(header)}/{name}.json")
