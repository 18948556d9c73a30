"""The lakeFS lake, which is one repository on a server.

A run only sends requests to the server in `freeze`, in the driver process. Commits, ranges and
metaranges are read by id from the storage namespace (the location of the repository's files), whose
folder `_lakefs/` is never listed.

Staged objects are read before and after the dump of refs and commits, and both results are kept. If
a commit moves an object out of staging in the meantime, one of the results therefore contains it.
Objects that are written until the storage is listed are newer than the grace cut-off, because the
cut-off is computed before the first ref is read.
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
from gc_assets.core.findings import Finding
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
from gc_assets.lakes.lakefs.exact_paths import is_exact
from gc_assets.lakes.lakefs.lifecycle_commits import PathClient, delete_paths, restore_paths
from gc_assets.lakes.lakefs.metaranges import RangeRef, read_metarange
from gc_assets.lakes.lakefs.namespaces import find_incomparable, find_overlap, namespace_location, refuse_overlap
from gc_assets.lakes.lakefs.preflight import probe_edits
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

# How often to try to read a repository while its branches are changed or deleted.
ATTEMPTS: Final = 5
# Ages compare times of the server, the store and this machine, so their clocks must agree. kopia
# allows the same difference.
MAX_SKEW: Final = timedelta(minutes=5)
# lakeFS uses the link expiry as the minimum age in its own garbage collector. We add a margin for
# inaccurate clocks and slow requests.
LINK_MARGIN: Final = timedelta(hours=1)
_RECORDS: Final = "records"
_HEXADECIMAL: Final = re.compile(r"[a-fA-F0-9]{1,64}")


@dataclass(frozen=True, slots=True)
class _Metadata:
    """Claims, files to keep and notes that concern ranges and metaranges."""

    claims: tuple[Claim, ...] = ()
    pinned: tuple[ContentRoot, ...] = ()
    notes: tuple[str, ...] = ()


class LakeFsLake:
    """A lake that consists of one lakeFS repository. Credentials are not pickled."""

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
        """Read the repository's properties. Raises `LakeUnreadable` if that fails."""
        RepositoryClient(replace(self._server(), pause_seconds=ACCESS_PAUSE_SECONDS), self._config.repository).repository()

    def find_repository(
        self, repository_uuid: str, namespace: str, server_id: str | None, successor: str | None = None, *, is_configured: bool = False
    ) -> str | None:
        """Return why a repository that an earlier run read may still exist or be needed, or None.

        The result is None only if the server does not have a repository with this name, or only
        `successor`. As a safeguard, the server must also list another repository, or be known to be
        the same installation as before.
        """
        client = RepositoryClient(self._server(), self._config.repository)
        try:
            current, namespaces, current_id = client.find_repository(), client.namespaces(), client.installation_id()
        except LakeUnreadable as error:
            return str(error)
        name, where = self._config.repository, f"the server at {self._config.endpoint}"
        if server_id not in {None, current_id}:
            return f"{where} has the installation id {current_id or 'unknown'}, but repository {name} was on installation {server_id}"
        current_uuid = None if current is None else _identify(name, current, None).uuid
        if current_uuid == repository_uuid:
            return f"{where} still has repository {name}"
        if current_uuid not in {None, successor}:
            return f"{where} has another repository {name} now, which this run did not read"
        if current is None and (name in namespaces or not (namespaces or server_id)):
            listed = "but lists it" if namespaces else "and does not list any other repository"
            return f"{where} does not find repository {name}, {listed}"
        if is_configured and (other := find_incomparable(namespace, namespaces)) is not None:
            reason = f"repository {other} of {where} has the storage namespace {namespaces[other]}"
            return f"{reason}, which is in another bucket than {namespace} and may be the same place under another address"
        # If the repository was recreated in the same namespace, it is this lake, whose live files
        # are known.
        if (other := find_overlap(namespace, {key: value for key, value in namespaces.items() if key != name})) is not None:
            return f"repository {other} of {where} has the storage namespace {namespaces[other]}"
        return None

    def claimed_location(self, namespace: str) -> str:
        """Return the location `data/` in a namespace."""
        return f"{namespace.rstrip('/')}/{DATA}"

    def freeze(self, as_of: datetime) -> FrozenRefs:  # noqa: ARG002 - part of the protocol; the current refs are read
        """Read all branches, including hidden ones, all tags, and all staged objects.

        Raises:
            LakeUnreadable: If something cannot be read, the clocks differ too much, or another
                repository uses the same storage.
        """
        client = RepositoryClient(self._server(), self._config.repository)
        repository = client.repository()
        self._refuse_clock_skew(repository)
        location = namespace_location(self.name, repository.storage_namespace, self._config.location, self._storages)
        refuse_overlap(self.name, self._config.repository, repository.storage_namespace, client.namespaces())
        rules = client.retention_rules() if self._config.retention.source == "server" else None
        min_age = client.link_expiry() + LINK_MARGIN
        refs, sources, staged, dump = self._read_consistent(client, repository, location, rules)
        # An inexact path may be committed. The server is asked whether its branch has changes.
        changed = [item.branch for item in staged if item.path is not None and is_exact(item.path)]
        has_rule = self._config.commit_rule_filter()
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
        """Claim ranges and metaranges, if the configuration allows collecting unused ones."""
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
        """True if runs list the objects that lifecycle rules may delete in the namespace."""
        return self._config.publish_results

    def write_result(self, claim: str, name: str, content: bytes) -> None:
        """Create a file in `_lakefs/retention/lc/`, the result directory of the lakeFS proposal.

        An existing file is not overwritten.

        Args:
            claim: Address of the claim, which is the folder `data/` of the namespace.
            name: Path of the file in this directory.
            content: Content of the file.
        """
        with suppress(FileExistsError):
            # `_lakefs/` already exists, because the server created it.
            self._objects.create(f"{claim.removesuffix(DATA)}{RESULTS}{name}", content, new_directories=4)

    def commits(self, source: CommitSource) -> Iterator[Commit]:
        """Yield the commits in one range of the refs dump."""
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
        """Decode a metarange into its ranges, or a range into its objects."""
        return containers.decode(container, raw, self._storages, is_renamed=self._is_renamed)

    def retain(self, refs: FrozenRefs, commits: pa.Table, as_of: datetime, grace_cutoff: datetime) -> Retention:
        """Apply the retention rules. History in lakeFS is never edited."""
        return retain(refs, commits, as_of, grace_cutoff, self._config)

    def delete_branches(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Delete idle branches without uncommitted changes."""
        yield from delete_branches(self._branch_client(), actions)

    def recreate_branches(self, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Recreate deleted branches at their old heads."""
        yield from create_branches(self._branch_client(), actions)

    def delete_paths(
        self,
        plan_id: str,
        actions: Sequence[ExpiryAction],
        read_paths: Callable[[ExpiryAction], Sequence[str]],
        check: Callable[[], None],
    ) -> Iterator[ExpiryOutcome]:
        """Delete paths selected by lifecycle rules, with one commit per branch."""
        yield from delete_paths(self._path_client(), plan_id, actions, read_paths, check)

    def restore_paths(self, plan_id: str, actions: Sequence[ExpiryAction]) -> Iterator[ExpiryOutcome]:
        """Revert the commits that a plan made."""
        yield from restore_paths(self._path_client(), plan_id, actions)

    def probe_edits(self) -> Finding | None:
        """Check that the server permits the edits required by the configuration, if any."""
        commits = self._config.has_commit_rules
        if not (commits or self._config.idle_rules):
            return None
        return probe_edits(self.name, self._path_client(), commits=commits)

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
        """Raise `LakeUnreadable` if the default branch is missing from a list of branches.

        A server that deletes a repository deletes the refs first. It may still list the repository
        for some seconds (`graveler.repository_cache`).
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
                f"{format_duration(skew)} from this machine; expected at most {format_duration(MAX_SKEW)}, because deletion "
                "depends on ages. Synchronize the clocks."
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
        """Read consistent refs, commit sources and staged objects, and the dump with the refs.

        Raises:
            RefDeleted: If the repository changes while it is read.
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
                    f"lake {self.name}: {ref!r} points to commit {head}, which is not among the {len(commit_ids):,} in the refs dump; "
                    "the repository changes faster than it can be read, run again"
                )
        if unlisted := branches.keys() - heads.keys() - later_branches.keys():
            raise RefDeleted(
                f"lake {self.name}: branch {min(unlisted)!r} is in the refs dump and not in the server's list of branches (hidden ones "
                "included), so its staging area cannot be read; run again"
            )
        # A ref that was created or moved after the dump is included with its new head, which
        # nothing else would protect. The head is known to be among the commits.
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
        """Raise `LakeUnreadable` if the server lists the objects of a commit instead of a branch.

        The server confuses them if the name of a branch is the beginning of exactly one commit id.
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
        """Read an object of the refs dump. Returns its name for messages, its id and its content."""
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
    """Convert staged objects to one `UncommittedObject` for each address, branch and path.

    If only the list from `prepare_uncommitted` contains an object, its branch and path are None.
    """
    found: dict[tuple[str, str | None, str | None], UncommittedObject] = {}
    for item in staged:
        address = _names(item.address, roots)[0]
        moment = from_timestamp(max(0, item.written_at))
        found.setdefault((address, item.branch, item.path), UncommittedObject(address, item.branch, item.path, moment))
    named = {address for address, branch, _ in found if branch is not None}
    return tuple(item for (address, branch, _), item in found.items() if branch is not None or address not in named)


def _pin_staged(staged: Iterable[StagedObject], roots: Roots) -> tuple[ContentRoot, ...]:
    """Return files to keep: the distinct names that staged objects may have."""
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
