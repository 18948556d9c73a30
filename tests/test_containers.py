"""The image and the services of compose.yaml, as far as a machine without Docker can tell. The services run in
tests/assets/test_in_a_browser.py.
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

from tests.depth import deep

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent


def instructions(name: str) -> list[str]:
    """What the Dockerfile says behind every instruction of a name, each on one line."""
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    return [re.sub(r"\s+", " ", line.removeprefix(f"{name} ")) for line in lines if line.startswith(f"{name} ")]


def linted(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / "hadolint", "--no-color", "-"], input=text, capture_output=True, text=True, check=False)


def test_hadolint_has_nothing_to_say_against_the_dockerfile() -> None:
    done = linted((ROOT / "Dockerfile").read_text())
    assert (done.stdout, done.returncode) == ("", 0)


def test_hadolint_would_say_it() -> None:
    assert "DL3020" in linted("FROM python:3.11\nADD . /opt\n").stdout


def conforms(path: Path) -> subprocess.CompletedProcess[str]:
    command = [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", path]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_compose_yaml_is_what_the_compose_specification_allows(tmp_path: Path) -> None:
    done = conforms(ROOT / "compose.yaml")
    assert done.returncode == 0, done.stdout
    misspelt = tmp_path / "compose.yaml"
    misspelt.write_text((ROOT / "compose.yaml").read_text().replace("depends_on:", "depend_on:"))
    assert "depend_on" in conforms(misspelt).stdout


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    return yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]


def test_every_service_waits_for_services_that_there_are(services: dict[str, dict[str, Any]]) -> None:
    awaited = {name for service in services.values() for name in service.get("depends_on", ())}
    assert awaited <= services.keys()


def test_the_page_which_asks_nobody_who_they_are_is_opened_to_this_machine_alone(services: dict[str, dict[str, Any]]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert ports == ["127.0.0.1:3000:3000"]


def test_every_secret_of_compose_yaml_comes_from_outside() -> None:
    lines = [line for line in (ROOT / "compose.yaml").read_text().splitlines() if re.search("PASSWORD|SECRET", line.partition(":")[0])]
    assert len(lines) == 4
    assert all("${GC_ASSETS_PASSWORD" in line.partition(": ")[2] for line in lines)


def test_the_packages_of_the_image_are_packages_of_its_debian() -> None:
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
    """The folder of the image in which its packages are installed: what the Dockerfile copies there, and nothing else."""
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
    """A folder is copied as Docker does: with its links, without what .dockerignore keeps back."""
    return {"symlinks": True, "ignore": shutil.ignore_patterns("__pycache__")} if source.is_dir() else {}


@deep
def test_what_the_image_installs_is_what_is_tested_here(context: Path) -> None:
    """Every requirement of its extras is met by this environment, within the same constraints; nothing would be fetched."""
    (line,) = (line for line in instructions("RUN") if line.startswith("pip install"))
    command = [sys.executable, "-m", *shlex.split(line), "--dry-run", "--no-index", "--no-build-isolation"]
    done = subprocess.run(command, cwd=context, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"Would install (.*)", done.stdout)[0].split()[0].startswith("gc-assets-")


def test_the_folders_of_the_image_belong_to_the_user_who_runs_it(tmp_path: Path) -> None:
    (line,) = (line for line in instructions("RUN") if line.startswith("useradd"))
    user, folders = (shlex.split(step) for step in line.split(" && "))
    assert instructions("USER") == [user[user.index("--uid") + 1]]
    assert {folders[folders.index(option) + 1] for option in ("-o", "-g")} == {user[-1]}
    assert [word for word in folders if word.startswith("/")] == [*instructions("WORKDIR")[1:], "/opt/dagster"]
    assert instructions("ENV") == ["DAGSTER_HOME=/opt/dagster"]
