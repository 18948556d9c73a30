"""The kinds of values that keys of `lakes.yaml` hold, and what each refuses."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from gc_assets.core.units import LONGEST, format_duration, parse_bytes, parse_cutoff, parse_duration


class Model(BaseModel):
    """A mapping of `lakes.yaml`. A key that the model does not know is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


def _duration(value: Any) -> timedelta:
    # A bare number is refused: pydantic would read 30 as seconds, where days were meant.
    return value if isinstance(value, timedelta) else parse_duration(str(value))


def above_zero(value: timedelta) -> timedelta:
    # Iceberg refuses such an age too. By it every ref but main would lapse, whatever it points at.
    if not value:
        raise ValueError("an age of 0 would keep nothing; write one above 0")
    return value


def number(value: Any) -> Any:
    # To Python `true` is 1: `max_delete_share: yes` would allow everything, `keep_last: yes` would
    # keep one commit.
    if isinstance(value, bool):
        raise ValueError("write a number; yes or no is none")  # noqa: TRY004  (pydantic reports ValueErrors only)
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
Age = Annotated[Duration, AfterValidator(above_zero)]
Bytes = Annotated[int, BeforeValidator(parse_bytes, json_schema_input_type=int | str), Field(ge=0)]
CutoffValue = Annotated[str | int | datetime | None, BeforeValidator(_cutoff_value)]
# At least one, or nothing is kept; at most what the int32 columns of the tables hold.
Count = Annotated[int, BeforeValidator(number), Field(ge=1, lt=2**31)]
Days = Annotated[int, BeforeValidator(number), Field(ge=0, le=LONGEST.days)]
Share = Annotated[float, BeforeValidator(number), Field(ge=0, le=1)]


def _pattern(value: str) -> str:
    try:
        re.compile(str(value))
    except re.error as error:
        raise ValueError(f"{value!r} is not a regular expression: {error}") from None
    return value


Pattern = Annotated[str, BeforeValidator(_pattern)]


def _not_dagsters(value: str) -> str:
    if value.startswith(("dagster/", "gc/")):
        raise ValueError("names that begin with dagster/ or gc/ are Dagster's and gc-assets' own; choose another")
    return value


# What Dagster takes for an owner, a tag and the key of an asset.
AssetOwner = Annotated[str, Field(pattern=r"^(team:.+|[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7})$")]
TagName = Annotated[str, Field(pattern=r"^([A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}$"), AfterValidator(_not_dagsters)]
TagValue = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{0,63}$")]
AssetPath = Annotated[str, Field(pattern=r"^[^/\s]+(/[^/\s]+)*$")]
TagPolicy = Literal["keep", "policy", "ignore"]
