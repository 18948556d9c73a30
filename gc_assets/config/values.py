"""The types of values in `lakes.yaml`, and the base class of its models."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from gc_assets.core.deferred_models import StrictModel
from gc_assets.core.deprecation import REMOVED_IN
from gc_assets.core.renamed_keys import RenamedKeys
from gc_assets.core.units import LONGEST, format_duration, parse_bytes, parse_cutoff, parse_duration


class Model(RenamedKeys, StrictModel):
    """Base class for all mappings in `lakes.yaml`. Unknown keys are rejected.

    Two class attributes keep older files valid for a while. `RENAMED` maps deprecated keys to
    current ones, and keys in `IGNORED` are accepted without effect. Both cause a `FutureWarning`.
    """

    IGNORED: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def with_current_keys(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        current = super().with_current_keys(data)
        for old, new in cls.RENAMED.items():
            if old in data:
                warn_renamed(old, new)
        for name in sorted(cls.IGNORED & current.keys()):
            message = f"lakes.yaml: `{name}` has no effect any more; gc-assets {REMOVED_IN} rejects it. Remove it."
            warnings.warn(message, FutureWarning, stacklevel=2)
        return {name: value for name, value in current.items() if name not in cls.IGNORED} if cls.IGNORED else current


def warn_renamed(old: str, new: str) -> None:
    """Issue a `FutureWarning` about a deprecated name in `lakes.yaml`."""
    message = f"lakes.yaml: `{old}` was renamed to `{new}`; the old name is removed in gc-assets {REMOVED_IN}"
    warnings.warn(message, FutureWarning, stacklevel=2)


def _duration(value: Any) -> timedelta:
    # A bare number is rejected. pydantic would read 30 as seconds, while users often mean days.
    return value if isinstance(value, timedelta) else parse_duration(str(value))


def check_above_zero(value: timedelta) -> timedelta:
    # As in Iceberg, an age of zero is rejected: every ref except main would expire immediately.
    if not value:
        raise ValueError("an age of 0 would keep nothing; write an age above 0")
    return value


def check_number(value: Any) -> Any:
    # In Python, `true` equals 1. Therefore `max_delete_share: yes` would allow everything, and
    # `keep_last: yes` would keep only one commit.
    if isinstance(value, bool):
        raise ValueError("expected a number; yes and no are not numbers")  # noqa: TRY004  (pydantic reports ValueErrors only)
    return value


def _cutoff_value(value: Any) -> str | int | datetime | None:
    if value is not None:
        parse_cutoff(value)
    return datetime.combine(value, time.min) if isinstance(value, date) and not isinstance(value, datetime) else value


Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Duration = Annotated[
    timedelta,
    BeforeValidator(_duration, json_schema_input_type=str),
    PlainSerializer(format_duration, return_type=str),
]
Age = Annotated[Duration, AfterValidator(check_above_zero)]
Bytes = Annotated[int, BeforeValidator(parse_bytes, json_schema_input_type=int | str), Field(ge=0)]
CutoffValue = Annotated[str | int | datetime | None, BeforeValidator(_cutoff_value)]
# 0 would keep nothing, and larger numbers do not fit the tables' int32 columns.
Count = Annotated[int, BeforeValidator(check_number), Field(ge=1, lt=2**31)]
Days = Annotated[int, BeforeValidator(check_number), Field(ge=0, le=LONGEST.days)]
Share = Annotated[float, BeforeValidator(check_number), Field(ge=0, le=1)]


def _pattern(value: str) -> str:
    try:
        re.compile(str(value))
    except re.error as error:
        raise ValueError(f"{value!r} is not a regular expression: {error}") from None
    return value


Pattern = Annotated[str, BeforeValidator(_pattern)]


def _check_tag_prefix(value: str) -> str:
    if value.startswith(("dagster/", "gc/")):
        raise ValueError("names that begin with dagster/ or gc/ are reserved by Dagster and gc-assets; choose another")
    return value


# Dagster accepts owners, tags and asset keys only in these formats.
AssetOwner = Annotated[str, Field(pattern=r"^(team:.+|[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7})$")]
TagName = Annotated[str, Field(pattern=r"^([A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}$"), AfterValidator(_check_tag_prefix)]
TagValue = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{0,63}$")]
AssetPath = Annotated[str, Field(pattern=r"^[^/\s]+(/[^/\s]+)*$")]
TagPolicy = Literal["keep", "policy", "ignore"]


def _check_key_pattern(value: str) -> str:
    if not value.strip("/*") or value.startswith("/") or "://" in value:
        raise ValueError("expected a pattern of keys relative to the storage, such as raw/landing/**")
    return value


KeyPattern = Annotated[str, AfterValidator(_check_key_pattern)]
