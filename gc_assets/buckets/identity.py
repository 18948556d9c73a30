"""The identity of an object in a bucket, `<token>-<size>-<modification time in seconds>`.

The token is what a store compares when it evaluates a condition. On Google Cloud this is the
generation, otherwise the etag. The token alone would not be enough on S3, because an object that is
rewritten with the same bytes has the same etag. Times are in whole seconds, since responses to GET
and HEAD do not contain fractions.
"""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc


def build_identity(token: str, size_bytes: int, modified: datetime) -> str:
    """Build the identity of an object. Quotes around the token are removed."""
    return f"{token.strip(chr(34))}-{size_bytes}-{int(modified.timestamp())}"


def build_identities(tokens: pa.Array, sizes: pa.Array, modified: pa.Array) -> pa.Array:
    """Build the identities of many objects, like `build_identity`.

    In contrast to `build_identity`, tokens must not have quotes. Times must be in microseconds.
    """
    seconds = pc.divide(pc.floor_temporal(modified, unit="second").cast(pa.int64()), pa.scalar(1_000_000, pa.int64()))
    return pc.call_function("binary_join_element_wise", [tokens, sizes.cast(pa.string()), seconds.cast(pa.string()), pa.scalar("-")])


def modified_us(identity: str) -> int | None:
    """Extract the modification time from an identity, in microseconds since 1970."""
    seconds = identity.rpartition("-")[2]
    return int(seconds) * 1_000_000 if seconds.isascii() and seconds.isdecimal() else None


def token_of(identity: str) -> str:
    """Extract the token from an identity."""
    return identity.rsplit("-", 2)[0]
