"""A replica validates its record before using it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from runtime_image.contract.control import RECORD_FILE, ReplicaRecord
from runtime_image.contract.link import VERSION
from runtime_image.link.record import (
    EXIT_BAD_RECORD,
    EXIT_OTHER_LINK,
    RECORD_MAX,
    RecordRefused,
    engine_of,
    read_record,
)

RECORD = ReplicaRecord(
    *(
        "aaaa0001",
        "secret",
        "serve",
        "default",
        "default/digits@1",
        "/m",
        ("cpu:0",),
        "cpu",
        "onnx",
    ),
    threads=2,
    orphan_s=60.0,
    memory_mib=0,
    launched_s=1.5,
    link=VERSION,
    phases={"place": 2.0},
)


def refusal(run_dir: Path, text: str) -> RecordRefused:
    """Return a replica's error for a record with this text."""
    (run_dir / RECORD_FILE).write_text(text)
    with pytest.raises(RecordRefused) as raised:
        read_record(run_dir)
    return raised.value


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    """A manager's record survives the file."""
    (tmp_path / RECORD_FILE).write_text(json.dumps(asdict(RECORD)))

    assert read_record(tmp_path) == RECORD


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"link": VERSION + 1, "shape": "nobody knows"}, str(VERSION + 1)),
        ({"link": 0}, "0"),
        ({**asdict(RECORD), "link": True}, "true"),
        ({"id": "aaaa0001"}, "none"),
    ],
)
def test_another_link_is_refused_before_anything_else(
    tmp_path: Path, record: dict[str, Any], told: str
) -> None:
    """A record of another link version gives one line with both versions and the remedy, whatever
    else it holds."""
    refused = refusal(tmp_path, json.dumps(record))

    assert refused.exit_code == EXIT_OTHER_LINK
    assert f"link version {VERSION}, its manager {told}:" in str(refused)
    assert "fnctl image build" in str(refused)
    assert "\n" not in str(refused)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Expecting property name"),
        ("[]", "expected an object, got list"),
        (" " * (RECORD_MAX + 1), f"expected at most {RECORD_MAX} bytes"),
        (json.dumps({"link": VERSION}), "missing fields: bound, control, data, device_kind"),
        (json.dumps({**asdict(RECORD), "colour": "red"}), "unknown fields: colour"),
        (json.dumps({**asdict(RECORD), "token": 7}), "expected a string as token, got '7'"),
        (
            json.dumps({**asdict(RECORD), "threads": "all"}),
            "expected a number of 0 or more as threads, got 'all'",
        ),
        (json.dumps({**asdict(RECORD), "devices": "g1"}), "expected strings as devices, got 'g1'"),
        (json.dumps({**asdict(RECORD), "devices": [1]}), "expected strings as devices, got '[1]'"),
        (
            json.dumps({**asdict(RECORD), "role": "king"}),
            "expected one of serve, trial, build, standby as role, got 'king'",
        ),
        (
            json.dumps({**asdict(RECORD), "phases": {"place": -1}}),
            "expected milliseconds by phase as phases, got",
        ),
    ],
)
def test_a_malformed_record_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    """A malformed record is refused with the expected and the actual value."""
    refused = refusal(tmp_path, text)

    assert refused.exit_code == EXIT_BAD_RECORD
    assert str(refused).startswith("malformed replica.json: ")
    assert reason in str(refused)


def test_no_record_is_an_os_error(tmp_path: Path) -> None:
    """A missing record is an OSError, unlike a malformed one."""
    with pytest.raises(FileNotFoundError):
        read_record(tmp_path)


def test_the_engine_chooses_the_program(tmp_path: Path) -> None:
    """Without a readable record there is none; the replica's program then says why."""
    assert engine_of(tmp_path) == ""
    (tmp_path / RECORD_FILE).write_text("{")
    assert engine_of(tmp_path) == ""
    (tmp_path / RECORD_FILE).write_text(json.dumps(asdict(RECORD)))

    assert engine_of(tmp_path) == "onnx"
