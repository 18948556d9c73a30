"""`python -m benchmarks all`: what a row is, when it is met, and that one which fails ends nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from benchmarks import every, iceberg_lake
from benchmarks.__main__ import main
from benchmarks.commands import CommandLine
from benchmarks.comparison import Measured, Passes
from benchmarks.every import measured
from benchmarks.measurings import GIB, MEASURINGS, Measuring, Place, Samples, leftovers, nights, passes, picked
from benchmarks.resident import Resident
from benchmarks.results import Change, Machine, Outcome, Report, Result, Sample, changes
from benchmarks.steps import steps_of
from benchmarks.tables import LONGEST_STEPS, verdicts, where_time_goes
from benchmarks.targets import ROWS, Pick, Row, Unit, chosen
from tests.depth import deep

MACHINE = Machine(cores=2, memory_bytes=GIB, python="3.11.9", java="17.0.1", class_archive=True, load_before=0.1, load_after=1.0)


def row(name: str = "a", unit: Unit = "s", target: float = 2.0, measuring: str = "one", **further: Any) -> Row:
    return Row(name=name, title=f"title of {name}", unit=unit, target=target, measuring=measuring, **further)


def result(*values: float, of: Row | None = None, outcome: Outcome = "measured") -> Result:
    return Result(row=of or row(), outcome=outcome, samples=tuple(Sample(value=value) for value in values))


def report(*results: Result) -> Report:
    return Report(at=datetime(2026, 11, 23, 20, tzinfo=UTC), commit="a7ed69a", repeat=3, machine=MACHINE, results=results)


def test_every_row_has_a_name_of_its_own_and_a_measuring_that_there_is() -> None:
    assert len({one.name for one in ROWS}) == len(ROWS)
    assert {one.measuring for one in ROWS} - {None} == MEASURINGS.keys()


@pytest.mark.parametrize("measuring, not_built", [(None, ""), ("one", "nobody wrote it")])
def test_a_row_is_measured_or_says_why_not_and_never_both(measuring: str | None, not_built: str) -> None:
    with pytest.raises(ValidationError, match="either something measures it, or it says why nothing does"):
        Row(name="a", title="a", unit="s", target=1, measuring=measuring, not_built=not_built)


@pytest.mark.parametrize(
    "patterns, names",
    [
        ([], ["iceberg-s-cold", "iceberg-m-cold", "plans"]),
        (["iceberg"], ["iceberg-s-cold", "iceberg-m-cold"]),
        (["iceberg-?-cold", "plans"], ["iceberg-s-cold", "iceberg-m-cold", "plans"]),
        (["s-cold*"], []),
        (["make-test"], ["make-test"]),
    ],
)
def test_a_pattern_is_a_part_of_a_name_or_a_whole_one_with_wildcards_and_alone_reaches_rows_on_request(
    patterns: list[str], names: list[str]
) -> None:
    rows = [row("iceberg-s-cold"), row("iceberg-m-cold"), row("plans"), row("make-test", on_request=True)]
    assert [one.name for one in chosen(rows, patterns)] == names


@pytest.mark.parametrize(
    "unit, values, median, verdict",
    [
        ("s", [9.0, 2.0, 1.0], 2.0, "met"),
        ("s", [9.0, 2.01, 1.0], 2.01, "missed"),
        ("s", [1.0, 2.0, 3.0, 4.0], 2.5, "missed"),
        ("files/s", [2.0], 2.0, "met"),
        ("files/s", [1.99], 1.99, "missed"),
    ],
)
def test_a_row_is_met_where_its_median_reaches_the_target_and_of_files_a_second_more_is_better(
    unit: Unit, values: list[float], median: float, verdict: str
) -> None:
    found = result(*values, of=row(unit=unit))
    assert (found.median, found.verdict) == (median, verdict)


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    assert [result(1.0, outcome=outcome).verdict for outcome in ("failed", "skipped", "not built")] == ["failed", "skipped", "not built"]


@pytest.mark.parametrize(
    "unit, earlier, now, word",
    [
        ("s", [1.0, 1.2, 1.4], [1.3, 1.5, 1.6], "same"),
        ("s", [1.0, 1.2, 1.4], [1.6, 1.61, 1.7], "slower"),
        ("s", [1.6, 1.61, 1.7], [1.0, 1.2, 1.4], "faster"),
        ("files/s", [1.0, 1.2, 1.4], [1.6, 1.61, 1.7], "faster"),
        ("s", [1.0], [1.6, 1.61, 1.7], "slower"),
        ("s", [1.0], [9.0], "one run each"),
        ("jobs", [5.0], [6.0], "slower"),
        ("jobs", [6.0], [6.0], "same"),
    ],
)
def test_a_row_got_slower_where_the_medians_differ_by_more_than_the_greater_spread(
    unit: Unit, earlier: list[float], now: list[float], word: str
) -> None:
    of = row(unit=unit)
    found = changes(report(result(*earlier, of=of)), report(result(*now, of=of)))
    assert found["a"].word == word


def test_a_change_is_told_as_a_share_of_the_earlier_median() -> None:
    assert Change(row=row(), earlier=4.0, now=3.0, spread=None).ratio == 0.75
    assert Change(row=row(), earlier=0.0, now=0.0, spread=None).ratio == 1.0


def test_a_row_that_failed_or_is_in_one_run_only_is_not_compared() -> None:
    rows = [row("both"), row("failed"), row("new")]
    earlier = report(result(1.0, of=rows[0]), result(1.0, of=rows[1]))
    now = report(result(1.0, of=rows[0]), result(1.0, of=rows[1], outcome="failed"), result(1.0, of=rows[2]))
    assert changes(earlier, now).keys() == {"both"}


def test_a_run_reads_back_as_it_was_written_and_says_median_and_verdict() -> None:
    sample = Sample(value=0.5, beside={"ours, s": 1.0}, steps={"session": 0.4})
    written = report(Result(row=row(pick=Pick(night="first", start="cold", of="peer")), samples=(sample,)), result(outcome="skipped"))
    text = written.model_dump_json()
    assert Report.model_validate_json(text) == written
    assert [(one["median"], one["verdict"]) for one in json.loads(text)["results"]] == [(0.5, "met"), (None, "skipped")]


def night(who: str, which: str, wall: float, *, cold: bool = True, jobs: Sequence[int] = (2, 0, 1)) -> Measured:
    stages = [{"stage": f"stage_{number}", "wall": wall / len(jobs), "jobs": count} for number, count in enumerate(jobs)]
    return Measured(who, which, cold, wall, wall, {"total": {"peak_bytes": GIB}, **({} if who == "peer" else {"stages": stages})})


NIGHTS = [
    night("gc-assets", "first", 8.0),
    night("peer", "first", 16.0),
    night("gc-assets", "first", 4.0, cold=False),
    night("gc-assets", "second", 3.0, cold=False),
]


@pytest.mark.parametrize(
    "pick, value",
    [
        (Pick(night="first", start="cold"), 8.0),
        (Pick(night="first", start="cold", of="peer"), 0.5),
        (Pick(night="first", start="cold", of="jobs"), 3),
        (Pick(night="second", start="warm", of="first night"), 0.75),
        (Pick(night="first", start="warm", of="recorded"), 0.4),
    ],
)
def test_a_figure_is_picked_from_the_nights_of_one_comparison(pick: Pick, value: float) -> None:
    nights = [item for item in NIGHTS if pick.of != "recorded" or item.who != "peer"]
    assert picked(pick, nights, recorded=10.0).value == value


def test_a_peer_that_was_asked_takes_the_place_of_its_recorded_figure() -> None:
    asked = [*NIGHTS, night("peer", "first", 2.0, cold=False)]
    found = picked(Pick(night="first", start="warm", of="recorded"), asked, recorded=10.0)
    assert (found.value, found.beside["peer, s"]) == (2.0, 2.0)


def test_a_night_that_was_not_measured_is_no_figure() -> None:
    with pytest.raises(RuntimeError, match="there is no cold second night of gc-assets"):
        picked(Pick(night="second", start="cold"), NIGHTS)


@pytest.mark.parametrize(
    "picks, expected",
    [
        ([Pick(night="first", start="cold")], Passes(warm=False, peer_warm=False, cold_second=False)),
        ([Pick(night="second", start="cold", of="peer")], Passes(peer=True, warm=False, peer_warm=False, cold_second=True)),
        ([Pick(night="second", start="warm")], Passes(warm=True, peer_warm=False, cold_second=False)),
    ],
)
def test_only_the_passes_that_a_figure_needs_are_made(picks: list[Pick], expected: Passes) -> None:
    assert passes(picks) == expected


def test_the_steps_of_a_command_are_those_of_its_log_lines() -> None:
    lines = [
        "2026-11-23 18:00:00 INFO shop/lake_refs of 2026-11-23: ended after 0.5 s: lake_refs 3 rows",
        "weather/lake_refs of 2026-11-23: ended after 1,000.25 s",
        "lake/deletion_log of 2026-11-23: quarantine: 50 files",
    ]
    assert steps_of(lines) == {"lake_refs": 1_000.75}


Measure = Callable[[Place, Sequence[Row]], Samples]


def fixed(*values: float) -> Measuring:
    """Measures these values, one after the other."""
    left = list(values)

    def measure(_: Place, rows: Sequence[Row]) -> Samples:
        value = left.pop(0)
        return {one.name: Sample(value=value) for one in rows}

    return Measuring(measure, seconds=1, run_bytes=0, run_files=0)


def broken(_: Place, __: Sequence[Row]) -> Samples:
    raise RuntimeError("the peer found another number")


def test_a_row_that_fails_says_so_in_its_row_and_the_others_are_measured(tmp_path: Path) -> None:
    rows = [row("a", measuring="broken"), row("b"), row("c", measuring="broken")]
    measurings = {"broken": Measuring(broken, 1), "one": fixed(1.0, 1.5)}
    told: list[str] = []
    a, b, c = measured(rows, Place(tmp_path), 2, told.append, measurings=measurings)
    assert [a.verdict, b.verdict, c.verdict] == ["failed", "met", "failed"]
    assert a.why == c.why == "RuntimeError: the peer found another number"
    assert b.values == [1.0, 1.5]
    assert any("failed: RuntimeError" in line for line in told)


def test_a_row_that_fails_in_its_second_repeat_keeps_the_first_and_has_failed(tmp_path: Path) -> None:
    (found,) = measured([row()], Place(tmp_path), 2, lambda _: None, measurings={"one": fixed(1.0)})
    assert (found.verdict, found.values) == ("failed", [1.0])
    assert found.why == "IndexError: pop from empty list"


def test_rows_that_are_measured_together_are_measured_once(tmp_path: Path) -> None:
    found = measured([row("a"), row("b")], Place(tmp_path), 1, lambda _: None, measurings={"one": fixed(1.0)})
    assert [one.values for one in found] == [[1.0], [1.0]]


def test_a_row_for_which_the_disk_has_no_room_is_skipped_with_a_sentence(tmp_path: Path) -> None:
    large = Measuring(broken, 1, lake="large", lake_bytes=2**60)
    (found,) = measured([row()], Place(tmp_path), 1, lambda _: None, measurings={"one": large})
    assert found.verdict == "skipped"
    assert found.why.startswith("needs 1073741824.2 GiB of disk, ")


def test_a_lake_that_is_there_takes_no_more_room(tmp_path: Path) -> None:
    large = Measuring(broken, 1, lake="large", lake_bytes=2**60)
    assert large.no_room(tmp_path) is not None
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "finished.json").touch()
    assert large.no_room(tmp_path) is None


def test_quick_leaves_out_what_takes_longer_with_the_lake_that_is_to_be_built(tmp_path: Path) -> None:
    rows = [row("a", measuring="short"), row("b", measuring="to-build"), row("c", measuring="long")]
    there = fixed(1.0)
    measurings = {
        "short": there,
        "to-build": Measuring(broken, 100, lake="lake", build_seconds=30),
        "long": Measuring(broken, 121),
    }
    found = measured(rows, Place(tmp_path), 1, lambda _: None, quick=True, measurings=measurings)
    assert [one.verdict for one in found] == ["met", "skipped", "skipped"]
    assert found[1].why == "takes about 130 s; --quick measures what takes up to 120 s"


def test_after_each_measuring_there_is_something_to_keep_and_an_interrupt_loses_none_of_it(tmp_path: Path) -> None:
    def interrupted(_: Place, __: Sequence[Row]) -> Samples:
        raise KeyboardInterrupt

    rows = [row("a"), row("b", measuring="interrupted"), row("c", measuring="two")]
    measurings = {"one": fixed(1.0), "interrupted": Measuring(interrupted, 1), "two": fixed(1.0)}
    kept: list[list[str]] = []
    found = measured(
        rows,
        Place(tmp_path),
        1,
        lambda _: None,
        measurings=measurings,
        keep=lambda results: kept.append([one.row.name for one in results]),
    )
    assert kept == [["a"]]
    assert [(one.verdict, one.why) for one in found] == [("met", ""), ("failed", "interrupted"), ("failed", "interrupted")]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """`all` as it is typed, on rows of its own: `a` is met, `b` missed, `c` fails, `d` is not built."""
    rows = (
        row("a"),
        row("b", target=0.5),
        row("c", measuring="broken"),
        Row(name="d", title="title of d", unit="s", target=1, not_built="nobody wrote it"),
    )
    monkeypatch.setattr(every, "ROWS", rows)
    monkeypatch.setattr(every, "_compile", lambda: None)

    def call(*arguments: str, value: float = 1.0) -> Any:
        monkeypatch.setattr(every, "MEASURINGS", {"one": fixed(value), "broken": Measuring(broken, 1, run_bytes=0, run_files=0)})
        return CliRunner().invoke(main, ["all", "--repeat", "1", "--cache", str(tmp_path / "cache"), *arguments])

    return call


@pytest.mark.parametrize(
    "arguments, code",
    [
        (["--only", "a"], 0),
        (["--only", "b"], 0),
        (["--only", "b", "--strict"], 1),
        (["--only", "c"], 1),
        (["--only", "d", "--strict"], 0),
        ([], 1),
    ],
)
def test_the_exit_code_is_1_where_a_row_could_not_be_measured_and_with_strict_where_one_is_missed(
    typed: Callable[..., Any], arguments: list[str], code: int
) -> None:
    assert typed(*arguments).exit_code == code


def test_the_table_has_every_row_with_its_target_and_verdict_or_the_reason(typed: Callable[..., Any]) -> None:
    lines = [line for line in typed().stdout.splitlines() if line.startswith("| title")]
    assert lines == [
        "| title of a | 2.0 s | 1.0 s |  | met |  |",
        "| title of b | 0.50 s | 1.0 s |  | **missed** |  |",
        "| title of c | 2.0 s |  |  | failed | RuntimeError: the peer found another number |",
        "| title of d | 1.0 s |  |  | not built | nobody wrote it |",
    ]


def test_the_report_is_ready_for_a_page_with_the_longest_steps_of_what_is_missed() -> None:
    steps = {"session": 3.0, "live_files": 4.5, **{f"step_{number}": 0.1 for number in range(9)}}
    found = report(Result(row=row(target=1), samples=(Sample(value=9.0, steps=steps),)), result(1.0, of=row("b")))
    lines = [*verdicts(found), *where_time_goes(found)]
    assert [line for line in lines if len(line) > 100 and not line.startswith("|")] == []
    assert lines[-1].startswith("| title of a | `live_files` 4.50, `session` 3.00, `step_0` 0.10,")
    assert lines[-1].count("`") == 2 * LONGEST_STEPS
    assert list(where_time_goes(report(result(1.0)))) == []


def test_a_saved_run_is_what_a_later_one_is_compared_with(typed: Callable[..., Any], tmp_path: Path) -> None:
    saved = tmp_path / "run.json"
    assert typed("--only", "a", "--save", str(saved)).exit_code == 0
    told = typed("--only", "a", "--compare", str(saved), value=1.5).stdout
    assert "| 1.5 s |  | met | 1.50, one run each |" in told
    assert "- 1 rows were measured once in each run" in told


def test_a_file_that_is_no_run_is_refused_before_anything_is_measured(typed: Callable[..., Any], tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    told = typed("--compare", str(other))
    assert told.exit_code == 2
    assert "is no run that --save wrote" in told.output


def test_a_pattern_that_names_no_row_is_refused(typed: Callable[..., Any]) -> None:
    told = typed("--only", "nothing")
    assert told.exit_code == 2
    assert "no row is named like nothing" in told.output


def test_what_libraries_print_meanwhile_is_no_part_of_the_report(capfd: pytest.CaptureFixture[str]) -> None:
    with every._apart():
        os.write(1, b"a library's warning")
    os.write(1, b"the report")
    assert capfd.readouterr() == ("the report", "a library's warning")


def test_listing_measures_nothing(typed: Callable[..., Any]) -> None:
    told = typed("--list")
    assert told.exit_code == 0
    assert "| `c` | title of c | 2.0 s | broken | 1 |" in told.stdout
    assert "| `d` | title of d | 1.0 s | not built: nobody wrote it |  |" in told.stdout


def test_of_a_lake_of_leftovers_no_snapshot_names_one_and_each_is_past_the_grace_period(tmp_path: Path) -> None:
    config = json.loads(leftovers(tmp_path, 25).read_text())
    lake = iceberg_lake.IcebergLake(tmp_path / "lake")
    named = {task.file.file_path for task in lake.catalog().load_table("shop.orders_00").scan().plan_files()}
    there = {path for path in lake.warehouse.rglob("*.parquet") if f"file://{path}" not in named}
    assert len(there) == 25
    assert all(path.stat().st_mtime < datetime.now(UTC).timestamp() - 4 * 86_400 for path in there)
    assert config["storages"][0]["mode"] == "apply"


def test_a_command_that_ends_badly_is_told_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"gc-assets plans ended with code 2: (?s:.*)lakes\.yaml"):
        CommandLine(tmp_path / "lakes.yaml").call("plans")


def test_a_program_that_ends_instead_of_answering_is_told_in_its_last_words(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit('no such lake')"]
    with pytest.raises(RuntimeError, match="ended with code 1: no such lake"), Resident(program, tmp_path / "log") as resident:
        resident.ask({})


@deep
def test_a_real_row_is_measured_on_a_real_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(iceberg_lake.SIZES, "s", iceberg_lake.Size(tables=1, commits=2, files_per_commit=3))
    rows = [
        row("seconds", pick=Pick(night="first", start="cold"), target=1e9),
        row("jobs", "jobs", pick=Pick(night="first", start="cold", of="jobs")),
    ]
    found = measured(rows, Place(tmp_path), 1, print, measurings={"one": Measuring(partial(nights, "iceberg", "s"), 10)})
    assert [one.outcome for one in found] == ["measured", "measured"], [one.why for one in found]
    assert found[0].values[0] > 0
    assert {"session", "live_files", "deletion_plan"} <= found[0].steps().keys()
    assert found[1].values[0] >= 1
