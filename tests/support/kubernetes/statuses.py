"""The status of a Pod as its kubelet writes it: pure functions over what the kubelet knows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from tests.support.kubernetes.conditions import condition, set_condition
from tests.support.kubernetes.runtime import Container
from tests.support.kubernetes.store import Json


class Stage(StrEnum):
    """How far a Pod is."""

    CREATING = "creating"
    """It has no network yet."""
    STARTING = "starting"
    """It has, and containers that have not started."""
    RUNNING = "running"
    ENDED = "ended"
    """All containers have ended, and its network is gone."""
    FINAL = "final"
    """It has ended, and its network is gone."""


@dataclass
class Known:
    """What a kubelet knows of a Pod beside its containers."""

    stage: Stage = Stage.CREATING
    started_at: str = ""
    address: str = ""
    waiting: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Reason and message of containers that cannot start."""
    restarts: dict[str, int] = field(default_factory=dict)
    resources: dict[str, Json] = field(default_factory=dict)
    """Resources in force by container; missing ones are those of the spec."""
    is_resizing: bool = False
    why_not_resized: str = ""
    devices: dict[str, list[str]] = field(default_factory=dict)
    """Devices of a plugin by resource."""


def state(container: Container | None, waiting: tuple[str, str] | None) -> Json:
    """Return the state of a container."""
    if container is not None and container.ended.is_set():
        code = container.exit_code or 0
        reason = "OOMKilled" if container.is_oom else "Error" if code else "Completed"
        said: Json = {"exitCode": code, "reason": reason}
        if container.why_not_started:
            message = "failed to create containerd task: failed to create shim task: OCI runtime"
            said["reason"] = "StartError"
            said["message"] = f"{message} create failed: {container.why_not_started}: unknown"
        said["startedAt"], said["finishedAt"] = container.started_at, container.finished_at
        return {"terminated": {**said, "containerID": f"containerd://{container.id}"}}
    if container is not None:
        return {"running": {"startedAt": container.started_at}}
    reason, message = waiting or ("ContainerCreating", "")
    return {"waiting": {"reason": reason} | ({"message": message} if message else {})}


def _container(
    spec: Json, container: Container | None, known: Known, default: tuple[str, str] | None
) -> Json:
    name = spec["name"]
    found = state(container, known.waiting.get(name) or default)
    is_running = "running" in found
    said: Json = {"name": name, "state": found, "lastState": {}, "ready": is_running}
    said |= {"restartCount": known.restarts.get(name, 0), "image": spec["image"]}
    said |= {"imageID": container.image.id if container else "", "started": is_running}
    resources: Json = known.resources.get(name, spec.get("resources") or {})
    if container is not None:
        said["containerID"] = f"containerd://{container.id}"
        said["allocatedResources"] = resources.get("requests") or {}
        said["resources"] = resources
        if known.devices:
            said["allocatedResourcesStatus"] = [
                {
                    "name": resource,
                    "resources": [{"resourceID": one, "health": "Healthy"} for one in ids],
                }
                for resource, ids in known.devices.items()
            ]
    return said


def phase_of(pod: Json, containers: dict[str, Container], known: Known) -> str:
    """Return the phase of a Pod."""
    main = [containers.get(one["name"]) for one in pod["spec"]["containers"]]
    if known.stage == Stage.FINAL:
        codes = [one.exit_code if one is not None else 137 for one in main]
        return "Failed" if any(codes) else "Succeeded"
    return "Running" if known.stage in (Stage.RUNNING, Stage.ENDED) else "Pending"


def status(
    pod: Json, containers: dict[str, Container], known: Known, node_address: str, now: str
) -> Json:
    """Return the whole status of a Pod; conditions that others have set stay."""
    phase = phase_of(pod, containers, known)
    made: Json = {"conditions": list(pod["status"].get("conditions", []))}
    for one in _conditions(pod, containers, known, now):
        one["observedGeneration"] = pod["metadata"]["generation"]
        set_condition({"status": made}, one)
    made["conditions"] = _ordered(made["conditions"], known)
    kept = {key: pod["status"][key] for key in ("qosClass",) if key in pod["status"]}
    made |= {"phase": phase, "observedGeneration": pod["metadata"]["generation"], **kept}
    made |= {"hostIP": node_address, "hostIPs": [{"ip": node_address}]}
    if known.address:
        made |= {"podIP": known.address, "podIPs": [{"ip": known.address}]}
    made["startTime"] = pod["status"].get("startTime", known.started_at)
    initial = pod["spec"].get("initContainers", [])
    before = ("PodInitializing", "") if initial else None
    if initial:
        made["initContainerStatuses"] = [
            _container(one, containers.get(one["name"]), known, before) for one in initial
        ]
    made["containerStatuses"] = [
        _container(one, containers.get(one["name"]), known, before)
        for one in pod["spec"]["containers"]
    ]
    return made


def _is_initialized(pod: Json, containers: dict[str, Container]) -> bool:
    for one in pod["spec"].get("initContainers", []):
        found = containers.get(one["name"])
        is_sidecar = one.get("restartPolicy") == "Always"
        if found is None or not (is_sidecar or found.exit_code == 0):
            return False
    return True


def _conditions(
    pod: Json, containers: dict[str, Container], known: Known, now: str
) -> Iterable[Json]:
    has_network = known.stage in (Stage.STARTING, Stage.RUNNING)
    yield condition("PodReadyToStartContainers", str(has_network), now)
    incomplete = [
        one["name"]
        for one in pod["spec"].get("initContainers", [])
        if not _is_initialized({"spec": {"initContainers": [one]}}, containers)
    ]
    words = f"containers with incomplete status: [{' '.join(incomplete)}]"
    yield (
        condition("Initialized", "False", now, "ContainersNotInitialized", words)
        if incomplete
        else condition("Initialized", "True", now, _completed(pod, containers, known))
    )
    main = [one["name"] for one in pod["spec"]["containers"]]
    serving = [
        *(one["name"] for one in pod["spec"].get("initContainers", []) if one.get("restartPolicy")),
        *main,
    ]
    unready = [name for name in serving if not _runs(containers.get(name))]
    status, reason, message = "True", "", ""
    if known.stage in (Stage.RUNNING, Stage.ENDED, Stage.FINAL) and len(unready) == len(serving):
        codes = [one.exit_code for name in main if (one := containers.get(name)) is not None]
        status, reason = "False", "PodFailed" if any(codes) or not codes else "PodCompleted"
    elif unready:
        status, reason = "False", "ContainersNotReady"
        message = f"containers with unready status: [{' '.join(unready)}]"
    for type in ("Ready", "ContainersReady"):
        yield condition(type, status, now, reason, message)
    if known.is_resizing:
        yield condition("PodResizeInProgress", "True", now)
    if known.why_not_resized:
        yield condition("PodResizePending", "True", now, "Infeasible", known.why_not_resized)


def _runs(container: Container | None) -> bool:
    return container is not None and container.is_running


def _completed(pod: Json, containers: dict[str, Container], known: Known) -> str:
    is_done = known.stage == Stage.FINAL and phase_of(pod, containers, known) == "Succeeded"
    return "PodCompleted" if is_done else ""


ORDER = (
    *("PodResizePending", "PodResizeInProgress", "PodReadyToStartContainers", "Initialized"),
    *("Ready", "ContainersReady", "PodScheduled"),
)


def _ordered(conditions: list[Json], known: Known) -> list[Json]:
    """Return the conditions as the kubelet orders them, without those of a resize that is over."""
    over = set()
    if not known.is_resizing:
        over.add("PodResizeInProgress")
    if not known.why_not_resized:
        over.add("PodResizePending")
    kept = [one for one in conditions if one["type"] not in over]
    first = [one for one in kept if one["type"] not in ORDER]
    return first + sorted(
        (one for one in kept if one["type"] in ORDER), key=lambda one: ORDER.index(one["type"])
    )
