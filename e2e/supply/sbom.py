"""Bills of materials: what an image, or the plugin, consists of, in the JSON of CycloneDX."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.parser import HeaderParser
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from e2e.supply.locks import PLUGIN, Lock, Pin
from stele import __version__

SCHEMA = SchemaVersion.V1_6
_INSTALLED = "install ok installed"


@dataclass(frozen=True)
class Stamp:
    """The version and the time of a release, so that its bills are the same whenever they are written."""

    version: str
    epoch_seconds: int


def subject(name: str) -> str:
    """What the bill of a lock is about."""
    return "kubectl-stele" if name == PLUGIN else f"stele-{name}"


def bill(
    name: str, lock: Lock, dpkg_status: str = "", cargo_lock: str = "", stamp: Stamp | None = None
) -> str:
    """The bill of what a lock is for: its distributions, crates, and Debian's packages, if they are given.

    `dpkg_status` is the text of the image's file /var/lib/dpkg/status, `cargo_lock` that of the Cargo.lock of
    the compiled module. A distribution has the hashes of all files of it that an image may be made with, one
    for each architecture. Without a `stamp` the bill has the time at which it was written.
    """
    kind = ComponentType.APPLICATION if name == PLUGIN else ComponentType.CONTAINER
    whole = Component(
        type=kind,
        name=subject(name),
        version=stamp.version if stamp else __version__,
        bom_ref=subject(name),
    )
    bom = Bom(metadata=BomMetaData(component=whole))
    if stamp:
        bom.metadata.timestamp = datetime.fromtimestamp(stamp.epoch_seconds, UTC)
        bom.serial_number = uuid5(NAMESPACE_URL, f"{subject(name)} {stamp.version} {stamp.epoch_seconds}")
    bom.components.update(map(_distribution, lock.pins))
    bom.components.update(_crates(cargo_lock))
    bom.components.update(_packages(dpkg_status))
    bom.register_dependency(whole, bom.components)
    return make_outputter(bom, OutputFormat.JSON, SCHEMA).output_as_string(indent=1)


def _distribution(pin: Pin) -> Component:
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=content) for content in pin.hashes]
    return _component(PackageURL("pypi", None, pin.name, pin.version), hashes)


def _crates(cargo_lock: str) -> Iterable[Component]:
    """Crates of others, also those that are only used while the module is built."""
    for crate in tomllib.loads(cargo_lock).get("package", []):
        if "checksum" in crate:
            hashes = [HashType(alg=HashAlgorithm.SHA_256, content=crate["checksum"])]
            yield _component(PackageURL("cargo", None, crate["name"], crate["version"]), hashes)


def _packages(dpkg_status: str) -> Iterable[Component]:
    for text in filter(str.strip, dpkg_status.split("\n\n")):
        fields = HeaderParser().parsestr(text)
        if fields["Status"] == _INSTALLED:
            arch = {"arch": fields["Architecture"]}
            yield _component(PackageURL("deb", "debian", fields["Package"], fields["Version"], arch))


def _component(url: PackageURL, hashes: Iterable[HashType] = ()) -> Component:
    return Component(
        type=ComponentType.LIBRARY,
        name=url.name,
        version=url.version,
        purl=url,
        bom_ref=url.to_string(),
        hashes=hashes,
    )
