"""Lake for one repository on a lakeFS server.

Only `freeze` sends requests to the server, in the driver. Commits, ranges and metaranges are read
from the storage namespace by id. `_lakefs/` is never listed.

Staging is read before and after the dump of refs and commits, and both results are kept. If a
concurrent commit moves an object out of staging, the object is therefore in one of them. The
storage is listed later, and objects written until then are newer than the grace cut-off, which is
taken before the first ref is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pydantic import SecretStr

from gc_assets.core.clock import Clock
from gc_assets.core.errors import ClockSkewed, FormatError, LakeUnreadable
from gc_assets.core.moments import from_timestamp
from gc_assets.core.objects import EditableObjects
from gc_assets.core.paths import Location
from gc_assets.core.units import format_duration
from gc_assets.lakes.file_kinds import Kind
from gc_assets.lakes.lakefs import containers
from gc_assets.lakes.lakefs.addresses import DATA, METADATA, RESULTS, Roots, possible_names
from gc_assets.lakes.lakefs.branches import BranchClient, create_branches, delete_branches, protect_branches
from gc_assets.lakes.lakefs.client import ACCESS_PAUSE_SECONDS, RefDeleted, RefsDump, Repository, RepositoryClient, RetentionRules, Server
from gc_assets.lakes.lakefs.config import DEFAULT_RETENTION_DAYS, LakeFsLakeConfig
from gc_assets.lakes.lakefs.lifecycle_commits import PathClient, delete_paths, restore_paths
from gc_assets.lakes.lakefs.metaranges import RangeRef, read_metarange
from gc_assets.lakes.lakefs.namespaces import find_incomparable, find_overlap, namespace_location, refuse_overlap
from gc_assets.lakes.lakefs.refs_dump import BRANCH, COMMIT, TAG, read_commit_ids, read_commits, read_refs
from gc_assets.lakes.lakefs.retention import RETENTION_DAYS, retain
from gc_assets.lakes.lakefs.staging import StagedObject, is_listed, read_server_list, staged_objects
from gc_assets.lakes.lakefs.unused_ranges import find_obstacle, pin_dumps
from gc_assets.lakes.protocol import (
    Claim,
    Commit,
    CommitSource,
    Container,
    ContentRoot,
    ExpiryAction,
    ExpiryOutcome,
    FrozenRefs,
    Ref,
    RepositoryIdentity,
    Retention,
    UncommittedObject,
)

# Maximum number of attempts to read a repository while its branches are changed or deleted.
ATTEMPTS: Final = 5
# Ages are compared across the clocks of the server, the store and this machine. kopia uses the same
# limit.
MAX_SKEW: Final = timedelta(minutes=5)
# In lakeFS, the link expiry equals the minimum age of its garbage collector, which leaves no margin
# for clocks and slow requests.
LINK_MARGIN: Final = timedelta(hours=1)
_RECORDS: Final = "records"


_HEXADECIMAL: Final = re.compile(r"[a-fA-F0-9]{1,64}")


@dataclass(frozen=True, slots=True)
class _Metadata:
    """Claims, pinned files and notes of a freeze that concern ranges and metaranges."""

    claims: tuple[Claim, ...] = ()
    pinned: tuple[ContentRoot, ...] = ()
    notes: tuple[str, ...] = ()


class LakeFsLake:
    """Lake for one repository. Pickled instances do not contain credentials."""

    kind = "lakefs"

    def __init__(self, config: LakeFsLakeConfig, objects: EditableObjects, storages: Sequence[str] = ()) -> None:
        self.name = config.name
        self._config = config
        self._objects = objects
        self._storages = tuple(str(Location.parse(storage)) for storage in storages)

    def __getstate__(self) -> dict[str, Any]:
        nothing = SecretStr("")
        config = self._config.model_copy(update={"access_key_id": nothing, "secret_access_key": nothing})
        return {**self.__dict__, "_config": config}

    def check_access(self) -> None:
        """Read the repository's entry. Raises `LakeUnreadable` if it fails."""
        RepositoryClient(replace(self._server(), pause_seconds=ACCESS_PAUSE_SECONDS), self._config.repository).repository()

    def find_repository(
        self, repository_uuid: str, namespace: str, server_id: str | None, successor: str | None = None, *, is_configured: bool = False
    ) -> str | None:
        """Return the reason why an earlier run's repository may still exist or be needed, or None.

        The result is None only if the server does not know the name, or the name belongs to
        `successor`. The server must also list other repositories, unless its installation is known
        to be the same.
        """
        client = RepositoryClient(self._server(), self._config.repository)
        try:
            current, namespaces, current_id = client.find_repository(), client.namespaces(), client.installation_id()
        except LakeUnreadable as error:
            return str(error)
        name, where = self._config.repository, f"the server at {self._config.endpoint}"
        if server_id not in {None, current_id}:
            return f"{where} has the installation id {current_id or 'unknown'}, and that of repository {name} was {server_id}"
        current_uuid = None if current is None else _identify(name, current, None).uuid
        if current_uuid == repository_uuid:
            return f"{where} still has repository {name}"
        if current_uuid not in {None, successor}:
            return f"{where} has another repository {name} now, which this run did not read"
        if current is None and (name in namespaces or not (namespaces or server_id)):
            listed = f"lists repository {name}" if namespaces else "lists no repository at all"
            return f"{where} finds no repository {name}, but {listed}"
        if is_configured and (other := find_incomparable(namespace, namespaces)) is not None:
            reason = f"repository {other} of {where} has the storage namespace {namespaces[other]}"
            return f"{reason}, which is in another bucket than {namespace} and may be the same place under another address"
        # A repository recreated in place is this lake, and its live files are known.
        if (other := find_overlap(namespace, {key: value for key, value in namespaces.items() if key != name})) is not None:
            return f"repository {other} of {where} has the storage namespace {namespaces[other]}"
        return None

    def claimed_location(self, namespace: str) -> str:
        """Return the claimed location, which is `data/`."""
        return f"{namespace.rstrip('/')}/{DATA}"

    def freeze(self, as_of: datetime) -> FrozenRefs:  # noqa: ARG002 - part of the protocol; the current refs are read
        """Read all branches, including hidden ones, all tags, and all staged objects.

        Raises:
            LakeUnreadable: If something cannot be read, the clocks differ, or another repository
                uses the same storage.
        """
        client = RepositoryClient(self._server(), self._config.repository)
        repository = client.repository()
        self._refuse_clock_skew(repository)
        location = namespace_location(self.name, repository.storage_namespace, self._config.location, self._storages)
        refuse_overlap(self.name, self._config.repository, repository.storage_namespace, client.namespaces())
        rules = client.retention_rules() if self._config.retention.source == "server" else None
        min_age = client.link_expiry() + LINK_MARGIN
        refs, sources, staged, dump = self._read_consistent(client, repository, location, rules)
        changed, has_rule = [item.branch for item in staged], self._config.commit_rule_filter()
        refs = protect_branches(self._branch_client(), refs, self._config.idle_rules, changed, has_rule, read_only=repository.read_only)
        roots = Roots.of(location, self._storages, is_renamed=self._is_renamed)
        metadata = self._claim_metadata(client, location, dump)
        return FrozenRefs(
            lake=self.name,
            kind=self.kind,
            refs=refs,
            sources=sources,
            claims=(Claim(f"{location}{DATA}"), *metadata.claims),
            pinned=(*_pin_staged(staged, roots), *metadata.pinned),
            notes=(*self._build_notes(repository, rules, refs, min_age), *metadata.notes),
            min_age_seconds=int(min_age.total_seconds()),
            uncommitted=_build_uncommitted(staged, roots),
            repository=_identify(self._config.repository, repository, client.installation_id()),
        )

    def _claim_metadata(self, client: RepositoryClient, location: str, dump: RefsDump) -> _Metadata:
        """Claim the ranges and metaranges if those that no commit references are to be collected."""
        if self._config.unused_ranges == "keep":
            return _Metadata()
        obstacle, pinned = find_obstacle(client), tuple[ContentRoot, ...]()
        try:
            if obstacle is None:
                pinned = pin_dumps(self._objects, location, dump)
        except LakeUnreadable as error:
            obstacle = str(error)
        if obstacle is None:
            return _Metadata((Claim(f"{location}{METADATA}"),), pinned)
        return _Metadata(notes=(f"lake {self.name}: unused ranges are kept, because the server may need them: {obstacle}",))

    @property
    def publishes_results(self) -> bool:
        """True if runs write the objects released by lifecycle rules to the namespace."""
        return self._config.publish_results

    def write_result(self, claim: str, name: str, content: bytes) -> None:
        """Create a file in `_lakefs/retention/lc/`, the directory of results in the lakeFS proposal.

        An existing file is not overwritten.

        Args:
            claim: The claimed `data/` of the namespace.
            name: Name below that directory.
            content: Content of the file.
        """
        with suppress(FileExistsError):
            # `_lakefs/` already exists, because the server created it.
            self._objects.create(f"{claim.removesuffix(DATA)}{RESULTS}{name}", content, new_directories=4)

    def commits(self, source: CommitSource) -> Iterator[Commit]:
        """Yield the commits in one range of the dump."""
        where = f"lake {self.name}: commits in {source.address}"
        try:
            location, _, object_id = source.address.rpartition(METADATA)
            found = list(read_commits(where, object_id, self._objects.read(source.address), location))
        except (OSError, FormatError) as error:
            raise LakeUnreadable(f"{where} cannot be read: {error}") from error
        if len(found) != int(source.properties[_RECORDS]):
            raise LakeUnreadable(f"{where}: the dump records {source.properties[_RECORDS]} commits, read {len(found):,}; run again")
        yield from found

    def decode(self, container: Container, raw: bytes) -> pa.RecordBatch:
        """Return the children of a metarange or range."""
        return containers.decode(container, raw, self._storages, is_renamed=self._is_renamed)

    def retain(self, refs: FrozenRefs, commits: pa.Table, as_of: datetime, grace_cutoff: datetime) -> Retention:
        """Apply the rules. History is never edited."""
        return retain(refs, commits, as_of, grace_cutoff, self._config)

    def delete_branches(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Delete idle branches without uncommitted changes."""
        yield from delete_branches(self._branch_client(), actions)

    def recreate_branches(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Create deleted branches at their old heads."""
        yield from create_branches(self._branch_client(), actions)

    def delete_paths(
        self,
        plan_id: str,
        actions: Sequence[ExpiryAction],
        read_paths: Callable[[ExpiryAction], Sequence[str]],
        check: Callable[[], None],
    ) -> Iterator[ExpiryOutcome]:
        """Delete the paths released by lifecycle rules, with one commit per branch."""
        yield from delete_paths(self._path_client(), plan_id, actions, read_paths, check)

    def restore_paths(self, plan_id: str, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Revert the commits of a plan."""
        yield from restore_paths(self._path_client(), plan_id, actions)

    @property
    def _is_renamed(self) -> bool:
        return self._config.location is not None

    def _branch_client(self) -> BranchClient:
        return BranchClient(self._server(), self._config.repository)

    def _path_client(self) -> PathClient:
        return PathClient(self._server(), self._config.repository)

    def _server(self) -> Server:
        config = self._config
        key, secret = config.access_key_id.get_secret_value(), config.secret_access_key.get_secret_value()
        return Server(config.endpoint, key, secret, read_seconds=config.read_seconds)

    def _refuse_deletion(self, repository: Repository, *lists: Mapping[str, str]) -> None:
        """Raise `LakeUnreadable` if a list of branches lacks the default branch.

        A server deletes the refs of a repository first, and lists the repository for some seconds
        after that (`graveler.repository_cache`).
        """
        if any(repository.default_branch not in branches for branches in lists):
            raise LakeUnreadable(
                f"lake {self.name}: repository {self._config.repository} has no branch {repository.default_branch!r}, which is its default "
                "branch, so it is being deleted or was created bare; run again, or create the branch"
            )

    def _refuse_clock_skew(self, repository: Repository) -> None:
        skew = abs(repository.server_time - Clock().now())
        if skew > MAX_SKEW:
            raise ClockSkewed(
                f"lake {self.name}: the server's time is {repository.server_time.astimezone(UTC).isoformat()} and differs by "
                f"{format_duration(skew)} from this machine; expected at most {format_duration(MAX_SKEW)}, because ages decide on "
                "deletion. Synchronize the clocks."
            )

    def _read_consistent(
        self, client: RepositoryClient, repository: Repository, location: str, rules: RetentionRules | None
    ) -> tuple[tuple[Ref, ...], tuple[CommitSource, ...], list[StagedObject], RefsDump]:
        for _ in range(ATTEMPTS - 1):
            try:
                return self._read(client, repository, location, rules)
            except RefDeleted:
                continue
        return self._read(client, repository, location, rules)

    def _read(
        self, client: RepositoryClient, repository: Repository, location: str, rules: RetentionRules | None
    ) -> tuple[tuple[Ref, ...], tuple[CommitSource, ...], list[StagedObject], RefsDump]:
        """Return consistent refs, sources and staged objects, and the dump that contains the refs.

        Raises `RefDeleted` if the repository changed while it was read.
        """
        heads = client.branches()
        staged = staged_objects(client, heads)
        if not repository.read_only:
            staged += read_server_list(self.name, self._objects, location, client.prepare_uncommitted())
        dump = client.dump_refs()
        ranges = self._ranges(location, dump.commits, COMMIT)
        commit_ids = {commit for item in ranges for commit in read_commit_ids(*self._read_object(location, item.range_id, "range", COMMIT))}
        branches = self._refs(location, dump.branches, BRANCH)
        tags = self._refs(location, dump.tags, TAG)
        later_branches, later_tags = client.branches(), client.tags()
        staged += staged_objects(client, later_branches)
        self._refuse_deletion(repository, heads, later_branches)
        self._refuse_hidden_branches(client, later_branches, commit_ids)
        for ref, head in (*heads.items(), *branches.items(), *later_branches.items(), *later_tags.items(), *tags.items()):
            if head not in commit_ids:
                raise RefDeleted(
                    f"lake {self.name}: {ref!r} points to commit {head}, which is not among the {len(commit_ids):,} of the refs dump; "
                    "the repository changes faster than it can be read, run again"
                )
        if unlisted := branches.keys() - heads.keys() - later_branches.keys():
            raise RefDeleted(
                f"lake {self.name}: branch {min(unlisted)!r} is in the refs dump and not in the server's list of branches (hidden ones "
                "included), so its staging area cannot be read; run again"
            )
        # Refs that were created or moved after the dump are included with their new heads, because
        # nothing else protects these. They are among the commits.
        branches, tags = {**branches, **later_branches}, {**tags, **later_tags}
        summary = {} if rules is None else {DEFAULT_RETENTION_DAYS: str(rules.default_days)}
        sources = tuple(
            CommitSource(f"{location}{METADATA}{item.range_id}", properties={_RECORDS: str(item.records), **summary}) for item in ranges
        )
        days = {} if rules is None else rules.branch_days
        refs = (
            *(Ref(n, "branch", c, properties={RETENTION_DAYS: str(days[n])} if n in days else {}) for n, c in sorted(branches.items())),
            *(Ref(n, "tag", c) for n, c in sorted(tags.items())),
        )
        return refs, sources, staged, dump

    def _refuse_hidden_branches(self, client: RepositoryClient, branches: Iterable[str], commit_ids: set[str]) -> None:
        """Raise `LakeUnreadable` if the server lists a commit instead of a branch.

        This can happen if exactly one commit id begins with the name of the branch.
        """
        for name in sorted(branches):
            commits = [commit for commit in commit_ids if commit.startswith(name.lower())] if _HEXADECIMAL.fullmatch(name) else []
            if len(commits) == 1 and not is_listed(client, name, commits[0]):
                upgrade = "" if name == commits[0] else ", or upgrade lakeFS, which lists such branches since December 2022"
                raise LakeUnreadable(
                    f"lake {self.name}: the name of branch {name!r} is the prefix of a commit id, so the server lists that commit "
                    f"instead and the staging area of the branch cannot be read; rename the branch{upgrade}"
                )

    def _refs(self, location: str, metarange_id: str, entity: str) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for item in self._ranges(location, metarange_id, entity):
            found |= read_refs(*self._read_object(location, item.range_id, "range", entity), entity)
        return found

    def _ranges(self, location: str, metarange_id: str, entity: str) -> Sequence[RangeRef]:
        return read_metarange(*self._read_object(location, metarange_id, "metarange", entity), entity)

    def _read_object(self, location: str, object_id: str, kind: str, entity: str) -> tuple[str, str, bytes]:
        """Return an object of the dump as its name in error messages, its id and its content."""
        address = f"{location}{METADATA}{object_id}"
        where = f"lake {self.name}: {kind} of the {entity} dump {address}"
        try:
            return where, object_id, self._objects.read(address)
        except FileNotFoundError as error:
            raise LakeUnreadable(
                f"{where} does not exist, although the server has just written it; check that `location` is the location of this "
                "repository's storage namespace"
            ) from error
        except OSError as error:
            raise LakeUnreadable(f"{where} cannot be read: {error}") from error

    def _build_notes(self, repository: Repository, rules: RetentionRules | None, refs: Sequence[Ref], min_age: timedelta) -> Iterator[str]:
        yield f"lake {self.name}: no file younger than {format_duration(min_age)} is a candidate, because it may still be linked"
        if repository.read_only:
            yield f"lake {self.name}: the repository is read-only, so it has no staged objects"
        branches = {ref.ref_name for ref in refs if ref.ref_type == "branch"}
        for name in sorted(set() if rules is None else rules.branch_days.keys() - branches):
            yield f"lake {self.name}: the server has a retention rule for branch {name!r}, which does not exist"


def _identify(name: str, repository: Repository, server_id: str | None) -> RepositoryIdentity:
    return RepositoryIdentity(name, repository.storage_namespace, repository.created, server_id)


def _build_uncommitted(staged: Iterable[StagedObject], roots: Roots) -> tuple[UncommittedObject, ...]:
    """Return each staged object once per path.

    Objects that occur only in the server's list have neither branch nor path.
    """
    found: dict[tuple[str, str | None, str | None], UncommittedObject] = {}
    for item in staged:
        address = _names(item.address, roots)[0]
        moment = from_timestamp(max(0, item.written_at))
        found.setdefault((address, item.branch, item.path), UncommittedObject(address, item.branch, item.path, moment))
    named = {address for address, branch, _ in found if branch is not None}
    return tuple(item for (address, branch, _), item in found.items() if branch is not None or address not in named)


def _pin_staged(staged: Iterable[StagedObject], roots: Roots) -> tuple[ContentRoot, ...]:
    """Return the distinct possible names of the staged objects."""
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
    return list(possible_names(roots, address)) if "://" in address else [roots.location + address]
