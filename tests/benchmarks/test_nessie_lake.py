"""The Nessie lake of the benchmarks is what pyiceberg and the server take for real, and a change leaves no trace of itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import nessie_lake, peer_nessie
from benchmarks.__main__ import main
from benchmarks.resident import Resident
from tests.depth import deep
from tests.lakes.nessie.builder import NessieBuilder, open_table
from tests.lakes.nessie.server import Server
from tests.lakes.nessie.oracle import walk_log

pytestmark = deep

SIZE = nessie_lake.Size(tables=2, commits=3, files_per_commit=4, refs=2)


class Lake(nessie_lake.NessieLake):
    """On the server of the suite instead of one of its own."""

    def __init__(self, server: Server, root: Path) -> None:
        self.root, self.warehouse, self.server = root, root / "warehouse", server


@pytest.fixture
def lake(nessie: Server, tmp_path: Path) -> Lake:
    lake = Lake(nessie, tmp_path)
    nessie_lake.build(lake, SIZE)
    return lake


def heads(builder: NessieBuilder) -> dict[str, str]:
    return {item["name"]: item["hash"] for item in builder.api.get("trees").json()["references"]}


def test_every_version_lists_its_files_and_one_snapshot(lake: Lake) -> None:
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


def test_every_branch_has_a_commit_of_its_own(lake: Lake) -> None:
    found = heads(lake.builder())
    assert len(set(found.values())) == SIZE.refs + 1


def test_the_one_percent_of_a_second_night_leaves_no_trace(lake: Lake) -> None:
    before = heads(lake.builder()), {path for path in lake.warehouse.rglob("*") if path.is_file()}
    with nessie_lake.changed(lake, SIZE) as later:
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
    """A program that does as nessie-gc as far as arguments and exit codes go, and where it writes its arguments."""
    log, program = folder / "arguments", folder / "nessie-gc"
    program.write_text(LAUNCHER.format(log=log, fails=fails))
    program.chmod(0o755)
    return program, log


REQUEST = {"uri": "http://localhost:1/api/v2", "older_than": "2026-01-01T00:00:00Z"}


def test_the_peer_marks_and_sweeps_one_live_set_and_defers_its_deletions(tmp_path: Path) -> None:
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


def test_a_peer_that_fails_is_told_in_its_own_words(tmp_path: Path) -> None:
    program, _ = launcher(tmp_path, fails="sweep")
    with pytest.raises(RuntimeError, match=r"sweep .* ended with code 1: no such lake"):
        peer_nessie.Peer(str(program)).run(REQUEST)


@pytest.mark.parametrize("arguments, words", [(["nessie", "--peer"], "--peer LAUNCHER"), (["iceberg", "--peer", "x"], "needs no launcher")])
def test_a_launcher_is_named_for_nessie_and_for_nothing_else(arguments: list[str], words: str) -> None:
    told = CliRunner().invoke(main, arguments)
    assert told.exit_code == 2
    assert words in told.output
