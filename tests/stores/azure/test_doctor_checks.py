"""Findings of `doctor` about a container of Azure."""

from __future__ import annotations

from gc_assets.config.models import StorageConfig
from tests.azure.answers import change_answers, show_soft_delete
from tests.azure.servers import shared_server
from tests.s3.proxy import run_proxy
from tests.stores.azure_bench import open_azure_bench
from tests.stores.builders import NOW


def test_soft_deleted_blobs_are_counted() -> None:
    """Azurite accepts the setting and keeps nothing, so a proxy shows two of its blobs as deleted."""
    rule = change_answers(show_soft_delete(7, ["/a", "/b"]))
    with run_proxy(shared_server(), rule) as proxy, open_azure_bench(server=proxy.server) as bench:
        for key in ("t/a", "t/b", "t/stays"):
            bench.put(key, b"12345")
        storage = StorageConfig.model_validate({"name": "s", "location": bench.store.location, "quarantine": "trash"})
        findings = {finding.check: finding for finding in bench.store.examine(storage, NOW)}
    assert findings["soft_delete"].verdict == "ok"
    assert "keeps each deleted blob for 7 days" in findings["soft_delete"].found
    assert "again to the copy after its purge. The storage has 2 of them, 10 B" in findings["soft_delete"].found
    assert "has 1 object" in findings["listable"].found
