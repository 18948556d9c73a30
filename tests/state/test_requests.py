"""A night costs the state a few requests more after a thousand nights than at the beginning, and no more after ten thousand."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from gc_assets.core.plan import PlanHeader, sealed
from gc_assets.stages import engine
from gc_assets.stages.books import ledger
from gc_assets.stages.books.plans import plans
from gc_assets.stages.mark.policy import current_rules, policy_table
from gc_assets.state.files import Files
from gc_assets.state.folds import FOLD_PIECES, FOLDED, NEWEST_APART
from tests.lakes.iceberg.builder import LakeBuilder
from tests.stages.lakehouse import Lakehouse, days_ago

pytestmark = pytest.mark.spark

NIGHTS = 1_000
# Every so many of them something was new to decode, and every so many a plan was applied.
DECODING, APPLYING = 5, 20
# Each of the three folded tables is read from at most this many files more than one.
FEW = len(FOLDED) * (FOLD_PIECES + NEWEST_APART)
REQUESTS = ("read", "read_version", "replace", "replace_if", "size", "list", "directories", "delete", "delete_directory", "uri")


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What a night asks of the state, each request once.

    All that may run in this process does. A file that Spark is told to read is one request (`uri`), a log that executors read another.
    """
    for limit in ("HERE_ROWS", "HERE_FILES", "HERE_BYTES", "BEGUN_ROWS", "BEGUN_BYTES"):
        monkeypatch.setattr(engine, limit, 10**9)
    frame = ledger.Reading.frame

    def told(reading: ledger.Reading, spark: SparkSession) -> DataFrame:
        asked["log"] += reading.pieces
        return frame(reading, spark)

    monkeypatch.setattr(ledger.Reading, "frame", told)
    asked, within = Counter[str](), list[str]()
    for name in REQUESTS:
        inner = getattr(Files, name)

        def counted(files: Files, path: str, *more: Any, name: str = name, inner: Any = inner, **options: Any) -> Any:
            if not within:
                asked[name] += 1
            within.append(name)
            try:
                return inner(files, path, *more, **options)
            finally:
                within.pop()

        monkeypatch.setattr(Files, name, counted)
    return asked


def night(house: Lakehouse) -> PlanHeader:
    """All stages of a night up to its plan."""
    for lake in house.config.lakes:
        policy_table(house.tonight(), lake.name)
        current_rules(house.tonight(), lake.name)
    return house.plan()


def earlier_nights(state: Path, nights: int, like: date, before: date) -> None:
    """So many nights before a date, as a release without an index wrote them: the tables of the night `like`, mostly without rows."""
    for receipt in sorted(state.glob(f"*/*/run_date={like}/*/_receipt.json")):
        document = json.loads(receipt.read_text())
        for number in range(1, nights + 1):
            copied = receipt.parent.parent.parent.name
            if copied in {"deletion_log", "expiry_log"} and number % APPLYING:
                continue
            has_rows = copied in {"deletion_log", "expiry_log"} or (copied == "manifest_entries" and number % DECODING == 0)
            _copy_of(receipt.parent, document, before - timedelta(days=number), has_rows=has_rows)


def _copy_of(run: Path, document: dict[str, Any], day: date, *, has_rows: bool) -> None:
    again = f"{day:%Y%m%d}{run.name[8:]}"
    target = run.parent.parent / f"run_date={day}" / again
    target.mkdir(parents=True)
    copied = {**document, "run_date": str(day), "run_id": again, "created_at": f"{day}T03:00:00Z", "facts": dict(document["facts"])}
    if has_rows:
        for part in [*document["files"], *(part for parts in document["side"].values() for part in parts)]:
            (target / part["name"]).parent.mkdir(exist_ok=True)
            (target / part["name"]).write_bytes((run / part["name"]).read_bytes())
    else:
        copied |= {"files": [], "side": {}, "rows": 0, "size_bytes": 0}
    if "frozen_at" in copied["facts"]:
        copied["facts"]["frozen_at"] = f"{day}T03:00:00+00:00"
    if "header" in copied["facts"]:
        header = PlanHeader.model_validate(copied["facts"]["header"])
        kept = {name: getattr(header, name) for name in header.model_fields_set - {"plan_id", "approve_before", "apply_before"}}
        other = sealed(**{**kept, "run_date": day, "created_at": header.created_at - timedelta(days=1)})
        copied["facts"] = {"plan_id": other.plan_id, "header": other.model_dump(mode="json")}
    content = json.dumps(copied).encode()
    (target / "_receipt.json").write_bytes(content)
    pointer = {"run_id": again, "receipt_sha256": hashlib.sha256(content).hexdigest()}
    (target.parent / "current.json").write_text(json.dumps(pointer))


def test_a_night_after_a_thousand_asks_the_state_for_a_few_files_more_than_the_second(
    spark: SparkSession, tmp_path: Path, requests: Counter[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def counted(house: Lakehouse) -> int:
        requests.clear()
        night(house)
        return sum(requests.values())

    house = Lakehouse(spark, tmp_path)
    lake = LakeBuilder(house.root)
    orders = lake.table("db.orders", days_ago(60))
    orders.append(days_ago(50))
    orders.overwrite(days_ago(20))
    orders.append(days_ago(2))
    orders.leftovers(days_ago(10))
    house.lakes = [lake.config("sales")]
    house.carry_out(night(house))
    first = house.clock.today()
    house.now += timedelta(days=1)
    second = counted(house)
    earlier_nights(tmp_path / "state", NIGHTS, first, first - timedelta(days=400))
    for index in (tmp_path / "state").glob("*/*/_index.json"):
        index.unlink()
    orders.append(days_ago(1))
    orders.leftovers(days_ago(9))
    house.now += timedelta(days=7)
    house.carry_out(night(house))  # the first night of a release with an index makes it, and the first apply folds the logs
    house.now += timedelta(days=1)
    late = counted(house)
    requests.clear()
    listed = len(list(plans(house.config)))
    with capsys.disabled():
        sys.stdout.write(f"\nrequests to the state: {second} in the second night, {late} after {NIGHTS:,}\n")
    assert late <= second + FEW
    assert listed > NIGHTS
    assert sum(requests.values()) <= 5
