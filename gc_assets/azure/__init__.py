"""The client for Azure Blob Storage.

Importing this package raises `UsageError` if the `azure` extra is not installed.
"""

from __future__ import annotations

from gc_assets.core.errors import UsageError

try:
    import azure.identity as _identity
    import azure.storage.blob as _blob
except ImportError as error:
    raise UsageError(f"abfss:// addresses need the `azure` extra: pip install 'gc-assets[azure]' ({error})") from error

del _identity, _blob
