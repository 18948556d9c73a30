"""Rules that decide if an unreferenced file in a claimed prefix is foreign, that is, written by
another program.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from gc_assets.core.claims import Claims, Owner, PrefixClaim
from gc_assets.core.foreign import (
    HIDDEN_PATH,
    NEW_CLAIM,
    OTHER_FORMAT,
    UNKNOWN_DIRECTORY,
    UNKNOWN_PATH,
    AcceptedPrefix,
    ClaimAges,
    ForeignRules,
    KnownFiles,
)
from gc_assets.core.hashing import xxhash64
from gc_assets.lakes.iceberg.file_names import DATA_NAMES, OWN_NAMES
from gc_assets.lakes.kinds import KINDS

NOW = datetime(2026, 11, 20, tzinfo=UTC)
UUID = "7c0f5a52-3b1e-4f3c-9d0e-5b7d3c2a1f00"
OWN = f"00000-0-{UUID}.parquet"
IMPORTED = f"part-00000-{UUID}-c000.snappy.parquet"


def rules(**settings: object) -> ForeignRules:
    claims = Claims.of([PrefixClaim("t/", Owner("shop", "1"), table="1"), PrefixClaim("w/chunks/", Owner("weather", None))])
    return ForeignRules(claims, {"shop": OWN_NAMES}, **{"locations": frozenset({"t/"}), **settings})  # type: ignore[arg-type]


def find_foreign(
    keys: Collection[str], known: Collection[str] = (), given: ForeignRules | None = None, roots: Collection[str] = (), days: float = 10
) -> Mapping[str, str | None]:
    """Map candidates of this age to their rules."""
    given = given or rules()
    lakes = ["shop" if key.startswith("t/") else "weather" for key in keys]
    times = pa.array([NOW - timedelta(days=days)] * len(keys), pa.timestamp("us", "UTC"))
    files = pa.RecordBatch.from_pydict({"key": list(keys), "last_modified": times, "lake": lakes})
    targets = given.find_targets(files).to_pylist()
    answered = KnownFiles(targets, [DATA_NAMES]).find(pa.array(list(known), pa.string())) if known else set[str]()
    return dict(zip(keys, given.find_foreign(files, answered, roots).to_pylist(), strict=True))


@pytest.mark.parametrize(
    "name",
    [
        OWN,  # pyiceberg
        f"00007-12-{UUID}-00001.parquet",  # Spark, Flink
        f"00007-12-{UUID}-00001-deletes.parquet",
        f"00000-1-{UUID}-3-00002.orc",  # Spark streaming
        f"00001-1700000000000-{UUID}-00001.avro",  # Kafka Connect
        "00000-0-root_20261101_1c5b-job_1700_0001-1-00001.parquet",  # Hive
        f"20261103_101112_00042_abcde-{UUID}.parquet",  # Trino
        f"00012-{UUID}.metadata.json",
        f"00012-{UUID}.gz.metadata.json",
        "v3.metadata.json",
        "00099-half.metadata.json",
        "snap-7-lost.avro",
        "lost-m0.avro",
        f"snap-123456789-1-{UUID}.avro",
        f"{UUID}-m12.avro",
        f"123456-{UUID}.stats",
        f"{UUID}.metadata.json",  # Hadoop tables, before the rename
        f"{UUID}-version-hint.temp",
        f"{UUID.replace('-', '')}-0a1b-00000-0-12-00001.avro",  # Flink
    ],
)
def test_file_named_by_iceberg_writer_is_collected_in_any_directory(name: str) -> None:
    assert find_foreign([f"t/data/day=2026-01-01/{name}"]) == {f"t/data/day=2026-01-01/{name}": None}


@pytest.mark.parametrize(
    "name",
    [
        IMPORTED,  # Spark, Delta
        f"20261103_101112_00042_abcde_{UUID}",  # Trino's Hive connector
        "000000_0",  # Hive
        f"{UUID}.parquet",
        f"data-{UUID}-0.parquet",  # Paimon
        "invoices.csv",
        f"{UUID}-0_0-28-33_20261101101112.parquet",  # Hudi
        "02222-49358108-dc6c-4adc-8850-600594004045.parquet",  # a number and a uuid with many digits
    ],
)
def test_other_file_name_in_unknown_directory_is_foreign(name: str) -> None:
    assert find_foreign([f"t/landing/{name}"]) == {f"t/landing/{name}": UNKNOWN_DIRECTORY}


@pytest.mark.parametrize(
    "key, known, rule",
    [
        ("t/data/left.parquet", f"t/data/{OWN}", None),
        ("t/data/day=2/left.parquet", f"t/data/day=2/{OWN}", None),
        # A partition to which only others write.
        ("t/data/day=2/left.parquet", f"t/data/day=1/{OWN}", UNKNOWN_DIRECTORY),
        ("t/data/day=2/hour=1/left.parquet", f"t/data/day=1/{OWN}", UNKNOWN_DIRECTORY),
        ("t/data/day=2/left.parquet", "t/data/day=1/named-by-hand.parquet", UNKNOWN_DIRECTORY),
        # A batch that `add_files` adds tomorrow, next to the batch of today.
        (f"t/{IMPORTED}", "t/part-00001-c000.snappy.parquet", UNKNOWN_DIRECTORY),
        ("t/data/left.parquet", "t/data/named-by-hand.parquet", UNKNOWN_DIRECTORY),
        # A table has metadata from the start, in `metadata/` or in `write.metadata.path`.
        ("t/metadata/schema.json", f"t/metadata/00001-{UUID}.metadata.json", UNKNOWN_DIRECTORY),
        ("t/meta/model.parquet", f"t/meta/{UUID}-m0.avro", UNKNOWN_DIRECTORY),
        ("t/metadata/.version-hint.text.crc", f"t/metadata/00001-{UUID}.metadata.json", None),
        (f"t/day=2/{IMPORTED}", "t/day=1/part-00001-c000.snappy.parquet", UNKNOWN_DIRECTORY),
        ("t/left.parquet", f"t/{OWN}", None),
        ("t/data/sub/left.parquet", f"t/data/{OWN}", UNKNOWN_DIRECTORY),
        ("t/.left.parquet.crc", f"t/{OWN}", None),
        ("t/x/.left.parquet.crc", f"t/{OWN}", UNKNOWN_DIRECTORY),
        ("t/x/.left.parquet.crc", f"t/x/{OWN}", None),
    ],
)
def test_other_file_name_is_collected_next_to_known_files(key: str, known: str, rule: str | None) -> None:
    assert find_foreign([key], [known]) == {key: rule}


PREFIXES = ("r/data/", "w/chunks/", "w/overwritten/")
CHUNK = "C4AW21NG8ZSR3AGM9QA0"
PARTITION, XID = "g1bcq7pksdudh04qgun0", "d0l1bcq7pksdudh04qgg"


@pytest.mark.parametrize(
    "key, rule",
    [
        (f"w/chunks/{CHUNK}", None),
        (f"w/chunks/{CHUNK}#12", None),  # a write that did not finish
        (f"w/overwritten/repo.30737018342001.{CHUNK}", None),
        ("w/chunks/x.csv", UNKNOWN_PATH),
        (f"w/chunks/sub/{CHUNK}", UNKNOWN_PATH),
        (f"w/chunks/{CHUNK}.bak", UNKNOWN_PATH),
        (f"w/chunks/x\n{CHUNK}", UNKNOWN_PATH),
        (f"w/overwritten/{CHUNK}", UNKNOWN_PATH),
        (f"r/data/{PARTITION}/{XID}", None),
        (f"r/data/{PARTITION}/{XID},c2ln", None),
        (f"r/data/{PARTITION}/{XID}.part_00001", None),  # an upload to Google Cloud Storage
        (f"r/data/{PARTITION}/d0unknown00000000000", None),  # `w` is not in the alphabet of an xid
        (f"r/data/{PARTITION}/x", UNKNOWN_PATH),
        ("r/data/departmentonboarding/x.csv", UNKNOWN_PATH),  # a word with the letters of an xid
        (f"r/data/{XID}", None),
        (f"r/data/a/{PARTITION}/{XID}", UNKNOWN_PATH),
        ("r/data/customertransactions/x.csv", UNKNOWN_PATH),
        ("r/data/customertransactions", UNKNOWN_PATH),
        ("r/data/20240101000000000000/x", UNKNOWN_PATH),
        (f"r/data/raw/{XID}", UNKNOWN_PATH),
        ("r/data/customers.csv", UNKNOWN_PATH),
        ("r/data/2024/01/x.parquet", UNKNOWN_PATH),
        (f"r/data/{PARTITION}/sub/x", UNKNOWN_PATH),
        (f"r/data/{PARTITION.upper()}/x", UNKNOWN_PATH),
        (f"r/data/{PARTITION.upper()}/a\n{XID}", UNKNOWN_PATH),
    ],
)
def test_paths_unlike_those_of_format_are_foreign(key: str, rule: str | None) -> None:
    claims = Claims.of([PrefixClaim(prefix, Owner("ml" if prefix == "r/data/" else "weather", None)) for prefix in PREFIXES])
    paths = {name: KINDS[kind].files.own_paths or "" for name, kind in (("ml", "lakefs"), ("weather", "icechunk"))}
    given = ForeignRules(claims, {}, paths=paths)
    lakes = ["ml" if key.startswith("r/") else "weather"]
    times = pa.array([NOW - timedelta(days=10)], pa.timestamp("us", "UTC"))
    files = pa.RecordBatch.from_pydict({"key": [key], "last_modified": times, "lake": lakes})
    assert given.find_foreign(files, ()).to_pylist() == [rule]
    assert bool(given.find_targets(files)) == (rule is not None)
    accepted = replace(given, accepted=tuple(AcceptedPrefix(prefix, NOW) for prefix in PREFIXES))
    assert accepted.find_foreign(files, ()).to_pylist() == [None]
    dead = replace(given, accepted=tuple(AcceptedPrefix(prefix, NOW, of_table=True) for prefix in PREFIXES))
    assert dead.find_foreign(files, ()).to_pylist() == [rule]


def test_file_in_format_directory_needs_no_known_file() -> None:
    assert find_foreign(["w/chunks/ABC"]) == {"w/chunks/ABC": None}


@pytest.mark.parametrize(
    "key, known, rule",
    [
        (f"t/data/_temporary/0/{OWN}", f"t/data/{OWN}", HIDDEN_PATH),
        (f"t/data/.staging/{OWN}", f"t/data/{OWN}", HIDDEN_PATH),
        ("t/data/_SUCCESS", f"t/data/{OWN}", HIDDEN_PATH),
        ("t/data/._SUCCESS.crc", f"t/data/{OWN}", HIDDEN_PATH),
        (f"t/data/_x=1/{OWN}", f"t/data/{OWN}", None),  # a partition column
        (f"t/data/_old/{OWN}", "t/data/_old/deep/x.parquet", None),
        ("t/data/_mine.parquet", "t/data/_mine.parquet", None),
        ("t/data/a\nb/_x.parquet", f"t/data/a\nb/{OWN}", HIDDEN_PATH),
        (f"t/data/a\nb/{OWN}", "t/x", None),
        ("w/chunks/_tmp/ABC", "w/chunks/XYZ", HIDDEN_PATH),
    ],
)
def test_hidden_path_never_referenced_by_commit_is_kept(key: str, known: str, rule: str | None) -> None:
    assert find_foreign([key], [known, f"t/data/{OWN}"]) == {key: rule}


def test_only_iceberg_file_names_are_collected_in_other_datasets() -> None:
    keys = [f"t/data/{OWN}", "t/data/left.parquet", "t/bucket-0/data-1.parquet", "t/other/x"]
    found = find_foreign(keys, [f"t/data/{OWN}"], roots=["t/"])
    assert found == {keys[0]: None} | dict.fromkeys(keys[1:], OTHER_FORMAT)


@pytest.mark.parametrize("root, rule", [("", None), ("w/", None), ("w/chunks/", None), ("w/chunks/x/", OTHER_FORMAT)])
def test_other_dataset_counts_only_inside_format_directory(root: str, rule: str | None) -> None:
    """One object in the root of a bucket does not stop the collection of a repository."""
    assert find_foreign(["w/chunks/x/1"], roots=[root]) == {"w/chunks/x/1": rule}


@pytest.mark.parametrize("days, rule", [(11, NEW_CLAIM), (9, None)])
def test_file_older_than_a_new_claim_is_foreign(days: float, rule: str | None) -> None:
    ages = ClaimAges({"t/": {"1": NOW - timedelta(days=10)}})
    assert find_foreign([f"t/data/{OWN}"], given=rules(ages=ages), days=days) == {f"t/data/{OWN}": rule}


@dataclass(frozen=True)
class KeyList:
    keys: tuple[str, ...]

    def contains(self, hashes: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.isin(hashes, self.read_sorted())

    def read_sorted(self) -> NDArray[np.int64]:
        return np.sort(xxhash64(pa.array(self.keys, pa.string())))


def test_copied_file_still_counts_as_older_than_new_claim() -> None:
    ages, copied, leftover = ClaimAges({"t/": {"1": NOW - timedelta(days=10)}}), f"t/data/{OWN}", f"t/data/{OWN.replace('0', '1')}"
    given = rules(ages=ages, remembered=KeyList((copied,)))
    assert find_foreign([copied, leftover], given=given, days=5) == {copied: NEW_CLAIM, leftover: None}
    accepted = replace(given, accepted=(AcceptedPrefix("t/", NOW),))
    assert find_foreign([copied], given=accepted, days=5) == {copied: None}
    no_new_claim = replace(given, ages=ClaimAges({"t/": {"1": None}}))
    assert find_foreign([copied], given=no_new_claim, days=5) == {copied: None}


@pytest.mark.parametrize("days, rule", [(11, NEW_CLAIM), (9, NEW_CLAIM), (7, None)])
def test_other_file_name_must_be_younger_than_first_run_with_claim(days: float, rule: str | None) -> None:
    """The file may have existed between the last run without the claim and the creation of the
    table.
    """
    ages, seen = (ClaimAges({"t/": {"1": NOW - timedelta(days=number)}}) for number in (10, 8))
    found = find_foreign(["t/data/left.parquet"], [f"t/data/{OWN}"], rules(ages=ages, seen=seen), days=days)
    assert found == {"t/data/left.parquet": rule}


@pytest.mark.parametrize(
    "prefix, before, freed",
    [
        ("t/", 1, {"t/x/left.parquet"}),
        ("t/x/", 1, {"t/x/left.parquet"}),
        ("t/x/", 20, set[str]()),  # the file was written after the record
        ("t/y/", 1, set[str]()),
        ("t/_tmp/", 1, {"t/_tmp/left.parquet"}),
        ("t/delta/", 1, {"t/delta/left.parquet"}),
    ],
)
def test_older_files_under_accepted_prefix_are_collected(prefix: str, before: float, freed: set[str]) -> None:
    """A hidden directory, or a dataset of another format, must be accepted itself."""
    given = rules(accepted=(AcceptedPrefix(prefix, NOW - timedelta(days=before)),))
    found = find_foreign(["t/x/left.parquet", "t/_tmp/left.parquet", "t/delta/left.parquet"], given=given, roots=["t/delta/"])
    assert {key for key, rule in found.items() if rule is None} == freed


@pytest.mark.parametrize(
    "prefix, freed",
    [("t/", {"t/x/left.parquet"}), ("t/_tmp/", {"t/_tmp/left.parquet"}), ("t/delta/", set[str]())],
)
def test_accepted_dead_table_keeps_hidden_files_and_other_formats(prefix: str, freed: set[str]) -> None:
    """The location of the table can be a hidden directory, which the user then accepted."""
    given = rules(accepted=(AcceptedPrefix(prefix, NOW, of_table=True),))
    keys = ["t/x/left.parquet", "t/_tmp/left.parquet", "t/delta/left.parquet", "t/x/_SUCCESS"]
    found = find_foreign(keys, given=given, roots=["t/delta/"])
    assert {key for key, rule in found.items() if rule is None} == freed


@pytest.mark.parametrize("prefix", ["", "t/", "t/x/", "t/_tmp/"])
def test_accepted_dead_table_keeps_files_in_listed_table_location(prefix: str) -> None:
    """A live table has the same location, so files of other writers in it need a separate
    acceptance.
    """
    keys = ["t/x/left.parquet", "t/_tmp/left.parquet", f"t/data/{OWN}"]
    ages = ClaimAges({"t/": {"1": NOW - timedelta(days=5)}})
    given = rules(accepted=(AcceptedPrefix(prefix, NOW, of_table=True),), ages=ages, listed=frozenset({"t/"}))
    assert find_foreign(keys, given=given) == find_foreign(keys, given=replace(given, accepted=()))
    assert None not in find_foreign(keys, given=given).values()
    assert find_foreign(["t/x/left.parquet"], given=replace(given, accepted=(AcceptedPrefix("t/", NOW),))) == {"t/x/left.parquet": None}


def test_claim_keeps_its_age_while_lake_is_unreadable() -> None:
    """While a lake is unreadable, it protects its location and claims nothing."""
    first = ClaimAges().continue_with([("w/chunks/", ""), ("v/chunks/", "")], None)
    unreadable = first.continue_with([], NOW, {"w/"})
    later = unreadable.continue_with([("w/chunks/", ""), ("v/chunks/", ""), ("w/t/", "1")], NOW)
    assert later.of_directory("w/chunks/") is None
    assert later.of_directory("v/chunks/") == later.of_directory("w/t/") == NOW


def test_claim_keeps_its_age_in_later_runs() -> None:
    first = ClaimAges().continue_with([("a/", "1")], None)
    second = first.continue_with([("a/", "1"), ("b/", "2")], NOW)
    third = second.continue_with([("a/", "1"), ("b/", "2")], NOW + timedelta(days=1))
    assert third.since == {"a/": {"1": None}, "b/": {"2": NOW}}


def test_extended_claim_is_new_outside_its_former_prefixes() -> None:
    """A table whose nested table was dropped claims its whole location."""
    narrow = ClaimAges().continue_with([("a/data/", "1"), ("a/nested/", "2")], None)
    wide = narrow.continue_with([("a/", "1")], NOW)
    assert wide.of_directory("a/data/") is None
    assert wide.of_directory("a/nested/data/") == NOW


def test_claim_taken_over_by_another_table_is_new() -> None:
    ages = ClaimAges().continue_with([("a/", "1")], None).continue_with([("a/", "2")], NOW)
    assert ages.of_directory("a/") == NOW
