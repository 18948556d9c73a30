"""Read stored JSON whose keys were renamed since an earlier release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, model_validator

from gc_assets.core.deferred_models import DEFER_BUILD


class RenamedKeys(BaseModel):
    """Base class for models with renamed keys.

    `RENAMED` maps each old key to the current one. Models can be read with either, but are written
    with current keys.
    """

    model_config = ConfigDict(defer_build=DEFER_BUILD)

    RENAMED: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _rename_keys(cls, data: Any) -> Any:
        return cls.with_current_keys(cast("Mapping[str, Any]", data)) if isinstance(data, Mapping) else data

    @classmethod
    def with_current_keys(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replace old keys in stored data by current ones.

        Raises:
            ValueError: If the data contains both the old and the current name of a key.
        """
        if cls.RENAMED.keys().isdisjoint(data):
            return data
        repeated = [old for old, new in cls.RENAMED.items() if old in data and new in data]
        if repeated:
            pairs = ", ".join(f"{cls.RENAMED[old]} and its old name {old}" for old in repeated)
            raise ValueError(f"the same key occurs twice: {pairs}; keep {', '.join(cls.RENAMED[old] for old in repeated)}")
        return {cls.RENAMED.get(key, key): value for key, value in data.items()}
