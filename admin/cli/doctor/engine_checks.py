"""Checks of a Docker engine's settings and of GPUs in containers; all pure but for `find_*`.

Docker has three ways to pass a GPU: CDI, where the engine itself reads a device's needs; the
runtime `nvidia`; and device requests (`--gpus`), which a program of NVIDIA's toolkit serves unseen.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from admin.cli.doctor.machine import DISK_FULL, DISK_LOW, Check
from admin.text import size
from pool_manager.drivers.docker.spec import CDI_KIND, CONFIGURE, GENERATE

API_OLDEST: Final = (1, 41)
"""Docker 20.10, the oldest engine that is tested."""
DAEMON_FILE: Final = "/etc/docker/daemon.json"
RELOAD: Final = "sudo systemctl reload docker"
RESTART: Final = "sudo systemctl restart docker"
VENDOR: Final = "0x10de"
"""NVIDIA on the PCI bus."""
PROGRAMS: Final = ("nvidia-container-runtime-hook", "nvidia-container-runtime", "nvidia-ctk")
TOOLKIT: Final = "sudo apt-get install nvidia-container-toolkit"
NO_CGROUPS: Final = re.compile(r"^\s*no-cgroups\s*=\s*true", re.MULTILINE)
TOOLKIT_FILE: Final = Path("/etc/nvidia-container-runtime/config.toml")
FILE_MAX: Final = 64 * 1024

Answer = dict[str, Any]
"""The answer of GET /info or GET /version."""


def api(version: Answer, newest: tuple[int, int]) -> Check:
    """The engine's API fits the client library, whose newest is `newest`."""
    own, least = _number(version.get("ApiVersion")), _number(version.get("MinAPIVersion"))
    name = f"Docker {version.get('Version', '?')}, API {_api(own)}"
    if own < API_OLDEST:
        found = f"{name}, expected {_api(API_OLDEST)} (Docker 20.10) or newer"
        return Check("fail", "docker api", found, "upgrade Docker Engine")
    if least > newest:
        found = f"{name}, it takes {_api(least)} at least, this fngate speaks {_api(newest)}"
        return Check("fail", "docker api", found, "pip install --upgrade docker")
    return Check("ok", "docker api", name)


def live_restore(info: Answer) -> Check:
    """Containers outlive the engine."""
    name = "live-restore"
    if info.get("LiveRestoreEnabled"):
        return Check("ok", name, "containers go on while the engine restarts")
    found = "off: every restart of the engine ends all replicas"
    swarm = info.get("Swarm") or {}
    if swarm.get("LocalNodeState") not in (None, "", "inactive"):
        return Check("warn", name, f"{found}; impossible in a swarm", "sudo docker swarm leave")
    todo = f'put "live-restore": true into {DAEMON_FILE}, then: {RELOAD}'
    return Check("warn", name, found, todo)


def init(info: Answer) -> Check:
    """The engine has the init process that every replica's container is started with."""
    name, binary = "docker init", str(info.get("InitBinary") or "")
    if not binary:
        return Check("warn", name, "the engine does not say whether it has docker-init")
    if (info.get("InitCommit") or {}).get("ID") == "N/A":
        todo = "sudo apt-get install tini, or docker-ce of Docker itself"
        return Check("fail", name, f"the engine cannot find {binary}: no replica starts", todo)
    return Check("ok", name, binary)


def storage(info: Answer, free: int | None) -> Check:
    """There is room for images and containers. `free` is in bytes, None if unknown."""
    name, root = "docker disk", str(info.get("DockerRootDir") or "the engine's folder")
    if free is None:
        return Check("ok", name, f"{root} cannot be seen from here")
    found = f"{size(free)} left in {root}"
    if free >= DISK_LOW:
        return Check("ok", name, found)
    return Check("fail" if free < DISK_FULL else "warn", name, found, "docker image prune")


def uids(info: Answer) -> Check:
    """User ids are the same inside and outside containers."""
    options = _options(info)
    changed = [each for each in ("rootless", "userns") if each in options]
    if not changed:
        return Check("ok", "docker users", "the same inside and outside containers")
    found = f"{' and '.join(changed)}: other users in containers than outside, no replica starts"
    if "rootless" in options:
        todo = "give fngate an engine of its own that runs as root: --engine, FN_DOCKER_HOST"
    else:
        todo = f'take "userns-remap" out of {DAEMON_FILE}, then: {RESTART}'
    return Check("fail", "docker users", found, todo)


def seccomp(info: Answer) -> Check:
    """System calls of containers are filtered."""
    options = _options(info)
    profile = options.get("seccomp")
    if profile is None:
        found = "off: the engine or the kernel has none"
        return Check("warn", "docker seccomp", found, "use a kernel with CONFIG_SECCOMP_FILTER")
    if profile == "unconfined":
        todo = f'take "seccomp-profile" out of {DAEMON_FILE}, then: {RESTART}'
        return Check("warn", "docker seccomp", "off: the profile is unconfined", todo)
    return Check("ok", "docker seccomp", f"profile {profile or 'default'}")


def _options(info: Answer) -> dict[str, str]:
    """`SecurityOptions` by name, with their profile: "name=seccomp,profile=default"."""
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
    """NVIDIA's driver on this machine: why NVML does not start or "", version, number of GPUs,
    whether the kernel module is loaded, whether the bus has a GPU."""

    error: str = ""
    version: str = ""
    gpus: int = 0
    is_loaded: bool = False
    has_card: bool = False


@dataclass(frozen=True, slots=True)
class Toolkit:
    """NVIDIA's container toolkit on this machine: programs, CDI files, and `no-cgroups`. Empty for
    another machine's engine."""

    programs: frozenset[str] = frozenset()
    specs: tuple[str, ...] = ()
    leaves_cgroups: bool = False


def driver(found: Driver) -> Check:
    """The NVIDIA driver works, if there is a GPU."""
    name = "nvidia driver"
    if not found.error and found.gpus:
        return Check("ok", name, f"{found.version}, {found.gpus} GPU{'s' * (found.gpus > 1)}")
    if found.is_loaded:
        reason = found.error or "it sees no GPU"
        return Check("fail", name, f"loaded, but: {reason}", "sudo reboot")
    if found.has_card:
        text = "there is a GPU, but its driver is not loaded"
        return Check("warn", name, text, "sudo apt-get install nvidia-driver, then sudo reboot")
    return Check("ok", name, "no GPU: functions run on the CPU")


def ways(info: Answer, toolkit: Toolkit) -> list[str]:
    """The ways to pass a GPU to a container here, best first: cdi, runtime, request."""
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
    """A container can be given a GPU."""
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
            "fail", name, "NVIDIA's toolkit is here, but Docker does not use it", CONFIGURE
        )
    found = "no way: neither CDI nor the runtime nvidia nor NVIDIA's toolkit"
    return Check("fail", name, found, f"{TOOLKIT} && {CONFIGURE}")


def reload(info: Answer, toolkit: Toolkit) -> Check:
    """Containers keep their GPU when systemd reloads.

    With systemd's cgroup driver `systemctl daemon-reload` resets device rules to those of Docker,
    without the devices that a hook added: the container loses its GPU.
    """
    name = "gpu after reload"
    open_ways = ways(info, toolkit)
    if "cdi" in open_ways:
        return Check("ok", name, "kept: CDI tells the engine which devices there are")
    if info.get("CgroupDriver") != "systemd":
        return Check("ok", name, f"kept: cgroup driver {info.get('CgroupDriver') or 'unknown'}")
    if toolkit.leaves_cgroups:
        return Check("ok", name, "kept: the toolkit leaves cgroups alone (no-cgroups)")
    found = "containers lose their GPU at each systemctl daemon-reload (cgroup driver systemd)"
    if _has_cdi(info):
        return Check("warn", name, found, GENERATE)
    todo = (
        f'put "exec-opts": ["native.cgroupdriver=cgroupfs"] into {DAEMON_FILE},'
        " then: sudo systemctl restart docker"
    )
    return Check("warn", name, found, todo)


def find_driver(
    root: Path = Path("/"), start: Callable[[], tuple[str, int]] | None = None
) -> Driver:
    """The driver of this machine; `root` has proc and sys, `start` starts NVML."""
    error, version, gpus = "", "", 0
    try:
        version, gpus = (start or _nvml)()
    except Exception as failure:  # noqa: BLE001 - pynvml raises what the driver's library makes of it
        error = str(failure) or type(failure).__name__
    cards = (root / "sys/bus/pci/devices").glob("*/vendor")
    return Driver(
        error=error,
        version=version,
        gpus=gpus,
        is_loaded=(root / "proc/driver/nvidia").is_dir(),
        has_card=any(_text(path).strip() == VENDOR for path in cards),
    )


def find_toolkit(root: Path = Path("/")) -> Toolkit:
    """The toolkit of this machine; `root` has etc and run."""
    specs = [
        str(path)
        for folder in ("etc/cdi", "run/cdi", "var/run/cdi")
        for path in sorted((root / folder).glob("*.[yj]*"))
        if CDI_KIND in _text(path)
    ]
    config = _text(root / TOOLKIT_FILE.relative_to("/"))
    programs = frozenset(name for name in PROGRAMS if shutil.which(name))
    return Toolkit(programs, tuple(specs), bool(NO_CGROUPS.search(config)))


def _nvml() -> tuple[str, int]:
    """The driver's version and number of GPUs. Raises pynvml.NVMLError."""
    import pynvml

    pynvml.nvmlInit()
    try:
        return str(pynvml.nvmlSystemGetDriverVersion()), int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


def _cdi_devices(info: Answer) -> list[Any]:
    devices = info.get("DiscoveredDevices") or []
    return [each for each in devices if str(each.get("ID", "")).startswith(CDI_KIND)]


def _has_cdi(info: Answer) -> bool:
    return bool(info.get("CDISpecDirs"))


def _text(path: Path) -> str:
    """The beginning of a file, "" if unreadable."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(FILE_MAX)
    except OSError:
        return ""
