"""Models are found by name and version of the Open Inference Protocol, and only functions with
tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.oip.names import find_served, served_name, served_version
from registry.catalog import Catalog, Deployed
from registry.errors import UnknownModel
from registry.model.functions import Function
from registry.model.revisions import Revision
from runtime_image.contract.signature import Kind, Signature, TensorSpec

TENSORS = Signature("tensors", (TensorSpec("x", "FP32", (-1, 2)),), ())


def deployed(
    name: str, number: int = 1, version: str = "", oip_name: str = "", kind: Kind = "tensors"
) -> Deployed:
    function = Function(name, number, oip_name=oip_name)
    signature = replace(TENSORS, kind=kind)
    return Deployed(function, Revision(name, number, "b", signature, oip_version=version))


def everybody(_: str) -> bool:
    """Let a caller see every function."""
    return True


@pytest.fixture
def catalog() -> Catalog:
    """A function of its own name with two revisions, one with another name and versions."""
    named = [deployed("net", at, version, "Net.v2") for at, version in ((1, "7"), (2, ""))]
    return Catalog([deployed("digits"), deployed("digits", 2), *named])


@pytest.mark.parametrize(
    ("name", "version", "ref"),
    [
        ("digits", "", "digits@2"),
        ("digits", "1", "digits@1"),
        ("Net.v2", "", "net@2"),
        ("Net.v2", "7", "net@1"),
        ("Net.v2", "2", "net@2"),
    ],
)
def test_a_version_is_found_by_the_protocols_name(
    catalog: Catalog, name: str, version: str, ref: str
) -> None:
    """A revision's own version, its number, and the traffic's revision without a version."""
    assert find_served(catalog, name, version, everybody).revision.ref == ref


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("net", ""),
        ("Net.v3", ""),
        ("digits@1", ""),
        ("digits", "3"),
        ("digits", "01"),
        ("", ""),
        ("Net.v2", "1"),
    ],
)
def test_no_other_name_is_found(catalog: Catalog, name: str, version: str) -> None:
    """Neither the function's name behind another one, nor a reference, nor an unknown version, nor
    the number of a revision that has a version: another one may come to be called so."""
    with pytest.raises(UnknownModel):
        find_served(catalog, name, version, everybody)


def test_a_similar_model_that_the_caller_may_use_is_proposed(catalog: Catalog) -> None:
    """By the protocol's name, and only with tensors."""
    catalog.put(deployed("digit-texts", kind="json"))

    for name, near in (("Net.v3", "Net.v2"), ("digit", "digits")):
        with pytest.raises(UnknownModel, match=f"did you mean '{near}'") as caught:
            find_served(catalog, name, "", everybody)
        assert caught.value.detail == {"nearest": [near]}
    with pytest.raises(UnknownModel) as caught:
        find_served(catalog, "Net.v3", "", lambda function: function != "net")
    assert caught.value.detail == {"nearest": []}


def test_an_unknown_version_lists_the_known_ones(catalog: Catalog) -> None:
    """The error of a version says which there are, by the protocol's names."""
    with pytest.raises(UnknownModel, match=r"no version '9'; there is 7, 2"):
        find_served(catalog, "Net.v2", "9", everybody)


def test_the_newest_of_two_revisions_with_a_version_answers() -> None:
    """A version that was deployed again is that of the later revision."""
    catalog = Catalog([deployed("net", at, "5") for at in (1, 2, 3)])
    assert find_served(catalog, "net", "5", everybody).revision.number == 3


@pytest.mark.parametrize("kind", ["json", "bytes", "http"])
def test_a_function_without_tensors_names_its_own_route(kind: Kind) -> None:
    """The protocol has nothing but tensors."""
    with pytest.raises(UnknownModel, match="call /fn/echo"):
        find_served(Catalog([deployed("echo", kind=kind)]), "echo", "", everybody)


def test_names_follow_the_functions_changes(catalog: Catalog) -> None:
    """A removed function leaves its name; served names and versions are those of its clients."""
    found = find_served(catalog, "Net.v2", "7", everybody)
    assert (served_name(found), served_version(found)) == ("Net.v2", "7")
    catalog.remove("net")
    assert catalog.find_oip("Net.v2") is None
    assert catalog.owner_of_oip("Net.v2") is None
    one = find_served(catalog, "digits", "1", everybody)
    assert (served_name(one), served_version(one)) == ("digits", "1")
