"""Static checks of the image and the services of compose.yaml, without Docker.
tests/assets/test_in_a_browser.py runs the services.
"""

from __future__ import annotations

import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.depth import full_suite_only

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent


def instructions(name: str) -> list[str]:
    """Return the arguments of every instruction of a name, each on one line."""
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    return [re.sub(r"\s+", " ", line.removeprefix(f"{name} ")) for line in lines if line.startswith(f"{name} ")]


def lint(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / "hadolint", "--no-color", "-"], input=text, capture_output=True, text=True, check=False)


def test_dockerfile_passes_hadolint() -> None:
    done = lint((ROOT / "Dockerfile").read_text())
    assert (done.stdout, done.returncode) == ("", 0)


def test_hadolint_detects_a_known_problem() -> None:
    assert "DL3020" in lint("FROM python:3.11\nADD . /opt\n").stdout


def conforms(path: Path) -> subprocess.CompletedProcess[str]:
    command = [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", path]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_compose_yaml_conforms_to_the_specification(tmp_path: Path) -> None:
    done = conforms(ROOT / "compose.yaml")
    assert done.returncode == 0, done.stdout
    misspelt = tmp_path / "compose.yaml"
    misspelt.write_text((ROOT / "compose.yaml").read_text().replace("depends_on:", "depend_on:"))
    assert "depend_on" in conforms(misspelt).stdout


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    return yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]


def test_compose_service_dependencies_exist(services: dict[str, dict[str, Any]]) -> None:
    awaited = {name for service in services.values() for name in service.get("depends_on", ())}
    assert awaited <= services.keys()


def test_dagster_page_without_login_listens_on_localhost_only(services: dict[str, dict[str, Any]]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert ports == ["127.0.0.1:3000:3000"]


def test_secrets_come_from_the_environment() -> None:
    lines = [line for line in (ROOT / "compose.yaml").read_text().splitlines() if re.search("PASSWORD|SECRET", line.partition(":")[0])]
    assert len(lines) == 4
    assert all("${GC_ASSETS_PASSWORD" in line.partition(": ")[2] for line in lines)


def test_image_packages_exist_in_debian() -> None:
    (debian,) = re.findall(r"^FROM python:[\d.]+-slim-(\w+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    if platform.freedesktop_os_release().get("VERSION_CODENAME") != debian:
        pytest.skip(f"this machine is no Debian {debian}, and knows other packages")
    (line,) = (line for line in instructions("RUN") if line.startswith("apt-get"))
    update, install, clean = (shlex.split(step) for step in line.split(" && "))
    assert (update, clean[:2]) == (["apt-get", "update"], ["rm", "-rf"])
    done = subprocess.run([*install, "--simulate"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the files of the Dockerfile to an empty directory, in which the image installs its
    packages.
    """
    folder = tmp_path_factory.mktemp("image")
    wanted = set((ROOT / ".dockerignore").read_text().splitlines())
    for line in instructions("COPY"):
        *sources, target = shlex.split(line)
        assert {f"!{source.split('/')[0]}" for source in sources} <= wanted, ".dockerignore keeps it from the build"
        if not target.startswith("/"):
            for source in sources:
                at = folder / target / (Path(source).name if target == "./" else "")
                (shutil.copytree if (ROOT / source).is_dir() else shutil.copyfile)(ROOT / source, at, **keys_at_links(ROOT / source))
    return folder


def keys_at_links(source: Path) -> dict[str, Any]:
    """Copy a directory like Docker: with its links, without files in .dockerignore."""
    return {"symlinks": True, "ignore": shutil.ignore_patterns("__pycache__")} if source.is_dir() else {}


@full_suite_only
def test_image_installs_the_tested_versions(context: Path) -> None:
    """This environment fulfils every requirement of the extras under the same constraints."""
    (line,) = (line for line in instructions("RUN") if line.startswith("pip install"))
    command = [sys.executable, "-m", *shlex.split(line), "--dry-run", "--no-index", "--no-build-isolation"]
    done = subprocess.run(command, cwd=context, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"Would install (.*)", done.stdout)[0].split()[0].startswith("gc-assets-")


def test_image_directories_belong_to_the_image_user(tmp_path: Path) -> None:
    (line,) = (line for line in instructions("RUN") if line.startswith("useradd"))
    user, folders = (shlex.split(step) for step in line.split(" && "))
    assert instructions("USER") == [user[user.index("--uid") + 1]]
    assert {folders[folders.index(option) + 1] for option in ("-o", "-g")} == {user[-1]}
    assert [word for word in folders if word.startswith("/")] == [*instructions("WORKDIR")[1:], "/opt/dagster"]
    assert instructions("ENV") == ["DAGSTER_HOME=/opt/dagster"]
