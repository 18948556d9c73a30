"""Decide which unreferenced files under a claim may belong to other applications.

Not every file under a claim is the lake's. For example, a table can be created in a directory that
another team already uses. An unreferenced file is *foreign* if one of these rules applies:

- `other_format`: The file belongs to a dataset of another format inside the claim, and its name
  does not match the patterns of the lake's writers.
- `new_claim`: The file is older than the claim, so it may have been in the location before the
  table was created. If its name does not match the patterns of the lake's writers, the file is
  compared with the first run that found the claim instead. Files to which this rule applied in an
  accepted run are recorded, because they get new modification times when a bucket is copied.
- `hidden_path`: A component of the path starts with `_` or `.`, and no commit ever referenced a
  file under it. Iceberg's `remove_orphan_files` has the same rule.
- `unknown_path`: The lake's format never produces such a path.
- `unknown_directory`: The lake's writers do not use such names, and no commit ever referenced a
  data file of these writers in the same directory.

If a commit ever referenced the file, only the first rule can apply. Rules are evaluated once for
each directory.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gc_assets.core.claims import Claims, directories_of, upwards
from gc_assets.core.hashing import xxhash64

OTHER_FORMAT, NEW_CLAIM, HIDDEN_PATH, UNKNOWN_DIRECTORY = "other_format", "new_claim", "hidden_path", "unknown_directory"
UNKNOWN_PATH = "unknown_path"
# Explains for each rule why a file may belong to another application. Used in messages.
RULES: Final[Mapping[str, str]] = {
    OTHER_FORMAT: "it is in a dataset of another format",
    NEW_CLAIM: "it is older than the claim of the lake",
    HIDDEN_PATH: "no commit referenced a file under a component of its path that starts with `_` or `.`",
    UNKNOWN_PATH: "the format of the lake never produces such a path",
    UNKNOWN_DIRECTORY: "no commit referenced a data file of the lake's writers in its directory",
}
# Hadoop's ChecksumFileSystem stores the checksums of `name` as `.name.crc` in the same directory.
# This side file is always treated like its main file.
SIDE_FILE: Final = r"(^|/)\.([^/]+)\.crc$"
_HIDDEN: Final = "^[_.]"


# A target is a question about known files. Its first character determines which files match.
_OWN_IN = "o"  # a data file of the lake's writers, judging by its name, in this directory
_UNDER = "u"  # a file under this prefix
_EXACT = "k"  # this file
# A target without matching files. It only indicates that a candidate has an unknown path.
HAS_UNKNOWN_PATH: Final = "p"


@dataclass(frozen=True, slots=True)
class AcceptedPrefix:
    """A prefix whose older files were accepted by a user as garbage of the claiming lake.

    Attributes:
        prefix: The prefix with a trailing `/`.
        before: Only files modified before this time are accepted.
        of_table: True if the prefix is the location of a dead table or repository. In this case,
            files that the lake's format never writes are not accepted, nor are files in the
            location of a listed table.
    """

    prefix: str
    before: datetime
    of_table: bool = False


@dataclass(frozen=True, slots=True)
class ClaimAges:
    """The age of each claim, as the earliest time at which it may have been created.

    The time is None if the age is unknown, as for all claims in the first run of a storage.

    Attributes:
        since: Earliest creation time for each pair of prefix and table.
    """

    since: Mapping[str, Mapping[str, datetime | None]] = field(default_factory=dict[str, Mapping[str, datetime | None]])

    @property
    def has_new_claims(self) -> bool:
        """True if any claim is younger than the first run of the storage."""
        return any(time is not None for times in self.since.values() for time in times.values())

    def split(self, claims: Collection[tuple[str, str]]) -> tuple[ClaimAges, ClaimAges]:
        """Split the ages into those of the given claims, and those of all other claims.

        Args:
            claims: Pairs of prefix and table.

        Returns:
            The ages of all other claims, and the ages of the given claims.
        """
        parts: list[dict[str, dict[str, datetime | None]]] = [{}, {}]
        for prefix, times in self.since.items():
            for table, time in times.items():
                parts[(prefix, table) in claims].setdefault(prefix, {})[table] = time
        return ClaimAges(parts[0]), ClaimAges(parts[1])

    def merge(self, other: ClaimAges) -> ClaimAges:
        """Combine the ages of two disjoint sets of claims."""
        return ClaimAges({prefix: {**self.since.get(prefix, {}), **other.since.get(prefix, {})} for prefix in {*self.since, *other.since}})

    def of_claim(self, prefix: str, table: str) -> tuple[bool, datetime | None]:
        """Look up a table's claim on a prefix.

        Returns:
            True if the table has a claim on the prefix, and the claim's earliest creation time.
        """
        for at in upwards(prefix):
            times = self.since.get(at, {})
            # If a lake claims a prefix for itself, it contains the locations of all its tables.
            for name in (table, ""):
                if name in times:
                    return True, times[name]
        return False, None

    def of_directory(self, directory: str) -> datetime | None:
        """Return the creation time of the claim with the longest prefix that contains a directory.

        If several tables claim this prefix, the earliest time counts.
        """
        for at in upwards(directory):
            if times := self.since.get(at):
                return None if None in times.values() else min(time for time in times.values() if time is not None)
        return None

    def continue_with(self, claims: Iterable[tuple[str, str]], now: datetime | None, shields: Collection[str] = ()) -> ClaimAges:
        """Compute the ages of the claims in a later run.

        Args:
            claims: Pairs of prefix and table in that run.
            now: Time of the newest run without the new claims. None if there is no such run.
            shields: Prefixes of unreadable lakes, which are protected but not claimed. Earlier
                claims inside them keep their age.
        """
        found: dict[str, dict[str, datetime | None]] = {}
        current = list(claims)
        for prefix, table in current:
            is_known, time = self.of_claim(prefix, table)
            found.setdefault(prefix, {})[table] = time if is_known else now
        # If a table claims more than before, its earlier claims inside the new one keep their age.
        # The claims of an unreadable lake are missing only until it is readable again.
        prefixes: dict[str, list[str]] = {}
        for prefix, table in current:
            prefixes.setdefault(table, []).append(prefix)
        for prefix, times in self.since.items():
            for table, time in times.items():
                if any(prefix.startswith(outer) for outer in (*prefixes.get(table, ()), *shields)):
                    found.setdefault(prefix, {}).setdefault(table, time)
        return ClaimAges(found)


class KeyHashes(Protocol):
    """A set of keys, identified by their hashes. Instances are pickled and sent to executors."""

    def contains(self, hashes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask that is true for hashes of keys in the set."""
        ...

    def read_sorted(self) -> NDArray[np.int64]:
        """Read all hashes into memory, sorted and without duplicates."""
        ...


@dataclass(frozen=True, slots=True)
class ForeignRules:
    """Finds foreign files in a storage. Instances are sent to Spark executors.

    Attributes:
        own_names: For each lake, a regular expression for the file names that its writers use.
        locations: Claims on table locations, which users of a lake can choose. All other claims are
            on directories of the lake's format, or on prefixes in lakes.yaml.
        ages: The age of each claim.
        seen: The time of the first run that found each claim, or None if its age is unknown. It is
            used for files whose names do not match `own_names`.
        accepted: Prefixes whose older files users have accepted as garbage.
        dropped_ages: Like `ages`, but for claims of dropped tables, which `ages` and `seen` do not
            contain.
        dropped_seen: Like `seen`, but for claims of dropped tables.
        paths: For each lake, a regular expression that matches the end of every path that its
            format produces.
        listed: Claims of tables that a catalog lists. In them, no file is accepted as garbage of a
            dead table.
        remembered: Files that were older than their claim in an earlier run, whatever their
            modification times are now. None if the set is empty.
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
    remembered: KeyHashes | None = None

    def find_targets(self, files: pa.RecordBatch) -> pa.Array:
        """Return what to search for among files referenced by commits, before files are checked.

        Args:
            files: Claimed files with the columns key and lake.

        Returns:
            Distinct targets for `KnownFiles`, each a directory and the kind of known file to find
            in it.
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
        """Find the rule that makes each file foreign, assuming that no commit ever referenced it.

        Args:
            files: Claimed files with the columns key, last_modified and lake.
            known: Targets of `find_targets` that match a known file (one that a commit referenced).
            roots: Directories that contain datasets of other formats.

        Returns:
            A column of rules, which is null if the file is not foreign.
        """
        groups = _Groups.of(self, files)
        verdicts = [group.decide(known, roots) for group in groups.directories]
        may_apply = pa.array([verdict.may_apply for verdict in verdicts], pa.bool_()).take(groups.at)
        at = pc.indices_nonzero(pc.or_(may_apply, pc.or_(groups.is_hidden, groups.has_unknown_path)))
        columns = (groups.at, groups.keys, groups.is_own, groups.is_hidden, groups.has_unknown_path, files.column("last_modified"))
        rows = zip(*(column.take(at).to_pylist() for column in columns), self._find_remembered(files.column("key").take(at)), strict=True)
        rules: list[str | None] = [None] * files.num_rows
        for index, (group, key, is_own, is_hidden, has_unknown_path, modified, is_remembered) in zip(at.to_pylist(), rows, strict=True):
            is_unnamed = is_hidden and _EXACT + key not in known
            rules[index] = verdicts[group].find_rule(
                modified, is_unnamed, is_own, has_unknown_path=has_unknown_path, is_remembered=is_remembered
            )
        return pa.array(rules, pa.string())

    def _find_remembered(self, keys: pa.Array) -> list[bool]:
        if self.remembered is None or not len(keys):
            return [False] * len(keys)
        return self.remembered.contains(xxhash64(keys)).tolist()


class KnownFiles:
    """Finds the targets that match a known file, i.e. one referenced by a commit.

    Args:
        targets: The result of `ForeignRules.find_targets`.
        data_names: Regular expressions for the names of data files that the lakes' writers use.
    """

    def __init__(self, targets: Iterable[str], data_names: Iterable[str]) -> None:
        self._wanted: dict[str, set[str]] = {kind: set() for kind in (_OWN_IN, _UNDER, _EXACT)}
        for target in targets:
            self._wanted[target[0]].add(target[1:])
        self._own = "|".join(sorted(set(data_names))) or "^$"

    def find(self, keys: pa.Array) -> set[str]:
        """Return the targets that match at least one of the known files with these keys."""
        wanted = self._wanted
        found: set[str] = set()
        if wanted[_EXACT]:
            hits = pc.is_in(keys, pa.array(sorted(wanted[_EXACT]), keys.type))
            found |= {_EXACT + key for key in keys.filter(hits).to_pylist()}
        directories = directories_of(keys).dictionary_encode()
        every = directories.dictionary.to_pylist()
        if wanted[_UNDER]:
            found |= {_UNDER + at for name in every for at in upwards(name) if at in wanted[_UNDER]}
        if wanted[_OWN_IN]:
            own = pc.unique(directories.indices.filter(pc.match_substring_regex(_names(keys), self._own)))
            names = directories.dictionary.take(own).to_pylist()
            found |= {_OWN_IN + name for name in names if name in wanted[_OWN_IN]}
        return found


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The rules that apply to the files of one directory.

    Attributes:
        root: The dataset of another format that contains the directory, or None.
        since: Files modified before this time are older than the claim.
        seen: Like `since`, but for files with names that the lake's writers do not use.
        hidden: The path up to a hidden component under which no commit references a file, or None.
        is_unknown: True if no commit ever referenced a data file of the lake's writers in the
            directory.
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
        """True if a rule may apply to files in the directory even if their names are not unusual."""
        return self.is_unknown or any(value is not None for value in (self.root, self.since, self.seen, self.hidden))

    def find_rule(
        self, modified: datetime | None, is_hidden: bool, is_own: bool, *, has_unknown_path: bool, is_remembered: bool
    ) -> str | None:
        """Return the first rule that makes a file foreign, or None.

        Args:
            is_hidden: True if the file name is hidden and no commit references the file.
            is_own: True if the lake's writers use such names.
            has_unknown_path: True if the lake's format never produces such a path.
            is_remembered: True if the file was older than its claim in an earlier run.
        """
        if self.root is not None and not is_own and not self._accepts(modified, self.root, of_tables=False):
            return OTHER_FORMAT
        since = self.since if is_own else self.seen
        if since is not None and (modified is None or is_remembered or modified < since) and not self._accepts(modified):
            return NEW_CLAIM
        of_tables = self.hidden is not None  # the location of a dead table may be a hidden directory
        if (self.hidden is not None or is_hidden) and not self._accepts(modified, self.hidden or "", of_tables=of_tables):
            return HIDDEN_PATH
        if has_unknown_path and not self._accepts(modified, of_tables=False):
            return UNKNOWN_PATH
        return UNKNOWN_DIRECTORY if self.is_unknown and not is_own and not self._accepts(modified) else None

    def _accepts(self, modified: datetime | None, within: str = "", *, of_tables: bool = True) -> bool:
        """Return True if a user has accepted files of this age, by a prefix inside `within`."""
        accepted = (item for item in self.accepted if of_tables or not item.of_table)
        return modified is not None and any(modified < item.before and item.prefix.startswith(within) for item in accepted)


@dataclass(frozen=True, slots=True)
class _Directory:
    """A directory that contains deletion candidates.

    Attributes:
        top: Datasets of other formats are ignored if their directory is above this one.
        is_strange: True if a candidate in the directory has an unusual name.
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
        root = next((at for at in upwards(self.name) if at in roots and len(at) >= len(self.top)), None) if roots else None
        hidden = self.hidden if self.hidden is not None and _UNDER + self.hidden not in known else None
        is_unknown = bool(self.targets) and not any(target in known for target in self.targets)
        return _Verdict(root, self.since, self.seen, hidden, is_unknown, self.accepted)


@dataclass(frozen=True, slots=True)
class _Groups:
    """Files grouped by directory. The key of a side file is replaced by that of its main file.

    Attributes:
        directories: The distinct directories.
        at: For each file, the index of its directory.
        keys: The keys of the files.
        is_own: True for file names that the lake's writers use.
        is_hidden: True for hidden file names.
        has_unknown_path: True for paths that the lake's format never produces.
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
        directories, names = directories_of(keys).dictionary_encode(), _names(keys)
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
        # A commit that references a file with an unusual name proves little, because users may add
        # existing files with `add_files`, next to files of other applications. Metadata proves
        # little as well, because it is in the location from the start.
        targets = (_OWN_IN + name,)
    is_listed = any(at in rules.listed for at in upwards(name))
    accepted = tuple(item for item in rules.accepted if name.startswith(item.prefix) and not (item.of_table and is_listed))
    since = rules.ages.of_directory(name)
    seen = rules.seen.of_directory(name) or since
    return _Directory(name, top, targets, _hidden_prefix(prefix, below), since, seen, accepted, is_strange)


def _hidden_prefix(prefix: str, below: str) -> str | None:
    """Return the path up to its last hidden directory under a claim, or None if it has none.

    A directory of a partition, such as `_day=1/`, does not count as hidden.
    """
    components = below.split("/")[:-1]
    hidden = (index for index, name in enumerate(components) if re.match(_HIDDEN, name) and "=" not in name)
    at = max(hidden, default=None)
    return None if at is None else prefix + "/".join(components[: at + 1]) + "/"


def has_hidden_directory(path: str) -> bool:
    """Return True if a relative path has a hidden directory, which users must accept separately."""
    return _hidden_prefix("", path) is not None


def _names(keys: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(keys, "(?s)^.*/", "")
