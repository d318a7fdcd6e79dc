"""Checks of the definition of a Kubernetes cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from registry.errors import BadRequest
from registry.model.hosts import KubernetesHost

IMAGE_MAX: Final = 512
"""Max characters of a reference of an image."""
ITEMS_MAX: Final = 64
"""Max labels, annotations, tolerations or secrets of one definition."""
SLOTS_MAX: Final = 256
MIB_MAX: Final = 2**30
IDLE_MAX_S: Final = 86_400.0
ANNOTATION_MAX: Final = 4096
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@\[\]-]*")
_SEGMENT: Final = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_SUBDOMAIN: Final = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_KEY: Final = re.compile(rf"(?:{_SUBDOMAIN}/)?{_SEGMENT}")
"""Qualified name: key of a label or an annotation, name of a resource
(kubernetes.io, "Labels and Selectors")."""
_VALUE: Final = re.compile(rf"(?:{_SEGMENT})?")
"""Value of a label."""
_NAME: Final = re.compile(_SUBDOMAIN)
"""Name of an object (RFC 1123 subdomain)."""
_ATTRIBUTE: Final = re.compile(rf"(?:{_SUBDOMAIN}/)?[A-Za-z_][A-Za-z0-9_]{{0,31}}")
"""Attribute or capacity of a device: a C identifier, with a domain or without."""
_RESERVED: Final = ("fngate.dev/", "app.kubernetes.io/name")
"""Begins of the labels by which a server finds its own objects, and NetworkPolicies find both."""


def check_cluster(host: KubernetesHost) -> None:
    """Raise BadRequest for the first field that no API server would take."""
    if not host.image:
        raise BadRequest("image: expected the runtime's image as Pods name it, got nothing")
    _check("image", host.image, _IMAGE, "a reference of an image", IMAGE_MAX)
    _check_optional("cuda_image", host.cuda_image, _IMAGE, "a reference of an image", IMAGE_MAX)
    _check_devices(host)
    _check("service_account", host.service_account, _NAME, "the name of a ServiceAccount")
    _check_optional("runtime_class", host.runtime_class, _NAME, "the name of a RuntimeClass")
    _check_optional("priority_class", host.priority_class, _NAME, "the name of a PriorityClass")
    _check_optional("idle_class", host.idle_class, _NAME, "the name of a PriorityClass")
    _check_range("cpu_slots", host.cpu_slots, 0, SLOTS_MAX)
    _check_range("cpu_mib", host.cpu_mib, 0, MIB_MAX)
    _check_labels("node_selector", host.node_selector)
    _check_labels("pod_labels", host.pod_labels)
    _check_count("pod_annotations", len(host.pod_annotations))
    for key, value in host.pod_annotations.items():
        _check("pod_annotations", key, _KEY, "keys such as example.com/team")
        if len(value) > ANNOTATION_MAX:
            raise BadRequest(
                f"pod_annotations: expected at most {ANNOTATION_MAX} characters for {key},"
                f" got {len(value)}"
            )
    for key in (*host.pod_labels, *host.pod_annotations):
        if key.startswith(_RESERVED):
            raise BadRequest(
                f"expected keys of Pods other than {' and '.join(_RESERVED)}, got {key!r}"
            )
    _check_count("pull_secrets", len(host.pull_secrets))
    for name in host.pull_secrets:
        _check("pull_secrets", name, _NAME, "names of Secrets")
    _check_tolerations(host)
    if not host.cpu_slots and (not host.cuda_image or host.devices == "none"):
        raise BadRequest(
            "expected cpu_slots for replicas on CPUs, or a cuda_image for GPUs; got neither"
        )


def _check_devices(host: KubernetesHost) -> None:
    """Raise BadRequest for the first name by which no device is found."""
    _check("resource", host.resource, _KEY, "a resource such as nvidia.com/gpu")
    _check("device_class", host.device_class, _NAME, "the name of a DeviceClass")
    _check("slice_class", host.slice_class, _NAME, "the name of a DeviceClass")
    _check("uuid_attribute", host.uuid_attribute, _ATTRIBUTE, "an attribute of devices")
    _check("memory_capacity", host.memory_capacity, _ATTRIBUTE, "a capacity of devices")
    _check_range("claim_idle_s", host.claim_idle_s, 0.0, IDLE_MAX_S)


def _check_tolerations(host: KubernetesHost) -> None:
    _check_count("tolerations", len(host.tolerations))
    for one in host.tolerations:
        _check_optional("tolerations", one.key, _KEY, "keys of taints")
        _check("tolerations", one.value, _VALUE, "values of taints")
        if one.operator == "Exists" and one.value:
            raise BadRequest(f"tolerations: expected no value with Exists, got {one.value!r}")
        if one.operator == "Equal" and not one.key:
            raise BadRequest("tolerations: expected a key with Equal, got none")
        if one.effect not in ("", "NoSchedule", "PreferNoSchedule", "NoExecute"):
            raise BadRequest(
                "tolerations: expected the effect NoSchedule, PreferNoSchedule or NoExecute, got"
                f" {one.effect[:80]!r}"
            )


def _check_labels(field: str, labels: Mapping[str, str]) -> None:
    _check_count(field, len(labels))
    for key, value in labels.items():
        _check(field, key, _KEY, "keys such as example.com/pool")
        _check(field, value, _VALUE, f"a value of a label for {key}")


def _check(
    field: str, value: str, pattern: re.Pattern[str], expected: str, most: int = 317
) -> None:
    """Raise BadRequest unless a value matches; 317 characters are a subdomain, / and a name."""
    if len(value) > most or pattern.fullmatch(value) is None:
        raise BadRequest(f"{field}: expected {expected}, got {value[:80]!r}")


def _check_optional(
    field: str, value: str, pattern: re.Pattern[str], expected: str, most: int = 317
) -> None:
    if value:
        _check(field, value, pattern, expected, most)


def _check_count(field: str, count: int) -> None:
    if count > ITEMS_MAX:
        raise BadRequest(f"{field}: expected at most {ITEMS_MAX}, got {count}")


def _check_range(field: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise BadRequest(f"{field}: expected {least:g} to {most:g}, got {value:g}")
