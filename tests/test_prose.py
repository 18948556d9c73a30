"""The rules of `tests.prose` over the whole tree, and each rule over small texts."""

from __future__ import annotations

from fnmatch import fnmatch
from functools import cache

import pytest

from tests.prose import ALLOWED, RULES, Violation, all_violations, allowing_entry, anchors, check_file, files, main
from tests.prose import ROOT as REPOSITORY

MOST_ALLOWED = 40


@cache
def tree_violations() -> tuple[Violation, ...]:
    return tuple(all_violations())


@pytest.mark.parametrize("rule", RULES)
def test_repository_texts_follow_every_prose_rule(rule: str) -> None:
    assert [str(item) for item in tree_violations() if item.rule == rule and allowing_entry(item) is None] == []


def test_exceptions_are_few_and_have_reasons() -> None:
    assert len(ALLOWED) <= MOST_ALLOWED
    assert [entry for entry in ALLOWED if not entry[2].strip()] == []


def test_every_exception_is_used() -> None:
    used = {allowing_entry(item) for item in tree_violations()}
    assert [entry for index, entry in enumerate(ALLOWED) if index not in used] == []


@pytest.mark.parametrize(
    "glob, check",
    [
        ("gc_assets/core/*.py", "python"),
        ("*resources/*.py", "python"),
        ("tests/stores/*.py", "python"),
        ("benchmarks/*.py", "python"),
        ("README.md", "page"),
        ("docs/*.md", "page"),
        ("docs/*.ipynb", "page"),
        ("gc_assets/report/templates/*", "template"),
        ("benchmarks/*.md", "page"),
        ("deploy/*.yaml", "comments"),
        ("deploy/grafana/*", "labels"),
        ("Makefile", "comments"),
    ],
)
def test_every_kind_of_file_is_checked(glob: str, check: str) -> None:
    assert {found for path, found in files().items() if fnmatch(path, glob)} == {check}


def rules_of(source: str, check: str = "python", path: str = "gc_assets/example.py") -> set[str]:
    return {item.rule for item in check_file(path, check, source)}


@pytest.mark.parametrize(
    "source, rule",
    [
        ("def told(): ...", "identifier"),
        ("def open_books(): ...", "identifier"),
        ("class NightRun: ...", "identifier"),
        ("def read(night): ...", "identifier"),
        ("def read():\n    max_sick = 1", "identifier"),
        ("def read():\n    here = 1", "identifier"),
        ("class Summary:\n    words: int", "identifier"),
        ("class Base: ...", "identifier"),
        ("self.told = 1", "identifier"),
        ("FOLD = 1", "identifier"),
        ("def require_chosen_plan(): ...", "identifier"),
        ("class ForeignEvidence: ...", "identifier"),
        ("import json as facts", "identifier"),
        ("COLUMN = 'told_at'", "identifier"),
        ("KEY = 'night'", "identifier"),
        ("TEXT = 'Use `max_sick`.'", "identifier"),
        ("def _listed(): ...", "participle"),
        ("class Frozen: ...", "participle"),
        ("def _written(): ...", "participle"),
    ],
)
def test_forbidden_identifier_is_found(source: str, rule: str) -> None:
    assert rules_of(source) == {rule}


@pytest.mark.parametrize("path", ["gc_assets/night.py", "gc_assets/books/plans.py", "gc_assets/core/told.py", "gc_assets/carried.py"])
def test_forbidden_module_name_is_found(path: str) -> None:
    assert rules_of("", path=path) == {"identifier"}


@pytest.mark.parametrize(
    "source",
    [
        "def read(base, place, before, found, kept, left): ...",
        "class Summary:\n    expired: int\n    base: str",
        "class Table:\n    @property\n    def expired(self): ...",
        "def list_refs(): ...",
        "def feed(): ...",
        "class Notebook: ...",
        "SCHEDULE = 'nightly'",
        "table.told()",
        "def rewrite_in_place(): ...",
        "FORMER_ROOTS = 1",
        "def test_listing_is_chosen_by_configuration(): ...",
    ],
)
def test_allowed_identifier_passes(source: str) -> None:
    assert rules_of(source) == set()


def test_single_word_strings_in_tests_are_sample_data() -> None:
    assert rules_of("x = 'nobody', 's3://elsewhere/data'", path="tests/example.py") == set()
    assert rules_of("x = 'max_sick'", path="tests/example.py") == {"identifier"}


@pytest.mark.parametrize(
    "line", ['  "title": "Lakes of the last night",', '  summary: "{{ $value }} tables are sick."', "  # The last night."]
)
def test_labels_and_comments_of_dashboards_and_alerts_are_checked(line: str) -> None:
    assert rules_of(f"expr: night > 0\n{line}\n", "labels", "deploy/grafana/example") & {"night", "sick"}


BAD_TEXTS = [
    ("Nobody reads it.", "nobody"),
    ("Raises if somebody holds it.", "nobody"),
    ("The last night wrote it.", "night"),
    ("Files of tonight.", "night"),
    ("The table is sick.", "sick"),
    ("A husk of a snapshot.", "spoilt"),
    ("The books balance.", "term"),
    ("Rows are carried over.", "term"),
    ("The table is stored elsewhere.", "term"),
    ("At most so many rows.", "filler"),
    ("The mark begins anew.", "filler"),
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
    ("The rules say so.", "tells"),
    ("This module knows nothing of Spark.", "knows"),
    ("History lets go of a file.", "knows"),
    ("Ceph heeds no condition.", "heed"),
    ("Deleted for good.", "for-good"),
    ("Check first. Else it fails.", "else"),
    ("The first is kept. So is the second.", "inverted"),
    ("The flag selects whose they are.", "inverted"),
    ("Raises `StateError` where the run is missing.", "where"),
    ("Reads the file where there is one.", "where"),
    ("Where the run is missing, it fails.", "where"),
    ("Rules (design 6.4) apply.", "reference"),
    ("See research/lakefs.md for more.", "reference"),
    ("The fixtures of ../shared/fixtures are used.", "reference"),
    ("See dagster.md section 5.", "reference"),
    ("See docs/missing.md for more.", "reference"),
    ("See tests/missing.py for more.", "reference"),
    ("See docs/safety.md#missing for more.", "reference"),
    ("Works around issue 12.", "reference"),
]


@pytest.mark.parametrize("text, rule", BAD_TEXTS)
def test_forbidden_pattern_is_found_in_every_kind_of_text(text: str, rule: str) -> None:
    assert rules_of(f'"""{text}"""') == {rule}
    assert rules_of(f"# {text}\nx = 1") == {rule}
    assert rules_of(f"x = {text!r}") == {rule}
    assert rules_of(f"* {text}", "page", "docs/example.md") == {rule}
    assert rules_of(f"<p>{text}</p>", "template", "gc_assets/report/templates/example.html.j2") == {rule}
    assert rules_of(f"key: 1 # {text}", "comments", "deploy/example.yaml") == {rule}


@pytest.mark.parametrize(
    "text",
    [
        "The nightly schedule runs at midnight.",
        "Returns None if the key is missing.",
        "Returns the directory where the parts are stored.",
        "Shows where the file came from.",
        "Where is the file stored?",
        "Prints none of the rows.",
        "The server cannot tell whether the file exists.",
        "See docs/safety.md for more.",
        "Works around issue 1534 of icechunk and Dagster issue 28456.",
        "Read as it was written, in place.",
        "Use the word `nobody known` as sample text.",
        "In fact, something else follows.",
        "Stands out. It underlies the format.",
        "What does it hold?",
    ],
)
def test_allowed_text_passes(text: str) -> None:
    assert rules_of(f'"""{text}"""') <= {"identifier"}
    assert rules_of(f"# {text}\nx = 1") <= {"identifier"}
    assert rules_of(f"{text}", "page", "docs/example.md") <= {"identifier"}


@pytest.mark.parametrize("text", ["What the tables hold.", "Reads it. Who wrote it is on record.", "Whatever is in doubt is recomputed."])
def test_relative_clause_as_subject_is_found_in_sentences(text: str) -> None:
    assert rules_of(f'"""{text}"""') == {"relative-subject"}
    assert rules_of(f"# {text}\nx = 1") == {"relative-subject"}
    assert rules_of(text, "page", "docs/example.md") == {"relative-subject"}
    assert rules_of("# What stops a run", "page", "docs/example.md") == set()


def test_null_is_allowed_only_for_sql_and_json() -> None:
    assert rules_of('"""Returns null if the key is missing."""') == {"null"}
    assert rules_of('"""The column is null if the key is missing."""') == set()
    assert rules_of('"""The key; null if it is missing."""', path="gc_assets/state/schemas.py") == set()
    assert rules_of("null if the key is missing", "page", "docs/example.md") == set()


def words(count: int, *, per_line: int = 12) -> str:
    return "\n".join(" ".join(["word"] * min(per_line, count - start)) for start in range(0, count, per_line)) + "."


def test_long_sentence_is_found() -> None:
    assert rules_of(words(30), "page", "docs/example.md") == set()
    assert rules_of(words(31), "page", "docs/example.md") == {"long-sentence"}
    assert rules_of(f'"""{words(35)}"""') == set()
    assert rules_of(f'"""{words(36)}"""') == {"long-sentence"}
    assert rules_of(f'"""{words(36)}"""', path="tests/example.py") == set()


@pytest.mark.parametrize(
    "page",
    [
        f"{words(20)}\n{words(20)}",
        f"- {words(20)[:-1]}\n- {words(20)[:-1]}",
        f"{words(20)[:-1]}\n\n{words(20)[:-1]}",
        f"```console\n{words(40, per_line=12)}\n```",
        f"| a |\n|---|\n| {words(40, per_line=40)} |",
        f"{words(29)[:-1]} `{words(10, per_line=10)}`.",
        f"# {words(40, per_line=40)}",
    ],
    ids=["sentences", "items", "paragraphs", "code", "row", "inline-code", "heading"],
)
def test_page_is_split_into_sentences(page: str) -> None:
    assert rules_of(page, "page", "docs/example.md") == set()


def test_link_target_does_not_count_as_words() -> None:
    assert rules_of(f"{words(28)[:-1]} [two words](safety.md).", "page", "docs/example.md") == set()


@pytest.mark.parametrize(
    "body", ["\n\nArgs:\n    one: {}\n    two: {}\n", "\n\n- {}\n- {}\n", "\n\n{}\n\n{}\n", "\n\nExample:\n    {}\n    {}\n"]
)
def test_docstring_is_split_into_entries(body: str) -> None:
    text = words(20, per_line=20)[:-1]
    assert "long-sentence" not in rules_of(f'"""Read it.{body.format(text, text)}"""')


def test_line_longer_than_the_limit_is_found() -> None:
    wide = "word " * 21
    assert rules_of(f'"""\n{wide}\n"""') == {"columns"}
    assert rules_of(f"# {wide}\nx = 1") == {"columns"}
    assert rules_of(f"# {wide}\nx = 1", path="tests/example.py") == set()
    assert rules_of(f"x = 1  # {wide}") == set()
    assert rules_of(wide, "page", "docs/example.md") == {"columns"}
    assert rules_of(f"| {wide} |", "page", "docs/example.md") == set()
    assert rules_of(f"```\n{wide}\n```", "page", "docs/example.md") == set()


def test_broken_link_in_a_page_is_found() -> None:
    assert rules_of("[a](safety.md), [b](../README.md), [c](https://example.com)", "page", "docs/example.md") == set()
    assert rules_of("[a](missing.md)", "page", "docs/example.md") == {"reference"}
    assert rules_of("[a](safety.md#missing)", "page", "docs/example.md") == {"reference"}
    anchor = sorted(anchors(REPOSITORY / "docs" / "safety.md"))[0]
    assert rules_of(f"[a](safety.md#{anchor})", "page", "docs/example.md") == set()


def test_forbidden_identifier_in_page_or_template_code_is_found() -> None:
    assert rules_of("```python\nopen(max_sick=1)  # by nobody\n```", "page", "docs/example.md") == {"identifier", "nobody"}
    assert rules_of("<p>{{ report.sick }}</p>", "template", "gc_assets/report/templates/a.j2") == {"identifier"}
    assert rules_of("<style>.night { color: red }</style>", "template", "gc_assets/report/templates/a.j2") == set()


def test_finding_contains_the_line_number() -> None:
    source = '"""Read it.\n\nReturns the rows, or nothing if\nnobody wrote them.\n"""\n\n# One.\n# Nobody.\nx = 1\n'
    assert [(item.line, item.rule) for item in check_file("gc_assets/example.py", "python", source)] == [(4, "nobody"), (8, "nobody")]


def test_f_string_literal_is_found_once() -> None:
    assert [item.text for item in check_file("gc_assets/example.py", "python", 'x = f"{y}: nobody reads {z:>10} it"')] == [
        "{}: nobody reads {} it"
    ]


def test_command_line_prints_violations_and_counts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = Violation("docs/a.md", 3, "night", "a night"), Violation("docs/a.md", 1, "sick", "sick")
    monkeypatch.setattr("tests.prose.all_violations", lambda _: found)
    assert main([]) == 1
    assert capsys.readouterr().out.splitlines()[:2] == ["docs/a.md:1: sick: sick", "docs/a.md:3: night: a night"]
    assert main(["--rule", "sick"]) == 1
    assert "night" not in capsys.readouterr().out
    assert main(["--summary"]) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == ["     2 docs", "     2 violations"]
    assert main(["--rule", "null"]) == 0


def test_path_arguments_restrict_the_check() -> None:
    assert {item.path for item in all_violations([str(REPOSITORY / "tests" / "prose_rules.py")])} == {"tests/prose_rules.py"}
