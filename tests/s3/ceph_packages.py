"""Ceph of Debian testing, next to the programs of this machine: unpacked packages with their own libc.

Ceph RGW 20 evaluates conditions in deletes, single and for each key of a batch, and in buckets with
versions. It needs no root. The packages are kept in the user's cache directory.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.debian import Unavailable, run_command

PROGRAMS = ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "monmaptool", "osdmaptool")
PACKAGES = ("ceph-mon", "ceph-osd", "radosgw", "ceph-common")
# Packages that the server programs do not need at run time.
UNUSED = re.compile(r"(python3|libpython3|perl|libperl|binutils|systemd|udev|mount|parted|cryptsetup|lvm2|dmsetup|media-types|tzdata)")
SOURCES = Path("/etc/apt/sources.list.d")
LINKER = "usr/lib64/ld-linux-x86-64.so.2"
LIBRARIES = "usr/lib/x86_64-linux-gnu"


def cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gc-assets" / "ceph-20"


def programs_directory() -> Path | None:
    """Return the directory with the programs, or None if they were not unpacked."""
    programs = cache_directory() / "bin"
    return programs if all((programs / name).is_file() for name in PROGRAMS) else None


def configuration(directory: Path) -> dict[str, str]:
    """Return the settings by which the programs find their modules."""
    libraries = directory.parent / "root" / LIBRARIES
    return {
        "erasure_code_dir": str(libraries / "ceph/erasure-code"),
        "plugin_dir": str(libraries / "ceph"),
        "osd_class_dir": str(libraries / "rados-classes"),
    }


def fetch_packages() -> None:
    """Download and unpack the packages, unless they are there.

    Raises:
        Unavailable: This machine has no apt or another architecture, or a download failed.
    """
    if programs_directory() is not None:
        return
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None or os.uname().machine != "x86_64":
        raise Unavailable("Ceph 20 comes as packages of Debian for x86_64, and this machine cannot unpack them")
    target = cache_directory()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ceph-20-", dir=target.parent) as folder:
        _unpack(Path(folder), _download(Path(folder)))
        _write_programs(Path(folder), target)
        for name in ("root", "bin"):
            shutil.rmtree(target / name, ignore_errors=True)
            target.mkdir(exist_ok=True)
            (Path(folder) / name).rename(target / name)
    for name in PROGRAMS:
        result = run_command([str(target / "bin" / name), "--version"])
        if result.returncode:
            shutil.rmtree(target)
            raise Unavailable(f"Ceph 20 does not start: {result.stdout.strip()[-500:]}")


def _download(folder: Path) -> list[Path]:
    """Download the packages with everything that they depend on, with a private state of apt."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text(f"deb {_mirror()} testing main\n")
    options = {
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": os.devnull,
        "Dir::Etc::Preferences": os.devnull,
        "Dir::Etc::PreferencesParts": os.devnull,
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
        "APT::Install-Recommends": "0",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "Debug::NoLocking": "1",
    }
    apt = ["apt-get", "-qq", "-y", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    for command in ([*apt, "update"], [*apt, "install", "--download-only", *PACKAGES]):
        result = run_command(command)
        if result.returncode:
            raise Unavailable(f"Ceph 20 cannot be downloaded: {result.stdout.strip()[-1000:]}")
    return sorted((folder / "cache/archives").glob("*.deb"))


def _mirror() -> str:
    """Return the mirror of this machine's Debian with the key that signs it."""
    for source in sorted(SOURCES.glob("*.sources")):
        text = source.read_text()
        found = re.search(r"^URIs:\s*(\S+/debian)/?\s*$", text, re.MULTILINE)
        signed = re.search(r"^Signed-By:\s*(\S+)", text, re.MULTILINE)
        if found is not None:
            return f"[signed-by={signed[1]}] {found[1]}" if signed is not None else found[1]
    raise Unavailable("Ceph 20 comes from Debian, and this machine has no source of its packages")


def _unpack(folder: Path, packages: list[Path]) -> None:
    root = folder / "root"
    root.mkdir()
    used = [package for package in packages if not UNUSED.match(package.name)]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda package: run_command(["dpkg-deb", "-x", str(package), str(root)]), used))
    failed = next((result.stdout for result in results if result.returncode), None)
    if failed is not None or not (root / LINKER).exists():
        raise Unavailable(f"Ceph 20 cannot be unpacked: {failed or 'its packages contain no libc'}")


def _write_programs(folder: Path, target: Path) -> None:
    """Write programs that start with their own linker and libraries."""
    (folder / "bin").mkdir()
    root = target / "root"
    libraries = f"{root / LIBRARIES}:{root / LIBRARIES / 'ceph'}"
    for name in PROGRAMS:
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{root / LINKER}" --library-path "{libraries}" "{root / "usr/bin" / name}" "$@"\n')
        program.chmod(0o755)
