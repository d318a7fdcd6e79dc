"""The Pods of replicas, as the API server is sent them. No I/O.

Every Pod keeps the policy `restricted` of the Pod Security Standards. A server function of an image
is a Pod of two containers: its sidecar, which starts first and ends last, and its server. A node's
kubelet, not this server, mounts what they see: the volumes are the Pod's own, and no file of a node
is among them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from hosts.kubernetes.objects import (
    DATA_PORT,
    ENTRANCE_ANNOTATION,
    NETWORK_LABEL,
    OWNER_LABEL,
    REPLICA_LABEL,
    Affinity,
    Capabilities,
    ClaimVolume,
    Container,
    ContainerClaim,
    DownwardItem,
    DownwardProjection,
    EmptyDir,
    EnvSource,
    EnvVar,
    ExecAction,
    FieldRef,
    LocalReference,
    Metadata,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    OwnerReference,
    Pod,
    PodClaim,
    PodSecurityContext,
    PodSpec,
    Probe,
    Projected,
    Resources,
    SeccompProfile,
    Secret,
    SecretKeyRef,
    SecurityContext,
    Sysctl,
    TokenProjection,
    Toleration,
    Volume,
    VolumeMount,
    VolumeProjection,
)
from pool_manager.drivers.environment import (
    MODEL_TARGET,
    NO_DEVICE,
    RUN_TARGET,
    VISIBLE,
    filler,
    gpu_count,
    memory_cap_mib,
    replica_variables,
    server_variables,
    sidecar_cap_mib,
)
from pool_manager.hosts.kubernetes.ends import REPLICA, SERVER, SIDECAR
from pool_manager.ports import ServerContainer
from registry.model.hosts import KubernetesHost
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.enrolment import ENTRANCE_FILE, FETCHED_FILE, Entrance
from runtime_image.contract.server import BUNDLE_FOLDER

NAME_PREFIX: Final = "fn-"
AUDIENCE: Final = "fngate"
"""Audience of the token by which a Pod proves to the server's door which one it is."""
TOKEN_S: Final = 600
"""Lifetime of such a token: the shortest that the API server takes."""
IDENTITY_TARGET: Final = "/run/fngate-identity"
"""Folder with that token and the entrance."""
TOKEN_FILE: Final = f"{IDENTITY_TARGET}/token"
DIAL_IN: Final = f"tls://:{DATA_PORT}"
"""`listen` of its entrance."""
MILLIS: Final = 1000
REQUEST_MILLIS_MIN: Final = 10
REQUEST_MILLIS_MAX: Final = 4000
"""Most that a Pod requests of a CPU share, in thousandths: one that is larger, as beside a GPU, is
mostly unused."""
REQUEST_SHARE: Final = 0.8
"""Part of its CPU share that a Pod requests: system Pods of a node take some of each."""
REQUEST_MIB_MIN: Final = 64
TMP_MIB: Final = 16 * 1024
"""Size of /tmp without a memory cap; otherwise it is as large as that, and this at least: a trial
writes its prepared model there."""
TMP_MIB_MIN: Final = 1024
MODELS_MIB: Final = 64 * 1024
"""Size of the model folder of a replica whose model is not known when its Pod is made."""
FILES_TIMES: Final = 4
MODEL_SPARE_MIB: Final = 1024
"""Size of any other model folder: so many times its files, and this: what is compiled for it later
comes on top."""
RUN_MIB: Final = 64
SIDECAR_MILLIS: Final = 1000
AWAY_S: Final = 86_400
"""Seconds for which a Pod stays bound to a node that is not ready: replicas there serve on, and end
by their lease."""
_AWAY: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_USER: Final = re.compile(r"([1-9][0-9]{0,9})(?::([0-9]{1,10}))?")
_LOCKED: Final = SecurityContext(
    allow_privilege_escalation=False,
    read_only_root_filesystem=True,
    capabilities=Capabilities(drop=("ALL",)),
)
_SECCOMP: Final = SeccompProfile(type="RuntimeDefault")
FETCH_PERIOD_S: Final = 1
FETCH_TRIES: Final = 3600
"""Looks, one a second, for the files of a server until its Pod is given up; the start has limits of
its own before."""


@dataclass(frozen=True, slots=True)
class PodOwner:
    """The server that Pods belong to."""

    id: str
    """Value of OWNER_LABEL."""
    reference: OwnerReference | None = None
    """What the cluster deletes Pods and Secrets with: the StatefulSet of the server."""


@dataclass(frozen=True, slots=True)
class PodPlace:
    """What a Pod gets of its node."""

    node: str
    cpu_millis: int
    """Its share of the node's CPU, in thousandths."""
    claims: tuple[str, ...] = ()
    """Names of the ResourceClaims of its GPUs."""
    resource: str = ""
    """Resource of a device plugin by which it gets as many GPUs as its record has; "" for none."""


@dataclass(frozen=True, slots=True)
class PodNeeds:
    """What the record of a replica does not say of it."""

    measured_mib: float = 0.0
    """Memory that its trial has measured; 0 if it is not known."""
    files_mib: float = 0.0
    """Size of its files; 0 if they are not known."""
    stop_grace_s: float = 1.0
    """Seconds that it may take to end."""
    is_preemptible: bool = True
    """Whether other users of the cluster may take its place."""
    network: str = "none"
    """`none` or `egress`."""


@dataclass(frozen=True, slots=True)
class PodRequest:
    """Everything that the Pod of one replica is made from."""

    record: ReplicaRecord
    definition: KubernetesHost
    owner: PodOwner
    place: PodPlace
    needs: PodNeeds
    authority: str
    """Certificate of the authority of the server's door, PEM."""
    uid: int
    """User id that no other Pod of this server has."""
    server: ServerContainer | None = None
    """The server, if that is apart."""


def pod_name(id: str, owner: PodOwner) -> str:
    """Return the name of the Pod of a replica, and of its Secret."""
    return f"{NAME_PREFIX}{owner.id[:8]}-{id}"


def selector(owner: PodOwner) -> str:
    """Return the label selector of all Pods of an owner."""
    return f"{OWNER_LABEL}={owner.id}"


def why_not(server: ServerContainer) -> str:
    """Return what of a server no Pod of ours can have, with what to do; "" for nothing."""
    if server.capabilities:
        names = ", ".join(server.capabilities)
        return (
            f"server.capabilities: expected none, got {names}: Pods keep the policy restricted;"
            ' deploy with host = { host = "local" }'
        )
    if server.user and _USER.fullmatch(server.user) is None:
        return (
            f"server.user: expected UID or UID:GID as numbers, and not root, got {server.user!r}:"
            " a kubelet cannot check a name"
        )
    if server.port == DATA_PORT:
        return (
            f"server.port: expected another one than {DATA_PORT}, at which its sidecar listens in"
            " the same Pod; let it listen elsewhere"
        )
    if server.stop_signal:
        return (
            f"server.stop_signal: expected none, got {server.stop_signal}: a kubelet sends the"
            " STOPSIGNAL of the image; set it there"
        )
    return ""


def image_of(server: ServerContainer) -> str:
    """Return how a Pod names the image of a server: by its digest where that is known."""
    return server.digest or server.reference or server.image


def secret_for(request: PodRequest) -> Secret | None:
    """Return the Secret with the values of a server's secrets, None if it has none."""
    if request.server is None or not request.server.secrets:
        return None
    return Secret(metadata=_metadata(request, {}), string_data=request.server.secrets)


def pod_for(request: PodRequest) -> Pod:
    """Return the Pod of a replica."""
    record, definition, needs = request.record, request.definition, request.needs
    has_gpus = gpu_count(record) > 0
    return Pod(
        metadata=_metadata(request, {ENTRANCE_ANNOTATION: _entrance(request)}),
        spec=PodSpec(
            affinity=_on_node(request.place.node),
            tolerations=tuple(_tolerations(definition)),
            init_containers=(_sidecar(request, request.server),) if request.server else (),
            containers=(_server(request, request.server) if request.server else _replica(request),),
            volumes=tuple(_volumes(request)),
            resource_claims=tuple(
                PodClaim(name=_claim_name(index), resource_claim_name=name)
                for index, name in enumerate(request.place.claims)
            ),
            restart_policy="Never",
            termination_grace_period_seconds=math.ceil(needs.stop_grace_s) + 1,
            dns_policy="Default",  # replicas have no names of the cluster
            service_account_name=definition.service_account,
            automount_service_account_token=False,
            enable_service_links=False,
            # A first process of ours would have to reap what handlers leave, and would ignore a
            # TERM before it has a handler. The two containers of a server stay apart.
            share_process_namespace=True if request.server is None else None,
            security_context=_user(request),
            priority_class_name=(
                definition.idle_class if needs.is_preemptible else definition.priority_class
            ),
            runtime_class_name=(definition.runtime_class or None) if has_gpus else None,
            image_pull_secrets=tuple(LocalReference(name=one) for one in definition.pull_secrets),
        ),
    )


def resized(container: Container, memory_mib: int) -> dict[str, object]:
    """Return the patch of `pods/resize` that gives a container another cap on its memory."""
    resources: dict[str, dict[str, str]] = {"limits": {"memory": _mib(memory_mib)}}
    if (request := mib_in(container.resources.requests)) > memory_mib:
        resources["requests"] = {"memory": _mib(min(request, memory_mib))}
    return {"spec": {"containers": [{"name": container.name, "resources": resources}]}}


def mib_in(quantities: Mapping[str, str]) -> int:
    """Return the MiB of memory in requests or limits that this module has written; 0 for none."""
    text = quantities.get("memory", "")
    digits = text.removesuffix("Mi")
    return int(digits) if digits != text and digits.isdecimal() else 0


def _metadata(request: PodRequest, annotations: Mapping[str, str]) -> Metadata:
    own = {
        OWNER_LABEL: request.owner.id,
        REPLICA_LABEL: request.record.id,
        NETWORK_LABEL: request.needs.network,
    }
    reference = request.owner.reference
    return Metadata(
        name=pod_name(request.record.id, request.owner),
        labels={**request.definition.pod_labels, **own},
        annotations={**request.definition.pod_annotations, **annotations},
        owner_references=(reference,) if reference is not None else (),
    )


def _entrance(request: PodRequest) -> str:
    entrance: Entrance = {
        "server": request.record.control,
        "authority": request.authority,
        "token": "",
        "token_file": TOKEN_FILE,
        "listen": request.record.data,
    }
    return json.dumps(entrance)


def _on_node(node: str) -> Affinity:
    """Require a node, and let the scheduler say whether it has room: with `spec.nodeName` nobody
    would ask it, and a claim would never be allocated."""
    field = NodeSelectorRequirement(key="metadata.name", operator="In", values=(node,))
    terms = (NodeSelectorTerm(match_fields=(field,)),)
    return Affinity(
        node_affinity=NodeAffinity(
            required_during_scheduling_ignored_during_execution=NodeSelector(
                node_selector_terms=terms
            )
        )
    )


def _tolerations(definition: KubernetesHost) -> Iterator[Toleration]:
    for key in _AWAY:
        yield Toleration(key=key, operator="Exists", effect="NoExecute", toleration_seconds=AWAY_S)
    for one in definition.tolerations:
        yield Toleration(key=one.key, operator=one.operator, value=one.value, effect=one.effect)


def _user(request: PodRequest) -> PodSecurityContext:
    """Return what holds for all containers. An image's own user is used as it is; the kubelet
    refuses root, and a name that it cannot look up."""
    if request.server is None:
        return PodSecurityContext(
            run_as_user=request.uid,
            run_as_group=request.uid,
            run_as_non_root=True,
            seccomp_profile=_SECCOMP,
        )
    return PodSecurityContext(
        run_as_non_root=True,
        seccomp_profile=_SECCOMP,
        sysctls=(
            Sysctl(name="net.ipv4.ip_unprivileged_port_start", value="0"),
            # A connection's own port is chosen from the same range as a server's: without this,
            # one to a port without a listener may connect to itself.
            Sysctl(name="net.ipv4.ip_local_reserved_ports", value=str(request.server.port)),
        ),
    )


# Containers


def _replica(request: PodRequest) -> Container:
    record = request.record
    image = request.definition.cuda_image if gpu_count(record) else request.definition.image
    variables = replica_variables(record)
    if not gpu_count(record):
        variables[VISIBLE] = NO_DEVICE
    return Container(
        name=REPLICA,
        image=image,
        args=(RUN_TARGET, f"{IDENTITY_TARGET}/{ENTRANCE_FILE}"),
        working_dir="/tmp",  # noqa: S108 - its own /tmp
        env=_env(variables),
        resources=_resources(request),
        volume_mounts=(*_OWN_MOUNTS, VolumeMount(name="tmp", mount_path="/tmp")),  # noqa: S108
        security_context=_LOCKED,
        image_pull_policy="IfNotPresent",
    )


_OWN_MOUNTS: Final = (
    VolumeMount(name="identity", mount_path=IDENTITY_TARGET, read_only=True),
    VolumeMount(name="run", mount_path=RUN_TARGET),
    VolumeMount(name="model", mount_path=MODEL_TARGET),
)


def _sidecar(request: PodRequest, server: ServerContainer) -> Container:
    """Return the sidecar. If the server has files, it starts when the sidecar has fetched them."""
    memory = _mib(sidecar_cap_mib(server))
    security = SecurityContext(
        run_as_user=request.uid,
        run_as_group=request.uid,
        allow_privilege_escalation=False,
        read_only_root_filesystem=True,
        capabilities=_LOCKED.capabilities,
    )
    fetched = Probe(
        exec=ExecAction(command=("test", "-e", f"{RUN_TARGET}/{FETCHED_FILE}")),
        period_seconds=FETCH_PERIOD_S,
        failure_threshold=FETCH_TRIES,
    )
    return Container(
        name=SIDECAR,
        image=request.definition.image,
        args=(RUN_TARGET, f"{IDENTITY_TARGET}/{ENTRANCE_FILE}"),
        working_dir=RUN_TARGET,
        env=_env({**replica_variables(request.record), VISIBLE: NO_DEVICE}),
        resources=Resources(
            requests={"cpu": f"{REQUEST_MILLIS_MIN}m", "memory": memory},
            limits={"cpu": f"{SIDECAR_MILLIS}m", "memory": memory},
        ),
        restart_policy="Always",
        startup_probe=fetched if server.has_files else None,
        volume_mounts=_OWN_MOUNTS,
        security_context=security,
        image_pull_policy="IfNotPresent",
    )


def _server(request: PodRequest, server: ServerContainer) -> Container:
    record = request.record
    fill = filler(record, server)
    visible = "" if gpu_count(record) else NO_DEVICE
    marks = dict.fromkeys(server.secrets, _SECRET)
    variables = server_variables(record, server, marks, visible)
    secret = pod_name(record.id, request.owner)
    user = _USER.fullmatch(server.user) if server.user else None
    return Container(
        name=SERVER,
        image=image_of(server),
        args=tuple(map(fill, server.arguments)),
        env=tuple(
            _from_secret(name, secret) if value == _SECRET else EnvVar(name=name, value=value)
            for name, value in variables.items()
        ),
        resources=_resources(request),
        volume_mounts=tuple(_server_mounts(server)),
        security_context=SecurityContext(
            run_as_user=int(user[1]) if user else None,
            run_as_group=int(user[2]) if user and user[2] else None,
            allow_privilege_escalation=False,
            read_only_root_filesystem=True,
            capabilities=_LOCKED.capabilities,
        ),
        image_pull_policy="IfNotPresent",
    )


_SECRET: Final = "\0"  # noqa: S105 - no value
"""Stands for the value of a secret, which the Pod only refers to: no variable can have it."""


def _from_secret(variable: str, secret: str) -> EnvVar:
    reference = SecretKeyRef(name=secret, key=variable)
    return EnvVar(name=variable, value_from=EnvSource(secret_key_ref=reference))


def _env(variables: Mapping[str, str]) -> tuple[EnvVar, ...]:
    return tuple(EnvVar(name=name, value=value) for name, value in variables.items())


def _resources(request: PodRequest) -> Resources:
    """Return what the container of the model or the server gets. It requests what it is charged,
    as far as that is known, and is limited to its cap."""
    record, place = request.record, request.place
    cap_mib = memory_cap_mib(record)
    request_mib = max(REQUEST_MIB_MIN, math.ceil(request.needs.measured_mib))
    if cap_mib:
        request_mib = min(request_mib, cap_mib)
    share = min(REQUEST_MILLIS_MAX, int(place.cpu_millis * REQUEST_SHARE))
    limit_millis = record.threads * max(1, gpu_count(record)) * MILLIS
    millis = min(limit_millis, max(REQUEST_MILLIS_MIN, share))
    limits = {"cpu": f"{limit_millis}m"}
    if cap_mib:
        limits["memory"] = _mib(cap_mib)
    if place.resource and gpu_count(record):
        limits[place.resource] = str(gpu_count(record))
    return Resources(
        requests={"cpu": f"{millis}m", "memory": _mib(request_mib)},
        limits=limits,
        claims=tuple(ContainerClaim(name=_claim_name(index)) for index in range(len(place.claims))),
    )


def _claim_name(index: int) -> str:
    return f"gpu-{index}"


def _mib(mib: int) -> str:
    return f"{mib}Mi"


# Volumes


def _volumes(request: PodRequest) -> Iterator[Volume]:
    entrance = DownwardItem(
        path=ENTRANCE_FILE,
        field_ref=FieldRef(field_path=f"metadata.annotations['{ENTRANCE_ANNOTATION}']"),
    )
    token = TokenProjection(audience=AUDIENCE, expiration_seconds=TOKEN_S, path="token")
    sources = (
        VolumeProjection(downward_api=DownwardProjection(items=(entrance,))),
        VolumeProjection(service_account_token=token),
    )
    yield Volume(name="identity", projected=Projected(sources=sources))
    files_mib = math.ceil(request.needs.files_mib)
    model_mib = FILES_TIMES * files_mib + MODEL_SPARE_MIB if files_mib else MODELS_MIB
    yield _empty("model", model_mib)
    server = request.server
    cap_mib = memory_cap_mib(request.record)
    tmp_mib = max(cap_mib, TMP_MIB_MIN) if cap_mib else TMP_MIB
    yield _empty("run", RUN_MIB)
    if server is None:
        yield _empty("tmp", tmp_mib)
        return
    yield _empty("shm", server.shm_mib, medium="Memory")
    for index, (folder, mib) in enumerate(_writable(server).items()):
        yield _empty(f"writable-{index}", tmp_mib if folder == "/tmp" and not mib else mib)  # noqa: S108
    for index, mount in enumerate(server.mounts):
        claim = ClaimVolume(claim_name=mount.name, read_only=mount.is_read_only)
        yield Volume(name=f"mount-{index}", persistent_volume_claim=claim)


def _server_mounts(server: ServerContainer) -> Iterator[VolumeMount]:
    yield VolumeMount(name="shm", mount_path="/dev/shm")  # noqa: S108 - its own
    for index, folder in enumerate(_writable(server)):
        yield VolumeMount(name=f"writable-{index}", mount_path=folder)
    for index, mount in enumerate(server.mounts):
        yield VolumeMount(
            name=f"mount-{index}", mount_path=mount.target, read_only=mount.is_read_only
        )
    if server.has_files:
        yield VolumeMount(name="model", mount_path=BUNDLE_FOLDER, read_only=True)


def _writable(server: ServerContainer) -> dict[str, int]:
    """Return the MiB of the folders that a server may write to, 0 for /tmp unless it names that. A
    mount takes precedence."""
    found = {"/tmp": 0}  # noqa: S108 - its own /tmp
    found |= {folder.rstrip("/"): mib for folder, mib in server.writable.items()}
    taken = [one.target.rstrip("/") for one in server.mounts]
    for target in (*taken, "/dev/shm", *[BUNDLE_FOLDER] * server.has_files):  # noqa: S108
        found.pop(target, None)
    return found


def _empty(name: str, mib: int, medium: str = "") -> Volume:
    return Volume(name=name, empty_dir=EmptyDir(medium=medium, size_limit=_mib(mib)))
