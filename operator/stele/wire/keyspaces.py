"""The catalog of keyspaces as a readable ConfigMap.

`kubectl get configmap orders-keyspaces -o yaml` shows

    data:
      format: "1"
      version: "7"
      undeclared: Allow
      keyspaces: |
        sessions {"ttl_seconds":3600,"notify":"","near_cache":null,"reads":"Linearizable",...}

with one line for each declared keyspace. A text of another format, or with an unknown key or line, is
rejected as Corrupt and never read in part.
"""

from collections.abc import Mapping

import msgspec

from stele.core.kv.keyspaces import Catalog, Settings, Undeclared, catalog_fault
from stele.errors import BadInput, Corrupt
from stele.wire.configmap import OBJECT_BYTES_MAX
from stele.wire.unreadable import UNREADABLE

FORMAT = "1"
_KEYS = {"format", "version", "undeclared", "keyspaces"}
_encode = msgspec.json.Encoder().encode
_settings = msgspec.json.Decoder(Settings)


def encode_catalog(catalog: Catalog) -> dict[str, str]:
    """Return the data of the ConfigMap. Raises BadInput when it cannot be stored."""
    if (fault := catalog_fault(catalog)) is not None:
        raise BadInput(fault)
    lines = (f"{name} {_encode(settings).decode()}\n" for name, settings in sorted(catalog.keyspaces.items()))
    data = {
        "format": FORMAT,
        "version": str(catalog.version),
        "undeclared": catalog.undeclared.value,
        "keyspaces": "".join(lines),
    }
    if (size := sum(map(len, data.values()))) > OBJECT_BYTES_MAX:
        text = f"the catalog would take {size} bytes; at most {OBJECT_BYTES_MAX} fit into a ConfigMap"
        raise BadInput(text, "TOO_LARGE")
    return data


def decode_catalog(data: Mapping[str, str]) -> Catalog:
    """Parse the data of the ConfigMap. Raises Corrupt with what was expected."""
    if (format := data.get("format")) != FORMAT:
        problem = f"format is {format!r}; this version of Stele reads {FORMAT!r}"
        raise Corrupt(f"catalog of keyspaces: {problem}; use the version that wrote it", "UNKNOWN_FORMAT")
    if data.keys() != _KEYS:
        raise Corrupt(f"catalog of keyspaces: keys are {sorted(data)}; {sorted(_KEYS)} were expected")
    version = data["version"]
    if not (version.isascii() and version.isdigit() and len(version) < 17):
        raise Corrupt(f"catalog of keyspaces: version is {version[:40]!r}; a whole number was expected")
    declared = dict(map(_read_line, data["keyspaces"].splitlines()))
    catalog = Catalog(int(version), declared, _read_undeclared(data["undeclared"]))
    if (fault := catalog_fault(catalog)) is not None:
        raise Corrupt(f"catalog of keyspaces: {fault}")
    return catalog


def _read_undeclared(text: str) -> Undeclared:
    try:
        return Undeclared(text)
    except ValueError:
        expected = " or ".join(Undeclared)
        problem = f"undeclared is {text[:40]!r}; {expected} was expected"
        raise Corrupt(f"catalog of keyspaces: {problem}") from None


def _read_line(line: str) -> tuple[str, Settings]:
    name, _, settings = line.partition(" ")
    try:
        return name, _settings.decode(settings)
    except UNREADABLE as error:
        raise Corrupt(f"catalog of keyspaces: line {line[:80]!r} is not 'NAME SETTINGS': {error}") from error
