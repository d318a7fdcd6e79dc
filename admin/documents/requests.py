"""Requests of the admin API: types of bodies, and the bounds and defaults of queries."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from registry.key_form import KeyPriority
from registry.model.hosts import KubernetesHost, SshHost, Toleration
from registry.openness import Openness

PAGE_MAX: Final = 1000
"""Max items of a page, and the default. A page of this length blocks the event loop, and with it
all requests, for about 10 ms."""
CURSOR_MAX: Final = 300
"""Max characters of a page's cursor: a function and one of its aliases fit."""
HOURS: Final = 24
"""Hours of calls that advice replays, by default."""
HOURS_MAX: Final = 24 * 7
LINES: Final = 100
"""Lines of each replica's log, by default."""
LINES_MAX: Final = 10_000
WARM_S: Final = 60
"""Seconds that a request waits for a replica, or for a park, by default."""
WARM_MAX_S: Final = 3600
DEFAULTS: Final = SshHost("defaults", address="defaults")
"""Settings of a host by SSH that a request leaves out."""
IN_CLUSTER: Final = KubernetesHost("defaults", image="defaults")
"""Settings of a cluster that a request leaves out."""
DeviceMode = Literal["auto", "claims", "plugin", "none"]
"""How Pods get GPUs."""
Scalar = str | int | float | bool | None
Setting = Scalar | list[Scalar] | dict[str, Scalar]
"""Value of a setting that a deploy overrides: no deeper than that."""


class BundleEntry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """File of a bundle, as listed by a client."""

    path: str
    size: int
    sha256: str


class DeployRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A deploy. `files`: those of the bundle, uploaded before.

    `manifest` is the text of function.toml, or null for a bare model file, named by `model`.
    `derived_name`: the client derived the name from the file's name. `breaking`: the change may
    break callers of the current revision. `now`: where both revisions of a server function do not
    fit, the old one does not wait for the end of its open exchanges. `pull`: a server's image is
    pulled also if the engine has it. `measure`: a trial runs although an earlier one measured these
    files. `evict`: the trial may take a device from a function that is being called. Without
    `traffic` plain calls go on to the revision that has
    them, unless this is the function's first; the function's settings stay as they are.
    """

    files: list[BundleEntry]
    manifest: str | None = None
    model: str | None = None
    derived_name: bool = False
    trust: bool = False
    breaking: bool = False
    now: bool = False
    pull: bool = False
    measure: bool = False
    evict: bool = False
    traffic: bool = True
    overrides: dict[str, Setting] = {}


class RollbackRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A rollback.

    `to`: a revision's number, or null for the revision that had the traffic before. `breaking`: the
    change may break callers of the current revision. `now` as in `DeployRequest`.
    """

    to: int | None = None
    breaking: bool = False
    now: bool = False


class ScalingRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Changes of the scaling; what is left out stays."""

    min: int | UnsetType = UNSET
    max: int | UnsetType = UNSET
    idle_s: float | UnsetType = UNSET
    spread: bool | UnsetType = UNSET
    file_hosts: int | UnsetType = UNSET
    preemptible: bool | UnsetType = UNSET


class PrepareRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Body of a request for a compiled model, or for another measurement. `now`: the next build,
    which waits for a device; a measurement that does not wait until the machine is idle."""

    now: bool = False


class SleepRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Body of a request for sleep. `force`: replicas with calls in flight take no new ones, and
    stop when these are answered or the time to drain is over."""

    force: bool = False


class TicketRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A ticket. `path`: what it opens first."""

    path: str = "/"


class AliasRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A further name of the model of a function."""

    function: str
    alias: str


class KeyRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A new key. `scopes`: invoke, invoke:NAME, read, deploy or admin. `priority`: the highest one
    that its calls may have."""

    scopes: list[str]
    note: str = ""
    priority: KeyPriority = KeyPriority.NORMAL


class AccessRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The decision about callers without a key."""

    openness: Openness


class SecretRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A secret and its value."""

    name: str
    value: str


class SshHostRequest(
    msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="ssh"
):
    """A new host by SSH, also where no `kind` is given. `name` is that of the machine if it is left
    out. `accept_host_key`: pin the key that a machine without a known key shows."""

    address: str
    name: str = ""
    labels: dict[str, str] = {}
    host_key: str = ""
    identity: str = ""
    engine: str = DEFAULTS.engine
    cpu_slots: int = DEFAULTS.cpu_slots
    gpus: str = DEFAULTS.gpus
    files_mib: int = DEFAULTS.files_mib
    accept_host_key: bool = False


class KubernetesHostRequest(
    msgspec.Struct,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="kind",
    tag="kubernetes",
):
    """The Kubernetes cluster that the server runs in, as a new host: each of its nodes with devices
    is a host NAME/NODE. `image`: of the runtime, for CPU slots; `cuda_image`: for GPUs, "" for no
    GPUs. `cpu_slots`: of each node, 0 for none. `cpu_mib`: memory of each node's CPU slots, 0 for
    four fifths of what is allocatable. The other fields are as in the settings of the host."""

    name: str
    image: str
    cuda_image: str = ""
    labels: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    cpu_slots: int = IN_CLUSTER.cpu_slots
    cpu_mib: int = IN_CLUSTER.cpu_mib
    devices: DeviceMode = IN_CLUSTER.devices
    resource: str = IN_CLUSTER.resource
    device_class: str = IN_CLUSTER.device_class
    slice_class: str = IN_CLUSTER.slice_class
    uuid_attribute: str = IN_CLUSTER.uuid_attribute
    memory_capacity: str = IN_CLUSTER.memory_capacity
    claim_idle_s: float = IN_CLUSTER.claim_idle_s
    tolerations: tuple[Toleration, ...] = ()
    runtime_class: str = ""
    pull_secrets: tuple[str, ...] = ()
    service_account: str = IN_CLUSTER.service_account
    priority_class: str = IN_CLUSTER.priority_class
    idle_class: str = IN_CLUSTER.idle_class
    pod_labels: dict[str, str] = {}
    pod_annotations: dict[str, str] = {}


class HostChanges(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Changes of a host; what is left out stays, and only what its kind of host has can change.
    Labels are merged, null removes one. `draining`: no replica is placed there, and those that run
    there stop."""

    address: str | UnsetType = UNSET
    labels: dict[str, str | None] | UnsetType = UNSET
    host_key: str | UnsetType = UNSET
    identity: str | UnsetType = UNSET
    engine: str | UnsetType = UNSET
    cpu_slots: int | UnsetType = UNSET
    gpus: str | UnsetType = UNSET
    files_mib: int | UnsetType = UNSET
    draining: bool | UnsetType = UNSET
    image: str | UnsetType = UNSET
    cuda_image: str | UnsetType = UNSET
    node_selector: dict[str, str] | UnsetType = UNSET
    cpu_mib: int | UnsetType = UNSET
    devices: DeviceMode | UnsetType = UNSET
    resource: str | UnsetType = UNSET
    device_class: str | UnsetType = UNSET
    slice_class: str | UnsetType = UNSET
    uuid_attribute: str | UnsetType = UNSET
    memory_capacity: str | UnsetType = UNSET
    claim_idle_s: float | UnsetType = UNSET
    tolerations: tuple[Toleration, ...] | UnsetType = UNSET
    runtime_class: str | UnsetType = UNSET
    pull_secrets: tuple[str, ...] | UnsetType = UNSET
    service_account: str | UnsetType = UNSET
    priority_class: str | UnsetType = UNSET
    idle_class: str | UnsetType = UNSET
    pod_labels: dict[str, str] | UnsetType = UNSET
    pod_annotations: dict[str, str] | UnsetType = UNSET
