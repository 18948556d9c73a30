"""Stories of a lake as tables: what happens on which branch, and what becomes of the files that each step writes.

Every story has refs of its own (`<story>.main`, `<story>.dev`), which begin at nothing, and a folder of its own, so that one
night judges them all together: a live set is one for a storage, whoever needs a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.lakes.iceberg.builder import TableBuilder
from tests.lakes.nessie.builder import LONG_AGO, BranchBuilder, NessieBuilder

# What becomes of the files of a step: all stay; all go; the metadata file and manifest list go, and what newer lists still name stays;
# the metadata file goes, and the snapshot lives on in a newer one.
KEPT, GONE, LISTED, SNAPSHOT = "kept", "gone", "listed", "snapshot"
Step = tuple[str, str, str]


@dataclass(frozen=True)
class Scenario:
    """`steps` are (branch, what happens, fate of the files it writes); `cutoffs` are by branch, `mark` being the moment of that step."""

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
        ("main", "leftovers t", GONE),
    ),
    scenario(
        "a count keeps that many commits and what they need",
        {"main": 2},
        ("main", "create t", GONE),
        ("main", "append t", LISTED),
        ("main", "append t", KEPT),
        ("main", "append t", KEPT),
    ),
    scenario(
        "a count of one keeps the head",
        {"main": 1},
        ("main", "create t", GONE),
        ("main", "append t", LISTED),
        ("main", "append t", KEPT),
    ),
    scenario(
        "a timestamp keeps what is younger and the state at that moment",
        {"main": "mark"},
        ("main", "create t", GONE),
        ("main", "append t", LISTED),
        ("main", "append t", KEPT),
        ("main", "mark", KEPT),
        ("main", "append t", KEPT),
        ("main", "append t", KEPT),
    ),
    scenario(
        "a duration means the moment that long ago",
        {"main": "since mark"},
        ("main", "create t", GONE),
        ("main", "append t", LISTED),
        ("main", "append t", KEPT),
        ("main", "mark", KEPT),
        ("main", "append t", KEPT),
    ),
    scenario(
        "a cut-off in the future keeps the head",
        {"main": "2999-01-01"},
        ("main", "create t", GONE),
        ("main", "append t", LISTED),
        ("main", "append t", KEPT),
    ),
    scenario(
        "a table that nobody touches inside the cut-off stays",
        {"main": 1},
        ("main", "create quiet", GONE),
        ("main", "append quiet", KEPT),
        ("main", "create busy", GONE),
        ("main", "append busy", KEPT),
    ),
    scenario(
        "a tag keeps the state it points at, and no more",
        {"main": 1, "v1": 1},
        ("main", "create t", GONE),
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
        "a merge brings the last version of a dropped branch",
        {"main": 1},
        ("main", "create t", GONE),
        ("main", "append t", LISTED),
        ("main", "branch dev", KEPT),
        ("dev", "append t", LISTED),
        ("dev", "append t", KEPT),
        ("main", "merge dev", KEPT),
        ("main", "drop ref dev", KEPT),
    ),
    scenario(
        "a commit that is transplanted shows its content where it goes",
        {"main": 1},
        ("main", "create t", GONE),
        ("main", "append t", LISTED),
        ("main", "branch dev", KEPT),
        ("dev", "append t", KEPT),
        ("main", "transplant dev", KEPT),
        ("main", "drop ref dev", KEPT),
    ),
    scenario(
        "a renamed table is the same table",
        {"main": 1},
        ("main", "create t", GONE),
        ("main", "append t", LISTED),
        ("main", "rename t u", KEPT),
        ("main", "append u", KEPT),
    ),
    scenario(
        "a rename before the cut-off does not lose the table",
        {"main": "mark"},
        ("main", "create t", GONE),
        ("main", "append t", KEPT),
        ("main", "rename t u", KEPT),
        ("main", "create other", KEPT),
        ("main", "mark", KEPT),
        ("main", "append other", KEPT),
    ),
    scenario(
        "a table dropped inside the cut-off is readable before the drop",
        {"main": "mark"},
        ("main", "create t", GONE),
        ("main", "append t", KEPT),
        ("main", "mark", KEPT),
        ("main", "drop t", KEPT),
    ),
    scenario(
        "a put inside the cut-off stays live although a drop follows",
        {"main": 2},
        ("main", "create t", GONE),
        ("main", "append t", KEPT),
        ("main", "drop t", KEPT),
    ),
    scenario(
        "a table dropped before the cut-off goes whole",
        {"main": 1},
        ("main", "create t", GONE),
        ("main", "append t", GONE),
        ("main", "drop t", KEPT),
        ("main", "create other", KEPT),
    ),
    scenario(
        "a table that is made again under its name is another table",
        {"main": 1},
        ("main", "create t", GONE),
        ("main", "append t", GONE),
        ("main", "drop t", KEPT),
        ("main", "create t", GONE),
        ("main", "append t", KEPT),
    ),
    scenario(
        "a table that is made again at its old location loses only what the old one had",
        {"main": 1},
        ("main", "create t at place", GONE),
        ("main", "append t", GONE),
        ("main", "drop t", KEPT),
        ("main", "create t at place", GONE),
        ("main", "append t", KEPT),
    ),
    scenario(
        "a dropped branch takes along what only it had of a known table",
        {"main": 1},
        ("main", "create t", GONE),
        ("main", "append t", KEPT),
        ("main", "branch dev", KEPT),
        ("dev", "append t", GONE),
        ("main", "drop ref dev", KEPT),
    ),
    scenario(
        "a table of which only a dropped branch knew lies at no known location, so it stays",
        {"main": 1},
        ("main", "create t", GONE),
        ("main", "append t", KEPT),
        ("main", "branch dev", KEPT),
        ("dev", "create secret", KEPT),
        ("dev", "append secret", KEPT),
        ("main", "drop ref dev", KEPT),
    ),
    scenario(
        "a branch that is assigned elsewhere shows what it points at now",
        {"main": 1, "dev": 1},
        ("main", "create t", GONE),
        ("main", "append t", KEPT),
        ("main", "branch dev", KEPT),
        ("dev", "append t", GONE),
        ("dev", "assign main", KEPT),
    ),
    scenario(
        "two branches share a table and each keeps its own head",
        {"main": 1, "dev": 1},
        ("main", "create t", GONE),
        ("main", "append t", LISTED),
        ("main", "branch dev", KEPT),
        ("dev", "append t", LISTED),
        ("main", "append t", LISTED),
        ("dev", "append t", KEPT),
        ("main", "append t", KEPT),
    ),
    scenario(
        "two tables at one location do not eat each other",
        {"main": 1},
        ("main", "create one at shared", GONE),
        ("main", "create two at shared", GONE),
        ("main", "append one", LISTED),
        ("main", "append two", LISTED),
        ("main", "append one", KEPT),
        ("main", "append two", KEPT),
        ("main", "leftovers one", GONE),
    ),
    scenario(
        "a table inside another one's location is not its garbage",
        {"main": 1},
        ("main", "create outer at deep", GONE),
        ("main", "create inner at deep/data/inner", GONE),
        ("main", "append outer", LISTED),
        ("main", "append inner", LISTED),
        ("main", "append outer", KEPT),
        ("main", "append inner", KEPT),
    ),
    scenario(
        "data at a path of its own is found there",
        {"main": 1},
        ("main", "create t with data elsewhere", GONE),
        ("main", "append t", LISTED),
        ("main", "append t", KEPT),
        ("main", "leftovers t", GONE),
    ),
    scenario(
        "object storage layout spreads data over hashed folders",
        {"main": 1},
        ("main", "create t with object storage layout", GONE),
        ("main", "append t", LISTED),
        ("main", "append t", KEPT),
        ("main", "leftovers t", GONE),
    ),
    scenario(
        "an old location is still the table's own",
        {"main": 1},
        ("main", "create t", GONE),
        ("main", "append t", SNAPSHOT),
        ("main", "leftovers t", GONE),
        ("main", "move t elsewhere", KEPT),
    ),
    scenario(
        "a name is what it is: a percent sign, a space, brackets and braces",
        {"main": 1},
        ("main", "create t at odd%20na me [1]{2}", GONE),
        ("main", "append t", LISTED),
        ("main", "append t", KEPT),
        ("main", "leftovers t", GONE),
    ),
    scenario(
        "statistics of a kept snapshot stay, of an older one go",
        {"main": 1},
        ("main", "create t", GONE),
        ("main", "append t", LISTED),
        ("main", "statistics t", GONE),
        ("main", "append t", SNAPSHOT),
        ("main", "statistics t", KEPT),
    ),
    scenario(
        "delete files are files like any other",
        {"main": 1},
        ("main", "create t", GONE),
        ("main", "append t", LISTED),
        ("main", "position deletes t", LISTED),
        ("main", "equality deletes t", KEPT),
    ),
    scenario(
        "a view is its metadata file",
        {"main": 1},
        ("main", "view v", GONE),
        ("main", "view v", KEPT),
        ("main", "create t", KEPT),
    ),
    scenario(
        "an empty ref keeps nothing and stops nothing",
        {"main": 1},
        ("main", "branch dev", KEPT),
    ),
)


@dataclass
class Told:
    """A story that happened: the files that must stay and must go, and the rules of its refs."""

    scenario: Scenario
    number: int
    marked: datetime | None = None
    kept: set[Path] = field(default_factory=set)
    gone: set[Path] = field(default_factory=set)

    def ref(self, name: str) -> str:
        return f"s{self.number:02}.{name}"

    def rules(self, as_of: datetime) -> list[dict[str, Any]]:
        """`retention.refs` of the story, as at `as_of`."""
        return [{"match": re.escape(self.ref(branch)), **self._cutoff(value, as_of)} for branch, value in self.scenario.cutoffs.items()]

    def _cutoff(self, value: Any, as_of: datetime) -> dict[str, Any]:
        if value == "mark":
            return {"cutoff": self.marked}
        if value == "since mark":
            assert self.marked is not None
            return {"max_age": as_of - self.marked}
        return {"cutoff": value}


def tell(nessie: NessieBuilder, root: Path, number: int, story: Scenario) -> Told:
    """Lets a scenario happen on the server."""
    told, folder = Told(story, number), root / f"s{number:02}"
    folder.mkdir(parents=True)
    own = NessieBuilder(nessie.uri, folder)
    own.create_empty(told.ref("main"))
    for branch, what, fate in story.steps:
        on = own.on(told.ref(branch))
        before = on.files()
        _happen(told, on, what)
        written = on.files() - before
        snapshot = {path for path in written if not path.name.endswith(".metadata.json")}
        listed = {path for path in snapshot if not path.name.startswith("snap-")}
        stays = {KEPT: written, GONE: set(), LISTED: listed, SNAPSHOT: snapshot}[fate]
        told.kept |= stays
        told.gone |= written - stays
    return told


def _happen(told: Told, on: BranchBuilder, what: str) -> None:
    nessie, branch = on.nessie, on.branch_name
    acts: dict[str, Callable[..., object]] = {
        r"create (\w+)": lambda name: on.new(f"db.{name}", rows=False),
        r"create (\w+) at (.+)": lambda name, place: on.new(f"db.{name}", rows=False, location=f"file://{on.warehouse}/{place}"),
        r"create (\w+) with data elsewhere": lambda name: on.new(
            f"db.{name}", rows=False, properties={"write.data.path": f"file://{on.warehouse}/elsewhere"}
        ),
        r"create (\w+) with object storage layout": lambda name: on.new(
            f"db.{name}",
            rows=False,
            properties={"write.object-storage.enabled": "true", "write.data.path": f"file://{on.warehouse}/objects"},
        ),
        r"move (\w+) (\w+)": lambda name, place: on.move(f"db.{name}", place),
        r"append (\w+)": lambda name: on.append(f"db.{name}"),
        r"drop (\w+)": lambda name: on.drop(f"db.{name}"),
        r"rename (\w+) (\w+)": lambda name, to: on.rename(f"db.{name}", f"db.{to}"),
        r"view (\w+)": lambda name: on.view(f"db.{name}"),
        r"leftovers (\w+)": lambda name: on.at_hand(f"db.{name}").leftovers(LONG_AGO),
        r"statistics (\w+)": lambda name: on.at_hand(f"db.{name}").statistics(LONG_AGO, newest(on.at_hand(f"db.{name}"))),
        r"position deletes (\w+)": lambda name: on.at_hand(f"db.{name}").position_deletes(LONG_AGO),
        r"equality deletes (\w+)": lambda name: on.at_hand(f"db.{name}").equality_deletes(LONG_AGO),
        r"branch (\w+)": lambda name: nessie.branch(told.ref(name), branch),
        r"tag (\w+)": lambda name: nessie.tag(told.ref(name), branch),
        r"merge (\w+)": lambda name: nessie.merge(told.ref(name), branch),
        r"transplant (\w+)": lambda name: nessie.transplant([nessie.head(told.ref(name))], told.ref(name), branch),
        r"assign (\w+)": lambda name: nessie.assign(branch, nessie.head(told.ref(name))),
        r"drop ref (\w+)": lambda name: nessie.drop(told.ref(name)),
        r"mark": lambda: setattr(told, "marked", datetime.now(UTC)),
    }
    for pattern, act in acts.items():
        match = re.fullmatch(pattern, what)
        if match is not None:
            act(*match.groups())
            return
    raise ValueError(f"no such step: {what}")


def newest(table: TableBuilder) -> str:
    return str(table.table.metadata.current_snapshot_id)
