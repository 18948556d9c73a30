"""What people said of a plan, and what of it counts.

Pure. Words are only added. Of each name the last word counts, so nobody takes back what another
one said.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict


class ApprovalEvent(BaseModel):
    """A person's yes or no to one plan. `overrides` are the gates that this yes passes over."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    plan_id: str
    by: str
    at: datetime
    overrides: tuple[str, ...] = ()
    said: Literal["approved", "rejected"] = "approved"
    comment: str = ""

    def __str__(self) -> str:
        passing = f", passing over {', '.join(self.overrides)}" if self.overrides else ""
        comment = f": {self.comment}" if self.comment else ""
        return f"{self.said} by {self.by} at {self.at:%Y-%m-%d %H:%M:%S}Z{passing}{comment}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """All words on a plan, oldest first, and how many names have to approve it."""

    words: tuple[ApprovalEvent, ...] = ()
    needed: int = 1

    @property
    def approvals(self) -> tuple[ApprovalEvent, ...]:
        return tuple(word for word in self._last_words() if word.said == "approved")

    @property
    def rejections(self) -> tuple[ApprovalEvent, ...]:
        """Returns the words that hold the plan back, however many others approve it."""
        return tuple(word for word in self._last_words() if word.said == "rejected")

    @property
    def is_approved(self) -> bool:
        return len(self.approvals) >= self.needed and not self.rejections

    @property
    def overrides(self) -> tuple[str, ...]:
        """Returns the gates that as many names pass over as have to approve. An override counts no
        further than the yes that gave it.
        """
        given = [name for word in self.approvals for name in set(word.overrides)]
        return tuple(sorted(name for name in set(given) if given.count(name) >= self.needed))

    @property
    def approved_by(self) -> str | None:
        return ", ".join(word.by for word in self.approvals) or None

    @property
    def missing(self) -> str | None:
        """Says in words what keeps the plan from being approved. Null where nothing does."""
        if self.rejections:
            return "; ".join(map(str, self.rejections))
        if self.is_approved:
            return None
        if self.needed == 1:
            return "not approved"
        return f"approved by {len(self.approvals)} of {self.needed} names that its storage asks for"

    def once_begun(self) -> Verdict:
        """Returns the verdict on a plan that began: a no that came after it did is too late."""
        return Verdict(tuple(word for word in self.words if word.said == "approved"), self.needed)

    def _last_words(self) -> Iterable[ApprovalEvent]:
        last: dict[str, ApprovalEvent] = {}
        for word in self.words:
            name = _same_name(word.by)
            last.pop(name, None)
            last[name] = word
        return last.values()


def _same_name(by: str) -> str:
    """Returns what two spellings of one name have in common."""
    return " ".join(unicodedata.normalize("NFKC", by).split()).casefold()
