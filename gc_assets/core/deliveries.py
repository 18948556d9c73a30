"""Keep track of delivered notifications, so that each target receives an event only once.

A target is a configured receiver of notifications, such as a mail address. When an event has ended,
its record is removed, so that the records do not grow from run to run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from gc_assets.core.notifications import RENAMED_EVENTS, Event, Notification


def _current_id(name: str) -> str:
    """Replace old event names in the id of a delivered event."""
    for old, new in RENAMED_EVENTS.items():
        name = name.replace(f"/{old}/", f"/{new}/", 1)
    return name


@dataclass(frozen=True, slots=True)
class Deliveries:
    """The ids of the events received by each target."""

    by_target: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Parse the output of `to_json`. If it is damaged, the result is empty."""
        try:
            found = json.loads(text or "{}")
            return cls({str(target): frozenset(_current_id(str(name)) for name in ids) for target, ids in found.items()})
        except (ValueError, AttributeError, TypeError):
            return cls()

    @property
    def to_json(self) -> str:
        return json.dumps({target: sorted(ids) for target, ids in sorted(self.by_target.items())})

    def pending(self, target: str, events: Collection[Event], current: Iterable[Notification]) -> tuple[Notification, ...]:
        """Return the current events that a target subscribes to and has not received yet."""
        known = self.by_target.get(target, frozenset())
        return tuple(item for item in current if item.event in events and item.id not in known)

    def record(
        self, delivered: Mapping[str, Iterable[Notification]], targets: Iterable[str], current: Iterable[Notification] | None
    ) -> Deliveries:
        """Add delivered events and remove events that have ended.

        Args:
            delivered: The events that were just sent, for each target.
            targets: All configured targets. The deliveries of other targets are removed.
            current: All current events. Any other event has ended. None if the current events are
                unknown, in which case no record is removed.
        """
        lasting = None if current is None else {item.id for item in current}
        ids = {name: self.by_target.get(name, frozenset()) | {item.id for item in delivered.get(name, ())} for name in targets}
        return Deliveries({name: frozenset(found if lasting is None else found & lasting) for name, found in ids.items()})
