"""Find with a canary if a storage account keeps versions."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from azure.core.exceptions import AzureError

if TYPE_CHECKING:
    from gc_assets.azure.bucket import AzureBucket

# Under the prefix that no listing of a storage contains (`stores.protocol.RESERVED_PREFIX`).
_CANARY: Final = ".gc-assets/canary-"


def keeps_versions(bucket: AzureBucket) -> bool:
    """Return True if a written blob has a version. The canary and its version are removed."""
    key = f"{_CANARY}{secrets.token_hex(8)}"
    version_id = bucket.put_if_absent(key, b"").require().version_id
    bucket.delete_if_match(key, None).require()
    if version_id is not None:
        with suppress(AzureError):  # a soft-deleted or locked version is empty
            bucket.container("change").get_blob_client(f"{bucket.prefix}{key}").delete_blob(version_id=version_id)
    return version_id is not None
