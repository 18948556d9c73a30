"""What others compressed, inside a bound."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib

import pytest
import zstandard

from gc_assets.core import untrusted_input

COMPRESSED = {
    "deflate": lambda raw: zlib.compress(raw)[2:-4],
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstandard": zstandard.ZstdCompressor().compress,
}
BOMB = bytes(untrusted_input.max_decompressed_bytes(0) + 1)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_block_of_every_codec_inflates(codec):
    raw = bytes(range(256)) * 400
    assert untrusted_input.decompress_block(COMPRESSED[codec](raw), codec) == raw


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_block_that_grows_without_end_is_refused(codec):
    with pytest.raises(ValueError, match="larger than 67,108,864 bytes"):
        untrusted_input.decompress_block(COMPRESSED[codec](BOMB), codec)


def test_a_gzip_file_of_several_members_is_read_whole():
    assert untrusted_input.gunzip(gzip.compress(b"one ") + gzip.compress(b"two") + b"\0\0") == b"one two"


def test_a_gzip_file_that_grows_without_end_is_refused_also_over_many_members():
    half = gzip.compress(bytes(len(BOMB) // 2 + 1))
    with pytest.raises(ValueError, match="larger than 67,108,864 bytes"):
        untrusted_input.gunzip(half + half)


def test_a_gzip_file_that_is_cut_off_is_no_shorter_file():
    with pytest.raises(EOFError):
        untrusted_input.gunzip(gzip.compress(b"content")[:-9])
