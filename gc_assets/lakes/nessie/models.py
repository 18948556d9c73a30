"""Response models of the Nessie REST API v2 (`api/model/…/META-INF/openapi.yaml`).

The models only declare fields that gc-assets uses, and such a field must not be missing. Unknown
fields are ignored, so that newer servers are compatible.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidatorFunctionWrapHandler, WrapValidator, model_validator

from gc_assets.core.deferred_models import DEFER_BUILD, TolerantModel


class ServerConfig(TolerantModel):
    """Response to `GET config`.

    `no_ancestor` is the hash of the empty state. It is not a commit, but it is the parent of every
    root commit.
    """

    default_branch: str = Field(alias="defaultBranch")
    no_ancestor: str = Field(alias="noAncestorHash")
    newest_api: int = Field(alias="maxSupportedApiVersion")


class RefMetadata(TolerantModel):
    total_commits: int | None = Field(default=None, alias="numTotalCommits")


class Reference(TolerantModel):
    """A branch or tag, and the hash of the commit to which it points."""

    type: Literal["BRANCH", "TAG"]
    name: str
    hash: str
    metadata: RefMetadata | None = None


class NamedReference(TolerantModel):
    """Response to `GET trees/{name}`."""

    reference: Reference


class Key(TolerantModel):
    elements: tuple[str, ...]


# If another content type uses a declared field with another JSON type, the field gets this prefix.
_OTHER: Final = "other:"
_FIELD_TYPES: Final = {"id": str, "metadataLocation": str, "snapshotId": int}
# For other content types, the declared fields may have another meaning.
_ICEBERG_TYPES: Final = ("ICEBERG_TABLE", "ICEBERG_VIEW")


class Content(BaseModel):
    """Content of any type, such as a table or view.

    `fields` contains the fields that this model does not declare, and the metadata location.
    """

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=DEFER_BUILD)

    @model_validator(mode="before")
    @classmethod
    def _allow_fields_of_other_types(cls, values: Any) -> Any:
        """Rename declared fields that another content type uses with another JSON type."""
        if not isinstance(values, dict) or values.get("type") in _ICEBERG_TYPES:
            return values
        found = cast("dict[str, Any]", values)
        return {f"{_OTHER}{key}" if _is_other(key, value) else key: value for key, value in found.items()}

    type: str
    id: str | None = None
    metadata_location: str | None = Field(default=None, alias="metadataLocation")
    snapshot_id: int | None = Field(default=None, alias="snapshotId")

    @property
    def fields(self) -> dict[str, JsonValue]:
        extra = {key.removeprefix(_OTHER): value for key, value in (self.__pydantic_extra__ or {}).items()}
        return {"metadataLocation": self.metadata_location, **extra}


def _is_other(key: str, value: object) -> bool:
    return key in _FIELD_TYPES and value is not None and not isinstance(value, _FIELD_TYPES[key])


class Operation(TolerantModel):
    """A commit's change to one key. Only the types `PUT` and `DELETE` change what is stored."""

    type: str
    key: Key
    content: Content | None = None


# The digits of a time after its microseconds.
_NANOSECONDS: Final = re.compile(r"\.\d{6}(\d+)")


def _round_up(value: object, parse: ValidatorFunctionWrapHandler) -> datetime:
    """Parse a time, and round nanoseconds up to the next microsecond.

    The server compares nanoseconds. A commit in the same microsecond as a cut-off is therefore
    after it.
    """
    moment: datetime = parse(value)
    found = _NANOSECONDS.search(value) if isinstance(value, str) else None
    has_rest = found is not None and found[1].strip("0") != ""
    try:
        return moment + timedelta(microseconds=has_rest)
    except OverflowError:  # This is the last time that Python can represent.
        return moment


class CommitMeta(TolerantModel):
    hash: str
    message: str = ""
    committed_at: Annotated[datetime, WrapValidator(_round_up)] = Field(alias="commitTime")
    parents: tuple[str, ...] = Field(default=(), alias="parentCommitHashes")


class CommitLogEntry(TolerantModel):
    """A commit in a log. `parent` is its first parent, and `meta.parents` contains all parents."""

    meta: CommitMeta = Field(alias="commitMeta")
    parent: str = Field(alias="parentCommitHash")
    operations: tuple[Operation, ...] | None = None


class Entry(TolerantModel):
    """A key and its content in the state at a commit."""

    key: Key = Field(alias="name")
    type: str
    content: Content


class _Page(TolerantModel):
    has_more: bool = Field(default=False, alias="hasMore")
    token: str | None = None


class ReferencePage(_Page):
    items: tuple[Reference, ...] = Field(alias="references")


class LogPage(_Page):
    items: tuple[CommitLogEntry, ...] = Field(alias="logEntries")


class EntryPage(_Page):
    items: tuple[Entry, ...] = Field(alias="entries")


def error_message(document: Any) -> str | None:
    """Return the server's error code and message, or None if Nessie did not send the response."""
    if not isinstance(document, dict):
        return None
    code, message = document.get("errorCode"), document.get("message")
    return None if message is None else f"{code}: {message}" if code else str(message)
