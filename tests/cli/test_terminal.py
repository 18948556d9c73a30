"""The output of commands at 80 and 100 columns, compared with reviewed screens (`screens/`), and
the output on a real terminal.

`python -m tests.cli.test_terminal` updates the screens.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Mapping
from contextlib import chdir
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from gc_assets.cli import context as command_context
from gc_assets.cli.main import cli
from gc_assets.cli.output import has_colour, print_command, print_message, stream_width, write_table
from gc_assets.cli.problems import write_problems
from gc_assets.cli.show import SHORT_COLUMNS
from gc_assets.core.errors import GcError
from gc_assets.core.plan import Amount
from gc_assets.lakes.kinds import all_tables
from gc_assets.resources.platform import load_platform
from gc_assets.state.schemas import ORPHAN_FILES
from gc_assets.state.side_tables import DROPPED_TABLES_VIEW
from tests.assets.platforms import NOW, stored_plan
from tests.records import EMPTY_SWEEP, log_row, publish_log, publish_table

SCREENS = Path(__file__).parent / "screens"
WIDTHS = (80, 100)
CLOCK = {"GC_ASSETS_UNSAFE_NOW": NOW.isoformat()}
KEY = "shop/orders/data/country=de/00000-0-6f1d2a55-5a0b-4f40-bd01-ffa25f8f7a2b-00001.parquet"
# The path does not exist, so the messages are the same on every machine.
LOCATION = "file:///nowhere/warehouse/"
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "plans": ("plans",),
    "approve-refused": ("approve", "REFUSED_PLAN", "--by", "ada"),
    "approve": ("approve", "READY_PLAN", "--by", "ada"),
    "reject": ("reject", "READY_PLAN", "--by", "ada", "--comment", "orders is being migrated"),
    "apply-in-mode-plan": ("apply", "READY_PLAN"),
    "accept-unknown": ("accept", "shop.orders", "--by", "ada"),
    "show-deletion_log": ("show", "deletion_log"),
    "show-deletion_plan": ("show", "deletion_plan"),
    "doctor": ("doctor",),
    "refused": ("plans", "--config", "wrong.yaml"),
    "no-such-lake": ("run", "--lake", "slaes"),
    "restore-nowhere": ("restore", "--key", KEY),
}


def configure(root: Path) -> None:
    """Write a `lakes.yaml` with a state of two plans and a log, and a `wrong.yaml`."""
    lakes = [
        {"name": "sales", "kind": "iceberg", "catalog": {"type": "sql", "uri": "sqlite:////nowhere/catalog.db"}},
        {"name": "weather", "kind": "icechunk", "location": f"{LOCATION}weather/"},
    ]
    document: dict[str, Any] = {
        "state": "./state",
        "storages": [{"name": "warehouse", "location": LOCATION, "rehearsals": "allowed"}],
        "lakes": lakes,
    }
    (root / "lakes.yaml").write_text(json.dumps(document))
    document["storages"][0] |= {"grase": "72h", "quarantine": "trahs"}
    (root / "wrong.yaml").write_text(json.dumps(document | {"state": 7}))
    at = load_platform(CLOCK, str(root / "lakes.yaml"))
    stored_plan(at, files=3, max_delete_bytes=100)
    stored_plan(at, files=2, expiry_actions={"sales": 12, "weather": 3}, after_expiry=Amount(files=1, bytes=100))
    gone = log_row(
        KEY, "purge", "3f9c2a71d004" * 5 + "3f9c", outcome="denied", error="HTTP 403: denied by the bucket policy", source="ab" * 32
    )
    publish_log(at.run_context(NOW.date()), log_row("a/b", "quarantine", "ab" * 32, rehearsal=True), gone)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("terminal")
    configure(root)
    return root


def command_of(name: str) -> list[str]:
    """Return a command of `COMMANDS`, with the ids of the plans in the working directory."""
    listed = CliRunner(env=CLOCK).invoke(cli, ["plans", "--format", "json"]) if any("_PLAN" in word for word in COMMANDS[name]) else None
    ids = {f"{row['status'].upper()}_PLAN": row["plan_id"] for row in json.loads(listed.stdout)} if listed is not None else {}
    return [ids.get(word, word) for word in COMMANDS[name]]


def screen(root: Path, name: str, width: int) -> str:
    """Return the output of a command at a width: data, then messages, without values that differ
    between runs.
    """
    error = GcError("Spark is replaced in this test. Run it with `gc-assets doctor`.")
    # A module that is first imported while the function is replaced would keep the replacement.
    import_module("gc_assets.cli.plans")
    with (
        tempfile.TemporaryDirectory() as copy,  # an approval changes the list of plans
        chdir(shutil.copytree(root, copy, dirs_exist_ok=True)),
        patch.object(command_context, "open_spark", side_effect=error),
    ):
        result = CliRunner(env={**CLOCK, "COLUMNS": str(width)}).invoke(cli, command_of(name))
    text = re.sub(r"\b[0-9a-f]{12}\b", "0" * 12, result.stdout + result.stderr)
    return re.sub(r"\d{8}T\d{6}\S+", "20260314T093000…", text)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_screen_matches_the_recorded_screen(name: str, width: int, root: Path) -> None:
    assert screen(root, name, width) == (SCREENS / f"{name}-{width}.txt").read_text()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_every_line_fits_the_screen(name: str, width: int, root: Path) -> None:
    assert [line for line in screen(root, name, width).splitlines() if cell_len(line) > width] == []


def test_wide_option_shows_full_keys(root: Path) -> None:
    with chdir(root):
        result = CliRunner(env={**CLOCK, "COLUMNS": "80"}).invoke(cli, ["show", "deletion_log", "--wide"])
    assert KEY in result.stdout
    assert "…" not in result.stdout


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["deletion_plan", "orphan_files"])
def test_file_table_begins_with_table_reason_size_and_key(name: str, width: int, tmp_path: Path) -> None:
    """Etags and ids are in the wide table and in JSON only."""
    configure(tmp_path)
    context = load_platform(CLOCK, str(tmp_path / "lakes.yaml")).run_context(NOW.date())
    row = {"key": KEY, "size_bytes": 7, "etag": "9f86d081", "lake": "sales", "reason": "expired", "table_uuid": "60303ae2"}
    publish_table(context, "warehouse", ORPHAN_FILES, [row], **EMPTY_SWEEP)

    def show(*options: str) -> str:
        result = CliRunner(env={**CLOCK, "COLUMNS": str(width)}).invoke(cli, ["show", name, *options])
        assert result.exit_code == 0, result.stderr
        return result.stdout

    with chdir(tmp_path):
        shown, wide, document = show(), show("--wide"), show("--format", "json")
    assert shown.splitlines()[0].split()[:4] == ["table", "reason", "size", "key"]
    assert "etag" not in shown
    assert name == "deletion_plan" or "etag" in wide
    assert "etag" in json.loads(document)[0]


def test_suggested_command_stays_on_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    line = "gc-assets approve 3f9c2a71d004 --by WHO --override delete_bytes --override live_drop"
    print_command("To override all of them", line)
    finding = {"subject": "warehouse", "check": "gates", "verdict": "fail", "found": "refused", "cause": ""}
    write_problems([{**finding, "todo": f"See `{line}`."}])
    out, err = capsys.readouterr()
    assert err.splitlines() == ["To override all of them:", f"  {line}"]
    assert out.splitlines()[-1] == f"    {line}"


def test_default_columns_exist_in_the_schema_or_are_computed() -> None:
    computed = {"table", "size", "plan", "state"}
    for name, columns in SHORT_COLUMNS.items():
        known = {**all_tables(), DROPPED_TABLES_VIEW.name: DROPPED_TABLES_VIEW}[name].schema.names
        assert set(columns) <= {*known, *computed}, name


def test_keys_are_not_shortened_in_a_pipe(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    with chdir(root):
        result = CliRunner(env=CLOCK).invoke(cli, ["show", "deletion_log"])
    assert KEY in result.stdout


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "environment, coloured", [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)]
)
def test_verdicts_are_coloured_on_a_terminal(environment: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    out = Terminal()
    write_table([{"verdict": "fail", "found": "fail"}, {"verdict": "ok", "found": ""}], ("verdict", "found"), out)
    assert has_colour(out) is coloured
    assert ("\x1b[31mfail" in out.getvalue(), out.getvalue().count("\x1b[3")) == ((True, 2) if coloured else (False, 0))
    assert re.sub(r"\x1b\[\d+m", "", out.getvalue()).splitlines()[2:] == ["fail     fail", "ok"]


@pytest.mark.parametrize("columns, width", [("72", 72), ("", None), ("0", None), ("wide", None)])
def test_columns_variable_sets_the_width(columns: str, width: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert stream_width(io.StringIO()) == width


def test_message_wraps_at_the_terminal_width(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_message("  lakes[0].kind: this release knows iceberg, icechunk, lakefs and nessie")
    assert capsys.readouterr().err.splitlines() == ["  lakes[0].kind: this release knows", "  iceberg, icechunk, lakefs and nessie"]


# A stage that works for a moment, as `run` shows it.
WORK = """
import time
from gc_assets.cli.output import print_message
from gc_assets.cli.progress import CommandProgress, show_progress
from gc_assets.engine.progress import count_progress, log_activity, measure_work

progress = CommandProgress()
progress.start_assets(22)
with show_progress(progress, verbose=False), measure_work("sales/live_files of 2026-11-21"):
    log_activity("level 2: 1,000 containers to decode in 40 tasks")
    with count_progress("containers", lambda: 250, 1_000):
        time.sleep(0.6)
        print_message("a line that stays")
        time.sleep(0.4)
print("sales: plan 3f9c")
"""


def run_in_terminal(width: int) -> str:
    """Return the output of a command on a real terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    clean = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "NO_COLOR"}}
    child = subprocess.Popen([sys.executable, "-c", WORK], stdin=theirs, stdout=theirs, stderr=theirs, env=clean | {"TERM": "xterm"})
    os.close(theirs)
    received = b"".join(_read(ours))
    assert child.wait(60) == 0
    return received.decode()


def _read(terminal: int) -> Iterator[bytes]:
    try:
        while part := os.read(terminal, 65_536):
            yield part
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(terminal)


def test_terminal_shows_progress_and_is_restored_at_the_end() -> None:
    received = run_in_terminal(80)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", received)
    assert "1 of 22  sales/live_files of 2026-11-21" in shown
    assert "250 of 1,000 containers" in shown
    assert "\x1b[?25l" in received, "the cursor is hidden"
    # At the end, the display is erased and the cursor visible. Printed lines remain.
    assert final_screen(received) == ["a line that stays", "sales: plan 3f9c"]


def final_screen(received: str) -> list[str]:
    """Return the final lines of a terminal. Supports only cursor up, erase line and start of line."""
    lines, row, column = [""], 0, 0
    for piece in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", received):
        if piece == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif piece == "\r":
            column = 0
        elif piece.startswith("\x1b"):
            number, kind = piece[2:-1], piece[-1]
            if kind == "A":
                row = max(0, row - int(number or 1))
            elif kind == "K":
                lines[row] = "" if number == "2" else lines[row][:column]
        else:
            lines[row] = lines[row][:column].ljust(column) + piece + lines[row][column + len(piece) :]
            column += len(piece)
    return [line.rstrip() for line in lines if line.strip()]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        configure(Path(folder))
        for name in COMMANDS:
            for width in WIDTHS:
                (SCREENS / f"{name}-{width}.txt").write_text(screen(Path(folder), name, width))
