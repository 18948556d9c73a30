"""Record repositories of spec version 2: `python -m tests.lakes.icechunk.v2.record PYTHON DIRECTORY
[SUFFIX]`.

PYTHON is an interpreter with the icechunk that writes, and SUFFIX the end of all directory names.
The icechunk of the tests reports about the repositories in `verdict.json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from tests.lakes.icechunk.v2.builder import RepositoryBuilder, document_tree, numbers, set_value, virtual_chunk
from tests.lakes.icechunk.v2.environment import interpreter
from tests.lakes.icechunk.v2.histories import History
from tests.lakes.icechunk.v2.library import Library

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
STEPS = 15
# No machine has it, so no location of a recording is the place where it was made.
DATA = "/recorded/data/"


def record_document(library: Library, path: Path) -> None:
    """The history of the expiration document."""
    document_tree(library, path, START)


def record_upgraded_document(library: Library, path: Path) -> None:
    """The same history, written with spec version 1 and upgraded. The files of version 1 are kept."""
    document_tree(library, path, START, spec_version=1).builder.call("upgrade", delete_v1_files=False)


def record_virtual_chunks(library: Library, path: Path) -> None:
    """Inline, native and virtual chunks, with and without compressed locations, and containers with and without names."""
    containers = [["box", f"file://{DATA}", DATA], ["my-box", "s3://bucket/prefix/", None], [None, "s3://other/", None]]
    builder = RepositoryBuilder.create(library, path, START, inline_below_bytes=8, compress_locations_from=10, containers=containers)
    plain = ["vcc://box/a%20b.nc", "vcc://my-box/x/../y.nc", "s3://other/c.nc", f"file://{DATA}d.nc"]
    builder.commit("main", START + DAY, numbers("few", [None] * 4), *(virtual_chunk("few", i, at, 0, 4096) for i, at in enumerate(plain)))
    compressed = [f"vcc://box/year-{2000 + i // 12}/month-{i % 12}.nc" if i % 3 else f"s3://other/year-{i}.nc" for i in range(60)]
    writes = [numbers("many", [None] * 60), *(virtual_chunk("many", i, at, 8 * i, 8) for i, at in enumerate(compressed))]
    builder.commit("main", START + 2 * DAY, *writes, numbers("small", [1, 2, 3]), numbers("large", [4, 5], size=64))
    builder.commit("main", START + 3 * DAY, set_value("large", 0, 6, size=64), set_value("small", 0, 7))


def record_settings(library: Library, path: Path) -> None:
    """Metadata, a disabled feature, names that are not ASCII, a read-only status, and a log in several files."""
    builder = RepositoryBuilder.create(library, path, START, updates_in_a_file=3, split=2)
    first = builder.commit("main", START + DAY, numbers("group/values", range(6)))
    builder.call("set_metadata", owner="weather", numbers=[1, 2.5, None])
    for name in ("é", "z", "Z", "a b"):
        builder.tag(name, first)
    builder.branch("ünder/way", first)
    builder.call("delete_tag", name="z")
    second = builder.commit("ünder/way", START + 2 * DAY, set_value("group/values", 3, 7))
    builder.commit("ünder/way", START + 3 * DAY, set_value("group/values", 4, 8), how="amend")
    builder.call("reset_branch", name="ünder/way", snapshot=first)
    builder.call("expire", older_than=second)
    builder.call("set_feature_flag", name="delete_tag", setting=False)
    builder.call("set_feature_flag", name="create_tag", setting=True)
    builder.call("set_status", availability="read_only", reason="moved")


def record_random_history(library: Library, path: Path, seed: int) -> None:
    """A random history. Its virtual chunks do not exist."""
    History(library, path, Path(DATA), seed).play(STEPS)


RECORDINGS: dict[str, Callable[[Library, Path], None]] = {
    "document": record_document,
    "document-upgraded": record_upgraded_document,
    "virtual-chunks": record_virtual_chunks,
    "settings": record_settings,
    **{f"random-{seed}": partial(record_random_history, seed=seed) for seed in (1, 8, 11)},
}


def main(python: str, directory: str, suffix: str = "") -> None:
    writer, reader = Library(python), Library(interpreter())
    for name, record in RECORDINGS.items():
        folder = Path(directory).resolve() / f"{name}{suffix}"
        folder.mkdir(parents=True)
        record(writer, folder / "repo")
        (folder / "verdict.json").write_text(json.dumps(reader.call(folder / "repo", "report"), indent=1))
    writer.stop()
    reader.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
