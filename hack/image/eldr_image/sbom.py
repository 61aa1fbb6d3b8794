"""The software bill of materials of an image: CycloneDX, of what was locked and unpacked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from eldr_image.debian import Deb
from eldr_image.wheels import PACKAGES

_CLASSIFIED = "License :: OSI Approved :: "


class Installed:
    """A Python package of the image: name, version and what it says of its licence."""

    def __init__(self, found: Distribution) -> None:
        self.name = re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower()
        self.version = found.version
        self.licence = _licence(found)


def installed(*roots: Path) -> list[Installed]:
    """Return the Python packages below the folders of an image, by name."""
    found = (
        Distribution.at(info) for root in roots for info in sorted((root / PACKAGES).glob("*.dist-info"))
    )
    return sorted((Installed(one) for one in found), key=lambda one: one.name)


def _licence(found: Distribution) -> str:
    """Return the expression, the classifiers or the first line that a package gives, in this order."""

    def said(field: str) -> list[str]:
        return [str(value) for value in found.metadata.get_all(field) or []]

    classified = [
        value.removeprefix(_CLASSIFIED) for value in said("Classifier") if value.startswith(_CLASSIFIED)
    ]
    return (
        next(iter(said("License-Expression")), "")
        or ", ".join(classified)
        or (said("License") or ["not stated"])[0].splitlines()[0]
    )


def bom(arch: str, version: str, debs: list[Deb], python: list[Installed]) -> str:
    """Return the bill of an image as JSON, the same for the same contents."""
    licences = LicenseFactory()
    image = Component(name="eldr", version=version, type=ComponentType.CONTAINER, bom_ref="eldr")
    document = Bom(
        components=[*_debian(arch, debs), *_python(python, licences)], metadata=BomMetaData(component=image)
    )
    document.register_dependency(image, document.components)
    found = json.loads(JsonV1Dot6(document).output_as_string())
    # These differ with each run, and say nothing about the image.
    del found["serialNumber"], found["metadata"]["timestamp"]
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def _debian(arch: str, debs: list[Deb]) -> Iterator[Component]:
    for deb in debs:
        url = PackageURL("deb", "debian", deb.name, deb.version, {"arch": arch, "distro": "trixie"})
        yield Component(
            name=deb.name,
            version=deb.version,
            type=ComponentType.LIBRARY,
            purl=url,
            bom_ref=str(url),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=deb.sha256)],
        )


def _python(python: list[Installed], licences: LicenseFactory) -> Iterator[Component]:
    for one in python:
        url = PackageURL("pypi", None, one.name, one.version)
        yield Component(
            name=one.name,
            version=one.version,
            type=ComponentType.LIBRARY,
            purl=url,
            bom_ref=str(url),
            licenses=[licences.make_from_string(one.licence)],
        )
