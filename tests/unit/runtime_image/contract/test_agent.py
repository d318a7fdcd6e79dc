"""Tests of reports of agents: what a host may say of its GPUs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from runtime_image.contract.agent import HostReport, from_json, to_json
from runtime_image.contract.gpus import Ancestor, Link, Reading, Snapshot, Telemetry

SENSORS = Telemetry(0.5, 61, 74, 412.5, 9_876_543_210, 1980, 2619, 3, 1, 30, 10, 12)
GPU = Reading("GPU-a", "0", telemetry=SENSORS)
REPORT = HostReport(1, Snapshot("580", (GPU,)), "", False, (), 1.0, 1.0, 2, 3.0, 4.0, 130.0, 6.0)


def passed_on(telemetry: Any) -> HostReport:
    """Return the report as it arrives, with this telemetry."""
    data = json.loads(json.dumps(to_json(REPORT)))
    data["gpus"]["gpus"][0]["telemetry"] = telemetry
    return from_json(data)


@pytest.mark.parametrize("telemetry", [SENSORS, Telemetry(), None])
def test_sensors_survive_the_link(telemetry: Telemetry | None) -> None:
    """All, none, or a GPU without telemetry."""
    found = passed_on(None if telemetry is None else asdict(telemetry))

    assert found == replace(REPORT, gpus=Snapshot("580", (replace(GPU, telemetry=telemetry),)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"energy_mj": -1}, {"energy_mj": 1.5}, {"energy_mj": 2**60}, {"energy_mj": True},
        {"power_w": -0.1}, {"power_w": float("nan")}, {"power_w": float("inf")}, {"power_w": "9"},
        {"ecc_corrected": "many"}, {"temperature_c": [61]}, {"surprise": 1},
    ],
)  # fmt: skip
def test_bad_sensors_are_refused(wrong: dict[str, Any]) -> None:
    """A report with a value that cannot be one is malformed as a whole."""
    with pytest.raises(ValueError, match="malformed report: expected"):
        passed_on({**asdict(SENSORS), **wrong})


LINKED = Link("GPU-a", "GPU-b", Ancestor.SYSTEM, has_nvlink=True)


def linked(links: Any) -> HostReport:
    """Return the report as it arrives, with these connections of GPUs."""
    data = json.loads(json.dumps(to_json(REPORT)))
    data["gpus"]["links"] = links
    return from_json(data)


@pytest.mark.parametrize("links", [(), (LINKED, Link("GPU-a", "GPU-c"))])
def test_connections_survive_the_link(links: tuple[Link, ...]) -> None:
    """Each with what is known of it."""
    assert linked([asdict(one) for one in links]).gpus == Snapshot("580", (GPU,), links=links)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ancestor": 35}, {"ancestor": True}, {"ancestor": 10.5}, {"ancestor": "10"},
        {"ancestor": []}, {"has_nvlink": 1}, {"has_peer_access": "yes"}, {"first": None},
        {"second": "x" * 501}, {"surprise": 1},
    ],
)  # fmt: skip
def test_bad_connections_are_refused(wrong: dict[str, Any]) -> None:
    """A value that cannot be one, and more connections than a report may have."""
    with pytest.raises(ValueError, match="malformed report: expected"):
        linked([{**asdict(LINKED), **wrong}])
    with pytest.raises(ValueError, match="malformed report: expected a list of 0 to 1024"):
        linked([asdict(LINKED)] * 1025)


@pytest.mark.parametrize("wrong", [[], 7, "all", {}])
def test_other_telemetry_is_refused(wrong: object) -> None:
    """Neither another type nor a part of the values."""
    with pytest.raises(ValueError, match="malformed report: expected an object"):
        passed_on(wrong)
