"""Build pydantic models on first use, which makes most commands start faster."""

from __future__ import annotations

from typing import Final

import pydantic

# Threads may be the first users of a model. pydantic builds deferred models under a lock since 2.14;
# earlier releases build them at import.
DEFER_BUILD: Final = tuple(map(int, pydantic.VERSION.split(".")[:2])) >= (2, 14)
