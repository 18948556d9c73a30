"""The key of every reused row contains all that the row depends on.

The table `KEYS` of each dependency is that of docs/adr/0010-what-caches-depend-on.md. Symbolic links,
container bytes and directories are not part of a digest. Tests that change them are in
tests/cases/attack/test_symlink_retarget.py, test_rewritten_containers.py and
tests/stores/local/test_incremental_listing.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.config.models import Config, LakeConfig, StorageConfig
from gc_assets.core import key_resolver
from gc_assets.core.clock import Clock
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.kinds import KINDS
from gc_assets.stages.mark import commit_graph, manifest_entries
from tests.stages.lakehouse import NOW

SEGMENTS, GRAPH, KEYS = "entry cache", "commit graph", "keys of addresses"
LAKES: dict[str, dict[str, Any]] = {
    "nessie": {"uri": "http://localhost:19120/api/v2"},
    "lakefs": {"endpoint": "http://localhost:8000", "repository": "repo", "access_key_id": "a", "secret_access_key": "b"},
    "icechunk": {"location": "file:///data/weather/"},
    "iceberg": {"catalog_name": "c", "catalog": {"type": "sql", "uri": "sqlite:////data/catalog.db", "warehouse": "file:///data/"}},
}
Change = Callable[[pytest.MonkeyPatch, RunContext], RunContext]


def lake(kind: str, **settings: Any) -> LakeConfig:
    return KINDS[kind].config.model_validate({"name": kind, "kind": kind, **LAKES[kind], **settings})


def storage(name: str = "disk", location: str = "file:///data/", **settings: Any) -> StorageConfig:
    return StorageConfig.model_validate({"name": name, "location": location, **settings})


@pytest.fixture
def run_context(tmp_path: Path) -> RunContext:
    config = Config(state=str(tmp_path), storages=(storage(),), lakes=tuple(map(lake, LAKES)))
    return RunContext.of(config, Clock(NOW), NOW.date())


def with_config(**values: Any) -> Change:
    return lambda _, context: replace(context, config=context.config.model_copy(update=values))


def with_lake(kind: str, **settings: Any) -> Change:
    lakes = tuple(lake(name, **settings) if name == kind else lake(name) for name in LAKES)
    return with_config(lakes=lakes)


def with_release(monkeypatch: pytest.MonkeyPatch, context: RunContext) -> RunContext:
    for module in (commit_graph, manifest_entries, key_resolver):
        monkeypatch.setattr(module, "__version__", "9.9.9")
    return context


def with_attribute(module: Any, name: str, value: Any) -> Change:
    def change(monkeypatch: pytest.MonkeyPatch, context: RunContext) -> RunContext:
        monkeypatch.setattr(module, name, value)
        return context

    return change


def digests(context: RunContext, kind: str) -> Mapping[str, str]:
    return {
        SEGMENTS: manifest_entries.cache_fingerprint(context, kind),
        GRAPH: commit_graph.graph_fingerprint(context, kind),
        KEYS: context.resolver().settings_digest,
    }


MOVED = (storage(location="file:///new/"),)
DEPENDENCIES: list[tuple[str, str, Change, set[str]]] = [
    ("nothing", "iceberg", with_config(), set()),
    ("the policy", "nessie", with_lake("nessie", missing_history="tolerate"), set()),
    ("the release", "iceberg", with_release, {SEGMENTS, GRAPH, KEYS}),
    ("the location of a storage", "iceberg", with_config(storages=MOVED), {KEYS}),
    ("the location of a storage", "lakefs", with_config(storages=MOVED), {SEGMENTS, KEYS}),
    ("the name of a storage", "iceberg", with_config(storages=(storage("other"),)), {KEYS}),
    ("another storage", "icechunk", with_config(storages=(storage(), storage("new", "s3://bucket/"))), {KEYS}),
    ("an alias of a storage", "iceberg", with_config(storages=(storage(aliases=["hdfs://host/data/"]),)), {KEYS}),
    ("the server of a lake", "nessie", with_lake("nessie", uri="http://other:19120/api/v2"), {GRAPH}),
    ("the snapshots that metadata keeps", "nessie", with_lake("nessie", keep_listed_snapshots="refs"), {SEGMENTS}),
    ("the columns of hashes", "iceberg", with_attribute(manifest_entries, "HASHES", pa.schema([])), {SEGMENTS}),
    ("the form of loose hashes", "iceberg", with_attribute(manifest_entries, "LOOSE_FORM", "another"), {SEGMENTS}),
    ("the columns of containers", "iceberg", with_attribute(manifest_entries, "CONTAINERS", pa.schema([])), {SEGMENTS}),
]


@pytest.mark.parametrize("name, kind, change, changed", DEPENDENCIES, ids=[f"{name}-{kind}" for name, kind, _, _ in DEPENDENCIES])
def test_changed_dependency_changes_only_cache_keys_that_use_it(
    run_context: RunContext, monkeypatch: pytest.MonkeyPatch, name: str, kind: str, change: Change, changed: set[str]
) -> None:
    before = digests(run_context, kind)
    after = digests(change(monkeypatch, run_context), kind)
    assert {key for key in before if before[key] != after[key]} == changed, name


def test_every_address_setting_is_part_of_resolver_digest() -> None:
    """A new parameter needs a row here, and must be part of `settings_digest`."""
    given = {"storages": [("disk", "file:///data/")], "aliases": [("disk", "hdfs://host/data/")]}
    assert set(inspect.signature(KeyResolver).parameters) == set(given)
    resolvers = [KeyResolver(given["storages"]), KeyResolver(**given), KeyResolver([("disk", "file:///new/")]), KeyResolver([])]
    assert len({resolver.settings_digest for resolver in resolvers}) == len(resolvers)
