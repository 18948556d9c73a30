"""Names and comments of decisions."""

from __future__ import annotations

import pytest

from gc_assets.core.errors import UsageError
from gc_assets.core.user_names import require_name


@pytest.mark.parametrize("by, comment", [("", ""), ("  ", "why"), ("a\udcff", ""), ("ada", "a\udcff")])
def test_decision_without_a_valid_name_or_comment_is_refused(by: str, comment: str) -> None:
    with pytest.raises(UsageError, match=r"^a retry (requires --by WHO|cannot be recorded: --(by|comment) )") as refused:
        require_name(by, "a retry", comment)
    str(refused.value).encode()


def test_any_printable_name_is_valid() -> None:
    require_name("日本", "a retry", "because…")
