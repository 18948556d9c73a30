"""Tests of `python -m benchmarks all`: rows, targets, verdicts, and failures that do not stop other
rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from benchmarks import iceberg_lake, one_table, scale, suite
from benchmarks.__main__ import main
from benchmarks.commands import CommandLine
from benchmarks.comparison import Measurement, Passes
from benchmarks.groups import (
    GIB,
    GROUPS,
    Group,
    Samples,
    Setup,
    build_leftovers,
    measure_runs,
    measure_scale,
    pick_sample,
    pick_speed_up,
    required_engines,
    required_passes,
)
from benchmarks.resident import ROOT, Resident
from benchmarks.results import Change, Machine, Outcome, Report, Result, Sample, changes
from benchmarks.scale import CLUSTER, ScaleSubject
from benchmarks.steps import steps_of
from benchmarks.suite import measure_rows
from benchmarks.tables import LONGEST_STEPS, format_longest_steps, format_rows, format_verdicts
from benchmarks.targets import ROWS, Pick, Row, Unit, select_rows
from tests.depth import full_suite_only

MACHINE = Machine(cores=2, memory_bytes=GIB, python="3.11.9", java="17.0.1", class_archive=True, load_before=0.1, load_after=1.0)


def row(name: str = "a", unit: Unit = "s", target: float = 2.0, group: str = "one", **further: Any) -> Row:
    return Row(name=name, title=f"title of {name}", unit=unit, target=target, group=group, **further)


def result(*values: float, of: Row | None = None, outcome: Outcome = "measured") -> Result:
    return Result(row=of or row(), outcome=outcome, samples=tuple(Sample(value=value) for value in values))


def report(*results: Result) -> Report:
    return Report(at=datetime(2026, 11, 23, 20, tzinfo=UTC), commit="a7ed69a", repeat=3, machine=MACHINE, results=results)


def test_every_row_has_a_unique_name_and_an_existing_group() -> None:
    assert len({one.name for one in ROWS}) == len(ROWS)
    assert {one.group for one in ROWS} - {None} == GROUPS.keys()


@pytest.mark.parametrize("group, not_built", [(None, ""), ("one", "needs a newer Spark")])
def test_row_without_group_or_reason_is_invalid(group: str | None, not_built: str) -> None:
    with pytest.raises(ValidationError, match="expected either a group that measures it or a reason why it is not built"):
        Row(name="a", title="a", unit="s", target=1, group=group, not_built=not_built)


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
def test_pattern_matches_part_of_a_name_or_wildcards(patterns: list[str], names: list[str]) -> None:
    rows = [row("iceberg-s-cold"), row("iceberg-m-cold"), row("plans"), row("make-test", on_request=True)]
    assert [one.name for one in select_rows(rows, patterns)] == names


@pytest.mark.parametrize(
    "unit, values, median, verdict",
    [
        ("s", [9.0, 2.0, 1.0], 2.0, "met"),
        ("s", [9.0, 2.01, 1.0], 2.01, "missed"),
        ("s", [1.0, 2.0, 3.0, 4.0], 2.5, "missed"),
        ("files/s", [2.0], 2.0, "met"),
        ("files/s", [1.99], 1.99, "missed"),
        ("times", [2.0], 2.0, "met"),
        ("times", [1.99], 1.99, "missed"),
        ("MiB", [2.01], 2.01, "missed"),
    ],
)
def test_verdict_compares_the_median_with_the_target(unit: Unit, values: list[float], median: float, verdict: str) -> None:
    found = result(*values, of=row(unit=unit))
    assert (found.median, found.verdict) == (median, verdict)


def test_verdict_of_an_unmeasured_row_is_failed_or_skipped() -> None:
    assert [result(1.0, outcome=outcome).verdict for outcome in ("failed", "skipped", "not built")] == ["failed", "skipped", "not built"]


@pytest.mark.parametrize(
    "unit, target, text",
    [
        ("s", 0.5, "0.50 s"),
        ("s", 150, "2.5 min"),
        ("ratio", 0.5, "0.50"),
        ("times", 1.6, "1.60 times"),
        ("MiB", 2_384, "2,384 MiB"),
        ("bytes", 0.126, "0.13 bytes"),
        ("lines", 3_400, "3,400 lines"),
        ("jobs", 6, "6"),
        ("files/s", 5_000, "5,000 files/s"),
    ],
)
def test_values_are_printed_with_units(unit: Unit, target: float, text: str) -> None:
    assert list(format_rows([row(unit=unit, target=target)], {}))[-1] == f"| `a` | title of a | {text} | one |  |"


@pytest.mark.parametrize(
    "unit, earlier, now, trend",
    [
        ("s", [1.0, 1.2, 1.4], [1.3, 1.5, 1.6], "same"),
        ("s", [1.0, 1.2, 1.4], [1.6, 1.61, 1.7], "worse"),
        ("s", [1.6, 1.61, 1.7], [1.0, 1.2, 1.4], "better"),
        ("files/s", [1.0, 1.2, 1.4], [1.6, 1.61, 1.7], "better"),
        ("s", [1.0], [1.6, 1.61, 1.7], "worse"),
        ("s", [1.0], [9.0], "one run each"),
        ("jobs", [5.0], [6.0], "worse"),
        ("jobs", [6.0], [6.0], "same"),
    ],
)
def test_trend_ignores_changes_within_measurement_spread(unit: Unit, earlier: list[float], now: list[float], trend: str) -> None:
    of = row(unit=unit)
    found = changes(report(result(*earlier, of=of)), report(result(*now, of=of)))
    assert found["a"].trend == trend


def test_change_ratio_divides_by_the_earlier_median() -> None:
    assert Change(row=row(), earlier=4.0, now=3.0, value_range=None).ratio == 0.75
    assert Change(row=row(), earlier=0.0, now=0.0, value_range=None).ratio == 1.0


def test_changes_skip_failed_and_new_rows() -> None:
    rows = [row("both"), row("failed"), row("new")]
    earlier = report(result(1.0, of=rows[0]), result(1.0, of=rows[1]))
    now = report(result(1.0, of=rows[0]), result(1.0, of=rows[1], outcome="failed"), result(1.0, of=rows[2]))
    assert changes(earlier, now).keys() == {"both"}


def test_saved_report_reads_back_with_median_and_verdict() -> None:
    sample = Sample(value=0.5, details={"ours, s": 1.0}, steps={"session": 0.4})
    written = report(Result(row=row(pick=Pick(run="first", start="cold", of="peer")), samples=(sample,)), result(outcome="skipped"))
    text = written.model_dump_json()
    assert Report.model_validate_json(text) == written
    assert [(one["median"], one["verdict"]) for one in json.loads(text)["results"]] == [(0.5, "met"), (None, "skipped")]


def test_report_of_an_earlier_release_is_read() -> None:
    old_row = {"name": "a", "title": "a", "unit": "s", "target": 1.0, "measuring": "one"}
    pick = {"night": "second", "start": "warm", "of": " ".join(("first", "night"))}
    old = {"row": {**old_row, "pick": pick}, "samples": [{"value": 0.5, "beside": {"ours, s": 1.0}}], "why": "none"}
    found = Result.model_validate_json(json.dumps(old))
    assert (found.row.group, found.row.pick) == ("one", Pick(run="second", start="warm", of="first run"))
    assert (found.details(), found.reason) == ({"ours, s": 1.0}, "none")


def build_measurement(tool: str, run: str, wall: float, *, cold: bool = True, jobs: Sequence[int] = (2, 0, 1)) -> Measurement:
    names = ["live_files", *(f"stage_{number}" for number in range(1, len(jobs)))]
    stages = [{"stage": name, "wall": wall / len(jobs), "jobs": count, "state_bytes": 100} for name, count in zip(names, jobs, strict=True)]
    answer: dict[str, Any] = {"total": {"peak_bytes": GIB, "peak_driver_bytes": 0, "peak_jvm_bytes": GIB}, "unreferenced": 7}
    return Measurement(tool, run, cold, wall, wall, answer if tool == "peer" else answer | {"stages": stages, "live_files": 400})


MEASUREMENTS = [
    build_measurement("gc-assets", "first", 8.0),
    build_measurement("peer", "first", 16.0),
    build_measurement("gc-assets", "first", 4.0, cold=False),
    build_measurement("gc-assets", "second", 3.0, cold=False),
]


@pytest.mark.parametrize(
    "pick, value",
    [
        (Pick(run="first", start="cold"), 8.0),
        (Pick(run="first", start="cold", of="peer"), 0.5),
        (Pick(run="first", start="cold", of="jobs"), 3),
        (Pick(run="first", start="cold", of="peak"), 1_024),
        (Pick(run="first", start="cold", of="state"), 0.25),
        (Pick(run="second", start="warm", of="first run"), 0.75),
        (Pick(run="first", start="warm", of="recorded"), 0.4),
    ],
)
def test_pick_sample_computes_the_requested_figure(pick: Pick, value: float) -> None:
    measurements = [item for item in MEASUREMENTS if pick.of != "recorded" or item.tool != "peer"]
    assert pick_sample(pick, measurements, recorded=10.0).value == value


def test_pick_sample_prefers_measured_peer_to_recorded_time() -> None:
    measurements = [*MEASUREMENTS, build_measurement("peer", "first", 2.0, cold=False)]
    found = pick_sample(Pick(run="first", start="warm", of="recorded"), measurements, recorded=10.0)
    assert (found.value, found.details["peer, s"]) == (2.0, 2.0)


def test_run_without_listing_is_compared_with_second_peer_run() -> None:
    ours, theirs = build_measurement("gc-assets", "unlisted", 1.0), build_measurement("peer", "second", 4.0)
    found = pick_sample(Pick(run="unlisted", start="cold", of="peer"), [*MEASUREMENTS, ours, theirs])
    assert (found.value, found.details["peer, s"]) == (0.25, 4.0)


def test_pick_sample_refuses_an_unmeasured_run() -> None:
    with pytest.raises(RuntimeError, match="there is no cold second run of gc-assets"):
        pick_sample(Pick(run="second", start="cold"), MEASUREMENTS)


@pytest.mark.parametrize(
    "picks, expected",
    [
        ([Pick(run="first", start="cold")], Passes(warm=False, peer_warm=False, cold_second=False)),
        ([Pick(run="second", start="cold", of="peer")], Passes(peer=True, warm=False, peer_warm=False, cold_second=True)),
        ([Pick(run="second", start="warm")], Passes(warm=True, peer_warm=False, cold_second=False)),
        ([Pick(run="unlisted", start="cold")], Passes(warm=False, peer_warm=False, cold_second=False, unlisted=True)),
    ],
)
def test_only_passes_that_rows_need_are_run(picks: list[Pick], expected: Passes) -> None:
    assert required_passes(picks) == expected


def cold_runs(first: float, second: float) -> list[Measurement]:
    return [build_measurement("gc-assets", "first", first), build_measurement("gc-assets", "second", second)]


def test_speed_up_is_ratio_of_one_worker_to_two_worker_seconds() -> None:
    found = pick_speed_up(Pick(run="second", start="cold", of="one worker"), cold_runs(9, 8), cold_runs(9, 4))
    assert (found.value, found.details["one worker, s"], found.details["two workers, s"]) == (2.0, 8.0, 4.0)
    assert sum(found.steps.values()) == pytest.approx(4.0)


def test_speed_up_requires_equal_unreferenced_file_counts() -> None:
    one, two = cold_runs(9, 8), cold_runs(9, 4)
    two[1].answer["unreferenced"] = 6
    with pytest.raises(RuntimeError, match="second run: one worker found 7 unreferenced files, two workers 6"):
        pick_speed_up(Pick(run="second", start="cold", of="one worker"), one, two)


@pytest.mark.parametrize(
    "picks, engines",
    [
        ([Pick(run="first", start="cold")], ["local[2]"]),
        ([Pick(run="first", start="cold", of="one worker")], ["local[1]", CLUSTER]),
        (
            [Pick(run="second", start="cold", of="one worker"), Pick(run="first", start="cold", of="peak")],
            ["local[2]", "local[1]", CLUSTER],
        ),
    ],
)
def test_only_engines_that_rows_need_are_started(picks: list[Pick], engines: list[str]) -> None:
    assert required_engines(picks) == engines


def test_rows_of_one_large_lake_share_engine_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"local[2]": cold_runs(8, 5), "local[1]": cold_runs(9, 8), CLUSTER: cold_runs(6, 4)}
    measured: list[str] = []

    def measure(engines: Iterable[str], _: Path) -> dict[str, list[Measurement]]:
        measured.extend(engines)
        return {engine: runs[engine] for engine in measured}

    monkeypatch.setattr(scale, "measure", measure)
    rows = [one for one in ROWS if one.group == "scale-tables"]
    found = measure_scale(lambda _, engine: engine, Setup(tmp_path), rows)  # pyright: ignore[reportArgumentType]
    assert measured == ["local[2]", "local[1]", CLUSTER]
    assert {name: sample.value for name, sample in found.items()} == {
        "scale-tables-first": 8.0,
        "scale-tables-first-peak": 1_024.0,
        "scale-tables-second": 5.0,
        "scale-tables-second-peak": 1_024.0,
        "scale-tables-state": 0.25,
        "scale-workers-first": 1.5,
        "scale-workers-second": 2.0,
    }


def test_product_line_count_includes_subpackages(tmp_path: Path) -> None:
    (line_row,) = (one for one in ROWS if one.unit == "lines")
    found = GROUPS["mark-lines"].measure(Setup(tmp_path), [line_row])[line_row.name]
    files = list((ROOT / "gc_assets" / "stages" / "mark").glob("**/*.py"))
    assert found.value == sum(len(path.read_text().splitlines()) for path in files)
    assert {path.parent.name for path in files} > {"mark"}


def test_step_times_are_parsed_from_log_lines() -> None:
    lines = [
        "2026-11-23 18:00:00 INFO shop/lake_refs of 2026-11-23: ended after 0.5 s: lake_refs 3 rows",
        "weather/lake_refs of 2026-11-23: ended after 1,000.25 s",
        "lake/deletion_log of 2026-11-23: quarantine: 50 files",
    ]
    assert steps_of(lines) == {"lake_refs": 1_000.75}


Measure = Callable[[Setup, Sequence[Row]], Samples]


def fixed_group(*values: float) -> Group:
    """Return a group that measures these values, one after the other."""
    left = list(values)

    def measure(_: Setup, rows: Sequence[Row]) -> Samples:
        value = left.pop(0)
        return {one.name: Sample(value=value) for one in rows}

    return Group(measure, seconds=1, run_bytes=0, run_files=0)


def fail(_: Setup, __: Sequence[Row]) -> Samples:
    raise RuntimeError("the peer found another number")


def test_failed_row_does_not_stop_other_rows(tmp_path: Path) -> None:
    rows = [row("a", group="broken"), row("b"), row("c", group="broken")]
    groups = {"broken": Group(fail, 1), "one": fixed_group(1.0, 1.5)}
    messages: list[str] = []
    a, b, c = measure_rows(rows, Setup(tmp_path), 2, messages.append, groups=groups)
    assert [a.verdict, b.verdict, c.verdict] == ["failed", "met", "failed"]
    assert a.reason == c.reason == "RuntimeError: the peer found another number"
    assert b.values == [1.0, 1.5]
    assert any("failed: RuntimeError" in line for line in messages)


def test_row_that_fails_in_the_second_repeat_keeps_the_first_sample(tmp_path: Path) -> None:
    (found,) = measure_rows([row()], Setup(tmp_path), 2, lambda _: None, groups={"one": fixed_group(1.0)})
    assert (found.verdict, found.values) == ("failed", [1.0])
    assert found.reason == "IndexError: pop from empty list"


def test_rows_of_one_group_share_a_measurement(tmp_path: Path) -> None:
    found = measure_rows([row("a"), row("b")], Setup(tmp_path), 1, lambda _: None, groups={"one": fixed_group(1.0)})
    assert [one.values for one in found] == [[1.0], [1.0]]


def test_row_without_disk_space_is_skipped_with_a_reason(tmp_path: Path) -> None:
    large = Group(fail, 1, lake="large", lake_bytes=2**60)
    (found,) = measure_rows([row()], Setup(tmp_path), 1, lambda _: None, groups={"one": large})
    assert found.verdict == "skipped"
    assert found.reason.startswith("needs 1073741824.2 GiB of disk, ")


def test_existing_lake_needs_no_additional_disk_space(tmp_path: Path) -> None:
    large = Group(fail, 1, lake="large", lake_bytes=2**60)
    assert large.missing_space(tmp_path) is not None
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "finished.json").touch()
    assert large.missing_space(tmp_path) is None


def test_quick_skips_long_rows_including_builds(tmp_path: Path) -> None:
    rows = [row("a", group="short"), row("b", group="to-build"), row("c", group="long")]
    short = fixed_group(1.0)
    groups = {
        "short": short,
        "to-build": Group(fail, 100, lake="lake", build_seconds=30),
        "long": Group(fail, 121),
    }
    found = measure_rows(rows, Setup(tmp_path), 1, lambda _: None, quick=True, groups=groups)
    assert [one.verdict for one in found] == ["met", "skipped", "skipped"]
    assert found[1].reason == "takes about 130 s; --quick allows 120 s"


def interrupt_after(*values: float) -> Group:
    """Return a group that measures these values, and is interrupted then."""
    group = fixed_group(*values)

    def measure(setup: Setup, rows: Sequence[Row]) -> Samples:
        try:
            return group.measure(setup, rows)
        except IndexError:
            raise KeyboardInterrupt from None

    return Group(measure, seconds=1, run_bytes=0, run_files=0)


def test_interrupt_keeps_the_samples_so_far(tmp_path: Path) -> None:
    rows = [row("a"), row("b", group="interrupted"), row("c", group="two")]
    groups = {"one": fixed_group(1.0, 1.1), "interrupted": interrupt_after(1.0), "two": fixed_group(1.0, 1.1)}
    found = measure_rows(rows, Setup(tmp_path), 2, lambda _: None, groups=groups)
    assert [(one.verdict, one.reason) for one in found] == [("met", ""), ("failed", "interrupted"), ("failed", "interrupted")]
    assert [one.values for one in found] == [[1.0, 1.1], [1.0], []]


def test_results_are_saved_after_each_repeat(tmp_path: Path) -> None:
    saved: list[list[list[float]]] = []
    measure_rows(
        [row("a"), row("b", group="two")],
        Setup(tmp_path),
        2,
        lambda _: None,
        groups={"one": fixed_group(1.0, 1.1), "two": fixed_group(2.0, 2.1)},
        save_results=lambda results: saved.append([one.values for one in results]),
    )
    assert saved == [[[1.0], []], [[1.0, 1.1], []], [[1.0, 1.1], [2.0]], [[1.0, 1.1], [2.0, 2.1]]]


def test_resumed_run_measures_only_missing_samples(tmp_path: Path) -> None:
    rows = [row("a"), row("b", group="two"), row("c", group="two")]
    earlier = {name: [Sample(value=value) for value in values] for name, values in {"a": [1.0, 1.1], "b": [2.0]}.items()}
    groups = {"one": Group(fail, 1), "two": fixed_group(3.0, 3.1)}
    found = measure_rows(rows, Setup(tmp_path), 2, lambda _: None, groups=groups, earlier=earlier)
    assert [one.values for one in found] == [[1.0, 1.1], [2.0, 3.1], [3.0, 3.1]]
    assert {one.outcome for one in found} == {"measured"}


def test_skipped_row_keeps_earlier_samples(tmp_path: Path) -> None:
    earlier = {"a": [Sample(value=1.0)]}
    (found,) = measure_rows([row()], Setup(tmp_path), 2, lambda _: None, quick=True, groups={"one": Group(fail, 121)}, earlier=earlier)
    assert (found.outcome, found.values) == ("skipped", [1.0])


def test_group_that_omits_a_row_fails(tmp_path: Path) -> None:
    (found,) = measure_rows([row()], Setup(tmp_path), 1, lambda _: None, groups={"one": Group(lambda *_: {}, 1)})
    assert (found.verdict, found.reason) == ("failed", "KeyError: 'a'")


@pytest.fixture
def run_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Run `all` with four rows: `a` is met, `b` is missed, `c` fails, `d` is not built."""
    rows = (
        row("a"),
        row("b", target=0.5),
        row("c", group="broken"),
        Row(name="d", title="title of d", unit="s", target=1, not_built="needs a newer Spark"),
    )
    monkeypatch.setattr(suite, "ROWS", rows)
    monkeypatch.setattr(suite, "compile_bytecode", lambda: None)
    monkeypatch.setattr(suite, "read_commit", lambda: "a7ed69a")

    def call(*arguments: str, value: float = 1.0) -> Any:
        monkeypatch.setattr(suite, "GROUPS", {"one": fixed_group(value), "broken": Group(fail, 1, run_bytes=0, run_files=0)})
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
def test_exit_code_is_1_for_failed_rows_and_strict_missed_targets(run_all: Callable[..., Any], arguments: list[str], code: int) -> None:
    assert run_all(*arguments).exit_code == code


def test_table_has_every_row_with_verdict_or_reason(run_all: Callable[..., Any]) -> None:
    lines = [line for line in run_all().stdout.splitlines() if line.startswith("| title")]
    assert lines == [
        "| title of a | 2.0 s | 1.0 s |  | met |  |",
        "| title of b | 0.50 s | 1.0 s |  | **missed** |  |",
        "| title of c | 2.0 s |  |  | failed | RuntimeError: the peer found another number |",
        "| title of d | 1.0 s |  |  | not built | needs a newer Spark |",
    ]


def test_report_fits_a_page_and_lists_the_longest_steps() -> None:
    steps = {"session": 3.0, "live_files": 4.5, **{f"step_{number}": 0.1 for number in range(9)}}
    found = report(Result(row=row(target=1), samples=(Sample(value=9.0, steps=steps),)), result(1.0, of=row("b")))
    lines = [*format_verdicts(found), *format_longest_steps(found)]
    assert [line for line in lines if len(line) > 100 and not line.startswith("|")] == []
    assert lines[-1].startswith("| title of a | `live_files` 4.50, `session` 3.00, `step_0` 0.10,")
    assert lines[-1].count("`") == 2 * LONGEST_STEPS
    assert list(format_longest_steps(report(result(1.0)))) == []


def test_compare_reads_a_saved_run(run_all: Callable[..., Any], tmp_path: Path) -> None:
    saved = tmp_path / "run.json"
    assert run_all("--only", "a", "--save", str(saved)).exit_code == 0
    output = run_all("--only", "a", "--compare", str(saved), value=1.5).stdout
    assert "| 1.5 s |  | met | 1.50, one run each |" in output
    assert "- 1 rows were measured once in each run" in output


def test_compare_refuses_file_not_written_by_save(run_all: Callable[..., Any], tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    invocation = run_all("--compare", str(other))
    assert invocation.exit_code == 2
    assert "was not written by --save" in invocation.output


def saved_values(path: Path) -> dict[str, list[float]]:
    return {one.row.name: one.values for one in Report.model_validate_json(path.read_bytes()).results}


def test_resume_keeps_saved_samples(run_all: Callable[..., Any], tmp_path: Path) -> None:
    saved = tmp_path / "run.json"
    first = ["--only", "a", "--save", str(saved), "--resume"]
    assert run_all(*first).exit_code == 0, "a missing file is an empty one"
    assert run_all(*first, value=9.0).exit_code == 0
    assert saved_values(saved) == {"a": [1.0]}
    assert run_all(*first, "--repeat", "2", value=9.0).exit_code == 0
    assert saved_values(saved) == {"a": [1.0, 9.0]}


def test_resume_keeps_rows_that_the_pattern_excludes(run_all: Callable[..., Any], tmp_path: Path) -> None:
    saved = tmp_path / "run.json"
    assert run_all("--only", "a", "--save", str(saved)).exit_code == 0
    found = run_all("--only", "b", "--save", str(saved), "--resume", value=0.4)
    assert found.exit_code == 0
    assert [line.split("|")[1] for line in found.stdout.splitlines() if line.startswith("| title")] == [" title of b ", " title of a "]
    assert saved_values(saved) == {"b": [0.4], "a": [1.0]}


@pytest.mark.parametrize("earlier, now", [("a7ed69a", "b7ed69a"), ("a7ed69a+", "a7ed69a+"), ("", "")])
def test_resume_refuses_samples_of_different_or_unknown_commit(
    run_all: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: str, now: str
) -> None:
    saved = tmp_path / "run.json"
    saved.write_text(report(result(1.0)).model_copy(update={"commit": earlier}).model_dump_json())
    monkeypatch.setattr(suite, "read_commit", lambda: now)
    found = run_all("--only", "a", "--save", str(saved), "--resume")
    assert found.exit_code == 2
    assert f"run.json was measured at commit {earlier or 'unknown'}, and this checkout is at {now or 'unknown'}" in " ".join(
        found.output.split()
    )
    assert saved_values(saved) == {"a": [1.0]}


def test_resume_requires_a_file(run_all: Callable[..., Any]) -> None:
    found = run_all("--only", "a", "--resume")
    assert found.exit_code == 2
    assert "--resume needs --save FILE" in found.output


def test_report_shows_both_commits_if_checkout_changes(
    run_all: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = iter(["a7ed69a", "b7ed69a"])
    monkeypatch.setattr(suite, "read_commit", lambda: next(commits, "b7ed69a"))
    saved = tmp_path / "run.json"
    assert run_all("--only", "a", "--save", str(saved)).exit_code == 0
    assert Report.model_validate_json(saved.read_bytes()).commit == "a7ed69a..b7ed69a"


def test_saved_results_do_not_count_as_uncommitted_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "core.hooksPath=/dev/null"]
    (tmp_path / "code.py").write_text("1\n")
    for arguments in (["init", "-q"], ["add", "code.py"], ["commit", "-q", "-m", "code"]):
        subprocess.run([*git, *arguments], cwd=tmp_path, check=True)
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    (tmp_path / "now.json").write_text("{}")
    commit = suite.read_commit()
    assert commit
    assert not commit.endswith("+")
    (tmp_path / "code.py").write_text("2\n")
    assert suite.read_commit() == f"{commit}+"


def test_pattern_without_a_match_is_refused(run_all: Callable[..., Any]) -> None:
    invocation = run_all("--only", "nothing")
    assert invocation.exit_code == 2
    assert "no row matches nothing" in invocation.output


def test_output_of_libraries_is_not_in_the_report(capfd: pytest.CaptureFixture[str]) -> None:
    with suite.redirect_output():
        os.write(1, b"a library's warning")
    os.write(1, b"the report")
    assert capfd.readouterr() == ("the report", "a library's warning")


def test_list_option_runs_no_measurement(run_all: Callable[..., Any]) -> None:
    invocation = run_all("--list")
    assert invocation.exit_code == 0
    assert "| `c` | title of c | 2.0 s | broken | 1 |" in invocation.stdout
    assert "| `d` | title of d | 1.0 s | not built: needs a newer Spark |  |" in invocation.stdout


def test_leftovers_are_unreferenced_and_older_than_the_grace_period(tmp_path: Path) -> None:
    config = json.loads(build_leftovers(tmp_path, 25).read_text())
    lake = iceberg_lake.IcebergLake(tmp_path / "lake")
    named = {task.file.file_path for task in lake.catalog().load_table("shop.orders_00").scan().plan_files()}
    leftovers = {path for path in lake.warehouse.rglob("*.parquet") if f"file://{path}" not in named}
    assert len(leftovers) == 25
    assert all(path.stat().st_mtime < datetime.now(UTC).timestamp() - 4 * 86_400 for path in leftovers)
    assert config["storages"][0]["mode"] == "apply"


def test_failed_command_raises_error_with_output(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"gc-assets plans failed with exit code 2: (?s:.*)lakes\.yaml"):
        CommandLine(tmp_path / "lakes.yaml").call("plans")


def test_program_exit_without_response_raises_log_output(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit('no such lake')"]
    with pytest.raises(RuntimeError, match="failed with exit code 1: no such lake"), Resident(program, tmp_path / "log") as resident:
        resident.ask({})


@full_suite_only
def test_row_is_measured_on_a_real_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(iceberg_lake.SIZES, "s", iceberg_lake.Size(tables=1, commits=2, files_per_commit=3))
    rows = [
        row("seconds", pick=Pick(run="first", start="cold"), target=1e9),
        row("jobs", "jobs", pick=Pick(run="first", start="cold", of="jobs")),
    ]
    found = measure_rows(rows, Setup(tmp_path), 1, print, groups={"one": Group(partial(measure_runs, "iceberg", "s"), 10)})
    assert [one.outcome for one in found] == ["measured", "measured"], [one.reason for one in found]
    assert found[0].values[0] > 0
    assert {"session", "live_files", "deletion_plan"} <= found[0].steps().keys()
    assert found[1].values[0] == 0, "a lake of this size needs no Spark job"


@full_suite_only
def test_rows_of_a_large_table_are_measured_on_a_real_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_table, "FILES_PER_MANIFEST", 5)
    rows = [one.model_copy(update={"group": "one"}) for one in ROWS if one.group == "scale-files"]
    rows.append(row("state", "bytes", pick=Pick(run="second", start="cold", of="state")))
    groups = {"one": Group(partial(measure_scale, partial(ScaleSubject.of_files, 20)), 10)}
    found = measure_rows(rows, Setup(tmp_path), 1, print, groups=groups)
    assert {one.outcome for one in found} == {"measured"}, [one.reason for one in found]
    assert min(one.values[0] for one in found) > 0
