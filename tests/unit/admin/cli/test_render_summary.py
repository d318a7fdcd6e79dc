from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from admin.cli.bundle_files import Collected
from admin.cli.render import curl, example, prepared, render_summary
from registry.bundles.paths import make_bundle
from registry.model import BundleFile

FILES = Collected(
    "digits", False, Path("functions/digits"), make_bundle([BundleFile("m.onnx", 2048, "ab" * 32)])
)
PROFILE: dict[str, Any] = {"load_ms": 9.1, "memory_mib": 41.2, "batchable": True, "batch_max": 32}


def test_a_new_revision_is_summed_up() -> None:
    """The summary has the sample's answer and what was measured."""
    result = {
        "revision": "digits@1",
        "created": True,
        "sample": {"outputs": {"y": [1]}},
        "profile": PROFILE,
        "batching": "up to 32 rows",
        "switch": "calls go to digits@1",
    }

    assert render_summary(result, FILES).split("\n") == [
        "digits@1 deployed (1 file, 2.0 KiB)",
        "  sample    y [1]",
        "  load      9.1 ms",
        "  memory    41 MiB",
        "  batching  up to 32 rows",
        "  switch    calls go to digits@1",
    ]


def test_a_known_revision_is_named() -> None:
    """Where nothing is new, that is said and no more."""
    result = {"revision": "digits@3", "created": False, "profile": PROFILE}

    assert render_summary(result, FILES) == "same bundle and settings as digits@3: nothing changed"
    told = render_summary({**result, "changed": ["labels", "limits.queue"]}, FILES)
    assert told == "same bundle as digits@3, which stays; changed: labels, limits.queue"


def test_a_bare_result_is_enough() -> None:
    """What the server leaves out is not shown."""
    assert (
        render_summary({"revision": "digits@1"}, FILES) == "digits@1 deployed (1 file, 2.0 KiB)\n"
    )


@pytest.mark.parametrize(
    ("sample", "command"),
    [
        ({}, "fnctl show digits"),
        ({"x": "@a b.png"}, "fnctl invoke digits -i 'x=@functions/digits/a b.png'"),
        ({"x": [1, 2], "y": "t"}, "fnctl invoke digits -i 'x=[1, 2]' -i 'y=\"t\"'"),
        ({"x": [1] * 100}, "fnctl show digits"),
    ],
)
def test_the_next_command_calls_with_the_sample(sample: dict[str, Any], command: str) -> None:
    """The function is called with its own sample where that fits a line."""
    assert example(replace(FILES, sample=sample)) == command


@pytest.mark.parametrize(
    ("sample", "command"),
    [
        ({}, ""),
        (
            {"x": "@a b.png"},
            "curl http://here:1/fn/digits -H 'Content-Type: image/png'"
            " --data-binary '@functions/digits/a b.png'",
        ),
        (
            {"x": [1, 2]},
            "curl http://here:1/fn/digits -H 'Content-Type: application/json'"
            ' -d \'{"inputs": {"x": [1, 2]}}\'',
        ),
        ({"x": [1] * 100}, ""),
    ],
)
def test_curl_calls_with_the_sample(sample: dict[str, Any], command: str) -> None:
    """The sample's file with its content type, or its values, where that fits a line."""
    assert curl(replace(FILES, sample=sample), "http://here:1/") == command


TIMES = {"load_ms": 240.0, "first_ms": 6.0, "cpu_ms": {"1": 8.1, "8": 20.0}}
QUICK = {"load_ms": 2.0, "first_ms": 8.0, "cpu_ms": {"1": 10.0, "8": 25.0}}


@pytest.mark.parametrize(
    ("profile", "shown"),
    [
        ({}, ""),
        ({"prepared": None, "why_not_prepared": "too small"}, "no: too small"),
        (
            {"prepared": {"original": TIMES, "quick": QUICK, "fast": None}},
            "first answer after 10 ms instead of 246 ms",
        ),
        (
            {"prepared": {"original": TIMES, "quick": QUICK, "fast": TIMES}},
            "first answer after 10 ms instead of 246 ms; then a session built beside it takes"
            " 20% less CPU time",
        ),
    ],
)
def test_what_was_prepared_in_a_line(profile: dict[str, Any], shown: str) -> None:
    """What a cold start gains, or why it gains nothing."""
    assert prepared(profile) == shown
