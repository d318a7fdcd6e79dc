"""Tests of how the build of a compiled model is rendered."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from admin.cli.build_lines import build_cell, build_line, compiled_facts, parity, shapes
from admin.documents.functions import BuildDetail, BuildRow
from tests.support.admin_documents import made

WAITING: dict[str, Any] = {"state": "waiting", "reason": "", "attempts": 0, "began_s": None}
RUNNING = {**WAITING, "state": "building", "attempts": 1, "elapsed_s": 12.0, "began_s": 88.0}
DONE = {
    **WAITING,
    "state": "done",
    "compiler": "tensorrt",
    "device_type": "cuda",
    "form": "cache",
    "elapsed_s": 300.0,
    "ordinary_ms": {"1": 1.5, "8": 9.0},
    "compiled_ms": {"1": 0.5, "8": 3.0},
    "ranges": [{"input": "x", "smallest": [1, 4], "usual": [8, 4], "largest": [8, 4]}],
    "outside": "refuse",
    "samples": 12,
    "parity": [
        {"output": "a", "relative_difference": 0.001, "cosine": 1.0},
        {"output": "b", "relative_difference": 0.002, "cosine": 0.999999},
    ],
}


@pytest.mark.parametrize(
    ("build", "line"),
    [
        (WAITING, "waiting: a build begins when a device is free"),
        (
            {**WAITING, "attempts": 2, "reason": "letters waits"},
            "waiting (2 of 3 attempts): letters waits",
        ),
        (RUNNING, "building: 12 s, attempt 1 of 3"),
        ({**RUNNING, "estimate_s": 40.0}, "building: 12 s of about 40 s, attempt 1 of 3"),
        ({**RUNNING, "estimate_s": 10.0}, "building: 12 s, estimated 10 s, attempt 1 of 3"),
        (
            {**WAITING, "state": "given_up", "reason": "letters waits"},
            "given up 3 times: letters waits; fnctl prepare NAME --now tries again",
        ),
        ({**WAITING, "state": "failed", "reason": "y differs"}, "failed: y differs"),
        ({**WAITING, "state": "unavailable", "reason": "no compiler"}, "no: no compiler"),
        (
            DONE,
            "by tensorrt for cuda, parts of the graph are compiled, built in 5.0 min, 3 ms instead"
            " of 9 ms for 8 rows",
        ),
        (
            {"state": "done", "compiler": "tensorrt", "device_type": "cuda", "reason": "too large"},
            "by tensorrt for cuda, built in -; too large",
        ),
    ],
)
def test_a_line_shows_the_state_and_its_details(build: dict[str, Any], line: str) -> None:
    """Each state says what matters in it: progress, the reason, or the gain."""
    assert build_line(made(BuildDetail, build)) == line


def test_lists_show_the_progress() -> None:
    """A list has one short cell, with the time that has passed since the beginning."""
    states = ("waiting", "given_up", "failed", "unavailable", "done")
    cells = [build_cell(made(BuildRow, {**WAITING, "state": state}), 100.0) for state in states]

    assert cells == ["waiting", "given up", "failed", "no", "yes"]
    assert build_cell(None, 100.0) == "-"
    assert build_cell(made(BuildRow, {**RUNNING, "estimate_s": 40.0}), 100.0) == "building 12 s"
    assert build_cell(made(BuildRow, RUNNING), 0.0) == "building"


def test_shapes_and_agreement() -> None:
    """The ranges say what happens outside of them; the worst output stands for all."""
    done = made(BuildDetail, DONE)
    assert shapes(done) == "x 1x4 to 8x4; others are refused"
    assert shapes(replace(done, outside="ordinary")) == "x 1x4 to 8x4; others run uncompiled"
    assert parity(done) == (
        "largest relative difference 0.002 (output b), cosine 0.999999, over 12 samples"
    )
    none = made(BuildDetail, WAITING)
    assert (shapes(none), parity(none)) == ("", "")
    assert parity(replace(done, state="failed")) == ""


def test_each_type_of_device_has_its_facts() -> None:
    """They are named where there are several, by host and model."""
    here = made(BuildDetail, {**DONE, "host": "local", "device_model": "NVIDIA H100, sm90"})
    told = {"state": "given_up", "reason": "b waits", "host": "gpu2", "device_type": "cpu"}
    far = made(BuildDetail, {**WAITING, **told})

    alone, both = compiled_facts([here], "a"), compiled_facts([here, far], "a")

    assert alone == [
        ("compiled", build_line(here)),
        ("shapes", shapes(here)),
        ("parity", parity(here)),
    ]
    assert both == [
        ("compiled", f"local NVIDIA H100, sm90: {build_line(here)}"),
        ("shapes", shapes(here)),
        ("parity", f"local NVIDIA H100, sm90: {parity(here)}"),
        ("compiled", "gpu2 cpu: given up 3 times: b waits; fnctl prepare a --now tries again"),
        ("parity", ""),
    ]
    assert compiled_facts([], "a") == []
