"""Scenarios of a Nessie lake: steps on branches, and the expected fate of the files of each step.

Every scenario has its own refs (`sNN.main`, `sNN.dev`), which are initially empty, and its own
directory. One run therefore collects all of them, with the one live set of the storage.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.lakes.iceberg.builder import TableBuilder
from tests.lakes.nessie.builder import LONG_AGO, BranchBuilder, NessieBuilder

# The fates of the files of a step. LISTED: the metadata file and the manifest list are deleted, and
# files in newer manifest lists are kept. SNAPSHOT: only the metadata file is deleted, because newer
# metadata lists the snapshot.
KEPT, DELETED, LISTED, SNAPSHOT = "kept", "deleted", "listed", "snapshot"
Step = tuple[str, str, str]


@dataclass(frozen=True)
class Scenario:
    """Steps on the branches of a lake.

    `steps` are tuples of branch, action and fate of the written files. `cutoffs` are by branch, and
    `mark` is the time of the step `mark`.
    """

    name: str
    cutoffs: dict[str, Any]
    steps: tuple[Step, ...]


def scenario(name: str, cutoffs: dict[str, Any], *steps: Step) -> Scenario:
    return Scenario(name, cutoffs, steps)


SCENARIOS = (
    scenario(
        "none keeps every commit",
        {"main": "none"},
        ("main", "create t", KEPT),
        ("main", "append t", KEPT),
        ("main", "append t", KEPT),
        ("main", "leftovers t", DELETED),
    ),
    scenario(
        "a count keeps this number of commits and their files",
        {"main": 2},
        ("main", "create t", DELETED),
        ("main", "append t", LISTED),
        ("main", "append t", KEPT),
        ("main", "append t", KEPT),
    ),
    scenario(
        "a count of one keeps the head",
        {"main": 1},
        ("main", "create t", DELETED),
        ("main", "append t", LISTED),
        ("main", "append t", KEPT),
    ),
    scenario(
        "a timestamp keeps younger commits and the state at that time",
        {"main": "mark"},
        ("main", "create t", DELETED),
        ("main", "append t", LISTED),
        ("main", "append t", KEPT),
        ("main", "mark", KEPT),
        ("main", "append t", KEPT),
        ("main", "append t", KEPT),
    ),
    scenario(
        "a duration is relative to the time of the run",
        {"main": "since mark"},
        ("main", "create t", DELETED),
        ("main", "append t", LISTED),
        ("main", "append t", KEPT),
        ("main", "mark", KEPT),
        ("main", "append t", KEPT),
    ),
    scenario(
        "a cut-off in the future keeps the head",
        {"main": "2999-01-01"},
        ("main", "create t", DELETED),
        ("main", "append t", LISTED),
        ("main", "append t", KEPT),
    ),
    scenario(
        "a table without changes inside the cut-off is kept",
        {"main": 1},
        ("main", "create quiet", DELETED),
        ("main", "append quiet", KEPT),
        ("main", "create busy", DELETED),
        ("main", "append busy", KEPT),
    ),
    scenario(
        "a tag keeps only the state of its commit",
        {"main": 1, "v1": 1},
        ("main", "create t", DELETED),
        ("main", "append t", KEPT),
        ("main", "tag v1", KEPT),
        ("main", "append t", LISTED),
        ("main", "append t", KEPT),
    ),
    scenario(
        "each ref has its own cut-off",
        {"main": 1, "dev": "none"},
        ("main", "create t", KEPT),
        ("main", "append t", KEPT),
        ("main", "branch dev", KEPT),
        ("main", "append t", LISTED),
        ("main", "append t", KEPT),
        ("dev", "append t", KEPT),
        ("dev", "append t", KEPT),
    ),
    scenario(
        "a merge keeps the last version of a dropped branch",
        {"main": 1},
        ("main", "create t", DELETED),
        ("main", "append t", LISTED),
        ("main", "branch dev", KEPT),
        ("dev", "append t", LISTED),
        ("dev", "append t", KEPT),
        ("main", "merge dev", KEPT),
        ("main", "drop ref dev", KEPT),
    ),
    scenario(
        "a transplanted commit shows its content on the target branch",
        {"main": 1},
        ("main", "create t", DELETED),
        ("main", "append t", LISTED),
        ("main", "branch dev", KEPT),
        ("dev", "append t", KEPT),
        ("main", "transplant dev", KEPT),
        ("main", "drop ref dev", KEPT),
    ),
    scenario(
        "a renamed table is the same table",
        {"main": 1},
        ("main", "create t", DELETED),
        ("main", "append t", LISTED),
        ("main", "rename t u", KEPT),
        ("main", "append u", KEPT),
    ),
    scenario(
        "a table renamed before the cut-off is kept",
        {"main": "mark"},
        ("main", "create t", DELETED),
        ("main", "append t", KEPT),
        ("main", "rename t u", KEPT),
        ("main", "create other", KEPT),
        ("main", "mark", KEPT),
        ("main", "append other", KEPT),
    ),
    scenario(
        "a table dropped inside the cut-off is readable before the drop",
        {"main": "mark"},
        ("main", "create t", DELETED),
        ("main", "append t", KEPT),
        ("main", "mark", KEPT),
        ("main", "drop t", KEPT),
    ),
    scenario(
        "a put inside the cut-off is live even if a drop follows",
        {"main": 2},
        ("main", "create t", DELETED),
        ("main", "append t", KEPT),
        ("main", "drop t", KEPT),
    ),
    scenario(
        "a table dropped before the cut-off is deleted completely",
        {"main": 1},
        ("main", "create t", DELETED),
        ("main", "append t", DELETED),
        ("main", "drop t", KEPT),
        ("main", "create other", KEPT),
    ),
    scenario(
        "a table recreated under the same name is another table",
        {"main": 1},
        ("main", "create t", DELETED),
        ("main", "append t", DELETED),
        ("main", "drop t", KEPT),
        ("main", "create t", DELETED),
        ("main", "append t", KEPT),
    ),
    scenario(
        "a table recreated at its old location keeps only new files",
        {"main": 1},
        ("main", "create t at place", DELETED),
        ("main", "append t", DELETED),
        ("main", "drop t", KEPT),
        ("main", "create t at place", DELETED),
        ("main", "append t", KEPT),
    ),
    scenario(
        "files of a known table that only a dropped branch had are deleted",
        {"main": 1},
        ("main", "create t", DELETED),
        ("main", "append t", KEPT),
        ("main", "branch dev", KEPT),
        ("dev", "append t", DELETED),
        ("main", "drop ref dev", KEPT),
    ),
    scenario(
        "a table that existed only on a dropped branch has no known location and is kept",
        {"main": 1},
        ("main", "create t", DELETED),
        ("main", "append t", KEPT),
        ("main", "branch dev", KEPT),
        ("dev", "create secret", KEPT),
        ("dev", "append secret", KEPT),
        ("main", "drop ref dev", KEPT),
    ),
    scenario(
        "a reassigned branch shows the state of its new head",
        {"main": 1, "dev": 1},
        ("main", "create t", DELETED),
        ("main", "append t", KEPT),
        ("main", "branch dev", KEPT),
        ("dev", "append t", DELETED),
        ("dev", "assign main", KEPT),
    ),
    scenario(
        "two branches share a table and each keeps its own head",
        {"main": 1, "dev": 1},
        ("main", "create t", DELETED),
        ("main", "append t", LISTED),
        ("main", "branch dev", KEPT),
        ("dev", "append t", LISTED),
        ("main", "append t", LISTED),
        ("dev", "append t", KEPT),
        ("main", "append t", KEPT),
    ),
    scenario(
        "two tables at one location do not delete each other's files",
        {"main": 1},
        ("main", "create one at shared", DELETED),
        ("main", "create two at shared", DELETED),
        ("main", "append one", LISTED),
        ("main", "append two", LISTED),
        ("main", "append one", KEPT),
        ("main", "append two", KEPT),
        ("main", "leftovers one", DELETED),
    ),
    scenario(
        "a table inside the location of another is not garbage",
        {"main": 1},
        ("main", "create outer at deep", DELETED),
        ("main", "create inner at deep/data/inner", DELETED),
        ("main", "append outer", LISTED),
        ("main", "append inner", LISTED),
        ("main", "append outer", KEPT),
        ("main", "append inner", KEPT),
    ),
    scenario(
        "data at write.data.path is found",
        {"main": 1},
        ("main", "create t with a data path", DELETED),
        ("main", "append t", LISTED),
        ("main", "append t", KEPT),
        ("main", "leftovers t", DELETED),
    ),
    scenario(
        "data in the object storage layout is found",
        {"main": 1},
        ("main", "create t with object storage layout", DELETED),
        ("main", "append t", LISTED),
        ("main", "append t", KEPT),
        ("main", "leftovers t", DELETED),
    ),
    scenario(
        "an old location of a table is still claimed",
        {"main": 1},
        ("main", "create t", DELETED),
        ("main", "append t", SNAPSHOT),
        ("main", "leftovers t", DELETED),
        ("main", "move t other", KEPT),
    ),
    scenario(
        "special characters in names are literal",
        {"main": 1},
        ("main", "create t at odd%20na me [1]{2}", DELETED),
        ("main", "append t", LISTED),
        ("main", "append t", KEPT),
        ("main", "leftovers t", DELETED),
    ),
    scenario(
        "statistics are kept with their snapshot",
        {"main": 1},
        ("main", "create t", DELETED),
        ("main", "append t", LISTED),
        ("main", "statistics t", DELETED),
        ("main", "append t", SNAPSHOT),
        ("main", "statistics t", KEPT),
    ),
    scenario(
        "delete files are kept like data files",
        {"main": 1},
        ("main", "create t", DELETED),
        ("main", "append t", LISTED),
        ("main", "position deletes t", LISTED),
        ("main", "equality deletes t", KEPT),
    ),
    scenario(
        "a view has only its metadata file",
        {"main": 1},
        ("main", "view v", DELETED),
        ("main", "view v", KEPT),
        ("main", "create t", KEPT),
    ),
    scenario(
        "an empty ref has no effect",
        {"main": 1},
        ("main", "branch dev", KEPT),
    ),
)


def draw_scenario(seed: int) -> Scenario:
    """Draw a scenario whose fates are unknown. New tables are created on main, so their locations are known."""
    chance, marks = random.Random(seed), 0
    tables, others, steps = {"main": ["t"]}, list[str](), [("main", "create t", KEPT), ("main", "append t", KEPT)]
    actions = {"append": 8, "position deletes": 1, "leftovers": 1, "statistics": 1, "rename": 1, "create": 1, "branch": 2, "tag": 1}
    actions |= {"assign": 1, "drop ref": 1, "mark": 1}
    for number, action in enumerate(chance.choices(list(actions), list(actions.values()), k=chance.randint(6, 16))):
        branch, other = chance.choice(sorted(tables)), chance.choice(["main", *others])
        table = chance.choice(tables[branch])
        match action:
            case "create":
                tables["main"].append(f"t{number}")
                steps += [("main", f"create t{number}", KEPT), ("main", f"append t{number}", KEPT)]
            case "rename":
                tables[branch].remove(table)
                tables[branch].append(f"t{number}")
                steps.append((branch, f"rename {table} t{number}", KEPT))
            case "branch":
                tables[f"b{number}"] = list(tables[branch])
                others.append(f"b{number}")
                steps.append((branch, f"branch b{number}", KEPT))
            case "tag":
                others.append(f"v{number}")
                steps.append((branch, f"tag v{number}", KEPT))
            case "assign" if branch != "main":
                tables[branch] = list(tables["main"])
                steps.append((branch, "assign main", KEPT))
            case "drop ref" if other != "main":
                others.remove(other)
                tables.pop(other, None)
                steps.append(("main", f"drop ref {other}", KEPT))
            case "mark":
                marks += 1
                steps.append((branch, "mark", KEPT))
            case "append" | "position deletes" | "leftovers" | "statistics":
                steps.append((branch, f"{action} {table}", KEPT))
            case _:
                pass
    values = ["none", 1, 1, 2, 3, *(["mark", "since mark"] if marks else [])]
    return Scenario(f"random {seed}", {ref: chance.choice(values) for ref in ("main", *others)}, tuple(steps))


@dataclass
class PlayedScenario:
    """An executed scenario with the files that must be kept and deleted."""

    scenario: Scenario
    number: int
    marked: datetime | None = None
    kept: set[Path] = field(default_factory=set)
    deleted: set[Path] = field(default_factory=set)

    def ref(self, name: str) -> str:
        return f"s{self.number:02}.{name}"

    def rules(self, as_of: datetime) -> list[dict[str, Any]]:
        """Return `retention.refs` of the scenario at `as_of`."""
        return [{"match": re.escape(self.ref(branch)), **self._cutoff(value, as_of)} for branch, value in self.scenario.cutoffs.items()]

    def _cutoff(self, value: Any, as_of: datetime) -> dict[str, Any]:
        if value == "mark":
            return {"cutoff": self.marked}
        if value == "since mark":
            assert self.marked is not None
            return {"max_age": as_of - self.marked}
        return {"cutoff": value}


def play(nessie: NessieBuilder, root: Path, number: int, scenario: Scenario) -> PlayedScenario:
    """Execute a scenario on the server."""
    played, folder = PlayedScenario(scenario, number), root / f"s{number:02}"
    folder.mkdir(parents=True)
    own = NessieBuilder(nessie.uri, folder)
    own.create_empty(played.ref("main"))
    for branch, action, fate in scenario.steps:
        tables = own.on(played.ref(branch))
        before = tables.files()
        _run_step(played, tables, action)
        written = tables.files() - before
        snapshot = {path for path in written if not path.name.endswith(".metadata.json")}
        listed = {path for path in snapshot if not path.name.startswith("snap-")}
        remaining = {KEPT: written, DELETED: set(), LISTED: listed, SNAPSHOT: snapshot}[fate]
        played.kept |= remaining
        played.deleted |= written - remaining
    return played


def _run_step(played: PlayedScenario, tables: BranchBuilder, action: str) -> None:
    nessie, branch = tables.nessie, tables.branch_name
    step_functions: dict[str, Callable[..., object]] = {
        r"create (\w+)": lambda name: tables.new(f"db.{name}", rows=False),
        r"create (\w+) at (.+)": lambda name, place: tables.new(f"db.{name}", rows=False, location=f"file://{tables.warehouse}/{place}"),
        r"create (\w+) with a data path": lambda name: tables.new(
            f"db.{name}", rows=False, properties={"write.data.path": f"file://{tables.warehouse}/data_path"}
        ),
        r"create (\w+) with object storage layout": lambda name: tables.new(
            f"db.{name}",
            rows=False,
            properties={"write.object-storage.enabled": "true", "write.data.path": f"file://{tables.warehouse}/objects"},
        ),
        r"move (\w+) (\w+)": lambda name, place: tables.move(f"db.{name}", place),
        r"append (\w+)": lambda name: tables.append(f"db.{name}"),
        r"drop (\w+)": lambda name: tables.drop(f"db.{name}"),
        r"rename (\w+) (\w+)": lambda name, to: tables.rename(f"db.{name}", f"db.{to}"),
        r"view (\w+)": lambda name: tables.view(f"db.{name}"),
        r"leftovers (\w+)": lambda name: tables.existing(f"db.{name}").leftovers(LONG_AGO),
        r"statistics (\w+)": lambda name: tables.existing(f"db.{name}").statistics(LONG_AGO, newest(tables.existing(f"db.{name}"))),
        r"position deletes (\w+)": lambda name: tables.existing(f"db.{name}").position_deletes(LONG_AGO),
        r"equality deletes (\w+)": lambda name: tables.existing(f"db.{name}").equality_deletes(LONG_AGO),
        r"branch (\w+)": lambda name: nessie.branch(played.ref(name), branch),
        r"tag (\w+)": lambda name: nessie.tag(played.ref(name), branch),
        r"merge (\w+)": lambda name: nessie.merge(played.ref(name), branch),
        r"transplant (\w+)": lambda name: nessie.transplant([nessie.head(played.ref(name))], played.ref(name), branch),
        r"assign (\w+)": lambda name: nessie.assign(branch, nessie.head(played.ref(name))),
        r"drop ref (\w+)": lambda name: nessie.drop(played.ref(name)),
        r"mark": lambda: setattr(played, "marked", datetime.now(UTC)),
    }
    for pattern, function in step_functions.items():
        match = re.fullmatch(pattern, action)
        if match is not None:
            function(*match.groups())
            return
    raise ValueError(f"unknown step: {action}")


def newest(table: TableBuilder) -> str:
    return str(table.table.metadata.current_snapshot_id)
