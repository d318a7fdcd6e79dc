"""Figures of a host's machine in its engine's answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pool_manager.hosts.engine import CORES_MAX, MEMORY_MAX, VERSION_MAX, RemoteEngine
from pool_manager.hosts.settings import HostSettings
from pool_manager.hosts.transfers import MIB, Transfers
from pool_manager.settings import PoolSettings


def engine(folder: Path, **info: Any) -> RemoteEngine:
    pool = PoolSettings(folder, folder, folder)
    made = RemoteEngine("gpu2", "a" * 12, HostSettings("s", {}, range(1)), pool, Transfers())
    made._info = info
    return made


@pytest.mark.parametrize(
    ("cores", "memory", "expected"),
    [
        (8, 64 * 2**30, (8, 64 * 1024)),
        (10**12, 10**300, (CORES_MAX, MEMORY_MAX / MIB)),
        (-3, -1, (1, 0)),
        ("many", None, (1, 0)),
        (True, float("nan"), (1, 0)),
        (1.5, [], (1, 0)),
    ],
)
def test_implausible_figures_are_not_used(
    tmp_path: Path, cores: Any, memory: Any, expected: tuple[int, float]
) -> None:
    """Each core is a device: a number that cannot be one must not become as many."""
    made = engine(tmp_path, NCPU=cores, MemTotal=memory)

    assert (made.cores, made.memory_mib) == expected


def test_a_version_is_one_short_line(tmp_path: Path) -> None:
    """It is shown to people, and sent with each change of the host."""
    version = engine(tmp_path, ServerVersion="24.0\x1b[2J\n" + "9" * 100_000).version

    assert version.startswith("24.0 [2J 9")
    assert version.isprintable()
    assert len(version) <= VERSION_MAX
    assert engine(tmp_path).version == ""


def test_errors_name_the_socket_of_the_host(tmp_path: Path) -> None:
    """The driver knows only the socket of this machine that leads there."""
    made = engine(tmp_path)
    made._there = "/var/run/docker.sock"
    here = f"unix://{tmp_path}/h-aaaaaaaa.sock"

    assert made.named(f"cannot reach the engine at {here}: closed") == (
        "cannot reach the engine at /var/run/docker.sock: closed"
    )
