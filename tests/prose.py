"""Check the language of code, docs, messages and templates: `python -m tests.prose [paths...]`.

Prints one line per violation and the counts by rule and by directory. Exits with 1 if there are any.
The rules are the tables `PARTS`, `TERMS`, `ANY_NAME` (identifiers) and `PATTERNS` (prose).
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PYTHON: Final = ("gc_assets", "tests", "benchmarks")
PAGES: Final = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "docs/adr/*.md", "docs/*.ipynb")
TEMPLATES: Final = ("gc_assets/report/templates/*",)
CONFIGURATION: Final = (
    "Makefile",
    "Dockerfile",
    "*.yaml",
    "pyproject.toml",
    ".editorconfig",
    ".pre-commit-config.yaml",
    "deploy/*",
    "hatch_build.py",
    "docs/conf.py",
)

COLUMNS: Final = 100
# A closing quote may exceed the limit.
QUOTES: Final = 3
PAGE_WORDS: Final = 30
DOCSTRING_WORDS: Final = 35

# Parts of a snake_case or CamelCase name, wherever the name is used.
PARTS: Final = {
    **dict.fromkeys(("night", "nights", "tonight"), "run"),
    "sick": "unreadable",
    "spoilt": "damaged",
    **dict.fromkeys(("husk", "husks"), "dangling snapshot"),
    **dict.fromkeys(("told", "tell", "tells", "said", "asked"), "message, request, metadata"),
    **dict.fromkeys(("book", "books"), "records"),
    **dict.fromkeys(("fact", "facts"), "summary"),
    **dict.fromkeys(("waterfall", "waterfalls"), "storage breakdown"),
    "recheck": "verification mark",
    "undoing": "reversibility",
    "holdings": "usage",
    "withheld": "deferred",
    **dict.fromkeys(("nobody", "somebody", "whoever", "everybody", "anybody"), "name the actor"),
    "elsewhere": "remote",
    "beside": "next to",
}

# Whole names of functions, classes, modules, constants and fields.
TERMS: Final = {
    **dict.fromkeys(("word", "words"), "message, log entry"),
    **dict.fromkeys(("box", "boxes"), "asset step"),
    **dict.fromkeys(("fold", "folds"), "compaction"),
    **dict.fromkeys(("piece", "pieces"), "segment"),
    "former": "replaced",
    "carried": "incremental",
    **dict.fromkeys(("touched", "untouched"), "changed, dirty"),
    "doubt": "BaselineInvalid",
    **dict.fromkeys(("spread", "begun"), "run_tasks, try_in_process"),
    "fitting": "choose_session",
    "passed": "map_arrow",
    "fetched": "state_scan",
    "direct": "parquet_scan",
    **dict.fromkeys(("judge", "judges", "judged"), "revalidate"),
    "standing": "status",
    "chosen": "plan selection",
    "sides": "name the tables",
    "shown": "live contents",
    "evidence": "sweep checks",
    "confined": "safe paths",
    **dict.fromkeys(("place", "places"), "location"),
    "pace": "rate limiter",
    **dict.fromkeys(("reading", "readings"), "report, value"),
    "made": "build",
}

# Whole names of functions, classes, modules and constants, but not of fields, arguments and locals.
DEFINITIONS: Final = {
    **dict.fromkeys(("base", "before"), "baseline"),
    **dict.fromkeys(("again", "ago", "aside", "meanwhile", "together", "below", "within"), "a verb or a noun"),
}

# Whole names of anything, arguments and locals included.
ANY_NAME: Final = dict.fromkeys(("here", "there", "once", "few", "whole", "anew", "words"), "a verb or a noun")

# Names of functions and classes that are only a participle.
IRREGULAR: Final = frozenset(
    [
        "begun",
        "bound",
        "broken",
        "built",
        "chosen",
        "done",
        "drawn",
        "forgotten",
        "found",
        "frozen",
        "given",
        "gone",
        "grown",
        "heard",
        "held",
        "hidden",
        "kept",
        "known",
        "left",
        "lost",
        "made",
        "met",
        "said",
        "seen",
        "sent",
        "shown",
        "spent",
        "spoken",
        "spread",
        "swept",
        "taken",
        "thrown",
        "told",
        "written",
    ]
)
NO_PARTICIPLES: Final = frozenset(["embed", "exceed", "feed", "hundred", "need", "proceed", "seed", "speed", "succeed"])

PROSE: Final = frozenset({"docstring", "comment", "string", "page", "template"})
REFERENCE: Final = PROSE - {"string", "template"}


@dataclass(frozen=True, slots=True)
class Pattern:
    """A forbidden pattern, the kinds of text it holds for, and what to write instead."""

    rule: str
    regex: re.Pattern[str]
    advice: str
    kinds: frozenset[str] = PROSE


def _pattern(rule: str, regex: str, advice: str, kinds: frozenset[str] = PROSE, flags: int = re.IGNORECASE) -> Pattern:
    """Compile a pattern. A space in it stands for any white space of the text."""
    return Pattern(rule, re.compile(regex.replace(" ", r"\s+"), flags), advice, kinds)


# A sentence begins after a full stop or at the start of a block.
_START: Final = r"(?:^|(?<=[.!?:]\s)|(?<=[.!?]\)\s))\W*"
PATTERNS: Final = (
    _pattern("nobody", r"\b(nobody|somebody|whoever|everybody|anybody)\b", "name the actor"),
    _pattern("night", r"\b(nights?|tonight)\b", "run, this run (nightly is allowed)"),
    _pattern("sick", r"\bsick(ness|er|est)?\b", "unreadable"),
    _pattern("spoilt", r"\b(spoilt|husks?)\b", "damaged, dangling snapshot"),
    _pattern("is-none", r"\b(is|are|was|were|be) none\b(?! of)", "missing, does not exist", flags=0),
    _pattern("is-none", r"\b(is|are|was|were|be) not there\b", "missing, does not exist"),
    _pattern(
        "lies",
        r"\b(lies?|lay|lying) (in|on|at|below|above|there|under|here|within|outside|inside|between|elsewhere|beside|behind|nowhere|where|next)\b",
        "is in, is stored in",
    ),
    _pattern(
        "stands", r"\b(stands?|stood|standing) (in|on|at|for|there|here|below|above|under|beside|behind|nowhere|where|alone)\b", "is in"
    ),
    _pattern("beside", r"\bbeside\b", "next to, with"),
    _pattern("in-a-word", r"\bin (a|one) word\b", "drop it"),
    _pattern(
        "as-it-is",
        r"\bas (it is|they are)(?! (not|also|too|still|only|now|being|done|used|read|written)\b)(?=[^\w\s]|$| (and|or|but|in|on)\b)",
        "unchanged",
    ),
    _pattern("by-now", r"\bby now\b", "now, meanwhile"),
    _pattern("at-once", r"\bat once\b", "immediately, at the same time"),
    _pattern("tells", r"\b(tells?|told|telling|says?|said|saying)\b", "returns, reports, states, contains"),
    _pattern("knows", r"\b(knows? nothing|must not know|knows? of|introduces? itself|lets? go of|let go)\b", "no personification"),
    _pattern("heed", r"\bheed(s|ed|ing)?\b", "use, apply, respect"),
    _pattern("for-good", r"\b(for good|in vain)\b", "permanently; without success"),
    _pattern("else", _START + r"Else ", "Otherwise", flags=0),
    _pattern("inverted", r"\bwhose they are\b", "subject, verb, object"),
    _pattern("inverted", _START + r"So (is|are|does|do|has|have|was|were|can|must) ", "subject, verb, object", flags=0),
    _pattern(
        "relative-subject",
        _START + r"(What|Whatever|Who|Whose) [^?]*?(?=[.:!]( |$)|$)",
        "name the subject",
        REFERENCE,
        flags=0,
    ),
)

_PLACE: Final = "|".join(
    [
        "address",
        "bucket",
        "case",
        "catalog",
        "column",
        "container",
        "database",
        "directory",
        "directorie",
        "disk",
        "document",
        "environment",
        "file",
        "folder",
        "host",
        "level",
        "line",
        "location",
        "machine",
        "mount",
        "offset",
        "page",
        "path",
        "place",
        "point",
        "position",
        "prefix",
        "process",
        "section",
        "server",
        "stage",
        "step",
        "storage",
        "system",
        "table",
    ]
)
_INDIRECT: Final = r"about|and|depends on|exactly|finds?|from|is|know|knows|known|of|on|or|prints?|records?|see|shows?|to|decides?"
_WHERE: Final = re.compile(r"\bwhere\b", re.IGNORECASE)
_WHERE_AFTER_PLACE: Final = re.compile(rf"\b({_PLACE})(s|es)?\s+$", re.IGNORECASE)
_WHERE_INDIRECT: Final = re.compile(rf"\b({_INDIRECT})\s+$", re.IGNORECASE)
_WHERE_CONDITION: Final = re.compile(r"where\s+(there|nothing|no|none|nobody|one)\b", re.IGNORECASE)
_SQL: Final = re.compile(r"\b(SQL|JSON|Parquet|Arrow|columns?|Spark|YAML|rows?|cells?|values?)\b", re.IGNORECASE)
# Modules whose docstrings and comments describe the columns of tables.
_COLUMN_MODULES: Final = ("gc_assets/state/schemas.py", "gc_assets/lakes/*/tables.py")

ADVICE: Final = {
    **{pattern.rule: pattern.advice for pattern in PATTERNS},
    "identifier": "see PARTS, TERMS, DEFINITIONS and ANY_NAME",
    "participle": "a verb for functions, a noun for classes and modules",
    "where": "if, when; for a place: the directory in which",
    "null": "None, or missing",
    "long-sentence": f"at most {PAGE_WORDS} words in docs, {DOCSTRING_WORDS} in docstrings",
    "reference": "remove it or point to a file of this repository",
    "columns": f"at most {COLUMNS} columns",
}
RULES: Final = tuple(sorted(ADVICE))

# Path or glob, pattern over `rule: text`, reason. At most 40 entries, and each must be used.
ALLOWED: Final[tuple[tuple[str, str, str], ...]] = (
    ("tests/prose.py", "", "the rules quote what they forbid"),
    ("tests/test_prose.py", "", "the tests of the rules quote what they forbid"),
)


@dataclass(frozen=True, order=True, slots=True)
class Violation:
    """One finding. `text` is the offending name or the offending words in their context."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph: its kind, its text on one line, and the line number of each of its lines."""

    kind: str
    text: str
    starts: tuple[int, ...]
    numbers: tuple[int, ...]

    def line_at(self, offset: int) -> int:
        return self.numbers[bisect_right(self.starts, offset) - 1]


def make_block(kind: str, lines: Iterable[tuple[int, str]]) -> Block:
    """Join lines with their numbers to a block. Inline code keeps its length and becomes one word."""
    texts, starts, numbers, length = list[str](), list[int](), list[int](), 0
    for number, line in lines:
        text = line.strip()
        texts.append(text)
        starts.append(length)
        numbers.append(number)
        length += len(text) + 1
    return Block(kind, " ".join(texts), tuple(starts), tuple(numbers))


_CODE: Final = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_PLACEHOLDER: Final = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{[^{}\n]*\}")


def mask_code(text: str) -> str:
    """Replace inline code and placeholders by as many characters that are no word."""
    for regex in (_CODE, _PLACEHOLDER):
        text = regex.sub(lambda match: "¤" * len(match.group()), text)
    return text


# --- Texts of Python files -------------------------------------------------------------------------


def _docstring_nodes(tree: ast.AST) -> set[int]:
    """Return the ids of the constants that are docstrings, those of attributes included."""
    found = set[int]()
    for node in ast.walk(tree):
        for body in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            if isinstance(body, list):
                found |= {id(item.value) for item in body if isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)}
    return found


_ENTRY: Final = re.compile(r"\s*([-*•] |\d+[.)] |[*`]{0,2}[\w.|\[\]]+[*`]{0,2}(?: \([^)]*\))?: )")
_SECTION: Final = re.compile(r"\s*(Args|Arguments|Returns|Raises|Yields|Attributes|Note|Notes|Warning|See also):\s*$", re.IGNORECASE)
_EXAMPLE: Final = re.compile(r"\s*(Examples?|Usage)(?: .*)?:\s*$|.*::\s*$")


def docstring_blocks(kind: str, lines: list[tuple[int, str]]) -> Iterator[Block]:
    """Yield the paragraphs, list entries and section entries of a docstring, without its examples."""
    paragraph, in_example, example_indent = list[tuple[int, str]](), False, 0
    for number, line in lines:
        indent = len(line) - len(line.lstrip())
        if in_example and (not line.strip() or indent > example_indent):
            continue
        in_example = False
        example = _EXAMPLE.match(line) is not None or line.lstrip().startswith(">>>")
        if not line.strip() or line.strip() == "\b" or _SECTION.match(line) or example or _ENTRY.match(line):
            if paragraph:
                yield make_block(kind, paragraph)
            paragraph = []
        if example:
            in_example, example_indent = True, indent
        elif line.strip() and line.strip() != "\b" and not _SECTION.match(line):
            paragraph.append((number, line))
    if paragraph:
        yield make_block(kind, paragraph)


def _joined(node: ast.JoinedStr) -> str:
    return "".join(str(value.value) if isinstance(value, ast.Constant) else "{}" for value in node.values)


def string_blocks(tree: ast.AST) -> Iterator[Block]:
    """Yield the docstrings and the other strings of a module."""
    docstrings, inner = _docstring_nodes(tree), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inner |= {id(value) for value in node.values}
            inner |= {
                id(item)
                for value in node.values
                if isinstance(value, ast.FormattedValue)
                for item in ast.walk(value.format_spec or ast.Pass())
            }
    for node in ast.walk(tree):
        if id(node) in inner:
            continue
        if isinstance(node, ast.JoinedStr):
            value = _joined(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            value = node.value
        else:
            continue
        own_lines = (node.end_lineno or node.lineno) - node.lineno == value.count("\n")
        lines = [(node.lineno + (index if own_lines else 0), line) for index, line in enumerate(value.split("\n"))]
        if id(node) in docstrings:
            yield from docstring_blocks("docstring", lines)
        elif " " not in value.strip():
            yield make_block("name", lines)
        else:
            yield from paragraphs("string", lines)


def paragraphs(kind: str, lines: Iterable[tuple[int, str]]) -> Iterator[Block]:
    """Yield the blocks between empty lines."""
    paragraph = list[tuple[int, str]]()
    for number, line in lines:
        if line.strip():
            paragraph.append((number, line))
        elif paragraph:
            yield make_block(kind, paragraph)
            paragraph = []
    if paragraph:
        yield make_block(kind, paragraph)


_DIRECTIVE: Final = re.compile(r"#\s*(noqa|type:|pyright:|ruff:|pragma|!|nosec)")


def comment_blocks(source: str) -> Iterator[Block]:
    """Yield comments; consecutive lines that hold only a comment are one block."""
    paragraph, last = list[tuple[int, str]](), -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        number, own = token.start[0], not token.line[: token.start[1]].strip()
        if paragraph and not (own and number == last + 1):
            yield make_block("comment", paragraph)
            paragraph = []
        text = re.sub(r"^(#+|:)\s*|\s*#?\s*noqa.*$", "", token.string)
        if not _DIRECTIVE.match(token.string):
            paragraph.append((number, text))
            last = number if own else -1
    if paragraph:
        yield make_block("comment", paragraph)


def wide_lines(source: str) -> Iterator[tuple[int, str]]:
    """Yield lines of docstrings and of comments on their own line that exceed the limit."""
    lines, before = source.split("\n"), tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_docstring = token.type == tokenize.STRING and before in {tokenize.NEWLINE, tokenize.INDENT, tokenize.ENCODING}
        numbers = range(0)
        if is_docstring and token.string.endswith('"""'):
            numbers = range(token.start[0], token.end[0] + 1)
        elif token.type == tokenize.COMMENT and lines[token.start[0] - 1].strip().startswith("#"):
            numbers = range(token.start[0], token.start[0] + 1)
        for number in numbers:
            if len(lines[number - 1]) > COLUMNS + QUOTES and " " in lines[number - 1].strip():
                yield number, lines[number - 1]
        if token.type not in {tokenize.NL, tokenize.COMMENT}:
            before = token.type


# --- Identifiers -----------------------------------------------------------------------------------


def split_name(name: str) -> list[str]:
    """Split a name into its lower-case parts."""
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[A-Z]+", name)]


def identifiers(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, role and name of every definition: function, class, field, constant, argument, local."""
    fields = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.Module)):
            role = "field" if isinstance(node, ast.ClassDef) else "constant"
            for item in node.body:
                targets = item.targets if isinstance(item, ast.Assign) else [item.target] if isinstance(item, ast.AnnAssign) else []
                for target in (name for each in targets for name in ast.walk(each) if isinstance(name, ast.Name)):
                    fields.add(id(target))
                    yield target.lineno, role, target.id
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            decorators = " ".join(ast.unparse(item) for item in node.decorator_list)
            role = "property" if "property" in decorators else "fixture" if "fixture" in decorators else "function"
            yield node.lineno, role, node.name
        elif isinstance(node, ast.ClassDef):
            yield node.lineno, "class", node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, "argument", node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            yield node.lineno, "local", node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, "field", node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield getattr(node, "lineno", 0), "local", node.asname


def _is_participle(name: str) -> bool:
    return name in IRREGULAR or (name.endswith("ed") and len(name) > 3 and name not in NO_PARTICIPLES)


def check_name(role: str, name: str) -> tuple[str, str] | None:
    """Return the rule that a name breaks and what to write instead, or None."""
    parts, whole = split_name(name), name.strip("_").lower()
    for part in parts:
        if part in PARTS:
            return "identifier", PARTS[part]
    if whole in ANY_NAME:
        return "identifier", ANY_NAME[whole]
    if role in {"function", "class", "module", "constant", "field", "property", "fixture"} and whole in TERMS:
        return "identifier", TERMS[whole]
    if role in {"function", "class", "module", "constant"} and whole in DEFINITIONS:
        return "identifier", DEFINITIONS[whole]
    if role in {"function", "class", "module"} and len(parts) == 1 and _is_participle(whole):
        return "participle", ADVICE["participle"]
    return None


# --- Pages and templates ---------------------------------------------------------------------------

_LINK: Final = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\(\s*<?([^()\s>]+)>?(?:\s+\"[^\"]*\")?\)")
_TAG: Final = re.compile(r"<[^<>]+>")
_LIST_ITEM: Final = re.compile(r"\s*([-*+]|\d+[.)])\s+")
_FENCE: Final = re.compile(r"\s*(```|~~~)")
# What cannot be broken: a row of a table, a heading, an image, a link on its own line.
_UNBREAKABLE: Final = re.compile(r"\s*(\||#|!\[|\[[^\]]+\]:|<)")


def page_blocks(lines: list[tuple[int, str]]) -> Iterator[Block]:
    """Yield paragraphs and list items (`page`), headings (`heading`), rows (`row`), code (`code`)."""
    paragraph, in_code, in_comment = list[tuple[int, str]](), False, False

    for number, line in lines:
        fence = _FENCE.match(line) is not None
        heading = not in_code and re.match(r"#{1,6} ", line) is not None
        row = not in_code and line.lstrip().startswith("|")
        in_comment = (in_comment or line.lstrip().startswith("<!--")) and not in_code
        if paragraph and (fence or heading or row or not line.strip() or _LIST_ITEM.match(line)):
            yield make_block("page", paragraph)
            paragraph = []
        if fence:
            in_code = not in_code
        elif in_code:
            yield make_block("code", [(number, line)])
        elif heading or row:
            yield make_block("heading" if heading else "row", [(number, line)])
        elif line.strip() and not in_comment:
            paragraph.append((number, _LIST_ITEM.sub("", line)))
        if "-->" in line:
            in_comment = False
    if paragraph:
        yield make_block("page", paragraph)


def mask_page(text: str) -> str:
    """Mask code, and replace the targets of links and HTML tags by spaces."""
    text = mask_code(text)
    text = _LINK.sub(
        lambda match: match.group(1).rjust(match.start(1) - match.start() + len(match.group(1))).ljust(len(match.group())), text
    )
    return _TAG.sub(lambda match: " " * len(match.group()), text)


def template_blocks(source: str) -> Iterator[Block]:
    """Yield the texts of an HTML template between its tags, without styles and scripts."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group())  # noqa: E731
    source = re.sub(r"(?s)<(style|script)\b.*?</\1>|\{#.*?#\}", blank, source)
    source = re.sub(r"(?s)\{\{.*?\}\}|\{%.*?%\}", lambda match: re.sub(r"[^\n]", "¤", match.group()), source)
    source = re.sub(
        r"(?s)</?(p|h\d|li|td|th|div|section|summary|dt|dd|tr|table|header|title)\b[^<>]*>",
        lambda match: blank(match)[:-1] + "\x00",
        source,
    )
    source = re.sub(r"(?s)<[^<>]*>", blank, source)
    number = 1
    for text in source.split("\x00"):
        lines = [(number + index, line) for index, line in enumerate(text.split("\n"))]
        number += text.count("\n")
        if any(line.strip(" ¤") for _, line in lines):
            yield from paragraphs("template", lines)


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    text = _LINK.sub(r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@cache
def anchors(path: Path) -> frozenset[str]:
    """Return the anchors of a page: its headings and its HTML ids."""
    source = path.read_text()
    seen, found = Counter[str](), set(re.findall(r'\b(?:id|name)="([^"]+)"', source)) | set(re.findall(r"(?m)^\(([\w-]+)\)=$", source))
    for block in page_blocks(list(enumerate(source.split("\n"), 1))):
        if block.kind == "heading":
            name = slug(block.text.lstrip("# "))
            found.add(f"{name}-{seen[name]}" if seen[name] else name)
            seen[name] += 1
    return frozenset(found)


# --- Rules over blocks -----------------------------------------------------------------------------

_ABBREVIATIONS: Final = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|approx|no|fig)\.$", re.IGNORECASE)


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield offset and text of each sentence."""
    start = 0
    for match in re.finditer(r"[.!?][)\"'*_”]*(?=\s+\S|\s*$)", text):
        if not _ABBREVIATIONS.search(text[start : match.end()]):
            yield start, text[start : match.end()]
            start = match.end()
    if text[start:].strip():
        yield start, text[start:]


def word_count(sentence: str) -> int:
    """Count words. Inline code is one word, punctuation none."""
    return sum(1 for word in sentence.split() if re.search(r"[\w¤]", word))


def excerpt(text: str, start: int, end: int, margin: int = 30) -> str:
    """Return a part of a text with its context."""
    left, right = max(0, start - margin), min(len(text), end + margin)
    return ("…" if left else "") + re.sub(r"\s+", " ", text[left:right]).strip() + ("…" if right < len(text) else "")


def conditions(text: str) -> Iterator[re.Match[str]]:
    """Yield each "where" that introduces a condition instead of a place."""
    for match in _WHERE.finditer(text):
        before = text[: match.start()]
        question = text[match.start() :].split(". ")[0].rstrip().endswith("?")
        place = _WHERE_AFTER_PLACE.search(before) and not _WHERE_CONDITION.match(text, match.start())
        if match.group() != "WHERE" and not (question or place or _WHERE_INDIRECT.search(before)):
            yield match


def check_block(path: str, block: Block) -> Iterator[Violation]:
    """Yield what a paragraph violates."""
    page = block.kind in {"page", "heading", "row"}
    text = mask_page(block.text) if page else mask_code(block.text)
    kind = "page" if page else block.kind
    for pattern in PATTERNS:
        if kind in pattern.kinds and not (block.kind in {"heading", "row"} and pattern.rule == "relative-subject"):
            for match in pattern.regex.finditer(text):
                end = min(match.end(), match.start() + 40)
                yield Violation(path, block.line_at(match.start()), pattern.rule, excerpt(block.text, match.start(), end))
    for match in conditions(text):
        yield Violation(path, block.line_at(match.start()), "where", excerpt(block.text, *match.span()))
    if kind in {"docstring", "comment"} and not any(fnmatch(path, glob) for glob in _COLUMN_MODULES):
        for start, sentence in sentences(text):
            match = re.search(r"\bnull\b", sentence, re.IGNORECASE)
            if match and not _SQL.search(sentence):
                offset = start + match.start()
                yield Violation(path, block.line_at(offset), "null", excerpt(block.text, offset, offset + 4))
    limit = PAGE_WORDS if block.kind == "page" else DOCSTRING_WORDS if kind == "docstring" and path.startswith("gc_assets") else None
    for start, sentence in sentences(text) if limit else ():
        if (count := word_count(sentence)) > limit:
            offset = start + len(sentence) - len(sentence.lstrip())
            yield Violation(path, block.line_at(offset), "long-sentence", f"{count} words: {block.text[offset : offset + 60]}…")
    yield from check_code_spans(path, block)
    yield from check_references(path, block)


def check_code_spans(path: str, block: Block) -> Iterator[Violation]:
    """Yield names in inline code that have a forbidden part."""
    for match in _CODE.finditer(block.text):
        for name in re.findall(r"[A-Za-z_]\w*", match.group()):
            if any(part in PARTS for part in split_name(name)):
                yield Violation(path, block.line_at(match.start()), "identifier", f"code {name}")


_OUTSIDE: Final = (
    re.compile(r"\bdesign(\.md)?,? (section )?\d+(\.\d+)?|\bdesign\.md\b|\bdesign section\b", re.IGNORECASE),
    re.compile(r"\bresearch/[\w./-]+|(?<![\w/])(\.\./)*shared/[\w./-]+"),
    re.compile(r"\b[\w/-]+\.md,? section \d+"),
    re.compile(r"(?<![\w-] )\bissues? #?\d+\b(?! (of|in) \w)", re.IGNORECASE),
)
_DOCUMENT: Final = re.compile(r"(?<![\w/.-])((?:docs/)?[\w./-]+\.md)(#[\w-]+)?")


def check_references(path: str, block: Block) -> Iterator[Violation]:
    """Yield references to documents that are not in the repository, and links to missing anchors."""
    for regex in _OUTSIDE:
        for match in regex.finditer(block.text):
            yield Violation(path, block.line_at(match.start()), "reference", excerpt(block.text, *match.span(), 15))
    links = [(match.start(), match.group(2)) for match in _LINK.finditer(block.text)] if block.kind in {"page", "heading", "row"} else []
    if block.kind in {"docstring", "comment", "string", "template"}:
        links = [
            (match.start(), match.group(1) + (match.group(2) or "")) for match in _DOCUMENT.finditer(block.text) if "docs/" in match.group()
        ]
    for offset, target in links:
        problem = broken_link(path, target, from_root=block.kind not in {"page", "heading", "row"})
        if problem:
            yield Violation(path, block.line_at(offset), "reference", f"{target}: {problem}")


def broken_link(path: str, target: str, *, from_root: bool) -> str | None:
    """Return why a link leads nowhere, or None."""
    if re.match(r"[a-z][a-z0-9+.-]*:", target):
        return None
    name, _, anchor = target.partition("#")
    file = (ROOT if from_root else (ROOT / path).parent) / name if name else ROOT / path
    if not file.exists():
        return "no such file"
    if anchor and file.suffix == ".md" and anchor.lower() not in anchors(file):
        return "no such anchor"
    return None


# --- Files -----------------------------------------------------------------------------------------


def check_python(path: str, source: str) -> Iterator[Violation]:
    """Yield what a Python file violates."""
    tree = ast.parse(source)
    for role, name in (("module", part.removesuffix(".py")) for part in path.split("/")[1:]):
        if broken := check_name(role, name):
            yield Violation(path, 1, broken[0], f"{role} {name} ({broken[1]})")
    for line, role, name in dict.fromkeys(identifiers(tree)):
        if broken := check_name(role, name):
            yield Violation(path, line, broken[0], f"{role} {name} ({broken[1]})")
    for block in (*string_blocks(tree), *comment_blocks(source)):
        if block.kind != "name":
            yield from check_block(path, block)
        elif re.fullmatch(r"[A-Za-z_][\w./:-]*", block.text) and any(part in PARTS for part in split_name(block.text)):
            yield Violation(path, block.numbers[0], "identifier", f"string {block.text}")
    if path.startswith("gc_assets"):
        for number, line in wide_lines(source):
            yield Violation(path, number, "columns", f"{len(line)}: {line.strip()[:60]}…")


def check_page(path: str, source: str) -> Iterator[Violation]:
    """Yield what a page of the docs violates."""
    lines = list(enumerate(source.split("\n"), 1))
    if path.endswith(".ipynb"):
        raw, wanted = (
            source.split("\n"),
            [line for cell in json.loads(source)["cells"] for line in [*cell["source"], ""] if cell["cell_type"] == "markdown"],
        )
        lines = [(next((n for n, text in enumerate(raw, 1) if json.dumps(line)[:-1] in text), 1), line.rstrip("\n")) for line in wanted]
    in_code = False
    for block in page_blocks(lines):
        if block.kind != "code":
            yield from check_block(path, block)
            continue
        for name in re.findall(r"[A-Za-z_]\w*", block.text):
            if any(part in PARTS for part in split_name(name)):
                yield Violation(path, block.numbers[0], "identifier", f"code {name}")
        if comment := re.search(r"(?:^|\s)#\s+(.*)$", block.text):
            yield from check_block(path, make_block("comment", [(block.numbers[0], comment.group(1))]))
    for number, line in lines:
        in_code ^= line.strip().startswith("```")
        if not in_code and len(line) > COLUMNS and not _UNBREAKABLE.match(line) and " " in line.strip() and path.endswith(".md"):
            yield Violation(path, number, "columns", f"{len(line)}: {line.strip()[:60]}…")


def check_template(path: str, source: str) -> Iterator[Violation]:
    """Yield what an HTML template violates, the names in its expressions included."""
    for block in template_blocks(source):
        yield from check_block(path, block)
    for match in re.finditer(r"\{\{.*?\}\}|\{%.*?%\}", source):
        for name in re.findall(r"[A-Za-z_]\w*", match.group()):
            if any(part in PARTS for part in split_name(name)):
                yield Violation(path, source.count("\n", 0, match.start()) + 1, "identifier", f"code {name}")


def check_configuration(path: str, source: str) -> Iterator[Violation]:
    """Yield what the comments of a Makefile, Dockerfile, YAML or TOML file violate."""
    paragraph, last = list[tuple[int, str]](), -1
    blocks = list[Block]()
    for number, line in enumerate(source.split("\n"), 1):
        if (match := re.search(r"(?:^|\s)#+\s+(.*)$", line)) is None:
            continue
        own = line.strip().startswith("#")
        if paragraph and not (own and number == last + 1):
            blocks.append(make_block("comment", paragraph))
            paragraph = []
        paragraph.append((number, match.group(1)))
        last = number if own else -1
    for block in (*blocks, *([make_block("comment", paragraph)] if paragraph else ())):
        yield from check_block(path, block)


def files() -> dict[str, str]:
    """Return all files to check, each with the name of its check."""
    found = {path: "python" for folder in PYTHON for path in (ROOT / folder).rglob("*.py")}
    # The resources are a link in one of the two directions: each file counts once.
    found |= {path: "python" for path in (ROOT / "resources").glob("*.py") if not (ROOT / "resources").is_symlink()}
    for globs, check in ((PAGES, "page"), (TEMPLATES, "template"), (CONFIGURATION, "configuration")):
        found |= {path: check for glob in globs for path in ROOT.glob(glob) if path.is_file()}
    found |= {path: "python" for path in found if path.suffix == ".py"}
    return {str(path.relative_to(ROOT)): check for path, check in sorted(found.items()) if "__pycache__" not in path.parts}


CHECKS: Final = {"python": check_python, "page": check_page, "template": check_template, "configuration": check_configuration}


def all_violations(paths: Iterable[str] = ()) -> Iterator[Violation]:
    """Yield the violations of all files, or of those at or below `paths`, allowed ones included."""
    prefixes = [str(Path(path).resolve().relative_to(ROOT.resolve())) for path in paths]
    for path, check in files().items():
        if not prefixes or any(prefix in {".", path} or path.startswith(f"{prefix}/") for prefix in prefixes):
            yield from sorted(set(CHECKS[check](path, (ROOT / path).read_text())))


def allowing_entry(violation: Violation) -> int | None:
    """Return the index of the entry of `ALLOWED` that allows a violation, or None."""
    matches = (
        index
        for index, (glob, pattern, _) in enumerate(ALLOWED)
        if fnmatch(violation.path, glob) and re.search(pattern, f"{violation.rule}: {violation.text}")
    )
    return next(matches, None)


def main(arguments: list[str] | None = None) -> int:
    """Print the violations and their counts. Return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.prose", description="Check the language of code, docs and messages.")
    parser.add_argument("paths", nargs="*", help="files and directories; all by default")
    parser.add_argument("--rule", action="append", choices=RULES, help="only this rule; may be repeated")
    parser.add_argument("--summary", action="store_true", help="only the counts")
    options = parser.parse_args(arguments)
    found = [item for item in all_violations(options.paths) if allowing_entry(item) is None and item.rule in (options.rule or RULES)]
    if not options.summary:
        print(*sorted(found), sep="\n", end="\n\n" if found else "")
    for rule, count in Counter(item.rule for item in found).most_common():
        print(f"{count:6,} {rule}: {ADVICE[rule]}")
    for folder, count in sorted(Counter("/".join(item.path.split("/")[:-1][:3]) or "." for item in found).items()):
        print(f"{count:6,} {folder}")
    print(f"{len(found):6,} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
