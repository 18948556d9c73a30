"""Damage bytes as disks, networks, other programs and attackers do."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

Mutation = Callable[[bytearray, random.Random], None]
# Counts, lengths and offsets that readers trip over: signs, edges of integers, zigzag and varint extremes.
_NUMBERS: Final = (
    b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff\xff", b"\x00\x00\x00\x80", b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\xff" * 8,
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xfe\xff\xff\xff\x0f",
)  # fmt: skip
_TEXTS: Final = (
    b"0", b"-1", b"9" * 300, b"1e999", b"null", b"[]", b"{}", b'""', b"\\ud800", b"\xef\xbb\xbf", b"[" * 3000, b"NaN", b"true", b"\n-&a *a",
)  # fmt: skip


def flip(raw: bytearray, chance: random.Random) -> None:
    raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)


def overwrite(raw: bytearray, chance: random.Random) -> None:
    number, at = chance.choice(_NUMBERS), chance.randrange(len(raw))
    raw[at : at + len(number)] = number


def insert(raw: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(raw) + 1)
    raw[at:at] = chance.choice(_TEXTS)


def replace_a_number(raw: bytearray, chance: random.Random) -> None:
    digits = [at for at, byte in enumerate(raw[:4000]) if 48 <= byte <= 57]
    if digits:
        at = chance.choice(digits)
        raw[at : at + 1] = chance.choice(_TEXTS)


def cut_out(raw: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(raw))
    del raw[at : at + chance.randint(1, 64)]


def truncate(raw: bytearray, chance: random.Random) -> None:
    del raw[chance.randrange(len(raw)) :]


def repeat(raw: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(raw))
    raw[at:at] = raw[at : at + chance.randint(1, 256)]


def swap(raw: bytearray, chance: random.Random) -> None:
    one, other, length = chance.randrange(len(raw)), chance.randrange(len(raw)), chance.randint(1, 16)
    raw[one : one + length], raw[other : other + length] = raw[other : other + length], raw[one : one + length]


MUTATIONS: Final[Sequence[Mutation]] = (flip, flip, overwrite, overwrite, insert, replace_a_number, cut_out, truncate, repeat, swap)


def damage(raw: bytes, chance: random.Random) -> bytes:
    """Return the bytes after one to four mutations."""
    found = bytearray(raw)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        if found:
            chance.choice(MUTATIONS)(found, chance)
    return bytes(found)
