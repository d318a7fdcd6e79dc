"""Options of `fnctl host add` and `host set` for a Kubernetes cluster, and how it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from admin import documents as d
from admin.text import mib
from registry.model.hosts import Toleration


class Devices(StrEnum):
    """How Pods get GPUs."""

    AUTO = "auto"
    CLAIMS = "claims"
    PLUGIN = "plugin"
    NONE = "none"


Image = Annotated[
    str | None,
    typer.Option("--image", metavar="IMAGE", help="The runtime's image, as nodes pull it."),
]
CudaImage = Annotated[
    str | None,
    typer.Option("--cuda-image", metavar="IMAGE", help="That for GPUs (default: no GPU is used)."),
]
NodeSelector = Annotated[
    list[str] | None,
    typer.Option(
        "--node-selector",
        metavar="KEY=VALUE",
        help="Label that nodes must have; may be repeated.",
    ),
]
CpuMib = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="MIB",
        help="Memory of each node for CPU slots; 0, the default, for 4/5 of what is allocatable.",
    ),
]
DeviceOption = Annotated[
    Devices | None,
    typer.Option(help="How Pods get GPUs: by claims, by a device plugin, or what there is."),
]
Tolerate = Annotated[
    list[str] | None,
    typer.Option(
        "--tolerate",
        metavar="KEY[=VALUE][:EFFECT]",
        help="Taint of nodes that Pods tolerate; may be repeated.",
    ),
]
PullSecret = Annotated[
    list[str] | None,
    typer.Option(
        "--pull-secret", metavar="NAME", help="Secret to pull images with; may be repeated."
    ),
]
RuntimeClass = Annotated[
    str | None,
    typer.Option("--runtime-class", metavar="NAME", help="RuntimeClass of Pods with a GPU."),
]
Resource = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Resource of the device plugin (default nvidia.com/gpu)."),
]
DeviceClass = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="DeviceClass of claims (default gpu.nvidia.com)."),
]


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options that only clusters have; None for those that were not given."""

    image: str | None = None
    cuda_image: str | None = None
    node_selector: Sequence[str] | None = None
    cpu_mib: int | None = None
    devices: Devices | None = None
    tolerate: Sequence[str] | None = None
    pull_secret: Sequence[str] | None = None
    runtime_class: str | None = None
    resource: str | None = None
    device_class: str | None = None

    def settings(self) -> dict[str, Any]:
        """Return the given options as settings of a cluster. An empty option restores the default.
        Raises typer.BadParameter."""
        tolerations = [_toleration(one) for one in self.tolerate or () if one]
        found = {
            "image": self.image,
            "cuda_image": self.cuda_image,
            "node_selector": _pairs(self.node_selector),
            "cpu_mib": self.cpu_mib,
            "devices": self.devices.value if self.devices is not None else None,
            "tolerations": None if self.tolerate is None else tuple(tolerations),
            "pull_secrets": None if self.pull_secret is None else _given(self.pull_secret),
            "runtime_class": self.runtime_class,
            "resource": self.resource,
            "device_class": self.device_class,
        }
        return {key: value for key, value in found.items() if value is not None}


def _given(items: Sequence[str]) -> tuple[str, ...]:
    return tuple(filter(None, items))


def _pairs(items: Sequence[str] | None) -> dict[str, str] | None:
    if items is None:
        return None
    found: dict[str, str] = {}
    for item in _given(items):
        key, equals, value = item.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"expected --node-selector KEY=VALUE, got {item!r}")
        found[key] = value
    return found


def _toleration(text: str) -> Toleration:
    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    if not key:
        raise typer.BadParameter(f"expected --tolerate KEY[=VALUE][:EFFECT], got {text!r}")
    return Toleration(key, "Equal" if equals else "Exists", value, effect)


def cluster_settings(settings: d.hosts.KubernetesHostSettings) -> list[tuple[str, str]]:
    """Return the settings of a cluster for `fnctl host show`; "" for what is not set."""
    slots = str(settings.cpu_slots)
    if settings.cpu_slots:
        slots += f", {mib(settings.cpu_mib)}" if settings.cpu_mib else ", 4/5 of the memory"
    by = {"claims": settings.device_class, "plugin": settings.resource}.get(settings.devices, "")
    tolerated = (
        one.key + (f"={one.value}" if one.operator == "Equal" else "") + f":{one.effect or '*'}"
        for one in settings.tolerations
    )
    return [
        ("image", settings.image),
        ("cuda image", settings.cuda_image),
        ("nodes", " ".join(f"{key}={value}" for key, value in settings.node_selector.items())),
        ("slots a node", slots),
        ("GPUs by", " ".join(filter(None, (settings.devices, by)))),
        ("tolerates", " ".join(tolerated)),
        ("runtime class", settings.runtime_class),
        ("pull secrets", " ".join(settings.pull_secrets)),
        ("account", settings.service_account),
        ("priorities", " ".join(filter(None, (settings.priority_class, settings.idle_class)))),
    ]
