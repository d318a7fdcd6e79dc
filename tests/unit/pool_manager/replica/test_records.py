"""What is written down of a replica, and what it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from pool_manager.core.commands import Assign
from pool_manager.ports import Binding
from pool_manager.replica import records
from pool_manager.settings import PoolSettings
from registry.model import Bundle
from runtime_image.contract import model as models
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.link import VERSION
from runtime_image.contract.model import ModelSpec

SPEC = ModelSpec("digits@1", "onnx", "digits.onnx", "")
BINDING = Binding(SPEC, Bundle("d", ()), "default", "digits", 1, 0)
ASSIGN = Assign("0a", "default/digits@1", "cpu:0", "serve", {"place": 1.5})


def standby(tmp_path: Path) -> ReplicaRecord:
    settings = PoolSettings(tmp_path / "run", tmp_path / "models", tmp_path / "logs", orphan_s=7.0)
    return records.unbound("0a", "cpu", tmp_path / "models" / "0a", settings, 100.0)


def test_a_standby_is_bound_to_nothing(tmp_path: Path) -> None:
    """It has a token, no pool, no device and no cap."""
    record = standby(tmp_path)

    assert (record.role, record.bound, record.device, record.memory_mib) == ("standby", "", "", 0)
    assert (record.orphan_s, record.launched_s, record.engine) == (7.0, 100.0, "onnx")
    assert record.link == VERSION
    assert len(record.token) == 64
    assert record.token != standby(tmp_path).token


def test_a_bound_record_names_its_pool_and_device(tmp_path: Path) -> None:
    """What identifies the process stays, what it is for is added."""
    record = records.bound(standby(tmp_path), ASSIGN, BINDING, "cpu", 512)

    assert (record.id, record.role, record.bound, record.device) == (
        "0a",
        "serve",
        "default/digits@1",
        "cpu:0",
    )
    assert (record.memory_mib, record.phases) == (512, {"place": 1.5})


def test_a_replica_is_told_all_of_it(tmp_path: Path) -> None:
    """The one message holds model, place, limits and the phases so far."""
    record = records.bound(standby(tmp_path), ASSIGN, BINDING, "cpu", 512)

    told = records.bind_request(record, SPEC, 101.5)

    assert models.from_json(told["spec"]) == SPEC
    assert told["bound"] == "default/digits@1"
    assert (told["device"], told["memory_mib"], told["assigned_s"]) == ("cpu:0", 512, 101.5)


def test_nobody_is_told_of_no_model(tmp_path: Path) -> None:
    """A standby that is still one has nothing to be told."""
    with pytest.raises(AssertionError):
        records.bind_request(standby(tmp_path), SPEC, 0.0)
