"""Base classes of pydantic models for stored data.

pydantic builds such a model on first use, so that most commands start faster.
"""

from __future__ import annotations

from typing import Final

import pydantic
from pydantic import BaseModel, ConfigDict

# Several threads may use a model for the first time. Since 2.14, pydantic builds deferred models
# under a lock. With earlier releases, models are built at import.
DEFER_BUILD: Final = tuple(map(int, pydantic.VERSION.split(".")[:2])) >= (2, 14)


class StrictModel(BaseModel):
    """A frozen model that rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=DEFER_BUILD)


class TolerantModel(BaseModel):
    """A frozen model that ignores unknown keys, such as those of later releases."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=DEFER_BUILD)
