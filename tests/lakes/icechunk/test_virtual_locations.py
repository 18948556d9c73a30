"""Virtual locations: containers of `config.yaml`, and the addresses that a location may mean."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from gc_assets.core.errors import FormatError, UnresolvedAddresses
from gc_assets.lakes.icechunk.virtual_locations import MAX_CONFIG_BYTES, read_chunk_containers, spellings, virtual_addresses
from gc_assets.lakes.protocol import NamedPrefixes
from gc_assets.stores.local.objects import LocalObjects

CONTAINERS = NamedPrefixes({"box": "file:///data/a/", "my box": "s3://bucket/pre/", "Box": "gcs://other/", "é": "file:///é/"})


def addresses(*locations: str) -> tuple[set[str], list[str]]:
    found, names = virtual_addresses("manifest x", pa.array(locations, pa.string()), CONTAINERS)
    return set(found.to_pylist()), names.to_pylist()


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
def test_location_means_these_addresses(location: str, expected: set[str]) -> None:
    found, names = addresses(location, "file:///plain")
    assert found == expected | {"file:///plain"}
    assert bool(names) == location.lower().startswith("vcc:")


@pytest.mark.parametrize("location", ["vcc://unknown/q", "vcc:///q", "vcc://BOX/q", "vcc:box/q", "vcc://box", "vcc://box%2520/q"])
def test_unknown_container_is_refused_by_name(location: str) -> None:
    with pytest.raises(FormatError, match=f"manifest x: the location '{location}' names .*config.yaml defines 'Box', 'box'"):
        addresses("file:///plain", location)


def test_all_unresolved_locations_are_reported() -> None:
    """They are compared with planned files by their tails."""
    with pytest.raises(UnresolvedAddresses) as refused:
        addresses("vcc://box/q", "vcc://a/x/../q", "vcc://b/a%20b")
    assert refused.value.addresses == ("vcc://a/q", "vcc://b/a b", "vcc://b/a%20b")


def test_every_name_in_a_manifest_is_returned_once() -> None:
    assert addresses("vcc://my%20box/q", "vcc://box/q", "vcc://box/r")[1] == ["box", "my box"]
    assert addresses("file:///q")[1] == []


def write_config(folder: Path, content: str | bytes) -> NamedPrefixes:
    (folder / "config.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_chunk_containers(LocalObjects(), f"file://{folder}")


def test_containers_are_read_from_the_current_configuration(tmp_path: Path) -> None:
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
    for empty in ("", "virtual_chunk_containers: null", "storage: !x y"):
        assert write_config(tmp_path, empty) == NamedPrefixes({})


@pytest.mark.parametrize(
    "content, finding",
    [
        ("virtual_chunk_containers: [", "expected the node content"),
        ("virtual_chunk_containers: [a]", "expected a mapping in virtual_chunk_containers"),
        ("[1]", "expected a mapping, found list"),
        ("virtual_chunk_containers: {a: {name: x}}", "'x' has no url_prefix"),
        ("virtual_chunk_containers: {a: {name: x, url_prefix: 5}}", "'x' has no url_prefix"),
        (b"\xff\xfe\x00", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("#" * (MAX_CONFIG_BYTES + 1), "expected at most"),
    ],
)
def test_unreadable_configuration_is_a_note_until_a_location_needs_it(tmp_path: Path, content: str | bytes, finding: str) -> None:
    containers = write_config(tmp_path, content)
    assert containers.prefixes == {}
    assert containers.error is not None
    assert finding in containers.error
    with pytest.raises(FormatError, match=r"config\.yaml"):
        virtual_addresses("manifest x", pa.array(["vcc://box/q"]), containers)
    assert virtual_addresses("manifest x", pa.array(["s3://bucket/q"]), containers)[0].to_pylist() == ["s3://bucket/q"]


def test_configuration_that_is_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").mkdir()
    assert "cannot be read" in (read_chunk_containers(LocalObjects(), f"file://{tmp_path}").error or "")
    assert spellings("file:///a/./b") == {"file:///a/b"}
