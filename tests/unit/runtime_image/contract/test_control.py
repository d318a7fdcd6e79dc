"""The control link's messages are plain JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from runtime_image.contract.control import PHASES, ReplicaRecord, Report, record_from

FIELDS: dict[str, Any] = {
    "id": "aaaa0001",
    "token": "secret",
    "role": "serve",
    "namespace": "default",
    "bound": "default/digits@1",
    "model_dir": "/models/aaaa0001",
    "device_kind": "cpu",
    "engine": "onnx",
    "threads": 2,
    "orphan_s": 60.0,
    "memory_mib": 512,
    "launched_s": 12.5,
    "link": 1,
    "phases": {"place": 1.5},
}


def test_a_record_survives_its_file() -> None:
    """A replica reads back the record that the manager wrote into its run folder."""
    record = ReplicaRecord(**FIELDS, devices=("cpu:0",))

    assert record_from(json.loads(json.dumps(asdict(record)))) == record


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ({"device": "cpu:0"}, ("cpu:0",)),
        ({"device": ""}, ()),
        ({"devices": []}, ()),
        ({"devices": ["g1", "g2"]}, ("g1", "g2")),
    ],
)
def test_a_record_has_devices(devices: dict[str, Any], expected: tuple[str, ...]) -> None:
    """A record of link version 9 had one device, or "" for none."""
    assert record_from({**FIELDS, **devices}).devices == expected


@pytest.mark.parametrize(
    "devices", [{}, {"device": 1}, {"devices": "g1"}, {"devices": [1]}, {"devices": None}]
)
def test_a_record_without_devices_is_refused(devices: dict[str, Any]) -> None:
    """A value that is no list of texts is refused, and the error shows it."""
    with pytest.raises(TypeError, match="expected texts as devices, got"):
        record_from({**FIELDS, **devices})


def test_a_record_of_other_fields_is_refused() -> None:
    """Missing and unknown fields are errors."""
    with pytest.raises(TypeError):
        record_from({"devices": []})
    with pytest.raises(TypeError):
        record_from({**FIELDS, "devices": [], "colour": "red"})


def test_a_report_survives_the_link() -> None:
    """A trial's report survives serialisation."""
    report = Report({"kind": "json"}, 1.5, 40.0, {"1": 0.5, "2": 0.6}, True, "", 2, True)

    assert Report(**json.loads(json.dumps(asdict(report)))) == report


def test_the_phases_are_the_published_ones() -> None:
    """A cold start always has these phases in this order."""
    started = ("place", "evict", "start", "import", "bind", "fetch", "read", "load")
    assert (*started, "wake", "verify", "first_run") == PHASES
