"""The plan id changes only with values that change the deletion."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from gc_assets.core.gates import delete_bytes, foreign_metadata, live_set, unreadable_tables
from gc_assets.core.plan import Amount, LeftOut, PlanHeader, Unreadable, Uploads, is_intact, repeat, seal

NOW = datetime(2026, 3, 14, 9, 30, tzinfo=UTC)
SUBSTANCE: dict[str, Any] = {
    "storage": "warehouse",
    "location": "file:///data/warehouse/",
    "quarantine": "trash",
    "run_date": date(2026, 3, 14),
    "as_of": datetime(2026, 3, 14, tzinfo=UTC),
    "frozen_at": NOW - timedelta(minutes=5),
    "grace_cutoff": NOW - timedelta(days=3),
    "historical": False,
    "rehearsal": False,
    "unsafe": (),
    "refs_digests": {"sales": "a" * 16},
    "policy_digest": "b" * 64,
    "live_files": 7,
    "live_by_lake": {"sales": 7},
    "unreadable": (),
    "live_bytes": 700,
    "totals": {"quarantine": Amount(files=2, bytes=200)},
    "by_reason": {"unreferenced": Amount(files=2, bytes=200)},
    "by_kind": {"quarantine": {"unnamed": Amount(files=2, bytes=200)}},
    "after_expiry": Amount(),
    "held_for_expiry": Amount(),
    "quarantined": Amount(),
    "expiry_actions": {},
    "expiry_digest": "0" * 16,
    "gates": (live_set(7, 3), delete_bytes(Amount(files=2, bytes=200), 10**12)),
    "rows": 2,
    "rows_digest": "c" * 16,
    "uploads": Uploads(),
    "missing_digest": "",
    "listed_at": None,
    "repeats": 0,
}
OTHER: dict[str, Any] = {
    "storage": "archive",
    "location": "file:///data/warehouse_2/",
    "quarantine": "deferred",
    "run_date": date(2026, 3, 13),
    "as_of": datetime(2026, 3, 13, tzinfo=UTC),
    "frozen_at": NOW,
    "grace_cutoff": SUBSTANCE["grace_cutoff"] + timedelta(microseconds=1),
    "historical": True,
    "rehearsal": True,
    "unsafe": ("the floor was lowered",),
    "refs_digests": {"sales": "d" * 16},
    "policy_digest": "d" * 64,
    "live_files": 6,
    "live_by_lake": {"sales": 6, "weather": 1},
    "unreadable": (Unreadable(lake="sales", why="torn", since=datetime(2026, 1, 2, tzinfo=UTC), good_on=date(2026, 1, 1)),),
    "live_bytes": 699,
    "totals": {"purge": Amount(files=2, bytes=200)},
    "by_reason": {"uncommitted": Amount(files=2, bytes=200)},
    "by_kind": {"quarantine": {"data": Amount(files=2, bytes=200)}},
    "after_expiry": Amount(files=1),
    "held_for_expiry": Amount(files=1),
    "quarantined": Amount(files=1),
    "expiry_actions": {"sales": 1},
    "expiry_digest": "e" * 16,
    "gates": (live_set(7, 3),),
    "rows": 3,
    "rows_digest": "d" * 16,
    "uploads": Uploads(count=1, bytes=7, digest="e" * 16),
    "missing_digest": "e" * 16,
    "listed_at": NOW,
    "repeats": 1,
}


def plan(created_at: datetime = NOW, **changes: Any) -> PlanHeader:
    return seal(**{**SUBSTANCE, **changes}, created_at=created_at)


def test_changed_values_cover_every_plan_field() -> None:
    assert (
        set(OTHER)
        == set(SUBSTANCE)
        == set(PlanHeader.model_fields)
        - {
            "plan_id",
            "keyed",
            "times_seal",
            "created_at",
            "approve_before",
            "apply_before",
            "left_out",
            "edits_by_action",
            "idle_branches",
            "path_edits",
            "deleted_paths",
            "warnings",
            "aliases",
        }
    )


@pytest.mark.parametrize("name", OTHER)
def test_plan_id_changes_with_every_field(name: str) -> None:
    assert plan(**{name: OTHER[name]}).plan_id != plan().plan_id


def test_plan_id_ignores_warnings() -> None:
    header = plan(warnings=("1 namespace is gone as a whole.",))
    assert header.plan_id == plan().plan_id
    assert header.notes == ["1 namespace is gone as a whole."]


def test_plan_id_ignores_left_out_tables() -> None:
    left_out = (LeftOut(name="files", files=1, bytes=7, reason="an apply was denied them"),)
    assert plan(left_out=left_out).plan_id == plan().plan_id
    assert str(left_out[0]) == "1 file (7 B) is left out: an apply was denied them"


def test_plan_id_changes_with_gate_numbers() -> None:
    gates = (live_set(7, 4), *SUBSTANCE["gates"][1:])
    assert plan(gates=gates).plan_id != plan().plan_id


def test_plan_id_ignores_wording_of_read_errors() -> None:
    (item,) = OTHER["unreadable"]
    other_error = item.model_copy(update={"why": "lost", "since": NOW, "good_on": date(2026, 2, 1)})
    first, again = (plan(unreadable=(one,), gates=(unreadable_tables([one], 10),)) for one in (item, other_error))
    assert first.plan_id == again.plan_id
    assert is_intact(first)
    for update in ({"good_on": None}, {"table_uuid": "u"}, {"table_name": "t"}, {"lake": "weather"}, {"set_aside": "by ada"}):
        assert plan(unreadable=(item.model_copy(update=update),), gates=first.gates).plan_id != first.plan_id


def test_plan_id_ignores_creation_time() -> None:
    assert plan(created_at=NOW + timedelta(hours=1)).plan_id == plan().plan_id


def test_plan_id_ignores_order_of_keys() -> None:
    refs = {"sales": "a", "weather": "b"}
    assert plan(refs_digests=refs).plan_id == plan(refs_digests=dict(reversed(refs.items()))).plan_id


@pytest.mark.parametrize("name", OTHER)
def test_changed_plan_header_is_detected(name: str) -> None:
    header = plan()
    assert is_intact(header)
    assert not is_intact(header.model_copy(update={name: OTHER[name]}))


@pytest.mark.parametrize("name", ["approve_before", "apply_before"])
def test_extended_plan_deadline_is_detected(name: str) -> None:
    header = plan()
    assert not is_intact(header.model_copy(update={name: getattr(header, name) + timedelta(days=1)}))


def test_plan_key_protects_creation_time() -> None:
    key = b"a secret of sixteen letters"
    header = seal(key, **SUBSTANCE, created_at=NOW)
    younger = seal(b"a key of the forger's own", **SUBSTANCE, created_at=NOW + timedelta(days=9))
    times = ("created_at", "approve_before", "apply_before")
    revived = header.model_copy(update={name: getattr(younger, name) for name in times})
    assert is_intact(header, key)
    assert not is_intact(revived, key)
    assert not is_intact(revived.model_copy(update={"times_seal": younger.times_seal}), key)
    assert not is_intact(revived.model_copy(update={"times_seal": "", "keyed": False}), key)
    assert is_intact(repeat(header, key), key)


def test_plan_header_round_trips() -> None:
    header = plan(gates=(foreign_metadata(3, ["table é", "s3://b/k"]), *SUBSTANCE["gates"]))
    assert PlanHeader.model_validate_json(header.model_dump_json()) == header
    assert is_intact(PlanHeader.model_validate(header.model_dump(mode="json")))


def test_plan_header_with_wrong_fields_is_rejected() -> None:
    document = plan().model_dump(mode="json")
    with pytest.raises(ValidationError, match="force"):
        PlanHeader.model_validate({**document, "force": True})
    with pytest.raises(ValidationError, match="rows_digest"):
        PlanHeader.model_validate({name: value for name, value in document.items() if name != "rows_digest"})


def test_plan_of_older_release_keeps_its_id() -> None:
    unknown = {"by_kind", "live_by_lake", "unreadable", "uploads"}
    then = seal(**{name: value for name, value in SUBSTANCE.items() if name not in unknown}, created_at=NOW)
    document = {name: value for name, value in then.model_dump(mode="json").items() if name not in unknown}
    assert is_intact(PlanHeader.model_validate(document))
    assert not any(is_intact(PlanHeader.model_validate({**document, name: [] if name == "unreadable" else {}})) for name in unknown)


def test_plan_deadlines_are_24_and_72_hours() -> None:
    header = plan()
    assert header.approve_before - header.created_at == timedelta(hours=24)
    assert header.apply_before - header.created_at == timedelta(hours=72)


def test_plan_expires_at_deadline() -> None:
    header = plan()
    assert header.status_at(header.apply_before - timedelta(microseconds=1)) == "ready"
    assert header.status_at(header.apply_before) == "expired"


def test_plan_with_failed_gate_is_refused() -> None:
    header = plan(gates=(live_set(0, 3), live_set(7, 3)))
    assert [gate.passed for gate in header.failed_gates] == [False]
    assert header.status_at(NOW) == "refused"
    assert header.status_at(header.apply_before) == "expired"


def test_plan_for_past_date_is_historical() -> None:
    header = plan(historical=True, gates=(live_set(0, 3),))
    assert header.status_at(NOW) == header.status_at(header.apply_before) == "historical"
