"""The identity of an object in a bucket: `<token>-<size>-<modification time in seconds>`.

The token is the value that the store compares in conditions: the etag, or the generation on Google
Cloud. On S3 the token alone is not sufficient, because rewriting the same bytes results in the same
etag. The time is in whole seconds, because responses to GET and HEAD contain no fractions.
"""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc


def build_identity(token: str, size_bytes: int, modified: datetime) -> str:
    """Return the identity of an object. Quotes around the token are removed."""
    return f"{token.strip(chr(34))}-{size_bytes}-{int(modified.timestamp())}"


def build_identities(tokens: pa.Array, sizes: pa.Array, modified: pa.Array) -> pa.Array:
    """Return the identities of objects in the form of `build_identity`.

    Tokens must have no quotes, and times must be in microseconds.
    """
    seconds = pc.divide(pc.floor_temporal(modified, unit="second").cast(pa.int64()), pa.scalar(1_000_000, pa.int64()))
    return pc.call_function("binary_join_element_wise", [tokens, sizes.cast(pa.string()), seconds.cast(pa.string()), pa.scalar("-")])


def modified_us(identity: str) -> int | None:
    """Return the modification time in an identity, in microseconds, or None if it has no time."""
    seconds = identity.rpartition("-")[2]
    return int(seconds) * 1_000_000 if seconds.isascii() and seconds.isdecimal() else None


def token_of(identity: str) -> str:
    """Return the store's token contained in an identity."""
    return identity.rsplit("-", 2)[0]
