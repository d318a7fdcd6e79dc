"""Checks of running replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from admin.cli.doctor import machine
from admin.cli.doctor.machine import Check

REPLICA = b"python3\0-I\0-u\0-m\0runtime_image\0/run/fngate\0"


def process(proc: Path, pid: int, seccomp: str, words: bytes = REPLICA) -> int:
    """One in a made-up /proc."""
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cmdline").write_bytes(words)
    (proc / str(pid) / "status").write_text(f"Name:\tpython3\nSeccomp:\t{seccomp}\n")
    return pid


@pytest.mark.parametrize(("count", "text"), [(1, "1 running replica"), (2, "2 running replicas")])
def test_filtered_replicas_are_fine(tmp_path: Path, count: int, text: str) -> None:
    """Their number is told; the init of a container is none."""
    pids = [process(tmp_path, 10 + at, "2") for at in range(count)]
    init = process(tmp_path, 1, "0", b"/sbin/docker-init\0--\0python3\0")

    found = machine.system_calls([*pids, init, 999], tmp_path)

    assert found == [Check("ok", "replica filter", f"Seccomp: 2 in {text}")]


def test_a_replica_without_a_filter_fails(tmp_path: Path) -> None:
    """It is named."""
    pids = [process(tmp_path, 10, "2"), process(tmp_path, 11, "0")]

    [check] = machine.system_calls(pids, tmp_path)

    assert (check.level, check.todo) == ("fail", "build its image again: fnctl image build cpu")
    assert check.found == "process 11 has Seccomp: 0, expected 2"


def test_without_a_replica_nothing_is_said(tmp_path: Path) -> None:
    """There is nothing to look at."""
    assert machine.system_calls([], tmp_path) == []
    assert machine.replica_pids(tmp_path) == []
