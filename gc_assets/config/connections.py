"""Connections to object stores: the settings of each kind of store, by location.

Connections do not contain secrets. Credentials come from the environment, a profile, the machine or
a role.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, TypeVar

from gc_assets.config.values import Model
from gc_assets.core.deadline import READ_SECONDS
from gc_assets.core.paths import Location, Scheme, bucket_and_key
from gc_assets.core.requests import Kind


class StoreSettings(Model):
    """Settings of a kind of object store. Frozen, hashable and free of secrets.

    Attributes:
        SCHEME: The canonical scheme of its addresses.
        KEY: The key in `lakes.yaml`, globally and of a storage.
    """

    SCHEME: ClassVar[Scheme]
    KEY: ClassVar[str]

    def __hash__(self) -> int:
        return hash((type(self), self.model_dump_json()))

    @property
    @abstractmethod
    def server(self) -> str | None:
        """Return the server's address, or None for the one that the provider's addresses imply."""

    def server_of_environment(self) -> str | None:
        """Return the server that the client takes from the environment if none is configured."""
        return None

    @property
    @abstractmethod
    def is_read_only(self) -> bool:
        """Return True without credentials, so that nothing can be changed."""

    @property
    @abstractmethod
    def requests_per_second(self) -> float | None:
        """Return the budget of all processes in total, or None for no limit."""

    @abstractmethod
    def usd_per_million(self, kind: Kind) -> float | None:
        """Return the price per million requests, or None if unknown."""

    def over(self, other: Self) -> Self:
        """Return these settings, using `other` for unset keys."""
        own: Mapping[str, Any] = {name: getattr(self, name) for name in self.model_fields_set}
        return self.model_validate({**{name: getattr(other, name) for name in other.model_fields_set}, **own})


_Settings = TypeVar("_Settings", bound=StoreSettings)


@dataclass(frozen=True, slots=True)
class Connections:
    """Connections by address. Picklable and without secrets.

    Attributes:
        own: Settings of single locations, of any kind of store.
        defaults: Settings of all other addresses, one for each kind of store.
        read_seconds: Timeout for reading an object.
    """

    own: tuple[tuple[Location, StoreSettings], ...] = ()
    defaults: tuple[StoreSettings, ...] = ()
    read_seconds: float = READ_SECONDS

    @classmethod
    def of(cls, *defaults: StoreSettings, read_seconds: float = READ_SECONDS) -> Self:
        """Return connections with the same settings for all addresses of a kind of store."""
        return cls(defaults=defaults, read_seconds=read_seconds)

    def settings_for(self, address: str, kind: type[_Settings]) -> _Settings:
        """Return the settings for the innermost location containing the address."""
        path = "/".join(bucket_and_key(address, kind.SCHEME))
        matches = [
            (len(location.root), settings)
            for location, settings in self.own
            if isinstance(settings, kind) and location.scheme == kind.SCHEME and path.startswith(location.root)
        ]
        return max(matches, key=lambda item: item[0])[1] if matches else self.default(kind)

    def default(self, kind: type[_Settings]) -> _Settings:
        """Return the settings of addresses outside the locations with own settings."""
        return next((settings for settings in self.defaults if isinstance(settings, kind)), None) or kind()


DEFAULT_CONNECTIONS: Final = Connections()
