"""What the API server makes of a new Pod: defaults, and the refusals of admission.

Texts are those of Kubernetes 1.36 (pod-security-admission, resourcequota, priority,
serviceaccount).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from tests.support.kubernetes.errors import Refused, forbidden, invalid
from tests.support.kubernetes.quantities import requested, thousandths
from tests.support.kubernetes.store import (
    ACCOUNTS,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITIES,
    QUOTAS,
    Json,
    Resource,
    Store,
)

RUNTIMES: Final = Resource("node.k8s.io/v1", "runtimeclasses", "RuntimeClass", is_namespaced=False)
NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
FINAL: Final = frozenset({"Succeeded", "Failed"})
ENFORCE: Final = "pod-security.kubernetes.io/enforce"
VOLUMES: Final = frozenset(
    {
        *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image"),
        *("persistentVolumeClaim", "projected", "secret", "name"),
    }
)
"""Kinds of volumes that `restricted` allows, and the name that each has."""
SYSCTLS: Final = frozenset(
    {
        *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range"),
        *("net.ipv4.ip_unprivileged_port_start", "net.ipv4.tcp_syncookies"),
        *("net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports"),
        *("net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout"),
        *("net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes"),
    }
)
"""Settings of the kernel that every level allows."""
BAD_WAYS: Final = ("not-ready", "unreachable")


def admit(store: Store, given: Json) -> Json:
    """Return a new Pod as it is stored. Raises Refused."""
    pod = defaulted(given)
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    if not pod["spec"].get("containers"):
        raise invalid(PODS, name, "spec.containers: Required value")
    if pod["spec"]["restartPolicy"] != "Never":
        raise Refused(501, "NotImplemented", "the double runs Pods of restartPolicy Never only")
    check_resources(pod)
    account = pod["spec"]["serviceAccountName"]
    if store.get(ACCOUNTS, account, namespace) is None:
        said = f'error looking up service account {namespace}/{account}: serviceaccount "{account}"'
        raise forbidden(PODS, name, f"{said} not found")
    _set_priority(store, pod)
    wanted = pod["spec"].get("runtimeClassName")
    if wanted and store.get(RUNTIMES, wanted) is None:
        raise forbidden(PODS, name, f'pod rejected: RuntimeClass "{wanted}" not found')
    owner = store.get(NAMESPACES, namespace) or {"metadata": {}}
    is_restricted = (owner["metadata"].get("labels") or {}).get(ENFORCE) == "restricted"
    if is_restricted and (found := ", ".join(violations(pod["spec"]))):
        raise forbidden(PODS, name, f'violates PodSecurity "restricted:latest": {found}')
    _check_quotas(store, pod)
    if pod["spec"].get("shareProcessNamespace") and len(pod["spec"]["containers"]) > 1:
        text = "the double shares the processes of Pods of one container only"
        raise Refused(501, "NotImplemented", text)
    pod["status"] = {"phase": "Pending", "qosClass": _quality(pod)}
    return pod


def check_resources(pod: Json) -> None:
    """Refuse a container without an image, and requests above limits. Raises Refused."""
    for number, one in enumerate(pod["spec"]["containers"]):
        path, resources = f"spec.containers[{number}]", one.get("resources") or {}
        if not one.get("image"):
            raise invalid(PODS, pod["metadata"]["name"], f"{path}.image: Required value")
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for key in limits.keys() & requests.keys():
            if thousandths(key, requests[key]) > thousandths(key, limits[key]):
                why = f"must be less than or equal to {key} limit of {limits[key]}"
                text = f'{path}.resources.requests: Invalid value: "{requests[key]}": {why}'
                raise invalid(PODS, pod["metadata"]["name"], text)


def check_room(store: Store, pod: Json) -> None:
    """Refuse a resize to more than the Pod's node has for all. Raises Refused."""
    node = store.get(NODES, pod["spec"].get("nodeName", ""))
    there = node["status"]["allocatable"] if node is not None else {}
    for name, wanted in sorted(requested(pod).items()):
        most = thousandths(name, there.get(name, wanted if name != "cpu" else f"{wanted}m"))
        if wanted > most:
            numbers = f"requested: {wanted}, allocatable: {most}"
            why = f"node didn't have enough allocatable resources: {name}, {numbers}"
            raise forbidden(PODS, pod["metadata"]["name"], why)


def defaulted(given: Json) -> Json:
    """Return a Pod with the fields that the API server sets."""
    spec = dict(given.get("spec") or {})
    metadata = {**given["metadata"], "generation": 1}
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("serviceAccountName", "default")
    spec["serviceAccount"] = spec["serviceAccountName"]
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("enableServiceLinks", True)
    tolerations = list(spec.get("tolerations") or ())
    for word in BAD_WAYS:
        key = f"node.kubernetes.io/{word}"
        if not any(one.get("key") in (key, None, "") for one in tolerations):
            one = {"key": key, "operator": "Exists", "effect": "NoExecute"}
            tolerations.append({**one, "tolerationSeconds": 300})
    spec["tolerations"] = tolerations
    for kind in ("initContainers", "containers"):
        if kind in spec:
            spec[kind] = [_container(one) for one in spec[kind]]
    if "volumes" in spec:
        spec["volumes"] = [_volume(one) for one in spec["volumes"]]
    return {**given, "metadata": metadata, "spec": spec}


def _container(given: Json) -> Json:
    image = str(given.get("image", ""))
    latest = ":" not in image.rpartition("/")[2] or image.endswith(":latest")
    resources = dict(given.get("resources") or {})
    if limits := resources.get("limits"):
        resources["requests"] = {**limits, **(resources.get("requests") or {})}
    return {
        "resizePolicy": [
            {"resourceName": one, "restartPolicy": "NotRequired"} for one in ("cpu", "memory")
        ],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always" if latest else "IfNotPresent",
        **given,
        "resources": resources,
    }


def _volume(given: Json) -> Json:
    if "projected" not in given:
        return given
    return {**given, "projected": {"defaultMode": 420, **given["projected"]}}


def _quality(pod: Json) -> str:
    resources = [one.get("resources") or {} for one in pod["spec"]["containers"]]
    if not any(one.get("requests") or one.get("limits") for one in resources):
        return "BestEffort"
    guaranteed = all(
        {"cpu", "memory"} <= set(one.get("limits") or {}) and one["limits"] == one["requests"]
        for one in resources
    )
    return "Guaranteed" if guaranteed else "Burstable"


def _set_priority(store: Store, pod: Json) -> None:
    spec, name = pod["spec"], pod["spec"].get("priorityClassName", "")
    if not name:
        spec.setdefault("priority", 0)
        spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
        return
    found = store.get(PRIORITIES, name)
    if found is None:
        why = f"no PriorityClass with name {name} was found"
        raise forbidden(PODS, pod["metadata"]["name"], why)
    spec["priority"] = found["value"]
    spec["preemptionPolicy"] = found.get("preemptionPolicy", "PreemptLowerPriority")


def _check_quotas(store: Store, pod: Json) -> None:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    used: Counter[str] = Counter()
    for one in store.every(PODS, namespace):
        if one["status"]["phase"] not in FINAL:
            used += charged(one)
    wanted = charged(pod)
    for quota in store.every(QUOTAS, namespace):
        hard = {
            key: thousandths(key.rpartition(".")[2] if "cpu" in key else key, value)
            for key, value in quota["spec"]["hard"].items()
        }
        if lacking := "; ".join(_unsaid(pod, hard)):
            why = f"failed quota: {quota['metadata']['name']}: must specify {lacking}"
            raise forbidden(PODS, name, why)
        over = sorted(key for key in hard if wanted[key] and used[key] + wanted[key] > hard[key])
        if over:
            limited = ",".join(f"{key}={quota['spec']['hard'][key]}" for key in over)
            why = f"exceeded quota: {quota['metadata']['name']}, requested: {_listed(wanted, over)}"
            why = f"{why}, used: {_listed(used, over)}, limited: {limited}"
            raise forbidden(PODS, name, why)


def _unsaid(pod: Json, hard: Iterable[str]) -> Iterator[str]:
    """Yield the limits and requests that a quota counts and containers do not name."""
    for key in sorted(hard):
        kind, _, name = key.partition(".")
        if kind in ("limits", "requests"):
            lacking = [
                one["name"]
                for one in pod["spec"]["containers"]
                if name not in ((one.get("resources") or {}).get(kind) or {})
            ]
            if lacking:
                yield f"{key} for: {','.join(lacking)}"


def charged(pod: Json) -> Counter[str]:
    """Return what quotas charge a Pod."""
    total = Counter({"pods": 1})
    for name, number in requested(pod).items():
        total[f"requests.{name}"] = total[name] = number
    for container in pod["spec"]["containers"]:
        for name, quantity in ((container.get("resources") or {}).get("limits") or {}).items():
            total[f"limits.{name}"] += thousandths(name, quantity)
    return total


def _listed(numbers: Counter[str], keys: Iterable[str]) -> str:
    return ",".join(f"{key}={_quantity(key, numbers[key])}" for key in keys)


def _quantity(key: str, number: int) -> str:
    if key.endswith("cpu"):
        return f"{number}m" if number % 1000 else str(number // 1000)
    if key.endswith("memory"):
        return f"{number // 2**20}Mi" if number and number % 2**20 == 0 else str(number)
    return str(number)


def violations(spec: Json) -> Iterator[str]:
    """Yield what the level `restricted` refuses, in the order of the API server."""
    containers = [*spec.get("initContainers", []), *spec["containers"]]
    whole = spec.get("securityContext") or {}
    yield from _base_violations(spec, containers)
    own = {one["name"]: one.get("securityContext") or {} for one in containers}
    if bad := [
        name for name, one in own.items() if one.get("allowPrivilegeEscalation") is not False
    ]:
        must = "must set securityContext.allowPrivilegeEscalation=false"
        yield f"allowPrivilegeEscalation != false ({_named(bad)} {must})"
    if found := "; ".join(_capabilities(own)):
        yield f"unrestricted capabilities ({found})"
    if bad := [one["name"] for one in spec.get("volumes", []) if not set(one) <= VOLUMES]:
        kinds = sorted({kind for one in spec["volumes"] for kind in set(one) - VOLUMES})
        uses, types = ("uses", "type") if len(bad) == 1 else ("use", "types")
        types = "type" if len(kinds) == 1 else "types"
        words = f"{_plural('volume', bad)} {_quoted(bad)} {uses} restricted volume {types}"
        yield f"restricted volume types ({words} {_quoted(kinds)})"
    yield from _user_violations(own, whole)
    unset = [name for name, one in own.items() if not one.get("seccompProfile")]
    if unset and not whole.get("seccompProfile"):
        must = 'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
        yield f"seccompProfile (pod or {_named(unset)} {must})"


def _base_violations(spec: Json, containers: list[Json]) -> Iterator[str]:
    host = [f"{key}=true" for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    if host:
        yield f"host namespaces ({', '.join(host)})"
    named = [one["name"] for one in (spec.get("securityContext") or {}).get("sysctls", [])]
    if bad := [one for one in named if one not in SYSCTLS]:
        yield f"forbidden sysctls ({', '.join(bad)})"
    if bad := [
        one["name"] for one in containers if (one.get("securityContext") or {}).get("privileged")
    ]:
        yield f"privileged ({_named(bad)} must not set securityContext.privileged=true)"


def _capabilities(own: dict[str, Json]) -> Iterator[str]:
    given = {name: one.get("capabilities") or {} for name, one in own.items()}
    if bad := [name for name, one in given.items() if "ALL" not in (one.get("drop") or ())]:
        yield f'{_named(bad)} must set securityContext.capabilities.drop=["ALL"]'
    extra = {name: set(one.get("add") or ()) - {"NET_BIND_SERVICE"} for name, one in given.items()}
    if bad := [name for name, one in extra.items() if one]:
        words = _quoted(sorted(set().union(*extra.values())))
        yield f"{_named(bad)} must not include {words} in securityContext.capabilities.add"


def _user_violations(own: dict[str, Json], whole: Json) -> Iterator[str]:
    opposed = [name for name, one in own.items() if one.get("runAsNonRoot") is False]
    if opposed:
        yield f"runAsNonRoot != true ({_named(opposed)} must not set runAsNonRoot=false)"
    unset = [name for name, one in own.items() if one.get("runAsNonRoot") is None]
    if unset and not opposed and whole.get("runAsNonRoot") is not True:
        must = "must set securityContext.runAsNonRoot=true"
        yield f"runAsNonRoot != true (pod or {_named(unset)} {must})"
    setters = ["pod"] if whole.get("runAsUser") == 0 else []
    if bad := [name for name, one in own.items() if one.get("runAsUser") == 0]:
        setters.append(_named(bad))
    if setters:
        yield f"runAsUser=0 ({' and '.join(setters)} must not set runAsUser=0)"


def _named(names: list[str]) -> str:
    return f"{_plural('container', names)} {_quoted(names)}"


def _plural(word: str, of: list[Any]) -> str:
    return word if len(of) == 1 else f"{word}s"


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(f'"{one}"' for one in words)
