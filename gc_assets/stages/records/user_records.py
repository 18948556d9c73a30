"""Store user decisions in the state.

There is one append-only JSON file for each kind of decision and each storage or lake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

from gc_assets.config.models import Config
from gc_assets.core.deferred_models import DEFER_BUILD
from gc_assets.core.errors import StateError, UsageError, summarize
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.engine.run_context import RunContext
from gc_assets.state.journal import State


class UserRecord(BaseModel):
    """A decision of a user. In a rehearsal, its time comes from the rehearsal's clock."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=DEFER_BUILD)

    by: str
    at: datetime
    rehearsal: bool = False

    @property
    def signature(self) -> str:
        """The name of the user and the time of the decision, for messages."""
        return f"by {self.by} at {self.at:%Y-%m-%d %H:%M:%S}Z"


R = TypeVar("R", bound=UserRecord)


@dataclass(frozen=True, slots=True)
class UserRecords(Generic[R]):
    """Reads and writes the records of one kind of decision.

    Attributes:
        model: The model of a file, which contains the records in chronological order.
        file: The file name within the directory of a storage or lake.
        next_step: The step that the user should take after removing a damaged file.
    """

    model: type[RootModel[tuple[R, ...]]]
    file: str
    next_step: str

    def append(self, state: State, owner: str, record: R, check: Callable[[Sequence[R]], None] = lambda _: None) -> None:
        """Append a record.

        Args:
            check: Called with the earlier records. It raises an exception if the new record must
                not be added.
        """

        def with_record(content: bytes | None) -> bytes:
            previous = self._parse(state, owner, content) if content is not None else ()
            check(previous)
            return self.model((*previous, record)).model_dump_json(indent=1).encode()

        state.files.change(f"{owner}/{self.file}", with_record)

    def read(self, state: State, owner: str) -> Sequence[R]:
        """Read all records of a storage or lake.

        Raises:
            StateError: If the file cannot be parsed.
        """
        try:
            return self._parse(state, owner, state.files.read(f"{owner}/{self.file}"))
        except FileNotFoundError:
            return ()

    def read_valid(self, context: RunContext, owner: str) -> Sequence[R]:
        """Read the records that are valid at the time of a run.

        Records from the future are ignored. Real runs also ignore records of rehearsals.
        """
        now, is_rehearsal = context.clock.now(), context.clock.is_rehearsal
        return [item for item in self.read(context.state, owner) if item.at <= now and (is_rehearsal or not item.rehearsal)]

    def _parse(self, state: State, owner: str, content: bytes) -> Sequence[R]:
        try:
            return self.model.model_validate_json(content).root
        except ValidationError as error:
            path = f"{state.files.root}/{owner}/{self.file}"
            raise StateError(
                f"Cannot read the decisions in {path}: the file is damaged ({summarize(error)}). Remove the file and {self.next_step}."
            ) from error


def resolve_directory(config: Config, location: str, advice: str) -> tuple[str, str]:
    """Resolve a directory given by a user to a storage and a prefix.

    Args:
        location: An address of the directory, which may use an alias of the storage.
        advice: A suggestion for the user if the address cannot be resolved.

    Raises:
        UsageError: If the directory is not inside a configured storage.
    """
    resolver = KeyResolver([(storage.name, storage.location) for storage in config.storages], config.address_aliases())
    resolved = resolver.resolve_one(location.rstrip("/") + "/")
    if resolved is None or not resolved[1].strip("/"):
        raise UsageError(f"{location!r} is not a directory inside a configured storage; {advice}")
    return resolved
