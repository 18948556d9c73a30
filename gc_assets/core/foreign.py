"""Decide which unreferenced files in a claim belong to other applications.

A claim contains the files of a lake, but it may contain other files too, because a table can be
created over a directory that another team uses. An unreferenced file is *foreign* if one of these
rules applies:

- `other_format`: it belongs to a dataset of another format inside the claim, and its name does not
  match the lake's own naming patterns.
- `new_claim`: it is older than the claim. If its name does not match the lake's own naming
  patterns, it may have been in the location before the table was created. It must then be younger
  than a run that saw the claim.
- `hidden_path`: a component of its path starts with `_` or `.`, and no commit ever referenced a
  file under that component (as in Iceberg's `remove_orphan_files`).
- `unknown_path`: the lake's format does not produce such paths.
- `unknown_directory`: the lake's writers do not use such names, and no commit ever referenced one
  of their data files in its directory.

Files that any commit referenced can only be foreign by the first rule. The functions are vectorised
by directory.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gc_assets.core.claims import Claims

OTHER_FORMAT, NEW_CLAIM, HIDDEN_PATH, UNKNOWN_DIRECTORY = "other_format", "new_claim", "hidden_path", "unknown_directory"
UNKNOWN_PATH = "unknown_path"
# The reason by rule why a file may belong to other applications, for messages.
RULES: Final[Mapping[str, str]] = {
    OTHER_FORMAT: "it is in a dataset of another format",
    NEW_CLAIM: "it is older than the claim of the lake",
    HIDDEN_PATH: "no commit named a file under a component of its path that starts with `_` or `.`",
    UNKNOWN_PATH: "the format of the lake gives no such path",
    UNKNOWN_DIRECTORY: "no commit named a data file of the lake's writers in its directory",
}
# Hadoop's ChecksumFileSystem writes the checksums of `name` to `.name.crc` in the same directory.
# Such a file is always treated like its main file.
SIDE_FILE: Final = r"(^|/)\.([^/]+)\.crc$"
_HIDDEN: Final = "^[_.]"


# The first character of a target specifies which known files match it.
_OWN_IN = "o"  # a data file with one of the lake's own names in this directory
_UNDER = "u"  # a file under this prefix
_EXACT = "k"  # this file
# Matches no file, but marks that a candidate has an unknown path.
HAS_UNKNOWN_PATH: Final = "p"


@dataclass(frozen=True, slots=True)
class AcceptedPrefix:
    """Prefix for which a user accepted older files as garbage of the claiming lake.

    Attributes:
        prefix: Prefix ending in `/`.
        before: Only files modified before this time are accepted.
        of_table: True for the location of a dead table or repository. Files that the lake's format
            never writes and files in the location of a listed table are then not accepted.
    """

    prefix: str
    before: datetime
    of_table: bool = False


@dataclass(frozen=True, slots=True)
class ClaimAges:
    """The earliest possible creation time of each claim, or None if its age is unknown.

    In the first run of a storage, the age of all claims is unknown.
    """

    since: Mapping[str, Mapping[str, datetime | None]] = field(default_factory=dict[str, Mapping[str, datetime | None]])

    @property
    def has_new_claims(self) -> bool:
        """True if a claim is younger than the first run."""
        return any(time is not None for times in self.since.values() for time in times.values())

    def split(self, claims: Collection[tuple[str, str]]) -> tuple[ClaimAges, ClaimAges]:
        """Split off the given (prefix, table) claims. Return all other ages, and the ages of these
        claims.
        """
        parts: list[dict[str, dict[str, datetime | None]]] = [{}, {}]
        for prefix, times in self.since.items():
            for table, time in times.items():
                parts[(prefix, table) in claims].setdefault(prefix, {})[table] = time
        return ClaimAges(parts[0]), ClaimAges(parts[1])

    def merge(self, other: ClaimAges) -> ClaimAges:
        """Return the combined ages of two disjoint sets of claims."""
        return ClaimAges({prefix: {**self.since.get(prefix, {}), **other.since.get(prefix, {})} for prefix in {*self.since, *other.since}})

    def of_claim(self, prefix: str, table: str) -> tuple[bool, datetime | None]:
        """Return whether a table has a claim on the prefix, and the time of this claim."""
        for at in _upwards(prefix):
            times = self.since.get(at, {})
            # A prefix that a lake claims for itself contains the locations of all its tables.
            for name in (table, ""):
                if name in times:
                    return True, times[name]
        return False, None

    def of_directory(self, directory: str) -> datetime | None:
        """Return the time of the deepest claim on the directory, the earliest one of several."""
        for at in _upwards(directory):
            if times := self.since.get(at):
                return None if None in times.values() else min(time for time in times.values() if time is not None)
        return None

    def continue_with(self, claims: Iterable[tuple[str, str]], now: datetime | None, shields: Collection[str] = ()) -> ClaimAges:
        """Return the ages of the given (prefix, table) claims in a later run.

        Args:
            now: Time of the newest run that did not yet have the new claims, or None if there is no
                such run.
            shields: Prefixes of unreadable lakes, which are only protected. Earlier claims inside
                them keep their age.
        """
        found: dict[str, dict[str, datetime | None]] = {}
        current = list(claims)
        for prefix, table in current:
            is_known, time = self.of_claim(prefix, table)
            found.setdefault(prefix, {})[table] = time if is_known else now
        # If a table claims more than before, its earlier claims inside the new one keep their age.
        # An unreadable lake claims nothing until it is readable again.
        prefixes: dict[str, list[str]] = {}
        for prefix, table in current:
            prefixes.setdefault(table, []).append(prefix)
        for prefix, times in self.since.items():
            for table, time in times.items():
                if any(prefix.startswith(outer) for outer in (*prefixes.get(table, ()), *shields)):
                    found.setdefault(prefix, {}).setdefault(table, time)
        return ClaimAges(found)


@dataclass(frozen=True, slots=True)
class ForeignRules:
    """Rules of a storage. Instances are picklable.

    Attributes:
        own_names: Regular expressions for the file names used by the writers of each lake.
        locations: Claims on table locations chosen by the users of a lake. All other claims are
            directories of the lake's format, or prefixes in lakes.yaml.
        seen: The time of the first run that saw each claim, or None for claims of unknown age. It
            is used for files without the lake's own names.
        dropped_ages: The same as `ages` for the claims of dropped tables. They are in neither
            `ages` nor `seen`.
        dropped_seen: The same as `seen` for these claims.
        paths: By lake, a regular expression for the ends of all paths that its format produces.
        listed: Claims of the tables listed by a catalog. No file in them is accepted as garbage of
            a dead table.
    """

    claims: Claims
    own_names: Mapping[str, str]
    locations: frozenset[str] = frozenset()
    ages: ClaimAges = field(default_factory=ClaimAges)
    seen: ClaimAges = field(default_factory=ClaimAges)
    accepted: tuple[AcceptedPrefix, ...] = ()
    dropped_ages: ClaimAges = field(default_factory=ClaimAges)
    dropped_seen: ClaimAges = field(default_factory=ClaimAges)
    paths: Mapping[str, str] = field(default_factory=dict[str, str])
    listed: frozenset[str] = frozenset()

    def find_targets(self, files: pa.RecordBatch) -> pa.Array:
        """Return the targets that are needed to decide about these files (unique strings, see
        `KnownFiles`).

        Args:
            files: Claimed files with the columns key and lake.
        """
        found: set[str] = set()
        groups = _Groups.of(self, files)
        for group in groups.directories:
            if group.is_strange:
                found.update(group.targets)
            if group.hidden is not None:
                found.add(_UNDER + group.hidden)
        found.update(_EXACT + key for key in groups.keys.filter(groups.is_hidden).to_pylist())
        if pc.any(groups.has_unknown_path).as_py():
            found.add(HAS_UNKNOWN_PATH)
        return pa.array(sorted(found), pa.string())

    def find_foreign(self, files: pa.RecordBatch, known: Collection[str], roots: Collection[str] = ()) -> pa.Array:
        """Return a column with the rule by which each file is foreign, unless a commit referenced
        it.

        Args:
            files: Claimed files with the columns key, last_modified and lake.
            known: The targets of `find_targets` for which a known file was found.
            roots: Directories of datasets of other formats.
        """
        groups = _Groups.of(self, files)
        verdicts = [group.decide(known, roots) for group in groups.directories]
        may_apply = pa.array([verdict.may_apply for verdict in verdicts], pa.bool_()).take(groups.at)
        at = pc.indices_nonzero(pc.or_(may_apply, pc.or_(groups.is_hidden, groups.has_unknown_path)))
        columns = (groups.at, groups.keys, groups.is_own, groups.is_hidden, groups.has_unknown_path, files.column("last_modified"))
        rules: list[str | None] = [None] * files.num_rows
        for index, row in zip(at.to_pylist(), zip(*(column.take(at).to_pylist() for column in columns), strict=True), strict=True):
            group, key, is_own, is_hidden, has_unknown_path, modified = row
            is_unnamed = is_hidden and _EXACT + key not in known
            rules[index] = verdicts[group].find_rule(modified, is_unnamed, is_own, has_unknown_path=has_unknown_path)
        return pa.array(rules, pa.string())


class KnownFiles:
    """Finds the targets matched by known files.

    Args:
        targets: Targets of `ForeignRules.find_targets`.
        data_names: Regular expressions for the data file names used by the lakes' writers.
    """

    def __init__(self, targets: Iterable[str], data_names: Iterable[str]) -> None:
        self._wanted: dict[str, set[str]] = {kind: set() for kind in (_OWN_IN, _UNDER, _EXACT)}
        for target in targets:
            self._wanted[target[0]].add(target[1:])
        self._own = "|".join(sorted(set(data_names))) or "^$"

    def find(self, keys: pa.Array) -> set[str]:
        """Return the targets matched by these known keys."""
        wanted = self._wanted
        found: set[str] = set()
        if wanted[_EXACT]:
            hits = pc.is_in(keys, pa.array(sorted(wanted[_EXACT]), keys.type))
            found |= {_EXACT + key for key in keys.filter(hits).to_pylist()}
        directories = _directories(keys).dictionary_encode()
        every = directories.dictionary.to_pylist()
        if wanted[_UNDER]:
            found |= {_UNDER + at for name in every for at in _upwards(name) if at in wanted[_UNDER]}
        if wanted[_OWN_IN]:
            own = pc.unique(directories.indices.filter(pc.match_substring_regex(_names(keys), self._own)))
            names = directories.dictionary.take(own).to_pylist()
            found |= {_OWN_IN + name for name in names if name in wanted[_OWN_IN]}
        return found


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Rules that apply to the files of one directory.

    Attributes:
        root: The dataset of another format that contains the directory, or None.
        since: Files modified before this time are older than the claim.
        seen: The same for files without the lake's own names.
        hidden: Prefix up to a hidden component under which no commit referenced a file, or None.
        is_unknown: True if no commit referenced a file in the directory.
        accepted: Accepted prefixes that contain the directory.
    """

    root: str | None
    since: datetime | None
    seen: datetime | None
    hidden: str | None
    is_unknown: bool
    accepted: tuple[AcceptedPrefix, ...]

    @property
    def may_apply(self) -> bool:
        """True if a rule may apply to a file with a usual name."""
        return self.is_unknown or any(value is not None for value in (self.root, self.since, self.seen, self.hidden))

    def find_rule(self, modified: datetime | None, is_hidden: bool, is_own: bool, *, has_unknown_path: bool) -> str | None:
        """Return the rule by which a file is foreign, or None.

        Args:
            is_own: True if the lake's writers use such names.
            is_hidden: True if the file has a hidden name that no commit referenced.
        """
        if self.root is not None and not is_own and not self._accepts(modified, self.root, of_tables=False):
            return OTHER_FORMAT
        since = self.since if is_own else self.seen
        if since is not None and (modified is None or modified < since) and not self._accepts(modified):
            return NEW_CLAIM
        of_tables = self.hidden is not None  # The location of a dead table may be a hidden directory.
        if (self.hidden is not None or is_hidden) and not self._accepts(modified, self.hidden or "", of_tables=of_tables):
            return HIDDEN_PATH
        if has_unknown_path and not self._accepts(modified, of_tables=False):
            return UNKNOWN_PATH
        return UNKNOWN_DIRECTORY if self.is_unknown and not is_own and not self._accepts(modified) else None

    def _accepts(self, modified: datetime | None, within: str = "", *, of_tables: bool = True) -> bool:
        """Check if a record accepts a file. Its prefix must be inside `within`."""
        accepted = (item for item in self.accepted if of_tables or not item.of_table)
        return modified is not None and any(modified < item.before and item.prefix.startswith(within) for item in accepted)


@dataclass(frozen=True, slots=True)
class _Directory:
    """A directory with candidates.

    Attributes:
        top: The shortest directory of another format's dataset that is considered.
        is_strange: True if a candidate has an unusual name.
    """

    name: str
    top: str
    targets: tuple[str, ...]
    hidden: str | None
    since: datetime | None
    seen: datetime | None
    accepted: tuple[AcceptedPrefix, ...]
    is_strange: bool

    def decide(self, known: Collection[str], roots: Collection[str]) -> _Verdict:
        root = next((at for at in _upwards(self.name) if at in roots and len(at) >= len(self.top)), None) if roots else None
        hidden = self.hidden if self.hidden is not None and _UNDER + self.hidden not in known else None
        is_unknown = bool(self.targets) and not any(target in known for target in self.targets)
        return _Verdict(root, self.since, self.seen, hidden, is_unknown, self.accepted)


@dataclass(frozen=True, slots=True)
class _Groups:
    """Files grouped by directory. Side files are replaced by their main files.

    `at` is the index of the directory of each file, `is_hidden` is True for hidden file names, and
    `has_unknown_path` is True for paths that the lake's format does not produce.
    """

    directories: Sequence[_Directory]
    at: pa.Array
    keys: pa.Array
    is_own: pa.Array
    is_hidden: pa.Array
    has_unknown_path: pa.Array

    @classmethod
    def of(cls, rules: ForeignRules, files: pa.RecordBatch) -> _Groups:
        keys = pc.replace_substring_regex(files.column("key"), SIDE_FILE, r"\1\2")
        directories, names = _directories(keys).dictionary_encode(), _names(keys)
        is_own = pa.repeat(pa.scalar(False), files.num_rows)
        for lake, pattern in rules.own_names.items():
            mine = pc.fill_null(pc.equal(files.column("lake"), lake), False)
            is_own = pc.or_(is_own, pc.and_(mine, pc.match_substring_regex(names, pattern)))
        has_unknown_path = pa.repeat(pa.scalar(False), files.num_rows)
        for lake, pattern in rules.paths.items():
            mine = pc.fill_null(pc.equal(files.column("lake"), lake), False)
            has_unknown_path = pc.or_(has_unknown_path, pc.and_not(mine, pc.match_substring_regex(keys, pattern)))
        strange = set(pc.unique(directories.indices.filter(pc.invert(is_own))).to_pylist())
        found = [_describe(rules, name, is_strange=at in strange) for at, name in enumerate(directories.dictionary.to_pylist())]
        return cls(found, directories.indices, keys, is_own, pc.match_substring_regex(names, _HIDDEN), has_unknown_path)


def _describe(rules: ForeignRules, name: str, *, is_strange: bool) -> _Directory:
    prefix = rules.claims.deepest(name)
    below = name[len(prefix) :]
    targets: tuple[str, ...] = ()
    top = f"{prefix}/"  # a dataset inside the directory of another format
    if prefix in rules.locations:
        top = prefix
        # Files added to a table by a user (`add_files`) may be next to files of other applications.
        # The same applies to metadata, which is in the location from the start.
        targets = (_OWN_IN + name,)
    is_listed = any(at in rules.listed for at in _upwards(name))
    accepted = tuple(item for item in rules.accepted if name.startswith(item.prefix) and not (item.of_table and is_listed))
    since = rules.ages.of_directory(name)
    seen = rules.seen.of_directory(name) or since
    return _Directory(name, top, targets, _hidden_prefix(prefix, below), since, seen, accepted, is_strange)


def _hidden_prefix(prefix: str, below: str) -> str | None:
    """Return the prefix up to the last hidden component under a claim, or None.

    Directories of partitions (`_day=1/`) are not hidden.
    """
    components = below.split("/")[:-1]
    hidden = (index for index, name in enumerate(components) if re.match(_HIDDEN, name) and "=" not in name)
    at = max(hidden, default=None)
    return None if at is None else prefix + "/".join(components[: at + 1]) + "/"


def has_hidden_directory(path: str) -> bool:
    """Check if a relative path has a hidden directory, so that a record must contain it explicitly."""
    return _hidden_prefix("", path) is not None


def _upwards(directory: str) -> Iterator[str]:
    """Yield the directory, its ancestors, and finally the whole storage."""
    while directory:
        yield directory
        directory = directory[: directory[:-1].rfind("/") + 1]
    yield ""


def _directories(keys: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(keys, "[^/]*$", "")


def _names(keys: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(keys, "(?s)^.*/", "")
