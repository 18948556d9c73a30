"""The checks of `doctor` for a storage on a local disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gc_assets.config.models import StorageConfig
from gc_assets.core.findings import Finding
from gc_assets.stores.local.safe_paths import Entry
from gc_assets.stores.store import open_store
from tests.stores.builders import NOW


def findings(root: Path, **keys: str | int) -> dict[str, Finding]:
    storage = StorageConfig.model_validate({"name": "s", "location": str(root), **keys})
    return {finding.check: finding for finding in open_store(storage.location).examine(storage, NOW)}


def lacking(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, call, refuse)


def test_doctor_fails_for_a_missing_directory(tmp_path: Path) -> None:
    found = findings(tmp_path / "gone")
    assert (found["listable"].verdict, found["listable"].todo) == ("fail", "Mount it, or correct `location`.")


@pytest.mark.parametrize("days, text", [(1, "purged after 1 day;"), (7, "purged after 7 days;")])
def test_doctor_reports_when_the_quarantine_can_be_purged(tmp_path: Path, days: int, text: str) -> None:
    assert text in findings(tmp_path, quarantine_days=days)["quarantine"].found


@pytest.mark.parametrize("mode, verdict", [("plan", "warn"), ("apply", "fail")])
def test_doctor_warns_of_a_read_only_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, verdict: str) -> None:
    monkeypatch.setattr(os, "access", lambda path, kind: False)
    found = findings(tmp_path, mode=mode)
    assert (found["quarantine"].verdict, "not writable" in found["quarantine"].found) == (verdict, True)
    assert "traits" not in found


def test_doctor_fails_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking(monkeypatch, "link")
    found = findings(tmp_path, mode="apply")
    assert (found["traits"].verdict, "no hard links" in found["traits"].found) == ("fail", True)
    assert list((tmp_path / ".gc-assets").iterdir()) == []


@pytest.mark.parametrize("quarantine, verdict, way_out", [("trash", "fail", "deferred"), ("deferred", "warn", "Icechunk")])
def test_doctor_fails_for_trash_without_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quarantine: str, verdict: str, way_out: str
) -> None:
    lacking(monkeypatch, "rename")
    monkeypatch.setattr(Entry, "exchange_with", lambda *_: False)
    found = findings(tmp_path, mode="apply", quarantine=quarantine)
    assert (found["traits"].verdict, way_out in found["traits"].todo + found["traits"].found) == (verdict, True)
    assert list((tmp_path / ".gc-assets").iterdir()) == []


def test_doctor_fails_for_an_unreadable_lease(tmp_path: Path) -> None:
    (tmp_path / ".gc-assets").mkdir()
    (tmp_path / ".gc-assets/lease.json").write_text("{")
    found = findings(tmp_path)["lease"]
    assert (found.verdict, "cannot parse the lease" in found.found, found.todo.startswith("Make sure")) == ("fail", True, True)
