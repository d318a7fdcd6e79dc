"""GPUs as replicas read them, in a process of its own."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from runtime_image.contract.gpus import Reading
from runtime_image.replica.manager_link import hello_of
from runtime_image.replica.seen_gpus import PROGRAM, SeenGpus, seen_gpus, seen_of
from tests.support.scenes import a_record

FOUND = [{"uuid": "GPU-a", "total_mib": 1000.0, "used_mib": 10.0}]


def program(text: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", text)


def printing(value: Any) -> tuple[str, ...]:
    return program(f"print({json.dumps(value)!r})")


def test_hello_has_the_first_reading() -> None:
    """HELLO has what was read, and no field where nothing was."""
    record = a_record()
    hello = hello_of(record, {}, None, 1, SeenGpus(printing(FOUND)))
    assert hello["gpus"] == FOUND
    assert "gpus" not in hello_of(record, {}, None, 1, SeenGpus(printing(None)))
    assert "gpus" not in hello_of(record, {}, None, 1)


def test_the_first_reading_is_kept() -> None:
    """Each HELLO has the reading before the load; a later one is read anew."""
    seen = SeenGpus(printing(FOUND))
    assert seen.first() == seen.first() == seen.now() == FOUND


@pytest.mark.parametrize(
    "command",
    [
        program("raise SystemExit(1)"),
        program("print('no JSON')"),
        program("import signal; signal.pause()"),
        ("/no/such/program",),
    ],
)
def test_what_cannot_be_read_is_unknown(command: tuple[str, ...]) -> None:
    """A driver that hangs, fails or is missing is no reason to wait for ever."""
    seen = SeenGpus(command)
    assert seen.first(limit_s=0.3) is None
    assert seen.now(limit_s=0.3) is None


def test_only_replicas_on_gpus_read_them() -> None:
    """A replica on a CPU slot starts no process for it."""
    assert seen_gpus(a_record()) is None


def test_the_program_runs_here() -> None:
    """Without a driver it says that there is none; with one it names its GPUs."""
    seen = SeenGpus(PROGRAM)
    found = seen.first(limit_s=60.0)
    assert found is None or all(one["uuid"] for one in found)


def test_what_the_driver_keeps_is_no_memory_of_a_gpu() -> None:
    """What the driver reserves is nobody's to use, and is taken off."""
    whole = Reading("GPU-a", "0", total_mib=1000.0, used_mib=10.0, reserved_mib=100.0)
    assert seen_of(whole) == {"uuid": "GPU-a", "total_mib": 900.0, "used_mib": 10.0}
    assert seen_of(Reading("GPU-a", "0")) == {"uuid": "GPU-a"}
