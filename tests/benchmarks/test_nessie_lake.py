"""The Nessie lake of the benchmarks is what pyiceberg and the server take for real, and a change leaves no trace of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import nessie_lake
from tests.lakes.nessie.builder import NessieBuilder, open_table
from tests.lakes.nessie.server import Server
from tests.lakes.nessie.support import log_of

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
    assert len(log_of(builder.api, builder.head())) == SIZE.tables * (SIZE.commits + 1)
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
