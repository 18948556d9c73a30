"""Replace every value of a JSON document by values that its reader does not expect."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

# JSON text of each value. Python's parser accepts most of them.
WRONG_VALUES: Final[Mapping[str, str]] = {
    "null": "null",
    "boolean": "true",
    "zero": "0",
    "negative": "-1",
    "fraction": "1.5",
    "exponent": "1e999",
    "NaN": "NaN",
    "over 64 bits": str(2**63),
    "2^64": str(2**64),
    "31 digits": str(10**30),
    "far below 64 bits": str(-(2**70)),
    "300 digits": "9" * 300,
    "5,000 digits": "9" * 5000,
    "empty text": '""',
    "number as text": '"5"',
    "duration": '"5d"',
    "shell": '"$(touch x); \\u001b[31m"',
    "lone surrogate": '"\\ud800"',
    "NUL": '"\\u0000"',
    "relative address": '"../x"',
    "empty list": "[]",
    "list of null": "[null]",
    "list of lists": "[[1]]",
    "empty object": "{}",
    "object with a null": '{"a": null}',
    "object with a lone surrogate": '{"\\ud800": 1}',
    "deep list": "[" * 3000 + "]" * 3000,
    "deep object": '{"a":' * 3000 + "1" + "}" * 3000,
    "syntax error": "{",
}
_MARK: Final = "~here~"


def damaged_documents(document: Any) -> Iterator[tuple[str, bytes]]:
    """Yield a description and the bytes of each damaged document.

    Each value is replaced once by each wrong value, and each key once by a repeated key.
    """
    for path in _paths(document):
        marked = json.dumps(_replace(document, path, _MARK))
        for name, text in WRONG_VALUES.items():
            yield f"{'/'.join(map(str, path)) or 'document'}: {name}", marked.replace(json.dumps(_MARK), text).encode()
        if path and isinstance(path[-1], str):
            key = json.dumps(path[-1])
            repeated = f'{json.dumps(_MARK)}, {key}: {{"a": 1}}'
            yield f"{'/'.join(map(str, path))}: repeated key", marked.replace(json.dumps(_MARK), repeated).encode()


def _paths(document: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    items: Sequence[tuple[str | int, Any]] = (
        list(document.items()) if isinstance(document, dict) else list(enumerate(document)) if isinstance(document, list) else []
    )
    for key, value in items:
        yield from _paths(value, (*path, key))


def _replace(document: Any, path: tuple[str | int, ...], value: Any) -> Any:
    if not path:
        return value
    copy: Any = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = _replace(copy[path[0]], path[1:], value)
    return copy
