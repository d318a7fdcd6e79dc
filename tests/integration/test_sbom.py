"""Tests of the bills of materials of the wheel and of the runtime image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.validation.json import JsonStrictValidator

from runtime_image.lock import Entry
from tests.sbom import __main__ as command
from tests.sbom.bill import (
    SCHEMA,
    bundled,
    debian,
    document,
    installed,
    licences,
    of_image,
)

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "admin/dashboard/package-lock.json").read_text("utf-8")
SAID = {
    "python": [
        {"Name": "NumPy", "Version": "2.0", "License-Expression": "BSD-3-Clause"},
        {"Name": "stray", "Version": "1.0", "License": "MIT License"},
    ],
    "dpkg": "Package: libc6\nStatus: install ok installed\nVersion: 2.36-9+deb12u1\n"
    "Architecture: amd64\n\nPackage: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
    "Architecture: all\n",
    "os": 'NAME="Debian GNU/Linux"\nID=debian\nVERSION_ID="12"\n',
}
HASH = "a" * 64


def checked(text: str) -> dict[str, Any]:
    """Return a bill that fits the schema, by purl."""
    error = JsonStrictValidator(SCHEMA).validate_str(text)
    assert error is None, str(error)[:300]
    return {one["purl"]: one for one in json.loads(text)["components"]}


def wheel() -> dict[str, Any]:
    """Return the components of this checkout's wheel, with the licences that are known here."""
    return checked(document(command.of_checkout(installed())))


def test_the_wheels_bill_fits_the_schema() -> None:
    """The bill has what a server needs and may have, each with purl, hash, scope and, if it is
    installed here, licence; and no tool of development."""
    parts = wheel()

    names = {one["name"]: one for one in parts.values()}
    assert {"aiohttp", "multidict", "onnxruntime", "onnxruntime-gpu", "grpcio"} <= {*names}
    assert not {*names} & {"pytest", "setuptools", "pip", "zensical", "vite", "colorama"}
    assert not [purl for purl, one in parts.items() if not one.get("hashes")]
    known = installed()
    bare = {one["name"] for one in parts.values() if not one.get("licenses")}
    assert not {name for name in bare if f"{name}=={names[name]['version']}" in known}
    assert names["multidict"]["scope"] == "required"
    assert names["grpcio"]["scope"] == "optional"
    [extras] = names["grpcio"]["properties"]
    assert extras == {"name": "fngate:extras", "value": "grpc"}


def test_the_wheels_bill_says_who_needs_what() -> None:
    """Each component is reached from fngate."""
    found = json.loads(document(command.of_checkout({})))
    needs = {one["ref"]: one.get("dependsOn", []) for one in found["dependencies"]}
    reached, todo = set(), ["fngate"]
    while todo:
        reached.add(ref := todo.pop())
        todo += [other for other in needs[ref] if other not in reached]

    assert reached == {one["bom-ref"] for one in found["components"]} | {"fngate"}


def test_the_dashboards_packages_are_in_it() -> None:
    """What the pages contain is listed with npm's hash; what only builds them is not."""
    parts = {part.name: part for part in bundled(PAGES)}

    direct = json.loads(PAGES)["packages"][""]
    assert {*direct["dependencies"]} <= {*parts}
    assert not {*parts} & {*direct["devDependencies"]}
    assert {len(next(iter(part.hashes)).content) for part in parts.values()} == {128}


def test_an_images_bill_fits_the_schema() -> None:
    """Locked packages have hashes, others and Debian's are listed without; removed ones are not."""
    entries = [Entry("numpy", "2.0", f"numpy==2.0 --hash=sha256:{HASH}", frozenset())]

    parts = checked(
        document(of_image("host:5/fngate-runtime:cpu", f"sha256:{HASH}", SAID, entries))
    )

    assert parts["pkg:pypi/numpy@2.0"]["hashes"] == [{"alg": "SHA-256", "content": HASH}]
    assert parts["pkg:pypi/numpy@2.0"]["licenses"] == [{"license": {"id": "BSD-3-Clause"}}]
    assert "hashes" not in parts["pkg:pypi/stray@1.0"]
    assert "pkg:deb/debian/libc6@2.36-9%2Bdeb12u1?arch=amd64&distro=debian-12" in parts
    assert len(parts) == 3


def test_an_image_without_debian_has_none() -> None:
    """A base without dpkg lists no packages of it."""
    assert debian("", 'ID="other"\n') == []


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"License-Expression": "MIT OR Apache-2.0", "License": "x"}, ["MIT OR Apache-2.0"]),
        ({"License": "BSD"}, ["BSD"]),
        (
            {"License": "a\nb", "Classifier": ["License :: OSI Approved :: MIT License"]},
            ["MIT License"],
        ),
        ({"License": "UNKNOWN", "Classifier": ["Topic :: Text"]}, []),
    ],
)
def test_a_licence_is_what_the_metadata_names(fields: dict[str, Any], wanted: list[str]) -> None:
    """The expression comes first, then a short field, then classifiers; no text is a name."""
    found = [getattr(one, "value", "") or getattr(one, "name", "") for one in licences(fields)]

    assert found == wanted


def test_the_same_parts_have_the_same_number() -> None:
    """The serial number says whether two bills list the same."""
    one, same, other = (
        json.loads(document(of_image("a:b", f"sha256:{digit * 64}", SAID, [])))["serialNumber"]
        for digit in "112"
    )

    assert one == same != other


@pytest.mark.usefixtures("forgotten_sockets")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_without_an_engine_the_wheels_bill_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an engine the command says so and the wheel's bill is there; an image that was named
    is an error."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    words = [str(tmp_path), "--engine", f"unix://{tmp_path}/none.sock"]

    assert command.main(words) == 0

    assert (
        "no bill of the image fngate-runtime:cpu: there is no Docker engine at"
        in capsys.readouterr().out
    )
    [written] = tmp_path.glob("*.json")
    assert checked(written.read_text())
    assert command.main([*words, "--image", "mine:1"]) == 1


@pytest.mark.docker
@pytest.mark.slow
def test_the_runtime_images_bill(engine: str, runtime_image: str, tmp_path: Path) -> None:
    """The bill of the built image has the locked packages with hashes, and Debian's of its base."""
    code = command.main([str(tmp_path), "--engine", engine, "--image", runtime_image])

    assert code == 0
    [written] = tmp_path.glob(f"{runtime_image.replace(':', '-')}.cdx.json")
    parts = {one["name"]: one for one in checked(written.read_text()).values()}
    named = (ROOT / "runtime_image/requirements/cpu.txt").read_text().split()
    assert not [name for name in named if not parts[name].get("hashes")]
    assert parts["libc6"]["purl"].startswith("pkg:deb/debian/libc6@")
