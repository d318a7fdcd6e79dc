"""The messages of the control link are plain JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from runtime_image.contract.control import PHASES, ReplicaRecord, Report


def test_a_record_survives_its_file() -> None:
    """A replica reads from its run folder what the manager recorded there."""
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
    """What a trial measured arrives as it was measured."""
    report = Report({"kind": "json"}, 1.5, 40.0, {"1": 0.5, "2": 0.6}, True, "", 2, True)

    assert Report(**json.loads(json.dumps(asdict(report)))) == report


def test_the_phases_are_the_published_ones() -> None:
    """A cold start has these phases, in this order, everywhere."""
    assert PHASES == ("place", "evict", "start", "import", "bind", "read", "load", "first_run")
