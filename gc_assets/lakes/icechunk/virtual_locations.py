"""Addresses of virtual chunks, interpreted in the same way as by the Icechunk library.

Library 2.x also writes `vcc://NAME/PATH` to repositories with spec version 1. NAME is a virtual
chunk container in the configuration of the repository. Readers replace `vcc://NAME/` with the
container's current `url_prefix`, never with an earlier one. They treat the result like any other
location: they remove query and fragment, resolve `.` and `..` components, and percent-decode the
rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, unquote_to_bytes

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from gc_assets.core.errors import FormatError, UnresolvedAddresses
from gc_assets.core.objects import Objects
from gc_assets.core.untrusted_input import is_text
from gc_assets.lakes.icechunk.flexbuffers import NULL, FlexReader
from gc_assets.lakes.protocol import NamedPrefixes

# A configuration has a few kilobytes. For a much larger one, the parser would need a minute.
MAX_CONFIG_BYTES: Final = 4 * 2**20
MAX_CONFIG_NODES: Final = 100_000
MAX_CONFIG_DEPTH: Final = 50
_NULL_TAG: Final = "tag:yaml.org,2002:null"
_MERGE_TAG: Final = "tag:yaml.org,2002:merge"
_STRING_TAG: Final = "tag:yaml.org,2002:str"
_NAMED: Final = re.compile(r"vcc://([^/]*)/(.*)", re.DOTALL | re.IGNORECASE)
_NAMED_PATTERN: Final = "(?i)^vcc:"
_PATH: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:(?://[^/]*)?)?(/.*)", re.DOTALL)
_DOTS: Final = "(?i)/(?:[.]|%2e){1,2}(?:/|$)"


class _Composer(yaml.SafeLoader):
    """Composes the nodes of a document, with limits on their number and depth.

    Values are not constructed, because merge keys and numbers can take hours. The library writes no
    anchors and aliases, which can repeat a node many times.
    """

    nodes = 0
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        if getattr(event, "anchor", None) is not None:
            raise FormatError(f"line {event.start_mark.line + 1}: anchors and aliases are not supported")
        self.nodes += 1
        self.depth += 1
        if self.nodes > MAX_CONFIG_NODES or self.depth > MAX_CONFIG_DEPTH:
            raise FormatError(f"expected at most {MAX_CONFIG_NODES:,} nodes and {MAX_CONFIG_DEPTH} levels")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def read_chunk_containers(objects: Objects, repository: str) -> NamedPrefixes:
    """Read the virtual chunk containers from a repository's `config.yaml`.

    A repository without this file has no virtual chunk containers. If the file cannot be read, the
    result contains the reason.
    """
    address = f"{repository}/config.yaml"
    try:
        raw = objects.read(address)
    except FileNotFoundError:
        return NamedPrefixes({})
    except OSError as error:
        return NamedPrefixes({}, f"{address} cannot be read: {error}")
    return parse_yaml_containers(address, raw)


def parse_yaml_containers(source: str, config: bytes) -> NamedPrefixes:
    """Read the virtual chunk containers from the content of `config.yaml` (spec version 1).

    If the configuration cannot be read, the result contains the reason.

    Args:
        source: Name of the configuration for error messages.
        config: The configuration as a YAML document.
    """
    return _parse(source, config, _yaml_containers)


def parse_chunk_containers(source: str, config: bytes | None) -> NamedPrefixes:
    """Read the virtual chunk containers from the configuration in `repo` (spec version 2).

    If the configuration cannot be read, the result contains the reason.

    Args:
        source: Name of the configuration for error messages.
        config: The configuration as a FlexBuffer, or None for the default.
    """
    if config is None:
        return NamedPrefixes({})
    return _parse(source, config, lambda config: _flexbuffer_containers(FlexReader("the FlexBuffer", config)))


def _parse(source: str, config: bytes, read: Callable[[bytes], Iterator[tuple[Any, Any]]]) -> NamedPrefixes:
    if len(config) > MAX_CONFIG_BYTES:
        return NamedPrefixes({}, f"{source} has {len(config):,} bytes; expected at most {MAX_CONFIG_BYTES:,}")
    try:
        return NamedPrefixes(dict(_unique_prefixes(read(config))))
    except FormatError as error:
        return NamedPrefixes({}, f"{source} cannot be read: {error}")


def _flexbuffer_containers(reader: FlexReader) -> Iterator[tuple[Any, Any]]:
    """Yield the name and prefix of each container in a configuration with spec version 2."""
    (containers,) = reader.fields(reader.root(), "virtual_chunk_containers")
    if containers is None or containers.type == NULL:
        return
    for container in reader.values(containers):
        name, prefix = reader.fields(container, "name", "url_prefix")
        if name is not None and name.type != NULL:
            yield reader.text(name), None if prefix is None else reader.text(prefix)


def _yaml_containers(raw: bytes) -> Iterator[tuple[Any, Any]]:
    """Yield the name and prefix of each container in a configuration with spec version 1.

    Raises:
        FormatError: If the document is not a configuration.
    """
    try:
        root = yaml.compose(raw.decode(), _Composer)
    except FormatError:
        raise
    except Exception as error:  # PyYAML raises many types, for example OverflowError for an escape
        raise FormatError(" ".join(f"{type(error).__name__}: {error}".split())) from error
    containers = _fields(root, "the configuration").get("virtual_chunk_containers")
    for container in _fields(containers, "virtual_chunk_containers").values():
        if isinstance(container, yaml.MappingNode):
            fields = _fields(container, "a container")
            yield _text(fields.get("name")), _text(fields.get("url_prefix"))


def _fields(node: yaml.Node | None, source: str) -> dict[str, yaml.Node]:
    """Return the values of a mapping by key. An empty value counts as an empty mapping."""
    if node is None or node.tag == _NULL_TAG:
        return {}
    if not isinstance(node, yaml.MappingNode):
        raise FormatError(f"expected a mapping in {source}, found {node.tag.rpartition(':')[2]}")
    pairs: list[tuple[yaml.Node, yaml.Node]] = node.value
    if any(key.tag == _MERGE_TAG for key, _ in pairs):
        raise FormatError(f"merge keys (<<) are not supported in {source}")
    return {key.value: value for key, value in pairs if key.tag == _STRING_TAG}


def _text(node: yaml.Node | None) -> str | None:
    """Return a string, or None for other values and for tagged values such as `!s3 {…}`."""
    return node.value if isinstance(node, yaml.ScalarNode) and node.tag == _STRING_TAG else None


def _unique_prefixes(containers: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the name and prefix of each container. A name with several prefixes is left out."""
    found: dict[str, set[str]] = {}
    for name, prefix in containers:
        if isinstance(name, str):
            if not isinstance(prefix, str):
                raise FormatError(f"the virtual chunk container {name!r} has no url_prefix")
            if not is_text(name + prefix):
                raise FormatError(f"the virtual chunk container {name!r} contains a lone surrogate")
            found.setdefault(name, set()).add(prefix)
    for name, prefixes in found.items():
        if len(prefixes) == 1:
            yield name, prefixes.pop()


@dataclass(frozen=True, slots=True)
class VirtualAddresses:
    """Addresses of files to which virtual chunk locations may refer.

    Attributes:
        files: Addresses that current releases of the Icechunk library read.
        possible: Other addresses that may be meant. They do not have to exist.
        names: Names of the virtual chunk containers that the locations use.
    """

    files: pa.StringArray
    possible: pa.StringArray
    names: pa.StringArray


def virtual_addresses(source: str, locations: pa.StringArray, containers: NamedPrefixes | None) -> VirtualAddresses:
    """Resolve virtual chunk locations to every address to which they may refer.

    Raises:
        UnresolvedAddresses: If a location refers to a container that is missing from the
            configuration.
    """
    is_named = pc.match_substring_regex(locations, _NAMED_PATTERN)
    names: set[str] = set()
    if is_named.true_count:
        named = locations.filter(is_named).to_pylist()
        expanded = [address for location in named if (address := _expand(location, containers, names)) is not None]
        if len(expanded) < len(named):
            unresolved = [location for location in named if _expand(location, containers, set()) is None]
            spelled = sorted({name for location in unresolved for name in spellings(location)})
            raise UnresolvedAddresses(_describe_unresolved(source, unresolved[0], containers), spelled)
        locations = pc.unique(pa.concat_arrays([locations.filter(pc.invert(is_named)), pa.array(expanded, pa.string())]))
    ambiguous = pc.or_(pc.match_substring_regex(locations, "[%?#]"), pc.match_substring_regex(locations, _DOTS))
    several = locations.filter(ambiguous).to_pylist()
    read = pa.array(sorted({name for location in several if (name := read_address(location)) is not None}), pa.string())
    files = pc.unique(pa.concat_arrays([locations.filter(pc.invert(ambiguous)), read]))
    possible = pa.array(sorted({name for location in several for name in spellings(location)}), pa.string())
    possible = possible.filter(pc.invert(pc.is_in(possible, files))) if len(possible) else possible
    return VirtualAddresses(files, possible, pa.array(sorted(names), pa.string()))


def _expand(location: str, containers: NamedPrefixes | None, names: set[str]) -> str | None:
    """Replace the container name in a location with its prefix, or return None if it is unknown.

    The name is added to `names`.
    """
    match = _NAMED.fullmatch(location)
    if match is None or containers is None:
        return None
    for name in (match[1], unquote(match[1])):
        if name in containers.prefixes:
            names.add(name)
            return containers.prefixes[name] + match[2]
    return None


def _describe_unresolved(source: str, location: str, containers: NamedPrefixes | None) -> str:
    if containers is None:
        known = "an earlier release started this run without reading them"
    elif containers.error is not None:
        known = containers.error
    else:
        known = f"the configuration defines {', '.join(map(repr, sorted(containers.prefixes))) or 'none'}"
    return (
        f"{source}: the location {location!r} uses a virtual chunk container with an unknown prefix ({known}), so it may be any file; "
        "define the container in the repository's configuration, and save it with the library's `save_config`"
    )


def spellings(location: str) -> set[str]:
    """Return all names that the file at a virtual location may have, in order to protect them.

    The library stores locations as URLs with encoded spaces and non-ASCII letters, but does not
    encode percent signs. Older writers stored locations unchanged. Releases before 2.3 resolve `.`
    and `..`. Release 2.3 reads a key that contains them, but such a key is never a candidate for
    deletion (`hidden_path` in docs/safety.md).
    """
    names = {_follow_dots(location), _follow_dots(_without_query(location))}
    return names.union(name for spelled in names if (name := _decode(spelled)) is not None)


def read_address(location: str) -> str | None:
    """Return the address that the library reads: without query and fragment, and percent-decoded.

    Measured with 1.1.21 and 2.3.0 on a disk and on S3: `a b%20c.nc` is stored as `a%20b%20c.nc` and
    read as `a b c.nc`. The result is None if no key can have this name, because the file can then
    never be a candidate for deletion.
    """
    return _decode(_follow_dots(_without_query(location)))


def _without_query(location: str) -> str:
    return location.split("?")[0].split("#")[0]


def _decode(location: str) -> str | None:
    try:
        decoded = unquote_to_bytes(location).decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in decoded else _follow_dots(decoded)


def _follow_dots(location: str) -> str:
    """Resolve `.` and `..` components as URL parsers do, even if they are percent-encoded."""
    match = _PATH.fullmatch(location)
    if match is None or re.search(_DOTS, location) is None:
        return location
    kept: list[str] = []
    parts = match[2].split("/")[1:]
    for index, part in enumerate(parts):
        plain = part if "%" not in part else re.sub("(?i)%2e", ".", part)
        if plain == "..":
            del kept[-1:]
        elif plain != ".":
            kept.append(part)
        if plain in {".", ".."} and index == len(parts) - 1:
            kept.append("")
    return f"{match[1] or ''}/{'/'.join(kept)}"
