"""The contract tests that every lake kind passes.

A kind provides a `Sample`: a small real lake that the system's own library or server built, and the
expected results. Subclass `LakeContract` and define the fixture `sample`.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

from gc_assets.config.models import LakeConfig
from gc_assets.core.errors import FormatError, LakeUnreadable
from gc_assets.core.key_resolver import KeyResolver
from gc_assets.core.objects import EditableObjects
from gc_assets.lakes.entries import ENTRY_SCHEMA, LOGICAL_ENTRY_SCHEMA
from gc_assets.lakes.file_kinds import FILE_KINDS, Kind
from gc_assets.lakes.kind import LakeKind
from gc_assets.lakes.protocol import (
    EXPIRED,
    RETAINED,
    Commit,
    Container,
    ExpiryAction,
    FrozenRefs,
    Lake,
    Retention,
    as_expiring,
    as_reversible,
    decode_batch,
)
from gc_assets.stages.mark.commit_rows import build_commit_rows
from gc_assets.state.schemas import EXPIRY_PLAN, LIVE_CONTENTS, POLICY_TABLE, REACHABLE_SNAPSHOTS

# Number of single bits that are flipped in a container, one at a time, at seeded positions.
FLIPS = 60


@dataclass(frozen=True)
class Sample:
    """A lake with an expired and a retained commit at `as_of`.

    `refs` are the branches and tags with their heads, `files` the data files that commits
    reference, `expired` the expired commits, and `stranger` the address of a file outside the lake.
    `make_unreadable` damages a ref and returns its name in the error. No file is younger than
    `grace`.
    """

    kind: LakeKind
    config: LakeConfig
    objects: EditableObjects
    storage: str
    as_of: datetime
    grace: datetime
    refs: Mapping[tuple[str, str], str]
    files: frozenset[str]
    expired: frozenset[str]
    stranger: str
    make_unreadable: Callable[[], str]
    # True if checksums cover all bytes that are read from its containers.
    checksums: bool = False
    secrets: tuple[str, ...] = ()

    def open(self) -> Lake:
        return self.kind.open(self.config, self.objects, [self.storage])


@dataclass(frozen=True)
class Read:
    """A lake as a run reads it."""

    lake: Lake
    refs: FrozenRefs
    commits: list[Commit]
    graph: pa.Table
    containers: dict[str, tuple[Container, bytes, pa.RecordBatch]]

    @classmethod
    def of(cls, sample: Sample) -> Read:
        lake = sample.open()
        refs = lake.freeze(sample.as_of)
        commits = [commit for source in refs.sources for commit in lake.commits(source)]
        graph = pa.Table.from_batches([build_commit_rows(commits, KeyResolver([("storage", sample.storage)]))])
        return cls(lake, refs, commits, graph, dict(_decode_all(sample, lake, commits)))

    def children(self) -> Iterator[dict[str, Any]]:
        for _, _, rows in self.containers.values():
            yield from rows.to_pylist()


def _decode_all(sample: Sample, lake: Lake, commits: list[Commit]) -> Iterator[tuple[str, tuple[Container, bytes, pa.RecordBatch]]]:
    """Yield all containers of the commits with their bytes and children, each once."""
    roots = [root for commit in commits for root in commit.content_roots if root.is_container]
    waiting = [Container(root.address, root.kind, root.size_bytes) for root in roots]
    seen = set[str]()
    while waiting:
        container = waiting.pop()
        if container.address in seen:
            continue
        seen.add(container.address)
        raw = sample.objects.read(container.address)
        rows = lake.decode(container, raw)
        for row in rows.to_pylist():
            if row["is_container"]:
                names = ("address", "kind", "size_bytes", "expected_entries", "snapshot_id")
                waiting.append(Container(**{name: row[name] for name in names}))
        yield container.address, (container, raw, rows)


def retain_sample(sample: Sample, read: Read) -> Retention:
    return read.lake.retain(read.refs, read.graph, sample.as_of, sample.grace)


def states(retention: Retention) -> dict[str, str]:
    rows = retention.reachable
    return dict(zip(rows["commit_id"].to_pylist(), rows["state"].to_pylist(), strict=True))


def actions_of(retention: Retention) -> list[ExpiryAction]:
    return [ExpiryAction(**row) for row in retention.expiry.to_pylist()]


class LakeContract:
    """Subclass it and define the fixture `sample`."""

    def test_freeze_returns_every_ref_with_its_head(self, sample: Sample) -> None:
        refs = sample.open().freeze(sample.as_of)
        assert {(ref.ref_type, ref.ref_name): ref.head_commit_id for ref in refs.refs} == sample.refs
        assert (refs.lake, refs.kind) == (sample.config.name, sample.kind.name)

    def test_unreadable_ref_is_reported(self, sample: Sample) -> None:
        name = sample.make_unreadable()
        try:
            message = " ".join(item.reason for item in sample.open().freeze(sample.as_of).unreadable)
        except LakeUnreadable as error:
            message = str(error)
        assert name in message
        assert not [secret for secret in sample.secrets if secret in message]

    def test_commits_are_unique_with_parents_and_utc_times(self, sample: Sample) -> None:
        read = Read.of(sample)
        ids = [(commit.table_uuid, commit.commit_id) for commit in read.commits]
        assert len(set(ids)) == len(ids)
        known = {commit for _, commit in ids}
        assert known >= set(sample.refs.values()) | sample.expired
        assert {parent for commit in read.commits for parent in commit.parents} <= known
        assert {str(commit.committed_at.utcoffset()) for commit in read.commits} == {"0:00:00"}

    def test_containers_reference_every_data_file(self, sample: Sample) -> None:
        read = Read.of(sample)
        assert {row["address"] for row in read.children()} >= sample.files
        for _, _, rows in read.containers.values():
            assert rows.schema in (ENTRY_SCHEMA, LOGICAL_ENTRY_SCHEMA)
        assert {row["kind"] for row in read.children()} <= set(FILE_KINDS)

    def test_incomplete_container_is_refused(self, sample: Sample) -> None:
        read = Read.of(sample)
        assert read.containers
        for container, raw, _ in read.containers.values():
            for damaged in (b"", raw[:1], raw[: len(raw) // 2], raw[:-1], bytes(len(raw)), raw[::-1]):
                with pytest.raises(FormatError) as caught:
                    read.lake.decode(container, damaged)
                assert container.address in str(caught.value)

    def test_container_with_flipped_bit_is_refused_or_decodes_equally(self, sample: Sample) -> None:
        """Formats without checksums cannot detect every flipped bit."""
        read = Read.of(sample)
        for container, raw, rows in read.containers.values():
            rnd = random.Random(container.kind)
            for _ in range(FLIPS):
                damaged = bytearray(raw)
                damaged[rnd.randrange(len(raw))] ^= 1 << rnd.randrange(8)
                try:
                    found = read.lake.decode(container, bytes(damaged))
                except FormatError as error:
                    assert container.address in str(error)  # noqa: PT017  (not every flipped bit raises)
                else:
                    assert found.schema == rows.schema
                    assert not sample.checksums or found.equals(rows)

    def test_decode_batch_equals_decode(self, sample: Sample) -> None:
        read = Read.of(sample)
        items = [(container, raw) for container, raw, _ in read.containers.values()] * 9
        expected = [rows for _, _, rows in read.containers.values()] * 9
        assert decode_batch(read.lake, items) == expected
        container, raw = items[-1]
        *others, error = decode_batch(read.lake, [*items[:-1], (container, raw[:-1])])
        assert others == expected[:-1]
        assert isinstance(error, FormatError)
        assert container.address in str(error)

    def test_claims_cover_all_lake_files_and_no_others(self, sample: Sample) -> None:
        read = Read.of(sample)
        claims = {claim.address for claim in read.refs.claims if claim.collect}
        claims |= {row["address"] for row in read.children() if row["kind"] == Kind.TABLE_LOCATION}
        assert all(address.endswith("/") for address in claims)
        spelled = tuple(address.removeprefix("file://") for address in claims)
        assert [address for address in sample.files if not address.removeprefix("file://").startswith(spelled)] == []
        assert not sample.stranger.removeprefix("file://").startswith(spelled)

    def test_retention_returns_state_for_every_commit_and_keeps_heads(self, sample: Sample) -> None:
        read = Read.of(sample)
        retention = retain_sample(sample, read)
        assert retention.reachable.schema.names == REACHABLE_SNAPSHOTS.schema.names
        decided = [(row["table_uuid"], row["commit_id"]) for row in retention.reachable.to_pylist()]
        assert sorted(decided, key=str) == sorted(((commit.table_uuid, commit.commit_id) for commit in read.commits), key=str)
        found = states(retention)
        assert {head for head in sample.refs.values() if found[head] != RETAINED} == set()
        assert {commit for commit, state in found.items() if state == EXPIRED} == sample.expired

    def test_retention_is_deterministic(self, sample: Sample) -> None:
        read = Read.of(sample)
        first, second = retain_sample(sample, read), retain_sample(sample, read)
        assert first.reachable.equals(second.reachable)
        assert first.expiry.equals(second.expiry)

    def test_lake_kind_describes_configured_lake(self, sample: Sample) -> None:
        read, kind = Read.of(sample), sample.kind
        retention = retain_sample(sample, read)
        assert (as_expiring(read.lake) is not None, as_reversible(read.lake) is not None) == (kind.edits_history, kind.undoes_edits)
        assert bool(retention.expiry.num_rows) == kind.edits_history
        assert (retention.contents is not None) == kind.has_live_contents
        if retention.contents is not None:
            assert retention.contents.schema.names == LIVE_CONTENTS.schema.names
        assert retention.expiry.schema.names == EXPIRY_PLAN.schema.names
        assert (read.lake.name, read.lake.kind) == (sample.config.name, kind.name)

    def test_policy_rows_have_the_columns_of_policy_table(self, sample: Sample) -> None:
        rows = sample.config.policy_rows(sample.as_of)
        assert rows
        assert {frozenset(row) for row in rows} == {frozenset(POLICY_TABLE.schema.names) - {"run_id", "run_date"}}

    def test_pickled_lake_works(self, sample: Sample) -> None:
        read = Read.of(sample)
        lake, refs = pickle.loads(pickle.dumps((read.lake, read.refs)))  # noqa: S301  (bytes of this test)
        assert refs == read.refs
        assert [commit for source in refs.sources for commit in lake.commits(source)] == read.commits
        for container, raw, rows in read.containers.values():
            assert lake.decode(container, raw).equals(rows)
        assert lake.retain(refs, read.graph, sample.as_of, sample.grace).reachable.equals(retain_sample(sample, read).reachable)

    def test_pickled_lake_contains_no_secret(self, sample: Sample) -> None:
        read = Read.of(sample)
        sent = pickle.dumps((read.lake, read.refs, read.commits, list(read.containers.values())))
        assert [secret for secret in sample.secrets if secret.encode() in sent] == []

    def test_repeated_expire_makes_each_edit_only_once(self, sample: Sample) -> None:
        lake = as_expiring(sample.open())
        if lake is None:
            pytest.skip("lakes of the kind never edit history")
        actions = actions_of(retain_sample(sample, Read.of(sample)))
        assert {outcome.verdict for outcome in lake.expire(actions, sample.as_of, sample.grace)} == {"done"}
        after = Read.of(sample)
        assert {(ref.ref_type, ref.ref_name): ref.head_commit_id for ref in after.refs.refs} == sample.refs
        assert actions_of(retain_sample(sample, after)) == []
        assert {outcome.verdict for outcome in lake.expire(actions, sample.as_of, sample.grace)} == {"absent"}

    def test_expire_skips_edits_that_the_policy_does_not_require(self, sample: Sample) -> None:
        lake = as_expiring(sample.open())
        if lake is None:
            pytest.skip("lakes of the kind never edit history")
        actions = actions_of(retain_sample(sample, Read.of(sample)))
        long_ago = sample.as_of.replace(year=2000)
        assert {outcome.verdict for outcome in lake.expire(actions, long_ago, sample.grace)} == {"changed"}
        assert actions_of(retain_sample(sample, Read.of(sample))) == actions

    def test_undo_reverses_edits(self, sample: Sample) -> None:
        lake = as_reversible(sample.open())
        if lake is None:
            pytest.skip("lakes of the kind are not reversible")
        before = Read.of(sample)
        actions = actions_of(retain_sample(sample, before))
        assert {outcome.verdict for outcome in lake.expire(actions, sample.as_of, sample.grace)} == {"done"}
        assert {outcome.verdict for outcome in lake.undo(actions)} == {"done"}
        assert actions_of(retain_sample(sample, Read.of(sample))) == actions
