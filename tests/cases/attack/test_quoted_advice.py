"""A uuid in a metadata file became shell code in the advice of the `foreign_metadata` gate.

The command `gc-assets accept 1; touch PWNED # …` was printed. Any writer may choose the uuid, names and paths. Every suggested
command is rendered by `core/commands.py`, and every text of a lake is escaped by `core/printable.py`.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import pyarrow as pa
import pytest

import gc_assets
from gc_assets.cli.main import cli
from gc_assets.core.gates import foreign_metadata
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.stages.sweep.foreign_metadata import MetadataClassifier, metadata_patterns
from gc_assets.stores.local.objects import LocalObjects

OLD = datetime(2026, 1, 1, tzinfo=UTC)
# The beginning of a command that an f-string continues with a value.
_OPEN_COMMAND = re.compile(rf"gc-assets (?:{'|'.join(cli.list_commands(click.Context(cli)))})(?: [^`\n.;:]*)?$")


def gate_message(root: Path, uuid: str, directory: str = "x") -> str:
    """Return the message of the gate for a table with this uuid in this directory."""
    file = root / "ns" / directory / "metadata" / "00000-z.metadata.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"table-uuid": uuid, "snapshots": []}))
    classify = MetadataClassifier("lake", KeyResolver([("lake", f"file://{root}/")]), LocalObjects(), {}, metadata_patterns())
    rows = pa.RecordBatch.from_pydict({"key": [str(file.relative_to(root))], "last_modified": [OLD], "is_old": [True], "lake": ["sales"]})
    (row,) = next(classify(iter([rows]))).to_pylist()
    return foreign_metadata(1, [f"{row['key']}: {row['reason']}"]).message


@pytest.mark.parametrize("uuid", ["1; touch PWNED #", "$(touch PWNED)", "`touch PWNED`", "'; touch PWNED; '", "a\ntouch PWNED", "--by"])
@pytest.mark.parametrize("directory", ["x", "x'; touch PWNED #", "x\ntouch PWNED"])
def test_suggested_command_quotes_the_uuid_as_one_argument(tmp_path: Path, uuid: str, directory: str) -> None:
    message = gate_message(tmp_path, uuid, directory)
    assert message.isprintable()
    command = re.search(r"if it is dead: `(gc-assets accept .*?)`\. The plan leaves out", message)
    assert command is not None
    script = f"gc-assets() {{ printf '%s\\0' \"$@\"; }}\n{command[1]}"
    found = subprocess.run(["/bin/bash", "-c", script], cwd=tmp_path, capture_output=True, check=True).stdout.decode().split("\0")[:-1]
    assert sorted(found) == sorted(
        ["accept", *(["--"] if uuid.startswith("-") else []), uuid, f"file://{tmp_path}/ns/{directory}/", "--by", "WHO"]
    )
    assert not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize("uuid", ["\x1b[2J\x1b[1;1Hall gates passed", "a\u202egpj", "x" * 10**6])
def test_message_with_malicious_uuid_is_printable_and_short(tmp_path: Path, uuid: str) -> None:
    message = gate_message(tmp_path, uuid)
    assert message.isprintable()
    assert len(message) < 5_000


def test_suggested_commands_are_not_built_with_f_strings() -> None:
    found = [place for path in sorted(Path(gc_assets.__file__).parent.rglob("*.py")) for place in open_commands(path)]
    assert found == []


def open_commands(path: Path) -> Iterator[str]:
    """Yield the f-strings that put a value into a suggested command."""
    if path.parts[-2:] == ("core", "commands.py"):
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            for text, value in zip(node.values, node.values[1:], strict=False):
                if isinstance(text, ast.Constant) and isinstance(value, ast.FormattedValue) and _OPEN_COMMAND.search(str(text.value)):
                    yield f"{path}:{node.lineno}: {text.value}"


def test_command_built_with_an_f_string_is_detected(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('a = f"run `gc-assets apply {plan}`"\nb = f"gc-assets {version} at {place}"\nc = f"run gc-assets run. {more}"\n')
    assert len(list(open_commands(module))) == 1
