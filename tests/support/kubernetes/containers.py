"""From the definition of a container to the plan of its process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from tests.support.kubernetes.memory import MemoryGroup
from tests.support.kubernetes.runtime import Image, Plan, own_mounts, system_mounts
from tests.support.kubernetes.store import Json

PATH: Final = f"{Path(sys.executable).parent}:{os.defpath}:/usr/sbin:/sbin"


class ContainerRefused(Exception):
    """A container that the kubelet does not make."""


def user_of(pod: Json, container: Json, image: Image) -> tuple[int, int]:
    """Return user and group of a container's command. Raises ContainerRefused."""
    whole = pod["spec"].get("securityContext") or {}
    own = container.get("securityContext") or {}
    both = {**whole, **own}
    must_not_be_root = both.get("runAsNonRoot") is True
    user = both.get("runAsUser")
    metadata = pod["metadata"]
    where = (
        f'(pod: "{metadata["name"]}_{metadata["namespace"]}({metadata["uid"]})", '
        f"container: {container['name']})"
    )
    if user is None:
        word = image.user.partition(":")[0]
        if word and not word.isdecimal() and must_not_be_root:
            text = f"container has runAsNonRoot and image has non-numeric user ({word})"
            raise ContainerRefused(f"{text}, cannot verify user is non-root {where}")
        user = int(word) if word.isdecimal() else 0
        if user == 0 and must_not_be_root:
            text = "container has runAsNonRoot and image will run as root"
            raise ContainerRefused(f"{text} {where}")
    elif user == 0 and must_not_be_root:
        text = "container's runAsUser breaks non-root policy"
        raise ContainerRefused(f"{text} {where}")
    return user, int(both.get("runAsGroup", 0))


def plan_of(given: Json, memory: MemoryGroup) -> Plan:
    """Return the plan of a container's process; `given` is of `PodWorker`. Raises
    ContainerRefused."""
    pod, container, image = given["pod"], given["container"], given["image"]
    folder: Path = given["folder"]
    user, group = user_of(pod, container, image)
    mounts, links = system_mounts()
    mounts += [(source, target, True) for source, target in image.folders]
    mounts += sorted(_volumes(container, folder), key=lambda one: one[1])
    mounts += own_mounts()
    root = folder / f"root-{container['name']}"
    root.mkdir(exist_ok=True)
    whole = pod["spec"].get("securityContext") or {}
    security = container.get("securityContext") or {}
    command = [*(container.get("command") or image.command), *(container.get("args") or ())]
    environment = {"PATH": PATH, "HOME": "/", "HOSTNAME": pod["metadata"]["name"]}
    environment |= {**image.environment, **given["environment"]}
    return Plan(
        root=str(root),
        network=given["network"],
        hostname=pod["metadata"]["name"],
        links=links,
        mounts=mounts,
        groups=[] if memory.folder is None else [str(memory.folder)],
        command=command,
        environment=environment,
        folder=container.get("workingDir", ""),
        user=user,
        group=group,
        extra_groups=[whole["fsGroup"]] if "fsGroup" in whole else [],
        is_read_only=bool(security.get("readOnlyRootFilesystem")),
        is_shared=bool(pod["spec"].get("shareProcessNamespace")),
        log=given["log"],
    )


def _volumes(container: Json, folder: Path) -> list[tuple[str, str, bool]]:
    found = []
    for mount in container.get("volumeMounts", []):
        source = (folder / "volumes" / mount["name"]).resolve()
        if part := mount.get("subPath"):
            source /= part
            source.mkdir(mode=0o777, parents=True, exist_ok=True)
        target = mount["mountPath"].rstrip("/")
        found.append((str(source), target, bool(mount.get("readOnly"))))
    return found
