"""Decompression and JSON parsing stay within their limits."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib

import pyarrow as pa
import pytest
import zstandard

from gc_assets.core import untrusted_input

COMPRESSED = {
    "snappy": lambda raw: pa.compress(raw, codec="snappy", asbytes=True) + zlib.crc32(raw).to_bytes(4, "big"),
    "deflate": lambda raw: zlib.compress(raw)[2:-4],
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstandard": zstandard.ZstdCompressor().compress,
}
BOMB = bytes(untrusted_input.max_decompressed_bytes(0) + 1)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_every_codec_decompresses(codec):
    raw = bytes(range(256)) * 400
    assert untrusted_input.decompress_block(COMPRESSED[codec](raw), codec) == raw


@pytest.mark.parametrize("codec", sorted(COMPRESSED.keys() - {"snappy"}))  # snappy reaches 21:1, less than the limit
def test_decompression_bomb_is_rejected(codec):
    with pytest.raises(ValueError, match="larger than 67,108,864 bytes"):
        untrusted_input.decompress_block(COMPRESSED[codec](BOMB), codec)


def test_gzip_with_several_members_is_read():
    assert untrusted_input.gunzip(gzip.compress(b"one ") + gzip.compress(b"two") + b"\0\0") == b"one two"


def test_gzip_bomb_over_members_is_rejected():
    half = gzip.compress(bytes(len(BOMB) // 2 + 1))
    with pytest.raises(ValueError, match="larger than 67,108,864 bytes"):
        untrusted_input.gunzip(half + half)


def test_truncated_gzip_is_rejected():
    with pytest.raises(EOFError):
        untrusted_input.gunzip(gzip.compress(b"content")[:-9])


def test_snappy_block_with_wrong_checksum_is_rejected():
    with pytest.raises(ValueError, match="checksum of a snappy block"):
        untrusted_input.decompress_block(COMPRESSED["snappy"](b"content")[:-1] + b"?", "snappy")


def test_snappy_block_that_states_gigabytes_is_rejected_before_allocation():
    with pytest.raises(ValueError, match="larger than 67,108,864 bytes"):
        untrusted_input.decompress_block(b"\xff\xff\xff\xff\x0f" + bytes(20), "snappy")


def test_json_with_too_many_values_is_rejected_before_parsing():
    with pytest.raises(ValueError, match="more than 20,000,000 values"):
        untrusted_input.parse_json(b"[" + b"0," * untrusted_input.MAX_JSON_VALUES + b"0]")
