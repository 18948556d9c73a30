"""Fail a build if a subpackage of gc_assets is missing from its archive.

A checkout without symbolic links, or a wrong exclude rule, can drop a directory without an error.
"""

import ast
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "gc_assets"
EDITABLE = "editable"


class CompletenessHook(BuildHookInterface[Any]):
    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002  (hatchling's interface)
        source = source_modules(Path(self.root))
        artifact = Path(artifact_path)
        # An editable wheel has no modules: it points to the source tree.
        built = source if version == EDITABLE else archive_modules(artifact)
        missing = expected_packages({**source, **built}) - {name.parent for name in built if name.name == "__init__.py"}
        if missing:
            artifact.unlink()
            raise RuntimeError(
                f"{artifact.name} lacks {', '.join(sorted(map(str, missing)))}: the source tree in {self.root} is incomplete, "
                "or pyproject.toml excludes them. Build from a complete checkout."
            )


def expected_packages(modules: dict[PurePosixPath, bytes]) -> set[PurePosixPath]:
    """Return every directory that has a module, and every subpackage that a module imports from."""
    expected = {name.parent for name in modules}
    for source in modules.values():
        for dotted in imported_modules(source):
            parts = dotted.split(".")
            # The last part may be a module, the one in front of it is a package.
            expected |= {PurePosixPath(*parts[:length]) for length in range(1, len(parts))}
    return expected


def imported_modules(source: bytes) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        names = [item.name for item in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        yield from (name for name in names if name.split(".")[0] == PACKAGE)


def source_modules(root: Path) -> dict[PurePosixPath, bytes]:
    return {PurePosixPath(path.relative_to(root)): path.read_bytes() for path in (root / PACKAGE).rglob("*.py")}


def archive_modules(archive: Path) -> dict[PurePosixPath, bytes]:
    return {name: content for name, content in archive_files(archive) if name.parts[0] == PACKAGE and name.suffix == ".py"}


def archive_files(archive: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield the path and content of the files in a wheel, or in a source distribution without its top directory."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield from ((PurePosixPath(name), wheel.read(name)) for name in wheel.namelist())
        return
    with tarfile.open(archive) as sdist:
        for member in sdist:
            content = sdist.extractfile(member)
            if content is not None:
                yield PurePosixPath(*PurePosixPath(member.name).parts[1:]), content.read()
