"""The configuration of a server's container and of its sidecar's."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pool_manager.drivers.docker import server_spec, spec
from pool_manager.drivers.docker.server_spec import (
    VOLUMES_MAX,
    Abilities,
    Ids,
    ImageFacts,
    Pair,
    below,
    ids_of,
    numeric_ids,
    stop_of,
    volumes_of,
)
from pool_manager.drivers.docker.spec import MountPaths, Owner
from pool_manager.ports import ServerContainer
from registry.errors import DriverError
from registry.model.servers import Mount
from runtime_image.contract.link import VERSION
from tests.support.scenes import a_record

OWNER = Owner("0123456789abcdef", 512, 2048)
PLACE = MountPaths(Path("/data/run/aaaa0009"), Path("/data/models/aaaa0009"), 1_000_000)
RECORD = replace(a_record(), engine="server", threads=3, memory_mib=700)
GIVEN = ServerContainer("sha256:abc")
FACTS = ImageFacts()
ABLE = Abilities(read_only_below=True)
ULIMITS = [
    {"Name": "core", "Soft": 0, "Hard": 0},
    {"Name": "nofile", "Soft": 2048, "Hard": 2048},
    {"Name": "sigpending", "Soft": 1024, "Hard": 1024},
    {"Name": "msgqueue", "Soft": 0, "Hard": 0},
]
PASSWD = "root:x:0:0::/root:/bin/sh\nnginx:x:101:102::/:/bin/false\nbroken\nbad:x:a:b::/:\n"
GROUP = "root:x:0:\nweb:x:200:nginx\n"


def sidecar(abilities: Abilities = ABLE, **changes: Any) -> dict[str, Any]:
    pair = Pair(RECORD, replace(GIVEN, **changes), OWNER, PLACE)
    return server_spec.sidecar(pair, "runtime:1", 9001, abilities)


def server(
    facts: ImageFacts = FACTS, abilities: Abilities = ABLE, **changes: Any
) -> dict[str, Any]:
    pair = Pair(RECORD, replace(GIVEN, **changes), OWNER, PLACE)
    return server_spec.server(pair, facts, "s1", abilities)


def test_a_sidecar_is_confined_as_any_replica() -> None:
    """It has the user, folders and limits of a replica, a memory cap of its own, no network, and
    the network's settings."""
    config = sidecar(port=8123, concurrency=16)
    replica = spec.replica(RECORD, "runtime:1", OWNER, PLACE, 9001)

    memory = (64 + (16 + 64) // 2) * 2**20
    assert config["HostConfig"] == replica["HostConfig"] | {
        "NetworkMode": "none",
        "Sysctls": {
            "net.ipv4.ip_unprivileged_port_start": "0",
            "net.ipv4.ip_local_reserved_ports": "8123",
            "net.ipv4.tcp_rmem": "4096 131072 262144",
            "net.ipv4.tcp_wmem": "4096 65536 262144",
            "net.ipv6.conf.lo.disable_ipv6": "0",
        },
        "Ulimits": ULIMITS,
        "PidsLimit": 64,
        "Memory": memory,
        "MemorySwap": memory,
        "CpuPeriod": 100_000,
        "CpuQuota": 100_000,
    }
    assert config["Labels"] == replica["Labels"] | {"fngate.part": "sidecar"}
    assert (config["User"], config["Cmd"]) == ("9001:9001", ["/run/fngate"])


def test_a_kernel_without_ipv6_gets_no_setting_of_it() -> None:
    """The engine would refuse the start."""
    sysctls = sidecar(Abilities(ipv6=False))["HostConfig"]["Sysctls"]

    assert not any(name.startswith("net.ipv6") for name in sysctls)


def test_egress_is_the_sidecars() -> None:
    """The sidecar is on the engine's network, the server on the sidecar's."""
    host = sidecar(network="egress")["HostConfig"]
    assert host["NetworkMode"] == "bridge"
    # On every interface, IPv6 would reach the host and other containers by link-local addresses.
    assert [name for name in host["Sysctls"] if "ipv6" in name] == ["net.ipv6.conf.lo.disable_ipv6"]
    assert server(network="egress")["HostConfig"]["NetworkMode"] == "container:s1"


def test_a_server_is_confined() -> None:
    """It sees nothing of the host; every resource is limited."""
    assert server()["HostConfig"] == {
        "NetworkMode": "container:s1",
        "IpcMode": "private",
        "Privileged": False,
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "CapAdd": [],
        "SecurityOpt": ["no-new-privileges"],
        "Ulimits": ULIMITS,
        "RestartPolicy": {"Name": "no"},
        "PidsLimit": 4096,
        "ShmSize": 64 * 2**20,
        "Tmpfs": {"/tmp": "size=100%,mode=1777,nosuid,nodev,exec"},
        "Mounts": [],
        "OomScoreAdj": 500,
        "Init": True,
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "500000", "max-file": "2"}},
        "Memory": 700 * 2**20,
        "MemorySwap": 700 * 2**20,
        "CpuPeriod": 100_000,
        "CpuQuota": 300_000,
    }


def test_an_image_is_run_as_it_is() -> None:
    """Without settings of the function, its user, folder, arguments and stop signal count. The
    engine accepts neither a host name nor ports in a network that is joined."""
    config = server()
    del config["HostConfig"]

    assert config == {
        "Image": "sha256:abc",
        "Env": ["OMP_NUM_THREADS=3", "PORT=8000", "NVIDIA_VISIBLE_DEVICES=void"],
        "Labels": {
            "fngate.owner": "0123456789abcdef",
            "fngate.link": str(VERSION),
            "fngate.replica": "aaaa0009",
            "fngate.part": "server",
            "fngate.function": "default/digits@1",
            "fngate.holder": "",
            "fngate.uid": "",
        },
        "Healthcheck": {"Test": ["NONE"]},
        "StopTimeout": 10,
    }


def test_a_function_may_say_more() -> None:
    """Arguments and variables with the port, user, capabilities, memory, stop signal."""
    config = server(
        arguments=("--port", "${PORT}"),
        env={"AT": "${HOST}:${PORT}", "OMP_NUM_THREADS": "1"},
        user="1000:1001",
        capabilities=("CHOWN", "SETUID"),
        shm_mib=7,
        stop_signal="SIGQUIT",
        stop_grace_s=1.5,
        port=81,
        secrets={"TOKEN": "${PORT}"},
    )

    assert config["Cmd"] == ["--port", "81"]
    assert config["Env"] == [
        *("OMP_NUM_THREADS=1", "AT=127.0.0.1:81", "TOKEN=${PORT}", "PORT=81"),
        "NVIDIA_VISIBLE_DEVICES=void",
    ]
    assert (config["User"], config["StopSignal"], config["StopTimeout"]) == (
        *("1000:1001", "SIGQUIT"),
        2,
    )
    assert config["HostConfig"]["CapAdd"] == ["CHOWN", "SETUID"]
    assert config["HostConfig"]["ShmSize"] == 7 * 2**20


def test_a_server_sees_its_gpu_only() -> None:
    """Whatever the image or the function says: NVIDIA's runtime follows the variable."""
    record = replace(RECORD, devices=("GPU-1",), device_kind="cuda")
    pair = Pair(record, replace(GIVEN, env={"NVIDIA_VISIBLE_DEVICES": "all"}), OWNER, PLACE)

    variables = server_spec.server(pair, FACTS, "s1", ABLE)["Env"]

    assert [one for one in variables if "VISIBLE" in one] == ["NVIDIA_VISIBLE_DEVICES=GPU-1"]


def test_a_server_on_several_gpus() -> None:
    """It learns their number, sees all of them, numbers them by PCI address, has the CPU time of a
    process for each, and meets itself on the loopback interface unless it has a network or says
    otherwise."""
    devices = ("far/GPU-1", "far/GPU-2")
    record = replace(RECORD, devices=devices, device_kind="cuda", host="far")
    given = replace(GIVEN, arguments=("-tp", "${GPUS}"), env={"N": "${GPUS}"})

    def config(**changes: Any) -> dict[str, Any]:
        return server_spec.server(
            Pair(record, replace(given, **changes), OWNER, PLACE), FACTS, "s1", ABLE
        )

    alone, reaching = config(), config(network="egress")
    named = config(env={"GLOO_SOCKET_IFNAME": "eth7", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"})

    assert alone["Cmd"] == ["-tp", "2"]
    assert alone["HostConfig"]["CpuQuota"] == 2 * 3 * 100_000
    assert alone["Env"] == [
        *("OMP_NUM_THREADS=3", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "NCCL_SOCKET_IFNAME=lo"),
        *("GLOO_SOCKET_IFNAME=lo", "VLLM_HOST_IP=127.0.0.1", "N=2", "PORT=8000"),
        "NVIDIA_VISIBLE_DEVICES=GPU-1,GPU-2",
    ]
    assert [one for one in reaching["Env"] if "IFNAME" in one or "HOST_IP" in one] == []
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in reaching["Env"]
    assert {"GLOO_SOCKET_IFNAME=eth7", "NCCL_SOCKET_IFNAME=lo"} <= set(named["Env"])
    assert "CUDA_DEVICE_ORDER=FASTEST_FIRST" in named["Env"]


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_functions_files_are_in_a_folder_of_their_own(*, has_folder: bool) -> None:
    """Read-only, beside its mounts and instead of a VOLUME; an image that names no working folder
    works there."""
    facts = ImageFacts(("/function/",), Ids(101, 102), has_folder=has_folder)
    mounts = (Mount("models", "/srv/models", "/models"),)

    config = server(facts, has_files=True, mounts=mounts)

    own, files = config["HostConfig"]["Mounts"]
    assert own["Target"] == "/models"
    assert files == own | {"Source": "/data/models/aaaa0009", "Target": "/function"}
    assert list(config["HostConfig"]["Tmpfs"]) == ["/tmp"]
    assert config["Env"][-1] == "FN_BUNDLE=/function"
    assert config.get("WorkingDir") == (None if has_folder else "/function")


def test_every_volume_is_bounded() -> None:
    """A VOLUME gets a tmpfs of the user; `writable` sets its size, a mount replaces it."""
    facts = ImageFacts(("/data", "/big", "/mounted", "/tmp"), Ids(101, 102))
    mounts = (Mount("models", "/srv/models", "/mounted"),)

    folders = server(facts, writable={"/big": 9, "/run": 3}, mounts=mounts)["HostConfig"]["Tmpfs"]

    owned = "mode=0755,uid=101,gid=102,nosuid,nodev,exec"
    assert folders == {
        "/data": f"size=256m,{owned}",
        "/big": f"size=9m,{owned}",
        "/run": f"size=3m,{owned}",
        "/tmp": "size=256m,mode=1777,nosuid,nodev,exec",
    }


def test_a_mount_may_take_the_place_of_the_temporary_folder() -> None:
    """The engine refuses two of one target."""
    config = server(FACTS, writable={"/tmp": 9}, mounts=(Mount("scratch", "/srv/tmp", "/tmp/"),))

    assert "/tmp" not in config["HostConfig"]["Tmpfs"]


def test_without_ids_a_folder_is_everybodys() -> None:
    """An image may name a user that only its own files know."""
    folders = server(ImageFacts(("/data",), None))["HostConfig"]["Tmpfs"]

    assert folders["/data"] == "size=256m,mode=1777,nosuid,nodev,exec"


def test_an_image_with_too_many_volumes_is_refused() -> None:
    """Each is a file system of its own."""
    many = {f"/v{number}": {} for number in range(VOLUMES_MAX + 1)}

    with pytest.raises(DriverError, match="the image has 65 VOLUMEs, expected at most 64"):
        volumes_of({"Volumes": many})


@pytest.mark.parametrize(
    ("volume", "folder"),
    [
        ("/data", "/data"),
        ("/data/", "/data"),
        ("//data", "/data"),
        ("///data/./", "/data"),
        ("/x/../data", "/data"),
        ("/../../data//", "/data"),
        ("/process", "/process"),
    ],
)
def test_a_volume_is_the_folder_that_the_engine_resolves(volume: str, folder: str) -> None:
    """Its tmpfs takes the place of the engine's volume only under the same path."""
    assert volumes_of({"Volumes": {volume: {}}}) == (folder,)


@pytest.mark.parametrize(
    "volume",
    [
        *("/", "//", "/..", "/x/..", "data", "", "../data"),
        *("/proc", "/proc/sys", "/x/../proc/1", "/sys", "/dev", "/dev/shm"),
    ],
)
def test_a_volume_that_can_be_no_folder_of_its_own_is_refused(volume: str) -> None:
    """It would hide the root or what the engine mounts; the refusal names it."""
    with pytest.raises(DriverError, match=re.escape(f"has the VOLUME {volume!r}, expected")):
        volumes_of({"Volumes": {volume: {}}})


def test_spellings_of_one_folder_are_one_volume() -> None:
    """An image without any has none."""
    assert volumes_of({"Volumes": {"/b": {}, "/a/": {}, "/a": {}}}) == ("/a", "/b")
    assert volumes_of({"Volumes": None}) == volumes_of({}) == ()


@pytest.mark.parametrize(
    ("is_read_only", "abilities", "options"),
    [
        (True, ABLE, {"ReadOnlyForceRecursive": True}),
        (True, Abilities(), {"NonRecursive": True}),
        (False, ABLE, {}),
        (False, Abilities(), {}),
    ],
)
def test_what_is_below_a_read_only_mount_is_never_writable(
    abilities: Abilities, options: dict[str, bool], *, is_read_only: bool
) -> None:
    """The engine makes it read-only, or it is not there."""
    mounts = (Mount("models", "/srv/models", "/models", is_read_only=is_read_only),)

    assert server(abilities=abilities, mounts=mounts)["HostConfig"]["Mounts"] == [
        {
            "Type": "bind",
            "Source": "/srv/models",
            "Target": "/models",
            "ReadOnly": is_read_only,
            "BindOptions": {"Propagation": "rprivate", **options},
        }
    ]


@pytest.mark.parametrize(
    ("architecture", "machine", "said"),
    [
        ("amd64", "x86_64", ""),
        ("arm64", "aarch64", ""),
        ("", "x86_64", ""),
        ("s390x", "s390x", ""),
        ("arm64", "x86_64", "the image is for arm64, this machine is amd64"),
    ],
)
def test_an_image_for_other_processors(architecture: str, machine: str, said: str) -> None:
    """A machine whose name is not known may run it."""
    assert server_spec.foreign(architecture, machine) == said


def test_file_systems_below_a_mount_are_found() -> None:
    """Below, not the folder itself; spaces are escaped; a writable mount does not matter."""
    line = "36 35 98:0 / {} rw,noatime master:1 - ext4 /dev/sda1 rw\n"
    info = "".join(map(line.format, ("/", "/srv", "/srv/a\\040b/c", "/srv2", "/own/x"))) + "\n"
    mounts = (
        Mount("a", "/srv/a b", "/a"),
        Mount("b", "/srv", "/b"),
        Mount("c", "/own", "/c", is_read_only=False),
    )

    assert list(below(mounts, info)) == ["/srv/a b/c"]
    assert list(below(mounts[2:], info)) == []


@pytest.mark.parametrize(
    ("user", "ids"),
    [
        ("", Ids(0, 0)),
        ("root", Ids(0, 0)),
        ("1000:1001", Ids(1000, 1001)),
        ("1000", None),
        ("nginx", None),
        ("nginx:1", None),
        ("1:web", None),
        ("1" * 11 + ":1", None),
    ],
)
def test_which_users_need_no_file(user: str, ids: Ids | None) -> None:
    """Root, and two numbers."""
    assert numeric_ids(user) == ids


@pytest.mark.parametrize(
    ("user", "ids"),
    [
        ("nginx", Ids(101, 102)),
        ("101", Ids(101, 102)),
        ("777", Ids(777, 0)),
        ("nginx:web", Ids(101, 200)),
        ("777:web", Ids(777, 200)),
        ("nginx:7", Ids(101, 7)),
        ("nginx:nobody", None),
        ("nobody", None),
        ("bad", None),
        ("broken", None),
    ],
)
def test_an_images_files_name_its_user(user: str, ids: Ids | None) -> None:
    """As the engine reads them; rows without numbers are skipped."""
    assert ids_of(user, PASSWD, GROUP) == ids


@pytest.mark.parametrize(
    ("config", "stop"),
    [
        ({}, ("SIGTERM", 10.0)),
        ({"StopSignal": "", "StopTimeout": None}, ("SIGTERM", 10.0)),
        ({"StopSignal": "SIGQUIT", "StopTimeout": 0}, ("SIGQUIT", 0.0)),
    ],
)
def test_how_a_server_stops(config: dict[str, Any], stop: tuple[str, float]) -> None:
    """By the configuration of its container, since an earlier manager may have started it."""
    assert stop_of(config) == stop


def test_names_are_for_people() -> None:
    """The server's container has the usual name, the sidecar's says what it is."""
    assert server_spec.sidecar_name(RECORD, OWNER) == "fngate-sidecar-aaaa0009-0123"
