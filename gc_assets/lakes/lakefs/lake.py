"""The lakeFS lake kind: one repository of a server, behind `lakes.protocol.Lake`.

Only `freeze` asks the server, in the driver. Commits, ranges and metaranges are read from the
storage namespace, by ids to which refs lead. `_lakefs/` is never listed.

The order of reading is staging, then the dump of refs and commits, then staging again. Both
readings of staging are kept, so what a commit takes from staging between them is in one of them.
The common stages list the storage later. What is written meanwhile is younger than the grace
cut-off, which was taken before the first ref was read, so that listing first could show nothing
more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pydantic import SecretStr

from gc_assets.core.clock import Clock
from gc_assets.core.errors import FormatError, LakeUnreadable
from gc_assets.core.objects import Objects
from gc_assets.core.paths import Location
from gc_assets.core.units import format_duration
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.lakefs import containers
from gc_assets.lakes.lakefs.addresses import DATA, METADATA, Roots, names_of
from gc_assets.lakes.lakefs.client import RefGone, Repository, RepositoryClient, RetentionRules, Server
from gc_assets.lakes.lakefs.config import LakeFsLakeConfig
from gc_assets.lakes.lakefs.metaranges import RangeRef, read_metarange
from gc_assets.lakes.lakefs.namespaces import namespace_location, overlapping_repositories
from gc_assets.lakes.lakefs.refs_dump import BRANCH, COMMIT, TAG, read_commit_ids, read_commits, read_refs
from gc_assets.lakes.lakefs.retention import DEFAULT_RETENTION_DAYS, RETENTION_DAYS, retain
from gc_assets.lakes.lakefs.staging import StagedObject, listed_by_server, staged_objects
from gc_assets.lakes.protocol import Claim, Commit, CommitSource, Container, ContentRoot, FrozenRefs, Ref, Retention, UncommittedObject

# A repository where a branch is deleted or committed to at every moment of its reading is read
# again this often.
ATTEMPTS: Final = 5
# kopia refuses beyond this too: ages are compared across the server's clock, the store's and ours
# (reliability.md 2).
MAX_SKEW: Final = timedelta(minutes=5)
# lakeFS's link expiry and its collector's minimum age are equal, which leaves no margin for clocks
# and slow requests.
LINK_MARGIN: Final = timedelta(hours=1)
_RECORDS: Final = "records"
# The last second that a `datetime` has.
_LATEST: Final = 253_402_300_799


_HEXADECIMAL: Final = re.compile(r"[a-fA-F0-9]{1,64}")


class LakeFsLake:
    """One repository. Only `freeze` speaks to the server, in the driver. What is pickled for
    executors has no credentials.
    """

    kind = "lakefs"

    def __init__(self, config: LakeFsLakeConfig, objects: Objects, storages: Sequence[str] = ()) -> None:
        self.name = config.name
        self._config = config
        self._objects = objects
        self._storages = tuple(str(Location.parse(storage)) for storage in storages)

    def __getstate__(self) -> dict[str, Any]:
        nothing = SecretStr("")
        config = self._config.model_copy(update={"access_key_id": nothing, "secret_access_key": nothing})
        return {**self.__dict__, "_config": config}

    def freeze(self, as_of: datetime) -> FrozenRefs:  # noqa: ARG002 - of the protocol; refs are read as they are now
        """Returns every branch, hidden ones too, every tag, and every staged object.

        Raises `LakeUnreadable` naming what could not be read, for clocks that differ, and for a
        second repository on the same storage.
        """
        client = RepositoryClient(self._server(), self._config.repository)
        repository = client.repository()
        self._refuse_skew(repository)
        location = namespace_location(self.name, repository.storage_namespace, self._config.location, self._storages)
        overlapping_repositories(self.name, self._config.repository, repository.storage_namespace, client.namespaces())
        rules = client.rules() if self._config.retention.source == "server" else None
        min_age = client.link_expiry() + LINK_MARGIN
        refs, sources, staged = self._read_settled(client, repository, location, rules)
        roots = Roots.of(location, self._storages)
        return FrozenRefs(
            lake=self.name,
            kind=self.kind,
            refs=refs,
            sources=sources,
            claims=(Claim(f"{location}{DATA}"),),
            pinned=_pinned(staged, roots),
            notes=tuple(self._notes(repository, rules, refs, min_age)),
            min_age_seconds=int(min_age.total_seconds()),
            uncommitted=_uncommitted(staged, roots),
        )

    def commits(self, source: CommitSource) -> Iterator[Commit]:
        """Yields the commits of one range of the dump. Raises `LakeUnreadable` where it cannot be
        read.
        """
        where = f"lake {self.name}: commits in {source.address}"
        try:
            location, _, object_id = source.address.rpartition(METADATA)
            found = list(read_commits(where, object_id, self._objects.read(source.address), location))
        except (OSError, FormatError) as error:
            raise LakeUnreadable(f"{where} cannot be read: {error}") from error
        if len(found) != int(source.properties[_RECORDS]):
            raise LakeUnreadable(f"{where}: the dump promises {source.properties[_RECORDS]} commits, read {len(found):,}; run again")
        yield from found

    def decode(self, container: Container, raw: bytes) -> pa.RecordBatch:
        """Returns the children of a metarange or range. Raises `FormatError` naming it."""
        return containers.decode(container, raw, self._storages)

    def retain(self, refs: FrozenRefs, commits: pa.Table, as_of: datetime, grace_cutoff: datetime) -> Retention:
        """Returns what the rules keep at `as_of`. History is never edited."""
        return retain(refs, commits, as_of, grace_cutoff, self._config)

    def _server(self) -> Server:
        config = self._config
        key, secret = config.access_key_id.get_secret_value(), config.secret_access_key.get_secret_value()
        return Server(config.endpoint, key, secret, read_seconds=config.read_seconds)

    def _refuse_skew(self, repository: Repository) -> None:
        skew = abs(repository.answered_at - Clock().now())
        if skew > MAX_SKEW:
            raise LakeUnreadable(
                f"lake {self.name}: the server's clock says {repository.answered_at.astimezone(UTC).isoformat()}, ours differs by "
                f"{format_duration(skew)}; expected at most {format_duration(MAX_SKEW)}, because ages decide what may go. Set the clocks."
            )

    def _read_settled(
        self, client: RepositoryClient, repository: Repository, location: str, rules: RetentionRules | None
    ) -> tuple[tuple[Ref, ...], tuple[CommitSource, ...], list[StagedObject]]:
        for _ in range(ATTEMPTS - 1):
            try:
                return self._read(client, repository, location, rules)
            except RefGone:
                continue
        return self._read(client, repository, location, rules)

    def _read(
        self, client: RepositoryClient, repository: Repository, location: str, rules: RetentionRules | None
    ) -> tuple[tuple[Ref, ...], tuple[CommitSource, ...], list[StagedObject]]:
        """Returns refs, sources and staged objects that belong together. Raises `RefGone` where the
        repository changed while it was read.
        """
        heads = client.branches()
        staged = staged_objects(client, heads)
        if not repository.read_only:
            staged += listed_by_server(self.name, self._objects, location, client.prepare_uncommitted())
        dump = client.dump()
        ranges = self._ranges(location, dump.commits, COMMIT)
        commit_ids = {commit for item in ranges for commit in read_commit_ids(*self._raw(location, item.range_id, "range", COMMIT))}
        branches = self._refs(location, dump.branches, BRANCH)
        tags = self._refs(location, dump.tags, TAG)
        later, later_tags = client.branches(), client.tags()
        staged += staged_objects(client, later)
        self._refuse_names_of_commits({*heads, *branches, *later}, commit_ids)
        for ref, head in (*heads.items(), *branches.items(), *later.items(), *later_tags.items(), *tags.items()):
            if head not in commit_ids:
                raise RefGone(
                    f"lake {self.name}: {ref!r} points at commit {head}, which is not among the {len(commit_ids):,} of the refs dump; "
                    "the repository changes faster than it can be read, run again"
                )
        if unlisted := branches.keys() - heads.keys() - later.keys():
            raise RefGone(
                f"lake {self.name}: branch {min(unlisted)!r} is in the refs dump and not in the server's list of branches (hidden ones "
                "included), so what is staged on it cannot be read; run again"
            )
        # What was made or moved since the dump counts as it is now: its head is among the commits,
        # and nobody else protects it.
        branches, tags = {**branches, **later}, {**tags, **later_tags}
        summary = {} if rules is None else {DEFAULT_RETENTION_DAYS: str(rules.default_days)}
        sources = tuple(
            CommitSource(f"{location}{METADATA}{item.range_id}", properties={_RECORDS: str(item.records), **summary}) for item in ranges
        )
        days = {} if rules is None else rules.branch_days
        refs = (
            *(Ref(n, "branch", c, properties={RETENTION_DAYS: str(days[n])} if n in days else {}) for n, c in sorted(branches.items())),
            *(Ref(n, "tag", c) for n, c in sorted(tags.items())),
        )
        return refs, sources, staged

    def _refuse_names_of_commits(self, branches: set[str], commit_ids: set[str]) -> None:
        """Raises `LakeUnreadable` for a branch whose name is the beginning of one commit id. The
        server takes such a name for the commit, and shows that commit in place of the branch's
        staging area.
        """
        for name in sorted(branches):
            if _HEXADECIMAL.fullmatch(name) and sum(commit.startswith(name.lower()) for commit in commit_ids) == 1:
                raise LakeUnreadable(
                    f"lake {self.name}: branch {name!r} is the beginning of a commit id, so the server shows that commit in its "
                    "place and what is staged on it cannot be read; rename the branch"
                )

    def _refs(self, location: str, metarange_id: str, entity: str) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for item in self._ranges(location, metarange_id, entity):
            found |= read_refs(*self._raw(location, item.range_id, "range", entity), entity)
        return found

    def _ranges(self, location: str, metarange_id: str, entity: str) -> Sequence[RangeRef]:
        return read_metarange(*self._raw(location, metarange_id, "metarange", entity), entity)

    def _raw(self, location: str, object_id: str, kind: str, entity: str) -> tuple[str, str, bytes]:
        """Returns what errors call an object of the dump, its id and its bytes."""
        address = f"{location}{METADATA}{object_id}"
        where = f"lake {self.name}: {kind} of the {entity} dump {address}"
        try:
            return where, object_id, self._objects.read(address)
        except FileNotFoundError as error:
            raise LakeUnreadable(
                f"{where} is not there, although the server has just written it; check that `location` is where this repository's "
                "storage namespace lies"
            ) from error
        except OSError as error:
            raise LakeUnreadable(f"{where} cannot be read: {error}") from error

    def _notes(self, repository: Repository, rules: RetentionRules | None, refs: Sequence[Ref], min_age: timedelta) -> Iterator[str]:
        yield f"lake {self.name}: no file younger than {format_duration(min_age)} is a candidate: its address may yet be linked"
        if repository.read_only:
            yield f"lake {self.name}: the repository is read-only, so nothing can be staged in it"
        branches = {ref.ref_name for ref in refs if ref.ref_type == "branch"}
        for name in sorted(set() if rules is None else rules.branch_days.keys() - branches):
            yield f"lake {self.name}: the server has a retention rule for branch {name!r}, which does not exist"


def _uncommitted(staged: Iterable[StagedObject], roots: Roots) -> tuple[UncommittedObject, ...]:
    """Returns each staged object of each path once. An object that only the server's own list has
    comes without branch and path.
    """
    found: dict[tuple[str, str | None, str | None], UncommittedObject] = {}
    for item in staged:
        address = _names(item.address, roots)[0]
        moment = datetime.fromtimestamp(max(0, min(item.written_at, _LATEST)), UTC)
        found.setdefault((address, item.branch, item.path), UncommittedObject(address, item.branch, item.path, moment))
    named = {address for address, branch, _ in found if branch is not None}
    return tuple(item for (address, branch, _), item in found.items() if branch is not None or address not in named)


def _pinned(staged: Iterable[StagedObject], roots: Roots) -> tuple[ContentRoot, ...]:
    """Returns the names that staged objects' addresses may have here, each once."""
    sizes: dict[str, int | None] = {}
    objects: set[str] = set()
    for item in staged:
        names = _names(item.address, roots)
        objects.add(names[0])
        for name in names:
            sizes[name] = item.size_bytes if item.size_bytes is not None else sizes.get(name)
    return tuple(
        ContentRoot(name, Kind.OBJECT if name in objects else Kind.POSSIBLE_OBJECT, is_container=False, size_bytes=size, must_exist=False)
        for name, size in sizes.items()
    )


def _names(address: str, roots: Roots) -> list[str]:
    return list(names_of(roots, address)) if "://" in address else [roots.location + address]
