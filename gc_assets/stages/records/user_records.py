"""Store users' decisions in the state, in one append-only JSON file per kind and storage or lake."""

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
    """A user's decision, with the time of the clock, which may be that of a rehearsal."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=DEFER_BUILD)

    by: str
    at: datetime
    rehearsal: bool = False

    @property
    def signature(self) -> str:
        """The name and the time of the record, for messages."""
        return f"by {self.by} at {self.at:%Y-%m-%d %H:%M:%S}Z"


R = TypeVar("R", bound=UserRecord)


@dataclass(frozen=True, slots=True)
class UserRecords(Generic[R]):
    """The records of one kind of decision.

    Attributes:
        model: Model of a file, which contains its records in chronological order.
        file: Name of the file in the directory of each storage or lake.
        next_step: Advice for the user after removing a damaged file.
    """

    model: type[RootModel[tuple[R, ...]]]
    file: str
    next_step: str

    def append(self, state: State, owner: str, record: R, check: Callable[[Sequence[R]], None] = lambda _: None) -> None:
        """Add a record. `check` is called with the earlier records, and may raise an exception to
        reject it.
        """

        def with_record(content: bytes | None) -> bytes:
            previous = self._parse(state, owner, content) if content is not None else ()
            check(previous)
            return self.model((*previous, record)).model_dump_json(indent=1).encode()

        state.files.change(f"{owner}/{self.file}", with_record)

    def read(self, state: State, owner: str) -> Sequence[R]:
        """Return all records of a storage or lake.

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
    """Resolve a directory specified by a user, which may be an alias, to a storage and a prefix.

    Raises:
        UsageError: If the directory is not inside a configured storage.
    """
    resolver = KeyResolver([(storage.name, storage.location) for storage in config.storages], config.address_aliases())
    resolved = resolver.resolve_one(location.rstrip("/") + "/")
    if resolved is None or not resolved[1].strip("/"):
        raise UsageError(f"{location!r} is no directory inside a configured storage; {advice}")
    return resolved
