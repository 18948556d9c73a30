"""Rules of imports: packages import lower layers only, without cycles, and tests import no private name."""

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
TOP_MODULE = "gc_assets"
# From the lowest layer up. Packages of one layer do not import each other.
LAYERS = (
    {"_version"},
    {"core"},
    {"config"},
    {"buckets"},
    {"s3", "azure", "gcs"},
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
LAYER_OF = {package: number for number, packages in enumerate(LAYERS) for package in packages}
# Libraries that a package must not import.
FORBIDDEN = {
    "core": {"pyspark", "dagster", "pydantic_settings"},
    "config": {"pyspark", "dagster"},
    "buckets": {"pyspark", "dagster"},
    "s3": {"pyspark", "dagster"},
    "azure": {"pyspark", "dagster"},
    "gcs": {"pyspark", "dagster"},
    "state": {"pyspark", "dagster"},
    "lakes": {"pyspark", "dagster"},
    "stores": {"pyspark", "dagster"},
    "engine": {"dagster"},
    "stages": {"dagster"},
    "report": {"pyspark", "dagster"},
    "notify": {"pyspark", "dagster", "pyarrow"},
    "library": {"dagster"},
}


def read_modules() -> Iterator[tuple[str, str]]:
    """Yield the dotted name and the source of every module."""
    for path in sorted(PACKAGE.rglob("*.py"), key=str):
        dotted = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        yield dotted.removesuffix(".__init__"), path.read_text()


def imported_names(tree: ast.Module) -> Iterator[str]:
    """Yield all imports of a module, including those in functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (item.name for item in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{item.name}" for item in node.names)


def package_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "gc_assets" and len(parts) > 1 else None


@functools.cache
def all_modules() -> dict[str, ast.Module]:
    """Return all modules. They are read once, and only by the process that runs these tests."""
    return {name: ast.parse(source) for name, source in read_modules()}


@functools.cache
def all_imports() -> dict[str, frozenset[str]]:
    """Return the imports of all modules."""
    return {name: frozenset(imported_names(tree)) for name, tree in all_modules().items()}


def test_every_package_has_a_layer() -> None:
    packages = {package for name in all_modules() if (package := package_of(name)) is not None}
    assert packages == set(LAYER_OF)


def test_packages_import_only_lower_layers() -> None:
    found = [
        f"{name} imports {target}"
        for name, targets in all_imports().items()
        for target in sorted(targets)
        if (own := package_of(name)) is not None
        and (other := package_of(target)) in LAYER_OF
        and other != own
        and LAYER_OF[other] >= LAYER_OF[own]
    ]
    assert found == []


def test_packages_do_not_import_forbidden_libraries() -> None:
    found = [
        f"{name} imports {target}"
        for name, targets in all_imports().items()
        for target in sorted(targets)
        if target.partition(".")[0] in FORBIDDEN.get(package_of(name) or "", set())
    ]
    assert found == []


def test_imports_have_no_cycles() -> None:
    names = set(all_modules()) - {TOP_MODULE}  # it imports on first use
    edges = {name: {target for target in all_imports()[name] if target in names and target != name} for name in names}
    TopologicalSorter(edges).prepare()  # raises CycleError with the circle


def test_top_module_imports_dependencies_on_first_use() -> None:
    script = (
        "import sys, gc_assets\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('dagster', 'pyspark', 'pyarrow', 'pydantic')])"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_code_location_loads_without_datafusion_and_pandas() -> None:
    """Each of these libraries takes a fifth of the import time of a run."""
    script = "import sys, gc_assets.definitions, gc_assets.cli.dagster_run\nprint(sorted({'datafusion', 'pandas'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", script], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_modules_do_not_import_the_top_level_resources_link() -> None:
    """The wheel has no top-level package `resources`. In a checkout it is a link to `gc_assets/resources`."""
    found = [name for name, targets in all_imports().items() if any(target.partition(".")[0] == "resources" for target in targets)]
    assert found == []


def test_every_package_has_a_docstring() -> None:
    packages = [".".join(path.parent.relative_to(PACKAGE.parent).parts) for path in PACKAGE.rglob("__init__.py")]
    assert [name for name in packages if len(ast.get_docstring(all_modules()[name]) or "") < 20] == []


MAX_FUNCTION_LINES = 60


def count_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function without its docstring."""
    first = function.body[0]
    docstring = first.end_lineno - first.lineno + 1 if ast.get_docstring(function) is not None else 0
    return function.end_lineno - function.lineno + 1 - docstring


def test_no_function_has_more_than_60_lines() -> None:
    found = [
        f"{name}.{node.name}"
        for name, tree in all_modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and count_lines(node) > MAX_FUNCTION_LINES
    ]
    assert found == []


# A condition on a kind, or its name. Both belong into the package of the kind (`lakes/kind.py`).
KIND_SWITCH = re.compile(r"isinstance\([^)]*Lake[A-Z]|LakeFs|Nessie|Iceberg|Icechunk|\.kind (==|in|!=)")
# Only a source with one of these can have a condition. Writing the code of all modules takes seconds.
KIND_WORDS = re.compile("Lake|Nessie|Iceberg|Icechunk|[.]kind")
# Stages of tables that only one kind has.
KIND_STAGES = "gc_assets.stages.mark.lakefs"


def code_of(tree: ast.Module) -> str:
    """Return the code of a module without comments and docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node) is not None:
            node.body = [*node.body[1:], ast.Pass()]
    return ast.unparse(tree)


def test_upper_layers_do_not_depend_on_the_lake_kind() -> None:
    packages = {"core", "state", "stages", "assets", "cli", "library", "report"}
    found = [
        f"{name}: {line.strip()}"
        for name, source in read_modules()
        if package_of(name) in packages and not name.startswith(KIND_STAGES) and KIND_WORDS.search(source)
        for line in code_of(ast.parse(source)).splitlines()
        if KIND_SWITCH.search(line)
    ]
    assert found == []


KINDS = {path.name for path in (PACKAGE / "lakes").iterdir() if (path / "kind.py").exists()}


def test_only_lakes_and_kind_stages_import_packages_of_a_lake_kind() -> None:
    """Other modules find the tables of a kind by name or role (`lakes/kinds.py`)."""
    packages = {"core", "state", "engine", "stages", "assets", "cli", "library", "report"}
    found = [
        f"{name} imports {target}"
        for name, targets in all_imports().items()
        for target in sorted(targets)
        if package_of(name) in packages and not name.startswith(KIND_STAGES) and kind_in(target) is not None
    ]
    assert sorted(KINDS) == ["iceberg", "icechunk", "lakefs", "nessie"]
    assert found == []


def kind_in(module: str) -> str | None:
    """Return the kind whose package contains a module, or None."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["gc_assets", "lakes"] and len(parts) > 2 and parts[2] in KINDS else None


TESTS = Path(__file__).parent
PRIVATE_NAME = re.compile(r"(?<!\w)_(?!_)\w")
NAMED_TUPLE_API = {"_asdict", "_fields", "_make", "_replace"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE_API


def private_imports(tree: ast.Module) -> Iterator[str]:
    """Yield the private names of this repository that a module imports, or reads from an imported module or class."""
    origins: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            origins |= {item.asname: item.name for item in node.names if item.asname}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            origins |= {item.asname or item.name: f"{node.module}.{item.name}" for item in node.names}
    ours = {name: origin for name, origin in origins.items() if origin.split(".")[0] in {"gc_assets", "tests", "benchmarks"}}
    yield from (origin for origin in ours.values() if any(map(is_private, origin.split("."))))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ours and is_private(node.attr):
            yield f"{ours[node.value.id]}.{node.attr}"


def test_tests_do_not_import_private_names() -> None:
    found = [
        f"{path.relative_to(TESTS)}: {name}"
        for path in sorted(TESTS.rglob("*.py"))
        if PRIVATE_NAME.search(source := path.read_text())
        for name in private_imports(ast.parse(source))
    ]
    assert found == []


def test_private_import_is_detected() -> None:
    source = "from gc_assets.core import _a, byte_scan\nimport gc_assets.s3 as s3\nbyte_scan._b\ns3._c\nself._d\nbyte_scan.find_rows"
    assert list(private_imports(ast.parse(source))) == ["gc_assets.core._a", "gc_assets.core.byte_scan._b", "gc_assets.s3._c"]
