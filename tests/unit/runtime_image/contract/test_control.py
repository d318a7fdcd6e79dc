"""The control link's messages are plain JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from runtime_image.contract.control import PHASES, ReplicaRecord, Report


def test_a_record_survives_its_file() -> None:
    """A replica reads back the record that the manager wrote into its run folder."""
    record = ReplicaRecord(
        "aaaa0001",
        "secret",
        "serve",
        "default",
        "default/digits@1",
        "/models/aaaa0001",
        "cpu:0",
        "cpu",
        "onnx",
        threads=2,
        orphan_s=60.0,
        memory_mib=512,
        launched_s=12.5,
        link=1,
        phases={"place": 1.5},
    )

    assert ReplicaRecord(**json.loads(json.dumps(asdict(record)))) == record


def test_a_report_survives_the_link() -> None:
    """A trial's report survives serialisation."""
    report = Report({"kind": "json"}, 1.5, 40.0, {"1": 0.5, "2": 0.6}, True, "", 2, True)

    assert Report(**json.loads(json.dumps(asdict(report)))) == report


def test_the_phases_are_the_published_ones() -> None:
    """A cold start always has these phases in this order."""
    assert PHASES == ("place", "evict", "start", "import", "bind", "read", "load", "first_run")
