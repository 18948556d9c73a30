"""Encoding of Icechunk's ref names as directory names.

Source: the crate `object_store`, `PathPart::from`, verified with icechunk 1.1.21 for every ASCII
character. The Icechunk library uses this encoding on disks, Azure and Google Cloud Storage. On S3,
its own client does not encode names, but `Storage.new_s3_object_store` does. An encoded name on S3
is therefore ambiguous.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

from gc_assets.core.paths import S3, scheme_of

# Ref properties with a second name. `DECODED_NAME` is the ref's name if the library's other client
# wrote it to S3. `ENCODED_NAME` is the name used by earlier releases, which rules may still refer
# to.
DECODED_NAME: Final = "decoded_name"
ENCODED_NAME: Final = "encoded_name"
_UNSAFE: Final = re.compile(rb'[\x00-\x1f"#%*/<>?\[\\\]^`{|}~\x7f-\xff]')


def escape(name: str) -> str:
    """Encode a ref name as a directory name."""
    return _UNSAFE.sub(lambda match: b"%%%02X" % match[0][0], name.encode()).decode()


def stored_name(repository: str, ref_name: str) -> str:
    """Return the name of a ref's directory in the repository's store."""
    return ref_name if scheme_of(repository) == S3 else escape(ref_name)


def read_name(repository: str, directory: str) -> tuple[str, dict[str, str]]:
    """Return the name of the ref stored in a directory, and its other name as a property.

    Patterns of rules may match either name. The property is missing if both names are equal.
    """
    decoded = unescape(directory)
    if decoded == directory:
        return directory, {}
    return (directory, {DECODED_NAME: decoded}) if scheme_of(repository) == S3 else (decoded, {ENCODED_NAME: directory})


def decoded_name(repository: str, ref_name: str) -> str:
    """Decode a ref name from a log of gc-assets 0.3, which did not decode names."""
    return ref_name if scheme_of(repository) == S3 else unescape(ref_name)


def other_name(properties: Mapping[str, str]) -> str | None:
    """Return the other name by which rules may refer to a ref, or None."""
    return properties.get(DECODED_NAME, properties.get(ENCODED_NAME))


def unescape(directory: str) -> str:
    """Decode a directory name into a ref name.

    If the library would encode the name differently, the directory was copied from S3, and its name
    is returned unchanged.
    """
    try:
        name = unquote_to_bytes(directory).decode()
    except UnicodeDecodeError:
        return directory
    return name if escape(name) == directory else directory
