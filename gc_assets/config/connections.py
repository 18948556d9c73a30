"""Connection settings of object stores, for each location.

Settings contain no secrets. Credentials come from the environment, a profile, a role or the machine
itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar

from pydantic import BeforeValidator, Field, model_validator

from gc_assets.config.values import Model, check_number
from gc_assets.core.deadline import READ_SECONDS
from gc_assets.core.paths import Location, Scheme, bucket_and_key
from gc_assets.core.requests import Kind

Prices = Mapping[Kind, Annotated[float, BeforeValidator(check_number), Field(ge=0, allow_inf_nan=False)]]


class StoreSettings(Model):
    """Base class for the settings of a kind of object store.

    Settings are frozen and hashable, and contain no secrets.

    Attributes:
        SCHEME: The canonical scheme of its addresses.
        KEY: The key in `lakes.yaml`, at the top level and in a storage.
        IDENTITY_KEYS: The keys that refer to credentials.
        LIST_PRICES: Prices in USD per million requests of each kind, which apply if `endpoint` is
            not set.
    """

    SCHEME: ClassVar[Scheme]
    KEY: ClassVar[str]
    IDENTITY_KEYS: ClassVar[tuple[str, ...]]
    LIST_PRICES: ClassVar[Mapping[Kind, float]]

    endpoint: str | None = None
    anonymous: bool = Field(default=False, description="Whether to read without credentials. Plans cannot be applied then.")
    max_requests_per_second: Annotated[float, BeforeValidator(check_number)] | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Maximum number of requests a second, for all processes of a stage in total. Default: no limit.",
    )
    prices: Prices | None = None

    @model_validator(mode="after")
    def _anonymous_without_identity(self) -> Self:
        named = [name for name in self.IDENTITY_KEYS if getattr(self, name) is not None]
        if self.anonymous and named:
            raise ValueError(f"anonymous access cannot be combined with {' and '.join(named)}; remove one of them")
        return self

    def __hash__(self) -> int:
        return hash((type(self), self.model_dump_json()))

    def server_of_environment(self) -> str | None:
        """Return the server that the client library finds in the environment, if any."""
        return None

    def usd_per_million(self, kind: Kind) -> float | None:
        """Return the price of a million requests, if it is known."""
        if self.prices is not None:
            return self.prices.get(kind)
        return self.LIST_PRICES[kind] if self.endpoint is None else None

    def over(self, other: Self) -> Self:
        """Merge these settings with `other`, whose values apply to keys that are not set here."""
        own: Mapping[str, Any] = {name: getattr(self, name) for name in self.model_fields_set}
        return self.model_validate({**{name: getattr(other, name) for name in other.model_fields_set}, **own})


_Settings = TypeVar("_Settings", bound=StoreSettings)


@dataclass(frozen=True, slots=True)
class Connections:
    """The settings for all object stores of a configuration.

    Connections are sent to Spark executors, so they must be picklable and must not contain secrets.

    Attributes:
        own: Locations with settings of their own.
        defaults: The settings for all other addresses, one for each kind of store.
        read_seconds: The timeout for reading an object, in seconds.
    """

    own: tuple[tuple[Location, StoreSettings], ...] = ()
    defaults: tuple[StoreSettings, ...] = ()
    read_seconds: float = READ_SECONDS

    @classmethod
    def of(cls, *defaults: StoreSettings, read_seconds: float = READ_SECONDS) -> Self:
        """Build connections with the same settings for all locations."""
        return cls(defaults=defaults, read_seconds=read_seconds)

    def settings_for(self, address: str, kind: type[_Settings]) -> _Settings:
        """Look up the settings for an address. The innermost configured location wins."""
        path = "/".join(bucket_and_key(address, kind.SCHEME))
        matches = [
            (len(location.root), settings)
            for location, settings in self.own
            if isinstance(settings, kind) and location.scheme == kind.SCHEME and path.startswith(location.root)
        ]
        return max(matches, key=lambda item: item[0])[1] if matches else self.default(kind)

    def default(self, kind: type[_Settings]) -> _Settings:
        """Return the settings that apply unless a location has its own."""
        return next((settings for settings in self.defaults if isinstance(settings, kind)), None) or kind()


DEFAULT_CONNECTIONS: Final = Connections()
