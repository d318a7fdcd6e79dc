"""The configuration of containers."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pool_manager.drivers.docker import spec
from pool_manager.drivers.docker.spec import (
    MountPaths,
    Owner,
    Way,
    by_cdi,
    by_request,
    by_runtime,
    gpus_of,
    ways,
)
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.link import VERSION
from tests.support.scenes import a_record

OWNER = Owner("0123456789abcdef")
PLACE = MountPaths(Path("/data/run/aaaa0009"), Path("/data/models/aaaa0009"), 1_000_000)
RECORD = replace(a_record(), threads=3, memory_mib=700)
APART = {
    "CapDrop": ["ALL"],
    "IpcMode": "private",
    "NetworkMode": "none",
    "Privileged": False,
    "ReadonlyRootfs": True,
    "RestartPolicy": {"Name": "no"},
    "SecurityOpt": ["no-new-privileges"],
    "Ulimits": [
        {"Name": "core", "Soft": 0, "Hard": 0},
        {"Name": "nofile", "Soft": 4096, "Hard": 4096},
        {"Name": "sigpending", "Soft": 1024, "Hard": 1024},
        {"Name": "msgqueue", "Soft": 0, "Hard": 0},
    ],
}
"""What keeps every container from the host and from the others."""


def made(record: ReplicaRecord = RECORD) -> dict[str, Any]:
    return spec.replica(record, "image:1", OWNER, PLACE, 9001)


def test_a_replica_is_kept_apart() -> None:
    """A replica sees only its two host folders, read-only, and every resource is limited."""
    assert made()["HostConfig"] == APART | {
        "CpuPeriod": 100_000,
        "CpuQuota": 300_000,
        "Init": True,
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "500000", "max-file": "2"}},
        "Memory": 700 * 2**20,
        "MemorySwap": 700 * 2**20,
        "Mounts": [
            {
                "Type": "bind",
                "Source": "/data/run/aaaa0009",
                "Target": "/run/fngate",
                "ReadOnly": True,
            },
            {
                "Type": "bind",
                "Source": "/data/models/aaaa0009",
                "Target": "/model",
                "ReadOnly": True,
            },
        ],
        "OomScoreAdj": 500,
        "PidsLimit": 256,
        "Tmpfs": {"/tmp": "size=100%,mode=1777,nosuid,nodev"},
    }


def test_a_replica_says_whose_it_is() -> None:
    """A replica has its user, labels and environment, and the image's health check is off."""
    config = made()
    del config["HostConfig"]

    assert config == {
        "Image": "image:1",
        "User": "9001:9001",
        "WorkingDir": "/tmp",
        "Cmd": ["/run/fngate"],
        "Env": [
            *("HOME=/tmp", "LANG=C.UTF-8", "OMP_NUM_THREADS=3", "ORT_DISABLE_TELEMETRY=1"),
            *("USER=fngate", "LOGNAME=fngate"),
        ],
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {
            "fngate.owner": "0123456789abcdef",
            "fngate.link": str(VERSION),
            "fngate.replica": "aaaa0009",
            "fngate.uid": "9001",
            "fngate.function": "default/digits@1",
        },
    }


def test_a_holder_is_kept_apart_as_well() -> None:
    """A holder has no mounts, is limited, and ends by itself."""
    config = spec.holder("image:1", OWNER, "77", 9000)

    assert (config["Entrypoint"], config["Cmd"]) == (["sleep"], ["3600"])
    assert config["User"] == "9000:9000"
    assert config["Labels"]["fngate.holder"] == "77"
    assert "fngate.replica" not in config["Labels"]
    assert config["HostConfig"] == APART | {
        "AutoRemove": True,
        "LogConfig": {"Type": "none", "Config": {}},
        "Memory": 16 * 2**20,
        "MemorySwap": 16 * 2**20,
        "PidsLimit": 8,
    }


@pytest.mark.parametrize(("server", "most"), [(1_048_576, 4096), (1024, 512)])
def test_a_replica_has_fewer_descriptors_than_its_server(server: int, most: int) -> None:
    """A replica's limit on open files is below its server's."""
    assert spec.descriptors(server) == most


def test_joining_changes_the_network_alone() -> None:
    """Joining a holder changes only the network."""
    config = made()
    joined = spec.join(config, "abc")

    assert joined["HostConfig"] == config["HostConfig"] | {"NetworkMode": "container:abc"}
    assert config["HostConfig"]["NetworkMode"] == "none"


@pytest.mark.parametrize(
    ("role", "memory_mib"), [("standby", 2048), ("serve", 700), ("trial", 700)]
)
def test_a_standby_has_a_cap_of_its_own(role: Any, memory_mib: int) -> None:
    """A standby has the standby cap and no swap."""
    limits = spec.limits(replace(RECORD, role=role))

    assert limits["Memory"] == limits["MemorySwap"] == memory_mib * 2**20


def test_a_small_log_has_the_smallest_file() -> None:
    """The engine's log files have at least 4 KiB each."""
    config = spec.replica(RECORD, "image:1", OWNER, replace(PLACE, log_bytes=10), 9001)

    assert config["HostConfig"]["LogConfig"]["Config"] == {"max-size": "4096", "max-file": "2"}


def test_names_are_for_people() -> None:
    """Container names show the revision or "standby", and differ between servers."""
    assert spec.container_name(RECORD, OWNER) == "fngate-digits-1-aaaa0009-0123"
    standby = replace(RECORD, bound="", role="standby")
    assert spec.container_name(standby, OWNER) == "fngate-standby-aaaa0009-0123"
    assert spec.holder_name("77", OWNER) == "fngate-network-77-0123"


def test_an_owner_is_a_data_folder() -> None:
    """The owner's name is stable for a folder, and differs between folders."""
    assert spec.owner_name(Path("/data/a")) == spec.owner_name(Path("/data/a"))
    assert spec.owner_name(Path("/data/a")) != spec.owner_name(Path("/data/b"))


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
    """The ways are ordered: CDI first, if the engine has found devices or may find them."""
    assert ways(info) == expected


def test_by_cdi() -> None:
    """CDI requests the device by its qualified name, without capabilities."""
    assert by_cdi(PLAIN, [GPU])["HostConfig"] == {
        "ReadonlyRootfs": True,
        "DeviceRequests": [{"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={GPU}"]}],
    }


def test_by_request() -> None:
    """A GPU is requested by its UUID, with compute and utility capabilities."""
    request = {
        "Driver": "nvidia",
        "DeviceIDs": [GPU],
        "Capabilities": [["gpu", "compute", "utility"]],
    }
    assert by_request(PLAIN, [GPU])["HostConfig"] == {
        "ReadonlyRootfs": True,
        "DeviceRequests": [request],
    }


def test_by_runtime() -> None:
    """The runtime's variables are added to the existing environment."""
    made = by_runtime(PLAIN, [GPU])

    assert made["HostConfig"] == {"ReadonlyRootfs": True, "Runtime": "nvidia"}
    assert made["Env"] == [
        "A=1",
        f"NVIDIA_VISIBLE_DEVICES={GPU}",
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ]


@pytest.mark.parametrize("way", [by_cdi, by_request, by_runtime])
def test_a_way_leaves_the_configuration_as_it_is(way: Way) -> None:
    """A way does not modify the configuration, which the next way uses."""
    way(PLAIN, [GPU])

    assert PLAIN == {"Env": ["A=1"], "HostConfig": {"ReadonlyRootfs": True}}


@pytest.mark.parametrize(
    ("limits", "nofile", "server_nofile"),
    [
        ((1024, 4096), 512, 2048),
        ((20_000, 20_000), 4096, 10_000),
        ((1_048_576, 1_048_576), 4096, 65_536),
        ((1_048_576, resource.RLIM_INFINITY), 4096, 65_536),
    ],
)
def test_containers_run_out_of_descriptors_before_their_server(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], nofile: int, server_nofile: int
) -> None:
    """Descriptors in flight are counted per user, and an image may have the server's."""
    monkeypatch.setattr(resource, "getrlimit", lambda _which: limits)

    owner = Owner.of(Path("/data"))

    assert (owner.nofile, owner.server_nofile) == (nofile, server_nofile)


def test_several_gpus_are_requested_together() -> None:
    """Each way takes all GPUs of a replica, as its host's driver names them, in their order."""
    record = replace(RECORD, devices=("far/GPU-2", "far/GPU-1"), device_kind="cuda", host="far")
    gpus = gpus_of(record)

    assert gpus == ("GPU-2", "GPU-1")
    assert gpus_of(replace(record, device_kind="cpu")) == ()
    [cdi] = by_cdi(PLAIN, gpus)["HostConfig"]["DeviceRequests"]
    assert cdi["DeviceIDs"] == ["nvidia.com/gpu=GPU-2", "nvidia.com/gpu=GPU-1"]
    [request] = by_request(PLAIN, gpus)["HostConfig"]["DeviceRequests"]
    assert request["DeviceIDs"] == ["GPU-2", "GPU-1"]
    assert "NVIDIA_VISIBLE_DEVICES=GPU-2,GPU-1" in by_runtime(PLAIN, gpus)["Env"]


def test_a_handler_on_several_gpus() -> None:
    """It has no network but the loopback interface, and the CPU time of a process on each GPU."""
    one = replace(RECORD, devices=("GPU-1",), device_kind="cuda")
    several = replace(one, devices=("GPU-1", "GPU-2"))

    assert not any("NCCL" in variable or "CUDA" in variable for variable in made(one)["Env"])
    assert {"CUDA_DEVICE_ORDER=PCI_BUS_ID", "NCCL_SOCKET_IFNAME=lo"} <= set(made(several)["Env"])
    assert made(one)["HostConfig"]["CpuQuota"] == 300_000
    assert made(several)["HostConfig"]["CpuQuota"] == 600_000
