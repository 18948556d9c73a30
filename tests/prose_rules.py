"""The rules of `tests.prose`: forbidden names and patterns, each with what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

COLUMNS: Final = 100
# A closing quote may exceed the limit.
QUOTES: Final = 3
PAGE_WORDS: Final = 30
DOCSTRING_WORDS: Final = 35


def _words(table: dict[str, str]) -> dict[str, str]:
    """Give each of the words in a key its own entry."""
    return {word: advice for words, advice in table.items() for word in words.split()}


# Parts of a snake_case or CamelCase name, for every kind of name.
PARTS: Final = _words(
    {
        "night nights tonight": "run",
        "sick": "unreadable",
        "spoilt": "damaged",
        "husk husks": "dangling snapshot",
        "told tell tells said asked": "message, request, metadata",
        "book books": "records",
        "fact facts": "summary",
        "waterfall waterfalls": "storage breakdown",
        "recheck": "verification mark",
        "undoing": "reversibility",
        "holdings": "usage",
        "withheld": "deferred",
        "nobody somebody whoever everybody anybody": "name the actor",
        "elsewhere": "remote",
        "beside": "next to",
    }
)
# Whole names of functions, classes, modules, constants and fields. Their parts too, see `WHOLE_TERMS`.
TERMS: Final = _words(
    {
        "word words": "message, log entry",
        "box boxes": "asset step",
        "fold folds": "compaction",
        "piece pieces": "segment",
        "former": "replaced",
        "carried": "incremental",
        "touched untouched": "changed, dirty",
        "doubt": "BaselineInvalid",
        "spread begun": "run_tasks, try_in_process",
        "fitting": "choose_session",
        "judge judges judged": "revalidate",
        "chosen": "plan selection",
        "sides": "name the tables",
        "shown": "live contents",
        "evidence": "sweep checks",
        "confined": "safe paths",
        "place places": "location",
        "pace": "rate limiter",
        "reading readings": "report, value",
        "made": "build",
    }
)
# Words of `TERMS` that are standard terms in longer names: former metadata, side tables, bits per
# word, commits made, reading commands.
WHOLE_TERMS: Final = frozenset({"former", "made", "reading", "readings", "sides", "spread", "word", "words"})
# Whole names of functions, classes, modules and constants, but not of fields, arguments and locals.
DEFINITIONS: Final = _words(
    {
        "base before": "baseline",
        "passed": "map_arrow",
        "fetched": "state_scan",
        "direct": "parquet_scan",
        "standing": "status",
        "again ago aside meanwhile together below within": "a verb or a noun",
    }
)
# Whole names of anything, arguments and locals included.
ANY_NAME: Final = _words({"here there once few whole anew words": "a verb or a noun"})

IRREGULAR: Final = frozenset(
    _words(
        {
            "begun bound broken built chosen done drawn forgotten found frozen given gone grown heard held hidden kept": "",
            "known left lost made met said seen sent shown spent spoken spread swept taken thrown told written": "",
        }
    )
)
NOT_PARTICIPLES: Final = frozenset({"embed", "exceed", "feed", "hundred", "need", "proceed", "seed", "speed", "succeed"})


def split_name(name: str) -> list[str]:
    """Split a name into its lower-case parts."""
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def forbidden_part(name: str) -> str | None:
    """Return what to write instead of a forbidden part of a name, or None."""
    return next((PARTS[part] for part in split_name(name) if part in PARTS), None)


def _forbidden_term(role: str, name: str) -> str | None:
    """Return what to write instead of a name in `TERMS` or one of its parts, or None.

    Names of tests are sentences, so their parts are not compared.
    """
    if role in {"argument", "local"}:
        return None
    whole = name.strip("_").lower()
    is_sentence = role == "function" and whole.startswith("test_")
    parts = [] if is_sentence else split_name(re.sub("in_place", "", name, flags=re.IGNORECASE))
    return TERMS.get(whole) or next((TERMS[part] for part in parts if part in TERMS.keys() - WHOLE_TERMS), None)


def _is_participle(word: str) -> bool:
    return word in IRREGULAR or (word.endswith("ed") and len(word) > 3 and word not in NOT_PARTICIPLES)


def broken_name(role: str, name: str) -> tuple[str, str] | None:
    """Return the rule that a definition's name breaks and what to write instead, or None.

    Args:
        role: function, class, module, constant, field, property, fixture, argument or local.
        name: The name as written.
    """
    whole = name.strip("_").lower()
    if advice := forbidden_part(name) or ANY_NAME.get(whole):
        return "identifier", advice
    if advice := _forbidden_term(role, name):
        return "identifier", advice
    if role in {"function", "class", "module", "constant"} and whole in DEFINITIONS:
        return "identifier", DEFINITIONS[whole]
    if role in {"function", "class", "module"} and len(split_name(name)) == 1 and _is_participle(whole):
        return "participle", ADVICE["participle"]
    return None


PROSE: Final = frozenset({"docstring", "comment", "string", "page", "heading", "row", "template"})
SENTENCES: Final = frozenset({"docstring", "comment", "page"})


@dataclass(frozen=True, slots=True)
class Pattern:
    """A forbidden pattern, the kinds of text it holds for, and what to write instead."""

    rule: str
    regex: re.Pattern[str]
    advice: str
    kinds: frozenset[str]


def _pattern(rule: str, regex: str, advice: str, kinds: frozenset[str] = PROSE, flags: int = re.IGNORECASE) -> Pattern:
    """Compile a pattern. A space in it stands for any white space of the text."""
    return Pattern(rule, re.compile(regex.replace(" ", r"\s+"), flags), advice, kinds)


# A sentence begins at the start of a block or after the end of another sentence.
_START: Final = r"(?:^|(?<=[.!?:]\s)|(?<=[.!?]\)\s))\W*"
_LOCATION: Final = "above|alone|at|behind|below|beside|between|elsewhere|here|in|inside|next|nowhere|on|outside|there|under|where|within"
PATTERNS: Final = (
    _pattern("nobody", r"\b(nobody|somebody|whoever|everybody|anybody)\b", "name the actor"),
    _pattern("night", r"\b(nights?|tonight)\b", "run, this run (nightly is allowed)"),
    _pattern("sick", r"\bsick(ness|er|est)?\b", "unreadable"),
    _pattern("spoilt", r"\b(spoilt|husks?)\b", "damaged, dangling snapshot"),
    _pattern("term", r"\bbooks?\b", "records"),
    _pattern("term", r"(?<!in\s)\bfacts?\b", "summary"),
    _pattern("term", r"\bwaterfalls?\b", "storage breakdown"),
    _pattern("term", r"\bcarr(y|ies|ied) over\b", "incremental, reuse"),
    _pattern("term", r"\bfold(s|ed|ing)?\b", "compaction, compacted segment"),
    _pattern("term", r"\b(undoing|holdings|recheck(s|ed)?)\b", "reversibility, usage, verification mark"),
    _pattern("term", r"\belsewhere\b", "remotely, in another storage, on another machine"),
    _pattern("filler", r"\b(anew|as ever|for ever|(so|that) many)\b", "again; permanently; the number"),
    _pattern("is-none", r"\b(is|are|was|were|be) none\b(?! of)", "missing, does not exist", flags=0),
    _pattern("is-none", r"\b(is|are|was|were|be) not there\b", "missing, does not exist"),
    _pattern("lies", rf"\b(lies?|lay|lying) ({_LOCATION})\b", "is in, is stored in"),
    _pattern("stands", rf"\b(stands?|stood|standing) ({_LOCATION}|for)\b", "is in; means"),
    _pattern("beside", r"\bbeside\b", "next to, with"),
    _pattern("in-a-word", r"\bin (a|one) word\b", "drop it"),
    _pattern("as-it-is", r"\bas (it is|they are)(?=[^\w\s]|$| (and|or|but|in|on)\b)", "unchanged"),
    _pattern("by-now", r"\bby now\b", "now, since then"),
    _pattern("at-once", r"\bat once\b", "immediately, at the same time"),
    _pattern("tells", r"\b(tells|told|telling|says|said|saying)\b", "returns, reports, states, contains"),
    _pattern(
        "tells",
        r"(?<!can\s)(?<!cannot\s)(?<!could\s)(?<!not\s)(?<!must\s)(?<!may\s)(?<!to\s)\b(say|tell)\b(?! (apart|whether))(?!,)",
        "returns, reports, states, contains",
    ),
    _pattern("knows", r"\b(knows? nothing|must not know|knows? of|introduces? itself|let(s|ting)? go)\b", "no personification"),
    _pattern(
        "names",
        r"\b(names|naming) (the|a|an|each|no|every|its|it|them|this|these|those|another|both)\b|\bnamed by\b",
        "references, lists, reports, points to (named is for: has the name)",
    ),
    _pattern("heed", r"\bheed(s|ed|ing)?\b", "use, apply, respect"),
    _pattern("for-good", r"\b(for good|in vain)\b", "permanently; without success"),
    _pattern("else", _START + r"Else ", "Otherwise", flags=0),
    _pattern("inverted", r"\bwhose they are\b", "subject, verb, object"),
    _pattern("inverted", _START + r"So (is|are|does|do|has|have|was|were|can|must) ", "subject, verb, object", flags=0),
    _pattern("relative-subject", _START + r"(What|Whatever|Who|Whose) [^?]*?(?=[.:!]( |$)|$)", "name the subject", SENTENCES, flags=0),
)

ADVICE: Final = {
    **{pattern.rule: pattern.advice for pattern in PATTERNS},
    "term": "see section 2 of the language guide and docs/glossary.md",
    "identifier": "rename, see PARTS, TERMS, DEFINITIONS and ANY_NAME in tests/prose_rules.py",
    "participle": "a verb for functions, a noun for classes and modules",
    "where": "if, when; for a place: the directory in which",
    "null": "None, or missing",
    "long-sentence": f"at most {PAGE_WORDS} words in docs, {DOCSTRING_WORDS} in docstrings",
    "reference": "remove it, or name a file of this repository",
    "columns": f"at most {COLUMNS} columns",
}
RULES: Final = tuple(sorted(ADVICE))

_PLACES: Final = (
    "address|bucket|case|column|directory|directorie|disk|environment|file|folder|host|level|line|location|machine|mount|offset|page|path|"
    "|place|point|position|prefix|process|root|section|server|stage|step|volume"
)
_ASKS: Final = (
    "about|asks?|checks?|decides?|determines?|exactly|finds?|from|is|knows?|known|of|on|prints?|records?|returns?|see|shows?|states?|to"
)
_WHERE: Final = re.compile(r"\b[Ww]here\b")
_AFTER_A_PLACE: Final = re.compile(rf"\b({_PLACES})(s|es)?\s+$", re.IGNORECASE)
_INDIRECT: Final = re.compile(rf"\b({_ASKS})\s+$", re.IGNORECASE)
_CONDITION: Final = re.compile(r"where\s+(there|nothing|no|none|nobody|one)\b", re.IGNORECASE)
_SQL: Final = re.compile(r"\b(SQL|JSON|Parquet|Arrow|columns?|Spark|YAML|rows?|cells?)\b", re.IGNORECASE)


def conditions(text: str) -> Iterator[tuple[int, int]]:
    """Yield the span of each "where" that introduces a condition instead of a place."""
    for match in _WHERE.finditer(text):
        before = text[: match.start()]
        question = re.split(r"[.!]\s", text[match.start() :], maxsplit=1)[0].rstrip().endswith("?")
        place = _AFTER_A_PLACE.search(before) and not _CONDITION.match(text, match.start())
        if not (question or place or _INDIRECT.search(before)):
            yield match.span()


def python_nulls(text: str) -> Iterator[tuple[int, int]]:
    """Yield the span of each "null" in a sentence that is not about SQL, JSON, Parquet or Arrow."""
    for start, sentence in sentences(text):
        match = re.search(r"\bnull\b", sentence, re.IGNORECASE)
        if match and not _SQL.search(sentence):
            yield start + match.start(), start + match.end()


_ABBREVIATION: Final = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|approx|no|fig)\.$", re.IGNORECASE)


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield offset and text of each sentence."""
    start = 0
    for match in re.finditer(r"[.!?][)\"'*_”]*(?=\s+\S|\s*$)", text):
        if not _ABBREVIATION.search(text[start : match.end()]):
            yield start, text[start : match.end()]
            start = match.end()
    if text[start:].strip():
        yield start, text[start:]


def word_count(sentence: str) -> int:
    """Count the words. Masked code (`¤`) is one word, punctuation is none."""
    return sum(1 for word in sentence.split() if re.search(r"[\w¤]", word))
