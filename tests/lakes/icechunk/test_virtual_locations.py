"""Virtual locations: containers of the configuration, and the addresses that a location may mean."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from flatbuffers import flexbuffers

from gc_assets.core.errors import FormatError, UnresolvedAddresses
from gc_assets.lakes.icechunk.flexbuffers import FlexReader
from gc_assets.lakes.icechunk.repo_info import parse_repo
from gc_assets.lakes.icechunk.virtual_locations import (
    MAX_CONFIG_BYTES,
    parse_chunk_containers,
    parse_yaml_containers,
    read_chunk_containers,
    spellings,
    virtual_addresses,
)
from gc_assets.lakes.protocol import NamedPrefixes
from gc_assets.stores.local.objects import LocalObjects
from tests.lakes.icechunk.v2.recordings import unpack_recording

RECORDED = Path(__file__).parents[2] / "data" / "icechunk" / "virtual-chunk-containers"
CONTAINERS = NamedPrefixes({"box": "file:///data/a/", "my box": "s3://bucket/pre/", "Box": "gcs://other/", "é": "file:///é/"})
# Each level refers to the level before nine times, so that expanding them takes hours.
MERGE_KEYS = "a0: &a0 {x: 1}\n" + "".join(f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}]}}\n" for level in range(1, 13))


def addresses(*locations: str) -> tuple[set[str], list[str]]:
    found = virtual_addresses("manifest x", pa.array(locations, pa.string()), CONTAINERS)
    assert not set(found.files.to_pylist()) & set(found.possible.to_pylist())
    return {*found.files.to_pylist(), *found.possible.to_pylist()}, found.names.to_pylist()


@pytest.mark.parametrize(
    "location, expected",
    [
        ("vcc://box/q", {"file:///data/a/q"}),
        ("VCC://box/q", {"file:///data/a/q"}),
        ("vcc://Box/q", {"gcs://other/q"}),
        ("vcc://box/sub/../q", {"file:///data/a/q"}),
        ("vcc://box/./sub/./q", {"file:///data/a/sub/q"}),
        ("vcc://box/sub/%2E%2e/q", {"file:///data/a/q"}),
        ("vcc://box/../b/q", {"file:///data/b/q"}),
        ("vcc://box/a%20b", {"file:///data/a/a%20b", "file:///data/a/a b"}),
        ("vcc://box/x?y#z", {"file:///data/a/x?y#z", "file:///data/a/x"}),
        ("vcc://my box/q", {"s3://bucket/pre/q"}),
        ("vcc://my%20box/q", {"s3://bucket/pre/q"}),
        ("vcc://%C3%A9/q", {"file:///é/q"}),
        # Locations with an address.
        ("file:///data/a/../b/q", {"file:///data/b/q"}),
        ("s3://bucket/a/../../q", {"s3://bucket/q"}),
        ("s3://bucket/a/..", {"s3://bucket/"}),
        ("s3://bucket/a//q", {"s3://bucket/a//q"}),
        ("s3://bucket/..x/x..", {"s3://bucket/..x/x.."}),
        ("s3://bucket/a%20b?x#y", {"s3://bucket/a%20b?x#y", "s3://bucket/a b?x#y", "s3://bucket/a%20b", "s3://bucket/a b"}),
    ],
)
def test_virtual_location_resolves_to_all_possible_addresses(location: str, expected: set[str]) -> None:
    found, names = addresses(location, "file:///plain")
    assert found == expected | {"file:///plain"}
    assert bool(names) == location.lower().startswith("vcc:")


@pytest.mark.parametrize(
    "location, read",
    [
        ("file:///data/sst%202020.nc", "file:///data/sst 2020.nc"),
        ("file:///data/50%.nc", "file:///data/50%.nc"),
        ("file:///data/x%2520y.nc", "file:///data/x%20y.nc"),
        ("s3://bucket/q?x#y", "s3://bucket/q"),
        ("vcc://box/a%20b", "file:///data/a/a b"),
        ("file:///data/%FF.nc", None),
        ("file:///data/%00.nc", None),
    ],
)
def test_virtual_file_is_address_that_icechunk_reads(location: str, read: str | None) -> None:
    found = virtual_addresses("manifest x", pa.array([location]), CONTAINERS)
    assert found.files.to_pylist() == ([] if read is None else [read])
    assert read is None or found.possible.to_pylist() or location == read


@pytest.mark.parametrize("location", ["vcc://unknown/q", "vcc:///q", "vcc://BOX/q", "vcc:box/q", "vcc://box", "vcc://box%2520/q"])
def test_unknown_chunk_container_is_refused_with_known_names(location: str) -> None:
    with pytest.raises(FormatError, match=f"manifest x: the location '{location}' uses .*the configuration defines 'Box', 'box'"):
        addresses("file:///plain", location)


def test_all_unresolved_virtual_locations_are_reported() -> None:
    """Unresolved locations are compared with planned files by file name."""
    with pytest.raises(UnresolvedAddresses) as refused:
        addresses("vcc://box/q", "vcc://a/x/../q", "vcc://b/a%20b")
    assert refused.value.addresses == ("vcc://a/q", "vcc://b/a b", "vcc://b/a%20b")


def test_chunk_container_names_of_manifest_are_returned_once() -> None:
    assert addresses("vcc://my%20box/q", "vcc://box/q", "vcc://box/r")[1] == ["box", "my box"]
    assert addresses("file:///q")[1] == []


def write_config(folder: Path, content: str | bytes) -> NamedPrefixes:
    (folder / "config.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_chunk_containers(LocalObjects(), f"file://{folder}")


def test_chunk_containers_are_read_from_current_configuration(tmp_path: Path) -> None:
    """Containers of library 1.x have no name, and a name with several prefixes has no meaning."""
    assert read_chunk_containers(LocalObjects(), f"file://{tmp_path}") == NamedPrefixes({})
    text = """
    compression: null
    virtual_chunk_containers:
      a: {name: box, url_prefix: "s3://bucket/pre/", store: !s3 {region: us-east-1, endpoint_url: null}}
      b: {name: null, url_prefix: "s3://unnamed/", store: !s3_compatible []}
      c: {name: twice, url_prefix: "s3://one/"}
      d: {name: twice, url_prefix: "s3://two/"}
      e: {name: disk, url_prefix: "file:///data/", store: !local_file_system /data/}
    """
    assert write_config(tmp_path, text) == NamedPrefixes({"box": "s3://bucket/pre/", "disk": "file:///data/"})
    for empty in ("", "null", "virtual_chunk_containers: null", "storage: !x y"):
        assert write_config(tmp_path, empty) == NamedPrefixes({})


@pytest.mark.parametrize(
    "content, finding",
    [
        ("virtual_chunk_containers: [", "expected the node content"),
        ("virtual_chunk_containers: [a]", "expected a mapping in virtual_chunk_containers"),
        ("[1]", "expected a mapping in the configuration, found seq"),
        ("virtual_chunk_containers: {a: {name: x}}", "'x' has no url_prefix"),
        ("virtual_chunk_containers: {a: {name: x, url_prefix: 5}}", "'x' has no url_prefix"),
        (b"\xff\xfe\x00", "cannot be read"),
        ("[" * 100_000, "expected at most 100,000 nodes and 50 levels"),
        ("- \n" * 100_001, "expected at most 100,000 nodes and 50 levels"),
        (MERGE_KEYS, "line 1: anchors and aliases are not supported"),
        ("a: {<<: {x: 1}}\n<<: {virtual_chunk_containers: null}", "merge keys (<<) are not supported in the configuration"),
        ("virtual_chunk_containers: {a: {<<: {name: x}}}", "merge keys (<<) are not supported in a container"),
        ('a: "\\UFFFFFFFF"', "OverflowError"),
        ("#" * (MAX_CONFIG_BYTES + 1), "expected at most"),
    ],
)
def test_unreadable_configuration_fails_only_if_location_needs_it(tmp_path: Path, content: str | bytes, finding: str) -> None:
    containers = write_config(tmp_path, content)
    assert containers.prefixes == {}
    assert containers.error is not None
    assert finding in containers.error
    with pytest.raises(FormatError, match=r"config\.yaml"):
        virtual_addresses("manifest x", pa.array(["vcc://box/q"]), containers)
    assert virtual_addresses("manifest x", pa.array(["s3://bucket/q"]), containers).files.to_pylist() == ["s3://bucket/q"]


@pytest.mark.parametrize("value", ["!!bool foo", '!!int ""', "!!timestamp x", "? [a]", "1" + ":1" * 300_000])
def test_values_of_other_settings_are_not_interpreted(tmp_path: Path, value: str) -> None:
    """A sexagesimal number of 300,000 digits would take minutes."""
    text = f'caching:\n  {value}\nvirtual_chunk_containers: {{a: {{name: box, url_prefix: "s3://one/"}}}}'
    assert write_config(tmp_path, text) == NamedPrefixes({"box": "s3://one/"})


def test_configuration_that_the_library_wrote_is_read() -> None:
    """Library 2.3 writes no anchors, aliases or merge keys, even for names such as `&a`, `*a` and `<<`."""
    raw = (RECORDED / "reader" / "config.yaml").read_bytes()
    expected = {"box": "file:///recorded/source/chunks/", "my box": "file:///recorded/source/"}
    assert parse_yaml_containers("config.yaml", raw) == NamedPrefixes(expected)


def test_configuration_that_is_directory_raises_error(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").mkdir()
    assert "cannot be read" in (read_chunk_containers(LocalObjects(), f"file://{tmp_path}").error or "")
    assert spellings("file:///a/./b") == {"file:///a/b"}


def test_version_2_chunk_containers_are_read_from_repo(tmp_path: Path) -> None:
    """The recorded configurations have two named containers and one without a name."""
    for name in ("virtual-chunks", "virtual-chunks-by-2.0.5"):
        info = parse_repo(name, (unpack_recording(name, tmp_path).path / "repo").read_bytes())
        assert info.config is not None
        expected = NamedPrefixes({"box": "file:///recorded/data/", "my-box": "s3://bucket/prefix/"})
        assert parse_chunk_containers(name, info.config) == expected


@pytest.mark.parametrize(
    "containers, expected",
    [
        (None, {}),
        ({}, {}),
        ({"a": {"name": "box", "url_prefix": "s3://one/"}, "b": {"url_prefix": "s3://two/"}}, {"box": "s3://one/"}),
        ({"a": {"name": None, "url_prefix": "s3://one/"}, "b": {"name": "", "url_prefix": "s3://é/"}}, {"": "s3://é/"}),
        ({"a": {"name": "x", "url_prefix": "s3://one/"}, "b": {"name": "x", "url_prefix": "s3://two/"}}, {}),
        ({f"{n}": {"name": f"{n}", "url_prefix": f"s3://{n}/", "store": {"s3": [n, 1.5, True]}} for n in range(300)}, None),
    ],
)
def test_chunk_containers_round_trip_through_flexbuffer(containers: Any, expected: dict[str, str] | None) -> None:
    config = bytes(flexbuffers.Dumps({"caching": None, "retries": [1, 2, 3], "virtual_chunk_containers": containers, "zone": -1.5}))
    if expected is None:
        expected = {f"{n}": f"s3://{n}/" for n in range(300)}
    assert parse_chunk_containers("repo", config) == NamedPrefixes(expected)


@pytest.mark.parametrize(
    "config, finding",
    [
        (b"", "no root"),
        (b"\x00\x00\x03", "no root"),
        (flexbuffers.Dumps(5), "a value of type 1 instead of a map"),
        (flexbuffers.Dumps({"virtual_chunk_containers": [1]}), "instead of a map"),
        (flexbuffers.Dumps({"virtual_chunk_containers": {"a": {"name": "x"}}}), "'x' has no url_prefix"),
        (flexbuffers.Dumps({"virtual_chunk_containers": {"a": {"name": "x", "url_prefix": 5}}}), "instead of a string"),
        (flexbuffers.Dumps({"virtual_chunk_containers": {"a": {"name": "x", "url_prefix": b"s3"}}}), "instead of a string"),
        (bytes(MAX_CONFIG_BYTES + 1), "expected at most"),
    ],
)
def test_unreadable_flexbuffer_adds_note(config: bytes, finding: str) -> None:
    containers = parse_chunk_containers("lake x: repo", bytes(config))
    assert containers.prefixes == {}
    assert containers.error is not None
    assert containers.error.startswith("lake x: repo")
    assert finding in containers.error


def test_flexbuffer_that_repeats_map_is_refused_quickly() -> None:
    """Each of 3,000 containers is the same map of 3,000 keys."""
    count = 3000
    large = {f"key{n:05}": None for n in range(count)} | {"name": "x", "url_prefix": "s3://x/"}
    containers = {"a": large} | {f"b{n:05}": {} for n in range(count)}
    config = bytearray(flexbuffers.Dumps({"virtual_chunk_containers": containers}))
    reader = FlexReader("repo", bytes(config))
    (found,) = reader.fields(reader.root(), "virtual_chunk_containers")
    assert found is not None
    first, *others = reader.values(found)
    target = first.position - int.from_bytes(config[first.position : first.position + first.width], "little")
    types = others[-1].position + others[-1].width
    for number, element in enumerate(others, 1):
        config[element.position : element.position + element.width] = (element.position - target).to_bytes(element.width, "little")
        config[types + number] = config[types]
    assert "maps that are larger than the buffer in total" in (parse_chunk_containers("repo", bytes(config)).error or "")


def test_damaged_flexbuffer_is_read_or_raises_error() -> None:
    rnd = random.Random(5)
    containers = {"a": {"name": "x", "url_prefix": "s3://one/"}}
    good = bytes(flexbuffers.Dumps({"virtual_chunk_containers": containers, "other": {"n": [1, "two"]}}))
    ends = Counter[bool]()
    for _ in range(4000):
        config = bytearray(good)
        for _ in range(rnd.randint(1, 3)):
            config[rnd.randrange(len(config))] = rnd.randrange(256)
        found = parse_chunk_containers("repo", bytes(config[: rnd.choice([len(config), rnd.randrange(len(config))])]))
        assert found.error is None or (not found.prefixes and "repo" in found.error)
        ends[found.error is None] += 1
    assert min(ends[True], ends[False]) > 100
