"""Bills of materials: what an image consists of, in the JSON of CycloneDX."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from email.parser import HeaderParser

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from e2e.supply.locks import Lock, Pin
from stele import __version__

SCHEMA = SchemaVersion.V1_6
_INSTALLED = "install ok installed"


def bill(image: str, lock: Lock, dpkg_status: str = "", cargo_lock: str = "") -> str:
    """The bill of one image: the distributions of its lock, crates, and Debian's packages, if they are given.

    `dpkg_status` is the text of the image's file /var/lib/dpkg/status, `cargo_lock` that of the Cargo.lock of
    the compiled module. A distribution has the hashes of all files of it that an image may be made with, one
    for each architecture.
    """
    subject = Component(type=ComponentType.CONTAINER, name=f"stele-{image}", version=__version__)
    bom = Bom(metadata=BomMetaData(component=subject))
    bom.components.update(map(_distribution, lock.pins))
    bom.components.update(_crates(cargo_lock))
    bom.components.update(_packages(dpkg_status))
    bom.register_dependency(subject, bom.components)
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
