"""Checks of a Docker engine's settings and of GPUs in containers; all pure except `find_*`.

Docker has three ways to pass a GPU: CDI, where the engine itself reads a device's description; the
runtime `nvidia`; and device requests (`--gpus`), which a hook of NVIDIA's toolkit implements.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from admin.cli.doctor.machine import DISK_FULL, DISK_LOW
from admin.text import size
from hosts.checks import Check
from pool_manager.drivers.docker.spec import CDI_KIND, CONFIGURE, GENERATE
from pool_manager.gpus.memory import ALL, NONE
from runtime_image.contract.gpus import Link

API_OLDEST: Final = (1, 41)
"""Docker 20.10, the oldest engine that is tested."""
DAEMON_FILE: Final = "/etc/docker/daemon.json"
RELOAD: Final = "sudo systemctl reload docker"
RESTART: Final = "sudo systemctl restart docker"
VENDOR: Final = "0x10de"
"""PCI vendor id of NVIDIA."""
DRIVER_CHECK: Final = "nvidia driver"
CARDS: Final = "sys/bus/pci/devices"
MODULE: Final = "proc/driver/nvidia"
PROGRAMS: Final = ("nvidia-container-runtime-hook", "nvidia-container-runtime", "nvidia-ctk")
TOOLKIT: Final = "sudo apt-get install nvidia-container-toolkit"
NO_CGROUPS: Final = re.compile(r"^\s*no-cgroups\s*=\s*true", re.MULTILINE)
TOOLKIT_FILE: Final = Path("/etc/nvidia-container-runtime/config.toml")
FILE_MAX: Final = 64 * 1024

Answer = dict[str, Any]
"""Answer of GET /info or GET /version."""
Links = tuple[tuple[str, str, Link], ...]
"""Connections of GPUs, each with the driver's numbers of both."""


def api(version: Answer, newest: tuple[int, int]) -> Check:
    """Check that the engine's API fits the client library, whose newest version is `newest`."""
    own, least = _number(version.get("ApiVersion")), _number(version.get("MinAPIVersion"))
    name = f"Docker {version.get('Version', '?')}, API {_api(own)}"
    if own < API_OLDEST:
        found = f"{name}, expected {_api(API_OLDEST)} (Docker 20.10) or newer"
        return Check("fail", "docker api", found, "upgrade Docker Engine")
    if least > newest:
        found = f"{name} requires at least {_api(least)}, this fngate supports {_api(newest)}"
        return Check("fail", "docker api", found, "pip install --upgrade docker")
    return Check("ok", "docker api", name)


def live_restore(info: Answer) -> Check:
    """Check that containers survive a restart of the engine."""
    name = "live-restore"
    if info.get("LiveRestoreEnabled"):
        return Check("ok", name, "containers keep running while the engine restarts")
    found = "off: every restart of the engine stops all replicas"
    swarm = info.get("Swarm") or {}
    if swarm.get("LocalNodeState") not in (None, "", "inactive"):
        return Check("warn", name, f"{found}; impossible in a swarm", "sudo docker swarm leave")
    todo = f'add "live-restore": true to {DAEMON_FILE}, then: {RELOAD}'
    return Check("warn", name, found, todo)


def init(info: Answer) -> Check:
    """Check that the engine has the init process that starts in every replica's container."""
    name, binary = "docker init", str(info.get("InitBinary") or "")
    if not binary:
        return Check("warn", name, "the engine does not report whether it has docker-init")
    if (info.get("InitCommit") or {}).get("ID") == "N/A":
        todo = "sudo apt-get install tini, or docker-ce from Docker's own repository"
        return Check("fail", name, f"the engine cannot find {binary}: no replica can start", todo)
    return Check("ok", name, binary)


def storage(info: Answer, free: int | None) -> Check:
    """Check the space for images and containers. `free` is in bytes, None if unknown."""
    name, root = "docker disk", str(info.get("DockerRootDir") or "the engine's folder")
    if free is None:
        return Check("ok", name, f"{root} is not accessible from here")
    found = f"{size(free)} free in {root}"
    if free >= DISK_LOW:
        return Check("ok", name, found)
    return Check("fail" if free < DISK_FULL else "warn", name, found, "docker image prune")


def uids(info: Answer) -> Check:
    """Check that user ids are the same inside and outside containers."""
    options = _options(info)
    changed = [each for each in ("rootless", "userns") if each in options]
    if not changed:
        return Check("ok", "docker users", "the same inside and outside containers")
    found = f"{' and '.join(changed)}: user ids in containers differ, no replica can start"
    if "rootless" in options:
        todo = "use another engine that runs as root: --engine, FN_DOCKER_HOST"
    else:
        todo = f'remove "userns-remap" from {DAEMON_FILE}, then: {RESTART}'
    return Check("fail", "docker users", found, todo)


def seccomp(info: Answer) -> Check:
    """Check that system calls of containers are filtered."""
    options = _options(info)
    profile = options.get("seccomp")
    if profile is None:
        found = "off: not supported by the engine or the kernel"
        return Check("warn", "docker seccomp", found, "use a kernel with CONFIG_SECCOMP_FILTER")
    if profile == "unconfined":
        todo = f'remove "seccomp-profile" from {DAEMON_FILE}, then: {RESTART}'
        return Check("warn", "docker seccomp", "off: the profile is unconfined", todo)
    return Check("ok", "docker seccomp", f"profile {profile or 'default'}")


def _options(info: Answer) -> dict[str, str]:
    """Return `SecurityOptions` by name, with their profile: "name=seccomp,profile=default"."""
    found = {}
    for line in info.get("SecurityOptions") or []:
        pairs = dict(part.partition("=")[::2] for part in str(line).split(","))
        found[pairs.get("name", str(line))] = pairs.get("profile", "")
    return found


def _number(text: object) -> tuple[int, int]:
    major, _, minor = str(text or "").partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)


def _api(number: tuple[int, int]) -> str:
    return ".".join(map(str, number))


@dataclass(frozen=True, slots=True)
class Driver:
    """NVIDIA driver of this machine: NVML's start error or "", version, number of GPUs and their
    connections, whether the kernel module is loaded, whether the PCI bus has a GPU."""

    error: str = ""
    version: str = ""
    gpus: int = 0
    links: Links = ()
    is_loaded: bool = False
    has_card: bool = False


@dataclass(frozen=True, slots=True)
class Toolkit:
    """NVIDIA container toolkit of this machine: programs, CDI files, and `no-cgroups`. Empty for
    the engine of another machine."""

    programs: frozenset[str] = frozenset()
    specs: tuple[str, ...] = ()
    leaves_cgroups: bool = False


def driver(found: Driver, chosen: str) -> Check:
    """Check that the NVIDIA driver works, if there is a GPU, and tell why none is used. `chosen` is
    the setting FN_GPUS."""
    name = DRIVER_CHECK
    if not found.error and found.gpus:
        uses = {ALL: "", NONE: ", none used: FN_GPUS is none"}
        use = uses.get(chosen, f", FN_GPUS uses {chosen}")
        text = f"{found.version}, {found.gpus} GPU{'s' * (found.gpus > 1)}{use}"
        return Check("ok", name, text)
    if found.is_loaded:
        reason = found.error or "the driver reports no GPU"
        return Check("fail", name, f"loaded, but it failed: {reason}", "sudo reboot")
    if found.has_card:
        text = "there is a GPU, but its driver is not loaded"
        return Check("warn", name, text, "sudo apt-get install nvidia-driver, then sudo reboot")
    library = found.error or f"driver {found.version}, no GPU"
    searched = f"libnvidia-ml.so.1: {library}; no /{MODULE}; no NVIDIA card in /{CARDS}"
    return Check("ok", name, f"no GPU: functions run on the CPU ({searched})")


def ways(info: Answer, toolkit: Toolkit) -> list[str]:
    """Return the available ways to pass a GPU to a container, best first: cdi, runtime, request."""
    found = []
    # Newer engines list CDI devices, older ones only the folders.
    is_listed = info.get("DiscoveredDevices") is not None
    if _cdi_devices(info) or (not is_listed and _has_cdi(info) and toolkit.specs):
        found.append("cdi")
    if "nvidia" in (info.get("Runtimes") or {}):
        found.append("runtime")
    if "nvidia-container-runtime-hook" in toolkit.programs:
        found.append("request")
    return found


def containers(info: Answer, toolkit: Toolkit) -> Check:
    """Check that a container can get a GPU."""
    name = "gpu in docker"
    open_ways = ways(info, toolkit)
    texts = {
        "cdi": f"CDI ({len(_cdi_devices(info)) or 'some'} devices)",
        "runtime": "the runtime nvidia",
        "request": "device requests",
    }
    if open_ways:
        return Check("ok", name, " and ".join(texts[way] for way in open_ways))
    if _has_cdi(info) and "nvidia-ctk" in toolkit.programs:
        return Check("fail", name, "CDI is on, but describes no NVIDIA GPU", GENERATE)
    if "nvidia-ctk" in toolkit.programs:
        return Check(
            "fail", name, "NVIDIA's toolkit is installed, but Docker does not use it", CONFIGURE
        )
    found = "no way: neither CDI, nor the runtime nvidia, nor NVIDIA's toolkit"
    return Check("fail", name, found, f"{TOOLKIT} && {CONFIGURE}")


def reload(info: Answer, toolkit: Toolkit) -> Check:
    """Check that containers keep their GPU when systemd reloads.

    With systemd's cgroup driver, `systemctl daemon-reload` resets device rules to those of Docker,
    without the devices that a hook added: the container loses its GPU.
    """
    name = "gpu after reload"
    open_ways = ways(info, toolkit)
    if "cdi" in open_ways:
        return Check("ok", name, "kept: CDI declares the devices to the engine")
    if info.get("CgroupDriver") != "systemd":
        return Check("ok", name, f"kept: cgroup driver {info.get('CgroupDriver') or 'unknown'}")
    if toolkit.leaves_cgroups:
        return Check("ok", name, "kept: the toolkit does not change cgroups (no-cgroups)")
    found = "containers lose their GPU at each systemctl daemon-reload (cgroup driver systemd)"
    if _has_cdi(info):
        return Check("warn", name, found, GENERATE)
    todo = (
        f'add "exec-opts": ["native.cgroupdriver=cgroupfs"] to {DAEMON_FILE},'
        " then: sudo systemctl restart docker"
    )
    return Check("warn", name, found, todo)


def find_driver(
    root: Path = Path("/"), start: Callable[[], tuple[str, int, Links]] | None = None
) -> Driver:
    """Find the driver of this machine; `root` has proc and sys, `start` starts NVML."""
    error, version, gpus, links = "", "", 0, Links()
    try:
        version, gpus, links = (start or _nvml)()
    except Exception as failure:  # noqa: BLE001 - pynvml raises errors of the driver's library
        error = str(failure.__cause__ or failure) or type(failure).__name__
    cards = (root / CARDS).glob("*/vendor")
    return Driver(
        error=error,
        version=version,
        gpus=gpus,
        links=links,
        is_loaded=(root / MODULE).is_dir(),
        has_card=any(_text(path).strip() == VENDOR for path in cards),
    )


def find_toolkit(root: Path = Path("/")) -> Toolkit:
    """Find the toolkit of this machine; `root` has etc and run."""
    specs = [
        str(path)
        for folder in ("etc/cdi", "run/cdi", "var/run/cdi")
        for path in sorted((root / folder).glob("*.[yj]*"))
        if CDI_KIND in _text(path)
    ]
    config = _text(root / TOOLKIT_FILE.relative_to("/"))
    programs = frozenset(name for name in PROGRAMS if shutil.which(name))
    return Toolkit(programs, tuple(specs), bool(NO_CGROUPS.search(config)))


def _nvml() -> tuple[str, int, Links]:
    """Return the driver's version, its number of GPUs and their connections. Raises NoDriver or
    pynvml.NVMLError."""
    import pynvml

    from runtime_image.gpus.nvml import Nvml

    nvml = Nvml()
    nvml.open()
    try:
        snapshot = nvml.read()
        indexes = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
        links = tuple((indexes[a.first], indexes[a.second], a) for a in nvml.links())
        return snapshot.driver or "", int(pynvml.nvmlDeviceGetCount()), links
    finally:
        nvml.close()


def _cdi_devices(info: Answer) -> list[Any]:
    devices = info.get("DiscoveredDevices") or []
    return [each for each in devices if str(each.get("ID", "")).startswith(CDI_KIND)]


def _has_cdi(info: Answer) -> bool:
    return bool(info.get("CDISpecDirs"))


def _text(path: Path) -> str:
    """Return the beginning of a file, "" if unreadable."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(FILE_MAX)
    except OSError:
        return ""
