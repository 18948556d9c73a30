"""Names of refs as the library encodes them in directory names. Pure.

Source: the crate `object_store`, `PathPart::from`, checked with icechunk 1.1.21 for every character
of ASCII. The library uses it on disks, Azure and Google Cloud Storage. On S3 its own client writes
names unchanged, but `Storage.new_s3_object_store` encodes them, so an encoded name has two readings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

from gc_assets.core.paths import S3, scheme_of

# Properties of a ref. The first is the name that it has if the library's other client wrote it to S3.
# The second was its name in earlier releases, so rules may spell it.
DECODED_NAME: Final = "decoded_name"
ENCODED_NAME: Final = "encoded_name"
_UNSAFE: Final = re.compile(rb'[\x00-\x1f"#%*/<>?\[\\\]^`{|}~\x7f-\xff]')


def escape(name: str) -> str:
    """Return the directory name of a ref."""
    return _UNSAFE.sub(lambda match: b"%%%02X" % match[0][0], name.encode()).decode()


def stored_name(repository: str, ref_name: str) -> str:
    """Return the directory name of a ref in the store of a repository."""
    return ref_name if scheme_of(repository) == S3 else escape(ref_name)


def read_name(repository: str, directory: str) -> tuple[str, dict[str, str]]:
    """Return the name of the ref of a directory, and its other name as a property, if it has one."""
    decoded = unescape(directory)
    if decoded == directory:
        return directory, {}
    return (directory, {DECODED_NAME: decoded}) if scheme_of(repository) == S3 else (decoded, {ENCODED_NAME: directory})


def decoded_name(repository: str, ref_name: str) -> str:
    """Return the ref that a log of release 0.3 may mean by a name, because it did not decode names."""
    return ref_name if scheme_of(repository) == S3 else unescape(ref_name)


def other_name(properties: Mapping[str, str]) -> str | None:
    """Return another name by which rules may know a ref."""
    return properties.get(DECODED_NAME, properties.get(ENCODED_NAME))


def unescape(directory: str) -> str:
    """Return the ref of a directory.

    A name that the library would spell differently was copied from S3, and is returned unchanged.
    """
    try:
        name = unquote_to_bytes(directory).decode()
    except UnicodeDecodeError:
        return directory
    return name if escape(name) == directory else directory
