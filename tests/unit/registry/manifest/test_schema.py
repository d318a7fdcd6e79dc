"""Keys, types and ranges of function.toml, and what the refusals say."""

from __future__ import annotations

import tomllib

import pytest

from registry.errors import BadManifest
from registry.manifest.schema import (
    RESERVED_ENGINES,
    LimitsTable,
    ScalingTable,
    check_document,
    refused,
    validate,
)


def refusal(text: str) -> BadManifest:
    with pytest.raises(BadManifest) as caught:
        check_document(tomllib.loads("schema = 1\n" + text))
    return caught.value


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("scal = {}", "scal", "did you mean 'scaling'?"),
        ("scaling.mni = 1", "scaling.mni", "did you mean 'min'?"),
        ("input.x.sise = [8, 8]", "input.x.sise", "did you mean 'size'?"),
        ("input.max.max = 1", "input.max.max", "known are kind, finite"),
        ("output.topk = 1", "output.topk", "did you mean 'top_k'?"),
        ("qqq = 1", "qqq", "known are schema, name, model"),
    ],
)
def test_unknown_keys(text: str, key: str, hint: str) -> None:
    """A key that is none is refused by its full path, with the nearest or all that are known."""
    error = refusal(text)

    assert error.detail["key"] == key
    assert f"function.toml: {key}: unknown key; {hint}" in error.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('scaling.min = "3"', "scaling.min: expected an integer, got '3'"),
        ("scaling.min = true", "scaling.min: expected an integer, got True"),
        ("scaling.min = 1.5", "scaling.min: expected an integer, got 1.5"),
        ("scaling.min = -1", "scaling.min: expected at least 0, got -1"),
        ("scaling.max = 1001", "scaling.max: expected at most 1000, got 1001"),
        ("scaling.min = 2", "scaling.max: expected at least scaling.min (2), got 1"),
        ("scaling = 3", "scaling: expected a table, got 3"),
        ("scaling.idle_s = inf", "scaling.idle_s: expected a finite number, got inf"),
        ("name = 1", "name: expected a string, got 1"),
        ('device.kind = "tpu"', "device.kind: expected 'any', 'cpu' or 'cuda', got 'tpu'"),
        ("device.share = 0", "device.share: expected at least 0.01, got 0"),
        ("limits.queue = 0", "limits.queue: expected at least 1, got 0"),
        ("limits.body_mib = 257", "limits.body_mib: expected at most 256, got 257"),
        ('limits.retry = "no"', "limits.retry: expected 'auto', 'always' or 'never', got 'no'"),
        ("batching.wait_ms = 1001", "batching.wait_ms: expected at most 1000, got 1001"),
        ("labels.a = 1", "labels.a: expected a string, got 1"),
        ("input.x.finite = 1", "input.x.finite: expected a boolean, got 1"),
        ("input.x.size = [8]", "input.x.size: expected at least 2 items, got [8]"),
        ("input.x.size = [8, 0]", "input.x.size.1: expected at least 1, got 0"),
        ("input.x.mean = 'a'", "input.x.mean: expected a list, got 'a'"),
        ("input.x.std = [1, 'a']", "input.x.std.1: expected a number, got 'a'"),
        ("input.x.pad = 256", "input.x.pad: expected at most 255, got 256"),
        ("output.labels = [1]", "output.labels.0: expected a string, got 1"),
        ('runtime.engine = "tf"', "runtime.engine: expected 'onnx' or 'python', got 'tf'"),
    ],
)
def test_wrong_values(text: str, said: str) -> None:
    """The refusal names the key, what was expected and what came."""
    assert refusal(text).message == f"function.toml: {said}"


@pytest.mark.parametrize("engine", RESERVED_ENGINES)
def test_reserved_engines(engine: str) -> None:
    """An engine that is planned is not called unknown."""
    assert "reserved, not available yet" in refusal(f'runtime.engine = "{engine}"').message


@pytest.mark.parametrize(
    "text", ["labels = {%s}", "[input]\n%s", "[sample]\n%s"], ids=["labels", "input", "sample"]
)
def test_tables_are_bounded(text: str) -> None:
    """No table takes as many entries as the file can hold."""
    wide = ("=''," if "labels" in text else "={}\n").join(f"k{n}" for n in range(70))
    last = "=''" if "labels" in text else "={}"

    assert "at most" in refusal(text % (wide + last)).message


def test_one_number_stands_for_all_channels() -> None:
    """A number where a list per channel may be is a list of one."""
    document = check_document(tomllib.loads("schema = 1\ninput.x = {mean = 1, std = 0.5}"))

    assert (document.input["x"].mean, document.input["x"].std) == ([1.0], [0.5])


def test_a_bad_name() -> None:
    """A name that is none is refused with the rule for names."""
    error = refusal('name = "My Model"')

    assert (error.detail["key"], error.detail["got"]) == ("name", "'My Model'")


def test_tables_alone() -> None:
    """A section on its own is checked under the key it is given."""
    assert validate(LimitsTable, {"queue": 5}, "limits").queue == 5
    with pytest.raises(BadManifest, match=r"scaling\.max: expected at least scaling\.min \(9\)"):
        validate(ScalingTable, {"min": 9}, "scaling")


def test_long_values_are_cut() -> None:
    """What came is shown, but not all of a megabyte."""
    assert len(refused("name", "less", "x" * 1000).message) < 200
