"""The protocol's document of statistics."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from gateway.oip.statistics import (
    BatchStatistics,
    Duration,
    InferStatistics,
    RevisionStatistics,
    model_statistics,
)


def shown(name: str, version: str, found: RevisionStatistics) -> dict[str, Any]:
    """Return the statistics of a model as clients read them."""
    model: dict[str, Any] = to_builtins(model_statistics(name, version, found))
    return model


def test_a_revision_that_served_nothing_has_every_number_as_zero() -> None:
    """Clients read differences: a number that is missing at first would be an error to them."""
    model = shown("m", "1", RevisionStatistics("default/m@1"))
    zero = {"count": 0, "ns": 0}
    assert model == {
        "name": "m",
        "version": "1",
        "last_inference": 0,
        "inference_count": 0,
        "execution_count": 0,
        "inference_stats": {
            "success": zero,
            "fail": zero,
            "queue": zero,
            "compute_input": zero,
            "compute_infer": zero,
            "compute_output": zero,
            "cache_hit": zero,
            "cache_miss": zero,
        },
        "batch_stats": [],
    }


def test_every_number_stands_under_its_own_name() -> None:
    """No two numbers of the document are exchanged."""
    took = [Duration(number, number * 10) for number in range(1, 12)]
    batch = BatchStatistics(8, *took[6:9])
    found = RevisionStatistics(
        "default/m@3", 100, 200, 300, InferStatistics(*took[:6], *took[9:]), (batch,)
    )
    model = shown("models.m", "7", found)
    assert (model["name"], model["version"], model["last_inference"]) == ("models.m", "7", 100)
    assert (model["inference_count"], model["execution_count"]) == (200, 300)
    names = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    for name, place in (("cache_hit", 10), ("cache_miss", 11)):
        assert model["inference_stats"][name] == {"count": place, "ns": place * 10}
    for place, name in enumerate(names, 1):
        assert model["inference_stats"][name] == {"count": place, "ns": place * 10}
    assert model["batch_stats"] == [
        {
            "batch_size": 8,
            "compute_input": {"count": 7, "ns": 70},
            "compute_infer": {"count": 8, "ns": 80},
            "compute_output": {"count": 9, "ns": 90},
        }
    ]
