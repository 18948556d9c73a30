"""Icechunk's library percent-encodes ref names in some stores, so that a rule of `retention.refs` silently did not match them.

Source: `object_store`, `PathPart`, which icechunk uses on disks, Azure and Google Cloud Storage, and on S3 only if
`Storage.new_s3_object_store` opens the repository. The branch `release#1` is in `refs/branch.release%231/`. With the name
`release%231`, `keep: forever` did not apply and three commits expired.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import icechunk
import pytest
import zarr

from gc_assets.lakes.icechunk.config import IcechunkLakeConfig
from gc_assets.lakes.icechunk.lake import IcechunkLake
from gc_assets.lakes.icechunk.ref_names import escape, unescape
from gc_assets.lakes.icechunk.refs import ref_address
from gc_assets.lakes.protocol import PROTECTED
from gc_assets.stores.store import open_objects
from tests.depth import in_turn
from tests.lakes.icechunk.builder import RepositoryBuilder, numbers, set_value
from tests.lakes.icechunk.icechunk_lakes import deleted_refs, edits, expire, in_state, lake_at, plan_actions, retention_of, undo
from tests.s3.servers import REGION
from tests.stages.bucket_lakes import icechunk_storage
from tests.stores.azure_bench import open_azure_bench
from tests.stores.gcs_bench import open_gcs_bench
from tests.stores.s3_bench import S3Bench, open_s3_bench

pytestmark = in_turn

START = datetime(2026, 1, 1, tzinfo=UTC)
LATER = START + timedelta(days=30)
# Every printable character of ASCII that the library's local store encodes, and characters outside of ASCII.
SPECIAL = [
    *("release#1", "100%", "%231", "a*b", "a\\b", "a?b", 'a"b', "<a>", "[a]", "a^b", "`a`"),
    *("{a|b}", "~a", "rel-é", "日本", "a\tb", "a b", "a.b"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> RepositoryBuilder:
    """Build a history of five snapshots, with a branch and a tag of each special name at its end."""
    builder = RepositoryBuilder.create(tmp_path_factory.mktemp("names") / "repo", START)
    for day in range(1, 5):
        write = numbers("values", range(4)) if day == 1 else set_value("values", day % 4, day)
        tip = builder.commit("main", START + timedelta(days=day), write)
    for name in SPECIAL:
        builder.branch(name, tip)
        builder.tag(f"tag {name}", tip)
    return builder


def test_ref_names_equal_those_of_icechunk(built: RepositoryBuilder) -> None:
    refs = lake_at(built.path).freeze(LATER).refs
    assert {ref.ref_name for ref in refs if ref.ref_type == "branch"} == {"main", *SPECIAL}
    assert {ref.ref_name for ref in refs if ref.ref_type == "tag"} == {f"tag {name}" for name in SPECIAL}
    assert all(built.repo.lookup_branch(ref.ref_name) == ref.head_commit_id for ref in refs if ref.ref_type == "branch")


@pytest.mark.parametrize("name", ["release#1", "100%", "rel-é"])
def test_retention_rule_matches_decoded_ref_name(built: RepositoryBuilder, name: str) -> None:
    retention = retention_of(lake_at(built.path, {"default": 1, "tags": "ignore", "refs": [{"match": name, "keep": "forever"}]}), LATER)
    assert edits(retention) == {}
    assert len(in_state(retention, "retained")) == 5


def test_ref_directory_names_are_encoded_like_icechunk(built: RepositoryBuilder) -> None:
    for name in SPECIAL:
        assert (built.path / "refs" / f"branch.{escape(name)}").is_dir()
        assert unescape(escape(name)) == name


@pytest.mark.parametrize("directory", ["release#1", "%zz", "%FF", "a%c3%a9", "~a", "é"])
def test_directory_name_that_icechunk_cannot_produce_is_not_decoded(directory: str) -> None:
    """On S3 names are not encoded, and a repository can be copied from there."""
    assert unescape(directory) == directory


def test_branch_with_an_escaped_name_is_deleted_and_restored(tmp_path: Path) -> None:
    builder = RepositoryBuilder.create(tmp_path / "repo", START)
    old = builder.commit("main", START + timedelta(days=1), numbers("values", range(2)))
    builder.branch("work#1", old)
    for day in range(2, 5):
        builder.commit("main", START + timedelta(days=day), set_value("values", 0, day))
    lake = lake_at(tmp_path / "repo", {"default": "27d", "refs": [{"match": "main", "keep": 1}]}, delete_expired_branches=True)
    actions = plan_actions(lake, LATER)
    assert [outcome.verdict for outcome in expire(lake, LATER, actions)] == ["done"] * len(actions)
    assert "work#1" in {action.ref_name for action in actions}
    assert set(builder.reopen().list_branches()) == {"main"}
    # Release 0.3 wrote the encoded name, which would be encoded again.
    earlier = [replace(action, ref_name="work%231") for action in actions if action.ref_name == "work#1"]
    [outcome] = lake.undo(earlier)
    assert outcome.verdict == "failed"
    assert "if release 0.3 deleted the branch, its name is 'work#1'" in (outcome.error or "")
    assert set(builder.reopen().list_branches()) == {"main"}

    undo(lake, actions)
    assert builder.reopen().lookup_branch("work#1") == old


def test_two_directories_for_one_branch_name_are_both_kept(tmp_path: Path) -> None:
    """`branch.a#1` was copied from S3, `branch.a%231` was created on the disk."""
    builder = RepositoryBuilder.create(tmp_path / "repo", START)
    old = builder.commit("main", START + timedelta(days=1), numbers("values", range(2)))
    builder.branch("a#1", old)
    (tmp_path / "repo/refs/branch.a%231").rename(tmp_path / "repo/refs/branch.a#1")
    new = builder.commit("main", START + timedelta(days=2), set_value("values", 0, 5))
    builder.branch("a#1", new)
    lake = lake_at(tmp_path / "repo", {"default": "1d"}, delete_expired_branches=True)
    assert {ref.head_commit_id for ref in lake.freeze(LATER).refs if ref.ref_name == "a#1"} == {old, new}
    retention = retention_of(lake, LATER)
    assert deleted_refs(retention) == set()
    assert old in in_state(retention, "retained")
    assert any("2 branches are named 'a#1'" in note for note in retention.notes)


def test_branch_with_unencoded_directory_name_is_never_deleted(tmp_path: Path) -> None:
    builder = RepositoryBuilder.create(tmp_path / "repo", START)
    old = builder.commit("main", START + timedelta(days=1), numbers("values", range(2)))
    builder.branch("a#1", old)
    (tmp_path / "repo/refs/branch.a%231").rename(tmp_path / "repo/refs/branch.a#1")
    builder.commit("main", START + timedelta(days=29), set_value("values", 0, 5))
    lake = lake_at(tmp_path / "repo", {"default": "7d"}, delete_expired_branches=True)
    assert deleted_refs(retention_of(lake, LATER)) == set()
    assert {ref.ref_name for ref in lake.freeze(LATER).refs} == {"main", "a#1"}


@pytest.mark.parametrize("location", ["file:///lake/repo", "abfss://lake@account.dfs.core.windows.net/repo", "gs://lake/repo"])
def test_ref_names_are_encoded_on_all_stores_except_s3(location: str) -> None:
    assert ref_address("s3://lake/repo", "branch", "release#1") == "s3://lake/repo/refs/branch.release#1/ref.json"
    assert ref_address(location, "branch", "release#1") == f"{location}/refs/branch.release%231/ref.json"


# A prefix that icechunk does not encode.
PREFIX = "lakes/"
BENCHES = {
    "azure": lambda: open_azure_bench(prefix=PREFIX),
    "gcs": lambda: open_gcs_bench(prefix=PREFIX),
    "s3": lambda: open_s3_bench("versity", prefix=PREFIX),
    "object_store": lambda: open_s3_bench("versity", prefix=PREFIX),
}


class BucketRepository:
    """A repository of five snapshots in a bucket, with a branch of each name at its end."""

    def __init__(self, kind: str, bench: Any, names: Sequence[str]) -> None:
        self.bench, self.storage = bench, icechunk_storage(bench, "weather")
        if kind == "object_store":
            self.storage = s3_object_store(bench, "weather")
        self.repo = icechunk.Repository.create(self.storage, icechunk.RepositoryConfig(inline_chunk_threshold_bytes=0))
        for number in range(4):
            session = self.repo.writable_session("main")
            zarr.open_group(session.store, mode="a").require_array("x", shape=(4,), chunks=(2,), dtype="i4")[...] = number
            self.tip = session.commit(str(number))
        for name in names:
            self.repo.create_branch(name, self.tip)

    def lake(self, retention: dict[str, Any] | None = None, **expiry: Any) -> IcechunkLake:
        location = f"{self.bench.store.location}weather/"
        settings = {"name": "weather", "kind": "icechunk", "location": location, "retention": retention or {}, "expiry": expiry}
        return IcechunkLake(IcechunkLakeConfig.model_validate(settings), open_objects(self.bench.connections))


def s3_object_store(bench: S3Bench, name: str) -> icechunk.Storage:
    """Return the storage of a repository that icechunk reaches through `object_store`."""
    server = bench.server
    options = icechunk.S3Options(region=REGION, endpoint_url=server.endpoint, allow_http=True, force_path_style=True)
    keys = icechunk.S3Credentials.Static(icechunk.S3StaticCredentials(server.access_key, server.secret_key))
    return icechunk.Storage.new_s3_object_store(options, bench.bucket, f"{bench.prefix}{name}", keys)


def count_retained(lake: IcechunkLake) -> int:
    return len(in_state(retention_of(lake, datetime.now(UTC) + timedelta(days=30)), "retained"))


@pytest.mark.parametrize("kind", ["azure", "gcs", "s3"])
def test_ref_names_in_a_bucket_equal_those_of_icechunk(kind: str) -> None:
    with BENCHES[kind]() as bench:
        # Azurite and versitygw refuse or rewrite some of the others.
        names = [name for name in SPECIAL if not set(name) & set("\\?\t")]
        repository = BucketRepository(kind, bench, names)
        assert {ref.ref_name for ref in repository.lake().freeze(LATER).refs} == {"main", *names}
        for name in ("release#1", "100%", "rel-é", "%231"):
            assert count_retained(repository.lake({"default": 1, "refs": [{"match": re.escape(name), "keep": "forever"}]})) == 5
        assert count_retained(repository.lake({"default": 1})) == 2


@pytest.mark.parametrize("kind", ["azure", "gcs"])
def test_branch_with_an_escaped_name_in_a_bucket_is_deleted_and_restored(kind: str) -> None:
    with BENCHES[kind]() as bench:
        repository, now = BucketRepository(kind, bench, ["work#1"]), datetime.now(UTC) + timedelta(days=30)
        session = repository.repo.writable_session("main")
        zarr.open_group(session.store, mode="a")["x"][...] = 9
        session.commit("after the branch")
        before = bench.everything()
        lake = repository.lake({"default": "1d", "refs": [{"match": "main", "keep": 1}]}, delete_expired_branches=True)
        actions = plan_actions(lake, now)
        assert "work#1" in {action.ref_name for action in actions}
        assert {outcome.verdict for outcome in expire(lake, now, actions)} == {"done"}
        assert set(icechunk.Repository.open(repository.storage).list_branches()) == {"main"}
        undo(lake, actions)
        assert icechunk.Repository.open(repository.storage).lookup_branch("work#1") == repository.tip
        assert bench.everything() == before


@pytest.mark.parametrize("rule", ["release#1", "release%231"])
def test_ambiguous_ref_name_on_s3_matches_rules_for_both_forms(rule: str) -> None:
    """icechunk's usual client writes the name itself, its other client encodes it. The key does not tell which."""
    with BENCHES["object_store"]() as bench:
        repository = BucketRepository("object_store", bench, ["release#1"])
        assert count_retained(repository.lake({"default": 1})) == 2
        lake = repository.lake({"default": 1, "refs": [{"match": re.escape(rule), "keep": "forever"}]}, delete_expired_branches=True)
        assert {ref.ref_name for ref in lake.freeze(LATER).refs} == {"main", "release%231"}
        assert count_retained(lake) == 5
        notes = retention_of(lake, datetime.now(UTC) + timedelta(days=30)).notes
        assert any("branch release%231 may also be named 'release#1', which has another rule" in note for note in notes)


@pytest.mark.parametrize("match", ["(?!release#).*", "(?!release%).*"])
def test_branch_with_ambiguous_name_on_s3_is_protected_from_idle_deletion(match: str) -> None:
    with BENCHES["object_store"]() as bench:
        repository = BucketRepository("object_store", bench, ["release#1", "plain"])
        branches = {ref.ref_name: ref.properties.get(PROTECTED) for ref in repository.lake().freeze(LATER).refs}
        assert branches["plain"] is None
        assert "may also be named 'release#1'" in (branches["release%231"] or "")


def test_retention_rule_for_the_encoded_name_still_applies(built: RepositoryBuilder) -> None:
    """Earlier releases knew refs by their encoded names only, and rules may still spell these."""
    lake = lake_at(built.path, {"default": 1, "tags": "ignore", "refs": [{"match": "release%231", "keep": "forever"}]})
    assert len(in_state(retention_of(lake, LATER), "retained")) == 5
