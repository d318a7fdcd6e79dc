from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from admin.cli.doctor.engine_checks import Driver
from admin.cli.doctor.several_gpus import (
    MAY_STALL,
    MIB,
    NO_PEER,
    Host,
    checks,
    find_host,
    links,
    nvlinked,
)
from hosts.checks import Check
from runtime_image.contract.gpus import Ancestor, Link

NVLINK = Link("a", "b", Ancestor.SYSTEM, has_nvlink=True, has_peer_access=True)
PCIE = Link("a", "b", Ancestor.SINGLE, has_nvlink=False, has_peer_access=True)
FAR = Link("a", "b", Ancestor.SYSTEM, has_nvlink=False, has_peer_access=True)
NONE = Link("a", "b", Ancestor.NODE, has_nvlink=False, has_peer_access=False)
HOST = Host(shm_bytes=64 * 1024 * MIB, has_iommu=False)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((), []),
        ([NVLINK], [Check("ok", "gpu links", "all GPUs: NVLink")]),
        ([PCIE, PCIE], [Check("ok", "gpu links", "all GPUs: one PCIe switch")]),
        (
            [NVLINK, PCIE, Link("a", "b")],
            [Check("ok", "gpu links", "NVLink: 0+1; one PCIe switch: 0-2; unknown: 0-3")],
        ),
        (
            [NVLINK, NONE, NONE],
            [
                Check(
                    "warn",
                    "gpu links",
                    "no peer access between GPU 0 and 2, 0 and 3: programs on both copy through"
                    " host memory",
                    NO_PEER,
                )
            ],
        ),
    ],
)
def test_connections_of_gpus_are_told(given: list[Link], expected: list[Check]) -> None:
    """NVLink or the nearest common part of each pair; without peer access there is a warning."""
    numbered = tuple(("0", str(second), link) for second, link in enumerate(given, 1))

    assert links(Driver(version="580.1", gpus=9, links=numbered), HOST) == expected


def test_sets_with_nvlink_are_told() -> None:
    """Of eight GPUs in two sets: both sets, and the number of the other pairs."""
    pairs = itertools.combinations(range(8), 2)
    numbered = tuple((str(a), str(b), NVLINK if a // 4 == b // 4 else FAR) for a, b in pairs)

    (check,) = links(Driver(gpus=8, links=numbered), HOST)

    assert check.found == "NVLink: 0+1+2+3 and 4+5+6+7; over NUMA nodes: 16 pairs"


def test_a_ring_is_no_set() -> None:
    """Each two GPUs of a set are connected; what fits no set is in none."""
    assert nvlinked([("0", "1"), ("1", "2"), ("2", "3"), ("3", "0")]) == [["0", "1"], ["2", "3"]]
    assert nvlinked([("0", "1"), ("1", "2")]) == [["0", "1"]]


@pytest.mark.parametrize(
    ("link", "level", "todo"), [(FAR, "ok", MAY_STALL), (NVLINK, "ok", ""), (NONE, "warn", NO_PEER)]
)
def test_an_iommu_matters_without_nvlink(link: Link, level: str, todo: str) -> None:
    """Traffic over PCIe may stand still behind it; NVLink does not pass it."""
    host = replace(HOST, has_iommu=True)

    (check,) = links(Driver(gpus=2, links=(("0", "1", link),)), host)

    assert (check.level, check.todo) == (level, todo)


@pytest.mark.parametrize(
    ("gpus", "mib", "level"), [(2, 1024, "ok"), (2, 64, "warn"), (8, 0, "warn")]
)
def test_the_size_of_shared_memory_is_checked(gpus: int, mib: int, level: str) -> None:
    """As much as a container on all GPUs gets; the remedy names the size."""
    shm, network = checks(Driver(gpus=gpus), Host(mib * MIB, has_iommu=False))

    assert (shm.name, shm.level) == ("shared memory", level)
    assert shm.todo.startswith("sudo mount -o remount,size=" if level == "warn" else "")
    assert network.level == "ok"
    assert "NCCL_SOCKET_IFNAME" in network.found


@pytest.mark.parametrize("gpus", [0, 1])
def test_fewer_than_two_gpus_need_no_check(gpus: int) -> None:
    """The machine is not told of what it does not have."""
    assert checks(Driver(gpus=gpus), Host(0, has_iommu=True)) == []


def test_this_machine_can_be_looked_at(tmp_path: Path) -> None:
    """Its /dev/shm has a size; where there is nothing, nothing is found."""
    assert find_host().shm_bytes > 0
    assert find_host(tmp_path) == Host(0, has_iommu=False)

    (tmp_path / "sys/kernel/iommu_groups/0").mkdir(parents=True)
    assert find_host(tmp_path).has_iommu
