"""The protocol's document of statistics."""

from __future__ import annotations

from gateway.oip.statistics import (
    BatchStatistics,
    RevisionStatistics,
    Served,
    Took,
    document,
)


def test_a_revision_that_served_nothing_has_every_number_as_zero() -> None:
    """Clients read differences: a number that is missing at first would be an error to them."""
    [model] = document([Served("m", "1", RevisionStatistics("default/m@1"))])["model_stats"]
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
    took = [Took(number, number * 10) for number in range(1, 10)]
    batch = BatchStatistics(8, *took[6:9])
    found = RevisionStatistics("default/m@3", 100, 200, 300, *took[:6], (batch,))
    [model] = document([Served("models.m", "7", found)])["model_stats"]
    assert (model["name"], model["version"], model["last_inference"]) == ("models.m", "7", 100)
    assert (model["inference_count"], model["execution_count"]) == (200, 300)
    names = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
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


def test_models_keep_their_order() -> None:
    """The document lists models as its caller did."""
    served = [Served(name, "1", RevisionStatistics(name)) for name in ("b", "a", "c")]
    assert [one["name"] for one in document(served)["model_stats"]] == ["b", "a", "c"]
