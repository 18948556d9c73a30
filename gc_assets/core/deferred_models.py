"""Let pydantic build models on first use, so that most commands start faster."""

from __future__ import annotations

from typing import Final

import pydantic

# Several threads may use a model for the first time. Since 2.14, pydantic builds deferred models
# under a lock. With earlier releases, models are built at import.
DEFER_BUILD: Final = tuple(map(int, pydantic.VERSION.split(".")[:2])) >= (2, 14)
