"""Read inventory reports from a bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, Final

from gc_assets.config.connections import Connections
from gc_assets.config.s3 import S3Config
from gc_assets.core.paths import bucket_and_key
from gc_assets.s3 import pages
from gc_assets.s3.client import get_client, payer_params, translate_errors
from gc_assets.stores.s3.objects import S3Objects

_BLOCK_BYTES: Final = 4 * 2**20


@dataclass(frozen=True, slots=True)
class S3ReportFiles:
    """`ReportFiles` on S3. `connections` configures access to each address."""

    connections: Connections

    def folders(self, location: str) -> list[str]:
        bucket, prefix = bucket_and_key(location)
        found: list[str] = []
        for page in pages.list_objects(self.connections.settings_for(location, S3Config), bucket, prefix, delimiter="/"):
            found += [key[len(prefix.encode()) :].decode("utf-8", "backslashreplace") for key in page.common]
        return found

    def read(self, address: str) -> bytes:
        return S3Objects(self.connections).read(address)

    def copy(self, address: str, into: IO[bytes]) -> None:
        settings = self.connections.settings_for(address, S3Config)
        bucket, key = bucket_and_key(address)
        with translate_errors(address):
            body = get_client(settings, "read").get_object(Bucket=bucket, Key=key, **payer_params(settings))["Body"]
            for block in body.iter_chunks(_BLOCK_BYTES):
                into.write(block)
