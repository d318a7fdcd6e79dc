"""The objects of the Kubernetes API as far as fngate reads or writes them.

Field names are those of the API in snake_case, and mean what its reference says; only what fngate
relies on is documented here. Unknown fields are ignored, so that later versions of the API can add
some. A field that is "", empty or None is not sent.
"""

from __future__ import annotations

from typing import Final, Generic, Literal, TypeVar

import msgspec

OWNER_LABEL: Final = "fngate.dev/owner"
"""Label of every object that a server makes: the id of its store."""
DATA_PORT: Final = 7443
"""Port at which replicas in Pods listen for gateways; the shipped NetworkPolicies allow it."""
REPLICA_LABEL: Final = "fngate.dev/replica"
"""Label of a Pod: the replica's id."""
NETWORK_LABEL: Final = "fngate.dev/network"
"""Label of a Pod: `none` or `egress`, by which NetworkPolicies select it."""
ENTRANCE_ANNOTATION: Final = "fngate.dev/entrance"
"""Annotation of a Pod: the `Entrance` of its replica, as JSON."""


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of an object."""


class OwnerReference(Part, frozen=True, kw_only=True):
    api_version: str = "v1"
    kind: str = ""
    name: str = ""
    uid: str = ""


class Metadata(Part, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    """RFC 3339, in whole seconds, by the API server's clock."""
    deletion_timestamp: str | None = None
    """When the object is to be gone at the latest; set by a delete that has a grace period."""
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()


class Object(Part, frozen=True, kw_only=True):
    """An object of the API."""

    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Metadata()


ObjectT = TypeVar("ObjectT", bound=Object)


class ListMetadata(Part, frozen=True, kw_only=True):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Listed(Part, Generic[ObjectT], frozen=True, kw_only=True):
    """The answer to a list."""

    metadata: ListMetadata = ListMetadata()
    items: tuple[ObjectT, ...] | None = None
    """None for an empty list, as some API servers write it."""


class WatchEvent(Part, frozen=True, kw_only=True):
    """One line of a watch. `object` is a `Status` in an ERROR; in a BOOKMARK it has nothing but its
    resource version."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: msgspec.Raw


class Status(Part, frozen=True, kw_only=True):
    """The answer to a refused request, and to some deletes."""

    status: str = ""
    """Success or Failure."""
    reason: str = ""
    message: str = ""
    code: int = 0


# Nodes


class Condition(Part, frozen=True, kw_only=True):
    """Of a node or a Pod."""

    type: str
    status: str
    """True, False or Unknown."""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class Taint(Part, frozen=True, kw_only=True):
    key: str
    value: str = ""
    effect: str = ""
    """NoSchedule, PreferNoSchedule or NoExecute."""


class Address(Part, frozen=True, kw_only=True):
    type: str
    address: str


class NodeInfo(Part, frozen=True, kw_only=True):
    kubelet_version: str = ""
    container_runtime_version: str = ""


class NodeSpec(Part, frozen=True, kw_only=True):
    unschedulable: bool = False
    """Whether it is cordoned."""
    taints: tuple[Taint, ...] = ()


class NodeStatus(Part, frozen=True, kw_only=True):
    allocatable: dict[str, str] = {}
    """Quantities by resource, such as cpu, memory, nvidia.com/gpu."""
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[Address, ...] = ()
    node_info: NodeInfo = NodeInfo()


class Node(Object, frozen=True, kw_only=True):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


# Pods, as they are made


class NodeSelectorRequirement(Part, frozen=True, kw_only=True):
    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeSelectorTerm(Part, frozen=True, kw_only=True):
    match_fields: tuple[NodeSelectorRequirement, ...] = ()
    match_expressions: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(Part, frozen=True, kw_only=True):
    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class NodeAffinity(Part, frozen=True, kw_only=True):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class Affinity(Part, frozen=True, kw_only=True):
    node_affinity: NodeAffinity | None = None


class Toleration(Part, frozen=True, kw_only=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class SeccompProfile(Part, frozen=True, kw_only=True):
    type: str
    localhost_profile: str = ""


class Capabilities(Part, frozen=True, kw_only=True):
    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


class SecurityContext(Part, frozen=True, kw_only=True):
    """Of a container."""

    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    allow_privilege_escalation: bool | None = None
    read_only_root_filesystem: bool | None = None
    capabilities: Capabilities | None = None
    seccomp_profile: SeccompProfile | None = None


class Sysctl(Part, frozen=True, kw_only=True):
    name: str
    value: str


class PodSecurityContext(Part, frozen=True, kw_only=True):
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    fs_group: int | None = None
    seccomp_profile: SeccompProfile | None = None
    sysctls: tuple[Sysctl, ...] = ()


class FieldRef(Part, frozen=True, kw_only=True):
    field_path: str


class SecretKeyRef(Part, frozen=True, kw_only=True):
    name: str = ""
    key: str


class EnvSource(Part, frozen=True, kw_only=True):
    field_ref: FieldRef | None = None
    secret_key_ref: SecretKeyRef | None = None


class EnvVar(Part, frozen=True, kw_only=True):
    name: str
    value: str = ""
    value_from: EnvSource | None = None


class ContainerClaim(Part, frozen=True, kw_only=True):
    """A claim of the Pod that a container uses."""

    name: str


class Resources(Part, frozen=True, kw_only=True):
    limits: dict[str, str] = {}
    requests: dict[str, str] = {}
    claims: tuple[ContainerClaim, ...] = ()


class ResizePolicy(Part, frozen=True, kw_only=True):
    resource_name: str
    restart_policy: str


class ContainerPort(Part, frozen=True, kw_only=True):
    container_port: int
    name: str = ""


class ExecAction(Part, frozen=True, kw_only=True):
    command: tuple[str, ...] = ()


class Probe(Part, frozen=True, kw_only=True):
    exec: ExecAction | None = None
    period_seconds: int | None = None
    timeout_seconds: int | None = None
    failure_threshold: int | None = None


class VolumeMount(Part, frozen=True, kw_only=True):
    name: str
    mount_path: str
    read_only: bool = False
    sub_path: str = ""


class Container(Part, frozen=True, kw_only=True):
    name: str
    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[EnvVar, ...] = ()
    ports: tuple[ContainerPort, ...] = ()
    resources: Resources = Resources()
    resize_policy: tuple[ResizePolicy, ...] = ()
    restart_policy: str | None = None
    """Always for a sidecar among the init containers; None for all others."""
    volume_mounts: tuple[VolumeMount, ...] = ()
    startup_probe: Probe | None = None
    """Of a sidecar: later containers start once it has succeeded."""
    security_context: SecurityContext | None = None
    image_pull_policy: str = ""
    termination_message_policy: str = ""


class EmptyDir(Part, frozen=True, kw_only=True, omit_defaults=False):
    """Sent with all fields: `emptyDir: {}` is a volume, a missing one is none."""

    medium: str = ""
    size_limit: str | None = None


class ClaimVolume(Part, frozen=True, kw_only=True):
    claim_name: str
    read_only: bool = False


class TokenProjection(Part, frozen=True, kw_only=True):
    audience: str = ""
    """"" for the API server itself, as in the Pod of a server."""
    expiration_seconds: int | None = None
    path: str


class DownwardItem(Part, frozen=True, kw_only=True):
    path: str
    field_ref: FieldRef | None = None
    """None for a resource of a container, as Pods may have that others have changed."""


class DownwardProjection(Part, frozen=True, kw_only=True):
    items: tuple[DownwardItem, ...] = ()


class VolumeProjection(Part, frozen=True, kw_only=True):
    service_account_token: TokenProjection | None = None
    downward_api: DownwardProjection | None = msgspec.field(default=None, name="downwardAPI")


class Projected(Part, frozen=True, kw_only=True):
    sources: tuple[VolumeProjection, ...] = ()
    default_mode: int | None = None


class Volume(Part, frozen=True, kw_only=True):
    name: str
    empty_dir: EmptyDir | None = None
    persistent_volume_claim: ClaimVolume | None = None
    projected: Projected | None = None


class PodClaim(Part, frozen=True, kw_only=True):
    """A claim that containers of a Pod use by its name."""

    name: str
    resource_claim_name: str


class LocalReference(Part, frozen=True, kw_only=True):
    name: str


class PodSpec(Part, frozen=True, kw_only=True):
    node_name: str = ""
    """The node, once the Pod is scheduled; never sent."""
    affinity: Affinity | None = None
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    init_containers: tuple[Container, ...] = ()
    containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    resource_claims: tuple[PodClaim, ...] = ()
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    dns_policy: str = ""
    service_account_name: str = ""
    automount_service_account_token: bool | None = None
    enable_service_links: bool | None = None
    share_process_namespace: bool | None = None
    """Whether the sandbox's process, which reaps orphans, is the first one of all containers."""
    security_context: PodSecurityContext | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    runtime_class_name: str | None = None
    image_pull_secrets: tuple[LocalReference, ...] = ()


# Pods, as they fare


class Terminated(Part, frozen=True, kw_only=True):
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""


class Waiting(Part, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""


class Running(Part, frozen=True, kw_only=True):
    started_at: str | None = None


class ContainerState(Part, frozen=True, kw_only=True):
    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(Part, frozen=True, kw_only=True):
    name: str
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    restart_count: int = 0
    image: str = ""
    image_id: str = msgspec.field(default="", name="imageID")


class PodStatus(Part, frozen=True, kw_only=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    pod_ip: str = msgspec.field(default="", name="podIP")
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(Object, frozen=True, kw_only=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


# Secrets


class Secret(Object, frozen=True, kw_only=True):
    string_data: dict[str, str] = {}
    type: str = "Opaque"


# Dynamic resource allocation (resource.k8s.io/v1)


class CelSelector(Part, frozen=True, kw_only=True):
    expression: str


class DeviceSelector(Part, frozen=True, kw_only=True):
    cel: CelSelector


class ExactRequest(Part, frozen=True, kw_only=True):
    device_class_name: str
    selectors: tuple[DeviceSelector, ...] = ()


class DeviceRequest(Part, frozen=True, kw_only=True):
    name: str
    exactly: ExactRequest | None = None


class DeviceClaim(Part, frozen=True, kw_only=True):
    requests: tuple[DeviceRequest, ...] = ()


class ResourceClaimSpec(Part, frozen=True, kw_only=True):
    devices: DeviceClaim = DeviceClaim()


class DeviceResult(Part, frozen=True, kw_only=True):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""


class DeviceAllocation(Part, frozen=True, kw_only=True):
    results: tuple[DeviceResult, ...] = ()


class Allocation(Part, frozen=True, kw_only=True):
    devices: DeviceAllocation = DeviceAllocation()


class ClaimUser(Part, frozen=True, kw_only=True):
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(Part, frozen=True, kw_only=True):
    allocation: Allocation | None = None
    reserved_for: tuple[ClaimUser, ...] = ()


class ResourceClaim(Object, frozen=True, kw_only=True):
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class AttributeValue(Part, frozen=True, kw_only=True):
    """A value of an attribute: exactly one field is set."""

    string: str | None = None
    int_: int | None = msgspec.field(default=None, name="int")
    bool_: bool | None = msgspec.field(default=None, name="bool")
    version: str | None = None


class CapacityValue(Part, frozen=True, kw_only=True):
    value: str = ""
    """A quantity."""


class SliceDevice(Part, frozen=True, kw_only=True):
    name: str
    attributes: dict[str, AttributeValue] = {}
    """By name, which is preceded by a domain and a slash if that is not the driver's."""
    capacity: dict[str, CapacityValue] = {}
    taints: tuple[Taint, ...] = ()
    """As of nodes: a claim gets a device only if it tolerates them."""


class SlicePool(Part, frozen=True, kw_only=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(Part, frozen=True, kw_only=True):
    driver: str = ""
    node_name: str = ""
    pool: SlicePool = SlicePool()
    devices: tuple[SliceDevice, ...] = ()


class ResourceSlice(Object, frozen=True, kw_only=True):
    spec: ResourceSliceSpec = ResourceSliceSpec()


# Reviews of tokens


class TokenReviewSpec(Part, frozen=True, kw_only=True):
    token: str
    audiences: tuple[str, ...] = ()


class UserInfo(Part, frozen=True, kw_only=True):
    username: str = ""
    extra: dict[str, tuple[str, ...]] = {}


class TokenReviewStatus(Part, frozen=True, kw_only=True):
    authenticated: bool = False
    user: UserInfo = UserInfo()
    audiences: tuple[str, ...] = ()
    error: str = ""


class TokenReview(Object, frozen=True, kw_only=True):
    spec: TokenReviewSpec = TokenReviewSpec(token="")
    status: TokenReviewStatus = TokenReviewStatus()


class Kind(msgspec.Struct, Generic[ObjectT], frozen=True):
    """A kind of objects: where the API server has them."""

    type: type[ObjectT]
    api_version: str
    """Such as `v1` or `resource.k8s.io/v1`."""
    name: str
    """Such as Pod."""
    plural: str
    """As in paths, such as pods."""
    is_namespaced: bool = True


PODS: Final = Kind(Pod, "v1", "Pod", "pods")
NODES: Final = Kind(Node, "v1", "Node", "nodes", is_namespaced=False)
SECRETS: Final = Kind(Secret, "v1", "Secret", "secrets")
CLAIMS: Final = Kind(ResourceClaim, "resource.k8s.io/v1", "ResourceClaim", "resourceclaims")
SLICES: Final = Kind(
    ResourceSlice, "resource.k8s.io/v1", "ResourceSlice", "resourceslices", is_namespaced=False
)
REVIEWS: Final = Kind(
    TokenReview, "authentication.k8s.io/v1", "TokenReview", "tokenreviews", is_namespaced=False
)

# What `fnctl doctor` asks


class PriorityClass(Object, frozen=True, kw_only=True):
    value: int = 0


class DeviceClass(Object, frozen=True, kw_only=True):
    """Only its presence counts."""


class ResourceAttributes(Part, frozen=True, kw_only=True):
    namespace: str = ""
    verb: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""


class AccessReviewSpec(Part, frozen=True, kw_only=True):
    resource_attributes: ResourceAttributes = ResourceAttributes()


class AccessReviewStatus(Part, frozen=True, kw_only=True):
    allowed: bool = False
    reason: str = ""


class AccessReview(Object, frozen=True, kw_only=True):
    """Whether the server's own account may do something."""

    spec: AccessReviewSpec = AccessReviewSpec()
    status: AccessReviewStatus = AccessReviewStatus()


PRIORITIES: Final = Kind(
    PriorityClass, "scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", is_namespaced=False
)
CLASSES: Final = Kind(
    DeviceClass, "resource.k8s.io/v1", "DeviceClass", "deviceclasses", is_namespaced=False
)
ACCESS_REVIEWS: Final = Kind(
    AccessReview,
    "authorization.k8s.io/v1",
    "SelfSubjectAccessReview",
    "selfsubjectaccessreviews",
    is_namespaced=False,
)
