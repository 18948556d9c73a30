"""The report page as a function of values: escaping, warnings, money, the next command for each state of a plan."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest

from gc_assets.core.gates import delete_bytes, live_set
from gc_assets.core.plan import Amount, PlanHeader, sealed
from gc_assets.core.requests import Requests
from gc_assets.report.drawing import Drawing, Node
from gc_assets.report.night_report import Asked, Change, Holder, LakePage, NightReport, PlannedFile, Quarantined, StoragePage
from gc_assets.report.page import render
from gc_assets.report.waterfall import Step
from gc_assets.state.facts import UnfinishedUploads

NOW = datetime(2026, 11, 21, 3, tzinfo=UTC)
HOSTILE = "<img src=x onerror=alert(1)>\"'&"


def header(**changes: Any) -> PlanHeader:
    substance: dict[str, Any] = {
        "storage": "warehouse",
        "location": "file:///data/",
        "quarantine": "trash",
        "run_date": date(2026, 11, 21),
        "as_of": NOW,
        "frozen_at": NOW,
        "grace_cutoff": NOW - timedelta(hours=72),
        "created_at": NOW,
        "historical": False,
        "rehearsal": False,
        "unsafe": (),
        "refs_digests": {},
        "policy_digest": "p",
        "live_files": 10,
        "live_by_lake": {"sales": 10},
        "sick": (),
        "live_bytes": 5_000_000_000,
        "totals": {"quarantine": Amount(files=3, bytes=2_000_000_000)},
        "by_reason": {"unreferenced": Amount(files=3, bytes=2_000_000_000)},
        "by_kind": {"quarantine": {"unnamed": Amount(files=3, bytes=2_000_000_000)}},
        "after_expiry": Amount(),
        "held_for_expiry": Amount(),
        "quarantined": Amount(),
        "expiry_actions": {},
        "expiry_digest": "00",
        "gates": (live_set(10, 2), delete_bytes(Amount(files=3, bytes=2_000_000_000), 10**12)),
        "rows": 3,
        "rows_digest": "00",
    }
    return sealed(**{**substance, **changes})


def storage(**changes: Any) -> StoragePage:
    values: dict[str, Any] = {
        "name": "warehouse",
        "location": "file:///data/",
        "steps": (
            Step("stored", 7_000_000_000, 13, "total"),
            Step("live", 5_000_000_000, 10, "kept"),
            Step("garbage", 2_000_000_000, 3, "garbage"),
        ),
        "header": header(),
        "status": "ready",
        "words": (),
        "approvals_missing": "not approved",
        "undoing": ("Can be undone: it.", "Cannot be undone: nothing.", "Becomes free: 2 GB."),
        "apply_command": "gc-assets apply 0123 --mode apply",
        "largest": (PlannedFile("a/b.parquet", "quarantine", "unreferenced", 7),),
        "quarantined": (),
        "before": None,
        "changes": (),
        "problems": {},
        "usd_per_gb_month": None,
    }
    return StoragePage(**{**values, **changes})


def lake(**changes: Any) -> LakePage:
    values: dict[str, Any] = {
        "name": "sales",
        "kind": "iceberg",
        "refs": 2,
        "states": {"retained": 1, "expired": 0, "dangling": 0},
        "expiry_actions": 0,
        "notes": (),
        "holders": (Holder("shop.orders", "main", 10, 5_000_000_000),),
        "histories": (Drawing("shop.orders", (Node("1", None, None, 0, "retained", False, "1"),)),),
        "histories_left_out": 0,
    }
    return LakePage(**{**values, **changes})


def page(*storages: StoragePage, lakes: tuple[LakePage, ...] = (), warnings: tuple[str, ...] = ()) -> str:
    return render(NightReport(date(2026, 11, 21), NOW, "1.2.3", warnings, storages or (storage(),), lakes))


def test_requests_are_told_with_their_price_where_there_is_one() -> None:
    asked = (
        Asked("warehouse", "storage_inventory", Requests({"LIST": 1234}, 0.00617)),
        Asked("sales", "manifest_entries", Requests({"GET": 7})),
    )
    told = render(NightReport(date(2026, 11, 21), NOW, "1.2.3", (), (storage(),), (), asked))
    assert "1,234" in told
    assert "under $0.01" in told
    assert "Requests to object stores" not in page()


def test_unfinished_uploads_are_told() -> None:
    found = UnfinishedUploads(uploads=1200, old=3, bytes=5_000_000, sized=1000)
    assert "1,200 unfinished uploads, 3 of them older than the grace period, hold 5 MB" in page(storage(unfinished=str(found)))


class Balanced(HTMLParser):
    """Fails on a tag that is closed out of order."""

    VOID = frozenset({"meta", "br", "img", "path", "rect", "circle"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def parsed(text: str) -> Balanced:
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    return parser


def test_no_name_of_other_people_becomes_markup() -> None:
    hostile = storage(
        name=HOSTILE,
        location=HOSTILE,
        words=(HOSTILE,),
        largest=(PlannedFile(HOSTILE, "quarantine", HOSTILE, 1),),
        steps=(Step(HOSTILE, 1, 1, "total"),),
        problems={HOSTILE: 1},
    )
    text = page(hostile, lakes=(lake(name=HOSTILE, notes=(HOSTILE,), holders=(Holder(HOSTILE, HOSTILE, 1, 1),)),), warnings=(HOSTILE,))
    tags = parsed(text).tags
    assert "img" not in {tag for tag, _ in tags}
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]


def test_the_page_runs_nothing_and_loads_nothing() -> None:
    tags = parsed(page(lakes=(lake(),))).tags
    assert not {"script", "link", "iframe", "object", "img"} & {tag for tag, _ in tags}
    assert not [attributes for _, attributes in tags if {"src", "href", "action"} & set(attributes)]


def test_what_cannot_be_undone_stands_where_one_approves() -> None:
    text = page()
    said = [text.index(f"<li>{line}</li>") for line in storage().undoing]
    assert said == sorted(said)
    assert said[-1] < text.index("gc-assets approve")


@pytest.mark.parametrize(
    "status, said",
    [
        ("ready", "gc-assets approve {id} --by YOUR_NAME"),
        ("approved", "gc-assets apply 0123 --mode apply"),
        ("expired", "gc-assets run"),
    ],
)
def test_every_state_of_a_plan_shows_the_next_command(status: str, said: str) -> None:
    plan = storage(status=status)
    assert plan.header is not None
    assert f"<pre>{said.format(id=plan.header.plan_id[:12])}</pre>" in page(plan)


def test_a_refused_plan_shows_the_gate_its_numbers_and_the_override() -> None:
    refused = storage(header=header(gates=(delete_bytes(Amount(files=3, bytes=2_000_000_000), 10**9),)), status="refused")
    text = page(refused)
    assert "2 GB planned, max_delete_bytes allows 1 GB" in text
    assert "--override delete_bytes</pre>" in text


def test_a_historical_plan_offers_no_command_and_says_so_first() -> None:
    text = page(storage(status="historical"), warnings=("Historical: never applied.",))
    assert "gc-assets approve" not in text
    assert text.index("Historical: never applied.") < text.index("Storage warehouse")


def test_money_stands_there_only_with_a_price() -> None:
    assert "$" not in page()
    assert "$0.05" in page(replace(storage(), usd_per_gb_month=0.023))


def test_quarantine_says_since_when_and_from_when_it_may_be_purged() -> None:
    text = page(storage(quarantined=(Quarantined("ab" * 32, 3, 21, NOW, NOW + timedelta(days=7)),)))
    assert "2026-11-21 03:00 UTC" in text
    assert "2026-11-28 03:00 UTC" in text
    assert "gc-assets restore --plan abababababab" in text


def test_the_difference_to_the_run_before_has_signs_and_units() -> None:
    text = page(
        storage(
            before=date(2026, 11, 20),
            changes=(Change("live, bytes", 4_000_000_000, 5_000_000_000, True), Change("live, files", 12, 10, False)),
        )
    )
    assert "+1 GB" in text
    assert "−2" in text


def test_a_date_without_a_plan_says_what_to_run() -> None:
    text = page(storage(header=None, status=None, largest=()))
    assert "gc-assets run --run-date 2026-11-21" in text
