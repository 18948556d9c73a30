"""The Nessie lake of the benchmarks is valid for pyiceberg and the server, and changes are undone."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import nessie_lake, peer_nessie
from benchmarks.__main__ import main
from benchmarks.resident import Resident
from tests.depth import full_suite_only
from tests.lakes.nessie.builder import NessieBuilder, open_table
from tests.lakes.nessie.oracle import walk_log
from tests.lakes.nessie.server import Server

pytestmark = full_suite_only

SIZE = nessie_lake.Size(tables=2, commits=3, files_per_commit=4, refs=2)


class Lake(nessie_lake.NessieLake):
    """A lake on the server of the test suite."""

    def __init__(self, server: Server, root: Path) -> None:
        self.root, self.warehouse, self.server = root, root / "warehouse", server


@pytest.fixture
def lake(nessie: Server, tmp_path: Path) -> Lake:
    lake = Lake(nessie, tmp_path)
    nessie_lake.build(lake, SIZE)
    return lake


def heads(builder: NessieBuilder) -> dict[str, str]:
    return {item["name"]: item["hash"] for item in builder.api.get("trees").json()["references"]}


def test_every_table_version_lists_all_files_and_one_snapshot(lake: Lake) -> None:
    builder = lake.builder()
    assert len(walk_log(builder.api, builder.head())) == SIZE.tables * (SIZE.commits + 1)
    for index in range(SIZE.tables):
        content = builder.content(["shop", f"orders_{index:03}"])
        assert content is not None
        table = open_table(content["metadataLocation"])
        assert len(table.metadata.snapshots) == 1
        files = [Path(file.removeprefix("file://")) for file in table.inspect.files()["file_path"].to_pylist()]
        assert len(files) == SIZE.commits * SIZE.files_per_commit
        assert all(file.exists() for file in files)


def test_every_branch_has_a_separate_commit(lake: Lake) -> None:
    found = heads(lake.builder())
    assert len(set(found.values())) == SIZE.refs + 1


def test_one_percent_change_is_undone_after_second_run(lake: Lake) -> None:
    before = heads(lake.builder()), {path for path in lake.warehouse.rglob("*") if path.is_file()}
    with nessie_lake.add_one_percent(lake, SIZE) as later:
        assert later > nessie_lake.NOW
        assert heads(lake.builder()) != before[0]
    assert (heads(lake.builder()), {path for path in lake.warehouse.rglob("*") if path.is_file()}) == before


LAUNCHER = """#!/bin/sh
echo "$@" >> {log}
for last; do :; done
[ "$1" != mark-live ] || echo 4711 > "$last"
[ "$1" != {fails} ] || {{ echo "no such lake"; exit 1; }}
"""


def launcher(folder: Path, fails: str = "nothing") -> tuple[Path, Path]:
    """Write a program with the arguments and exit codes of nessie-gc. Return it and the log of its
    arguments.
    """
    log, program = folder / "arguments", folder / "nessie-gc"
    program.write_text(LAUNCHER.format(log=log, fails=fails))
    program.chmod(0o755)
    return program, log


REQUEST = {"uri": "http://localhost:1/api/v2", "older_than": "2026-01-01T00:00:00Z"}


def test_nessie_gc_sweep_uses_live_set_of_mark_and_defers_deletions(tmp_path: Path) -> None:
    program, log = launcher(tmp_path)
    with Resident(peer_nessie.command(program), tmp_path / "peer.log") as resident:
        answer = resident.ask(REQUEST)
    assert answer["unreferenced"] is None
    assert answer["total"]["wall"] >= 0
    calls = [line.split() for line in log.read_text().splitlines()]
    assert [call[0] for call in calls] == ["create-sql-schema", "mark-live", "sweep"]
    store = calls[0][1:4]
    assert all(call[1:4] == store for call in calls)
    written = calls[1][calls[1].index("--write-live-set-id-to") + 1]
    assert calls[1][4:] == ["--uri", REQUEST["uri"], "--default-cutoff", "NONE", "--write-live-set-id-to", written]
    assert calls[2][4:] == ["--read-live-set-id-from", written, "--defer-deletes", "--max-file-modification", REQUEST["older_than"]]


def test_failed_nessie_gc_raises_error_with_output(tmp_path: Path) -> None:
    program, _ = launcher(tmp_path, fails="sweep")
    with pytest.raises(RuntimeError, match=r"sweep .* failed with exit code 1: no such lake"):
        peer_nessie.Peer(str(program)).run(REQUEST)


@pytest.mark.parametrize(
    "arguments, message", [(["nessie", "--peer"], "--peer LAUNCHER"), (["iceberg", "--peer", "x"], "needs no launcher")]
)
def test_only_nessie_needs_a_launcher(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert message in result.output
