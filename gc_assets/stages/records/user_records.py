"""Decisions of users in the state: one JSON file per storage or lake, to which records are added."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

from gc_assets.config.models import Config
from gc_assets.core.deferred_models import DEFER_BUILD
from gc_assets.core.errors import StateError, UsageError
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.engine.run_context import RunContext
from gc_assets.state.journal import State


class UserRecord(BaseModel):
    """Decision of a user, with the time of its clock, which may be that of a rehearsal."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=DEFER_BUILD)

    by: str
    at: datetime
    rehearsal: bool = False

    @property
    def signature(self) -> str:
        """Name and time of the record."""
        return f"by {self.by} at {self.at:%Y-%m-%d %H:%M:%S}Z"


R = TypeVar("R", bound=UserRecord)


@dataclass(frozen=True, slots=True)
class UserRecords(Generic[R]):
    """Records of one kind.

    Attributes:
        model: All records of one file, in the order in which they were made.
        file: Name of the file in the directory of a storage or lake.
        next_step: Advice after a damaged file was removed.
    """

    model: type[RootModel[tuple[R, ...]]]
    file: str
    next_step: str

    def append(self, state: State, owner: str, record: R, check: Callable[[Sequence[R]], None] = lambda _: None) -> None:
        """Add a record. `check` gets the earlier ones, and may refuse it with an exception."""

        def with_record(content: bytes | None) -> bytes:
            previous = self._parse(state, owner, content) if content is not None else ()
            check(previous)
            return self.model((*previous, record)).model_dump_json(indent=1).encode()

        state.files.change(f"{owner}/{self.file}", with_record)

    def read(self, state: State, owner: str) -> Sequence[R]:
        """Return all records.

        Raises:
            StateError: If the file is damaged.
        """
        try:
            return self._parse(state, owner, state.files.read(f"{owner}/{self.file}"))
        except FileNotFoundError:
            return ()

    def read_valid(self, context: RunContext, owner: str) -> Sequence[R]:
        """Return the records that count at the time of a run.

        For a real run, records of rehearsals and records from the future do not count.
        """
        now, is_rehearsal = context.clock.now(), context.clock.is_rehearsal
        return [item for item in self.read(context.state, owner) if item.at <= now and (is_rehearsal or not item.rehearsal)]

    def _parse(self, state: State, owner: str, content: bytes) -> Sequence[R]:
        try:
            return self.model.model_validate_json(content).root
        except ValidationError as error:
            path = f"{state.files.root}/{owner}/{self.file}"
            raise StateError(f"{path} is damaged ({'; '.join(str(error).splitlines()[:2])}). Remove it and {self.next_step}.") from error


def resolve_directory(config: Config, location: str, advice: str) -> tuple[str, str]:
    """Return the storage and prefix of a directory that a user named, also by an alias.

    Raises:
        UsageError: If it is not inside a configured storage.
    """
    resolver = KeyResolver([(storage.name, storage.location) for storage in config.storages], config.address_aliases())
    resolved = resolver.resolve_one(location.rstrip("/") + "/")
    if resolved is None or not resolved[1].strip("/"):
        raise UsageError(f"{location!r} is no directory inside a configured storage; {advice}")
    return resolved
