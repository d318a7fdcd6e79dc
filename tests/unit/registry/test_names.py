"""Tests of names and references."""

from __future__ import annotations

import pytest

from registry.errors import BadRequest
from registry.names import check_name, is_name, name_from_file, parse_ref


@pytest.mark.parametrize("name", ["a", "digits", "a-b", "m2", "a" * 63, "a--b"])
def test_valid_names(name: str) -> None:
    """A DNS label that starts with a letter is valid and is returned unchanged."""
    assert is_name(name)
    assert name == check_name(name)


@pytest.mark.parametrize(
    "text", ["", "A", "1a", "-a", "a-", "a_b", "a.b", "a/b", "a@1", "a" * 64, "a\n", "é"]
)
def test_invalid_names(text: str) -> None:
    """Other text is refused with the rule and the received value."""
    assert not is_name(text)
    with pytest.raises(BadRequest, match="beginning with a letter"):
        check_name(text)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("My Model_v2.onnx", "my-model-v2"),
        ("models/Digits.onnx", "digits"),
        ("Modèle__final!.onnx", "modele-final"),
        ("resnet50.v1.onnx", "resnet50-v1"),
        ("x" * 80 + ".onnx", "x" * 63),
        ("x" * 62 + "-y.onnx", "x" * 62),
    ],
)
def test_name_from_file(file: str, name: str) -> None:
    """A file name is turned into the nearest valid name, cut to the maximum length."""
    assert name == name_from_file(file)


@pytest.mark.parametrize("file", ["3d.onnx", "日本.onnx", "---.onnx", ""])
def test_a_file_without_a_usable_name(file: str) -> None:
    """A file name that yields no valid name is an error that suggests --name."""
    with pytest.raises(BadRequest, match="--name"):
        name_from_file(file)


def test_parse_ref() -> None:
    """A reference is a name, or a name with a revision number."""
    assert parse_ref("digits") == ("digits", None)
    assert parse_ref("digits@3") == ("digits", 3)


@pytest.mark.parametrize(
    "ref", ["", "@3", "digits@", "digits@0", "digits@03", "digits@-1", "digits@1@2", "digits@x"]
)
def test_invalid_refs(ref: str) -> None:
    """Any other reference is refused."""
    with pytest.raises(BadRequest):
        parse_ref(ref)
