"""The Dagster component `gc_assets.LakeGarbageCollection`, to be used in your own project."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click
import dagster as dg
from dagster.components import scaffold_component
from pydantic import BaseModel, Field, field_validator

from gc_assets.core.commands import command
from gc_assets.core.errors import UsageError
from gc_assets.definitions import build_definitions

_FILE: Final = "lakes.yaml"
EXAMPLE_CONFIG: Final = """\
# Your lakes and their storages. docs/configuration.md of gc-assets explains every key.
# List every catalog and repository that may refer to files of a storage.
state: /data/gc-assets-state              # the collector's own tables; never inside a lake
storages:
  - name: warehouse
    location: "file:///data/warehouse/"   # or s3://bucket/prefix/
    mode: plan                            # apply: approved plans may change the storage
lakes:
  - name: sales
    kind: iceberg                         # or icechunk, lakefs, nessie
    catalog: {type: sql, uri: "sqlite:////data/catalog.db", warehouse: "file:///data/warehouse"}
"""


class ScaffoldParams(BaseModel):
    """Options of `dg scaffold defs gc_assets.LakeGarbageCollection`."""

    lakes_yaml: str | None = Field(default=None, description="An existing lakes.yaml. By default, an example to complete is written.")

    @field_validator("lakes_yaml")
    @classmethod
    def _require_file(cls, path: str | None) -> str | None:
        if path is not None and not Path(path).is_file():
            found = "is not a file" if Path(path).exists() else "does not exist"
            raise ValueError(
                f"{Path(path).resolve()} {found}. Enter the path of an existing lakes.yaml, or omit --lakes-yaml to write an example."
            )
        return path


class LakeGarbageCollectionScaffolder(dg.Scaffolder[ScaffoldParams]):
    """Create the `defs.yaml` of a component.

    Unless the user passes an existing `lakes.yaml`, an example configuration is created too. A
    relative path to `lakes.yaml` is rewritten to start at the component's directory, because it is
    then valid in every checkout of the project.
    """

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParams]:
        """Return the model of the command's options."""
        return ScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParams]) -> None:
        """Write `defs.yaml`, and an example `lakes.yaml` if it is missing and no path was passed."""
        given = request.params.lakes_yaml
        folder = request.target_path.parent if request.append else request.target_path
        path = given or _FILE
        scaffold_component(request, {"lakes_yaml": os.path.relpath(path, folder) if given and not Path(given).is_absolute() else path})
        if given is None and not (folder / _FILE).exists():
            example = folder / _FILE
            example.write_text(EXAMPLE_CONFIG, encoding="utf-8")
            click.echo(f"Wrote an example to {example}. Replace its paths, then run {command('doctor', config=str(example))}")


@dg.scaffold_with(LakeGarbageCollectionScaffolder)
class LakeGarbageCollection(dg.Component, dg.Resolvable, dg.Model):
    """Garbage collection of the lakes in one `lakes.yaml`: find files that no retained version
    needs, and remove them by approved plans.
    """

    lakes_yaml: str = Field(default=_FILE, description="The configuration, absolute or relative to the component's directory.")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the assets, jobs, schedule and sensors. Neither Spark nor a lake is opened.

        Raises:
            UsageError: If the configuration is missing or invalid.
        """
        path = Path(os.path.normpath(context.path / self.lakes_yaml))
        if not path.exists():
            key = f"`lakes_yaml` in {context.path / 'defs.yaml'}"
            raise UsageError(f"configuration {path} does not exist; correct {key}, or create the file with `gc-assets init`")
        return build_definitions(path)
