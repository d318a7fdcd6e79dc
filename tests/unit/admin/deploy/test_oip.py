"""Names and versions in the Open Inference Protocol, as deploys set them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from admin.deploy.oip import is_meant, oip_name, same_version
from registry.catalog import Catalog, Deployed
from registry.errors import Conflict
from registry.manifest import Manifest
from tests.support.nouns import function, revision
from tests.support.operator import MODEL, Operator, operating
from tests.support.server import Gate

OTHER = {"m.onnx": MODEL + b"\x3a\x00"}


def catalog(*names: tuple[str, str]) -> Catalog:
    """Return a catalog of functions with these `oip_name`s."""
    return Catalog(Deployed(function(name, oip_name=oip), revision(name)) for name, oip in names)


def manifest(oip: str = "", version: int = 0) -> str:
    """Return a function.toml with this [oip]."""
    name = f'name = "{oip}"\n' if oip else ""
    number = f"version = {version}\n" if version else ""
    return f'schema = 1\nmodel = "m.onnx"\n[oip]\n{name}{number}'


@pytest.mark.parametrize(
    ("before", "name", "wanted", "expected"),
    [
        ((), "resnet-50", "resnet_50", "resnet_50"),
        ((), "resnet", "resnet", "resnet"),
        ((), "resnet", "", ""),
        ((("resnet-50", "resnet_50"),), "resnet-50", "resnet_50", "resnet_50"),
        ((("resnet-50", "resnet_50"),), "resnet-50", "", "resnet_50"),
        ((("resnet", ""),), "resnet", "resnet", ""),
        ((("resnet-50", "resnet_50"),), "other", "Other", "Other"),
    ],
)
def test_the_first_deploy_sets_the_name(
    before: tuple[tuple[str, str], ...], name: str, wanted: str, expected: str
) -> None:
    """A later deploy keeps it, whether it names it or not."""
    assert oip_name(name, Manifest(oip_name=wanted), catalog(*before)) == expected


@pytest.mark.parametrize(
    ("before", "name", "wanted", "message"),
    [
        (("resnet-50", "resnet_50"), "resnet-50", "other", "expected 'resnet_50', which clients"),
        (("resnet", ""), "resnet", "other", "expected 'resnet', which clients call resnet at /v2"),
        (("a", "model"), "b", "model", "'model' is the name of a at /v2: deploy to a"),
        (("a", "model"), "model", "", "model is the name of a at /v2: choose another name"),
        (("a", "model"), "model", "x", "model is the name of a at /v2: choose another name"),
        (("a", ""), "b", "a", "'a' is the name of another function"),
    ],
)
def test_a_name_means_one_model(
    before: tuple[str, str], name: str, wanted: str, message: str
) -> None:
    """Neither the first nor a later deploy takes a name that means another function's model."""
    with pytest.raises(Conflict, match=message):
        oip_name(name, Manifest(oip_name=wanted), catalog(before))


def test_a_repositorys_function_is_meant_by_its_folders_name() -> None:
    """A derived name may be deployed to where the function has that `oip_name`, nowhere else."""
    there = catalog(("resnet-50", "resnet_50"), ("plain", ""))
    assert is_meant("resnet-50", Manifest(oip_name="resnet_50"), there)
    assert is_meant("new", Manifest(), there)
    assert not is_meant("resnet-50", Manifest(oip_name="resnet.50"), there)
    assert not is_meant("resnet-50", Manifest(), there)
    assert not is_meant("plain", Manifest(), there)


def test_the_newest_revision_of_a_version_counts() -> None:
    """An older revision of the version is no reason to keep everything as it is."""
    old = revision(number=1, oip_version="3")
    new = revision(number=2, oip_version="3", bundle="f" * 64)
    there = Catalog([Deployed(function(), old), Deployed(function(), new)])
    assert same_version(replace(new, number=0, created_s=9.0), there) == there.find("digits@2")
    assert same_version(replace(old, number=0), there) is None
    assert same_version(replace(old, number=0, oip_version="4"), there) is None


async def version(operator: Operator, number: int, **fields: Any) -> dict[str, Any]:
    """Deploy that version without traffic; return the result."""
    fields = {"traffic": False, "derived_name": True, **fields}
    done = await operator.deploy("digits", manifest=manifest("Digits", number), **fields)
    assert done.state == "done", done.error
    return done.result


async def test_versions_are_added_without_traffic(tmp_path: Path) -> None:
    """The first deploy takes the calls in any case; further versions do not, and are found by their
    version. A second run changes nothing, also after a restart."""
    async with operating(tmp_path) as operator:
        first = await version(operator, 3, traffic=True)
        second = await version(operator, 1, files=OTHER)
        assert (first["revision"], second["revision"]) == ("digits@1", "digits@2")
        assert second["switch"] == "calls of digits still go to digits@1"
        assert operator.store.catalog.find_oip("Digits", "1") == operator.store.catalog.find(
            "digits@2"
        )
    async with operating(tmp_path) as operator:
        again = [await version(operator, 3), await version(operator, 1, files=OTHER)]
        assert [(one["revision"], one["created"]) for one in again] == [
            ("digits@1", False),
            ("digits@2", False),
        ]
        catalog = operator.store.catalog
        assert catalog.resolve("digits").revision.number == 1
        assert catalog.resolve("digits").function.oip_name == "Digits"
        replaced = await version(operator, 1)
        assert (replaced["revision"], replaced["created"]) == ("digits@3", True)
        assert catalog.find_oip("Digits", "1") == catalog.find("digits@3")


async def test_a_later_deploy_keeps_the_name(tmp_path: Path) -> None:
    """Neither a new revision, nor other settings, nor a rollback takes it away."""
    async with operating(tmp_path) as operator:
        await version(operator, 1, traffic=True)
        for fields in ({"files": OTHER}, {"files": OTHER, "overrides": {"max": 4}}):
            assert (await operator.deploy("digits", **fields)).state == "done"
            function = operator.store.catalog.resolve("digits").function
            assert function.oip_name == "Digits"
        refused = await operator.store.functions.load_all()
        assert {one.function.oip_name for one in refused} == {"Digits"}


async def test_two_first_deploys_may_not_take_one_name(operator: Operator, gate: Gate) -> None:
    """Both were accepted before either ended; the store lets one have the name."""
    gate.shut()
    text = manifest("Digits", 1)
    begun = [await operator.start(name, party=name, manifest=text) for name in ("one", "two")]
    for each in begun:
        await operator.reached(each.id, "verify")
    gate.open()
    states = {(await operator.ended(each.id)).state for each in begun}
    assert states == {"done", "failed"}
    assert len(operator.store.catalog.all()) == 1
