"""Reads JSON that others wrote, whatever it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def parsed_json(content: bytes | str, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Returns a JSON document. `pairs` makes its objects, as `object_pairs_hook` of `json.loads`.

    Raises `ValueError` where it is no JSON. Python raises another error where it is nested too
    deeply, which those who name the object would not catch.
    """
    try:
        return json.loads(content, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("it is nested more deeply than can be read") from None
