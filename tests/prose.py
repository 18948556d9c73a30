"""Check the language of code, docs, messages and templates: `python -m tests.prose [paths...]`.

Prints one line per violation and the counts by rule and by directory. Exits with 1 if there are any.
The rules are in `tests/prose_rules.py`, the exceptions in `ALLOWED`.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Final

from tests.prose_rules import (
    ADVICE,
    COLUMNS,
    DOCSTRING_WORDS,
    PAGE_WORDS,
    PATTERNS,
    RULES,
    broken_name,
    conditions,
    forbidden_part,
    python_nulls,
    sentences,
    word_count,
)
from tests.prose_texts import (
    CODE,
    LINK,
    Block,
    comment_blocks,
    definitions,
    make_block,
    mask_code,
    mask_page,
    other_comments,
    page_blocks,
    python_comments,
    string_blocks,
    template_blocks,
    wide_lines,
)

# Path or glob, pattern over `rule: text`, reason. At most 40 entries, and each must be used.
ALLOWED: Final[tuple[tuple[str, str, str], ...]] = (
    ("tests/prose_rules.py", "", "the rules quote what they forbid"),
    ("tests/prose.py", "sick|facts|books|said|waterfall|night|spoilt", "this list quotes what it allows"),
    ("CHANGELOG.md", "^identifier: code ", "lists the pairs of old and new names"),
    ("tests/test_prose.py", "", "the tests of the rules quote what they forbid"),
    (
        "gc_assets/*",
        r"identifier: (string|code) (sick|sick_tables|spoilt_histories|max_sick|first_night|night_missed|table_sick|facts|books|said"
        r"|waterfall|nights_carried|nights_uncompared|recheck_deduplicated|spoilt|_recheck|_sick|_withheld)\b",
        "names of 0.3 that are still read or that digests contain, and directories in the state",
    ),
    ("gc_assets/library.py", r"\b([Nn]ights?|PublishedNight|quarantined)\b", "deprecated names of the Python API"),
    (
        "gc_assets/*",
        r"identifier: (field|property) (night|told|sick|said|words|once_begun|facts|lies_in|is_there|headline|recheck|max_sick|first_night"
        r"|recheck_deduplicated) ",
        "deprecated attributes of the Python API",
    ),
    ("tests/test_library.py", "string (first_night|max_sick) ", "deprecated attributes of the Python API"),
    ("gc_assets/definitions.py", "string night ", "deprecated name of a job"),
    ("gc_assets/report/metrics.py", r"string (lake_)?(night_\w+_seconds|sick) ", "deprecated names of metrics"),
    ("tests/config/test_renamed_keys.py", "string ", "keys and names of 0.3 that are still read"),
    ("tests/state/test_renamed_keys.py", "string ", "keys and names of 0.3 that are still read"),
    ("docs/metrics.md", r"code gc_assets_(lake_)?(night_\w+_seconds|sick) ", "deprecated names of metrics"),
)

ROOT: Final = Path(__file__).parents[1]
FILES: Final = {
    "python": ("gc_assets/**/*.py", "resources/*.py", "tests/**/*.py", "benchmarks/**/*.py", "docs/conf.py", "hatch_build.py"),
    "page": ("*.md", "docs/*.md", "docs/adr/*.md", "docs/*.ipynb", "benchmarks/*.md"),
    "template": ("gc_assets/report/templates/*",),
    "labels": ("deploy/grafana/*",),
    "comments": ("Makefile", "Dockerfile", "*.yaml", ".pre-commit-config.yaml", ".editorconfig", "pyproject.toml", "deploy/*"),
}
PRODUCT: Final = ("gc_assets/", "resources/")
# Their docstrings and comments describe the columns of tables, which may be null.
COLUMN_MODULES: Final = ("gc_assets/state/schemas.py", "gc_assets/lakes/*/tables.py")


@dataclass(frozen=True, order=True, slots=True)
class Violation:
    """One finding. `text` is the offending name, or the offending words in their context."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def files() -> dict[str, str]:
    """Return all files to check by path, each with its check."""
    found = {path: check for check, globs in FILES.items() for glob in globs for path in ROOT.glob(glob) if path.is_file()}
    # `resources` may be a link to `gc_assets/resources`.
    return {str(path.relative_to(ROOT)): check for path, check in sorted(found.items()) if not path.parent.is_symlink()}


def check_file(path: str, check: str, source: str) -> Iterator[Violation]:
    """Yield the violations of one file. `check` is a key of `FILES`."""
    checks = {"python": check_python, "page": check_page, "template": check_template, "labels": check_labels, "comments": check_comments}
    return checks[check](path, source)


# Strings that are a key or an identifier. In tests a single word is sample data.
_KEY: Final = re.compile(r"[A-Za-z_][\w.-]*")
_LONG_KEY: Final = re.compile(r"[A-Za-z_][\w.-]*[_.-][\w.-]*")


def check_python(path: str, source: str) -> Iterator[Violation]:
    nodes, comments = list(ast.walk(ast.parse(source))), list(python_comments(source))
    modules = [(1, "module", part.removesuffix(".py")) for part in path.split("/")[1:]]
    for line, role, name in dict.fromkeys([*modules, *definitions(nodes)]):
        if broken := broken_name(role, name):
            yield Violation(path, line, broken[0], f"{role} {name} ({broken[1]})")
    for block in (*string_blocks(nodes), *comment_blocks(comments)):
        if block.kind != "name":
            yield from check_block(path, block)
        elif (_KEY if path.startswith(PRODUCT) else _LONG_KEY).fullmatch(block.text) and (advice := forbidden_part(block.text)):
            yield Violation(path, block.numbers[0], "identifier", f"string {block.text} ({advice})")
    if path.startswith(PRODUCT):
        for number, line in wide_lines(source, nodes, comments):
            yield Violation(path, number, "columns", f"{len(line)}: {line.strip()[:60]}…")


# Unbreakable lines: a row of a table, a heading, an image, a link on its own line.
_UNBREAKABLE: Final = re.compile(r"\s*(\||#|!\[|\[[^\]]+\]:|<)")


def check_page(path: str, source: str) -> Iterator[Violation]:
    lines = _notebook_lines(source) if path.endswith(".ipynb") else list(enumerate(source.split("\n"), 1))
    for block in page_blocks(lines):
        if block.kind != "code":
            yield from check_block(path, block)
            continue
        yield from _forbidden_names(path, block.numbers[0], block.text)
        if comment := re.search(r"(?:^|\s)#\s+(.*)$", block.text):
            yield from check_block(path, make_block("comment", [(block.numbers[0], comment.group(1))]))
    in_code = path.endswith(".ipynb")
    for number, line in lines:
        in_code ^= line.strip().startswith("```")
        if not in_code and len(line) > COLUMNS and not _UNBREAKABLE.match(line) and " " in line.strip():
            yield Violation(path, number, "columns", f"{len(line)}: {line.strip()[:60]}…")


def _notebook_lines(source: str) -> list[tuple[int, str]]:
    """Return the text cells of a notebook with the lines of the file that hold them."""
    raw = [line.strip().rstrip(",") for line in source.split("\n")]
    texts = [line for cell in json.loads(source)["cells"] if cell["cell_type"] == "markdown" for line in [*cell["source"], ""]]
    numbers = {line: number for number, line in enumerate(raw, 1)}
    return [(numbers.get(json.dumps(text, ensure_ascii=False), 1), text.rstrip("\n")) for text in texts]


def check_template(path: str, source: str) -> Iterator[Violation]:
    for block in template_blocks(source):
        yield from check_block(path, block)
    for match in re.finditer(r"\{\{.*?\}\}|\{%.*?%\}", source):
        yield from _forbidden_names(path, source.count("\n", 0, match.start()) + 1, match.group())


def check_comments(path: str, source: str) -> Iterator[Violation]:
    for block in comment_blocks(other_comments(source)):
        yield from check_block(path, block)


# A text of a Grafana dashboard (JSON) or an alerting rule (YAML), on a line of its own.
_LABEL: Final = re.compile(r'\s*"?(?:title|description|summary|legendFormat)"?: "(.*)",?')


def check_labels(path: str, source: str) -> Iterator[Violation]:
    for number, line in enumerate(source.split("\n"), 1):
        if match := _LABEL.fullmatch(line):
            yield from check_block(path, make_block("page", [(number, match.group(1))]))
    yield from check_comments(path, source)


def _forbidden_names(path: str, line: int, code: str) -> Iterator[Violation]:
    for name in re.findall(r"[A-Za-z_]\w*", code):
        if advice := forbidden_part(name):
            yield Violation(path, line, "identifier", f"code {name} ({advice})")


def check_block(path: str, block: Block) -> Iterator[Violation]:
    """Yield the violations of a paragraph."""
    is_page = block.kind in {"page", "heading", "row"}
    text = mask_page(block.text) if is_page else mask_code(block.text)

    def make_violation(rule: str, start: int, end: int) -> Violation:
        return Violation(path, block.line_at(start), rule, _excerpt(block.text, start, end))

    for pattern in PATTERNS:
        if block.kind in pattern.kinds:
            for match in pattern.regex.finditer(text):
                yield make_violation(pattern.rule, match.start(), min(match.end(), match.start() + 40))
    yield from (make_violation("where", *span) for span in conditions(text))
    if block.kind in {"docstring", "comment"} and not any(fnmatch(path, glob) for glob in COLUMN_MODULES):
        yield from (make_violation("null", *span) for span in python_nulls(text))
    is_product = path.startswith(PRODUCT)
    limit = PAGE_WORDS if block.kind == "page" else DOCSTRING_WORDS if block.kind == "docstring" and is_product else sys.maxsize
    for start, sentence in sentences(text):
        if (count := word_count(sentence)) > limit:
            offset = start + len(sentence) - len(sentence.lstrip())
            yield Violation(path, block.line_at(offset), "long-sentence", f"{count} words: {block.text[offset : offset + 60]}…")
    for match in CODE.finditer(block.text):
        yield from _forbidden_names(path, block.line_at(match.start()), match.group())
    for offset, problem in _bad_references(path, block.text, is_page=is_page):
        yield Violation(path, block.line_at(offset), "reference", problem)


def _excerpt(text: str, start: int, end: int, margin: int = 30) -> str:
    left, right = max(0, start - margin), min(len(text), end + margin)
    return ("…" if left else "") + re.sub(r"\s+", " ", text[left:right]).strip() + ("…" if right < len(text) else "")


# --- References -----------------------------------------------------------------------------------

_UPSTREAM: Final = "ceph|dagster|datafusion|github|iceberg|icechunk|lakefs|nessie|pyiceberg|spark|upstream|versitygw|zarr"
_OUTSIDE: Final = (
    re.compile(r"\bdesign(\.md)?,? (section )?\d+(\.\d+)?|\bdesign\.md\b|\bdesign section\b", re.IGNORECASE),
    re.compile(r"\bresearch/[\w./-]+|(?<![\w/])(\.\./)*shared/[\w./-]+"),
    re.compile(r"\b[\w/-]+\.md,? section \d+"),
    re.compile(rf"\b(?!(?:{_UPSTREAM}) )\w+ issues? #?\d+\b(?! (of|in) \w)|^issues? #?\d+\b(?! (of|in) \w)", re.IGNORECASE),
)
_FILE: Final = re.compile(r"(?<![\w/.<-])((?:benchmarks|deploy|docs|gc_assets|tests)/[\w./-]+\.(?:ipynb|j2|md|py|yaml))(#[\w-]+)?")


def _bad_references(path: str, text: str, *, is_page: bool) -> Iterator[tuple[int, str]]:
    """Yield offset and description of references to what is not in the repository."""
    for regex in _OUTSIDE:
        yield from ((match.start(), _excerpt(text, *match.span(), 15)) for match in regex.finditer(text))
    links = [(match.start(), match.group(2), (ROOT / path).parent) for match in LINK.finditer(text)] if is_page else []
    links += [(match.start(), match.group(1) + (match.group(2) or ""), ROOT) for match in _FILE.finditer(LINK.sub(r"\1", text))]
    for offset, target, folder in links:
        if problem := _broken_link(target, folder, ROOT / path):
            yield min(offset, len(text) - 1), f"{target}: {problem}"


def _broken_link(target: str, folder: Path, page: Path) -> str | None:
    if re.match(r"[a-z][a-z0-9+.-]*:", target):
        return None
    name, _, anchor = target.partition("#")
    file = folder / name if name else page
    if not file.exists():
        return "no such file"
    if anchor and file.suffix == ".md" and anchor.lower() not in anchors(file):
        return "no such anchor"
    return None


@cache
def anchors(path: Path) -> frozenset[str]:
    """Return the anchors of a page: those that GitHub gives its headings, and explicit ones."""
    source, seen = path.read_text(), Counter[str]()
    found = set(re.findall(r'\b(?:id|name)="([^"]+)"', source)) | set(re.findall(r"(?m)^\(([\w-]+)\)=$", source))
    for block in page_blocks(enumerate(source.split("\n"), 1)):
        if block.kind == "heading":
            title = LINK.sub(r"\1", block.text.lstrip("# ")).replace("`", "").strip().lower()
            name = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
            found.add(f"{name}-{seen[name]}" if seen[name] else name)
            seen[name] += 1
    return frozenset(found)


# --- Command line ---------------------------------------------------------------------------------


def all_violations(paths: Iterable[str] = ()) -> Iterator[Violation]:
    """Yield the violations of all files, or of those at or below `paths`, allowed ones included."""
    prefixes = [str(Path(path).resolve().relative_to(ROOT.resolve())) for path in paths]
    for path, check in files().items():
        if not prefixes or any(prefix in {".", path} or path.startswith(f"{prefix}/") for prefix in prefixes):
            yield from sorted(set(check_file(path, check, (ROOT / path).read_text())))


def allowing_entry(violation: Violation) -> int | None:
    """Return the index of the entry of `ALLOWED` that allows a violation, or None."""
    text = f"{violation.rule}: {violation.text}"
    entries = (index for index, (glob, pattern, _) in enumerate(ALLOWED) if fnmatch(violation.path, glob) and re.search(pattern, text))
    return next(entries, None)


def main(arguments: list[str] | None = None) -> int:
    """Print the violations and their counts. Return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.prose", description="Check the language of code, docs and messages.")
    parser.add_argument("paths", nargs="*", help="files and directories; all by default")
    parser.add_argument("--rule", action="append", choices=RULES, help="only this rule; may be repeated")
    parser.add_argument("--summary", action="store_true", help="only the counts")
    options = parser.parse_args(arguments)
    rules = options.rule or RULES
    found = sorted(item for item in all_violations(options.paths) if item.rule in rules and allowing_entry(item) is None)
    lines = [] if options.summary else [str(item) for item in found] + [""] * bool(found)
    lines += [f"{count:6,} {rule}: {ADVICE[rule]}" for rule, count in Counter(item.rule for item in found).most_common()]
    folders = Counter("/".join(item.path.split("/")[:-1][:3]) or "." for item in found)
    lines += [f"{count:6,} {folder}" for folder, count in sorted(folders.items())]
    sys.stdout.write("\n".join([*lines, f"{len(found):6,} violations", ""]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
