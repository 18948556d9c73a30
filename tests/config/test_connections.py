"""Settings of object stores by address: those of the innermost location apply, and only to their
type of store.
"""

from __future__ import annotations

from gc_assets.config.azure import AzureConfig
from gc_assets.config.connections import Connections
from gc_assets.config.gcs import GcsConfig
from gc_assets.config.models import STORE_SETTINGS
from gc_assets.config.s3 import S3Config
from gc_assets.core.paths import BUCKET_FORMS, Location

OUTER, INNER = S3Config(endpoint="http://outer"), S3Config(endpoint="http://inner")
GOOGLE = GcsConfig(max_requests_per_second=7)
CONNECTIONS = Connections(
    (
        (Location.parse("s3://bucket/"), OUTER),
        (Location.parse("s3a://bucket/lake/"), INNER),
        (Location.parse("gs://bucket/"), GOOGLE),
    ),
    (S3Config(endpoint="http://default"),),
)


def test_settings_of_innermost_location_apply() -> None:
    found = [CONNECTIONS.settings_for(address, S3Config).endpoint for address in ("s3://bucket/lake/x", "s3n://bucket/x", "s3://other/x")]
    assert found == ["http://inner", "http://outer", "http://default"]


def test_settings_of_another_store_type_never_apply() -> None:
    assert CONNECTIONS.settings_for("gcs://bucket/lake/x", GcsConfig) == GOOGLE
    assert CONNECTIONS.settings_for("gs://other/x", GcsConfig) == GcsConfig()
    address = "abfss://bucket@account.dfs.core.windows.net/lake/x"
    assert CONNECTIONS.settings_for(address, AzureConfig) == AzureConfig()


def test_equal_settings_of_two_store_types_are_not_shared() -> None:
    assert len({S3Config(max_requests_per_second=7), GOOGLE, GcsConfig(max_requests_per_second=7)}) == 2


def test_every_bucket_scheme_has_connection_settings() -> None:
    assert STORE_SETTINGS.keys() == BUCKET_FORMS.keys()
