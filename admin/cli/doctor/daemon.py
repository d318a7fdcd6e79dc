"""Checks of a Docker engine, by what it says of itself. All pure."""

from __future__ import annotations

from typing import Any, Final

from admin.cli.doctor.check import Check
from admin.cli.doctor.machine import DISK_FULL, DISK_LOW
from admin.cli.text import size

API_OLDEST: Final = (1, 41)
"""Docker 20.10, the oldest engine that is tested."""
DAEMON_FILE: Final = "/etc/docker/daemon.json"
RELOAD: Final = "sudo systemctl reload docker"
RESTART: Final = "sudo systemctl restart docker"

Answer = dict[str, Any]
"""What GET /info or GET /version gave, as it came."""


def api(version: Answer, newest: tuple[int, int]) -> Check:
    """The engine speaks an API that fngate speaks: `newest` is the client library's."""
    own, least = _number(version.get("ApiVersion")), _number(version.get("MinAPIVersion"))
    name = f"Docker {version.get('Version', '?')}, API {_text(own)}"
    if own < API_OLDEST:
        found = f"{name}, expected {_text(API_OLDEST)} (Docker 20.10) or newer"
        return Check("fail", "docker api", found, "upgrade Docker Engine")
    if least > newest:
        found = f"{name}, it takes {_text(least)} at least, this fngate speaks {_text(newest)}"
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
    """There is room for images and containers. `free` are bytes left, None where nobody can see."""
    name, root = "docker disk", str(info.get("DockerRootDir") or "the engine's folder")
    if free is None:
        return Check("ok", name, f"{root} cannot be seen from here")
    found = f"{size(free)} left in {root}"
    if free >= DISK_LOW:
        return Check("ok", name, found)
    return Check("fail" if free < DISK_FULL else "warn", name, found, "docker image prune")


def uids(info: Answer) -> Check:
    """Users in containers are those outside."""
    options = _options(info)
    changed = [each for each in ("rootless", "userns") if each in options]
    if not changed:
        return Check("ok", "docker users", "the same inside and outside containers")
    found = f"{' and '.join(changed)}: a user id in a container is another one outside"
    if "rootless" in options:
        todo = "give fngate an engine of its own that runs as root: --engine, FN_DOCKER_HOST"
    else:
        todo = f'take "userns-remap" out of {DAEMON_FILE}, then: {RESTART}'
    return Check("warn", "docker users", found, todo)


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


def _text(number: tuple[int, int]) -> str:
    return ".".join(map(str, number))
