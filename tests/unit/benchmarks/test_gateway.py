"""Figures that the benchmarks read from a server's answers."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.gateway import function_of, quick_plan
from runtime_image.contract.model import SessionPlan

QUICK = {"file": ".prepared/quick.onnx", "optimise": False, "prepack": False, "load_ms": 12.5}


@pytest.mark.parametrize(
    "profile", [{"preparation": {"key": "k", "quick": QUICK}}, {"quick": QUICK, "load_ms": 3.0}]
)
def test_the_quick_session_of_a_profile_is_found(profile: dict[str, Any]) -> None:
    """The quick session is found with the replica's session options, whatever else was measured."""
    assert quick_plan(profile) == SessionPlan(".prepared/quick.onnx", False, False)


@pytest.mark.parametrize(
    "profile",
    [None, {}, {"load_ms": 3.0, "latency_ms": {"1": 0.1}}, {"quick": None}, {"quick": {}}],
)
def test_a_model_that_was_not_prepared_has_none(profile: dict[str, Any] | None) -> None:
    """A model that was not prepared has no quick session; its replicas load the original."""
    assert quick_plan(profile) is None


@pytest.mark.parametrize(("pool", "name"), [("default/digits@12", "digits"), ("standby/cpu", "")])
def test_a_pool_names_its_function(pool: str, name: str) -> None:
    """A pool key contains its function's name; standbys have none."""
    assert function_of(pool) == name
