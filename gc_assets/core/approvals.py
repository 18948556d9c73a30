"""Approvals and rejections of plans, and the verdict that results from them.

Events are only ever appended. For each person, the latest event decides, so that users cannot
revoke approvals or rejections of others.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar, Final, Literal

from pydantic import field_validator

from gc_assets.core.deferred_models import StrictModel
from gc_assets.core.deprecation import RenamedAttribute
from gc_assets.core.plan import gate_name
from gc_assets.core.renamed_keys import RenamedKeys

# Characters that look like nothing, or like a space, but belong to no category of control or format
# characters (Unicode property Default_Ignorable_Code_Point, and the blank Braille pattern).
_BLANK: Final = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")


class ApprovalEvent(RenamedKeys, StrictModel):
    """An approval or rejection of a plan by one person.

    Attributes:
        by: Name of the person.
        at: Time of the decision in UTC.
        overrides: Failed gates that the approval overrides.
    """

    RENAMED: ClassVar = {"said": "decision"}

    plan_id: str
    by: str
    at: datetime
    overrides: tuple[str, ...] = ()
    decision: Literal["approved", "rejected"] = "approved"
    comment: str = ""

    said = RenamedAttribute("decision")

    @field_validator("overrides")
    @classmethod
    def _current_gate_names(cls, overrides: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(gate_name, overrides))

    def __str__(self) -> str:
        return self.describe(f" at {self.at:%Y-%m-%d %H:%M:%S}Z")

    def describe(self, when: str = "") -> str:
        """Describe the decision in one sentence.

        The string `when` is inserted after the person's name.
        """
        overriding = f", overriding {', '.join(self.overrides)}" if self.overrides else ""
        comment = f": {self.comment}" if self.comment else ""
        return f"{self.decision} by {self.by}{when}{overriding}{comment}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """All approvals and rejections of a plan, oldest first, and the number of approvals it needs.

    Attributes:
        ignores_rejections: Whether an apply has begun. Rejections then have no effect.
    """

    events: tuple[ApprovalEvent, ...] = ()
    needed: int = 1
    ignores_rejections: bool = False

    words = RenamedAttribute("events")
    once_begun = RenamedAttribute("without_late_rejections")

    @property
    def approvals(self) -> tuple[ApprovalEvent, ...]:
        return tuple(word for word in self._latest_events() if word.decision == "approved")

    @property
    def rejections(self) -> tuple[ApprovalEvent, ...]:
        """The rejections in effect. A single one blocks the plan, regardless of approvals."""
        return tuple(word for word in self._latest_events() if word.decision == "rejected")

    @property
    def is_approved(self) -> bool:
        return len(self.approvals) >= self.needed and not self.rejections

    @property
    def overrides(self) -> tuple[str, ...]:
        """Gates that are overridden by at least as many valid approvals as the plan needs."""
        given = [name for word in self.approvals for name in set(word.overrides)]
        return tuple(sorted(name for name in set(given) if given.count(name) >= self.needed))

    @property
    def approved_by(self) -> str | None:
        return ", ".join(word.by for word in self.approvals) or None

    @property
    def missing(self) -> str | None:
        """The reason why the plan is not approved, or None if it is approved."""
        if self.rejections:
            return "; ".join(map(str, self.rejections))
        if self.is_approved:
            return None
        if self.needed == 1:
            return "not approved"
        return f"approved by {len(self.approvals)} of {self.needed} people that its storage requires"

    def without_late_rejections(self) -> Verdict:
        """Return the verdict of a plan whose apply has begun, so that rejections have no effect."""
        return replace(self, ignores_rejections=True)

    def _latest_events(self) -> Iterable[ApprovalEvent]:
        last: dict[str, ApprovalEvent] = {}
        for word in self.events:
            if self.ignores_rejections and word.decision == "rejected":
                continue
            name = normalize_name(word.by)
            last.pop(name, None)
            last[name] = word
        return last.values()


def normalize_name(name: str) -> str:
    """Return a form of a person's name that is equal for all spellings that look alike.

    Invisible characters, extra spaces and upper case are removed, and compatible characters such as
    full-width letters are replaced. Letters of other alphabets are kept.
    """
    visible = "".join(letter for letter in _BLANK.sub("", name) if letter.isspace() or not unicodedata.category(letter).startswith("C"))
    folded = unicodedata.normalize("NFKC", visible).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())
