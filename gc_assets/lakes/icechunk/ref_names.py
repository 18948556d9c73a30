"""Ref names as encoded by the library in directory names. The functions are pure.

Source: the crate `object_store`, `PathPart::from`, checked with icechunk 1.1.21 for every ASCII
character. The library uses it on disks, Azure and Google Cloud Storage. On S3, its own client
writes names unchanged, but `Storage.new_s3_object_store` encodes them, so that an encoded name is
ambiguous.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

from gc_assets.core.paths import S3, scheme_of

# Properties of a ref. The first is its name if it was written to S3 by the library's other client.
# The second is its name in earlier releases, which rules may still use.
DECODED_NAME: Final = "decoded_name"
ENCODED_NAME: Final = "encoded_name"
_UNSAFE: Final = re.compile(rb'[\x00-\x1f"#%*/<>?\[\\\]^`{|}~\x7f-\xff]')


def escape(name: str) -> str:
    """Encode a ref name as a directory name."""
    return _UNSAFE.sub(lambda match: b"%%%02X" % match[0][0], name.encode()).decode()


def stored_name(repository: str, ref_name: str) -> str:
    """Return the directory name of a ref in the store of the repository."""
    return ref_name if scheme_of(repository) == S3 else escape(ref_name)


def read_name(repository: str, directory: str) -> tuple[str, dict[str, str]]:
    """Return the name of a directory's ref, and the properties with its other name, if it has one."""
    decoded = unescape(directory)
    if decoded == directory:
        return directory, {}
    return (directory, {DECODED_NAME: decoded}) if scheme_of(repository) == S3 else (decoded, {ENCODED_NAME: directory})


def decoded_name(repository: str, ref_name: str) -> str:
    """Return the ref meant by a name in a log of release 0.3, which did not decode names."""
    return ref_name if scheme_of(repository) == S3 else unescape(ref_name)


def other_name(properties: Mapping[str, str]) -> str | None:
    """Return the other name that rules may use for a ref, or None."""
    return properties.get(DECODED_NAME, properties.get(ENCODED_NAME))


def unescape(directory: str) -> str:
    """Decode a directory name to a ref name.

    A name that the library would encode differently was copied from S3 and is returned unchanged.
    """
    try:
        name = unquote_to_bytes(directory).decode()
    except UnicodeDecodeError:
        return directory
    return name if escape(name) == directory else directory
