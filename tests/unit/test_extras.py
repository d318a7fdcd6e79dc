"""Tests of the extras: what pip installs for each of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
OWN = re.compile(r"fngate\[([a-z,]+)\]")


def distributions(*extras: str) -> set[str]:
    """Return the names that pip resolves for extras: theirs and all plain dependencies."""
    names = set(PROJECT["dependencies"])
    for extra in extras:
        for requirement in PROJECT["optional-dependencies"][extra]:
            if own := OWN.fullmatch(requirement):
                names |= distributions(*own[1].split(","))
            else:
                names.add(re.split(r"[\[~<>=;]", requirement)[0])
    return names


@pytest.mark.parametrize(
    ("extra", "engine"),
    [("cpu", "onnxruntime"), ("gpu", "onnxruntime-gpu"), ("tensorrt", "onnxruntime-gpu")],
)
def test_an_extra_has_one_onnx_runtime(extra: str, engine: str) -> None:
    """The two distributions install the same package: whichever comes last would win. Extras only
    add to plain dependencies, so neither may be one."""
    found = {name for name in distributions(extra) if name.startswith("onnxruntime")}

    assert found == {engine}
    assert not {name for name in distributions() if name.startswith("onnxruntime")}


def test_development_has_an_engine() -> None:
    """Tests run models, so the development tools include ONNX Runtime."""
    assert "onnxruntime" in distributions("dev")
    assert "tensorrt-cu13-libs" in distributions("tensorrt")
