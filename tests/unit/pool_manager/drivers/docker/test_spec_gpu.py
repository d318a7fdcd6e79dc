"""How a GPU is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from pool_manager.drivers.docker.spec import Way, by_cdi, by_request, by_runtime, ways

PLAIN: dict[str, Any] = {"Env": ["A=1"], "HostConfig": {"ReadonlyRootfs": True}}
GPU = "GPU-0a1b"
OLD: dict[str, Any] = {"ServerVersion": "20.10.24", "Runtimes": {"runc": {}}}
TOOLKIT: dict[str, Any] = {"Runtimes": {"runc": {}, "nvidia": {"path": "nvidia-container-runtime"}}}
CDI_DIRS: dict[str, Any] = {"CDISpecDirs": ["/etc/cdi", "/var/run/cdi"], "Runtimes": {}}
FOUND: dict[str, Any] = CDI_DIRS | {
    "DiscoveredDevices": [{"Source": "cdi", "ID": f"nvidia.com/gpu={GPU}"}]
}
FOUND_NONE: dict[str, Any] = CDI_DIRS | {
    "DiscoveredDevices": [{"Source": "cdi", "ID": "vendor/x=1"}]
}


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({}, [by_request]),
        (OLD, [by_request]),
        (OLD | TOOLKIT, [by_request, by_runtime]),
        (CDI_DIRS, [by_cdi, by_request]),
        (CDI_DIRS | TOOLKIT, [by_cdi, by_request, by_runtime]),
        (FOUND | TOOLKIT, [by_cdi, by_request, by_runtime]),
        (FOUND_NONE, [by_request]),
        ({"Runtimes": None, "CDISpecDirs": None, "DiscoveredDevices": None}, [by_request]),
    ],
)
def test_the_ways_that_an_engine_may_know(info: dict[str, Any], expected: list[Way]) -> None:
    """The best first: devices described in files where the engine has found some or may."""
    assert ways(info) == expected


def test_by_cdi() -> None:
    """The device by its qualified name, and no capabilities: files say them."""
    assert by_cdi(PLAIN, GPU)["HostConfig"] == {
        "ReadonlyRootfs": True,
        "DeviceRequests": [{"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={GPU}"]}],
    }


def test_by_request() -> None:
    """One GPU by its UUID, for computing and for being looked at."""
    request = {
        "Driver": "nvidia",
        "DeviceIDs": [GPU],
        "Capabilities": [["gpu", "compute", "utility"]],
    }
    assert by_request(PLAIN, GPU)["HostConfig"] == {
        "ReadonlyRootfs": True,
        "DeviceRequests": [request],
    }


def test_by_runtime() -> None:
    """Variables that the toolkit's runtime reads, beside those there are."""
    made = by_runtime(PLAIN, GPU)

    assert made["HostConfig"] == {"ReadonlyRootfs": True, "Runtime": "nvidia"}
    assert made["Env"] == [
        "A=1",
        f"NVIDIA_VISIBLE_DEVICES={GPU}",
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ]


@pytest.mark.parametrize("way", [by_cdi, by_request, by_runtime])
def test_a_way_leaves_the_configuration_as_it_is(way: Way) -> None:
    """The next way begins with the same."""
    way(PLAIN, GPU)

    assert PLAIN == {"Env": ["A=1"], "HostConfig": {"ReadonlyRootfs": True}}
