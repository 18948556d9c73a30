"""The HTML report as a function of values."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest

from gc_assets.core.gates import delete_bytes, live_set
from gc_assets.core.plan import Amount, PlanHeader, seal
from gc_assets.core.requests import Requests
from gc_assets.report.drawing import Drawing, Node
from gc_assets.report.page import render
from gc_assets.report.run_report import (
    ExpiringCommit,
    FigureChange,
    LakePage,
    PastPlan,
    PlannedFile,
    QuarantinedPlan,
    RefUsage,
    RunReport,
    StoragePage,
    StoredBytes,
    TableRequests,
)
from gc_assets.report.storage_breakdown import Step
from gc_assets.report.trend import Point
from gc_assets.stages.read.usage import TableUsage
from gc_assets.state.summaries import UnfinishedUploads

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
        "unreadable": (),
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
    return seal(**{**substance, **changes})


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
        "decisions": (),
        "approvals_missing": "not approved",
        "reversibility": ("Can be undone: it.", "Cannot be undone: nothing.", "Becomes free: 2 GB."),
        "apply_command": "gc-assets apply 0123 --mode apply",
        "largest": (PlannedFile("a/b.parquet", "quarantine", "unreferenced", 7),),
        "quarantined": (),
        "previous_run_date": None,
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
        "usage": (RefUsage("shop.orders", "main", 10, 5_000_000_000),),
        "histories": (Drawing("shop.orders", (Node("1", None, None, 0, "retained", False, "1"),)),),
        "histories_left_out": 0,
    }
    return LakePage(**{**values, **changes})


def page(*storages: StoragePage, lakes: tuple[LakePage, ...] = (), warnings: tuple[str, ...] = ()) -> str:
    return render(RunReport(date(2026, 11, 21), NOW, "1.2.3", warnings, storages or (storage(),), lakes))


def test_requests_have_a_price_if_configured() -> None:
    requests = (
        TableRequests("warehouse", "storage_inventory", Requests({"LIST": 1234}, 0.00617)),
        TableRequests("sales", "manifest_entries", Requests({"GET": 7})),
    )
    text = render(RunReport(date(2026, 11, 21), NOW, "1.2.3", (), (storage(),), (), requests))
    assert "1,234" in text
    assert "under $0.01" in text
    assert "Requests to object stores" not in page()


def test_unfinished_uploads_are_shown() -> None:
    found = UnfinishedUploads(uploads=1200, old=3, bytes=5_000_000, sized=1000)
    assert "1,200 unfinished uploads, 3 of them older than the grace period, 5 MB" in page(storage(unfinished=str(found)))


class BalancedParser(HTMLParser):
    """Fails if a tag is closed out of order."""

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


def parse_page(text: str) -> BalancedParser:
    parser = BalancedParser()
    parser.feed(text)
    assert parser.open == []
    return parser


def test_each_kind_of_history_edit_has_a_row() -> None:
    edits = {"expiry_actions": {"ml": 5}, "idle_branches": {"ml": 1}, "path_edits": {"ml": 2}, "deleted_paths": {"ml": 9}}
    text = page(storage(header=header(**edits)))
    assert '<td>history of lake ml</td><td class="n">2 edits</td>' in text
    assert '<td>idle branches of lake ml are deleted</td><td class="n">1 edit</td>' in text
    assert '<td>commits on branches of lake ml delete 9 paths</td><td class="n">2 edits</td>' in text
    text = page(storage(header=header(expiry_actions={"shop": 3}, after_expiry=Amount(files=7, bytes=70))))
    assert '<td>history of lake shop, before 7 expired files are moved</td><td class="n">3 edits</td>' in text


def test_counts_of_one_ref_or_edit_use_the_singular() -> None:
    assert "2 refs · 0 planned history edits" in page(lakes=(lake(),))
    assert "1 ref · 1 planned history edit<" in page(lakes=(lake(refs=1, expiry_actions=1),))


def test_counts_of_one_file_or_edit_use_the_singular() -> None:
    single = Amount(files=1, bytes=9)
    past = (PastPlan("ab" * 32, date(2026, 11, 20), "applied", {"quarantine": single}, 1, ()),)
    tables = (TableUsage("warehouse", "shop", "orders", live=single, garbage={"expired": single}),)
    text = page(storage(plans=past, header=header(expiry_actions={"shop": 1}, after_expiry=single), tables=tables, live_named=1))
    assert "quarantine 1 file (9 B), 1 history edit<" in text
    assert "before 1 expired file is moved" in text
    assert "9 B · 1 file<" in text
    assert "references 1 live file." in text
    assert re.findall(r"(?<![\d,.])1 (?:files|edits|commits|refs|rows)\b", text) == []


def test_html_in_names_is_escaped() -> None:
    hostile = storage(
        name=HOSTILE,
        location=HOSTILE,
        decisions=(HOSTILE,),
        largest=(PlannedFile(HOSTILE, "quarantine", HOSTILE, 1),),
        steps=(Step(HOSTILE, 1, 1, "total"),),
        problems={HOSTILE: 1},
        headline=HOSTILE,
        stored=(StoredBytes(HOSTILE, 1),),
        tables=(TableUsage(HOSTILE, HOSTILE, HOSTILE, Amount(), {HOSTILE: Amount(files=1, bytes=1)}),),
        trend=(Point(NOW.date(), 1, 1, 1), Point(NOW.date(), 1, 1, 1)),
        plans=(PastPlan(HOSTILE, NOW.date(), HOSTILE, {HOSTILE: Amount()}, 1, (HOSTILE,)),),
    )
    expiring = (ExpiringCommit(HOSTILE, HOSTILE, None, HOSTILE, HOSTILE),)
    text = page(
        hostile,
        lakes=(
            lake(
                name=HOSTILE,
                notes=(HOSTILE,),
                usage=(RefUsage(HOSTILE, HOSTILE, 1, 1),),
                expiring=expiring,
                unknown_addresses=1,
                unknown_address_samples=(HOSTILE,),
            ),
        ),
        warnings=(HOSTILE,),
    )
    tags = parse_page(text).tags
    assert "img" not in {tag for tag, _ in tags}
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]


def test_unknown_addresses_are_counted_with_examples() -> None:
    text = page(lakes=(lake(unknown_addresses=1200, unknown_address_samples=("vcc://sst/a.nc (a name)", "s3://other/b (a bucket)")),))
    assert "Addresses with an unknown location" in text
    assert "1,200 addresses" in text
    assert "<li>vcc://sst/a.nc (a name)</li><li>s3://other/b (a bucket)</li>" in text
    assert "unknown location" not in page(lakes=(lake(),))


def test_headline_is_above_the_figures() -> None:
    text = page(storage(headline="Plan 0123 is ready: 2 GB becomes free."))
    assert text.index("Storage warehouse. Plan 0123 is ready: 2 GB becomes free.") < text.index("<section") < text.index('class="figures"')


def test_stored_bytes_have_a_price() -> None:
    moments = (StoredBytes("in this run", 7_000_000_000), StoredBytes("after this plan is applied", 5_000_000_000))
    text = page(storage(stored=moments, usd_per_gb_month=1.0))
    assert text.index("stored in this run") < text.index("$7.00 a month") < text.index("stored after this plan is applied")
    assert "$5.00 a month" in text


def test_garbage_by_table_has_reasons_and_price() -> None:
    garbage = {"expired": Amount(files=2, bytes=1_500_000_000), "unreferenced": Amount(files=1, bytes=500_000_000)}
    share = TableUsage("warehouse", "sales", "shop.orders", Amount(files=9, bytes=3_000_000_000), garbage)
    row = page(storage(tables=(share,), tables_left_out=4, usd_per_gb_month=1.0)).split("Garbage by table")[1].split("<h3>")[0]
    order = ["sales · shop.orders", "1.5 GB", "500 MB", "2 GB · 3 files", "$2.00", "3 GB", "4 more tables", "gc-assets blame"]
    assert [row.index(text) for text in order] == sorted(row.index(text) for text in order)


def test_recent_plans_show_decisions() -> None:
    amounts = {"quarantine": Amount(files=3, bytes=2_000)}
    past = (
        PastPlan("ab" * 32, date(2026, 11, 20), "applied", amounts, 2, ("approved by ada at 2026-11-20 08:00:00Z",)),
        PastPlan("cd" * 32, date(2026, 11, 19), "expired", {}, 1, ()),
    )
    row = page(storage(plans=past)).split("The last plans")[1].split("<h3>")[0]
    order = ["abababababab", "applied", "quarantine 3 files (2 kB), 2 history edits", "approved by ada", "cdcdcdcdcdcd", "not decided"]
    assert [row.index(text) for text in order] == sorted(row.index(text) for text in order)


def test_expiring_snapshots_show_the_retention_rule() -> None:
    going = (ExpiringCommit("shop.orders", "17", NOW, "append", "expired: older than 5d"),)
    text = page(lakes=(lake(edits_history=True, expiring=going, expiring_left_out=3),))
    assert "Snapshots that expire" in text
    assert "expired: older than 5d" in text
    assert "3 more" in text
    assert "The commits stay in the history" in page(lakes=(lake(expiring=going),))


def test_difference_between_live_and_listed_file_counts_is_explained() -> None:
    assert "references 114 live files" in page(storage(live_named=114))
    assert "live files are referenced" not in page()


def test_page_uses_no_internal_terms() -> None:
    text = page(storage(tables=(TableUsage("warehouse", "sales", None, Amount(), {}),)), lakes=(lake(),))
    assert [word for word in ("witness", "sweep", "false positive") if word in text] == []


def test_page_contains_no_scripts_or_external_resources() -> None:
    tags = parse_page(page(lakes=(lake(),))).tags
    assert not {"script", "link", "iframe", "object", "img"} & {tag for tag, _ in tags}
    assert not [attributes for _, attributes in tags if {"src", "href", "action"} & set(attributes)]


def test_reversibility_is_shown_above_the_approve_command() -> None:
    text = page()
    message = [text.index(f"<li>{line}</li>") for line in storage().reversibility]
    assert message == sorted(message)
    assert message[-1] < text.index("gc-assets approve")


@pytest.mark.parametrize(
    "status, message",
    [
        ("ready", "gc-assets approve {id} --by YOUR_NAME"),
        ("approved", "gc-assets apply 0123 --mode apply"),
        ("expired", "gc-assets run"),
    ],
)
def test_every_plan_status_shows_the_next_command(status: str, message: str) -> None:
    plan = storage(status=status)
    assert plan.header is not None
    assert f"<pre>{message.format(id=plan.header.plan_id[:12])}</pre>" in page(plan)


def test_refused_plan_shows_gate_and_override() -> None:
    refused = storage(header=header(gates=(delete_bytes(Amount(files=3, bytes=2_000_000_000), 10**9),)), status="refused")
    text = page(refused)
    assert "2 GB planned, max_delete_bytes allows 1 GB" in text
    assert "--override delete_bytes</pre>" in text


def test_historical_plan_shows_no_approve_command() -> None:
    text = page(storage(status="historical"), warnings=("Historical: never applied.",))
    assert "gc-assets approve" not in text
    assert text.index("Historical: never applied.") < text.index("Storage warehouse")


def test_costs_are_shown_only_with_a_configured_price() -> None:
    assert "$" not in page()
    assert "$0.05" in page(replace(storage(), usd_per_gb_month=0.023))


def test_quarantine_shows_start_and_purge_time() -> None:
    text = page(storage(quarantined=(QuarantinedPlan("ab" * 32, 3, 21, NOW, NOW + timedelta(days=7)),)))
    assert "2026-11-21 03:00 UTC" in text
    assert "2026-11-28 03:00 UTC" in text
    assert "gc-assets restore --plan abababababab" in text


def test_changes_are_shown_with_signs_and_units() -> None:
    text = page(
        storage(
            previous_run_date=date(2026, 11, 20),
            changes=(FigureChange("live, bytes", 4_000_000_000, 5_000_000_000, True), FigureChange("live, files", 12, 10, False)),
        )
    )
    assert "+1 GB" in text
    assert "−2" in text


def test_run_date_without_a_plan_shows_the_command() -> None:
    text = page(storage(header=None, status=None, largest=()))
    assert "gc-assets run --run-date 2026-11-21" in text
