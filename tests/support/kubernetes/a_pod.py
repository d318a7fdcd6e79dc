"""Pods of tests, as `restricted` admits them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hosts.kubernetes import objects as o

LABEL: Final = "fngate.dev/test"
"""Label of Pods of tests."""
WAIT: Final = "import signal; signal.pause()"
"""Program that waits for ever. As process 1 without a handler it does not end by TERM."""
FAIL: Final = "import os, time; time.sleep(0.3); os._exit(137)"
"""Program that ends as if killed."""
GREED: Final = "import time; time.sleep(0.3); kept = b'x' * (1 << 30)"
"""Program that takes 1 GiB."""


@dataclass(frozen=True)
class Wanted:
    """What a test wants of its Pod."""

    name: str
    program: str = WAIT
    """Python."""
    image: str = ""
    node: str = ""
    """Node that it has to be on, "" for any."""
    gpus: int = 0
    grace_s: int = 2
    priority: str = ""
    cpu: str = "50m"
    memory: str = "64Mi"
    memory_limit: str = "256Mi"
    audience: str = "fngate"
    tolerated_s: int = 86400
    """Seconds for which it tolerates that its node is silent or not ready."""
    note: str = "a note"
    """Annotation that its file /id/note has."""


def a_pod(wanted: Wanted, account: str) -> o.Pod:
    """Return the Pod."""
    gpus = {"nvidia.com/gpu": str(wanted.gpus)} if wanted.gpus else {}
    resources = o.Resources(
        limits={"memory": wanted.memory_limit, **gpus},
        requests={"cpu": wanted.cpu, "memory": wanted.memory, **gpus},
    )
    container = o.Container(
        name="replica",
        image=wanted.image,
        command=("python3", "-u", "-c", wanted.program),
        resources=resources,
        security_context=o.SecurityContext(
            allow_privilege_escalation=False,
            read_only_root_filesystem=True,
            capabilities=o.Capabilities(drop=("ALL",)),
        ),
        volume_mounts=(
            o.VolumeMount(name="tmp", mount_path="/tmp"),
            o.VolumeMount(name="id", mount_path="/id", read_only=True),
        ),
    )
    token = o.TokenProjection(audience=wanted.audience, expiration_seconds=600, path="token")
    note = o.DownwardItem(
        path="note", field_ref=o.FieldRef(field_path="metadata.annotations['fngate.dev/note']")
    )
    sources = (
        o.VolumeProjection(service_account_token=token),
        o.VolumeProjection(downward_api=o.DownwardProjection(items=(note,))),
    )
    return o.Pod(
        metadata=o.Metadata(
            name=wanted.name,
            labels={LABEL: wanted.name},
            annotations={"fngate.dev/note": wanted.note},
        ),
        spec=o.PodSpec(
            affinity=on_node(wanted.node) if wanted.node else None,
            containers=(container,),
            volumes=(
                o.Volume(name="tmp", empty_dir=o.EmptyDir(size_limit="64Mi")),
                o.Volume(name="id", projected=o.Projected(sources=sources)),
            ),
            tolerations=tuple(
                o.Toleration(
                    key=f"node.kubernetes.io/{word}",
                    operator="Exists",
                    effect="NoExecute",
                    toleration_seconds=wanted.tolerated_s,
                )
                for word in ("not-ready", "unreachable")
            ),
            restart_policy="Never",
            termination_grace_period_seconds=wanted.grace_s,
            dns_policy="Default",
            service_account_name=account,
            automount_service_account_token=False,
            enable_service_links=False,
            security_context=o.PodSecurityContext(
                run_as_user=20001,
                run_as_group=20001,
                run_as_non_root=True,
                seccomp_profile=o.SeccompProfile(type="RuntimeDefault"),
            ),
            priority_class_name=wanted.priority,
        ),
    )


def on_node(name: str) -> o.Affinity:
    """Return the affinity of Pods that have to be on a node."""
    field = o.NodeSelectorRequirement(key="metadata.name", operator="In", values=(name,))
    term = o.NodeSelectorTerm(match_fields=(field,))
    selector = o.NodeSelector(node_selector_terms=(term,))
    return o.Affinity(
        node_affinity=o.NodeAffinity(required_during_scheduling_ignored_during_execution=selector)
    )
