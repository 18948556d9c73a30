"""Help, wrong usage and wrong configuration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gc_assets.cli.main import COMMANDS, cli
from gc_assets.core.errors import UsageError
from gc_assets.resources.platform import load_platform
from gc_assets.stages.delete.plan import header_of
from gc_assets.stages.records.plans import find_plan
from tests.assets.platforms import platform, stored_plan
from tests.cli.lakes import write_config
from tests.lakes.iceberg.builder import LakeBuilder
from tests.records import log_row, publish_log
from tests.state.publisher import publish_empty

HEAVY = ("pyspark", "dagster", "pyarrow", "pandas", "pyiceberg", "icechunk", "rich")


def gc_assets(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


@pytest.fixture
def config(tmp_path: Path) -> str:
    """Write a configuration with an empty state and an empty catalog."""
    return str(write_config(tmp_path, LakeBuilder(tmp_path).properties))


@pytest.mark.parametrize("command", list(COMMANDS))
def test_help_of_every_command_has_an_example(command: str) -> None:
    result = gc_assets(command, "--help")
    assert result.exit_code == 0
    assert f"gc-assets {command}" in result.output


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["run", "--run-date", "tomorrow"], ["nonsense"]])
def test_help_and_usage_errors_do_not_import_large_modules(arguments: list[str]) -> None:
    script = (
        "import sys\nfrom gc_assets.cli.main import cli\n"
        f"try:\n    cli({arguments!r}, standalone_mode=False)\nexcept Exception:\n    pass\n"
        f"print('HEAVY', sorted(set(sys.modules) & set({HEAVY!r})))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def test_commands_without_spark_do_not_import_large_modules(config: str) -> None:
    commands = ["plans"], ["approve", "0" * 12, "--by", "ada"], ["reject", "0" * 12, "--by", "ada"], ["show", "lake_refs"], ["prune"]
    script = (
        "import sys, contextlib\nfrom gc_assets.cli.main import cli\n"
        f"for command in {commands!r}:\n"
        f"    with contextlib.suppress(SystemExit, Exception):\n        cli([*command, '--config', {config!r}], standalone_mode=False)\n"
        "    print(command, sorted(set(sys.modules) & {'pyspark', 'dagster', 'botocore', 'boto3', 'pandas', 'datafusion'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("[")] == [f"{command} []" for command in commands]


def test_plans_command_does_not_import_table_readers(config: str) -> None:
    """Most of the command's time is Python's start, and Arrow alone would double it."""
    at = load_platform({}, config)
    plan_id = header_of(stored_plan(at, run_date=at.clock.today().isoformat())).plan_id
    reading = (
        "numpy",
        "pyarrow",
        "pyiceberg",
        "strictyaml",
        "gc_assets.engine.run_context",
        "gc_assets.stores.protocol",
        "gc_assets.lakes.protocol",
    )
    script = (
        "import sys\nfrom gc_assets.cli.main import cli\n"
        f"cli(['plans', '--config', {config!r}], standalone_mode=False)\n"
        f"print('READING', sorted(set(sys.modules) & set({(*HEAVY[:-1], *reading)!r})))"
    )
    environment = {name: value for name, value in os.environ.items() if not name.lower().startswith("pyiceberg_")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert plan_id[:12] in done.stdout
    assert done.stdout.splitlines()[-1] == "READING []"


@pytest.mark.parametrize("command", [["run"], ["show", "lake_refs"], ["plans"], ["report"], ["doctor"], ["prune"], ["explain", "k"]])
def test_missing_configuration_is_a_usage_error(command: list[str], tmp_path: Path) -> None:
    result = gc_assets(*command, "--config", str(tmp_path / "none.yaml"))
    assert result.exit_code == 2
    assert "none.yaml" in result.stderr
    assert "--config" in result.stderr
    assert result.stdout == ""


def test_config_option_can_precede_or_follow_the_command(config: str) -> None:
    assert gc_assets("--config", config, "plans", "--format", "json").exit_code == 0
    assert gc_assets("plans", "--format", "json", "--config", config).exit_code == 0


def test_unknown_configuration_key_is_refused(config: str) -> None:
    document = json.loads(Path(config).read_text())
    document["storages"][0]["grase"] = "72h"
    Path(config).write_text(json.dumps(document))
    result = gc_assets("plans", "--config", config)
    assert result.exit_code == 2
    assert "storages[0].grase" in result.stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["run", "--run-date", "21.11.2026"], "2026-11-21"),
        (["run", "--run-date", "1997-12-31"], "outside 1998-01-01"),
        (["run", "--run-date", (date.today() + timedelta(days=3)).isoformat()], "outside 1998-01-01"),  # noqa: DTZ011  (any zone is 3 days short)
        (["run", "--as-of", "noon"], "not a time"),
        (["run", "--lake", "lost"], "unknown lake 'lost'; configured: sales"),
        (["run", "--storage", "lost"], "unknown storage 'lost'; configured: warehouse"),
        (["run", "--through", "lost"], "available: policy_table, current_rules"),
        (["run", "--lake", "sales", "--through", "orphan_files"], "Add --storage"),
        (["show", "lost"], "available: policy_table, current_rules"),
        (["show", "lake_refs", "--lake", "lost"], "configured: sales"),
        (["show", "lake_refs", "--storage", "warehouse"], "is a table of a lake"),
        (["show", "live_files", "--format", "parquet"], "-o FILE"),
        (["plans", "--storage", "lost"], "configured: warehouse"),
        (["approve", "0123456789ab", "--by", "ada"], "no plan with the id 0123456789ab"),
        (["approve", "0123", "--by", "ada"], "too short"),
        (["approve", "0123456789ab"], "--by"),
        (["apply", "0123456789ab"], "`gc-assets plans` lists"),
        (["run", "--through", "lifecycle_objects"], "no selected lake has this table"),
        (["apply", "0123456789ab", "--phase", "burn"], "burn"),
        (["restore"], "a plan, a prefix or a key"),
        (["restore", "--key", "file:///elsewhere/file"], "in no configured storage"),
        (["prune", "--keep-days", "-1"], "keep-days"),
        (["metrics", "--out", "/nowhere/gc.prom"], "Cannot write --out /nowhere/gc.prom: No such file or directory"),
        (["rnu"], "did you mean run?"),
        (["plans", "--fromat", "json"], "gc-assets: there is no option --fromat; did you mean --format?"),
        (["show"], "gc-assets: ASSET is missing. The assets are policy_table, current_rules"),
        (["plans", "--status", "redy"], "--status: 'redy' is not one of ready, refused, approved"),
        (["show", "lake_refs", "--limit", "few"], "--limit: 'few' is not valid. Expected a whole number, 0 or more."),
        (["prune", "--keep-days", "-1"], "--keep-days: '-1' is not valid. Expected a whole number, 0 to 365,000."),
        (["plans", "today"], "gc-assets: today is not expected here."),
        (["export", "focsu"], "gc-assets: there is no command focsu; did you mean focus?"),
        (["run", "--listing=3"], "gc-assets: --listing takes no value."),
        (["run", "--lake", "slaes"], "did you mean sales?"),
        (["run", "--storage", "warehosue"], "did you mean warehouse?"),
        (["run", "--through", "live_file"], "did you mean live_files?"),
        (["show", "lake_ref"], "did you mean lake_refs?"),
        (["show", "lake_refs", "--lake", "slaes"], "did you mean sales?"),
    ],
)
def test_usage_error_exits_with_2_and_lists_valid_names(arguments: list[str], message: str, config: str) -> None:
    result = gc_assets(*arguments, "--config", config)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "arguments, command",
    [(["rnu"], "gc-assets"), (["plans", "--fromat"], "gc-assets plans"), (["run", "--lake"], "gc-assets run"), (["--bogus"], "gc-assets")],
)
def test_usage_error_ends_with_the_help_command(arguments: list[str], command: str) -> None:
    result = CliRunner().invoke(cli, arguments, prog_name="gc-assets")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith(f"Help:\n  {command} --help\n")
    assert not [word for word in ("Error:", "Try '", "Invalid value") if word in result.stderr]


def test_option_without_effect_is_accepted_with_a_warning(config: str) -> None:
    result = gc_assets("run", "--full", "--lake", "lost", "--config", config)
    assert "--full has no effect any more" in result.stderr
    assert "unknown lake 'lost'" in result.stderr


def test_similar_plan_id_is_suggested(tmp_path: Path) -> None:
    at = platform(tmp_path)
    plan_id = header_of(stored_plan(at)).plan_id
    slip = plan_id[:6] + plan_id[7] + plan_id[6] + plan_id[8:12]
    if slip == plan_id[:12]:
        slip = plan_id[:11] + ("0" if plan_id[11] != "0" else "1")
    with pytest.raises(UsageError, match=f"no plan with the id {slip}; did you mean {plan_id[:12]}"):
        find_plan(at.config, slip)


def test_restore_of_unknown_key_does_not_start_spark(config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def started_programs(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("gc_assets.cli.plans.open_spark", started_programs)
    (tmp_path / "warehouse").mkdir(exist_ok=True)
    run_context = load_platform({}, config).run_context(date.today())  # noqa: DTZ011  (any run date)
    publish_log(
        run_context,
        log_row("a/b", "quarantine", "p"),
        log_row("a/c", "quarantine", "p"),
        log_row("a/c", "restore", "r", source="p", minutes=1),
    )
    for key in ("a/b/c", "a/c", f"file://{tmp_path}/warehouse/a/c"):
        result = gc_assets("restore", "--key", key, "--format", "json", "--config", config)
        assert (result.exit_code, result.stdout) == (0, "[]\n")
        assert "no such file is in quarantine in storage warehouse" in result.stderr


def test_error_for_missing_table_contains_the_run_command(config: str) -> None:
    result = gc_assets("show", "lake_refs", "--run-date", "2026-01-02", "--config", config)
    assert result.exit_code == 1
    assert "gc-assets run --run-date 2026-01-02" in result.stderr


def test_report_before_any_run_suggests_the_run_command(config: str, tmp_path: Path) -> None:
    result = gc_assets("report", "-o", str(tmp_path / "report.html"), "--config", config)
    assert result.exit_code == 1
    assert result.stderr.splitlines() == ["gc-assets: there is no run yet. Start one with", "  gc-assets run"]
    assert not (tmp_path / "report.html").exists()


def test_report_for_a_date_without_run_suggests_the_last_run(config: str, tmp_path: Path) -> None:
    for day in ("2026-01-02", "2026-01-01"):
        publish_empty(load_platform({}, config).run_context(date.fromisoformat(day)).state, "lake_refs", date.fromisoformat(day))
    result = gc_assets("report", "--run-date", "2026-01-03", "-o", str(tmp_path / "report.html"), "--config", config)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "  gc-assets report --run-date 2026-01-02"


@pytest.mark.parametrize("arguments", [(), ("--status", "ready")])
def test_plans_before_any_run_suggests_the_run_command(config: str, arguments: tuple[str, ...]) -> None:
    result = gc_assets("plans", *arguments, "--config", config)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.splitlines() == ["No run has made a plan yet.", "To create one:", "  gc-assets run"]


def test_scan_with_a_missing_folder_searches_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def search(*_: object) -> None:
        raise AssertionError("a place was searched")

    monkeypatch.setattr("gc_assets.lakes.kinds.discover", search)
    monkeypatch.setattr("gc_assets.cli.new_config.warn_missing_libraries", search)
    result = gc_assets("scan", str(tmp_path), str(tmp_path / "nowhere"))
    assert result.exit_code == 2
    assert "nowhere: no such file or directory" in " ".join(result.stderr.split())


def test_json_list_without_plans_is_an_empty_array(config: str) -> None:
    result = gc_assets("plans", "--format", "json", "--config", config)
    assert (result.exit_code, json.loads(result.stdout)) == (0, [])


def test_unexpected_error_shows_traceback_only_with_verbose(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(*_: object) -> None:
        raise ZeroDivisionError("not anticipated")

    monkeypatch.setattr("gc_assets.resources.platform.load_platform", raise_error)
    short, long = gc_assets("plans", "--config", config), gc_assets("plans", "--config", config, "-v")
    assert short.exit_code == long.exit_code == 1
    assert "not anticipated" in short.stderr
    assert "Traceback" not in short.stderr
    assert "Traceback" in long.stderr


def test_run_and_doctor_report_the_notification_sensor(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(config)
    target = {"name": "pager", "kind": "command", "command": ["true"], "events": ["plan_ready"]}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"notify": [target]}))
    sender = "1 target; the `notifications` sensor of Dagster sends the messages, and commands send none"
    result = gc_assets("run", "--config", config, "--through", "policy_table")
    assert sender in " ".join(result.stderr.split())
    findings = json.loads(gc_assets("doctor", "--format", "json", "--config", config).stdout)
    assert {row["found"] for row in findings if row["subject"] == "notify"} == {sender}
    monkeypatch.setenv("DAGSTER_HOME", str(path.parent))
    assert sender not in " ".join(gc_assets("run", "--config", config, "--through", "policy_table").stderr.split())


def test_doctor_fails_for_missing_storage(config: str, tmp_path: Path) -> None:
    (tmp_path / "warehouse").rmdir()
    result = gc_assets("doctor", "--format", "json", "--config", config)
    failed = [row for row in json.loads(result.stdout) if row["verdict"] == "fail"]
    assert result.exit_code == 1
    assert {row["subject"] for row in failed} == {"warehouse"}
    assert all(row["todo"] for row in failed)


def test_doctor_fails_for_missing_catalog_without_creating_it(config: str, tmp_path: Path) -> None:
    (tmp_path / "catalog.db").unlink()
    result = gc_assets("doctor", "--format", "json", "--config", config)
    assert result.exit_code == 1
    (failed,) = (row for row in json.loads(result.stdout) if row["verdict"] == "fail")
    assert failed["subject"] == "sales"
    assert f"{tmp_path}/catalog.db does not exist" in failed["found"]
    assert not (tmp_path / "catalog.db").exists()


def test_doctor_fails_for_unreadable_catalog(config: str, tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"this is no database, and long enough to be taken for one" * 100)
    result = gc_assets("doctor", "--format", "json", "--config", config)
    assert result.exit_code == 1
    assert [row["subject"] for row in json.loads(result.stdout) if row["verdict"] == "fail"] == ["sales"]


def test_doctor_reports_lease_and_interrupted_apply(config: str, tmp_path: Path) -> None:
    control = tmp_path / "warehouse" / ".gc-assets"
    control.mkdir()
    holder = {"owner": "ada", "host": "h", "pid": 1, "plan_id": "p", "token": 1, "acquired_at": "2026-01-01T00:00:00+00:00"}
    (control / "lease.json").write_text(json.dumps({**holder, "expires_at": "2026-01-01T00:10:00+00:00"}))
    begun = tmp_path / "state" / "warehouse" / "apply" / ("ab" * 32)
    begun.mkdir(parents=True)
    (begun / "log.json").write_text("{}")
    result = gc_assets("doctor", "--format", "json", "--config", config)
    verdicts = {(row["subject"], row["check"]): row for row in json.loads(result.stdout)}
    assert result.exit_code == 1
    assert verdicts["warehouse", "lease"]["verdict"] == "warn"
    todo = verdicts["warehouse", "interrupted"]["todo"]
    assert todo.startswith("gc-assets adopt warehouse --by WHO records the files that were moved, and ends these plans.")


def test_doctor_removes_probe_files(config: str, tmp_path: Path) -> None:
    gc_assets("doctor", "--config", config)
    assert [path for path in (tmp_path / "state").rglob("*") if path.is_file()] == []
    assert list((tmp_path / "warehouse").iterdir()) == []
