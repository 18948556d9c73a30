"""Files of the collector and of catalogs in a storage are excluded from all claims."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from gc_assets.config.file import load_config
from gc_assets.core.clock import Clock
from gc_assets.engine.run_context import RunContext
from gc_assets.lakes.kinds import config_models
from gc_assets.stages.sweep.claims import claims_of

LAKES = """
state: ROOT/state
storages: [{name: warehouse, location: ROOT/warehouse}]
lakes:
  - {name: sales, kind: iceberg, catalog: {type: sql, uri: "sqlite:///ROOT/catalogs/sales.db"}}
  - {name: plain, kind: iceberg, catalog: {type: sql, uri: "sqlite:////far/away.db"}}
  - name: ml
    kind: lakefs
    endpoint: "http://localhost:8000"
    repository: ml
    access_key_id: a
    secret_access_key: b
    rules: ROOT/rules.json
"""


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    """A configuration whose paths lead into the storage by links and relative paths."""
    inside = tmp_path / "warehouse" / "db"
    for name in ("state", "catalogs"):
        (inside / name).mkdir(parents=True)
        (tmp_path / name).symlink_to(inside / name)
    for name, content in {"lakes.yaml": LAKES.replace("ROOT", str(tmp_path)), "rules.json": "{}"}.items():
        (inside / name).write_text(content)
        (tmp_path / name).symlink_to(inside / name)
    config = load_config(tmp_path / "lakes.yaml", {}, config_models())
    return RunContext.of(config, Clock(datetime(2026, 11, 20, tzinfo=UTC)), date(2026, 11, 20))


def test_collector_files_and_catalogs_are_excluded_from_claims(context: RunContext) -> None:
    claims = claims_of(context, "warehouse", [])
    assert claims.owners == {"db/state/": None}
    catalog = {f"db/catalogs/sales.db{suffix}" for suffix in ("", "-journal", "-wal", "-shm")}
    assert claims.shielded == {"db/lakes.yaml", "db/rules.json", *catalog}
