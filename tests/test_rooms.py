"""Which package may import which: arrows run down only, and in no circle."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "gc_assets"
FRONT_DOOR = "gc_assets"
# From the ground up; rooms of one floor do not know each other.
FLOORS = (
    {"_version"},
    {"core"},
    {"config"},
    {"s3"},
    {"state"},
    {"lakes", "stores"},
    {"engine"},
    {"stages"},
    {"resources", "report", "notify"},
    {"assets", "demo", "library"},
    {"remote"},
    {"definitions"},
    {"cli", "component", "job"},
    {"__main__"},
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
# What a room must not know, whoever asks.
STRANGERS = {
    "core": {"pyspark", "dagster", "pydantic_settings"},
    "config": {"pyspark", "dagster"},
    "s3": {"pyspark", "dagster"},
    "state": {"pyspark", "dagster"},
    "lakes": {"pyspark", "dagster"},
    "stores": {"pyspark", "dagster"},
    "engine": {"dagster"},
    "stages": {"dagster"},
    "report": {"pyspark", "dagster"},
    "notify": {"pyspark", "dagster", "pyarrow"},
    "library": {"dagster"},
}


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module by its dotted name, and its syntax tree."""
    for path in sorted(PACKAGE.rglob("*.py"), key=str):
        dotted = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        yield dotted.removesuffix(".__init__"), ast.parse(path.read_text())


def imported(tree: ast.Module) -> Iterator[str]:
    """What a module imports anywhere in it, functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (item.name for item in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{item.name}" for item in node.names)


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "gc_assets" and len(parts) > 1 else None


@functools.cache
def all_modules() -> dict[str, ast.Module]:
    """Read once by the process that runs these tests, and by none that only collects them."""
    return dict(modules())


def test_every_room_has_a_floor() -> None:
    rooms = {room for name in all_modules() if (room := room_of(name)) is not None}
    assert rooms == set(FLOOR)


def test_no_import_runs_up_or_across_a_floor() -> None:
    found = [
        f"{name} imports {target}"
        for name, tree in all_modules().items()
        for target in imported(tree)
        if (here := room_of(name)) is not None and (there := room_of(target)) in FLOOR and there != here and FLOOR[there] >= FLOOR[here]
    ]
    assert found == []


def test_a_room_does_not_know_its_strangers() -> None:
    found = [
        f"{name} imports {target}"
        for name, tree in all_modules().items()
        for target in imported(tree)
        if target.partition(".")[0] in STRANGERS.get(room_of(name) or "", set())
    ]
    assert found == []


def test_no_module_imports_itself_through_others() -> None:
    names = set(all_modules()) - {FRONT_DOOR}  # it imports what somebody asks it for
    edges = {name: {target for target in imported(all_modules()[name]) if target in names and target != name} for name in names}
    TopologicalSorter(edges).prepare()  # raises CycleError with the circle


def test_the_package_itself_imports_nothing_until_it_is_asked() -> None:
    script = (
        "import sys, gc_assets\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('dagster', 'pyspark', 'pyarrow', 'pydantic')])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_code_location_is_loaded_without_what_few_nights_need() -> None:
    """Each of them is a fifth of what a night imports before it begins."""
    script = "import sys, gc_assets.definitions, gc_assets.cli.dagster_run\nprint(sorted({'scipy', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_nothing_reaches_the_resources_past_the_package() -> None:
    """The wheel has no top-level package `resources`. In a checkout it is a link to `gc_assets/resources`."""
    found = [name for name, tree in all_modules().items() for target in imported(tree) if target.partition(".")[0] == "resources"]
    assert found == []


def test_every_package_says_what_it_is_for() -> None:
    silent = [path for path in PACKAGE.rglob("__init__.py") if len(ast.get_docstring(ast.parse(path.read_text())) or "") < 20]
    assert silent == []


# A switch on a kind, or a word that names one. The kind's own package says both (`lakes/kind.py`).
SWITCH = re.compile(r"isinstance\([^)]*Lake[A-Z]|LakeFs|Nessie|Iceberg|Icechunk|\.kind (==|in|!=)")
# Stages of boxes that only one kind has.
OF_ONE_KIND = "gc_assets.stages.mark.lakefs"


def code_of(tree: ast.Module) -> str:
    """A module without comments and docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node) is not None:
            node.body = [*node.body[1:], ast.Pass()]
    return ast.unparse(tree)


def test_nothing_above_the_lakes_asks_which_kind_a_lake_is() -> None:
    rooms = {"core", "state", "stages", "assets", "cli", "report"}
    asked = [
        f"{name}: {line.strip()}"
        for name, tree in modules()
        if room_of(name) in rooms and not name.startswith(OF_ONE_KIND)
        for line in code_of(tree).splitlines()
        if SWITCH.search(line)
    ]
    assert asked == []


KINDS = {path.name for path in (PACKAGE / "lakes").iterdir() if (path / "kind.py").exists()}


def test_only_lakes_and_the_stages_of_a_kind_import_its_package() -> None:
    """Other modules find tables of a kind by name or by role (`lakes/kinds.py`)."""
    packages = {"core", "state", "engine", "stages", "assets", "cli", "report"}
    found = [
        f"{name} imports {target}"
        for name, tree in all_modules().items()
        for target in imported(tree)
        if room_of(name) in packages and not name.startswith(OF_ONE_KIND) and kind_in(target) is not None
    ]
    assert KINDS == {"iceberg", "icechunk", "lakefs", "nessie"}
    assert found == []


def kind_in(module: str) -> str | None:
    """Return the kind whose package contains a module, or None."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["gc_assets", "lakes"] and len(parts) > 2 and parts[2] in KINDS else None
