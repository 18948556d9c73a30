"""Who was told of which events, so that everybody hears of each once.

Pure. An event that is over is forgotten, so what is remembered does not grow with the nights.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from gc_assets.core.notifications import Event, Notification


@dataclass(frozen=True, slots=True)
class Told:
    """The ids of the events that each target was told of, by the target's name."""

    by_target: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])

    @classmethod
    def parsed(cls, text: str | None) -> Self:
        """Returns what `text` wrote. Nobody was told of anything where the text is another's."""
        try:
            found = json.loads(text or "{}")
            return cls({str(target): frozenset(map(str, ids)) for target, ids in found.items()})
        except (ValueError, AttributeError, TypeError):
            return cls()

    @property
    def text(self) -> str:
        return json.dumps({target: sorted(ids) for target, ids in sorted(self.by_target.items())})

    def news(self, target: str, events: Collection[Event], happening: Iterable[Notification]) -> tuple[Notification, ...]:
        """Returns what the target, which asks for these events, was not told yet."""
        known = self.by_target.get(target, frozenset())
        return tuple(item for item in happening if item.event in events and item.id not in known)

    def after(
        self, delivered: Mapping[str, Iterable[Notification]], targets: Iterable[str], happening: Iterable[Notification] | None
    ) -> Told:
        """Returns what is remembered of `targets` once they were told what was delivered to them.

        Events that are not in `happening` are over. Null says that nobody knows which are.
        """
        lasting = None if happening is None else {item.id for item in happening}
        ids = {name: self.by_target.get(name, frozenset()) | {item.id for item in delivered.get(name, ())} for name in targets}
        return Told({name: frozenset(found if lasting is None else found & lasting) for name, found in ids.items()})
