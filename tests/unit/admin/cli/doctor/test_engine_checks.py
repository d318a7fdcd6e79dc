from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from admin.cli.doctor import engine_checks
from admin.cli.doctor.engine_checks import (
    CONFIGURE,
    DAEMON_FILE,
    GENERATE,
    Driver,
    Links,
    Toolkit,
)
from runtime_image.contract.gpus import Ancestor, Link
from tests.support.nvml.board import Board, Gpu
from tests.support.nvml.fixtures import board

__all__ = ["board"]
from admin.cli.doctor.machine import DISK_FULL, DISK_LOW

NEWEST = (1, 45)
# Source: GET /version and GET /info of Docker 20.10.24 on Debian 12; fields that no check reads are
# left out.
VERSION: dict[str, Any] = {
    "Version": "20.10.24+dfsg1",
    "ApiVersion": "1.41",
    "MinAPIVersion": "1.12",
}
INFO: dict[str, Any] = {
    "CgroupDriver": "cgroupfs",
    "CgroupVersion": "1",
    "DockerRootDir": "/var/lib/docker",
    "Runtimes": {"io.containerd.runc.v2": {"path": "runc"}, "runc": {"path": "runc"}},
    "DefaultRuntime": "runc",
    "Swarm": {"LocalNodeState": "inactive"},
    "LiveRestoreEnabled": False,
    "InitBinary": "docker-init",
    "InitCommit": {"ID": "", "Expected": ""},
    "SecurityOptions": ["name=seccomp,profile=default"],
}


@pytest.mark.parametrize(
    ("own", "least", "level"),
    [
        ("1.41", "1.12", "ok"),
        ("1.52", "1.44", "ok"),
        ("1.40", "1.12", "fail"),
        ("1.9", "1.9", "fail"),
        ("1.60", "1.46", "fail"),
        ("", "", "fail"),
    ],
)
def test_the_api_must_be_spoken_by_both(own: str, least: str, level: str) -> None:
    """An engine with too old an API, or whose minimum is too new, fails; versions compare as
    numbers."""
    answer = {**VERSION, "ApiVersion": own, "MinAPIVersion": least}

    assert engine_checks.api(answer, NEWEST).level == level


def test_an_engine_that_says_nothing_passes_nothing_by_mistake() -> None:
    """A field missing from an answer never makes a required check pass."""
    assert engine_checks.api({}, NEWEST).level == "fail"
    assert engine_checks.live_restore({}).level == "warn"
    assert engine_checks.init({}).level == "warn"
    assert engine_checks.seccomp({}).level == "warn"


def test_live_restore_should_be_on() -> None:
    """Without live-restore, the check names the line and the command; a swarm has no such line."""
    off = engine_checks.live_restore(INFO)
    swarm = engine_checks.live_restore({**INFO, "Swarm": {"LocalNodeState": "active"}})

    assert engine_checks.live_restore({**INFO, "LiveRestoreEnabled": True}).level == "ok"
    assert off.level == "warn"
    assert '"live-restore": true' in off.todo
    assert off.todo.endswith("sudo systemctl reload docker")
    assert "swarm" in swarm.found


def test_an_init_that_is_missing_is_told() -> None:
    """A missing init warns; the engine reports its version as N/A."""
    assert engine_checks.init(INFO).level == "ok"
    assert engine_checks.init({**INFO, "InitCommit": {"ID": "N/A"}}).level == "fail"


@pytest.mark.parametrize(
    ("free", "level"), [(0, "fail"), (DISK_FULL, "warn"), (DISK_LOW, "ok"), (None, "ok")]
)
def test_the_disk_of_the_engine_has_room(free: int | None, level: str) -> None:
    """Little disk space warns, hardly any fails; another machine's is unknown."""
    assert engine_checks.storage(INFO, free).level == level


@pytest.mark.parametrize(
    ("option", "todo"), [("name=userns", DAEMON_FILE), ("name=rootless", "--engine")]
)
def test_changed_users_are_told(option: str, todo: str) -> None:
    """Remapped users and a rootless engine are reported: user ids inside and outside differ."""
    changed = engine_checks.uids(
        {**INFO, "SecurityOptions": ["name=seccomp,profile=builtin", option]}
    )

    assert engine_checks.uids(INFO).level == "ok"
    assert changed.level == "fail"
    assert todo in changed.todo


@pytest.mark.parametrize(
    ("options", "level"),
    [
        (["name=seccomp,profile=default"], "ok"),
        (["name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns"], "ok"),
        (["name=seccomp,profile=unconfined"], "warn"),
        (["name=apparmor"], "warn"),
        (None, "warn"),
    ],
)
def test_system_calls_should_be_filtered(options: list[str] | None, level: str) -> None:
    """No seccomp filter, or an unconfined one, warns."""
    assert engine_checks.seccomp({**INFO, "SecurityOptions": options}).level == level


BARE: dict[str, Any] = {"CgroupDriver": "systemd", "Runtimes": {"runc": {"path": "runc"}}}
RUNTIME = {**BARE, "Runtimes": {"runc": {}, "nvidia": {"path": "nvidia-container-runtime"}}}
# Source: the fields for CDI in GET /info in the API description of Docker 28.3 (1.51).
CDI = {
    **BARE,
    "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"],
    "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}],
}
CTK = Toolkit(programs=frozenset({"nvidia-ctk"}))
HOOK = Toolkit(programs=frozenset({"nvidia-ctk", "nvidia-container-runtime-hook"}))
SPEC = Toolkit(specs=("/etc/cdi/nvidia.yaml",))


@pytest.mark.parametrize(
    ("found", "level", "text"),
    [
        (Driver(version="580.1", gpus=2, is_loaded=True, has_card=True), "ok", "580.1, 2 GPUs"),
        (Driver(version="580.1", gpus=1, is_loaded=True), "ok", "580.1, 1 GPU"),
        (Driver(error="mismatch", is_loaded=True, has_card=True), "fail", "mismatch"),
        (Driver(version="580.1", is_loaded=True), "fail", "reports no GPU"),
        (Driver(error="not found", has_card=True), "warn", "not loaded"),
        (
            Driver(error="not found"),
            "ok",
            "on the CPU (libnvidia-ml.so.1: not found; no /proc/driver/nvidia;",
        ),
        (Driver(version="580.1"), "ok", "libnvidia-ml.so.1: driver 580.1, no GPU;"),
    ],
)
def test_the_driver_works_where_it_is_needed(found: Driver, level: str, text: str) -> None:
    """A machine without a GPU needs no driver, and is told what was looked for; one whose driver
    does not start fails."""
    check = engine_checks.driver(found, "all")

    assert check.level == level
    assert text in check.found


@pytest.mark.parametrize(
    ("setting", "text"), [("none", "none used: FN_GPUS is none"), ("0,1", "FN_GPUS uses 0,1")]
)
def test_gpus_that_the_setting_leaves_out_are_told(setting: str, text: str) -> None:
    """With GPUs in the machine, the reason is the setting."""
    check = engine_checks.driver(Driver(version="580.1", gpus=2), setting)

    assert check.found == f"580.1, 2 GPUs, {text}"


@pytest.mark.parametrize(
    ("info", "toolkit", "ways"),
    [
        (BARE, Toolkit(), []),
        (BARE, CTK, []),
        (BARE, HOOK, ["request"]),
        (RUNTIME, Toolkit(), ["runtime"]),
        (CDI, HOOK, ["cdi", "request"]),
        ({**CDI, "DiscoveredDevices": None}, SPEC, ["cdi"]),
        ({**CDI, "DiscoveredDevices": [{"ID": "vendor.com/nic=0"}]}, Toolkit(), []),
        ({**CDI, "DiscoveredDevices": []}, SPEC, []),
        (BARE, SPEC, []),
    ],
)
def test_the_ways_to_a_gpu_are_found(
    info: dict[str, Any], toolkit: Toolkit, ways: list[str]
) -> None:
    """CDI needs an engine that reads it and a description; the other ways need their program."""
    assert engine_checks.ways(info, toolkit) == ways
    assert engine_checks.containers(info, toolkit).level == ("ok" if ways else "fail")


@pytest.mark.parametrize(
    ("info", "toolkit", "todo"),
    [
        ({**CDI, "DiscoveredDevices": []}, CTK, GENERATE),
        (BARE, CTK, CONFIGURE),
        (BARE, Toolkit(), "nvidia-container-toolkit && "),
    ],
)
def test_without_a_way_the_advice_is_a_command(
    info: dict[str, Any], toolkit: Toolkit, todo: str
) -> None:
    """If no way to a GPU works, the advice depends on what is missing."""
    assert todo in engine_checks.containers(info, toolkit).todo


@pytest.mark.parametrize(
    ("info", "toolkit", "level"),
    [
        (RUNTIME, Toolkit(), "warn"),
        (BARE, HOOK, "warn"),
        (CDI, HOOK, "ok"),
        ({**RUNTIME, "CgroupDriver": "cgroupfs"}, Toolkit(), "ok"),
        (RUNTIME, Toolkit(leaves_cgroups=True), "ok"),
    ],
)
def test_a_reload_may_take_the_gpu_away(info: dict[str, Any], toolkit: Toolkit, level: str) -> None:
    """With systemd's cgroup driver a reload drops devices that a hook added, but not CDI's."""
    assert engine_checks.reload(info, toolkit).level == level


def test_a_reload_is_mended_by_cdi_where_it_is_on() -> None:
    """If the engine reads CDI already, the advice is only to write the description."""
    assert engine_checks.reload({**RUNTIME, "CDISpecDirs": ["/etc/cdi"]}, CTK).todo == GENERATE
    assert "cgroupfs" in engine_checks.reload(RUNTIME, CTK).todo


def test_the_machine_is_looked_at(tmp_path: Path) -> None:
    """Card, kernel module and the reason of a failed start are found by reading the machine."""

    def fail() -> tuple[str, int, Links]:
        raise RuntimeError("Driver/library version mismatch")

    empty = engine_checks.find_driver(tmp_path, fail)
    for folder, vendor in (("0", "0x8086\n"), ("1", "0x10de\n")):
        (tmp_path / "sys/bus/pci/devices" / folder).mkdir(parents=True)
        (tmp_path / "sys/bus/pci/devices" / folder / "vendor").write_text(vendor)
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)

    assert empty == Driver(error="Driver/library version mismatch")
    assert engine_checks.find_driver(tmp_path, lambda: ("580.1", 1, ())) == Driver(
        version="580.1", gpus=1, is_loaded=True, has_card=True
    )


def test_gpus_of_this_machine_are_read(board: Board, tmp_path: Path) -> None:
    """The driver's library gives version, number and connections."""
    board.add(Gpu("GPU-a"), Gpu("GPU-b"))
    board.link("GPU-a", "GPU-b", 50, nvlink=0)

    found = engine_checks.find_driver(tmp_path)

    link = Link("GPU-a", "GPU-b", Ancestor.SYSTEM, has_nvlink=True, has_peer_access=True)
    assert found == Driver(version="580.65.06", gpus=2, links=(("0", "1", link),))


def test_the_toolkit_is_looked_at(tmp_path: Path) -> None:
    """Only NVIDIA's CDI descriptions count; a commented setting does not."""
    for name, text in (("nvidia.yaml", "kind: nvidia.com/gpu"), ("nic.json", '{"kind": "x/nic"}')):
        (tmp_path / "etc/cdi").mkdir(parents=True, exist_ok=True)
        (tmp_path / "etc/cdi" / name).write_text(text)
    config = tmp_path / "etc/nvidia-container-runtime/config.toml"
    config.parent.mkdir()
    config.write_text("[nvidia-container-cli]\n#no-cgroups = true\n")

    found = engine_checks.find_toolkit(tmp_path)
    config.write_text("[nvidia-container-cli]\nno-cgroups = true\n")

    assert found.specs == (str(tmp_path / "etc/cdi/nvidia.yaml"),)
    assert not found.leaves_cgroups
    assert engine_checks.find_toolkit(tmp_path).leaves_cgroups


def test_this_machine_can_be_looked_at() -> None:
    """Reading this machine raises nothing, with or without the driver's library."""
    found = engine_checks.find_driver()

    assert bool(found.error) != bool(found.version)
