"""Extract the texts that `tests.prose` checks from Python files, pages, templates and comments."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tests.prose_rules import COLUMNS, QUOTES

Lines = list[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph on one line. `starts` and `numbers` are the offset and number of its source lines.

    Kinds: docstring, comment, string, name (a string without a space), page, heading, row, code,
    template.
    """

    kind: str
    text: str
    starts: tuple[int, ...]
    numbers: tuple[int, ...]

    def line_at(self, offset: int) -> int:
        return self.numbers[bisect_right(self.starts, offset) - 1]


def make_block(kind: str, lines: Iterable[tuple[int, str]]) -> Block:
    """Join numbered lines to a block."""
    texts, starts, numbers, length = list[str](), list[int](), list[int](), 0
    for number, line in lines:
        texts.append(line.strip())
        starts.append(length)
        numbers.append(number)
        length += len(texts[-1]) + 1
    return Block(kind, " ".join(texts), tuple(starts), tuple(numbers))


def paragraphs(kind: str, lines: Iterable[tuple[int, str]]) -> Iterator[Block]:
    """Yield the blocks between empty lines."""
    paragraph: Lines = []
    for number, line in lines:
        if line.strip():
            paragraph.append((number, line))
        elif paragraph:
            yield make_block(kind, paragraph)
            paragraph = []
    if paragraph:
        yield make_block(kind, paragraph)


# --- Masks: all of them keep the length of a text, so that offsets stay valid ---------------------

CODE: Final = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)")
LINK: Final = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\(\s*<?([^()\s>]+)>?(?:\s+\"[^\"]*\")?\)")
_PLACEHOLDER: Final = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{[^{}\n]*\}")
_TAG: Final = re.compile(r"<[^<>]+>")


def mask_code(text: str) -> str:
    """Replace inline code and placeholders by as many `¤`: one word that no pattern matches."""
    for regex in (CODE, _PLACEHOLDER):
        text = regex.sub(lambda match: "¤" * len(match.group()), text)
    return text


def mask_page(text: str) -> str:
    """Mask code too, and replace the targets of links and HTML tags by spaces."""

    def only_text(match: re.Match[str]) -> str:
        before = match.start(1) - match.start()
        return (" " * before + match.group(1)).ljust(len(match.group()))

    return _TAG.sub(lambda match: " " * len(match.group()), LINK.sub(only_text, mask_code(text)))


# --- Python ---------------------------------------------------------------------------------------

_ENTRY: Final = re.compile(r"\s*([-*•] |\d+[.)] |[*`]{0,2}[\w.|\[\]]+[*`]{0,2}(?: \([^)]*\))?: )")
_SECTION: Final = re.compile(r"\s*(Args|Arguments|Returns|Raises|Yields|Attributes|Note|Notes|Warning|See also):\s*$", re.IGNORECASE)
_EXAMPLE: Final = re.compile(r"\s*(Examples?|Usage)(?: .*)?:\s*$|.*::\s*$|\s*>>> ")
_DIRECTIVE: Final = re.compile(r"#\s*(noqa|type:|pyright:|ruff:|pragma|!|nosec)")
_UNWRAPPED: Final = "\b"  # click prints the paragraph after this line unchanged


def docstring_blocks(lines: Lines) -> Iterator[Block]:
    """Yield the paragraphs and entries of a docstring without its examples.

    A table or a list, which click does not wrap, becomes a string.
    """
    paragraph: Lines = []
    kind, in_example, example_indent = "docstring", False, 0
    for number, line in lines:
        indent = len(line) - len(line.lstrip())
        if in_example and (not line.strip() or indent > example_indent):
            continue
        in_example = _EXAMPLE.match(line) is not None
        section, unwrapped = _SECTION.match(line) is not None, line.strip(" ") == _UNWRAPPED
        if paragraph and (in_example or section or unwrapped or not line.strip() or _ENTRY.match(line)):
            yield make_block(kind, paragraph)
            paragraph = []
        if unwrapped:
            kind = "string"
        elif not line.strip():
            kind = "docstring"
        elif in_example:
            example_indent = indent
        elif not section:
            paragraph.append((number, line))
    if paragraph:
        yield make_block(kind, paragraph)


def string_blocks(nodes: list[ast.AST]) -> Iterator[Block]:
    """Yield the docstrings, those of attributes included, and all other strings of a module."""
    docstrings, inner = set[int](), set[int]()
    for node in nodes:
        if isinstance(node, ast.Expr):
            docstrings.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            inner |= {id(value) for value in node.values}
        elif isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            inner |= {id(item) for item in ast.walk(node.format_spec)}
    for node in nodes:
        if id(node) in inner:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(value.value) if isinstance(value, ast.Constant) else "{}" for value in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        first, last = node.lineno, node.end_lineno or node.lineno
        # A string of several literals has no newline at their ends: it counts as its first line.
        step = 1 if last - first == text.count("\n") else 0
        lines = [(first + step * index, line) for index, line in enumerate(text.split("\n"))]
        if id(node) in docstrings:
            yield from docstring_blocks(lines)
        elif " " in text.strip():
            yield from paragraphs("string", lines)
        else:
            yield make_block("name", lines)


def comment_blocks(comments: Iterable[tuple[int, bool, str]]) -> Iterator[Block]:
    """Yield the comments: number of the line, whether it holds nothing else, text.

    Consecutive lines that hold only a comment are one block.
    """
    paragraph: Lines = []
    last = -1
    for number, alone, text in comments:
        if paragraph and not (alone and number == last + 1):
            yield from paragraphs("comment", paragraph)
            paragraph = []
        if not _DIRECTIVE.match(text):
            paragraph.append((number, re.sub(r"^[#:]+\s*|\s*#?\s*noqa.*$", "", text)))
            last = number if alone else -1
    yield from paragraphs("comment", paragraph)


# A string, or a comment. The prefix of a string changes nothing here: a backslash precedes a quote in raw strings too.
_LEXEME: Final = re.compile(
    r'''"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(?P<comment>\#[^\n]*)''', re.DOTALL
)


def python_comments(source: str) -> Iterator[tuple[int, bool, str]]:
    """Yield the comments of a module. Python's tokenizer takes ten times as long."""
    number, counted = 1, 0
    for match in _LEXEME.finditer(source):
        if match["comment"] is not None:
            number, counted = number + source.count("\n", counted, match.start()), match.start()
            before = source[source.rfind("\n", 0, match.start()) + 1 : match.start()]
            yield number, not before.strip(), match["comment"].rstrip()


def other_comments(source: str) -> Iterator[tuple[int, bool, str]]:
    """Yield the comments of a Makefile, Dockerfile, YAML or TOML file."""
    for number, line in enumerate(source.split("\n"), 1):
        if match := re.search(r"(?:^|\s)(#+\s.*)$", line):
            yield number, line.lstrip().startswith("#"), match.group(1)


def wide_lines(source: str, nodes: Iterable[ast.AST], comments: Iterable[tuple[int, bool, str]]) -> Iterator[tuple[int, str]]:
    """Yield the lines of docstrings and of comments on their own line that exceed the limit."""
    lines, numbers = source.split("\n"), [number for number, alone, _ in comments if alone]
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            last = node.end_lineno or node.lineno
            numbers += range(node.lineno, last + 1) if lines[last - 1].rstrip().endswith('"""') else ()
    for number in sorted(numbers):
        if len(lines[number - 1]) > COLUMNS + QUOTES and " " in lines[number - 1].strip():
            yield number, lines[number - 1]


def definitions(nodes: list[ast.AST]) -> Iterator[tuple[int, str, str]]:
    """Yield line, role and name of everything that a module defines or assigns."""
    members = set[int]()
    for node in nodes:
        if isinstance(node, (ast.ClassDef, ast.Module)):
            role = "field" if isinstance(node, ast.ClassDef) else "constant"
            for item in node.body:
                targets = item.targets if isinstance(item, ast.Assign) else [item.target] if isinstance(item, ast.AnnAssign) else []
                for name in (name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)):
                    members.add(id(name))
                    yield name.lineno, role, name.id
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            decorators = " ".join(ast.unparse(item) for item in node.decorator_list)
            yield node.lineno, "property" if "property" in decorators else "fixture" if "fixture" in decorators else "function", node.name
        elif isinstance(node, ast.ClassDef):
            yield node.lineno, "class", node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, "argument", node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in members:
            yield node.lineno, "local", node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, "field", node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, "local", node.asname


# --- Pages and templates --------------------------------------------------------------------------

_ITEM: Final = re.compile(r"^\s*([-*+]|\d+[.)])\s+")
_FENCE: Final = re.compile(r"\s*(```|~~~)")
_HEADING: Final = re.compile(r"#{1,6} ")


def page_blocks(lines: Iterable[tuple[int, str]]) -> Iterator[Block]:
    """Yield paragraphs and list items (`page`), headings, rows of tables and lines of code."""
    paragraph: Lines = []
    in_code = in_comment = False
    for number, line in lines:
        fence = _FENCE.match(line) is not None
        kind = "code" if in_code else "heading" if _HEADING.match(line) else "row" if line.lstrip().startswith("|") else "page"
        in_comment = not in_code and (in_comment or line.lstrip().startswith("<!--"))
        if paragraph and (fence or kind != "page" or not line.strip() or _ITEM.match(line)):
            yield make_block("page", paragraph)
            paragraph = []
        if fence:
            in_code = not in_code
        elif kind != "page":
            yield make_block(kind, [(number, line)])
        elif line.strip() and not in_comment:
            paragraph.append((number, _ITEM.sub("", line)))
        in_comment = in_comment and "-->" not in line
    if paragraph:
        yield make_block("page", paragraph)


_BREAKING_TAG: Final = re.compile(r"(?s)</?(?:p|h\d|li|td|th|div|section|summary|dt|dd|tr|table|header|title)\b[^<>]*>")


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def template_blocks(source: str) -> Iterator[Block]:
    """Yield the texts of an HTML template between its tags, without styles and scripts."""
    source = re.sub(r"(?s)<(style|script)\b.*?</\1>|\{#.*?#\}", _blank, source)
    source = re.sub(r"(?s)\{\{.*?\}\}|\{%.*?%\}", lambda match: re.sub(r"[^\n]", "¤", match.group()), source)
    source = _BREAKING_TAG.sub(lambda match: _blank(match)[:-1] + "\0", source)
    source = re.sub(r"(?s)<[^<>]*>", _blank, source)
    number = 1
    for text in source.split("\0"):
        if text.strip(" ¤\n"):
            yield from paragraphs("template", [(number + index, line) for index, line in enumerate(text.split("\n"))])
        number += text.count("\n")
