"""Bills of materials from the lock, from metadata of packages and from an image's own lists. Pure,
but for the packages of this environment, which say their licences."""

from __future__ import annotations

import base64
import json
import re
import tomllib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import Distribution, distributions
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.requirements import Requirement

from runtime_image.lock import Entry, cut, expand, normal

SCHEMA = SchemaVersion.V1_6
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
LICENCE_CHARACTERS = 80
"""A longer field is the text of a licence, not its name."""
OSI = "License :: OSI Approved :: "
EXTRAS = ("cpu", "gpu", "grpc", "traces", "bench")
"""What a server may have; TensorRT is not locked."""

Licences = Mapping[str, list[License]]


def licences(fields: Mapping[str, Any]) -> list[License]:
    """Return the licences that the metadata of a package name: its expression, else its licence
    field, else its classifiers."""
    make = LicenseFactory().make_from_string
    for field in ("License-Expression", "License"):
        text = str(fields.get(field) or "").strip()
        if text and "\n" not in text and len(text) <= LICENCE_CHARACTERS and text != "UNKNOWN":
            return [make(text)]
    kinds = [one.removeprefix(OSI) for one in fields.get("Classifier", []) if one.startswith(OSI)]
    return [LicenseFactory().make_with_name(kind) for kind in kinds]


def facts(package: Distribution) -> dict[str, Any]:
    """Return the fields of a package's metadata that a bill reads."""
    fields = ("Name", "Version", "License-Expression", "License")
    found: dict[str, Any] = {name: package.metadata.get(name) for name in fields}
    return {**found, "Classifier": package.metadata.get_all("Classifier") or []}


def installed() -> dict[str, list[License]]:
    """Return the licences of the packages of this environment, by `NAME==VERSION`."""
    listed = [facts(package) for package in distributions()]
    return {f"{normal(one['Name'])}=={one['Version']}": licences(one) for one in listed}


def python_package(entry: Entry, known: Licences, **more: Any) -> Component:
    """Return a locked distribution. Its hashes are those of all its files, one of which is used."""
    return Component(
        name=entry.name,
        version=entry.version,
        bom_ref=f"pypi/{entry.name}@{entry.version}",
        purl=PackageURL("pypi", None, entry.name, entry.version),
        hashes=[
            HashType(alg=HashAlgorithm.SHA_256, content=one) for one in HASH.findall(entry.text)
        ],
        licenses=known.get(f"{entry.name}=={entry.version}", []),
        **more,
    )


def bundled(package_lock: str) -> list[Component]:
    """Return the npm packages that the built dashboard has in it: those not only for its build."""
    found = []
    for path, one in json.loads(package_lock)["packages"].items():
        if not path or one.get("dev"):
            continue
        scope, _, name = path.rpartition("node_modules/")[2].rpartition("/")
        algorithm, _, digest = one["integrity"].partition("-")
        assert algorithm == "sha512", path
        content = base64.b64decode(digest).hex()
        found.append(
            Component(
                name=name,
                group=scope or None,
                version=one["version"],
                bom_ref=f"npm/{path.rpartition('node_modules/')[2]}@{one['version']}",
                purl=PackageURL("npm", scope or None, name, one["version"]),
                hashes=[HashType(alg=HashAlgorithm.SHA_512, content=content)],
                licenses=[LicenseFactory().make_from_string(one["license"])],
            )
        )
    return found


def fits(entry: Entry) -> bool:
    """Return whether an entry's marker chooses it on this machine."""
    marker = Requirement(entry.text.partition("\\")[0]).marker
    return marker is None or marker.evaluate()


def of_wheel(entries: Sequence[Entry], pyproject: str, package_lock: str, known: Licences) -> Bom:
    """Return the bill of a wheel: what its dependencies and its extras need, which a property
    names, and what the dashboard has in it."""
    project = tomllib.loads(pyproject)["project"]
    plain = {normal(Requirement(one).name) for one in project["dependencies"]}
    build = expand(["fngate"], pyproject) - plain
    sets = {"": plain}
    sets |= {extra: expand([f"fngate[{extra}]"], pyproject) - build for extra in EXTRAS}
    here = [entry for entry in entries if fits(entry)]
    names = {extra: {entry.name for entry in cut(here, of)} for extra, of in sets.items()}
    root = Component(
        name="fngate",
        version=project["version"],
        type=ComponentType.APPLICATION,
        bom_ref="fngate",
        purl=PackageURL("pypi", None, "fngate", project["version"]),
        licenses=[LicenseFactory().make_from_string(project["license"])],
    )
    parts = {}
    for entry in here:
        if extras := [extra for extra, of in names.items() if entry.name in of]:
            is_needed = "" in extras
            needed = [] if is_needed else [Property(name="fngate:extras", value=",".join(extras))]
            scope = ComponentScope.REQUIRED if is_needed else ComponentScope.OPTIONAL
            parts[entry] = python_package(entry, known, scope=scope, properties=needed)
    pages = bundled(package_lock)
    bill = Bom(components=[*parts.values(), *pages], metadata=BomMetaData(component=root))
    direct = set().union(*sets.values())
    bill.register_dependency(root, [*(p for e, p in parts.items() if e.name in direct), *pages])
    for entry, part in parts.items():
        bill.register_dependency(
            part, [other for child, other in parts.items() if entry.name in child.parents]
        )
    return bill


def of_image(name: str, image: str, said: Mapping[str, Any], entries: Iterable[Entry]) -> Bom:
    """Return the bill of an image with this name and id, from what a container of it said of its
    packages: Python's with the hashes of the lock where they are locked, and Debian's."""
    repository, _, tag = name.rpartition(":")
    root = Component(
        name=name,
        version=image,
        type=ComponentType.CONTAINER,
        bom_ref="image",
        purl=PackageURL("oci", None, repository.rpartition("/")[2], image, {"tag": tag}),
    )
    locked = {(entry.name, entry.version): entry for entry in entries}
    parts = {}
    for one in said["python"]:
        key = (normal(one["Name"]), one["Version"])
        entry = locked.get(key, Entry(*key, "", frozenset()))
        part = python_package(entry, {f"{key[0]}=={key[1]}": licences(one)})
        parts[part.bom_ref.value] = part
    parts |= {part.bom_ref.value: part for part in debian(said["dpkg"], said["os"])}
    bill = Bom(components=parts.values(), metadata=BomMetaData(component=root))
    bill.register_dependency(root, parts.values())
    return bill


def debian(status: str, system: str) -> list[Component]:
    """Return the installed packages of dpkg's status file, from a system with this os-release."""
    of = dict(line.split("=", 1) for line in system.splitlines() if "=" in line)
    vendor, version = (of.get(name, "").strip('"') for name in ("ID", "VERSION_ID"))
    found = []
    for block in status.split("\n\n"):
        one = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if one.get("Status") != "install ok installed":
            continue
        more = {"arch": one["Architecture"], "distro": f"{vendor}-{version}"}
        found.append(
            Component(
                name=one["Package"],
                version=one["Version"],
                bom_ref=f"deb/{one['Package']}@{one['Version']}/{one['Architecture']}",
                purl=PackageURL("deb", vendor, one["Package"], one["Version"], more),
            )
        )
    return found


def document(bill: Bom) -> str:
    """Return a bill as CycloneDX JSON. Its serial number is of what it lists."""
    parts = sorted(str(part.purl) for part in bill.components)
    root = bill.metadata.component
    bill.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, "\n".join([str(root.purl), *parts]))
    return make_outputter(bill, OutputFormat.JSON, SCHEMA).output_as_string(indent=2) + "\n"
