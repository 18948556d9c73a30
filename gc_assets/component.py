"""`gc_assets.LakeGarbageCollection`: the component by which another Dagster project collects
garbage.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import dagster as dg
from dagster.components import scaffold_component
from pydantic import BaseModel, Field

from gc_assets.definitions import build_definitions

_FILE: Final = "lakes.yaml"
EXAMPLE_CONFIG: Final = """\
# Your lakes and the storages they lie on. Every key is explained in docs/configuration.md of gc-assets.
# Put every catalog and repository that may point into a storage into this one file.
state: /data/gc-assets-state              # the collector's own tables; never inside a lake
storages:
  - name: warehouse
    location: "file:///data/warehouse/"   # or s3://bucket/prefix/
    mode: plan                            # apply lets an approved plan change something
lakes:
  - name: sales
    kind: iceberg                         # or icechunk, lakefs, nessie
    catalog: {type: sql, uri: "sqlite:////data/catalog.db", warehouse: "file:///data/warehouse"}
"""


class ScaffoldParams(BaseModel):
    """What `dg scaffold defs` asks for."""

    lakes_yaml: str | None = Field(default=None, description="An existing lakes.yaml; without it one to fill in is written.")


class LakeGarbageCollectionScaffolder(dg.Scaffolder[ScaffoldParams]):
    """Writes `defs.yaml`, and a `lakes.yaml` to fill in beside it where none was named. A relative
    path is written relative to the component's folder, so that it holds in every checkout.
    """

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParams]:
        return ScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParams]) -> None:
        given = request.params.lakes_yaml
        folder = request.target_path.parent if request.append else request.target_path
        path = given or _FILE
        scaffold_component(request, {"lakes_yaml": os.path.relpath(path, folder) if given and not Path(given).is_absolute() else path})
        if given is None and not (folder / _FILE).exists():
            (folder / _FILE).write_text(EXAMPLE_CONFIG, encoding="utf-8")


@dg.scaffold_with(LakeGarbageCollectionScaffolder)
class LakeGarbageCollection(dg.Component, dg.Resolvable, dg.Model):
    """Garbage collection of the lakes of one `lakes.yaml`: what no retained version needs, why, and
    its removal by plans that people approve.
    """

    lakes_yaml: str = Field(default=_FILE, description="The configuration, absolute or relative to the component's folder.")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return build_definitions(context.path / self.lakes_yaml)
