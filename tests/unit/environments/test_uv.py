"""Tests of what is told of uv."""

from __future__ import annotations

import pytest

from environments.uv import core


@pytest.mark.parametrize(
    ("hint", "told"),
    [
        (
            "Consider enabling `--system-certs`",
            "system-certs = true in the uv.toml of FN_UV_CONFIG",
        ),
        ("Use `--no-build` to do so", ""),
        ("`numpy` was requested with a pre-release marker", "`numpy` was requested"),
    ],
)
def test_hints_name_what_can_be_done_here(hint: str, told: str) -> None:
    """Options of uv are no remedy: nobody here gives any."""
    text = core(f"error: no certificate\nhint: {hint}")

    reason, _, rest = text.partition("\nhint: ")
    assert reason == "no certificate"
    assert rest.startswith(told)
    assert bool(rest) is bool(told)
